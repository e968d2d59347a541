//! Pending loads: one for each key, and the waits of loads for each other.
//!
//! A pending load is attached to its key until it completes, or until the key is removed, inserted
//! or cleared, which may make its value out of date. The value still goes to the callers that wait
//! for it, as they asked before, but does not enter the cache.
//!
//! A load may ask for further keys, in any cache, and wait there for loads of other callers. Waits
//! of this kind are edges between *runs*: one run of a loading function, for one key or a batch.
//! All edges of the process are in one graph. A wait that would close a cycle does not begin, and
//! its caller loads by itself.
//!
//! - A thread or task keeps the runs that it is executing in a thread-local list. Each of them
//!   waits for the load for which the caller waits. A caller that executes no run blocks nobody,
//!   and does not touch the graph. Nor do hits.
//! - A run that a future polls is also assumed to wait for the thread that polled it last, while
//!   that thread is blocked. An executor with one thread cannot poll it otherwise. Where another
//!   thread could have, a key is loaded once more than necessary.

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::{BTreeMap, HashMap, HashSet, hash_map};
use std::future::Future;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::entry::Entry;
use crate::records::Hold;
use crate::sync::{Arc, Condvar, Mutex, lock, thread_local, wait_timeout};

/// The pending loads of a shard, by hash and key.
#[derive(Debug)]
pub(crate) struct PendingLoads<K, V> {
    attached: HashMap<u64, AttachedLoads<K, V>, BuildHasherDefault<Hashed>>,
}

/// The pending loads of the keys with one hash. Mostly there is one, and nothing is allocated.
#[derive(Debug)]
struct AttachedLoads<K, V> {
    first: Attached<K, V>,
    /// Those that were attached later, in their order.
    others: Vec<Attached<K, V>>,
}

/// Hasher of hashes: it returns the number that it is given.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("hashes are numbers of 64 bits");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A pending load that is attached to its key.
#[derive(Debug)]
pub(crate) struct Attached<K, V> {
    pending_load: Arc<PendingLoad<K, V>>,
}

impl<K, V> Default for PendingLoads<K, V> {
    fn default() -> Self {
        Self { attached: HashMap::default() }
    }
}

impl<K, V> Attached<K, V> {
    /// Returns true if the load is for the key that `is_it` recognizes.
    fn is_of(&self, is_it: impl Fn(&K) -> bool) -> bool {
        // SAFETY: attached, and the pending loads are locked.
        is_it(unsafe { self.pending_load.key() })
    }
}

impl<K, V> PendingLoads<K, V> {
    /// Returns a pending load of a key. One that the calling thread runs takes precedence.
    pub(crate) fn find(
        &self,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
    ) -> Option<Arc<PendingLoad<K, V>>> {
        let loads = self.attached.get(&hash)?;
        let mut found = None;
        for attached in [&loads.first].into_iter().chain(&loads.others) {
            if attached.is_of(&is_it) {
                let is_own = attached.pending_load.is_own();
                found = found.filter(|_| !is_own).or(Some(&attached.pending_load));
                if is_own {
                    break;
                }
            }
        }
        found.map(Arc::clone)
    }

    /// Attaches a pending load to its key, which may have others.
    pub(crate) fn attach(&mut self, hash: u64, pending_load: &Arc<PendingLoad<K, V>>) {
        let attached = Attached { pending_load: Arc::clone(pending_load) };
        match self.attached.entry(hash) {
            hash_map::Entry::Occupied(mut loads) => loads.get_mut().others.push(attached),
            hash_map::Entry::Vacant(place) => {
                place.insert(AttachedLoads { first: attached, others: Vec::new() });
            }
        }
    }

    /// Detaches the pending loads of a key into `detached`, which must be dropped outside of the
    /// lock.
    pub(crate) fn detach(
        &mut self,
        hash: u64,
        is_it: impl Fn(&K) -> bool,
        detached: &mut Vec<Attached<K, V>>,
    ) {
        while let Some(attached) = self.take(hash, |attached| attached.is_of(&is_it)) {
            detached.push(attached);
        }
    }

    /// Detaches a pending load. Returns true if it was attached until then.
    pub(crate) fn complete(&mut self, hash: u64, pending_load: &Arc<PendingLoad<K, V>>) -> bool {
        // The caller has the pending load, too: nothing of the user's is dropped here.
        self.take(hash, |attached| Arc::ptr_eq(&attached.pending_load, pending_load)).is_some()
    }

