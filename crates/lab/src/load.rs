//! A load of random requests on an NBD export: what `floe demo` shows a cache with.
//!
//! A closed loop: one connection keeps a number of requests in flight, and each reply is followed
//! by the next request. The requested part of the volume follows a Zipf distribution over extents
//! scattered at random, so that some are hot and neighbours are not; within its extent a request is
//! uniform.

use std::time::{Duration, Instant};

use floe_nbd::uri::Uri;
use floe_server::nbd_client::{Client, ClientError, Cookie};
use hdrhistogram::Histogram;
use rand::distr::{Distribution, Uniform};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use std::collections::HashMap;

/// Size of the extents that are more or less popular.
const EXTENT_BYTES: u64 = 256 << 10;

/// Alignment of requests.
const UNIT_BYTES: u64 = 4096;

/// Longest latency kept apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// The settings of a load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Skew of the Zipf distribution; 0 is uniform.
    pub theta: f64,
    /// Sizes of requests in bytes, each as likely as the others; multiples of 4 KiB up to 256 KiB.
    pub sizes: Vec<u64>,
    /// Requests in flight.
    pub depth: usize,
    /// Two loads with the same seed ask for the same.
    pub seed: u64,
}

/// Why a load could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The connection failed, or the server failed a request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
    /// The volume is smaller than an extent.
    #[error("a volume of {0} bytes is too small for a load; it takes at least {EXTENT_BYTES}")]
    TooSmall(u64),
    /// The skew is not a finite number of at least 0.
    #[error("a skew of {0} is not possible")]
    Skew(f64),
}

/// The results of a load.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Time it ran.
    pub elapsed: Duration,
    /// Bytes read and written.
    pub bytes: u64,
    /// Latencies of reads in nanoseconds.
    pub read_ns: Histogram<u64>,
    /// Latencies of writes in nanoseconds.
    pub write_ns: Histogram<u64>,
}

impl Measured {
    /// Latencies of reads and writes together.
    pub fn all_ns(&self) -> Histogram<u64> {
        let mut all = self.read_ns.clone();
        all.add(&self.write_ns).expect("both histograms have the same bounds");
        all
    }
}

/// Draws requests.
struct Source {
    random: SmallRng,
    extents: Vec<u64>,
    popularity: Zipf<f64>,
    read_share: f64,
    sizes: Vec<u64>,
}

impl Source {
    fn new(load: &Load, volume_bytes: u64) -> Result<Self, LoadError> {
        let mut random = SmallRng::seed_from_u64(load.seed);
        let mut extents: Vec<u64> = (0..volume_bytes / EXTENT_BYTES).collect();
        if extents.is_empty() {
            return Err(LoadError::TooSmall(volume_bytes));
        }
        extents.shuffle(&mut random);
        let popularity =
            Zipf::new(extents.len() as f64, load.theta).map_err(|_| LoadError::Skew(load.theta))?;
        Ok(Self {
            random,
            extents,
            popularity,
            read_share: load.read_share,
            sizes: load.sizes.clone(),
        })
    }

    /// Draws a request: whether it reads, its offset and its length.
    fn draw(&mut self) -> (bool, u64, u64) {
        let rank = self.popularity.sample(&mut self.random) as usize - 1;
        let size = self.sizes[self.random.random_range(0..self.sizes.len())];
        let places = Uniform::new_inclusive(0, (EXTENT_BYTES - size) / UNIT_BYTES)
            .expect("a request fits in an extent");
        let offset =
            self.extents[rank] * EXTENT_BYTES + places.sample(&mut self.random) * UNIT_BYTES;
        (self.random.random_bool(self.read_share), offset, size)
    }
}

/// Runs a load for a time; `go_on` is told after each reply how much has passed, and answers
/// whether to go on.
///
/// # Errors
/// When the connection fails, the server fails a request, or `go_on` says no.
pub fn run(
    uri: &Uri,
    load: &Load,
    time: Duration,
    mut go_on: impl FnMut(Duration) -> bool,
) -> Result<Measured, LoadError> {
    let mut client = Client::connect(uri)?;
    let mut source = Source::new(load, client.info().size_bytes)?;
    let mut payload = vec![0; load.sizes.iter().copied().max().unwrap_or(0) as usize];
    source.random.fill(&mut payload[..]);
    let histogram =
        || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
    let mut measured =
        Measured { elapsed: Duration::ZERO, bytes: 0, read_ns: histogram(), write_ns: histogram() };
    let mut in_flight: HashMap<Cookie, (bool, u64, Instant)> = HashMap::with_capacity(load.depth);
    let begun = Instant::now();
    loop {
        while in_flight.len() < load.depth && begun.elapsed() < time {
            let (reads, offset, size) = source.draw();
            let sent = Instant::now();
            let cookie = if reads {
                client.submit_read(offset, size as u32)?
            } else {
                client.submit_write(offset, &payload[..size as usize], false)?
            };
            in_flight.insert(cookie, (reads, size, sent));
        }
        let Some(reply) = client.next_reply()? else { break };
        let (reads, size, sent) =
            in_flight.remove(&reply.cookie).expect("a reply belongs to a request in flight");
        reply.outcome.map_err(ClientError::from)?;
        client.recycle(reply.data);
        let latencies = if reads { &mut measured.read_ns } else { &mut measured.write_ns };
        latencies.saturating_record(sent.elapsed().as_nanos() as u64);
        measured.bytes += size;
        if !go_on(begun.elapsed()) {
            return Err(LoadError::Interrupted);
        }
    }
    measured.elapsed = begun.elapsed();
    client.disconnect()?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
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
        assert!(matches!(Source::new(&load, 4096), Err(LoadError::TooSmall(4096))));
    }
}
