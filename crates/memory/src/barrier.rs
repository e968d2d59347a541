//! A fence between two threads for which only the rare side pays.
//!
//! A reader stores the address that it is about to read and then loads whether that is still valid;
//! a reclaimer stores that it is gone and then loads which addresses readers have stored. One of
//! the two must see the other, for which each needs a full fence between its store and its load
//! (Dekker's handshake). The reader would pay for it on each hit, and worse, a fence keeps the
//! processor from working on the next lookup meanwhile. So the reader only keeps the compiler from
//! reordering ([`light`]), and the reclaimer makes every thread of the process pass a fence
//! ([`heavy`]; `membarrier(2)`, once for a whole batch of entries).
//!
//! Where there is no such call, or it is not allowed, readers do fence. That is settled before the
//! first reader runs.
//!
//! A sandbox can forbid the call later (seccomp). Then readers are told to fence, and [`heavy`]
//! says that it could not make them do so. Each thread notes in its record when it has been told;
//! once all have, fences are enough. For threads that have not looked anything up since, and may
//! never again, reclaimers [wait](let_stores_arrive) until what such a thread has stored must have
//! become visible by itself (as in Morrison and Afek, "Temporally Bounding TSO for Fence-Free
//! Asymmetric Synchronization", ASPLOS '15): no language promises a time for that, but processors
//! take microseconds.

use std::time::Duration;

use crate::sync::{AtomicU8, Ordering, compiler_fence, fence};

const UNSETTLED: u8 = 0;
const ASYMMETRIC: u8 = 1;
const SYMMETRIC: u8 = 2;
/// Readers are to fence, but some may not know yet.
const BECOMES_SYMMETRIC: u8 = 3;

/// The longest time until other threads see a store, with a margin of a thousand.
const STORES_ARRIVE: Duration = Duration::from_millis(5);

/// The barrier that readers are to use.
static KIND: AtomicU8 = AtomicU8::new(UNSETTLED);

/// Settles which kind of barrier there is; every cache calls it before it has readers.
pub(crate) fn choose() {
    if KIND.load(Ordering::Relaxed) == UNSETTLED {
        let kind = if system::register() { ASYMMETRIC } else { SYMMETRIC };
        // Several threads come to the same result; one that was told to do without must not be
        // overruled.
        let _ = KIND.compare_exchange(UNSETTLED, kind, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Makes readers fence from now on, as they do where the system has no barrier for whole processes.
/// May be called at any time.
pub(crate) fn without_membarrier() {
    // Relaxed: a reader that sees it late relies on `heavy`, which still reaches it or says that it
    // does not.
    KIND.store(BECOMES_SYMMETRIC, Ordering::Relaxed);
}

/// Returns whether hits do without a fence.
#[inline(always)]
pub(crate) fn is_asymmetric() -> bool {
    KIND.load(Ordering::Relaxed) == ASYMMETRIC
}

/// The reader's half: a thread that calls [`heavy`] afterwards sees the reader's earlier stores, or
/// the reader sees that thread's.
#[inline(always)]
pub(crate) fn light() {
    // Relaxed: settled before the first reader, and either kind of reader is served (see above).
    if KIND.load(Ordering::Relaxed) == ASYMMETRIC {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// [`light`] for a reader that has just found that it need not fence, by its record or by
/// [`is_asymmetric`], and has run no user code since.
#[inline(always)]
pub(crate) fn light_if_asymmetric() {
    compiler_fence(Ordering::SeqCst);
}

/// The reclaimer's half. False when the system refuses it: then it holds for readers that fence,
/// and all are told to.
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst); // for readers that fence, and for this thread's own stores
    // Relaxed: settled before the first reader; later it changes once, and only readers that fence
    // see that.
    if system::barrier() || KIND.load(Ordering::Relaxed) == SYMMETRIC {
        return true;
    }
    without_membarrier();
    false
}

/// After [`heavy`] was refused: waits until all that other threads had stored before is seen by
/// this one.
#[cold]
pub(crate) fn let_stores_arrive() {
    std::thread::sleep(STORES_ARRIVE);
    fence(Ordering::SeqCst); // as in `heavy`
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::thread::{MembarrierCommand, membarrier};

    /// Announces that the barrier will be used; false where it cannot be had.
    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    /// False where it is refused.
    pub(super) fn barrier() -> bool {
        let barrier = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        // a child of fork() must register again, as the kernel has it
        barrier() || register() && barrier()
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
mod system {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;

    /// Something on a cache line of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Apart(AtomicU64);

    const STOP: u64 = u64::MAX;

    /// Returns what a reader sees of a reclaimer that goes from 1 upwards: each number with the
    /// lookup that was the first to see so much. Lookups are numbered, too, and each says its
    /// number before it looks.
    fn read(cell: &Apart, taken_out: &Apart) -> Vec<(u64, u64)> {
        let (mut seen, mut seen_first) = (0, Vec::new());
        for lookup in 1.. {
            cell.0.store(lookup, Ordering::Relaxed); // the barrier is all there is to order it
            light();
            let now = taken_out.0.load(Ordering::Relaxed); // as above
            if now == STOP {
                break;
            }
            if now != seen {
                seen = now;
                seen_first.push((now, lookup));
            }
        }
        seen_first
    }

    /// Returns what a reclaimer sees of the reader, for each of its numbers from 1.
    fn reclaim(cell: &Apart, taken_out: &Apart, barrier: fn(), time: Duration) -> Vec<u64> {
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < time {
            taken_out.0.store(seen.len() as u64 + 1, Ordering::Relaxed); // as in `read`
            barrier();
            seen.push(cell.0.load(Ordering::Relaxed)); // as in `read`
        }
        taken_out.0.store(STOP, Ordering::Relaxed); // as in `read`
        seen
    }

    /// Lets both work for a time. Returns how often they met, and how often neither saw the other.
    fn handshakes(barrier: fn(), time: Duration) -> (usize, usize) {
        let [cell, taken_out] = std::array::from_fn(|_| Apart::default());
        let (seen_first, reclaimer) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&cell, &taken_out));
            let reclaimer = reclaim(&cell, &taken_out, barrier, time);
            (reader.join().unwrap(), reclaimer)
        });
        // The last lookup that did not yet see a number must have been seen by the reclaimer after
        // that number.
        let missed =
            seen_first.iter().filter(|(number, first)| reclaimer[*number as usize - 1] < first - 1);
        (seen_first.len(), missed.count())
    }

    #[test]
    fn a_reader_sees_the_reclaimer_or_is_seen_by_it_with_either_barrier() {
        let seconds =
            std::env::var("FLOE_STRESS_SECONDS").map_or(2.0, |seconds| seconds.parse().unwrap());
        let time = Duration::from_secs_f64(seconds / 2.0).min(Duration::from_secs(if cfg!(miri) {
            0
        } else {
            60
        }));
        choose();
        let (met, missed) = handshakes(|| assert!(heavy(), "nobody refuses it here"), time);
        assert_eq!(missed, 0, "of {met} times, asymmetric: {}", is_asymmetric());
        without_membarrier();
        let (met, missed) = handshakes(|| fence(Ordering::SeqCst), time); // all there is elsewhere
        assert_eq!(missed, 0, "of {met} times, readers fence");
    }
}
