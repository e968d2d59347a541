//! Draws the requests of a load at random.
//!
//! Requests choose among the extents of a volume by a Zipf distribution. Extents are ranked at
//! random, so that hot ones are scattered over the volume. Offsets within an extent are uniform.

use rand::distr::{Distribution, Uniform};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;

/// Size in bytes of the extents that differ in popularity.
const EXTENT_BYTES: u64 = 256 << 10;

/// Alignment of requests in bytes.
const UNIT_BYTES: u64 = 4096;

/// Settings of a random load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Skew of the Zipf distribution; 0 is uniform.
    pub theta: f64,
    /// Request sizes in bytes, equally likely; multiples of 4 KiB up to 256 KiB.
    pub sizes: Vec<u64>,
    /// Requests in flight.
    pub depth: usize,
    /// Seed of the random generator; loads with equal settings and seed have the same requests.
    pub seed: u64,
}

/// Errors of drawing requests.
#[derive(Debug, thiserror::Error)]
pub enum DrawError {
    /// The volume, with this size in bytes, is smaller than an extent.
    #[error("a volume of {0} bytes is too small for a load; it takes at least {EXTENT_BYTES}")]
    TooSmall(u64),
    /// The skew is not a finite number of at least 0.
    #[error("a skew of {0} is not possible")]
    Skew(f64),
}

/// Random generator of requests.
pub(crate) struct Source {
    pub(crate) random: SmallRng,
    extents: Vec<u64>,
    popularity: Zipf<f64>,
    read_share: f64,
    sizes: Vec<u64>,
}

impl Source {
    pub(crate) fn new(load: &Load, volume_bytes: u64) -> Result<Self, DrawError> {
        let mut random = SmallRng::seed_from_u64(load.seed);
        let mut extents: Vec<u64> = (0..volume_bytes / EXTENT_BYTES).collect();
        if extents.is_empty() {
            return Err(DrawError::TooSmall(volume_bytes));
        }
        extents.shuffle(&mut random);
        let popularity =
            Zipf::new(extents.len() as f64, load.theta).map_err(|_| DrawError::Skew(load.theta))?;
        Ok(Self {
            random,
            extents,
            popularity,
            read_share: load.read_share,
            sizes: load.sizes.clone(),
        })
    }

    /// Draws a request and returns whether it reads, its offset and its length in bytes.
    pub(crate) fn draw(&mut self) -> (bool, u64, u64) {
        let rank = self.popularity.sample(&mut self.random) as usize - 1;
        let size = self.sizes[self.random.random_range(0..self.sizes.len())];
        let places = Uniform::new_inclusive(0, (EXTENT_BYTES - size) / UNIT_BYTES)
            .expect("a request fits in an extent");
        let offset =
            self.extents[rank] * EXTENT_BYTES + places.sample(&mut self.random) * UNIT_BYTES;
        (self.random.random_bool(self.read_share), offset, size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn source(theta: f64, seed: u64) -> Source {
        let load = Load { read_share: 0.7, theta, sizes: vec![4096, 65536], depth: 1, seed };
        Source::new(&load, 64 << 20).unwrap()
    }

    #[test]
    fn requests_stay_within_the_volume_and_their_extent() {
        let mut source = source(1.0, 1);
        for _ in 0..10_000 {
            let (_, offset, size) = source.draw();
            assert!(offset.is_multiple_of(UNIT_BYTES) && offset + size <= 64 << 20);
            assert_eq!(offset / EXTENT_BYTES, (offset + size - 1) / EXTENT_BYTES);
        }
    }

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        let draws = |seed| {
            let mut source = source(0.9, seed);
            (0..100).map(|_| source.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn skew_makes_few_extents_popular() {
        let share_of_hottest = |theta| {
            let mut source = source(theta, 3);
            let mut hits = HashMap::new();
            for _ in 0..20_000 {
                *hits.entry(source.draw().1 / EXTENT_BYTES).or_insert(0u32) += 1;
            }
            hits.into_values().max().unwrap() as f64 / 20_000.0
        };
        // Of 256 extents: 1/256 each without skew, and 1/H(256) = 16 % for the first with Zipf 1.
        assert!(share_of_hottest(0.0) < 0.01);
        assert!((0.14..0.19).contains(&share_of_hottest(1.0)));
    }

    #[test]
    fn a_volume_without_an_extent_is_refused() {
        let load = Load { read_share: 1.0, theta: 1.0, sizes: vec![4096], depth: 1, seed: 1 };
        assert!(matches!(Source::new(&load, 4096), Err(DrawError::TooSmall(4096))));
    }
}
