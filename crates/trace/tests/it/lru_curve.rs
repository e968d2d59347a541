//! Miss ratios of LRU against a stack, and the stated errors of sampled ones against exact ones.

use floe_trace::{Kind, LruCurve, Op, OpenOptions, Request, Trace, sample_hash};
use proptest::prelude::*;

fn read(key: u64) -> Request {
    Request { time_ns: 0, key, bytes: 1, volume: 0, op: Op::Read }
}

fn curve(kind: Kind, sample: usize, requests: impl IntoIterator<Item = Request>) -> LruCurve {
    let mut curve = LruCurve::with_sample(kind, sample);
    requests.into_iter().for_each(|request| curve.add(&request));
    curve
}

/// The misses of an LRU cache: too simple to be wrong.
fn misses(keys: &[u64], size: usize) -> usize {
    let mut stack: Vec<u64> = Vec::new();
    let mut misses = 0;
    for key in keys {
        match stack.iter().rposition(|other| other == key) {
            Some(at) => drop(stack.remove(at)),
            None => misses += 1,
        }
        stack.push(*key);
        if stack.len() > size {
            stack.remove(0);
        }
    }
    misses
}

proptest! {
    #[test]
    fn all_miss_ratios_are_exact_as_long_as_all_keys_are_in_the_sample(
        keys in prop::collection::vec(0..90u64, 1..2000),
    ) {
        let curve = curve(Kind::Key, 90, keys.iter().map(|&key| read(key)));
        prop_assert_eq!(curve.sampled_share(), 1.0);
        for size in [1, 2, 10, 50, 89, 90, 1000] {
            let point = curve.at(size);
            let exact = misses(&keys, size as usize) as f64 / keys.len() as f64;
            prop_assert!((point.miss_ratio - exact).abs() < 1e-12, "{point:?} {exact}");
            prop_assert_eq!(point.miss_ratio_ci95, 0.0);
        }
    }
}

/// A load; with another `draw` its keys have other names, so that others are sampled.
fn load(text: &str, draw: u64) -> impl Iterator<Item = Request> {
    let trace = Trace::open_source(text, &OpenOptions::default()).unwrap();
    trace.map(move |request| {
        let request = request.unwrap();
        Request { key: request.key | draw << 40, ..request }
    })
}

const LOADS: [&str; 8] = [
    "zipf:keys=20000,theta=0.7,requests=100000,seed=1",
    "zipf:keys=30000,theta=0.9,requests=100000,seed=2",
    "zipf:keys=40000,theta=0.99,requests=100000,seed=3",
    "zipf:keys=40000,theta=1.1,requests=100000,seed=4",
    "uniform:keys=20000,requests=100000,seed=5",
    "ycsb:workload=D,keys=20000,requests=100000,seed=6",
    "scan:keys=20000,every=5000,length=3000,scanned=30000,requests=100000,seed=7",
    "mix:requests=100000,seed=8+zipf:keys=20000,weight=1+loop:keys=10000,weight=1",
];

#[test]
fn a_sampled_miss_ratio_is_as_far_off_as_it_says_in_one_of_twenty_cases() {
    let (mut cases, mut bounds, mut errors, mut outside) = (0, Vec::new(), Vec::new(), Vec::new());
    for text in LOADS {
        let exact = curve(Kind::Key, 1 << 17, load(text, 0));
        assert_eq!(exact.sampled_share(), 1.0, "{text}");
        for draw in 1..=8 {
            let sampled = curve(Kind::Key, [1024, 2048][draw as usize % 2], load(text, draw));
            assert!(sampled.sampled_share() < 0.2, "{text}");
            for size in [200, 1000, 2000, 5000, 15_000] {
                let (exact, point) = (exact.at(size), sampled.at(size));
                let error = (point.miss_ratio - exact.miss_ratio).abs();
                cases += 1;
                bounds.push(point.miss_ratio_ci95);
                errors.push(error);
                if error > point.miss_ratio_ci95 {
                    outside.push(format!("{text} {draw} {point:?} of {}", exact.miss_ratio));
                }
            }
        }
    }
    bounds.sort_by(f64::total_cmp);
    let median = bounds[bounds.len() / 2];
    let mean_error = errors.iter().sum::<f64>() / errors.len() as f64;
    println!(
        "{} of {cases} outside, median bound {median}, mean error {mean_error}",
        outside.len()
    );
    assert!(outside.len() * 100 <= cases * 8, "{} of {cases}: {outside:#?}", outside.len());
    assert!(median < 0.06, "a bound that says nothing: {median}");
    assert!(mean_error < 0.02, "{mean_error}");
}

