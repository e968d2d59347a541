//! Numbers that one thread changes and others read.

use crate::sync::{AtomicU64, Ordering};

/// A counter that one thread advances and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn add(&self, count: u64) {
        // Only the owner writes, so no read-modify-write is needed; a sum over threads may be a
        // moment late.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts one, and says how many it has been.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        let count = self.0.load(Ordering::Relaxed).wrapping_add(1); // as in `add`
        self.0.store(count, Ordering::Relaxed);
        count
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // see `add`
    }

    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed); // see `add`
    }
}

/// Random numbers for one thread, good enough to choose requests by (SplitMix64 without its last
/// step).
#[derive(Debug, Default)]
pub(crate) struct Random(Count);

impl Random {
    /// The next one; every number is as likely.
    pub(crate) fn next(&self) -> u32 {
        let random = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(random);
        ((random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}