    /// Detaches the first pending load with a hash that `is_it` recognizes.
    fn take(
        &mut self,
        hash: u64,
        is_it: impl Fn(&Attached<K, V>) -> bool,
    ) -> Option<Attached<K, V>> {
        let hash_map::Entry::Occupied(mut entry) = self.attached.entry(hash) else { return None };
        let loads = entry.get_mut();
        if !is_it(&loads.first) {
            let at = loads.others.iter().position(is_it)?;
            return Some(loads.others.remove(at));
        }
        if loads.others.is_empty() {
            return Some(entry.remove().first);
        }
        Some(std::mem::replace(&mut loads.first, loads.others.remove(0)))
    }

    /// Keeps only the pending loads that the calling thread runs, in a forked process, and returns
    /// their number. The loading threads also had handles to the others, so this drops no user
    /// data.
    pub(crate) fn keep_own(&mut self) -> usize {
        let is_kept = |attached: &Attached<K, V>| {
            let is_own = attached.pending_load.is_own();
            if is_own {
                attached.pending_load.counted_in.store(forks(), Ordering::Relaxed); // one thread
            }
            is_own
        };
        let mut kept = 0;
        self.attached.retain(|_, loads| {
            loads.others.retain(is_kept);
            kept += loads.others.len();
            if is_kept(&loads.first) {
                kept += 1;
                return true;
            }
            if loads.others.is_empty() {
                // Not freed: the child may be about to run another program.
                std::mem::forget(std::mem::take(&mut loads.others));
                return false;
            }
            loads.first = loads.others.remove(0);
            true
        });
        kept
    }

    /// Detaches all pending loads, and returns them to be dropped outside of the lock.
    pub(crate) fn clear(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// The loaded entry, and the hold that keeps it as long as callers wait.
#[derive(Debug)]
struct Brought<K, V> {
    entry: NonNull<Entry<K, V>>,
    _hold: Hold,
}

/// The error of a failed load, for all waiting callers whose error type matches.
pub(crate) type Failure = Option<Arc<dyn Any + Send + Sync>>;

/// Wakers of waiting futures, each by its number.
#[derive(Debug, Default)]
struct Wakers {
    waiting: BTreeMap<u64, Waker>,
    /// The highest number given so far.
    given: u64,
}

#[derive(Debug)]
enum State<K, V> {
    Loading(Wakers),
    Completed(Brought<K, V>),
    Failed(Failure),
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct PendingLoad<K, V> {
    state: Mutex<State<K, V>>,
    over: Condvar,
    run: LoadRun,
    /// Process that counts the load in its shard, as a number of forks.
    counted_in: AtomicU64,
    /// The key, until the value is inserted.
    key: UnsafeCell<Option<K>>,
}

// SAFETY: the value is shared by reference, as from any other guard; the pointer stays valid while
// the hold is there and the cache is borrowed, which every owner of a pending load does. The key is
// shared by reference until the one caller that loads takes it: see `key`.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for PendingLoad<K, V> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for PendingLoad<K, V> {}

impl<K, V> PendingLoad<K, V> {
    /// Creates the pending load of a key that `run` loads.
    pub(crate) fn new(key: K, run: LoadRun) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Loading(Wakers::default())),
            over: Condvar::new(),
            run,
            counted_in: AtomicU64::new(forks()),
            key: UnsafeCell::new(Some(key)),
        })
    }

    /// Returns the run that loads the key.
    pub(crate) fn run(&self) -> &LoadRun {
        &self.run
    }

    /// Returns true if the load is counted in its shard. It is not in a child of the process in
    /// which it began.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted_in.load(Ordering::Relaxed) == forks() // written before there are threads
    }

    /// Returns true if the calling thread runs this load, so that waiting for it would never end.
    pub(crate) fn is_own(&self) -> bool {
        self.run.is_here()
    }

    /// Returns the key.
    ///
    /// # Safety
    /// Either the pending load is attached and the caller has locked its table, or the caller runs
    /// the load.
    pub(crate) unsafe fn key(&self) -> &K {
        // SAFETY: the caller that loads takes it only after it has detached the pending load, under
        // the lock of the table.
        unsafe { (*self.key.get()).as_ref() }.expect("it is taken with the end of the load")
    }

    /// Takes the key.
    ///
    /// # Safety
    /// The caller must run the load, have detached it, and call this once only.
    pub(crate) unsafe fn take_key(&self) -> K {
        // SAFETY: nobody else looks at it any more.
        unsafe { (*self.key.get()).take() }.expect("it is taken once")
    }

    /// Completes the load with an entry, which `hold` keeps.
    pub(crate) fn complete(&self, entry: &Entry<K, V>, hold: Hold) {
        self.end(State::Completed(Brought { entry: NonNull::from(entry), _hold: hold }));
    }

    /// Completes the load without a value. Waiting callers get the failure.
    pub(crate) fn fail(&self, failure: Failure) {
        self.end(State::Failed(failure));
    }

    fn end(&self, end: State<K, V>) {
        let before = std::mem::replace(&mut *lock(&self.state), end);
        self.over.notify_all();
        if let State::Loading(wakers) = before {
            // outside the lock: it may run anything
            wakers.waiting.into_values().for_each(Waker::wake);
        }
    }

    /// Blocks until the load is over, and returns its entry or failure.
    pub(crate) fn wait(&self) -> Result<NonNull<Entry<K, V>>, Failure> {
        let mut state = lock(&self.state);
        loop {
            match &*state {
                State::Loading(_) => {
                    state =
                        self.over.wait(state).unwrap_or_else(crate::sync::PoisonError::into_inner);
                }
                State::Completed(brought) => return Ok(brought.entry),
                State::Failed(failure) => return Err(failure.clone()),
            }
        }
    }

    /// Blocks until the load is over, but no longer than until a time. Returns true if it is over.
    pub(crate) fn is_over_by(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match &*state {
                State::Loading(_) if left.is_zero() => return false,
                State::Loading(_) => state = wait_timeout(&self.over, state, left),
                State::Completed(_) | State::Failed(_) => return true,
            }
        }
    }

    /// Waits for the end of the load without blocking a thread; then [`wait`](Self::wait) returns
    /// at once. Yields false if the wait would never end.
    pub(crate) fn completion(&self) -> impl Future<Output = bool> + Send + '_
    where
        K: Send + Sync,
        V: Send + Sync,
    {
        Completion { pending_load: self, wait: None, number: None }
    }

    fn is_over(&self) -> bool {
        !matches!(&*lock(&self.state), State::Loading(_))
    }
}

