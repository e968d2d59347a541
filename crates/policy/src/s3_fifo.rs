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

use crate::listed::Listed;
use crate::small_queue::SmallQueue;
use crate::{Access, Counters, Lists, Marks, Parameter, Parameters, Policy, PolicyInfo, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Two bits of hits (section 4.1).
const HITS_MAX: u8 = 3;
/// Hits in the small queue that earn a place in the main one (algorithm 1).
const HITS_TO_STAY: u8 = 2;
/// The share of the cache that the small queue has.
pub(crate) const SMALL_SHARE: Parameter =
    Parameter::share("small", 0.1, "share of the small queue");

/// S3-FIFO (`s3-fifo`): a small FIFO filters what enters the main one; keys with a ghost enter that
/// at once. FIFO-like.
#[derive(Debug, Clone)]
pub struct S3Fifo {
    queues: Lists<2>,
    hits: Counters,
    small: SmallQueue,
}

impl Policy for S3Fifo {
    const INFO: PolicyInfo = PolicyInfo::new(
        "s3-fifo",
        "a small FIFO filters what enters the main one, ghosts come straight back",
        "Yang et al., SOSP '23",
    )
    .with(&[SMALL_SHARE]);

    fn new(parameters: &Parameters) -> Self {
        let small_share = parameters.get(SMALL_SHARE.name);
        Self {
            queues: Lists::named(["small queue", "main queue"]),
            hits: Counters::new(HITS_MAX),
            // As many ghosts as the main queue has entries.
            small: SmallQueue::new(small_share, 1.0 - small_share),
        }
    }
}

impl S3Fifo {
    /// Moves on what was hit until the oldest entry of a queue is one that leaves.
    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        loop {
            let (small, main) = (self.queues.tail(SMALL), self.queues.tail(MAIN));
            match (small, main) {
                (Some(oldest), _)
                    if main.is_none() || self.queues.size(SMALL) >= self.small.target() =>
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

impl Listed for S3Fifo {
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

    #[inline(always)]
    fn insert(&mut self, slot: Slot, access: &Access) {
        let known = self.small.enter(slot, access);
        let queue = if known { MAIN } else { SMALL };
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(queue, slot);
    }

    #[inline(always)]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let (queue, oldest) = self.advance()?;
        debug_assert!(
            queue == SMALL
                || self.queues.size(SMALL) < self.small.target()
                || self.queues.size(SMALL) == 0,
            "the main queue gives room only while the small one is below its target"
        );
        if queue == SMALL {
            self.small.remember(oldest);
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
        self.small.resize(slots, self.queues.capacity());
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.hits.set(to, self.hits.get(from));
        self.small.moved(from, to);
    }

    fn other_memory_bytes(&self) -> usize {
        self.hits.memory_bytes() + self.small.memory_bytes()
    }
}
