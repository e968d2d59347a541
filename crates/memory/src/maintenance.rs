//! Maintenance threads of the library: they remove expired entries and step freezing.
//!
//! Other threads do not depend on them for the time, which each reads from the system
//! ([`clock`](crate::clock)). So lookups do not find expired entries even if these threads are
//! late. They sleep until something is due. A cache in which nothing expires or freezes is not
//! registered, and one in which nothing is due costs nothing.
//!
//! One thread *leads*: it waits for the next due time. It makes ticks itself, as they run no user
//! code. A sweep runs destructors and the listener; so does releasing a cache, which may drop its
//! last handle. Before either, the thread wakes or starts another one that leads instead. That one
//! begins the next sweep only if the last one is over or takes long. So sweeps run one by one, and
//! a listener that never returns blocks only its own thread.
//!
//! Where no thread can be started, inserting threads do the sweeps of that cache when they are due
//! (`Lifetimes::sweep_without_threads`), and try again to start one. Freezing is refused when the
//! cache is built. A forked process has none of these threads, and starts its own with the first
//! insertion into a registered cache.
//!
//! # Forks
//!
//! A fork must not find a cache locked by one of the library's threads, which the child does not
//! have.
//!
//! These threads are in a *section* while they hold such locks, and a forking thread waits until no
//! section is under way. User code never runs in one. It can delay one all the same, by comparing
//! keys under a lock that the section waits for. So the wait for sections is limited, and sections
//! do not wait for each other.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::clock::{Clock, Sweep};
use crate::numbered::Numbered;
use crate::sync::{lock, wait, wait_timeout};

/// Time between two ticks of a cache that is in use, in microseconds.
const TICK_US: u64 = 5_000;
/// Time until a retry, in microseconds: after a sweep that panicked, and between two attempts to
/// start a thread.
const AGAIN_US: u64 = 1_000_000;

/// A registered cache.
struct Kept {
    cache: Weak<dyn Sweep>,
    ticks: bool,
    tick_due: Option<u64>,
    tick_us: u64,
    sweep_due: Option<u64>,
    /// True while a thread sweeps the cache. Entries that become due meanwhile wait for its end.
    is_swept: bool,
}

/// The registered caches, and the state of the maintenance threads.
#[derive(Default)]
struct Maintenance {
    caches: Numbered<Kept>,
    ticks: Due,
    sweeps: Due,
    last_number: u64,
    /// True if a thread is the leader.
    is_led: bool,
    /// Number of threads that wait to become the leader.
    waiting: usize,
    /// Number of sweeps under way. From time `long_at`, the latest one counts as long.
    sweeping: usize,
    long_at: u64,
    threads: usize,
    retry_at: u64,
    /// True in a child process after a fork, until it has reset the state: the counted threads do
    /// not exist in it.
    is_forked: bool,
}

/// Due times and numbers of caches, in order.
#[derive(Default)]
struct Due(VecDeque<(u64, u64)>);

impl Due {
    /// Adds a due time. It is mostly later than those of other caches, or earlier, and then few
    /// others move.
    fn insert(&mut self, at: u64, number: u64) {
        if let Err(place) = self.0.binary_search(&(at, number)) {
            self.0.insert(place, (at, number));
        }
    }

    fn remove(&mut self, at: u64, number: u64) {
        if let Ok(place) = self.0.binary_search(&(at, number)) {
            self.0.remove(place);
        }
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.0.front().copied()
    }

    /// Takes the first cache that is due at a time.
    fn take(&mut self, now: u64) -> Option<u64> {
        self.first().filter(|(at, _)| *at <= now)?;
        self.0.pop_front().map(|(_, number)| number)
    }
}

static MAINTENANCE: Mutex<Option<Maintenance>> = Mutex::new(None);
/// Wakes the leader when something is due earlier, or when the last cache is gone.
static EARLIER: Condvar = Condvar::new();
/// Wakes a thread that waits for the lead.
static LEAD: Condvar = Condvar::new();
/// True if caches are registered and there is no maintenance thread: none could be started, or this
/// is a forked process.
static IS_ALONE: AtomicBool = AtomicBool::new(false);
/// Number of times that a maintenance thread woke up. For tests.
static WAKE_UPS: AtomicU64 = AtomicU64::new(0);
/// True if every start of a thread fails. For tests.
static NO_THREADS: AtomicBool = AtomicBool::new(false);

