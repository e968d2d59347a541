//! What a cache's counts say by the model of its locks: whether more hits still help, and what else
//! would.

use floe_model::advice::{Advice, advise};
use floe_model::{Load, ModelError, Policy, Service, Setting, Situation};

use crate::stats::Stats;

impl Stats {
    /// What limits the cache, whether its hit ratio is past the one at which throughput is highest,
    /// and what freezing or another policy would give, by a queueing network of its list operations
    /// with these service times.
    ///
    /// `load` is how it is used: requests in flight, and the cores they share. `miss_us` is what a
    /// miss waits for, in microseconds, its value made; `None` takes what
    /// [freezing](crate::Builder::freezing) has measured. Hit ratio, frozen share, policy, shards,
    /// and how many hits moved an entry are as counted since the cache was made.
    ///
    /// ```
    /// # use floe_memory as floe;
    /// # use floe_model as advice;
    /// use advice::{Load, Service};
    /// use floe::{Cache, policy::Lru};
    ///
    /// let cache = Cache::builder().capacity(1000).policy(Lru::default()).shards(1).build();
    /// for at in 0..1000 {
    ///     if cache.get(&(at % 50)).is_none() {
    ///         cache.insert(at % 50, at);
    ///     }
    /// }
    /// let advice = cache.stats().advice(&Service::paper(), &Load::of(72), Some(100.0))?;
    /// assert!(advice.is_past_p_star);
    /// println!("{advice}"); // lru at a hit ratio of 0.950 with 72 in flight does …
    /// # Ok::<(), advice::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// There were no lookups yet, `miss_us` is neither given nor measured, or there are no service
    /// times for the policy or no model of it.
    pub fn advice(
        &self,
        service: &Service,
        load: &Load,
        miss_us: Option<f64>,
    ) -> Result<Advice, ModelError> {
        let hit_ratio = self.hit_ratio().ok_or(ModelError::Unknown { what: "the hit ratio" })?;
        let measured = || Some(self.freezing.as_ref()?.miss_ns? / 1e3);
        let miss_us = miss_us
            .or_else(measured)
            .ok_or(ModelError::Unknown { what: "what a miss waits for" })?;
        let share = |part: u64, all: u64| (all > 0).then(|| part.min(all) as f64 / all as f64);
        let unfrozen = self.hits.saturating_sub(self.frozen_hits);
        let situation = Situation {
            policy: Policy::alike(self.policy)?,
            setting: Setting {
                // Counts of other threads may be late: never more promotions than hits.
                q: share(self.promotions, unfrozen).map(|promoted| 1.0 - promoted),
                frozen: share(self.frozen_hits, self.hits).filter(|_| self.frozen > 0),
                ..Setting::new(hit_ratio, miss_us)
            },
            load: *load,
            shards: u32::try_from(self.shards).unwrap_or(u32::MAX),
        };
        advise(&situation, service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreezeStats;

    fn stats(policy: &'static str) -> Stats {
        Stats { hits: 90, misses: 10, policy, shards: 1, ..Stats::default() }
    }

    fn advice(stats: &Stats, miss_us: Option<f64>) -> Result<Advice, ModelError> {
        stats.advice(&Service::paper(), &Load::of(72), miss_us)
    }

    #[test]
    fn what_was_counted_is_what_is_advised_on() {
        let lru = advice(&stats("lru"), Some(100.0)).unwrap();
        assert!(lru.is_past_p_star && lru.hit_ratio == 0.9);
        assert!(!advice(&stats("qd-clock"), Some(100.0)).unwrap().is_past_p_star);
        let sharded = Stats { shards: 32, ..stats("lru") };
        assert!(!advice(&sharded, Some(100.0)).unwrap().is_past_p_star);
    }

    #[test]
    fn frozen_hits_and_skipped_promotions_are_taken_as_they_are() {
        let frozen = Stats { frozen: 50, frozen_hits: 80, ..stats("lru") };
        let plain = advice(&stats("lru"), Some(5.0)).unwrap().throughput_mrps;
        assert!(advice(&frozen, Some(5.0)).unwrap().throughput_mrps > 2.0 * plain);
        let all = Stats { promotions: 90, ..stats("relaxed-lru") };
        let few = Stats { promotions: 5, ..stats("relaxed-lru") };
        let [all, few] = [all, few].map(|stats| advice(&stats, Some(5.0)).unwrap().throughput_mrps);
        assert!(few > 2.0 * all, "{few}, {all}");
    }

    #[test]
    fn a_measured_miss_needs_no_other() {
        let unknown = advice(&stats("lru"), None).unwrap_err().to_string();
        assert!(unknown.contains("what a miss waits for"), "{unknown}");
        let freezing = Some(FreezeStats { miss_ns: Some(100_000.0), ..FreezeStats::default() });
        let measured = advice(&Stats { freezing, ..stats("lru") }, None);
        assert_eq!(measured, advice(&stats("lru"), Some(100.0)));
    }

    #[test]
    fn a_cache_that_was_not_asked_yet_gets_no_advice() {
        assert!(
            advice(&Stats { policy: "lru", shards: 1, ..Stats::default() }, Some(1.0)).is_err()
        );
    }
}
