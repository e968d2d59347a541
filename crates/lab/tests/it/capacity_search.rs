//! The search for a capacity against trying every capacity.

use floe_lab::bench::{Curve, search};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Hit ratios this close to the one asked for end a search.
const CLOSE: f64 = 0.0005;

/// Hit ratios of the capacities from 1 on, which rise in steps of many sizes.
fn rising(random: &mut StdRng, most: usize) -> Vec<f64> {
    let mut steps: Vec<f64> =
        (0..most)
            .map(|_| {
                if random.random_bool(0.3) { random.random_range(0.0..1.0f64).powi(6) } else { 0.0 }
            })
            .collect();
    let sum = steps.iter().sum::<f64>().max(1e-9);
    let mut ratio = 0.0;
    for step in &mut steps {
        ratio += *step / sum;
        *step = ratio;
    }
    steps
}

#[test]
fn the_nearest_capacity_of_a_rising_curve_is_found_and_none_is_tried_twice() {
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..400 {
        let most = random.random_range(1..600usize);
        let ratios = rising(&mut random, most);
        let mut known = Curve::new();
        // Later searches begin from the results of earlier ones.
        for _ in 0..4 {
            let target: f64 = random.random_range(0.0..1.0);
            let before = known.clone();
            let mut tried = Vec::new();
            let found = search(target, most as u64, &mut known, |capacity| {
                tried.push(capacity);
                ratios[capacity as usize - 1]
            });
            assert_eq!(found.hit_ratio, ratios[found.capacity as usize - 1]);
            let distance = |ratio: f64| (ratio - target).abs();
            let nearest = ratios.iter().copied().map(distance).fold(f64::INFINITY, f64::min);
            let off = distance(found.hit_ratio);
            assert!(off <= CLOSE || off == nearest, "{target} of {most}: {found:?}, {nearest}");
            let count = tried.len();
            assert!(tried.iter().all(|capacity| !before.contains_key(capacity)), "{tried:?}");
            tried.sort_unstable();
            tried.dedup();
            assert_eq!(tried.len(), count, "a simulation was repeated");
            assert!(count <= 2 + 2 * (most as f64).log2().ceil() as usize + 8, "{count} of {most}");
        }
    }
}

#[test]
fn a_curve_with_steps_down_ends_at_the_nearest_capacity_tried() {
    let mut random = StdRng::seed_from_u64(2);
    for _ in 0..400 {
        let most = random.random_range(2..400usize);
        let mut ratios = rising(&mut random, most);
        for ratio in &mut ratios {
            *ratio = (*ratio + random.random_range(-0.02..0.02)).clamp(0.0, 1.0);
        }
        let (target, mut known) = (random.random_range(0.0..1.0), Curve::new());
        let found =
            search(target, most as u64, &mut known, |capacity| ratios[capacity as usize - 1]);
        let nearest = known.values().map(|ratio| (ratio - target).abs()).fold(1.0, f64::min);
        assert_eq!((found.hit_ratio - target).abs(), nearest, "{target}: {found:?}");
    }
}
