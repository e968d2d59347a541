//! Quick demotion: a small FIFO in front of a CLOCK, the order of QDLP and of QD-CLOCK.
//!
//! New entries go to the small queue. An entry that was hit there moves on to the main queue, a
//! CLOCK with counters; any other leaves and is remembered as a ghost, which enters the main queue
//! when it comes back (Yang et al., "FIFO can be Better than LRU: the Power of Lazy Promotion and
//! Quick Demotion", HotOS '23). [S3-FIFO](crate::S3Fifo) asks for two hits.

use crate::listed::Listed;
use crate::small_queue::SmallQueue;
use crate::{Access, Counters, Lists, Marks, Slot};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Three FIFO queues: small, main, ghost. One hit in the small one earns a place in the main one,
/// and an order may fill the main one first.
#[derive(Debug, Clone)]
pub(crate) struct QuickDemotion<const MAIN_FIRST: bool> {
    queues: Lists<2>,
    hits: Counters,
    small: SmallQueue,
    /// Nothing had to leave since the order was empty. Room alone does not tell: where orders share
    /// a capacity, one may stay below its part.
    filling: bool,
}

impl<const MAIN_FIRST: bool> QuickDemotion<MAIN_FIRST> {
    /// An empty order that remembers this share of the cache as ghosts and counts so many hits.
    pub(crate) fn with(small_share: f64, ghost_share: f64, hits_max: u8) -> Self {
        Self {
            queues: Lists::named(["small queue", "main queue"]),
            hits: Counters::new(hits_max),
            small: SmallQueue::new(small_share, ghost_share),
            filling: MAIN_FIRST,
        }
    }

    /// Returns whether the order is filling and its main queue has room that the small one has no
    /// claim to.
    #[inline]
    fn fills_main(&mut self, weight: u32) -> bool {
        self.filling |= MAIN_FIRST && self.queues.is_empty();
        self.filling
            && self.queues.size(MAIN) + u64::from(weight) + self.small.target()
                <= self.queues.capacity()
    }

    /// Moves on what was hit until the oldest entry of a queue is one that leaves.
    #[inline(always)]
    fn advance(&mut self) -> Option<(usize, Slot)> {
        loop {
            let (small, main) = (self.queues.tail(SMALL), self.queues.tail(MAIN));
            match (small, main) {
                (Some(oldest), _)
                    if main.is_none() || self.queues.size(SMALL) >= self.small.target() =>
                {
                    if self.hits.get(oldest) == 0 {
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

impl<const MAIN_FIRST: bool> Listed for QuickDemotion<MAIN_FIRST> {
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
        let queue = if self.fills_main(access.weight) || known { MAIN } else { SMALL };
        self.hits.set(slot, 0);
        self.queues.set_weight(slot, access.weight);
        self.queues.push_head(queue, slot);
    }

    #[inline(always)]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        self.filling = false;
        let (queue, oldest) = self.advance()?;
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

/// Gives a [`QuickDemotion`] a type of its own, which signatures name.
macro_rules! named_quick_demotion {
    ($(#[$doc:meta])* $Name:ident, $main_first:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $Name($crate::quick_demotion::QuickDemotion<$main_first>);

        impl $Name {
            /// An empty order that remembers this share of the cache as ghosts and counts so many
            /// hits.
            fn with(small_share: f64, ghost_share: f64, hits_max: u8) -> Self {
                type Order = $crate::quick_demotion::QuickDemotion<$main_first>;
                Self(Order::with(small_share, ghost_share, hits_max))
            }
        }

        impl $crate::listed::Listed for $Name {
            type Marks = $crate::Counters;
            type Lists = $crate::Lists<2>;

            const WEIGHTED: bool = true;

            #[inline(always)]
            fn lists(&self) -> &$crate::Lists<2> {
                self.0.lists()
            }

            #[inline(always)]
            fn lists_mut(&mut self) -> &mut $crate::Lists<2> {
                self.0.lists_mut()
            }

            #[inline(always)]
            fn marks(&self) -> &$crate::Counters {
                $crate::listed::Listed::marks(&self.0)
            }

            #[inline(always)]
            fn insert(&mut self, slot: $crate::Slot, access: &$crate::Access) {
                $crate::listed::Listed::insert(&mut self.0, slot, access);
            }

            #[inline(always)]
            fn evict(&mut self, incoming: Option<&$crate::Access>) -> Option<$crate::Slot> {
                $crate::listed::Listed::evict(&mut self.0, incoming)
            }

            fn victim(&mut self, incoming: Option<&$crate::Access>) -> Option<$crate::Slot> {
                $crate::listed::Listed::victim(&mut self.0, incoming)
            }

            fn hottest_first(&self) -> impl AsRef<[usize]> {
                self.0.hottest_first()
            }

            fn hits(&self) -> Option<&$crate::Counters> {
                self.0.hits()
            }

            fn resized(&mut self) {
                self.0.resized();
            }

            fn moved(&mut self, from: $crate::Slot, to: $crate::Slot) {
                self.0.moved(from, to);
            }

            fn other_memory_bytes(&self) -> usize {
                self.0.other_memory_bytes()
            }
        }
    };
}

pub(crate) use named_quick_demotion;
