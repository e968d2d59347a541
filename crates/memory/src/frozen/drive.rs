//! Steps the controller: takes from the cache what it has counted, and carries out what is asked
//! for.

use std::time::Duration;

use floe_policy::Replacement;

use crate::frozen::driver::{Driver, Totals};
use crate::frozen::freeze::FreezeJob;
use crate::frozen::freezer::Freezer;
use crate::frozen::observe::{Action, Done, Observations};
use crate::frozen::options::Phase;
use crate::frozen::timing;

/// Steps that may follow each other at once. More wait for the next tick, so that other caches have
/// their turn.
const STEPS_AT_ONCE: usize = 16;

impl<K, V, P: Replacement> FreezeJob<'_, K, V, P> {
    /// Steps the controller if it is time to; does what it asks for.
    pub(crate) fn drive(&self) {
        let Some(mut freezer) = self.state.free_freezer() else { return };
        self.free_retired(&mut freezer);
        let Some(mut driver) = freezer.driver.take() else { return };
        for _ in 0..STEPS_AT_ONCE {
            if !self.step(&mut driver, &mut freezer) {
                break;
            }
        }
        freezer.driver = Some(driver);
    }

    /// One step, if it is time; says whether the next one is due.
    fn step(&self, driver: &mut Driver, freezer: &mut Freezer<K, V>) -> bool {
        let now = timing::now() - driver.began;
        let lookups = self.threads.records.counted().lookups;
        let is_time = now >= driver.wake.at || lookups - driver.seen.lookups >= driver.wake.lookups;
        if !is_time && driver.done.is_none() {
            return false;
        }
        let seen = self.observe(driver, now);
        let step = driver.controller.step(&seen);
        driver.wake = step.wake;
        self.state.time_one_in(driver.controller.timed_one_in());
        self.state.report(driver.controller.stats());
        if driver.by_hand && driver.controller.stats().phase != Phase::WarmingUp {
            driver.by_hand = false;
            self.thaw(freezer); // what is measured from here on is the cache without
        }
        driver.done = match step.action {
            Action::Keep => None,
            Action::Bypass | Action::Resume => {
                self.state.publish(freezer, step.action == Action::Resume);
                None
            }
            Action::Thaw => {
                self.thaw(freezer);
                Some(Done::Thawed)
            }
            Action::Extend { to } => {
                self.extend(freezer, to);
                let (entries, frozen) = self.entries_and_frozen();
                Some(Done::Extended { share: frozen as f64 / entries.max(1) as f64 })
            }
            Action::Freeze { ratio } => Some(self.construct(freezer, ratio)),
            Action::FreezeAll => Some(self.construct(freezer, 1.0)),
        };
        driver.done.is_some()
    }

    fn construct(&self, freezer: &mut Freezer<K, V>, ratio: f64) -> Done {
        let frozen = self.freeze(freezer, ratio);
        Done::Constructed { took: frozen.took, entries: frozen.entries as u64 }
    }

    fn entries_and_frozen(&self) -> (u64, u64) {
        let shards = self.shards.iter().map(|shard| {
            let owner = shard.owner();
            (owner.room.held().entries as u64, owner.frozen.count() as u64)
        });
        shards.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
    }

    /// Returns what has happened since the step before.
    fn observe(&self, driver: &mut Driver, now: Duration) -> Observations {
        let mut totals = Totals::default();
        let mut threads = 0;
        self.threads.records.fold((), |(), record| {
            let lookups = record.lookups.get();
            threads += u32::from(lookups > record.lookups_seen.get());
            record.lookups_seen.set(lookups);
            totals.lookups += lookups;
            totals.misses += record.misses.get();
            totals.dynamic_hits += record.dynamic_hits.get();
            totals.latencies.add(&record.timings.latencies());
        });
        let (mut entries, mut weight, mut frozen) = (0, 0, 0);
        for shard in self.shards.iter() {
            let owner = shard.owner();
            totals.insertions += owner.counts.insertions - owner.counts.replacements;
            totals.evictions += owner.counts.evictions;
            entries += owner.room.held().entries as u64;
            weight += owner.room.held().weight as u64;
            frozen += owner.frozen.count() as u64;
        }
        let by_weight = self.budget.weight_limit().map(|limit| {
            if weight == 0 {
                u64::MAX
            } else {
                (u128::from(limit) * u128::from(entries) / u128::from(weight)) as u64
            }
        });
        let seen = std::mem::replace(&mut driver.seen, totals);
        let misses = totals.misses - seen.misses;
        let dynamic_hits = totals.dynamic_hits - seen.dynamic_hits;
        Observations {
            now,
            frozen_hits: (totals.lookups - seen.lookups).saturating_sub(misses + dynamic_hits),
            dynamic_hits,
            misses,
            insertions: totals.insertions.saturating_sub(seen.insertions),
            evictions: totals.evictions - seen.evictions,
            latencies: totals.latencies.since(&seen.latencies),
            entries,
            frozen,
            capacity: self
                .budget
                .entries_limit()
                .into_iter()
                .chain(by_weight)
                .min()
                .unwrap_or(u64::MAX),
            threads,
            done: driver.done.take(),
        }
    }
}