struct Completion<'a, K, V> {
    pending_load: &'a PendingLoad<K, V>,
    /// The recorded wait, by which other callers detect cycles.
    wait: Option<Wait>,
    /// Number of the waker, once one is registered.
    number: Option<u64>,
}

impl<K, V> Future for Completion<'_, K, V> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let pending_load = self.pending_load;
        if pending_load.is_over() {
            return Poll::Ready(true);
        }
        // A future may be polled first outside of the load that awaits it.
        if !self.wait.as_ref().is_some_and(Wait::is_of_here) {
            self.wait = None;
            self.wait = Wait::suspend(&pending_load.run);
            if self.wait.is_none() {
                return Poll::Ready(false);
            }
        }
        let waker = context.waker().clone(); // the user's code, outside of the lock
        let mut state = lock(&pending_load.state);
        let State::Loading(wakers) = &mut *state else { return Poll::Ready(true) };
        let number = *self.number.get_or_insert_with(|| {
            wakers.given += 1;
            wakers.given
        });
        let before = wakers.waiting.insert(number, waker);
        drop(state);
        drop(before); // as above
        Poll::Pending
    }
}

impl<K, V> Drop for Completion<'_, K, V> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let waker = match &mut *lock(&self.pending_load.state) {
            State::Loading(wakers) => wakers.waiting.remove(&number),
            State::Completed(_) | State::Failed(_) => None,
        };
        drop(waker); // the user's code, outside of the lock
    }
}

/// Number of a thread that polls runs, from 1.
type Thread = u64;

/// One run of a loading function, for one key or for a batch of keys. Clones refer to the same run.
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

/// The thread that polled a run last, or 0.
#[derive(Debug, Default)]
struct Polled(AtomicU64);

thread_local! {
    /// The runs that this thread is executing, the innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // the model checker's macro has no such
    static INSIDE: RefCell<Vec<LoadRun>> = RefCell::new(Vec::new());
    /// Number of this thread if it has polled a run, or 0.
    #[allow(clippy::missing_const_for_thread_local)] // as above
    static POLLER: Cell<Thread> = Cell::new(0);
}

impl LoadRun {
    /// Creates a run that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters the run: the calling thread executes it until the returned guard is dropped.
    pub fn enter(&self) -> Running {
        // A thread that is about to end may have no list any more. Then its waits are not noted.
        _ = INSIDE.try_with(|inside| inside.borrow_mut().push(self.clone()));
        Running { run: self.clone(), here: PhantomData }
    }

    /// Enters the run for one poll of a future, and records the polling thread.
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

    /// Returns true if the calling thread is executing this run.
    pub fn is_here(&self) -> bool {
        INSIDE.try_with(|inside| inside.borrow().contains(self)).unwrap_or(false)
    }

    /// Returns the key of the run's waits in the graph, unique while the run exists.
    fn waits(&self) -> Waits {
        Arc::as_ptr(&self.0) as Waits // even: it points to numbers
    }

    fn polled_by(&self) -> Thread {
        self.0.0.load(Ordering::Relaxed) // late, it is a thread that polled it earlier
    }
}

/// Returns true if the calling thread is executing any run.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(|inside| !inside.borrow().is_empty()).unwrap_or(false)
}

