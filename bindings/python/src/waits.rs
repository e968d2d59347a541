//! Loads that wait for loads, in one graph for all caches: a wait that would close a circle does
//! not begin.
//!
//! Each load has an [`Origin`]. A load is held up by every wait of the code that it runs. A context
//! variable of Python's says which load the code is part of. A task or thread with a copy of the
//! load's context is part of it: those of `create_task`, `gather`, `wait_for` and `to_thread` are.
//! A thread that waits holds up all loads that it runs, and the tasks of its event loop with them.
//! A loop that a load runs holds that load up, too.
//!
//! An origin may be held up by a part of it that nobody awaits. Then a wait is taken for a circle
//! that is none, and the function runs once more than needed.
//!
//! All locks are taken by attached threads for some instructions, so that none is held at a `fork`
//! by Python.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Counts the forks that led to this process.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Loads that are waited for, by what is held up by the wait.
static GRAPH: Mutex<Option<HashMap<HeldUp, Vec<Arc<Origin>>>>> = Mutex::new(None);

thread_local! {
    /// The number of this thread; 0 before it has one.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Loads that this thread runs outside of tasks.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of forks that led to this process.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed) // changes in a process of one thread
}

/// Begins the life of a child of `fork`: none of its parent's waits is left.
pub(crate) fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    *lock(&GRAPH) = None;
}

fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(LAST.fetch_add(1, Ordering::Relaxed) + 1); // only to be unique
        }
        thread.get()
    })
}

/// Tells what a wait holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HeldUp {
    /// The load of this number.
    Load(u64),
    /// All loads that run in this thread, those of tasks included.
    Thread(u64),
    /// The loads that run in this thread below an event loop.
    Below(u64),
}

/// The identity of a load.
#[derive(Debug)]
pub(crate) struct Origin {
    number: u64,
    thread: u64,
    generation: u64,
    /// It is not run by a task.
    is_threads: bool,
    has_ended: AtomicBool,
    /// The load that it is part of.
    parent: Option<Arc<Self>>,
}

impl Origin {
    pub(crate) fn new(is_threads: bool, parent: Option<&Arc<Self>>) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Those that have ended hold nothing up; without them the chain stays short.
        let mut parent = parent;
        while let Some(ended) = parent.filter(|it| it.has_ended.load(Ordering::Relaxed)) {
            parent = ended.parent.as_ref();
        }
        Arc::new(Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1, // only to be unique
            thread: this_thread(),
            generation: generation(),
            is_threads,
            has_ended: AtomicBool::new(false),
            parent: parent.cloned(),
        })
    }

    /// Returns whether it is a load of the process of which this one is a child.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.generation != generation()
    }

    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.thread == this_thread()
    }

    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed); // says nothing about other memory
    }

    /// The kinds of waits that hold it up.
    fn held_up(&self) -> impl Iterator<Item = HeldUp> {
        let below = self.is_threads.then_some(HeldUp::Below(self.thread));
        [HeldUp::Load(self.number), HeldUp::Thread(self.thread)].into_iter().chain(below)
    }
}

/// The loads that would be held up by a wait that is about to begin.
#[derive(Debug)]
pub(crate) struct Waiter(Vec<HeldUp>);

impl Waiter {
    /// Of this thread, with the load that the code is part of.
    pub(crate) fn thread(load: Option<&Arc<Origin>>) -> Self {
        Self::of(load, Some(HeldUp::Thread(this_thread())))
    }

    /// Of a task of the loop that runs in this thread.
    pub(crate) fn task(load: Option<&Arc<Origin>>) -> Self {
        let runs_below = RUNNING.get() > 0;
        Self::of(load, runs_below.then(|| HeldUp::Below(this_thread())))
    }

    fn of(load: Option<&Arc<Origin>>, held_up: Option<HeldUp>) -> Self {
        let loads = std::iter::successors(load, |load| load.parent.as_ref());
        let loads = loads.filter(|load| !load.has_ended.load(Ordering::Relaxed));
        Self(loads.map(|load| HeldUp::Load(load.number)).chain(held_up).collect())
    }
}

