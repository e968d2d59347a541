//! Ghost caches of the experts over a sample of the keys.
//!
//! A key is in the sample if its hash is below a threshold (Waldspurger et al., "Efficient MRC
//! Construction with SHARDS", FAST '15). Each expert has a cache of tags that serves the requests
//! for sampled keys. Its size is scaled by the share of sampled keys, so it misses about as often
//! as a whole cache would. As in SHARDS with a fixed size, all keys are sampled at first, and the
//! threshold is halved whenever the cache holds too many sampled entries.

use super::expert::{EXPERTS, Expert};
use crate::ghosts::{Index, Tag};
use crate::owner::{SlotIndex, SlotOwner};
use crate::quick_demotion::QuickDemotion;
use crate::{Access, Slot, mix};

/// Number of sampled entries that are kept in any cache. One with fewer entries has all of its keys
/// in the sample.
const ENTRIES_MIN: usize = 1024;
/// Entries of the cache for each sampled one, in a cache of more than
/// `ENTRIES_MIN * ENTRIES_PER_SAMPLED`.
const ENTRIES_PER_SAMPLED: usize = 128;
/// Largest number of sampled entries.
const ENTRIES_MAX: usize = 2048;

/// Maps tags to the slots of a ghost cache.
#[derive(Debug, Clone, Default)]
struct TagIndex {
    slots: Index,
    held: usize,
}

impl SlotIndex for TagIndex {
    type Key = Tag;

    #[inline]
    fn find(&self, tag: Tag) -> Option<Slot> {
        self.slots.find(tag).map(Slot)
    }

    fn put(&mut self, tag: Tag, slot: Slot) {
        self.held += 1;
        self.slots.reserve(self.held.next_power_of_two());
        self.slots.insert(tag, slot.0);
    }

    fn remove(&mut self, tag: Tag) {
        self.held -= 1;
        self.slots.remove(tag);
    }
}

/// A cache of tags that an expert runs.
type GhostCache = SlotOwner<QuickDemotion<Expert>, TagIndex, Vec<u64>>;

/// The experts' ghost caches, and the number of sampled entries that the real cache holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Number of halvings of the threshold: of 2^`halvings` keys one is sampled.
    halvings: u32,
    /// Sampled entries that the real cache holds.
    entries: usize,
    /// Capacity of the real cache, in weight.
    capacity: u64,
    /// One cache for each expert, none before the capacity is known.
    ghosts: Vec<GhostCache>,
}

