//! Estimates hits and mean latency at other cache sizes, by a live miss-ratio curve.
//!
//! Workers record touches of sampled blocks ([`Sampler`](crate::sampler::Sampler)). This module
//! feeds them to one [`LruCurve`] in order of time. All volumes share the curve, as they share the
//! cache. At first all blocks are sampled; the limit of the sample falls as the curve or a worker
//! needs. Counts halve every ten minutes, so that the curve follows the load. Estimated latencies
//! combine the measured latencies of hits and of misses, weighted by the ratios of the curve.
//!
//! The estimate models the cache as one LRU list of blocks that reads and writes bring in. The
//! measured hit ratio beside it shows the error of that model.

use std::time::Duration;

use floe_trace::{Kind, LruCurve};
use serde::Serialize;

use crate::sampler::{Sampling, Touches};
use crate::status::{Found, SizeAdvice, SizeEstimate};

/// Number of sampled blocks: as many as keep the curve below 1 MiB.
const SAMPLE_BLOCKS: usize = 1024;

/// Age at which a touch counts half.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// Minimum number of reads for an estimate, so that the result is not an accident.
const LEAST_READS: f64 = 1000.0;

/// Share of first reads of blocks below which the load counts as having touched all of its blocks.
const SETTLED_RATIO: f64 = 0.01;

/// Cache sizes that the page lists, as multiples of the present size.
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// Steps of half a factor of two on the curve, from 1/64 to 16 times the present size.
const STEPS: std::ops::RangeInclusive<i32> = -12..=8;
const STEPS_PER_OCTAVE: f64 = 2.0;

/// The estimate for one other cache size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct OtherSize {
    factor: f64,
    size_bytes: u64,
    hit_ratio: f64,
    /// Half width of the 95 % confidence interval of `hit_ratio`, by the choice of sampled blocks.
    hit_ratio_ci95: f64,
    /// True if the touched blocks do not fill this size yet, and new blocks come: `hit_ratio` is a
    /// lower bound.
    is_filling: bool,
    /// Mean latency of reads in microseconds; `None` until both hits and misses have been measured.
    mean_us: Option<f64>,
}

/// Estimated hit ratios and latencies at other cache sizes, with the measured ones.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outlook {
    size_bytes: u64,
    /// Size in bytes of the blocks that the curve counts.
    block_bytes: u64,
    /// Measured hit ratio of all reads over the same time.
    measured_hit_ratio: f64,
    /// Measured mean latency of all reads over the same time, in microseconds.
    measured_mean_us: f64,
    sampled_share: f64,
    /// Total size in bytes of the different blocks that were touched.
    seen_bytes: u64,
    /// Share of reads that were the first of their blocks, and miss at any cache size.
    first_read_ratio: f64,
    /// Bytes of memory that the curve uses.
    memory_bytes: usize,
    sizes: Vec<OtherSize>,
    /// Pairs of a cache size in bytes and its estimated hit ratio.
    curve: Vec<(u64, f64)>,
}

impl Outlook {
    /// Returns the estimates as advice.
    pub(crate) fn advice(&self) -> Option<SizeAdvice> {
        let estimate = |size: &OtherSize| SizeEstimate {
            factor: size.factor,
            hit_ratio: size.hit_ratio,
            ci95: size.hit_ratio_ci95,
            mean_us: size.mean_us,
            is_filling: size.is_filling,
        };
        SizeAdvice::of(&self.sizes.iter().map(estimate).collect::<Vec<_>>())
    }
}

/// The live miss-ratio curve, with the measured latencies of hits and misses.
#[derive(Debug)]
pub(crate) struct WhatIf {
    curve: LruCurve,
    block_bytes: u64,
    threads: usize,
    /// Number and total latency in microseconds of reads that missed, and of reads that hit. Both
    /// decay like the curve.
    found: [(f64, f64); 2],
    last: [Found; 2],
    faded: Duration,
}

