//! S3-FIFO: a small queue filters out what is asked for once before it reaches the main one.
//!
//! New entries go to a small FIFO. What was hit there more than once moves on to the main FIFO, the rest leaves and
//! is remembered as a ghost; who comes back while remembered enters the main queue at once. The main queue is a CLOCK
//! with two bits (Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP '23).
//!
//! The queues share the cache by weight; ghosts count one each, in proportion to the slots reserved.
//!
//! Not to be used where entries are hit twice in a burst and never again: the burst passes the filter.

use crate::ghost_table::GhostTable;
use crate::index::Tag;
use crate::lists::ordered_by_lists;
use crate::{About, Access, Counters, Eviction, Lists, Parameter, Parameters, Policy, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Two bits of hits (section 4.1).
const HITS_MAX: u8 = 3;
/// How much of the cache the small queue has.
pub(crate) const SMALL_SHARE: Parameter = Parameter::share("small", 0.1, "share of the small queue");
/// S3-FIFO: two hits in the small queue (algorithm 1).
pub type S3Fifo = SmallMainGhost<2>;

impl Policy for S3Fifo {
    const ABOUT: About = About::new(
        "s3-fifo",
        "a small FIFO filters what enters the main one, ghosts come straight back",
        "Yang et al., SOSP '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        Self::with_small_share(parameters.get(SMALL_SHARE.name))
    }
}

/// Three FIFO queues: small, main, ghost. So many hits in the small one earn a place in the main one.
#[derive(Debug, Clone)]
pub struct SmallMainGhost<const HITS_TO_STAY: u8> {
    queues: Lists<2>,
    hits: Counters,
    tags: Vec<Tag>,
    ghosts: GhostTable,
    small_share: f64,
    small_target: u64,
    ghost_limit: u64,
}

impl<const HITS_TO_STAY: u8> SmallMainGhost<HITS_TO_STAY> {
    /// An empty order whose small queue has this share of the cache.
    pub(crate) fn with_small_share(small_share: f64) -> Self {
        Self {
            queues: Lists::default(),
            hits: Counters::new(HITS_MAX),
            tags: Vec::new(),
            ghosts: GhostTable::default(),
            small_share,
            small_target: 0,
            ghost_limit: 0,
        }
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve(((1.0 - self.small_share) * slots as f64) as usize);
        let capacity = self.queues.capacity() as f64;
        self.small_target = (capacity * self.small_share) as u64;
        self.ghost_limit = ((capacity * (1.0 - self.small_share)) as u64).min(slots as u64);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn memory(&self) -> usize {
        self.tags.capacity() * size_of::<Tag>() + self.ghosts.memory_bytes()
    }
}

impl<const HITS_TO_STAY: u8> Eviction for SmallMainGhost<HITS_TO_STAY> {
    type Marks = Counters;

    #[inline]
    fn marks(&self) -> &Counters {
        &self.hits
    }

    fn promote(&mut self, _: Slot) {}

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let queue = if self.ghosts.take(tag, self.ghost_limit) { MAIN } else { SMALL };
        self.tags[slot.index()] = tag;
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(queue, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        loop {
            let (small, main) = (self.queues.tail(SMALL), self.queues.tail(MAIN));
            match (small, main) {
                (Some(oldest), _) if main.is_none() || self.queues.size(SMALL) >= self.small_target => {
                    if self.hits.get(oldest) < HITS_TO_STAY {
                        self.ghosts.push(self.tags[oldest.index()]);
                        return self.queues.pop_tail(SMALL);
                    }
                    self.hits.set(oldest, 0);
                    self.queues.move_to_head(MAIN, oldest);
                }
                (_, oldest) => {
                    let oldest = oldest?;
                    let hits = self.hits.get(oldest);
                    if hits == 0 {
                        return self.queues.pop_tail(MAIN);
                    }
                    self.hits.set(oldest, hits - 1);
                    self.queues.move_to_head(MAIN, oldest);
                }
            }
        }
    }

    ordered_by_lists! {
        order: queues, hottest: |_this| [MAIN, SMALL],
        marks: hits, resized: resized, moved: moved, memory: memory
    }
}
