//! S3-FIFO: a small queue filters out what is asked for once before it reaches the main one.
//!
//! New entries go to a small FIFO. Entries that were hit there more than once move on to the main
//! FIFO, the rest leaves and is remembered as a ghost; a ghost that comes back enters the main
//! queue at once. The main queue is a CLOCK with two bits (Yang et al., "FIFO Queues are All You
//! Need for Cache Eviction", SOSP '23).
//!
//! The queues share the cache by weight; ghosts count one each, in proportion to the slots
//! reserved.
//!
//! Not to be used where entries are hit twice in a burst and never again: the burst passes the
//! filter.

use crate::ghost_table::GhostTable;
use crate::index::Tag;
use crate::listed::Listed;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Two bits of hits (section 4.1).
const HITS_MAX: u8 = 3;
/// The share of the cache that the small queue has.
pub(crate) const SMALL_SHARE: Parameter =
    Parameter::share("small", 0.1, "share of the small queue");
/// S3-FIFO: two hits in the small queue (algorithm 1).
pub type S3Fifo = SmallMainGhost<2, false>;

impl Policy for S3Fifo {
    const INFO: PolicyInfo = PolicyInfo::new(
        "s3-fifo",
        "a small FIFO filters what enters the main one, ghosts come straight back",
        "Yang et al., SOSP '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        Self::with_small_share(parameters.get(SMALL_SHARE.name))
    }
}

/// Three FIFO queues: small, main, ghost. So many hits in the small one earn a place in the main
/// one, and an order may fill the main one first.
#[derive(Debug, Clone)]
pub struct SmallMainGhost<const HITS_TO_STAY: u8, const MAIN_FIRST: bool> {
    queues: Lists<2>,
    hits: Counters,
    tags: Vec<Tag>,
    ghosts: GhostTable,
    small_share: f64,
    ghost_share: f64,
    small_target: u64,
    ghost_limit: u64,
    /// Nothing had to leave since the order was empty. Room alone does not tell: where orders share
    /// a capacity, one may stay below its part.
    filling: bool,
}

impl<const HITS_TO_STAY: u8, const MAIN_FIRST: bool> SmallMainGhost<HITS_TO_STAY, MAIN_FIRST> {
    /// An empty order whose small queue has this share of the cache; as many ghosts as the main
    /// queue has entries.
    pub(crate) fn with_small_share(small_share: f64) -> Self {
        Self::with(small_share, 1.0 - small_share, HITS_MAX)
    }

    /// An empty order that remembers this share of the cache as ghosts and counts so many hits.
    pub(crate) fn with(small_share: f64, ghost_share: f64, hits_max: u8) -> Self {
        Self {
            queues: Lists::named(["small queue", "main queue"]),
            hits: Counters::new(hits_max),
            tags: Vec::new(),
            ghosts: GhostTable::default(),
            small_share,
            ghost_share,
            small_target: 0,
            ghost_limit: 0,
            filling: MAIN_FIRST,
        }
    }

    /// Returns whether the order is filling and its main queue has room that the small one has no
    /// claim to.
    #[inline]
    fn fills_main(&mut self, weight: u32) -> bool {
        self.filling |= MAIN_FIRST && self.queues.is_empty();
        self.filling
            && self.queues.size(MAIN) + u64::from(weight) + self.small_target
                <= self.queues.capacity()
    }

    /// Moves on what was hit until the oldest entry of a queue is one that leaves.
    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        loop {
            let (small, main) = (self.queues.tail(SMALL), self.queues.tail(MAIN));
            match (small, main) {
                (Some(oldest), _)
                    if main.is_none() || self.queues.size(SMALL) >= self.small_target =>
                {
                    if self.hits.get(oldest) < HITS_TO_STAY {
                        return Some((SMALL, oldest));
                    }
                    self.hits.set(oldest, 0);
                    self.queues.move_to_head(MAIN, oldest);
                }
                (_, oldest) => {
                    let oldest = oldest?;
                    let hits = self.hits.get(oldest);
                    if hits == 0 {
                        return Some((MAIN, oldest));
                    }
                    self.hits.set(oldest, hits - 1);
                    self.queues.move_to_head(MAIN, oldest);
                }
            }
        }
    }
}

impl<const HITS_TO_STAY: u8, const MAIN_FIRST: bool> Listed
    for SmallMainGhost<HITS_TO_STAY, MAIN_FIRST>
{
    type Marks = Counters;
    type Lists = Lists<2>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<2> {
        &self.queues
    }

    fn lists_mut(&mut self) -> &mut Lists<2> {
        &mut self.queues
    }

    #[inline]
    fn marks(&self) -> &Counters {
        &self.hits
    }

    fn promote(&mut self, _: Slot) {}

    #[inline(always)]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let tag = Tag::of(access.hash);
        let known = self.ghosts.take(tag, self.ghost_limit);
        let queue = if self.fills_main(access.weight) || known { MAIN } else { SMALL };
        self.tags[slot.index()] = tag;
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(queue, slot);
    }

    #[inline(always)]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
        if queue == SMALL {
            self.ghosts.push(self.tags[oldest.index()]);
        }
        self.queues.pop_tail(queue)
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.advance().map(|(_, oldest)| oldest)
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [MAIN, SMALL]
    }

    fn hits(&self) -> Option<&Counters> {
        Some(&self.hits)
    }

    fn resized(&mut self) {
        let slots = self.queues.slots();
        self.hits.reserve(slots);
        self.tags.resize(slots, Tag::default());
        self.ghosts.reserve((self.ghost_share * slots as f64) as usize);
        let capacity = self.queues.capacity() as f64;
        self.small_target = (capacity * self.small_share) as u64;
        self.ghost_limit = ((capacity * self.ghost_share) as u64).min(slots as u64);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        self.tags[to.index()] = self.tags[from.index()];
    }

    fn other_memory_bytes(&self) -> usize {
        self.hits.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
            + self.ghosts.memory_bytes()
    }
}
