//! ARC: two LRU lists, one for entries seen once and one for entries seen again, whose sizes follow
//! the ghosts.
//!
//! T1 holds what was seen once lately, T2 what was seen at least twice; B1 and B2 remember what has
//! left them. A miss that is remembered in B1 says that T1 was too small, one in B2 that T2 was,
//! and the target p for the size of T1 moves accordingly (Megiddo and Modha, "ARC: A Self-Tuning,
//! Low Overhead Replacement Cache", FAST '03, figure 4).
//!
//! Sizes are weights here; with weights of 1 this is the paper's algorithm to the letter.
//!
//! Not to be used with many cores: every hit moves its entry to the head of T2.

use crate::ghost_queues::GhostQueues;
use crate::index::Tag;
use crate::listed::Listed;
use crate::{About, Access, AlwaysPromote, Lists, Parameters, Policy, Slot};

/// T1 and B1: seen once.
const ONCE: usize = 0;
/// T2 and B2: seen again.
const AGAIN: usize = 1;

/// The adaptive replacement cache.
#[derive(Debug, Clone)]
pub struct Arc {
    cached: Lists<2>,
    ghosts: GhostQueues,
    tags: Vec<Tag>,
    /// p, the size that T1 should have.
    once_target: f64,
    /// The ghost list that held the request for which room is being made.
    coming: Option<(Tag, Option<usize>)>,
}

impl Arc {
    /// Cases II and III: looks a missed key up in the ghosts, lets it go there, and adapts p.
    #[inline]
    fn recall(&mut self, access: &Access) -> Option<usize> {
        let tag = Tag::of(access.hash);
        if let Some((known, seen)) = self.coming
            && known == tag
        {
            return seen;
        }
        let (b1, b2) = (self.ghosts.size(ONCE) as f64, self.ghosts.size(AGAIN) as f64);
        let seen = self.ghosts.take(tag);
        if let Some(list) = seen {
            let step = f64::from(access.weight);
            self.once_target = if list == ONCE {
                (self.once_target + step * (b2 / b1).max(1.0)).min(self.cached.capacity() as f64)
            } else {
                (self.once_target - step * (b1 / b2).max(1.0)).max(0.0)
            };
        }
        seen
    }

    /// REPLACE: the tail of T1 or T2 leaves for its ghost list.
    #[inline]
    fn replace(&mut self, seen: Option<usize>) -> Option<Slot> {
        let once = self.cached.size(ONCE) as f64;
        let once_is_due =
            once > self.once_target || (seen == Some(AGAIN) && once == self.once_target);
        let list = if (once_is_due && once > 0.0) || self.cached.tail(AGAIN).is_none() {
            ONCE
        } else {
            AGAIN
        };
        let slot = self.cached.pop_tail(list)?;
        self.ghosts.push(list, self.tags[slot.index()], self.cached.weight(slot));
        Some(slot)
    }
}

impl Policy for Arc {
    const ABOUT: About = About::new(
        "arc",
        "recency and frequency lists whose ghosts decide their sizes",
        "Megiddo & Modha, FAST '03",
    );

    fn new(_: &Parameters) -> Self {
        Self {
            cached: Lists::named(["T1", "T2"]),
            ghosts: GhostQueues::default(),
            tags: Vec::new(),
            once_target: 0.0,
            coming: None,
        }
    }
}

impl Listed for Arc {
    type Marks = AlwaysPromote;
    type Lists = Lists<2>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.cached
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.cached
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    /// Case I.
    #[inline]
    fn promote(&mut self, slot: Slot) {
        self.cached.move_to_head(AGAIN, slot);
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let seen = self.recall(access);
        self.coming = None;
        self.tags[slot.index()] = Tag::of(access.hash);
        self.cached.set_weight(slot, access.weight);
        self.cached.push_head(if seen.is_some() { AGAIN } else { ONCE }, slot);
    }

    #[inline]
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot> {
        let seen = incoming.and_then(|access| {
            let seen = self.recall(access);
            self.coming = Some((Tag::of(access.hash), seen));
            seen
        });
        if seen.is_none() {
            // Case IV: a new key. L1 = T1 + B1 keeps to c, all four lists together to 2c.
            let capacity = self.cached.capacity();
            let (t1, t2) = (self.cached.size(ONCE), self.cached.size(AGAIN));
            if t1 + self.ghosts.size(ONCE) >= capacity {
                if t1 >= capacity
                    && let Some(slot) = self.cached.pop_tail(ONCE)
                {
                    return Some(slot);
                }
                self.ghosts.shrink(ONCE, capacity.saturating_sub(t1 + 1));
            } else {
                let spoken_for = t1 + t2 + self.ghosts.size(ONCE);
                self.ghosts.shrink(AGAIN, (2 * capacity).saturating_sub(spoken_for + 1));
            }
        }
        self.replace(seen)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [AGAIN, ONCE]
    }
    fn resized(&mut self) {
        let slots = self.cached.slots();
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve(slots + 1);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.ghosts.memory_bytes()
    }
}
