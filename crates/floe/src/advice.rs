//! Advice on a running cache from its statistics: a model of its locks predicts if more hits still
//! raise the throughput, and which changes would help.

use floe_memory::Stats;
#[doc(inline)]
pub use floe_model::advice::{Advice, Alternative, Busy};
#[doc(inline)]
pub use floe_model::service::{Locks, Operation, Service, Time, Times};
#[doc(inline)]
pub use floe_model::{Load, ModelError};
use floe_model::{Policy, Setting, Situation};

/// Predicts the bottleneck of a cache, by a queueing network of its list operations with these
/// service times.
///
/// The advice names what limits throughput, and compares the hit ratio with the one at which
/// throughput is highest. It also estimates the effect of freezing and of other policies.
///
/// `load` describes the use of the cache: requests in flight, and the cores they share. `miss_us`
/// is the time that a miss waits until its value is made, in microseconds; `None` takes the time
/// that [freezing](crate::Builder::freezing) has measured. Hit ratio, frozen share, policy, shards,
/// and the number of hits that moved an entry come from `stats`, counted since the cache was
/// created.
///
/// ```
/// use floe::advice::{Load, Service, advise};
/// use floe::{Cache, policy::Lru};
///
/// let cache = Cache::builder().capacity(1000).policy(Lru::default()).shards(1).build();
/// for at in 0..1000 {
///     if cache.get(&(at % 50)).is_none() {
///         cache.insert(at % 50, at);
///     }
/// }
/// let advice = advise(&cache.stats(), &Service::paper(), &Load::of(72), Some(100.0))?;
/// assert!(advice.is_past_p_star);
/// println!("{advice}"); // lru at a hit ratio of 0.950 with 72 in flight does …
/// # Ok::<(), floe::advice::ModelError>(())
/// ```
///
/// # Errors
/// There were no lookups yet, `miss_us` is neither given nor measured, or the policy has no service
/// times or no model.
pub fn advise(
    stats: &Stats,
    service: &Service,
    load: &Load,
    miss_us: Option<f64>,
) -> Result<Advice, ModelError> {
    let hit_ratio = stats.hit_ratio().ok_or(ModelError::Unknown { what: "the hit ratio" })?;
    let measured = || Some(stats.freezing.as_ref()?.miss_ns? / 1e3);
    let miss_us =
        miss_us.or_else(measured).ok_or(ModelError::Unknown { what: "what a miss waits for" })?;
    let share = |part: u64, all: u64| (all > 0).then(|| part.min(all) as f64 / all as f64);
    let unfrozen = stats.hits.saturating_sub(stats.frozen_hits);
    let situation = Situation {
        policy: Policy::alike(stats.policy)?,
        setting: Setting {
            // Counts of other threads may be late: never more promotions than hits.
            q: share(stats.promotions, unfrozen).map(|promoted| 1.0 - promoted),
            frozen: share(stats.frozen_hits, stats.hits).filter(|_| stats.frozen > 0),
            ..Setting::new(hit_ratio, miss_us)
        },
        load: *load,
        shards: u32::try_from(stats.shards).unwrap_or(u32::MAX),
    };
    floe_model::advice::advise(&situation, service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FreezeStats;

    fn stats(policy: &'static str) -> Stats {
        counted(policy, |stats| (stats.hits, stats.misses) = (90, 10))
    }

    fn counted(policy: &'static str, count: impl FnOnce(&mut Stats)) -> Stats {
        let mut stats = Stats::default();
        (stats.policy, stats.shards) = (policy, 1);
        count(&mut stats);
        stats
    }

    fn with(mut stats: Stats, count: impl FnOnce(&mut Stats)) -> Stats {
        count(&mut stats);
        stats
    }

    fn advice(stats: &Stats, miss_us: Option<f64>) -> Result<Advice, ModelError> {
        advise(stats, &Service::paper(), &Load::of(72), miss_us)
    }

    #[test]
    fn what_was_counted_is_what_is_advised_on() {
        let lru = advice(&stats("lru"), Some(100.0)).unwrap();
        assert!(lru.is_past_p_star && lru.hit_ratio == 0.9);
        assert!(!advice(&stats("qd-clock"), Some(100.0)).unwrap().is_past_p_star);
        let sharded = with(stats("lru"), |stats| stats.shards = 32);
        assert!(!advice(&sharded, Some(100.0)).unwrap().is_past_p_star);
    }

    #[test]
    fn frozen_hits_and_skipped_promotions_are_taken_as_they_are() {
        let frozen = with(stats("lru"), |stats| (stats.frozen, stats.frozen_hits) = (50, 80));
        let plain = advice(&stats("lru"), Some(5.0)).unwrap().throughput_mrps;
        assert!(advice(&frozen, Some(5.0)).unwrap().throughput_mrps > 2.0 * plain);
        let all = with(stats("relaxed-lru"), |stats| stats.promotions = 90);
        let few = with(stats("relaxed-lru"), |stats| stats.promotions = 5);
        let [all, few] = [all, few].map(|stats| advice(&stats, Some(5.0)).unwrap().throughput_mrps);
        assert!(few > 2.0 * all, "{few}, {all}");
    }

    #[test]
    fn a_measured_miss_needs_no_other() {
        let unknown = advice(&stats("lru"), None).unwrap_err().to_string();
        assert!(unknown.contains("what a miss waits for"), "{unknown}");
        let mut freezing = FreezeStats::default();
        freezing.miss_ns = Some(100_000.0);
        let measured = advice(&with(stats("lru"), |stats| stats.freezing = Some(freezing)), None);
        assert_eq!(measured, advice(&stats("lru"), Some(100.0)));
    }

    #[test]
    fn a_cache_that_was_not_asked_yet_gets_no_advice() {
        assert!(advice(&counted("lru", |_| ()), Some(1.0)).is_err());
    }
}