/// Returns the number of runs that the calling thread is executing. For tests.
#[cfg(test)]
pub(crate) fn depth() -> usize {
    inside().len()
}

/// Returns the runs that the calling thread is executing.
fn inside() -> Vec<LoadRun> {
    INSIDE.try_with(|inside| inside.borrow().clone()).unwrap_or_default()
}

/// Guard during which the calling thread is executing a run.
#[derive(Debug)]
#[must_use = "the thread is inside of the run as long as this is there"]
pub struct Running {
    run: LoadRun,
    /// Makes the guard `!Send`, as the list of runs belongs to the thread.
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

/// The graph of waits for loads, by callers that run loads themselves or block a thread that polls
/// loads.
#[derive(Debug, Default)]
struct Graph {
    /// For each waiting load and each blocked thread: the numbers of its waits, and the loads that
    /// they wait for.
    waiting: HashMap<Waits, Vec<(u64, LoadRun)>, foldhash::fast::RandomState>,
}

/// Key of the waits of a load or of a thread.
type Waits = usize;

/// Returns the key of a thread's waits.
fn blocked(thread: Thread) -> Waits {
    thread as Waits * 2 + 1 // odd: no load has it
}

impl Graph {
    /// Returns true if `from` waits, directly or indirectly, for one of the runs `to` or for the
    /// thread.
    fn leads(&self, from: &LoadRun, to: &[LoadRun], thread: Option<Thread>) -> bool {
        let mut seen = HashSet::<Waits, foldhash::fast::RandomState>::default();
        let mut next = vec![from];
        while let Some(run) = next.pop() {
            let poller = run.polled_by();
            if to.contains(run) || thread.is_some_and(|thread| thread == poller) {
                return true;
            }
            if seen.insert(run.waits()) {
                for waits in [run.waits(), blocked(poller)] {
                    for (_, run) in self.waiting.get(&waits).into_iter().flatten() {
                        next.push(run);
                    }
                }
            }
        }
        false
    }
}

/// Number of forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of forks between the first process and this one.
fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed) // written while the process has one thread
}

/// Counts a fork, in the child.
#[cfg(all(unix, not(miri)))]
pub(crate) fn has_forked() {
    FORKS.fetch_add(1, Ordering::Relaxed); // there is one thread
}

/// The graph, locked by a forking thread.
#[cfg(all(unix, not(miri)))]
pub(crate) struct Locked(std::sync::MutexGuard<'static, Option<Graph>>);

/// Locks the graph for a fork.
#[cfg(all(unix, not(miri)))]
pub(crate) fn locked() -> Locked {
    Locked(graph())
}

#[cfg(all(unix, not(miri)))]
impl Locked {
    /// Drops all waits, in the child: other threads do not exist there, and the forking thread does
    /// not wait.
    pub(crate) fn in_the_child(mut self) {
        // Not freed: the child may be about to run another program.
        std::mem::forget(self.0.take());
    }
}

fn graph() -> std::sync::MutexGuard<'static, Option<Graph>> {
    static GRAPH: std::sync::Mutex<Option<Graph>> = std::sync::Mutex::new(None);
    GRAPH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait for a run, recorded in the graph until this is dropped.
#[derive(Debug)]
pub struct Wait {
    number: u64,
    by: Vec<LoadRun>,
    thread: Option<Thread>,
}

impl Wait {
    /// Records that the runs `by` wait for the end of the run `on`. Returns `None` if that wait
    /// would never end. `blocks` is true if the calling thread does nothing else until then.
    pub fn of(on: &LoadRun, by: Vec<LoadRun>, blocks: bool) -> Option<Self> {
        let poller = if blocks { POLLER.try_with(Cell::get).unwrap_or(0) } else { 0 };
        Self::begin(on, by, (poller != 0).then_some(poller))
    }

    /// Records a wait by the runs that the calling thread is executing; the thread blocks.
    pub fn block(on: &LoadRun) -> Option<Self> {
        Self::of(on, inside(), true)
    }

    /// Records a wait by the runs that the calling thread is executing; the thread does not block.
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
        let wait = Self { number, by, thread };
        wait.each(|waits| {
            graph.waiting.entry(waits).or_default().push((number, on.clone()));
        });
        Some(wait)
    }

    /// Calls a function with the key of each load and thread that waits.
    fn each(&self, mut call: impl FnMut(Waits)) {
        self.by.iter().for_each(|run| call(run.waits()));
        if let Some(thread) = self.thread {
            call(blocked(thread));
        }
    }

    /// Returns true if the wait belongs to the runs that the calling thread is executing now.
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
        self.each(|waits| {
            let Some(list) = graph.waiting.get_mut(&waits) else { return };
            list.retain(|(wait, _)| *wait != self.number);
            if list.is_empty() {
                graph.waiting.remove(&waits);
            }
        });
    }
}