impl Sample {
    /// Sets the capacity of the real cache, in weight.
    pub(crate) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        let scaled = self.scaled();
        if self.ghosts.is_empty() {
            let ghost =
                |expert: Expert| SlotOwner::new(expert.order(), TagIndex::default(), scaled, 0);
            self.ghosts = EXPERTS.into_iter().map(ghost).collect();
        }
        self.ghosts.iter_mut().for_each(|ghost| ghost.set_capacity(scaled));
    }

    /// Returns the capacity of a ghost cache.
    fn scaled(&self) -> u64 {
        (self.capacity >> self.halvings).max(1)
    }

    /// Returns whether a key is in the sample.
    #[inline]
    pub(crate) fn has(&self, tag: Tag) -> bool {
        is_below(tag, self.halvings)
    }

    /// Returns the number of sampled entries that the real cache holds.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Has all ghost caches serve a request for a sampled key. Returns a bit for each expert that
    /// misses it.
    pub(crate) fn request(&mut self, tag: Tag, weight: u32) -> u32 {
        let access = Access { weight, ..Access::new(u64::from(tag.bits())) };
        let mut missed = 0;
        for (expert, ghost) in self.ghosts.iter_mut().enumerate() {
            if let Some(slot) = ghost.find(tag) {
                ghost.access(slot);
            } else {
                missed |= 1 << expert;
                ghost.insert(tag, &access, |_, _, _| ());
            }
        }
        missed
    }

    /// Counts a sampled entry that comes into the real cache, which has `all` entries then. Halves
    /// the threshold if there are too many.
    pub(crate) fn came(&mut self, all: usize) {
        self.entries += 1;
        if self.entries > (all / ENTRIES_PER_SAMPLED).clamp(ENTRIES_MIN, ENTRIES_MAX) {
            self.halvings += 1;
            // Keys are hashed, so half of the entries stay in the sample, give or take a few.
            self.entries /= 2;
            let (halvings, scaled) = (self.halvings, self.scaled());
            for ghost in &mut self.ghosts {
                ghost.retain(|tag| is_below(tag, halvings));
                ghost.set_capacity(scaled);
            }
        }
    }

    /// Counts a sampled entry that leaves the real cache.
    pub(crate) fn left(&mut self) {
        self.entries = self.entries.saturating_sub(1);
    }

    /// Removes a key from all ghost caches.
    pub(crate) fn forget(&mut self, tag: Tag) {
        for ghost in &mut self.ghosts {
            if let Some(slot) = ghost.find(tag) {
                ghost.remove(slot);
            }
        }
    }

    /// Changes the weight of a key in all ghost caches that hold it.
    pub(crate) fn reweigh(&mut self, tag: Tag, weight: u32) {
        for ghost in &mut self.ghosts {
            if let Some(slot) = ghost.find(tag) {
                ghost.reweigh(slot, u64::from(weight), weight, |_, _, _| ());
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let ghost = |ghost: &GhostCache| {
            let of_entries = ghost.most() * (size_of::<Tag>() + size_of::<u64>());
            size_of_val(ghost)
                + ghost.memory_bytes()
                + ghost.index().slots.memory_bytes()
                + of_entries
        };
        self.ghosts.iter().map(ghost).sum()
    }
}

/// Returns whether a key's hash is below the threshold after so many halvings.
#[inline]
fn is_below(tag: Tag, halvings: u32) -> bool {
    // Mixed otherwise than for the places that tags have in tables, which would be crowded.
    mix(u64::from(tag.bits())) >> 1 >> (u64::BITS - 1 - halvings) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_keeps_its_size_and_its_share_of_the_keys() {
        let mut sample = Sample::default();
        sample.set_capacity(40_000);
        for key in 0..40_000 {
            let tag = Tag::of(mix(key));
            if sample.has(tag) {
                assert_eq!(sample.request(tag, 1), (1 << EXPERTS.len()) - 1, "it is new");
                sample.came(key as usize);
            }
            assert!(sample.entries() <= ENTRIES_MIN);
        }
        assert_eq!((sample.halvings, sample.scaled()), (6, 625));
        assert!((520..740).contains(&sample.entries()), "{}", sample.entries());
        for ghost in &sample.ghosts {
            assert!((520..=625).contains(&ghost.len()), "{}", ghost.len());
        }
        let bytes = sample.memory_bytes();
        assert!(bytes < EXPERTS.len() * ENTRIES_MIN * 100, "{bytes} bytes");
    }

    #[test]
    fn a_ghost_cache_misses_as_often_as_the_whole_cache() {
        let misses = |sample: &mut Sample| {
            let (mut asked, mut missed) = (0, 0);
            for request in 0..400_000 {
                let key = mix(request) % 100_000 * (mix(request) >> 32) % 100_000;
                let tag = Tag::of(mix(key));
                if sample.has(tag) {
                    asked += 1;
                    missed += sample.request(tag, 1) & 1;
                }
            }
            f64::from(missed) / f64::from(asked)
        };
        let mut whole = Sample::default();
        whole.set_capacity(20_000);
        let mut part = Sample { halvings: 4, ..Sample::default() };
        part.set_capacity(20_000);
        let (whole, part) = (misses(&mut whole), misses(&mut part));
        assert!((0.2..0.95).contains(&whole), "{whole}");
        assert!((whole - part).abs() < 0.02, "{whole} of all, {part} of the sample");
    }

    #[test]
    fn a_removed_key_is_forgotten() {
        let mut sample = Sample::default();
        sample.set_capacity(10);
        let all = (1 << EXPERTS.len()) - 1;
        let tag = Tag::of(mix(7));
        assert_eq!(sample.request(tag, 1), all);
        assert_eq!(sample.request(tag, 1), 0);
        sample.forget(tag);
        assert_eq!(sample.request(tag, 1), all);
    }
}
