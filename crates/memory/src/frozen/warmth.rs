//! Tells when a cache is warm: its entries are those its policy wants, and it hits as it will.
//!
//! FrozenHot waits until an entry inserted at the head is evicted. Near a hit ratio of 1 that never
//! happens; so this waits for as many insertions as the cache has entries, or for many lookups,
//! until the hit ratio moves no more, and in any case no longer than some seconds. Only an idle
//! cache stays cold.

use std::time::Duration;

use super::observe::Observations;

/// Warm is a cache after so many lookups per entry and in all, however few insertions there were.
const LOOKUPS_PER_ENTRY: u64 = 10;
const LOOKUPS_MIN: u64 = 20_000;
/// After this time it counts as warm, if there were a few lookups.
const TIME_MAX: Duration = Duration::from_secs(5);
const LOOKUPS_FEW: u64 = 1_000;
/// The hit ratio is looked at after so many lookups, and so many per entry.
const CHUNK_MIN: u64 = 4_000;
const CHUNK_PER_ENTRY: u64 = 4;
/// A change of the hit ratio that does not matter.
const CHANGE: f64 = 0.003;
/// Standard errors that a change may have.
const ERRORS: f64 = 1.0;

/// A renewal takes so many lookups per entry, or this time.
const RENEWING_PER_ENTRY: u64 = 2;
const RENEWAL_MAX: Duration = Duration::from_secs(1);

/// Lookups and hits of some span.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    lookups: u64,
    hits: u64,
}

impl Chunk {
    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.lookups.max(1) as f64
    }

    /// Of its hit ratio, roughly.
    fn variance(&self) -> f64 {
        let ratio = self.hit_ratio();
        ratio * (1.0 - ratio) / self.lookups.max(1) as f64
    }

    fn is_like(&self, other: &Self) -> bool {
        let change = (self.hit_ratio() - other.hit_ratio()).abs();
        change <= CHANGE + ERRORS * (self.variance() + other.variance()).sqrt()
    }
}

/// Holds what has happened since everything thawed, or since the cache was made.
#[derive(Debug, Clone)]
pub(super) struct Warmth {
    since: Duration,
    lookups: u64,
    insertions: u64,
    open: Chunk,
    last: Option<Chunk>,
    is_steady: bool,
    is_renewal: bool,
}

impl Warmth {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            since: now,
            lookups: 0,
            insertions: 0,
            open: Chunk::default(),
            last: None,
            is_steady: false,
            is_renewal: false,
        }
    }

    /// Not until the cache is warm, only until what is still asked for has been: what was frozen
    /// comes back as if it had just been used, and would be frozen again at once.
    pub(super) fn renewal(now: Duration) -> Self {
        Self { is_renewal: true, ..Self::new(now) }
    }

    /// Takes in what was seen; once the cache is warm, answers why.
    pub(super) fn add(&mut self, seen: &Observations) -> Option<String> {
        self.lookups += seen.lookups();
        self.insertions += seen.insertions;
        self.open.lookups += seen.lookups();
        self.open.hits += seen.frozen_hits + seen.dynamic_hits;
        if self.open.lookups >= CHUNK_MIN.max(seen.entries.saturating_mul(CHUNK_PER_ENTRY)) {
            let chunk = std::mem::take(&mut self.open);
            self.is_steady = self.last.is_some_and(|last| last.is_like(&chunk));
            self.last = Some(chunk);
        }
        let age = seen.now.saturating_sub(self.since);
        let is_turned_over = self.insertions >= seen.entries.max(seen.capacity);
        let enough = LOOKUPS_MIN.max(seen.entries.saturating_mul(LOOKUPS_PER_ENTRY));
        if self.is_renewal {
            let is_over = self.lookups
                >= LOOKUPS_FEW.max(seen.entries.saturating_mul(RENEWING_PER_ENTRY))
                || age >= RENEWAL_MAX && self.lookups >= LOOKUPS_FEW;
            return is_over.then(|| {
                format!("renewed by {} lookups in {:.2} s", self.lookups, age.as_secs_f64())
            });
        }
        let is_warm =
            self.is_steady && (is_turned_over || self.lookups >= enough) || age >= TIME_MAX;
        (is_warm && self.lookups >= LOOKUPS_FEW).then(|| {
            let Self { lookups, insertions, .. } = self;
            format!(
                "warm after {lookups} lookups and {insertions} insertions in {:.2} s",
                age.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs seconds of 100 steps, each with so many lookups of a hit ratio; answers after how many
    /// steps it was warm.
    fn steps(lookups: u64, insertions: u64, hit_ratio: impl Fn(u32) -> f64) -> Option<u32> {
        let mut warmth = Warmth::new(Duration::ZERO);
        (1..=1000).find(|&step| {
            let hits = (lookups as f64 * hit_ratio(step)) as u64;
            let seen = Observations {
                now: Duration::from_millis(10) * step,
                dynamic_hits: hits,
                misses: lookups - hits,
                insertions,
                entries: 1000,
                capacity: 1000,
                ..Observations::default()
            };
            warmth.add(&seen).is_some()
        })
    }

    #[test]
    fn a_cache_is_warm_when_it_has_turned_over() {
        assert_eq!(steps(500, 100, |_| 0.8), Some(16), "it takes two looks at the hit ratio");
    }

    #[test]
    fn without_insertions_many_lookups_do() {
        assert_eq!(steps(500, 0, |_| 1.0), Some(40));
    }

    #[test]
    fn a_hit_ratio_that_still_rises_is_waited_for() {
        let rising = |step: u32| 0.9 - 0.5 * (-f64::from(step) / 30.0).exp();
        assert!(steps(500, 100, rising).is_some_and(|steps| (40..200).contains(&steps)));
    }

    #[test]
    fn nothing_takes_longer_than_five_seconds_but_idleness() {
        let restless = |step: u32| if (step / 8).is_multiple_of(2) { 0.2 } else { 0.8 };
        assert_eq!(steps(500, 0, restless), Some(500));
        assert_eq!(steps(2, 0, |_| 1.0), Some(500));
        assert_eq!(steps(0, 0, |_| 1.0), None);
    }
}
