//! [`Popularity`]: estimates of how often absent objects were requested lately, in at most a byte
//! for each object on flash.
//!
//! A count-min sketch of two-bit counters. A key has three counters in one word of 32. A request
//! raises the lowest of them (conservative update: Estan, Varghese, SIGCOMM '02), and the estimate
//! is their minimum. Counts age: one word is halved in turn with each few additions. A key that was
//! requested once is forgotten when its word is halved, after 1.25 additions an object at most, and
//! after half of that on average. The sketch of `floe_policy` has four-bit counters at 8 bytes an
//! object, which is as much as the index takes.
//!
//! The sketch is divided into shards with a lock each. A shard doubles by copying its table, which
//! keeps all estimates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use floe_policy::mix;

/// Number of shards, a power of two.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.ilog2();
/// Counters in a word, and of a key.
const COUNTERS: u32 = 32;
const COUNTER_BITS: u32 = COUNTERS.ilog2();
const ROWS: usize = 3;
/// Words for each object, as a divisor of objects: 8 bytes for at least 8 objects.
const OBJECTS_PER_WORD: usize = 8;
/// Additions after which the next word is halved.
const ADDITIONS_PER_HALVING: u32 = 10;
/// Mask that clears in each counter the bit that a halving shifts in from its neighbour.
const HALVED: u64 = 0x5555_5555_5555_5555;
/// Largest count.
pub(crate) const MOST_REQUESTS: u8 = 3;

#[derive(Debug)]
struct Shard {
    /// A power of two of words.
    words: Vec<u64>,
    additions: u32,
    aged: usize,
}

/// A sketch of the requests for objects that are not on flash.
#[derive(Debug)]
pub(crate) struct Popularity {
    shards: Box<[Mutex<Shard>]>,
    /// Words that each shard is to have.
    words: AtomicUsize,
}

impl Popularity {
    /// Creates a sketch for a flash of about this many objects.
    pub(crate) fn new(objects: u64) -> Self {
        let words = words_for(objects);
        let shard = || Mutex::new(Shard { words: vec![0; words], additions: 0, aged: 0 });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), words: AtomicUsize::new(words) }
    }

    /// Makes the sketch grow to one for this many objects. It never shrinks.
    pub(crate) fn grow(&self, objects: u64) {
        // Relaxed: a size alone. Each shard grows under its lock.
        self.words.fetch_max(words_for(objects), Ordering::Relaxed);
    }

    /// Counts a request for an object that is not on flash.
    pub(crate) fn add(&self, hash: u64) {
        let wanted = self.words.load(Ordering::Relaxed);
        let hash = mix(hash);
        self.with(hash, |shard| {
            while shard.words.len() < wanted {
                shard.words.extend_from_within(..);
            }
            shard.add(hash);
        });
    }

    /// Returns the number of requests of late, at most [`MOST_REQUESTS`].
    pub(crate) fn estimate(&self, hash: u64) -> u8 {
        let hash = mix(hash);
        self.with(hash, |shard| shard.estimate(hash))
    }

    fn with<R>(&self, hash: u64, run: impl FnOnce(&mut Shard) -> R) -> R {
        let shard = &self.shards[(hash >> (64 - SHARD_BITS)) as usize];
        run(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the bytes of memory. Shards that have not grown yet count as if they had.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let words = self.words.load(Ordering::Relaxed) * size_of::<u64>();
        (SHARDS * (words + size_of::<Mutex<Shard>>())) as u64
    }
}

/// Returns the words of a shard, a power of two that takes at most a byte an object.
fn words_for(objects: u64) -> usize {
    let words = (objects as usize / OBJECTS_PER_WORD / SHARDS).max(1);
    1 << words.ilog2()
}

impl Shard {
    /// Returns the word of a key, and the shifts of its counters in it.
    fn counters(&self, hash: u64) -> (usize, [u32; ROWS]) {
        let shift = |row: usize| (hash >> (row as u32 * COUNTER_BITS)) as u32 % COUNTERS * 2;
        // A mask of further bits chooses the word: a doubled table has the same counts twice.
        let word = (hash >> (ROWS as u32 * COUNTER_BITS)) as usize & (self.words.len() - 1);
        (word, std::array::from_fn(shift))
    }

    fn estimate(&self, hash: u64) -> u8 {
        let (word, shifts) = self.counters(hash);
        shifts.map(|shift| (self.words[word] >> shift & 3) as u8).into_iter().min().unwrap_or(0)
    }

    fn add(&mut self, hash: u64) {
        let count = self.estimate(hash);
        if count == MOST_REQUESTS {
            return;
        }
        let (word, shifts) = self.counters(hash);
        for shift in shifts {
            // Two of the counters may be the same one, which is raised once.
            if (self.words[word] >> shift & 3) as u8 == count {
                self.words[word] += 1 << shift;
            }
        }
        self.additions += 1;
        if self.additions == ADDITIONS_PER_HALVING {
            self.additions = 0;
            let word = &mut self.words[self.aged];
            *word = *word >> 1 & HALVED;
            self.aged = (self.aged + 1) % self.words.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_up_to_three() {
        let popularity = Popularity::new(10_000);
        for times in 1..=5u8 {
            popularity.add(7);
            assert_eq!(popularity.estimate(7), times.min(MOST_REQUESTS));
        }
        assert_eq!(popularity.estimate(8), 0);
    }

    #[test]
    fn it_takes_at_most_a_byte_an_object_and_few_strangers_seem_known() {
        let objects = 1 << 18;
        let popularity = Popularity::new(objects);
        let locks = (SHARDS * size_of::<Mutex<Shard>>()) as u64;
        assert!(popularity.memory_bytes() <= objects + locks);
        (0..objects * 4).for_each(|key| popularity.add(key));
        let known = |keys: std::ops::Range<u64>| {
            let count = keys.clone().filter(|key| popularity.estimate(*key) > 0).count();
            count as f64 / (keys.end - keys.start) as f64
        };
        let latest = known(objects * 15 / 4..objects * 4);
        assert!((0.85..0.95).contains(&latest), "{latest} of the latest quarter is remembered");
        let strangers = known(objects * 8..objects * 9);
        assert!(strangers < 0.12, "{strangers}");
        assert!(known(0..objects) < 0.12, "the oldest are forgotten");
    }

    #[test]
    fn growth_keeps_all_estimates() {
        let popularity = Popularity::new(1 << 12);
        let keys = || 0..400u64;
        keys().for_each(|key| popularity.add(key));
        let before: Vec<u8> = keys().map(|key| popularity.estimate(key)).collect();
        popularity.grow(1 << 16);
        // A shard grows with its next request.
        (0..600).for_each(|key| popularity.add(1 << 40 | key));
        let kept = keys().zip(&before).filter(|&(key, before)| popularity.estimate(key) >= *before);
        assert!(kept.count() >= 390, "estimates were lost");
        assert!(popularity.memory_bytes() > 1 << 15);
    }
}