/// A wait for a load, in the graph until this is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    held_up: Vec<HeldUp>,
    origin: Arc<Origin>,
    generation: u64,
}

impl Wait {
    /// Notes a wait, unless the load waits, by way of others perhaps, for what the wait holds up.
    pub(crate) fn begin(waiter: &Waiter, origin: &Arc<Origin>) -> Option<Self> {
        let own: HashSet<HeldUp> = waiter.0.iter().copied().collect();
        let mut graph = lock(&GRAPH);
        let graph = graph.get_or_insert_default();
        let mut seen = HashSet::from([origin.number]);
        let mut ahead = vec![Arc::clone(origin)];
        while let Some(origin) = ahead.pop() {
            for held_up in origin.held_up() {
                if own.contains(&held_up) {
                    return None;
                }
                let next = graph.get(&held_up).into_iter().flatten();
                ahead.extend(next.filter(|next| seen.insert(next.number)).cloned());
            }
        }
        for held_up in &waiter.0 {
            graph.entry(*held_up).or_default().push(Arc::clone(origin));
        }
        let held_up = waiter.0.clone();
        Some(Self { held_up, origin: Arc::clone(origin), generation: generation() })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.held_up.is_empty() || self.generation != generation() {
            return;
        }
        let mut graph = lock(&GRAPH);
        let Some(graph) = graph.as_mut() else { return };
        for held_up in &self.held_up {
            let Some(origins) = graph.get_mut(held_up) else { continue };
            if let Some(at) = origins.iter().position(|it| Arc::ptr_eq(it, &self.origin)) {
                origins.swap_remove(at);
            }
            if origins.is_empty() {
                graph.remove(held_up);
            }
        }
    }
}

/// The load that runs in a context of Python's.
#[pyclass(frozen, module = "floe_cache._floe")]
pub(crate) struct Load(Arc<Origin>);

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let variable = VARIABLE.get_or_try_init(py, || {
        let make = py.import("contextvars")?.getattr("ContextVar")?;
        Ok::<_, PyErr>(make.call1(("floe_cache.load",))?.unbind())
    })?;
    Ok(variable.bind(py))
}

/// The load that the calling code is part of.
///
/// # Errors
/// Python's, where it runs out of memory.
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<Arc<Origin>>> {
    let load = variable(py)?.call_method1("get", (py.None(),))?;
    Ok(load.cast_exact::<Load>().ok().map(|load| Arc::clone(&load.get().0)))
}

/// Makes the calling code part of a load. Returns what it was part of, for [`leave`].
///
/// # Errors
/// Python's, where it runs out of memory.
pub(crate) fn enter(py: Python<'_>, origin: &Arc<Origin>) -> PyResult<Py<PyAny>> {
    let variable = variable(py)?;
    let before = variable.call_method1("get", (py.None(),))?;
    variable.call_method1("set", (Load(Arc::clone(origin)),))?;
    Ok(before.unbind())
}

/// Makes the calling code part of what it was part of before, unless it is not part of the load: a
/// coroutine may be closed by any code.
///
/// # Errors
/// Python's, where it runs out of memory.
pub(crate) fn leave(py: Python<'_>, origin: &Arc<Origin>, before: Py<PyAny>) -> PyResult<()> {
    match current(py)? {
        Some(load) if Arc::ptr_eq(&load, origin) => {
            variable(py)?.call_method1("set", (before,)).map(drop)
        }
        _ => Ok(()),
    }
}

/// Runs a load in this thread.
///
/// # Errors
/// Those of the load.
pub(crate) fn run<'py>(
    py: Python<'py>,
    origin: &Arc<Origin>,
    load: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let before = enter(py, origin)?;
    RUNNING.set(RUNNING.get() + 1);
    let result = load();
    RUNNING.set(RUNNING.get() - 1);
    leave(py, origin, before)?;
    result
}