impl WhatIf {
    /// Creates an empty curve for a server with this many threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            curve: LruCurve::with_sample(Kind::Block, SAMPLE_BLOCKS),
            block_bytes: Sampling::of_threads(threads).block_bytes,
            threads,
            found: Default::default(),
            last: Default::default(),
            faded: Duration::ZERO,
        }
    }

    /// Returns the sampling that workers must use from now on: block size and limit of hashes.
    pub(crate) fn sampling(&self) -> Sampling {
        let all = Sampling::of_threads(self.threads);
        let limit = self.curve.limit().unwrap_or(all.limit);
        Sampling { limit, block_bytes: self.block_bytes, ..all }
    }

    /// Sets the size of the blocks that the curve counts. Another size than before resets the
    /// curve.
    pub(crate) fn count_blocks_of(&mut self, block_bytes: u64) {
        if block_bytes != self.block_bytes {
            let (last, faded) = (self.last, self.faded);
            *self = Self { block_bytes, last, faded, ..Self::new(self.threads) };
        }
    }

    /// Adds the touches that workers have recorded since the last call. `found` counts all reads
    /// since the start that missed, and that hit.
    pub(crate) fn take(&mut self, workers: Vec<Touches>, found: [Found; 2], uptime: Duration) {
        let before = std::mem::replace(&mut self.last, found);
        if workers.iter().any(|worker| worker.sampling.block_bytes != self.block_bytes) {
            return;
        }
        let overfull = workers.iter().filter(|worker| worker.left_out > 0).map(|worker| {
            let touched = worker.sampled.len() as u64 + worker.left_out;
            // Half of the room, by the limit that this worker had: it learns of a lower one late.
            worker.sampling.limit as f64 * (worker.sampling.room as f64 / 2.0) / touched as f64
        });
        if let Some(limit) = overfull.min_by(f64::total_cmp) {
            // What is missing would make distances too short: nothing of this interval counts.
            self.curve.limit_to(limit as u64);
            return;
        }
        for (sum, (now, then)) in self.found.iter_mut().zip(found.iter().zip(before)) {
            sum.0 += now.requests.saturating_sub(then.requests) as f64;
            sum.1 += now.time.saturating_sub(then.time).as_secs_f64() * 1e6;
        }
        self.curve.add_touches(workers.iter().map(|worker| worker.blocks_read).sum());
        let mut touches: Vec<_> = workers.into_iter().flat_map(|worker| worker.sampled).collect();
        touches.sort_by_key(|touch| touch.at);
        touches.iter().for_each(|touch| self.curve.add_hashed(touch.hash, touch.reads));
        self.fade(uptime.saturating_sub(self.faded));
        self.faded = uptime;
    }

    fn fade(&mut self, time: Duration) {
        let to = 0.5f64.powf(time.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.curve.fade(to);
        self.found
            .iter_mut()
            .for_each(|(requests, us)| (*requests, *us) = (*requests * to, *us * to));
    }

    /// Returns the estimates for a cache whose present size is `size_bytes`, or `None` before
    /// enough reads.
    pub(crate) fn outlook(&self, size_bytes: u64) -> Option<Outlook> {
        let [(misses, miss_us), (hits, hit_us)] = self.found;
        let reads = misses + hits;
        if reads < LEAST_READS || size_bytes < self.block_bytes {
            return None;
        }
        let at = |factor: f64| {
            let bytes = (size_bytes as f64 * factor) as u64;
            (bytes, self.curve.at(bytes / self.block_bytes))
        };
        let seen_bytes = self.curve.keys_seen().saturating_mul(self.block_bytes);
        let first_read_ratio = self.curve.at(u64::MAX).miss_ratio;
        let grows = first_read_ratio > SETTLED_RATIO;
        let mean = |of: f64, us: f64| (of > 0.0).then(|| us / of);
        let sizes = FACTORS.map(|factor| {
            let (size_bytes, point) = at(factor);
            let hit_ratio = 1.0 - point.miss_ratio;
            let latency = |(hit, miss)| hit_ratio * hit + point.miss_ratio * miss;
            let mean_us = mean(hits, hit_us).zip(mean(misses, miss_us)).map(latency);
            let hit_ratio_ci95 = point.miss_ratio_ci95;
            let is_filling = grows && seen_bytes < size_bytes;
            OtherSize { factor, size_bytes, hit_ratio, hit_ratio_ci95, is_filling, mean_us }
        });
        let curve = STEPS.map(|step| at((f64::from(step) / STEPS_PER_OCTAVE).exp2()));
        Some(Outlook {
            size_bytes,
            block_bytes: self.block_bytes,
            measured_hit_ratio: hits / reads,
            measured_mean_us: (miss_us + hit_us) / reads,
            sampled_share: self.curve.sampled_share(),
            seen_bytes,
            first_read_ratio,
            memory_bytes: self.curve.bytes(),
            sizes: sizes.into(),
            curve: curve.map(|(bytes, point)| (bytes, 1.0 - point.miss_ratio)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use floe_block::VolumeId;
    use floe_trace::sample_hash;

    use super::*;
    use crate::sampler::Sampler;

    fn found(requests: u64, us: u64) -> Found {
        Found { requests, time: Duration::from_micros(us * requests) }
    }

    /// Has two workers read `blocks` blocks in turn, `rounds` times, at `each_second` reads per
    /// second.
    fn looped(what_if: &mut WhatIf, blocks: u64, rounds: u64, each_second: u64) {
        let mut workers = [Sampler::default(), Sampler::default()];
        workers.iter_mut().for_each(|worker| drop(worker.take(what_if.sampling())));
        let (mut second, mut reads) = (what_if.faded, what_if.last[1].requests);
        for at in 0..blocks * rounds {
            workers[at as usize % 2].note(VolumeId(0), at % blocks * 4096, 4096, true);
            reads += 1;
            if (at + 1) % each_second == 0 {
                second += Duration::from_secs(1);
                let touches = workers.iter_mut().map(|worker| worker.take(what_if.sampling()));
                let found = [found(reads / 2, 1000), found(reads, 10)];
                let touches = touches.collect();
                what_if.take(touches, found, second);
            }
        }
    }

    #[test]
    fn a_loop_needs_all_of_its_size() {
        let mut what_if = WhatIf::new(2);
        assert_eq!(what_if.outlook(1 << 20), None, "nothing was read");
        looped(&mut what_if, 800, 20, 1000);
        let outlook = what_if.outlook(500 * 4096).unwrap();
        let hits: Vec<f64> = outlook.sizes.iter().map(|size| size.hit_ratio).collect();
        assert!(hits[0] < 0.01 && hits[1] < 0.01 && hits[2] > 0.93 && hits[3] > 0.93, "{hits:?}");
        assert_eq!(outlook.sampled_share, 1.0);
        // Two thirds of reads hit, as told; latencies are weighed by the curve's ratios.
        assert!((outlook.measured_hit_ratio - 2.0 / 3.0).abs() < 1e-3, "{outlook:?}");
        let mean = outlook.sizes[2].mean_us.unwrap();
        let expected = hits[2] * 10.0 + (1.0 - hits[2]) * 1000.0;
        assert!((mean - expected).abs() < 1e-6, "{mean} {expected}");
        assert_eq!(outlook.advice().unwrap().larger, Some(2.0));
    }

    #[test]
    fn a_load_too_large_for_the_sample_lowers_the_limit_and_is_estimated() {
        let mut what_if = WhatIf::new(2);
        looped(&mut what_if, 100_000, 8, 50_000);
        let outlook = what_if.outlook(60_000 * 4096).unwrap();
        // All of the sample is used, though workers learn of a lower limit an interval late.
        assert!((0.009..0.012).contains(&outlook.sampled_share), "{outlook:?}");
        assert!(
            outlook.sizes[1].hit_ratio < 0.1 && outlook.sizes[2].hit_ratio > 0.75,
            "{outlook:?}"
        );
        assert!(outlook.memory_bytes < 1 << 20, "{outlook:?}");
    }

    /// Counts the memory of the curve, and twice the room of each thread, because touches are being
    /// sent while others are recorded.
    #[test]
    fn curve_and_touches_take_less_than_a_mebibyte_whatever_the_load() {
        for threads in [1, 2, 8, 32, 128] {
            let mut what_if = WhatIf::new(threads);
            let mut worker = Sampler::default();
            let mut most = 0;
            // Blocks all over 256 TiB, each third one again after a distance of its own.
            for second in 1..=400u64 {
                worker.take(what_if.sampling());
                for at in 0..2000 {
                    let block = sample_hash(0, second / (1 + at % 3) * 2000 + at) >> 28;
                    worker.note(VolumeId(0), block * 4096, 4096, true);
                }
                let touches = worker.take(what_if.sampling());
                let room = touches.sampled.capacity() * size_of::<crate::sampler::Touch>();
                what_if.take(vec![touches], Default::default(), Duration::from_secs(second));
                most = most.max(what_if.curve.bytes() + 2 * threads * room);
            }
            assert!(most < 1 << 20, "{threads} threads: {most}");
        }
    }

    #[test]
    fn larger_blocks_are_fetched_whole() {
        let mut what_if = WhatIf::new(2);
        what_if.count_blocks_of(16384);
        looped(&mut what_if, 800, 1, 800);
        looped(&mut what_if, 800, 1, 800);
        let outlook = what_if.outlook(800 * 4096).unwrap();
        // The first round misses each fourth block; in the second all is there.
        assert!((outlook.sizes[1].hit_ratio - 0.875).abs() < 0.001, "{outlook:?}");
        what_if.count_blocks_of(4096);
        assert_eq!(what_if.outlook(800 * 4096), None, "all begins anew");
    }

    #[test]
    fn a_size_that_the_load_has_not_filled_yet_is_told_apart() {
        let filling = |what_if: &WhatIf, blocks: u64| {
            let outlook = what_if.outlook(blocks * 4096).unwrap();
            outlook.sizes.iter().map(|it| it.is_filling).collect::<Vec<_>>()
        };
        let mut what_if = WhatIf::new(2);
        looped(&mut what_if, 900, 2, 900);
        let outlook = what_if.outlook(600 * 4096).unwrap();
        assert_eq!(outlook.seen_bytes, 900 * 4096);
        assert!((outlook.first_read_ratio - 0.5).abs() < 0.001, "{outlook:?}");
        assert_eq!(filling(&what_if, 600), [false, false, true, true]);
        assert_eq!(filling(&what_if, 1500), [false, true, true, true]);
        // The load touches nothing new: larger sizes do gain nothing.
        looped(&mut what_if, 900, 200, 900);
        assert_eq!(filling(&what_if, 600), [false; 4]);
        // More blocks than are sampled.
        let mut what_if = WhatIf::new(2);
        looped(&mut what_if, 100_000, 8, 50_000);
        let seen = what_if.outlook(1 << 30).unwrap().seen_bytes / 4096;
        assert!((85_000..115_000).contains(&seen), "{seen}");
        assert_eq!(filling(&what_if, 60_000), [false, false, true, true]);
    }

    #[test]
    fn an_old_load_is_forgotten() {
        let mut what_if = WhatIf::new(2);
        looped(&mut what_if, 400, 20, 400);
        assert!(what_if.outlook(500 * 4096).unwrap().sizes[1].hit_ratio > 0.9);
        what_if.fade(10 * HALF_LIFE);
        looped(&mut what_if, 900, 20, 900);
        assert!(what_if.outlook(500 * 4096).unwrap().sizes[1].hit_ratio < 0.1);
    }
}