#[test]
fn blocks_of_all_volumes_are_counted_and_deletions_are_not() {
    let block = |volume, block: u64, op| Request {
        time_ns: 0,
        key: block * 4096 + 512,
        bytes: 4096,
        volume,
        op,
    };
    // Each request covers two blocks in part.
    let requests = [
        block(0, 0, Op::Read),
        block(1, 0, Op::Write),
        block(0, 0, Op::Delete),
        block(0, 0, Op::Write),
    ];
    let curve = curve(Kind::Block, 100, requests);
    assert_eq!(curve.touches(), 6);
    assert_eq!([3, 4].map(|size| curve.at(size).miss_ratio), [1.0, 4.0 / 6.0]);
}

#[test]
fn nothing_read_misses_nothing() {
    let point = LruCurve::new(Kind::Key).at(10);
    assert_eq!((point.miss_ratio, point.miss_ratio_ci95), (0.0, 0.0));
}

#[test]
fn a_sample_that_is_limited_from_outside_estimates_the_same() {
    for text in LOADS {
        let exact = curve(Kind::Key, 1 << 20, load(text, 0));
        let mut limited = LruCurve::with_sample(Kind::Key, 4096);
        // At first all keys are sampled; the limit comes later and falls, as it does on a server
        // that finds out how much it can take.
        let mut limit = None;
        for (at, request) in load(text, 0).enumerate() {
            if [20_000, 40_000].contains(&at) {
                limited.limit_to(u64::MAX / if at == 20_000 { 4 } else { 8 });
                limit = limited.limit();
            }
            let hash = sample_hash(request.volume, request.key);
            limited.add_touches(1);
            if limit.is_none_or(|limit| hash < limit) {
                limited.add_hashed(hash, true);
            }
        }
        for size in [500, 2000, 8000] {
            let (exact, estimate) = (exact.at(size).miss_ratio, limited.at(size));
            let off = (estimate.miss_ratio - exact).abs();
            assert!(off < 0.05, "{text} at {size}: {exact} {estimate:?}");
        }
    }
}

#[test]
fn touches_that_do_not_count_still_bring_keys_to_the_front() {
    let mut curve = LruCurve::with_sample(Kind::Key, 64);
    for (key, counts) in [(1, true), (2, true), (1, false), (2, true)] {
        curve.add_hashed(sample_hash(0, key), counts);
        curve.add_touches(counts.into());
    }
    // Between the touches of key 2 there was one of key 1.
    assert_eq!([1, 2].map(|size| (3.0 * curve.at(size).miss_ratio).round()), [3.0, 2.0]);
}

#[test]
fn a_faded_curve_follows_the_load() {
    let mut curve = LruCurve::with_sample(Kind::Key, 1024);
    (0..1000).for_each(|key| curve.add(&read(key)));
    assert_eq!(curve.at(1000).miss_ratio, 1.0);
    curve.fade(0.01);
    (0..1000).for_each(|key| curve.add(&read(key)));
    assert!(curve.at(1000).miss_ratio < 0.011, "{:?}", curve.at(1000));
}

#[test]
fn a_curve_takes_as_much_memory_as_it_says_at_most() {
    let mut curve = LruCurve::with_sample(Kind::Key, 1024);
    for round in 0..4 {
        for key in 0..3_000_000u64 {
            curve.add(&read(key * (round % 2 + 1)));
        }
    }
    let kibibytes = curve.bytes() >> 10;
    println!("{kibibytes} KiB");
    assert!((64..1024).contains(&kibibytes), "{kibibytes} KiB");
}
