//! The hash of a key, and the uses of its bits.

// Not its `fast` variant: of 600 processes one gets a seed that puts consecutive keys into some
// shards far more often than into others.
use foldhash::quality;

use floe_policy::{Access, mix};

use crate::index::Hash32;

/// The default hasher of keys: foldhash, with a random seed for each cache.
///
/// An attacker who chooses keys does not know which of them collide. Against one who sees hashes,
/// or can time many lookups, give [another hasher](crate::Builder::hasher) such as SipHash.
pub type DefaultHasher = quality::RandomState;

/// A key's hash, in the two forms that are needed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyHash {
    /// With every bit depending on every other, even if the hasher did not see to that.
    folded: u64,
    /// As policies know it.
    ordered: u64,
}

impl KeyHash {
    /// From a hasher whose bits all depend on all bits of the key.
    #[inline(always)]
    pub(crate) fn of_mixed(raw: u64) -> Self {
        Self { folded: raw, ordered: raw }
    }

    /// From any hasher.
    #[inline(always)]
    pub(crate) fn of_any(raw: u64) -> Self {
        let wide = u128::from(raw) * 0x9e37_79b9_7f4a_7c15;
        Self { folded: wide as u64 ^ (wide >> 64) as u64, ordered: mix(raw) }
    }

    /// Returns what a table of all keys goes by.
    pub(crate) fn whole(self) -> u64 {
        self.folded
    }

    /// Returns what the index of a shard goes by.
    #[inline(always)]
    pub(crate) fn in_shard(self) -> Hash32 {
        Hash32(self.folded as u32)
    }

    /// A number below a power of two, given as a mask; independent of
    /// [`in_shard`](Self::in_shard).
    #[inline(always)]
    pub(crate) fn shard(self, mask: u32) -> usize {
        ((self.folded >> 32) as u32 & mask) as usize
    }

    /// Returns what the policy knows of an access.
    #[inline(always)]
    pub(crate) fn access(self, weight: u32) -> Access {
        Access { weight, ..Access::new(self.ordered) }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use foldhash::SharedSeed;

    use super::*;

    #[test]
    fn consecutive_keys_spread_over_shards_whatever_the_seed() {
        const KEYS: u64 = 2048;
        const SHARDS: usize = 8;
        for seed in 0..5000 {
            let shared = SharedSeed::from_u64(seed);
            let mut keys = [0; SHARDS];
            for key in 0..KEYS {
                let mut hasher = quality::FoldHasher::with_seed(1, &shared);
                hasher.write_u64(key);
                keys[KeyHash::of_mixed(hasher.finish()).shard(8 - 1)] += 1;
            }
            let most = keys.iter().max().expect("there are shards") * SHARDS as u64;
            assert!(most < KEYS * 3 / 2, "seed {seed}: {keys:?}");
        }
    }
}