/// The locked list of caches. No user code runs under this lock.
struct Locked(MutexGuard<'static, Option<Maintenance>>);

impl std::ops::Deref for Locked {
    type Target = Maintenance;

    fn deref(&self) -> &Maintenance {
        self.0.as_ref().expect("made when it is locked")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Maintenance {
        self.0.as_mut().expect("made when it is locked")
    }
}

impl Locked {
    fn wait(self, on: &Condvar) -> Self {
        let maintenance = Self(wait(on, self.0));
        WAKE_UPS.fetch_add(1, Ordering::Relaxed); // a count
        maintenance
    }

    fn wait_until(self, on: &Condvar, at: u64) -> Self {
        let time = Duration::from_micros(at.saturating_sub(now_us()));
        let maintenance = Self(wait_timeout(on, self.0, time));
        WAKE_UPS.fetch_add(1, Ordering::Relaxed); // a count
        maintenance
    }
}

fn locked() -> Locked {
    let mut maintenance = lock(&MAINTENANCE);
    maintenance.get_or_insert_default();
    Locked(maintenance)
}

fn now_us() -> u64 {
    Clock::system_us()
}

/// Registers a cache and returns its number. It ticks from now on if `ticks`, and is swept when
/// that is [due](sweep_at). The caller must call [`start`] next.
pub(crate) fn register(cache: Weak<dyn Sweep>, ticks: bool) -> u64 {
    let mut maintenance = locked();
    maintenance.last_number += 1;
    let number = maintenance.last_number;
    let kept =
        Kept { cache, ticks, tick_due: None, tick_us: TICK_US, sweep_due: None, is_swept: false };
    maintenance.caches.insert(number, kept);
    if ticks {
        maintenance.schedule_tick(number, now_us());
    }
    number
}

/// Removes a cache that is being dropped.
pub(crate) fn forget(number: u64) {
    let mut maintenance = locked();
    let Some(kept) = maintenance.caches.remove(number) else { return };
    if let Some(due) = kept.tick_due {
        maintenance.ticks.remove(due, number);
    }
    if let Some(due) = kept.sweep_due {
        maintenance.sweeps.remove(due, number);
    }
    if maintenance.caches.is_empty() {
        EARLIER.notify_all();
        LEAD.notify_all();
    }
}

/// Schedules a sweep of a cache at a time, unless an earlier one is scheduled.
pub(crate) fn sweep_at(number: u64, at: u64) {
    locked().schedule_sweep(number, at);
}

/// Returns true if caches are registered and no thread maintains them, as far as is known.
#[inline]
pub(crate) fn is_alone() -> bool {
    IS_ALONE.load(Ordering::Relaxed) // late by a moment does no harm
}

/// The list, locked by a thread that is about to fork.
#[cfg(all(unix, not(miri)))] // others have no fork to be told of
pub(crate) struct Forking(Locked);

/// Locks the list for a fork, so that the child finds it consistent and not locked by a thread that
/// it does not have.
#[cfg(all(unix, not(miri)))] // others have no fork to be told of
pub(crate) fn forking() -> Forking {
    Forking(locked())
}

#[cfg(all(unix, not(miri)))] // others have no fork to be told of
impl Forking {
    /// Marks the state as forked, in the child. Allocates nothing, as the child may be about to run
    /// another program.
    pub(crate) fn has_forked(mut self) {
        self.0.is_forked = true;
        IS_ALONE.store(!self.0.caches.is_empty(), Ordering::Relaxed); // the child has one thread
    }
}

/// Starts a maintenance thread if there is none and caches are registered.
///
/// # Errors
/// When the system cannot start a thread, or could not a moment ago.
pub(crate) fn start() -> std::io::Result<()> {
    let mut maintenance = locked();
    if std::mem::take(&mut maintenance.is_forked) {
        maintenance.begin_again();
    }
    if maintenance.threads == 0 && !maintenance.caches.is_empty() {
        IS_ALONE.store(true, Ordering::Relaxed); // as in `is_alone`
        let now = now_us();
        if now < maintenance.retry_at {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        maintenance.retry_at = now + AGAIN_US;
        maintenance.start_thread()?;
        maintenance.retry_at = 0;
    }
    IS_ALONE.store(false, Ordering::Relaxed); // as in `is_alone`
    Ok(())
}

/// Returns how often a maintenance thread woke up. For tests.
pub(crate) fn wake_ups() -> u64 {
    WAKE_UPS.load(Ordering::Relaxed) // a count
}

/// Sets whether starts of threads fail from now on. For tests.
pub(crate) fn without_threads(without: bool) {
    NO_THREADS.store(without, Ordering::Relaxed); // only for tests
}

/// Longest time between two ticks of a cache that is not in use, in microseconds.
const IDLE_TICK_US: u64 = 160_000;
/// Time in microseconds after which a sweep counts as long and no longer delays the next one.
const LONG_US: u64 = 20_000;

impl Maintenance {
    /// Resets the state in a forked process: no thread works on the list, and interrupted sweeps
    /// are due.
    fn begin_again(&mut self) {
        (self.is_led, self.waiting, self.sweeping, self.threads, self.retry_at) =
            (false, 0, 0, 0, 0);
        let numbers: Vec<u64> = self.caches.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let Some(kept) = self.caches.get_mut(number) else { continue };
            let was_ticked = kept.ticks && kept.tick_due.is_none();
            let was_swept = std::mem::take(&mut kept.is_swept);
            if was_swept {
                kept.sweep_due = None;
                self.schedule_sweep(number, 0);
            }
            if was_ticked {
                self.schedule_tick(number, 0);
            }
        }
    }

    fn schedule_tick(&mut self, number: u64, at: u64) {
        let Some(kept) = self.caches.get_mut(number) else { return };
        kept.tick_due = Some(at);
        self.ticks.insert(at, number);
        if self.ticks.first() == Some((at, number)) {
            EARLIER.notify_one();
        }
    }

    fn schedule_sweep(&mut self, number: u64, at: u64) {
        let Some(kept) = self.caches.get_mut(number) else { return };
        let before = kept.sweep_due;
        if before.is_some_and(|before| before <= at) {
            return;
        }
        kept.sweep_due = Some(at);
        if kept.is_swept {
            return;
        }
        if let Some(before) = before {
            self.sweeps.remove(before, number);
        }
        self.sweeps.insert(at, number);
        if self.sweeps.first() == Some((at, number)) {
            EARLIER.notify_one();
        }
    }

    /// Takes all caches whose ticks are due.
    fn take_ticks(&mut self, now: u64) -> Vec<(u64, Arc<dyn Sweep>)> {
        let mut taken = Vec::new();
        while let Some(number) = self.ticks.take(now) {
            let kept = self.caches.get_mut(number).expect("what is due is in the list");
            kept.tick_due = None;
            taken.extend(kept.cache.upgrade().map(|cache| (number, cache)));
        }
        taken
    }

    fn ticked(&mut self, number: u64, used: bool, at: u64) {
        let Some(kept) = self.caches.get_mut(number) else { return };
        kept.tick_us = if used { TICK_US } else { (2 * kept.tick_us).min(IDLE_TICK_US) };
        let due = at + kept.tick_us; // those that are due together stay so
        self.schedule_tick(number, due);
    }

    /// Takes a cache whose sweep is due, and marks the sweep as under way.
    fn take_sweep(&mut self, now: u64) -> Option<(u64, Arc<dyn Sweep>)> {
        loop {
            let number = self.sweeps.take(now)?;
            let kept = self.caches.get_mut(number).expect("what is due is in the list");
            kept.sweep_due = None;
            if let Some(cache) = kept.cache.upgrade() {
                kept.is_swept = true;
                self.sweeping += 1;
                self.long_at = now + LONG_US;
                return Some((number, cache));
            }
        }
    }

    fn swept(&mut self, number: u64, next: Option<u64>) {
        self.sweeping -= 1;
        let Some(kept) = self.caches.get_mut(number) else { return };
        kept.is_swept = false;
        let due = kept.sweep_due.take().into_iter().chain(next).min();
        if let Some(at) = due {
            self.schedule_sweep(number, at);
        }
    }

    /// Returns the next time at which the leader has something to do.
    fn next_due(&self) -> Option<u64> {
        let tick = self.ticks.first().map(|(at, _)| at);
        let sweep = self
            .sweeps
            .first()
            .map(|(at, _)| if self.sweeping > 0 { self.long_at.max(at) } else { at });
        tick.into_iter().chain(sweep).min()
    }

    fn start_thread(&mut self) -> std::io::Result<()> {
        if NO_THREADS.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        std::thread::Builder::new().name(NAME.to_owned()).spawn(run)?;
        self.threads += 1;
        Ok(())
    }

    /// Passes the lead to another thread.
    fn hand_over(&mut self) {
        self.is_led = false;
        if self.waiting > 0 {
            LEAD.notify_one();
        } else {
            let _ = self.start_thread(); // else nobody leads until this thread is back
        }
    }
}

/// Name of the maintenance threads.
const NAME: &str = "floe-keeper";

/// Returns true if the calling thread is a maintenance thread.
pub(crate) fn is_own_thread() -> bool {
    std::thread::current().name() == Some(NAME)
}

/// Runs a maintenance thread until the list is empty or another thread is enough.
fn run() {
    may_be_quiet();
    let mut maintenance = locked();
    let mut leads = false;
    while !maintenance.caches.is_empty() {
        let now = now_us();
        if !leads && maintenance.is_led {
            if maintenance.waiting > 0 {
                break; // one other is enough
            }
            maintenance.waiting += 1;
            maintenance = maintenance.wait(&LEAD);
            maintenance.waiting -= 1;
            continue;
        }
        (leads, maintenance.is_led) = (true, true);
        let due = maintenance.next_due();
        if due.is_none_or(|due| due > now) {
            maintenance = match due {
                Some(due) => maintenance.wait_until(&EARLIER, due),
                None => maintenance.wait(&EARLIER),
            };
            continue;
        }
        let ticks = maintenance.take_ticks(now);
        if !ticks.is_empty() {
            leads = false;
            maintenance = tick(maintenance, ticks, now);
            continue;
        }
        let mut next = maintenance.take_sweep(now);
        if next.is_some() {
            leads = false;
            maintenance.hand_over();
        }
        while let Some((number, cache)) = next {
            maintenance = sweep(maintenance, number, cache);
            next = maintenance.take_sweep(now_us());
        }
    }
    if leads {
        maintenance.is_led = false;
        LEAD.notify_all();
    }
    maintenance.threads -= 1;
}

/// Makes the ticks of some caches, and passes the lead on.
fn tick(maintenance: Locked, ticks: Vec<(u64, Arc<dyn Sweep>)>, now: u64) -> Locked {
    drop(maintenance);
    let used: Vec<_> =
        ticks.iter().map(|(_, cache)| quietly(|| tick_one(&**cache)).unwrap_or(false)).collect();
    rest();
    let (mut maintenance, now) = (locked(), now_us().max(now));
    for ((number, _), used) in ticks.iter().zip(used) {
        maintenance.ticked(*number, used, now);
    }
    maintenance.hand_over();
    drop(maintenance);
    for (_, cache) in ticks {
        quietly(|| drop(cache)); // the last handle, if its users are done with it
    }
    rest();
    locked()
}

fn sweep(maintenance: Locked, number: u64, cache: Arc<dyn Sweep>) -> Locked {
    drop(maintenance);
    let next = quietly(|| cache.sweep()).unwrap_or_else(|| Some(now_us() + AGAIN_US));
    quietly(|| drop(cache)); // as in `tick`
    rest();
    let mut maintenance = locked();
    maintenance.swept(number, next);
    maintenance
}

fn tick_one(cache: &dyn Sweep) -> bool {
    let _quiet = quiet();
    cache.tick()
}

fn rest() {
    let _quiet = quiet();
    crate::local::rest();
}

/// Runs a closure that may run user code, and drops its panic.
fn quietly<R>(run: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(run)).map_err(crate::user_code::discard).ok()
}

/// Longest time that a fork waits for sections to end.
#[cfg(all(unix, not(miri)))] // as above
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Sections {
    under_way: usize,
    is_forking: bool,
}

static SECTIONS: Mutex<Sections> = Mutex::new(Sections { under_way: 0, is_forking: false });
/// Signals the end of a section or of a fork.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// True if this thread is one of the library's, and in no section.
    static MAY_BE_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Guard of a section: the process does not fork while it exists.
#[derive(Debug)]
pub(crate) struct Quiet(());

impl Drop for Quiet {
    fn drop(&mut self) {
        let mut sections = lock(&SECTIONS);
        sections.under_way = sections.under_way.saturating_sub(1); // a child counts anew
        CHANGED.notify_all();
        MAY_BE_QUIET.set(true);
    }
}

/// Marks the calling thread as one of the library's.
pub(crate) fn may_be_quiet() {
    MAY_BE_QUIET.set(true);
}

/// Begins a section if this thread is one of the library's. For code that takes locks of a cache
/// and runs no user code under them.
#[inline]
pub(crate) fn quiet() -> Option<Quiet> {
    MAY_BE_QUIET.replace(false).then(|| {
        let mut sections = lock(&SECTIONS);
        while sections.is_forking {
            sections = wait(&CHANGED, sections);
        }
        sections.under_way += 1;
        Quiet(())
    })
}

/// The sections, locked by a forking thread. None begins, and none is under way unless it took too
/// long.
#[cfg(all(unix, not(miri)))] // others have no fork to wait for
pub(crate) struct NoSections(MutexGuard<'static, Sections>);

/// Waits until no section is under way, and keeps others from beginning.
#[cfg(all(unix, not(miri)))] // as above
pub(crate) fn no_sections() -> NoSections {
    let mut sections = lock(&SECTIONS);
    while sections.is_forking {
        sections = wait(&CHANGED, sections); // another thread does
    }
    sections.is_forking = true;
    let until = std::time::Instant::now() + PATIENCE;
    while sections.under_way > 0 {
        let patience = until.saturating_duration_since(std::time::Instant::now());
        if patience.is_zero() {
            break;
        }
        sections = wait_timeout(&CHANGED, sections, patience);
    }
    NoSections(sections)
}

#[cfg(all(unix, not(miri)))] // as above
impl NoSections {
    /// Ends the fork in the parent.
    pub(crate) fn in_the_parent(mut self) {
        self.0.is_forking = false;
        CHANGED.notify_all();
    }

    /// Ends the fork in the child, in which no section is under way.
    pub(crate) fn in_the_child(mut self) {
        (self.0.is_forking, self.0.under_way) = (false, 0);
    }
}
