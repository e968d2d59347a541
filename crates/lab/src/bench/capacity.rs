//! The capacity at which a policy has a given hit ratio on a load.
//!
//! Simulation answers for one capacity at a time, by the hits of a pass over the load when the
//! cache has settled. The hit ratio rises with the capacity, but for the few steps down that
//! policies other than LRU may take, so the search halves the capacities that are left, guided by
//! where a straight line would meet the ratio.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use floe_policy::registry::Choice;

use super::order::PassOrder;
use crate::simulate::objects::{Run, simulate};
use crate::simulate::stream::Stream;

/// Hit ratios this close to the one asked for are it.
const CLOSE: f64 = 0.0005;

/// A capacity, and the hit ratio there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// Entries.
    pub capacity: u64,
    /// Share of lookups that hit once the cache is warm.
    pub hit_ratio: f64,
}

/// The known hit ratios of a policy on a load, by capacity: searches add to it and begin from it.
pub type Curve = BTreeMap<u64, f64>;

/// Finds the capacity for a hit ratio of a policy on a looped load: the nearest that it tries. A
/// simulation of a million keys takes a second or two, and a search a handful of them.
pub fn capacity_for(hit_ratio: f64, policy: &Choice, load: &Looped, known: &mut Curve) -> Found {
    search(hit_ratio, load.before.distinct as u64, known, |capacity| {
        load.hit_ratio(policy, capacity)
    })
}

/// A load that follows itself.
#[derive(Debug)]
pub struct Looped {
    before: Stream,
    all: Stream,
}

/// Passes before the one that counts: one to fill the cache, and one more to settle.
const PASSES: u64 = 2;

impl Looped {
    /// Passes over a load.
    pub fn new(stream: &Stream, order: PassOrder) -> Self {
        let requests = stream.keys.len();
        let mut places: Vec<usize> =
            (0..PASSES).flat_map(|pass| order.places(pass, requests)).collect();
        let before = stream.rearranged(places.iter().copied());
        places.extend(order.places(PASSES, requests));
        Self { before, all: stream.rearranged(places.iter().copied()) }
    }

    /// The share of hits of a policy in the third pass.
    pub fn hit_ratio(&self, policy: &Choice, capacity: u64) -> f64 {
        let run = Run { policy: policy.clone(), size: capacity, admit: Vec::new() };
        let hits = |stream: &Stream| simulate("", stream, &run, None, &AtomicU64::new(0)).hits;
        let (before, all) = std::thread::scope(|scope| {
            let before = scope.spawn(|| hits(&self.before));
            let all = hits(&self.all);
            (before.join().expect("a simulation does not panic"), all)
        });
        (all - before) as f64 / (self.all.keys.len() - self.before.keys.len()) as f64
    }
}

