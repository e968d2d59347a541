//! Estimates the misses of a whole trace from a sample of its keys, and the error of that.
//!
//! The sampled keys fall into a few groups by a hash. Each goes through a cache of its own, with
//! its part of the size, and is as good a sample as all of them, only smaller; so what the
//! estimates differ by from group to group tells by how much that of all of them may be off. That
//! takes in which keys were drawn, and that more or fewer of them than should share the cache.
//!
//! A sample has more or fewer requests than its share, and what those that are missing would have
//! been is not known: hits, if they are of few keys that are always there (as SHARDS-adj takes
//! them, Waldspurger et al., FAST '15), or like all others, if no key is hotter than the next. The
//! keys show that, too: by how much misses rise with requests from key to key is the slope of a
//! regression, by which the estimate is brought to the requests there should be (Cochran, "Sampling
//! Techniques", ch. 7).

use floe_model::t_975;

/// The most groups.
pub(super) const MOST_GROUPS: u64 = 16;

/// The fewest: below that the spread is not known.
pub(super) const LEAST_GROUPS: u64 = 6;

/// Objects that fit into the cache of a group, if there are to be more than [`LEAST_GROUPS`].
pub(super) const OBJECTS: u64 = 8;

/// The requests or bytes asked of a cache, and those that it missed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Missed {
    pub(super) asked: f64,
    pub(super) missed: f64,
}

/// A share of what is asked for, in the whole trace, and how far off it may be: in 19 of 20 cases
/// no further.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    pub(super) bound: f64,
}

/// By how much misses rise with requests, from the misses of each key of a sample and the requests
/// for it.
pub(super) fn slope(keys: impl Iterator<Item = (u32, u32)>) -> f64 {
    let (mut together, mut squares) = (0.0, 0.0);
    for (missed, asked) in keys {
        together += f64::from(missed) * f64::from(asked);
        squares += f64::from(asked) * f64::from(asked);
    }
    if squares > 0.0 { together / squares } else { 0.0 }
}

