//! The graph of loads that wait for loads, across all caches. A wait that would close a cycle is
//! refused.
//!
//! Each load has an [`Origin`]. A load is held up by every wait of the code that it runs. A Python
//! context variable records which load the running code is part of. A task or thread with a copy of
//! the load's context is part of that load: `create_task`, `gather`, `wait_for` and `to_thread`
//! make such copies. A waiting thread holds up all loads that it runs, and the tasks of its event
//! loop. If a load runs an event loop, that loop holds up the load, too.
//!
//! A load may seem held up by a part of it that nobody awaits. Then a wait is mistaken for a cycle,
//! and the function runs once more than needed.
//!
//! Threads take all locks here while attached to the interpreter, and only for a few instructions.
//! So no lock is held when Python calls `fork`.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Number of forks that led to this process.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The loads that are waited for, by what each wait holds up.
static GRAPH: Mutex<Option<HashMap<HeldUp, Vec<Arc<Origin>>>>> = Mutex::new(None);

thread_local! {
    /// Number of this thread; 0 before one is assigned.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Number of loads that this thread runs outside of tasks.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of forks that led to this process.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed) // changes in a process of one thread
}

/// Resets the graph in a child of `fork`, where none of the parent's waits exists.
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

/// A load or group of loads that a wait holds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HeldUp {
    /// The load with this number.
    Load(u64),
    /// All loads that run in this thread, including those of tasks.
    Thread(u64),
    /// The loads of this thread outside of tasks, which are below its event loop in the call stack.
    Below(u64),
}

/// The identity of a load in the graph.
#[derive(Debug)]
pub(crate) struct Origin {
    number: u64,
    thread: u64,
    generation: u64,
    /// A thread runs the load outside of any task.
    is_threads: bool,
    has_ended: AtomicBool,
    /// The load that this one is part of.
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

    /// Returns whether the load belongs to the parent of this process.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.generation != generation()
    }

    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.thread == this_thread()
    }

    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed); // says nothing about other memory
    }

    /// Returns the kinds of waits that hold this load up.
    fn held_up(&self) -> impl Iterator<Item = HeldUp> {
        let below = self.is_threads.then_some(HeldUp::Below(self.thread));
        [HeldUp::Load(self.number), HeldUp::Thread(self.thread)].into_iter().chain(below)
    }
}

/// The loads that a wait would hold up if it began.
#[derive(Debug)]
pub(crate) struct Waiter(Vec<HeldUp>);

impl Waiter {
    /// Describes a wait of the calling thread, whose code is part of `load`.
    pub(crate) fn thread(load: Option<&Arc<Origin>>) -> Self {
        Self::of(load, Some(HeldUp::Thread(this_thread())))
    }

    /// Describes a wait of a task, whose event loop runs in the calling thread. The task is part of
    /// `load`.
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

/// A wait for a load. It is in the graph until dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    held_up: Vec<HeldUp>,
    origin: Arc<Origin>,
    generation: u64,
}

impl Wait {
    /// Adds a wait to the graph. Returns `None` if the load itself waits, directly or through other
    /// loads, for what the wait would hold up.
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

/// The load that a Python context belongs to.
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

/// Returns the load that the calling code is part of.
///
/// # Errors
/// When Python runs out of memory.
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<Arc<Origin>>> {
    let load = variable(py)?.call_method1("get", (py.None(),))?;
    Ok(load.cast_exact::<Load>().ok().map(|load| Arc::clone(&load.get().0)))
}

/// Makes the calling code part of a load. Returns the previous mark, for [`leave`].
///
/// # Errors
/// When Python runs out of memory.
pub(crate) fn enter(py: Python<'_>, origin: &Arc<Origin>) -> PyResult<Py<PyAny>> {
    let variable = variable(py)?;
    let before = variable.call_method1("get", (py.None(),))?;
    variable.call_method1("set", (Load(Arc::clone(origin)),))?;
    Ok(before.unbind())
}

/// Restores the mark that [`enter`] returned. Does nothing if the calling code is not part of the
/// load, because any code may close a coroutine.
///
/// # Errors
/// When Python runs out of memory.
pub(crate) fn leave(py: Python<'_>, origin: &Arc<Origin>, before: Py<PyAny>) -> PyResult<()> {
    match current(py)? {
        Some(load) if Arc::ptr_eq(&load, origin) => {
            variable(py)?.call_method1("set", (before,)).map(drop)
        }
        _ => Ok(()),
    }
}

/// Runs a load in the calling thread.
///
/// # Errors
/// When the load raises an exception.
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
