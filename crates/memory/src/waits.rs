//! Waits of loads for each other, none of which lasts for ever.
//!
//! A load may ask for further keys, in any cache, and wait there for loads of other callers. Waits
//! of this kind are edges between *runs*: one run of a loading function, for one key or a batch.
//! All edges of the process are in one graph. A wait that would close a circle does not begin, and
//! its caller loads by itself.
//!
//! - A thread or task has the runs that it is inside of in a thread-local list, and each of them
//!   waits for what the caller waits for. A caller that is inside of none has nobody waiting for
//!   it, and leaves the graph alone. So do hits.
//! - A run that a future polls is also taken to wait for the thread that polled it last, while that
//!   thread is blocked: an executor with one thread cannot poll it otherwise. Where another thread
//!   could have, a key is loaded once more than necessary.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sync::thread_local;

/// A number of a thread, from 1.
type Thread = u64;

/// One run of a loading function, for one key or for a batch of keys. Clones are the same run.
#[derive(Debug, Clone, Default)]
pub struct LoadRun(Arc<Polled>);

impl PartialEq for LoadRun {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LoadRun {}

impl Hash for LoadRun {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// The thread that has polled a run last, or 0.
#[derive(Debug, Default)]
struct Polled(AtomicU64);

thread_local! {
    /// The runs that this thread is inside of, the innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // the model checker's macro has no such
    static INSIDE: RefCell<Vec<LoadRun>> = RefCell::new(Vec::new());
    /// The number of this thread if it has polled a run, or 0.
    #[allow(clippy::missing_const_for_thread_local)] // as above
    static POLLER: Cell<Thread> = Cell::new(0);
}

impl LoadRun {
    /// A run that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that the calling thread is inside of the run until the guard is dropped.
    pub fn enter(&self) -> Running {
        // A thread that is about to end may have no list any more. Then its waits are not noted.
        _ = INSIDE.try_with(|inside| inside.borrow_mut().push(self.clone()));
        Running { run: self.clone(), here: PhantomData }
    }

    /// [`enter`](Self::enter) for one poll of a future.
    pub fn poll(&self) -> Running {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let thread = POLLER.try_with(|poller| {
            if poller.get() == 0 {
                poller.set(LAST.fetch_add(1, Ordering::Relaxed) + 1); // only to be unique
            }
            poller.get()
        });
        self.0.0.store(thread.unwrap_or(0), Ordering::Relaxed); // read under the graph's lock
        self.enter()
    }

    /// Returns whether the calling thread is inside of the run.
    pub fn is_here(&self) -> bool {
        INSIDE.try_with(|inside| inside.borrow().contains(self)).unwrap_or(false)
    }

    fn polled_by(&self) -> Thread {
        self.0.0.load(Ordering::Relaxed) // late, it is a thread that polled it earlier
    }
}

/// Returns whether the calling thread is inside of a run.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(|inside| !inside.borrow().is_empty()).unwrap_or(false)
}

/// For tests: the number of runs that the calling thread is inside of.
#[cfg(test)]
pub(crate) fn depth() -> usize {
    inside().len()
}

/// The runs that the calling thread is inside of.
fn inside() -> Vec<LoadRun> {
    INSIDE.try_with(|inside| inside.borrow().clone()).unwrap_or_default()
}

/// The calling thread is inside of a run until this is dropped.
#[derive(Debug)]
#[must_use = "the thread is inside of the run as long as this is there"]
pub struct Running {
    run: LoadRun,
    /// The list is the thread's.
    here: PhantomData<*const ()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            if let Some(at) = inside.iter().rposition(|run| *run == self.run) {
                inside.remove(at);
            }
        });
    }
}

/// All waits for runs by callers that are inside of others, or block a thread that polls them.
#[derive(Debug, Default)]
struct Graph {
    /// For each run that waits: the waits, by number, and the runs that they wait for.
    waiting: HashMap<LoadRun, Vec<(u64, LoadRun)>>,
    /// For each blocked thread: the runs that it waits for.
    blocked: HashMap<Thread, Vec<(u64, LoadRun)>>,
}