/// The estimate from a sample of a `share` of the keys, of which `asked` should be asked, and from
/// its groups.
pub(super) fn estimate(
    sample: Missed,
    groups: &[Missed],
    slope: f64,
    asked: f64,
    share: f64,
) -> Estimate {
    let count = groups.len() as f64;
    let brought = |of: &Missed, asked: f64| (of.missed + slope * (asked - of.asked)) / asked;
    let ratio = brought(&sample, asked);
    let of_groups: Vec<f64> = groups.iter().map(|group| brought(group, asked / count)).collect();
    let mean = of_groups.iter().sum::<f64>() / count;
    let freedom = count - 1.0;
    let variance =
        of_groups.iter().map(|of_group| (of_group - mean).powi(2)).sum::<f64>() / freedom;
    // Small caches are not small copies of large ones: what they are off for a part of the size is
    // less by so much for all of it.
    let smallness = (mean - ratio).abs() / freedom;
    // The slope is that of the keys drawn; the hottest of those that were not may always hit.
    let extrapolated = slope * (1.0 - sample.asked / asked);
    let drawn = t_975(freedom) * (variance / count * (1.0 - share)).sqrt();
    let bound = drawn.hypot(extrapolated) + smallness;
    Estimate { ratio: ratio.clamp(0.0, 1.0), bound }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use floe_trace::{GeneratorSpec, Kind, Trace};

    use super::super::objects::{Run, SimulationResult, simulate};
    use super::super::stream::{Builder, Keep, Stream};

    /// A load; with another `draw` its keys have other names, so that others are sampled.
    fn stream(text: &str, rate: f64, draw: u64, size_of: Option<fn(u64) -> u64>) -> Stream {
        let spec: GeneratorSpec = text.parse().expect("the trace is well written");
        let keep = Keep { rate, sizes: size_of.is_some(), next_use: true };
        let mut builder = Builder::new(Kind::Key, keep, 4096);
        for request in Trace::generate(&spec).expect("the trace is possible") {
            let mut request = request.expect("a generated trace is well formed");
            request.bytes = size_of.map_or(request.bytes, |size_of| size_of(request.key));
            request.key |= draw << 32;
            builder.add(&request).expect("there is room");
        }
        builder.finish().expect("there are requests")
    }

    fn run(policy: &str, stream: &Stream, size: u64) -> SimulationResult {
        let run =
            Run { policy: policy.parse().expect("it is registered"), size, admit: Vec::new() };
        simulate("trace", stream, &run, None, &AtomicU64::new(0))
    }

    #[test]
    fn an_estimate_is_as_far_off_as_it_says_in_one_of_twenty_cases() {
        let (mut cases, mut bounds, mut outside) = (0, Vec::new(), Vec::new());
        for load in [
            "zipf:keys=20000,theta=0.7,requests=100000,seed=1",
            "zipf:keys=30000,theta=0.9,requests=100000,seed=2",
            "zipf:keys=40000,theta=0.99,requests=100000,seed=3",
            "zipf:keys=40000,theta=1.1,requests=100000,seed=4",
            "uniform:keys=20000,requests=100000,seed=5",
            "ycsb:workload=D,keys=20000,requests=100000,seed=6",
            "scan:keys=20000,every=5000,length=3000,scanned=30000,requests=100000,seed=7",
            "mix:requests=100000,seed=8+zipf:keys=20000,weight=1+loop:keys=10000,weight=1",
        ] {
            let whole = stream(load, 1.0, 0, None);
            let rates = [0.2, 0.1, 0.05].into_iter().cycle();
            let samples: Vec<_> =
                (1..=6).zip(rates).map(|(draw, rate)| stream(load, rate, draw, None)).collect();
            for policy in ["lru", "s3-fifo"] {
                for hundredths in [1, 5, 20] {
                    let size = whole.footprint * hundredths / 100;
                    let exact = run(policy, &whole, size);
                    for sample in &samples {
                        let estimate = run(policy, sample, size);
                        let bound =
                            estimate.miss_ratio_ci95.expect("a sample says how far off it may be");
                        let off = (estimate.miss_ratio - exact.miss_ratio).abs();
                        cases += 1;
                        bounds.push(bound);
                        if off > bound {
                            let rate = sample.rate;
                            outside.push(format!(
                                "{load} {policy} {hundredths} % {rate}: {off} of {bound}"
                            ));
                        }
                    }
                }
            }
        }
        bounds.sort_by(f64::total_cmp);
        let median = bounds[bounds.len() / 2];
        println!("{} of {cases} outside, median bound {median}", outside.len());
        assert!(outside.len() * 100 <= cases * 8, "{} of {cases}: {outside:#?}", outside.len());
        assert!(median < 0.04, "a bound that says nothing: {median}");
    }

    #[test]
    fn bytes_are_estimated_as_requests_are() {
        let load = "zipf:keys=20000,requests=200000";
        let sizes: [fn(u64) -> u64; 2] = [|_| 1000, |key| 500 + key % 1000];
        for (size_of, alike) in sizes.into_iter().zip([true, false]) {
            let (whole, sample) =
                (stream(load, 1.0, 0, Some(size_of)), stream(load, 0.1, 0, Some(size_of)));
            let (exact, estimate) = (run("lru", &whole, 2_000_000), run("lru", &sample, 2_000_000));
            let bound = estimate.byte_miss_ratio_ci95.expect("a sample says how far off it may be");
            assert!(
                (exact.byte_miss_ratio - estimate.byte_miss_ratio).abs() < bound,
                "{exact:?} {estimate:?}"
            );
            if alike {
                assert!(
                    (estimate.byte_miss_ratio - estimate.miss_ratio).abs() < 1e-9,
                    "{estimate:?}"
                );
                assert!(
                    (bound - estimate.miss_ratio_ci95.unwrap_or(0.0)).abs() < 1e-9,
                    "{estimate:?}"
                );
            }
        }
    }

    #[test]
    fn belady_is_the_best_of_a_sample_too() {
        let sample = stream("zipf:keys=20000,requests=200000", 0.1, 0, None);
        let [belady, lru] = ["belady", "lru"].map(|policy| run(policy, &sample, 1000));
        assert!(
            belady.miss_ratio < lru.miss_ratio - 0.02,
            "{} {}",
            belady.miss_ratio,
            lru.miss_ratio
        );
    }
}
