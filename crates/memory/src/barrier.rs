//! An asymmetric memory fence between readers and reclaimers: only the rare side, the reclaimer,
//! pays.
//!
//! A reader stores the address that it is about to read, and then checks that it is still valid. A
//! reclaimer stores that an entry is gone, and then reads the addresses that readers have stored.
//! One of the two must see the other, for which each needs a full fence between its store and its
//! load (Dekker's handshake). The reader would pay for it on each hit. Worse, a fence keeps the
//! processor from working on the next lookup meanwhile. So the reader only keeps the compiler from
//! reordering ([`light`]). The reclaimer makes every thread of the process pass a fence ([`heavy`];
//! `membarrier(2)`, once for a whole batch of entries).
//!
//! Where that call does not exist or is not allowed, readers do use a fence. This is decided before
//! the first reader runs.
//!
//! A sandbox can forbid the call later (seccomp). Then readers are told to use fences, and
//! [`heavy`] returns false. Each thread records that it knows; once all do, fences are enough. Some
//! threads may have looked nothing up since, and may never do so again. For these, reclaimers
//! [wait](let_stores_arrive) until the earlier stores of such a thread must have become visible (as
//! in Morrison and Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization",
//! ASPLOS '15). No language promises a time for that, but processors take microseconds.

use std::time::Duration;

use crate::sync::{AtomicU8, Ordering, compiler_fence, fence};

const UNSETTLED: u8 = 0;
const ASYMMETRIC: u8 = 1;
const SYMMETRIC: u8 = 2;
/// State in which readers are to use fences, but some may not know yet.
const BECOMES_SYMMETRIC: u8 = 3;

/// Longest time until other threads see a store, with a margin of a thousand.
const STORES_ARRIVE: Duration = Duration::from_millis(5);

/// The barrier that readers are to use.
static KIND: AtomicU8 = AtomicU8::new(UNSETTLED);

/// Chooses the kind of barrier. Every cache calls this before it has readers.
pub(crate) fn choose() {
    if KIND.load(Ordering::Relaxed) == UNSETTLED {
        let kind = if system::register() { ASYMMETRIC } else { SYMMETRIC };
        // Several threads come to the same result; one that was told to do without must not be
        // overruled.
        let _ = KIND.compare_exchange(UNSETTLED, kind, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Makes readers use fences from now on, as on systems without a barrier for whole processes. May
/// be called at any time.
pub(crate) fn without_membarrier() {
    // Relaxed: a reader that sees it late relies on `heavy`, which still reaches it or says that it
    // does not.
    KIND.store(BECOMES_SYMMETRIC, Ordering::Relaxed);
}

/// Returns true if hits do without a fence.
#[inline(always)]
pub(crate) fn is_asymmetric() -> bool {
    KIND.load(Ordering::Relaxed) == ASYMMETRIC
}

/// Executes the reader's side of the barrier. A thread that calls [`heavy`] afterwards sees the
/// reader's earlier stores, or the reader sees that thread's.
#[inline(always)]
pub(crate) fn light() {
    // Relaxed: settled before the first reader, and either kind of reader is served (see above).
    if KIND.load(Ordering::Relaxed) == ASYMMETRIC {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Executes [`light`] for a reader that has just found, by its record or by [`is_asymmetric`], that
/// it needs no fence. The reader must not have run user code since.
#[inline(always)]
pub(crate) fn light_if_asymmetric() {
    compiler_fence(Ordering::SeqCst);
}

/// Executes the reclaimer's side of the barrier. Returns false if the system refuses it: then it is
/// only valid for readers that use fences, and all readers are told to.
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

/// Waits until this thread sees all earlier stores of other threads. Needed after [`heavy`] was
/// refused.
#[cold]
pub(crate) fn let_stores_arrive() {
    std::thread::sleep(STORES_ARRIVE);
    fence(Ordering::SeqCst); // as in `heavy`
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::ffi::{c_int, c_uint};

    // As in linux/membarrier.h. The names in `libc` are newer than most versions of it in use.
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

    /// Calls `membarrier(2)`. Returns false if the system refuses.
    fn membarrier(command: c_int) -> bool {
        let (flags, cpu): (c_uint, c_int) = (0, 0);
        // SAFETY: the call has these three arguments and touches no memory of the program.
        unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) == 0 }
    }

    /// Registers the process for the barrier. Returns false if the system does not offer it.
    pub(super) fn register() -> bool {
        membarrier(REGISTER_PRIVATE_EXPEDITED)
    }

    /// Makes all threads of the process pass a fence. Returns false if the system refuses.
    pub(super) fn barrier() -> bool {
        // a child of fork() must register again, as the kernel has it
        membarrier(PRIVATE_EXPEDITED) || register() && membarrier(PRIVATE_EXPEDITED)
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

    /// A counter on a cache line of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Apart(AtomicU64);

    const STOP: u64 = u64::MAX;

    /// Returns the progress of a reclaimer, which counts upwards from 1, as a reader sees it: each
    /// number with the first lookup that saw at least that number. Each lookup has a number, which
    /// it publishes before it reads.
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

    /// Returns the lookups that a reclaimer sees of the reader, for each of its numbers from 1.
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

    /// Runs reader and reclaimer for a time. Returns how often they met, and how often neither saw
    /// the other.
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
