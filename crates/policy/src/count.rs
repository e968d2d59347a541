//! Counts the operations of requests on shared ordered structures, by list and kind: the visits of
//! a queueing network.
//!
//! Lists, heaps, sample sets and ghost lists report their operations here. With the feature
//! `count-operations` they are counted per thread; without it, every call is empty and [`Names`]
//! takes no room. No policy that serves requests is built with the feature: the lab has the same
//! source once more, as `floe-policy-counted`.
//!
//! An entry that leaves after a query for the tail of its list found it counts as taken from the
//! tail; any other counts as delinked. An entry that moves from the tail to the head of its own
//! list counts as passed by: a step of a CLOCK's hand. Marks take no lock, but a hit that writes
//! its mark is counted, because the write invalidates the cache line on other processors.

use crate::Slot;

/// An operation on an ordered structure, as named in "Can Increasing the Hit Ratio Hurt Cache
/// Throughput?", section 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    not(feature = "count-operations"),
    expect(unreachable_pub, reason = "for those who count")
)]
pub enum Operation {
    /// An entry leaves from any position but the tail.
    Delink,
    /// An entry is inserted: at the head, or next to a known entry.
    Head,
    /// The entry at the tail leaves.
    Tail,
    /// The entry at the tail moves to the head of its list: a step of a CLOCK's hand.
    Step,
    /// A key is looked up in a ghost list.
    GhostLookup,
    /// A lookup finds its key in a ghost list.
    GhostFound,
    /// An entry is drawn at random.
    Draw,
    /// A hit writes its mark, because the mark was unset or can still grow.
    WriteMark,
}

#[cfg(feature = "count-operations")]
mod counters {
    use std::cell::RefCell;

    use super::{Operation, Slot};

    #[derive(Default)]
    struct OperationCounters {
        counts: Vec<(&'static str, Operation, u64)>,
        /// The tail that was found last in each list.
        reached: Vec<(&'static str, Slot)>,
    }

    thread_local! {
        static COUNTERS: RefCell<OperationCounters> = RefCell::default();
    }

    pub(super) fn note(list: &'static str, operation: Operation) {
        COUNTERS.with_borrow_mut(|counters| {
            let known =
                counters.counts.iter_mut().find(|count| count.0 == list && count.1 == operation);
            match known {
                Some(count) => count.2 += 1,
                None => counters.counts.push((list, operation, 1)),
            }
        });
    }

    pub(super) fn reached(list: &'static str, slot: Slot) {
        COUNTERS.with_borrow_mut(|counters| {
            match counters.reached.iter_mut().find(|known| known.0 == list) {
                Some(known) => known.1 = slot,
                None => counters.reached.push((list, slot)),
            }
        });
    }

    pub(super) fn was_reached(list: &'static str, slot: Slot) -> bool {
        COUNTERS.with_borrow(|counters| counters.reached.contains(&(list, slot)))
    }

    /// Calls `each` with every list, operation and count of this thread since the last call, and
    /// resets the counts.
    pub fn drain(mut each: impl FnMut(&'static str, Operation, u64)) {
        COUNTERS.with_borrow_mut(|counters| {
            counters.reached.clear();
            for (list, operation, times) in counters.counts.drain(..) {
                each(list, operation, times);
            }
        });
    }
}

#[cfg(not(feature = "count-operations"))]
mod counters {
    use super::{Operation, Slot};

    #[inline(always)]
    pub(super) fn note(_: &'static str, _: Operation) {}

    #[inline(always)]
    pub(super) fn reached(_: &'static str, _: Slot) {}

    #[inline(always)]
    pub(super) fn was_reached(_: &'static str, _: Slot) -> bool {
        false
    }
}

#[cfg(feature = "count-operations")]
pub use counters::drain;

/// Counts a lookup in a ghost list.
#[inline(always)]
pub(crate) fn looked_up_ghost(found: bool) {
    counters::note(GHOSTS, Operation::GhostLookup);
    if found {
        counters::note(GHOSTS, Operation::GhostFound);
    }
}

/// Counts a hit that wrote its mark.
#[inline(always)]
pub(crate) fn wrote_mark() {
    counters::note("", Operation::WriteMark);
}

/// The name under which ghost lookups are counted.
const GHOSTS: &str = "ghosts";

/// The names of a structure's lists. Lists with equal names count as one list in two parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<const N: usize> {
    #[cfg(feature = "count-operations")]
    names: [&'static str; N],
}

impl<const N: usize> Names<N> {
    #[cfg_attr(
        not(feature = "count-operations"),
        expect(unused_variables, reason = "names are for counts")
    )]
    pub(crate) const fn new(names: [&'static str; N]) -> Self {
        Self {
            #[cfg(feature = "count-operations")]
            names,
        }
    }

    #[inline(always)]
    #[cfg_attr(
        not(feature = "count-operations"),
        expect(unused_variables, reason = "there are no names")
    )]
    fn name(&self, list: usize) -> &'static str {
        #[cfg(feature = "count-operations")]
        return self.names[list];
        #[cfg(not(feature = "count-operations"))]
        ""
    }

    /// Counts an operation on a list.
    #[inline(always)]
    pub(crate) fn note(&self, list: usize, operation: Operation) {
        counters::note(self.name(list), operation);
    }

    /// Records that the tail of a list was looked up.
    #[inline(always)]
    pub(crate) fn reached(&self, list: usize, tail: Option<Slot>) {
        if let Some(slot) = tail {
            counters::reached(self.name(list), slot);
        }
    }

    /// Counts the removal of an entry from a list.
    #[inline(always)]
    pub(crate) fn left(&self, list: usize, slot: Slot) {
        let from_tail = counters::was_reached(self.name(list), slot);
        self.note(list, if from_tail { Operation::Tail } else { Operation::Delink });
    }

    /// Counts the move of an entry from a list to the head of a list, which may be its own.
    #[inline(always)]
    pub(crate) fn moved(&self, from: usize, to: usize, slot: Slot) {
        if self.name(from) == self.name(to) && counters::was_reached(self.name(from), slot) {
            self.note(from, Operation::Step);
        } else {
            self.left(from, slot);
            self.note(to, Operation::Head);
        }
    }
}
