//! Maintenance: takes out what has expired and steps freezing, on threads of
//! the library's.
//!
//! No other thread depends on them for the time, which each reads from the system
//! ([`clock`](crate::clock)): expired entries are not found, regardless of these threads. They
//! sleep until something is due. A cache in which nothing expires or freezes is not in the list,
//! and one in which nothing is due costs nothing.
//!
//! One thread *leads*: it waits for the next due time. Ticks run no user code, and it does them
//! itself. A sweep runs destructors and the listener. So does letting a cache go, which may drop
//! its last handle. Before either, the thread wakes or starts another one that leads instead. That
//! one takes on the next sweep only if the one before is over or takes long. So sweeps run one by
//! one, and a listener that never returns blocks only its own thread.
//!
//! Where no thread can be started, inserting threads do the sweeps of that cache when they are due
//! (`Inner::see_to_it`), and try again to start one; freezing is refused when the cache is built. A
//! forked process has none of these threads and starts its own with the first insertion into a
//! cache that is in the list ([`quiet`](crate::quiet)).

mod schedule;
mod threads;

pub(crate) use threads::is_own_thread;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::sweep::Sweep;

/// Between two ticks of a cache that is in use.
const TICK_US: u64 = 5_000;
/// After a sweep that ended in a panic, and between two attempts to start a thread.
const AGAIN_US: u64 = 1_000_000;

/// A cache in the list.
struct Kept {
    cache: Weak<dyn Sweep>,
    ticks: bool,
    tick_due: Option<u64>,
    tick_us: u64,
    sweep_due: Option<u64>,
    /// A thread is sweeping it. Entries that become due meanwhile wait for its end.
    is_swept: bool,
}

/// The list of caches, and the state of the maintenance threads.
#[derive(Default)]
struct Maintenance {
    caches: HashMap<u64, Kept, foldhash::fast::RandomState>,
    /// When which cache is due, by its number.
    ticks: BTreeSet<(u64, u64)>,
    sweeps: BTreeSet<(u64, u64)>,
    last_number: u64,
    /// True if a thread leads.
    is_led: bool,
    /// Threads that wait until they are to lead.
    waiting: usize,
    /// Sweeps under way, and until when the last one that was begun is not long.
    sweeping: usize,
    long_at: u64,
    threads: usize,
    retry_at: u64,
    /// The process is a child, and has none of the threads that are counted here.
    is_forked: bool,
}

static MAINTENANCE: Mutex<Option<Maintenance>> = Mutex::new(None);
/// Rung for the leader, when something is due earlier or the last cache has gone.
static EARLIER: Condvar = Condvar::new();
/// Rung for the threads that wait to lead.
static LEAD: Condvar = Condvar::new();
/// Caches are in the list and no thread is there: none could be started, or this is a forked
/// process.
static IS_ALONE: AtomicBool = AtomicBool::new(false);
/// For tests: how often a thread woke up.
static WAKE_UPS: AtomicU64 = AtomicU64::new(0);
/// For tests: no thread can be started.
static NO_THREADS: AtomicBool = AtomicBool::new(false);

/// The list, locked. Nothing under this lock is the user's code.
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
        let maintenance = Self(crate::sync::wait(on, self.0));
        WAKE_UPS.fetch_add(1, Ordering::Relaxed); // a count
        maintenance
    }

    fn wait_until(self, on: &Condvar, at: u64) -> Self {
        let time = Duration::from_micros(at.saturating_sub(now_us()));
        let maintenance = Self(crate::sync::wait_timeout(on, self.0, time));
        WAKE_UPS.fetch_add(1, Ordering::Relaxed); // a count
        maintenance
    }
}

fn maintenance() -> Locked {
    let mut maintenance = crate::sync::lock(&MAINTENANCE);
    maintenance.get_or_insert_default();
    Locked(maintenance)
}

fn now_us() -> u64 {
    Clock::system_us()
}

/// Puts a cache into the list and returns its number there. It ticks from now on, or is swept when
/// that is [due](sweep_at). [`start`] is to follow.
pub(crate) fn register(cache: Weak<dyn Sweep>, ticks: bool) -> u64 {
    let mut maintenance = maintenance();
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

/// A cache is no more.
pub(crate) fn forget(number: u64) {
    let mut maintenance = maintenance();
    let Some(kept) = maintenance.caches.remove(&number) else { return };
    if let Some(due) = kept.tick_due {
        maintenance.ticks.remove(&(due, number));
    }
    if let Some(due) = kept.sweep_due {
        maintenance.sweeps.remove(&(due, number));
    }
    if maintenance.caches.is_empty() {
        EARLIER.notify_all();
        LEAD.notify_all();
    }
}

/// A cache is to be swept at a time, or earlier.
pub(crate) fn sweep_at(number: u64, at: u64) {
    maintenance().schedule_sweep(number, at);
}

/// Returns whether caches are in the list and no thread maintains them, as far as that is known.
#[inline]
pub(crate) fn is_alone() -> bool {
    IS_ALONE.load(Ordering::Relaxed) // late by a moment does no harm
}

/// The list, locked by a thread that is about to fork.
#[cfg(all(unix, not(miri)))] // others have no fork to be told of
pub(crate) struct Forking(Locked);

/// Locks the list for a fork: so the child has it whole, and not locked by a thread that it does
/// not have.
#[cfg(all(unix, not(miri)))] // others have no fork to be told of
pub(crate) fn forking() -> Forking {
    Forking(maintenance())
}

#[cfg(all(unix, not(miri)))] // others have no fork to be told of
impl Forking {
    /// In the child. Allocates nothing: it may be about to run another program.
    pub(crate) fn has_forked(mut self) {
        self.0.is_forked = true;
        IS_ALONE.store(!self.0.caches.is_empty(), Ordering::Relaxed); // the child has one thread
    }
}

/// Starts a thread, if there is none and something to do for it.
///
/// # Errors
/// When the system has none to give, or had none a moment ago.
pub(crate) fn start() -> std::io::Result<()> {
    let mut maintenance = maintenance();
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

/// For tests: how often a thread of the library's woke up.
pub(crate) fn wake_ups() -> u64 {
    WAKE_UPS.load(Ordering::Relaxed) // a count
}

/// For tests: whether threads can be started from now on.
pub(crate) fn without_threads(without: bool) {
    NO_THREADS.store(without, Ordering::Relaxed); // only for tests
}
