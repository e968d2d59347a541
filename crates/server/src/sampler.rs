//! A worker's part of the live miss-ratio curve: records accesses to a sample of the blocks.
//!
//! Blocks have the cache's smallest size, because a miss fetches a whole block. A block is sampled
//! if its hash is below a limit, so that all threads sample the same blocks (SHARDS, Waldspurger et
//! al., FAST '15). A request costs one hash for each of its blocks; only accesses to sampled blocks
//! are stored. Between two samples of the counters, a worker stores as many as its part of
//! [`ROOM`]. A worker that sees more reports that, and the limit is lowered.

use std::time::Instant;

use floe_block::VolumeId;
use floe_trace::sample_hash;

/// Block size until a worker is told another, in bytes.
const FIRST_BLOCK_BYTES: u64 = 4096;

/// Maximum number of accesses that all threads store between two samples of the counters: 192 KiB.
pub(crate) const ROOM: usize = 8192;

/// Maximum number of accesses that one thread stores, for any number of threads.
const MOST_TOUCHES: usize = 4096;

/// Minimum limit of the accesses that one thread stores, for any number of threads.
const LEAST_TOUCHES: usize = 64;

/// An access to a sampled block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Touch {
    pub(crate) at: Instant,
    pub(crate) hash: u64,
    /// True for a read. The miss-ratio curve counts only the hits of reads.
    pub(crate) reads: bool,
}

/// The choice of blocks to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sampling {
    /// Exclusive upper limit of the hashes of sampled blocks.
    pub(crate) limit: u64,
    /// Block size in bytes; not 0.
    pub(crate) block_bytes: u64,
    /// Maximum number of accesses that a worker stores.
    pub(crate) room: usize,
}

impl Sampling {
    /// Creates the initial sampling, of all blocks, for a server with `threads` threads.
    pub(crate) fn of_threads(threads: usize) -> Self {
        let room = (ROOM / threads.max(1)).clamp(LEAST_TOUCHES, MOST_TOUCHES);
        Self { limit: u64::MAX, block_bytes: FIRST_BLOCK_BYTES, room }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::of_threads(1)
    }
}

/// The accesses that one worker recorded since the last sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct Touches {
    /// The choice of blocks that was in force.
    pub(crate) sampling: Sampling,
    /// Accesses to sampled blocks, in order of time.
    pub(crate) sampled: Vec<Touch>,
    /// Number of blocks read, sampled or not.
    pub(crate) blocks_read: u64,
    /// Number of accesses to sampled blocks that were not stored for want of room.
    pub(crate) left_out: u64,
}

/// Records one worker's accesses to sampled blocks.
#[derive(Debug)]
pub(crate) struct Sampler {
    touches: Touches,
}

impl Default for Sampler {
    /// Creates a sampler of all blocks.
    fn default() -> Self {
        let mut sampler = Self { touches: Touches::default() };
        sampler.take(Sampling::default());
        sampler
    }
}

impl Sampler {
    /// Records a read or a write of a byte range.
    // Never inlined: so profiles tell its price, which `scripts/results-live` prints.
    #[inline(never)]
    pub(crate) fn note(&mut self, volume: VolumeId, offset: u64, bytes: u64, reads: bool) {
        if bytes == 0 {
            return;
        }
        let Sampling { limit, block_bytes, .. } = self.touches.sampling;
        let (first, last) = (offset / block_bytes, (offset + bytes - 1) / block_bytes);
        if reads {
            self.touches.blocks_read += last - first + 1;
        }
        for block in first..=last {
            let hash = sample_hash(volume.0.into(), block);
            if hash < limit {
                self.store(hash, reads);
            }
        }
    }

    #[cold]
    fn store(&mut self, hash: u64, reads: bool) {
        if self.touches.sampled.len() < self.touches.sampling.room {
            self.touches.sampled.push(Touch { at: Instant::now(), hash, reads });
        } else {
            self.touches.left_out += 1;
        }
    }

    /// Returns the recorded accesses, and continues with another choice of blocks.
    pub(crate) fn take(&mut self, sampling: Sampling) -> Touches {
        let next =
            Touches { sampling, sampled: Vec::with_capacity(sampling.room), ..Touches::default() };
        std::mem::replace(&mut self.touches, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_of_a_request_is_touched_once() {
        let mut sampler = Sampler::default();
        sampler.note(VolumeId(1), 4096 + 512, 8192, true);
        sampler.note(VolumeId(1), 8192, 4096, false);
        sampler.note(VolumeId(1), 8192, 0, true);
        let none = Sampling { limit: 0, ..Sampling::default() };
        let Touches { sampled, blocks_read, left_out, .. } = sampler.take(none);
        let blocks: Vec<_> = sampled.iter().map(|touch| (touch.hash, touch.reads)).collect();
        let [a, b, c] = [1, 2, 3].map(|block| sample_hash(1, block));
        assert_eq!(blocks, [(a, true), (b, true), (c, true), (b, false)]);
        assert_eq!((blocks_read, left_out), (3, 0));
        sampler.note(VolumeId(1), 0, 4096, true);
        let after = sampler.take(Sampling { block_bytes: 8192, ..Sampling::default() });
        assert_eq!((after.sampled.len(), after.blocks_read), (0, 1), "nothing is below 0");
        sampler.note(VolumeId(1), 4096, 8192, true);
        let larger = sampler.take(Sampling::default());
        assert_eq!((larger.sampled.len(), larger.sampling.block_bytes), (2, 8192));
    }

    #[test]
    fn a_worker_stores_no_more_than_it_has_room_for() {
        let mut sampler = Sampler::default();
        sampler.note(VolumeId(0), 0, (MOST_TOUCHES as u64 + 7) * FIRST_BLOCK_BYTES, true);
        let touches = sampler.take(Sampling::default());
        assert_eq!((touches.sampled.len(), touches.left_out), (MOST_TOUCHES, 7));
        sampler.take(Sampling::of_threads(64));
        sampler.note(VolumeId(0), 0, 130 * FIRST_BLOCK_BYTES, true);
        let touches = sampler.take(Sampling::default());
        assert_eq!((touches.sampled.len(), touches.left_out), (128, 2));
    }

    /// Prints the cost of recording a request of 4 KiB: `cargo test --release … -- --ignored
    /// --nocapture`.
    #[test]
    #[ignore = "prints times"]
    fn print_the_cost_of_a_request() {
        for (share, limit) in [("1/1", u64::MAX), ("1/64", u64::MAX / 64), ("none", 0)] {
            let mut sampler = Sampler::default();
            let sampling = Sampling { limit, ..Sampling::default() };
            sampler.take(sampling);
            let begun = Instant::now();
            let requests = 10_000_000u64;
            for at in 0..requests {
                let block = std::hint::black_box(at);
                sampler.note(VolumeId(0), block * 4096, 4096, true);
                if at % 4096 == 0 {
                    sampler.take(sampling);
                }
            }
            let each = begun.elapsed().as_nanos() as f64 / requests as f64;
            println!("sampling {share}: {each:.1} ns a request of 4 KiB");
        }
    }
}
