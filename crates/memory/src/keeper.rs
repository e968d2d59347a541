//! The one thread of the library: it moves the coarse clock, takes out what has expired, freezes and thaws, and decides what is shed.
//!
//! It exists while there is a cache of the system's clock with entries that expire, or one that freezes or sheds; one serves them all.

use std::time::{Duration, Instant};

use crate::clock::{Clock, TICK};
use crate::sync::{Condvar, Mutex, PoisonError, Weak, lock};

/// Ticks between two looks through the caches: what has expired is invisible at once, and gone a second later.
const TICKS_PER_SWEEP: u32 = 200;

/// A cache that the library's thread looks after.
pub(crate) trait Sweep: Send + Sync {
    /// Is called every few milliseconds.
    fn tick(&self);

    /// Takes out what has expired.
    fn sweep(&self);
}

/// Caches to be looked after, and whether there is a thread to do it.
struct Keeper {
    caches: Vec<Weak<dyn Sweep>>,
    running: bool,
}

static KEEPER: Mutex<Keeper> = Mutex::new(Keeper { caches: Vec::new(), running: false });
/// Rung when the last cache may have gone.
static GONE: Condvar = Condvar::new();

/// Sees to it that time passes for a cache.
pub(crate) fn keep(cache: Weak<dyn Sweep>) {
    Clock::system().look();
    let mut keeper = lock(&KEEPER);
    keeper.caches.push(cache);
    if !keeper.running {
        let thread = std::thread::Builder::new().name("floe-keeper".to_owned());
        thread.spawn(run).expect("a thread can be started for caches that expire, freeze or shed");
        keeper.running = true;
    }
}

/// A cache that was kept is no more.
pub(crate) fn one_less() {
    GONE.notify_one();
}

fn run() {
    let clock = Clock::system();
    let mut ticks = 0u32;
    let mut next = Instant::now();
    loop {
        clock.look();
        ticks = ticks.wrapping_add(1);
        let caches: Vec<_> = lock(&KEEPER).caches.iter().filter_map(Weak::upgrade).collect();
        for cache in caches {
            // Values' destructors and the listener are the user's. One that panics must not stop time.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                cache.tick();
                if ticks.is_multiple_of(TICKS_PER_SWEEP) {
                    cache.sweep();
                }
                drop(cache); // the last one, if its users are done with it
            }));
        }
        crate::local::rest();
        let mut keeper = lock(&KEEPER);
        keeper.caches.retain(|cache| cache.strong_count() > 0);
        if keeper.caches.is_empty() {
            keeper.running = false;
            return;
        }
        next = (next + TICK).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
        drop(GONE.wait_timeout(keeper, wait).unwrap_or_else(PoisonError::into_inner));
    }
}