/// The capacity from 1 to `most` whose hit ratio is nearest to `target` among those that are known
/// or tried.
pub fn search(
    target: f64,
    most: u64,
    known: &mut Curve,
    mut hit_ratio: impl FnMut(u64) -> f64,
) -> Found {
    for end in [1, most.max(1)] {
        known.entry(end).or_insert_with(|| hit_ratio(end));
    }
    let mut halve = false;
    loop {
        let found = |(&capacity, &hit_ratio)| Found { capacity, hit_ratio };
        let distance = |found: &Found| (found.hit_ratio - target).abs();
        let best = known.iter().map(found).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let best = best.expect("both ends are known");
        let high = known.iter().map(found).find(|found| found.hit_ratio >= target);
        let low = high.and_then(|high| known.range(..high.capacity).next_back().map(found));
        let (Some(low), Some(high)) = (low, high) else { return best };
        if distance(&best) <= CLOSE || high.capacity - low.capacity <= 1 {
            return best;
        }
        // Hit ratios go about with the logarithm of the capacity. Every other step halves, and none
        // comes near to either end, or a line that bends would creep along.
        let share =
            if halve { 0.5 } else { (target - low.hit_ratio) / (high.hit_ratio - low.hit_ratio) };
        halve = !halve;
        let (from, to) = ((low.capacity as f64).ln(), (high.capacity as f64).ln());
        let middle = (from + share.clamp(0.05, 0.95) * (to - from)).exp() as u64;
        let middle = middle.clamp(low.capacity + 1, high.capacity - 1);
        known.insert(middle, hit_ratio(middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::stream::{Builder, Keep};
    use floe_trace::{Kind, Op, Request};

    fn looped(keys: impl Iterator<Item = u64>) -> Looped {
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        for key in keys {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        Looped::new(&builder.finish().unwrap(), PassOrder::AsIs)
    }

    #[test]
    fn a_capacity_is_found_in_few_steps() {
        for target in [0.0001, 0.01, 0.3, 0.5, 0.77, 0.95, 0.9999] {
            let mut steps = 0;
            let found = search(target, 1_000_000, &mut Curve::new(), |capacity| {
                steps += 1;
                (capacity as f64 / 1e6).powf(0.3)
            });
            assert!(
                (found.hit_ratio - target).abs() <= CLOSE || found.capacity < 3,
                "{target}: {found:?}"
            );
            assert!(steps <= 30, "{target}: {steps} steps");
        }
    }

    #[test]
    fn what_is_known_is_not_tried_again() {
        let (mut known, mut steps) = (Curve::new(), 0);
        let mut steps_for = |target| {
            let before = steps;
            let found = search(target, 1_000_000, &mut known, |capacity| {
                steps += 1;
                (capacity as f64 / 1e6).powf(0.3)
            });
            assert!((found.hit_ratio - target).abs() <= CLOSE, "{target}: {found:?}");
            steps - before
        };
        let first = steps_for(0.8);
        assert_eq!(steps_for(0.8), 0);
        assert!(steps_for(0.85) < first);
    }

    #[test]
    fn what_cannot_be_had_gives_the_nearest_end() {
        let hit_ratio = |capacity: u64| 0.2 + 0.5 * capacity as f64 / 100.0;
        assert_eq!(search(0.1, 100, &mut Curve::new(), hit_ratio).capacity, 1);
        assert_eq!(search(0.9, 100, &mut Curve::new(), hit_ratio).capacity, 100);
        assert_eq!(
            search(0.5, 1, &mut Curve::new(), |_| 0.7),
            Found { capacity: 1, hit_ratio: 0.7 }
        );
    }

    #[test]
    fn a_step_leaves_the_nearer_side() {
        let found =
            search(0.4, 1000, &mut Curve::new(), |capacity| if capacity < 500 { 0.1 } else { 0.6 });
        assert_eq!(found, Found { capacity: 500, hit_ratio: 0.6 });
    }

    #[test]
    fn the_first_pass_over_a_load_does_not_count() {
        let load = looped(0..100);
        let policy: Choice = "lru".parse().unwrap();
        assert_eq!(load.hit_ratio(&policy, 100), 1.0);
        assert_eq!(load.hit_ratio(&policy, 99), 0.0);
    }

    #[test]
    fn a_drawn_load_has_no_cliff_at_its_end() {
        // All keys are as likely at any time, so half of them in the cache are half of the lookups
        // hit; in the same order again and again LRU would hit nothing before it holds all.
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        for key in 0..1_000_000 {
            builder.add(&Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }).unwrap();
        }
        let load = Looped::new(&builder.finish().unwrap(), PassOrder::Drawn);
        let hit_ratio = load.hit_ratio(&"lru".parse().unwrap(), 500_000);
        // four standard errors of two thousand chunks
        assert!((hit_ratio - 0.5).abs() < 0.05, "{hit_ratio}");
    }

    #[test]
    fn every_policy_gets_the_hit_ratio_asked_for() {
        let load = looped((0..50_000u64).map(|at| {
            // About as popular as 1/rank.
            let share = (floe_policy::mix(at) >> 11) as f64 / (1u64 << 53) as f64;
            2000f64.powf(share) as u64
        }));
        for policy in ["fifo", "lru", "s3-fifo", "sieve", "arc", "w-tinylfu"] {
            let policy: Choice = policy.parse().unwrap();
            for target in [0.5, 0.9] {
                let found = capacity_for(target, &policy, &load, &mut Curve::new());
                assert!((found.hit_ratio - target).abs() < 0.01, "{policy}: {found:?}");
                assert_eq!(found.hit_ratio, load.hit_ratio(&policy, found.capacity));
            }
        }
    }
}
