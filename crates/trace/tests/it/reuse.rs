//! Popularity and reuse against counting by hand, and against laws.

use floe_trace::{DenseKeys, Kind, OpenOptions, Reuse, ReuseStats};
use proptest::prelude::*;

fn load(text: &str) -> DenseKeys {
    DenseKeys::load(text, &OpenOptions::default()).unwrap()
}

/// The distances of all reuses, in order: too simple to be wrong.
fn distances(keys: &[u32]) -> Vec<u64> {
    let mut stack: Vec<u32> = Vec::new();
    let mut found = Vec::new();
    for key in keys {
        if let Some(at) = stack.iter().rposition(|other| other == key) {
            found.push((stack.len() - at) as u64);
            stack.remove(at);
        }
        stack.push(*key);
    }
    found.sort_unstable();
    found
}

proptest! {
    #[test]
    fn percentiles_are_those_of_a_stack(keys in prop::collection::vec(0..60u64, 0..2000)) {
        let dense = DenseKeys::from_keys(keys).unwrap();
        let (reuse, known) = (Reuse::of(&dense, u64::MAX), distances(&dense.keys));
        let percentile = |share: f64| {
            let rank = (known.len() as f64 * share).ceil() as usize;
            known.get(rank.wrapping_sub(1)).copied()
        };
        prop_assert_eq!(
            (reuse.reuse_p10, reuse.reuse_p50, reuse.reuse_p90),
            (percentile(0.1), percentile(0.5), percentile(0.9))
        );
        prop_assert_eq!((reuse.reuse_sample, reuse.reuse_error), (1.0, 0.0));
    }
}

#[test]
fn a_loop_reuses_every_key_at_its_length() {
    let reuse = Reuse::of(&load("loop:keys=1000,requests=50000"), u64::MAX);
    assert_eq!([reuse.reuse_p10, reuse.reuse_p50, reuse.reuse_p90], [Some(1000); 3]);
    assert_eq!((reuse.top_1_percent_share, reuse.top_10_percent_share), (0.01, 0.1));
    assert_eq!(reuse.one_hit_share, 0.0);
}

#[test]
fn the_exponent_of_zipfs_law_is_found_again() {
    for theta in [0.6, 0.8, 1.0, 1.2] {
        let reuse = Reuse::of(&load(&format!("zipf:keys=20000,theta={theta},requests=2000000")), 1);
        let found = reuse.zipf_exponent.unwrap();
        assert!((found - theta).abs() < 0.05, "{theta}: {found}");
    }
    assert_eq!(Reuse::of(&load("loop:keys=1000,requests=3000"), 1).zipf_exponent, None);
}

#[test]
fn a_sample_comes_close_and_states_its_error() {
    let dense = load("zipf:keys=200000,theta=0.7,requests=2000000");
    let (exact, sampled) = (Reuse::of(&dense, u64::MAX), Reuse::of(&dense, 200_000));
    assert_eq!(sampled.reuse_sample, 0.1);
    for (exact, sampled, errors) in [
        (exact.reuse_p50, sampled.reuse_p50, 4.0 * sampled.reuse_error),
        (exact.reuse_p90, sampled.reuse_p90, 0.2),
    ] {
        let ratio = sampled.unwrap() as f64 / exact.unwrap() as f64;
        assert!((ratio - 1.0).abs() < errors && errors < 0.8, "{ratio} ± {errors}");
    }
}

#[test]
fn nothing_reused_has_no_distances() {
    let reuse = ReuseStats::new(Kind::Key).reuse();
    assert_eq!(
        (reuse.reuse_p50, reuse.one_hit_share, reuse.top_10_percent_share),
        (None, 0.0, 0.0)
    );
    let reuse = Reuse::of(&load("loop:keys=50,requests=50"), u64::MAX);
    assert_eq!((reuse.reuse_p50, reuse.one_hit_share), (None, 1.0));
}