impl Graph {
    /// Returns whether a run waits, by way of others perhaps, for one of some runs or for a thread.
    fn leads(&self, from: &LoadRun, to: &[LoadRun], thread: Option<Thread>) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![from]);
        while let Some(run) = next.pop() {
            let poller = run.polled_by();
            if to.contains(run) || thread.is_some_and(|thread| thread == poller) {
                return true;
            }
            if seen.insert(run) {
                let waits = self.waiting.get(run);
                let blocked = self.blocked.get(&poller);
                next.extend(waits.into_iter().chain(blocked).flatten().map(|(_, run)| run));
            }
        }
        false
    }
}

/// The graph, locked by a thread that forks.
#[cfg(all(unix, not(miri)))]
pub(crate) struct Locked(MutexGuard<'static, Option<Graph>>);

/// Locks the graph for a fork.
#[cfg(all(unix, not(miri)))]
pub(crate) fn locked() -> Locked {
    Locked(graph())
}

#[cfg(all(unix, not(miri)))]
impl Locked {
    /// Forgets all waits: other threads are not there, and the one that has forked does not wait.
    pub(crate) fn in_the_child(mut self) {
        // Not freed: the child may be about to run another program.
        std::mem::forget(self.0.take());
    }
}

fn graph() -> MutexGuard<'static, Option<Graph>> {
    static GRAPH: Mutex<Option<Graph>> = Mutex::new(None);
    GRAPH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait for a run, noted as long as this is there.
#[derive(Debug)]
pub struct Wait {
    number: u64,
    by: Vec<LoadRun>,
    thread: Option<Thread>,
}

impl Wait {
    /// Notes that some runs wait until another ends. `None` if that would have no end. `blocks`
    /// says that the calling thread does nothing else until then.
    pub fn of(on: &LoadRun, by: Vec<LoadRun>, blocks: bool) -> Option<Self> {
        let poller = if blocks { POLLER.try_with(Cell::get).unwrap_or(0) } else { 0 };
        Self::begin(on, by, (poller != 0).then_some(poller))
    }

    /// [`of`](Self::of) the runs that the calling thread is inside of, which blocks.
    pub fn block(on: &LoadRun) -> Option<Self> {
        Self::of(on, inside(), true)
    }

    /// [`of`](Self::of) the runs that the calling thread is inside of, which goes on.
    pub fn suspend(on: &LoadRun) -> Option<Self> {
        Self::of(on, inside(), false)
    }

    fn begin(on: &LoadRun, by: Vec<LoadRun>, thread: Option<Thread>) -> Option<Self> {
        if by.is_empty() && thread.is_none() {
            return Some(Self { number: 0, by, thread });
        }
        let mut graph = graph();
        let graph = graph.get_or_insert_default();
        if graph.leads(on, &by, thread) {
            return None;
        }
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1; // only to be unique
        for run in &by {
            graph.waiting.entry(run.clone()).or_default().push((number, on.clone()));
        }
        if let Some(thread) = thread {
            graph.blocked.entry(thread).or_default().push((number, on.clone()));
        }
        Some(Self { number, by, thread })
    }

    /// Returns whether it is a wait of the runs that the calling thread is inside of.
    pub(crate) fn is_of_here(&self) -> bool {
        INSIDE.try_with(|inside| *inside.borrow() == self.by).unwrap_or(true)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.number == 0 {
            return;
        }
        let mut graph = graph();
        let Some(graph) = &mut *graph else { return };
        for run in &self.by {
            end(&mut graph.waiting, run, self.number);
        }
        if let Some(thread) = &self.thread {
            end(&mut graph.blocked, thread, self.number);
        }
    }
}

/// Takes a wait out of a list.
fn end<T: Eq + Hash>(lists: &mut HashMap<T, Vec<(u64, LoadRun)>>, of: &T, number: u64) {
    let Some(list) = lists.get_mut(of) else { return };
    list.retain(|(wait, _)| *wait != number);
    if list.is_empty() {
        lists.remove(of);
    }
}
