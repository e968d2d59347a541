//! Pure orderings: who leaves a cache when room is needed.
//!
//! A policy orders *slots*, dense small numbers that its owner gives to whatever it stores. It never sees keys,
//! values, locks or clocks, and so the same code runs in the simulator, in the memory cache and in the block cache:
//! what you simulate is what you run.
//!
//! A policy comes in two halves, which carry the finding of "Can Increasing the Hit Ratio Hurt Cache Throughput?"
//! in their types. [`Marks`] is what a hit may note from any thread without exclusive access. [`Eviction`] is the
//! order itself, which one owner changes. A policy whose marks always answer [`Touch::Noted`] is *FIFO-like*: a hit
//! costs no list operation, and more hits never hurt. One that answers [`Touch::Promote`] is *LRU-like*: every hit
//! owes a delink and a head update, which past some hit ratio become the bottleneck.
//!
//! State lives in flat arrays indexed by slot, linked by `u32`s; no operation allocates except
//! [`Eviction::reserve`].

mod fifo;
mod list;
mod lru;

pub use fifo::Fifo;
pub use list::List;
pub use lru::Lru;

/// The place of an entry in its owner's arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot as an array index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an insertion tells the policy about the entry beyond its slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// A hash of the key, the same each time the key comes back; ghost lists and sketches remember it.
    pub hash: u64,
}

/// What a hit still owes the order after it has left its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Nothing: the mark was all.
    Noted,
    /// A call of [`Eviction::promote`], by whoever owns the order.
    Promote,
}

/// What a hit may note concurrently, from any thread.
pub trait Marks: Sync {
    /// Notes a hit on `slot`.
    fn touch(&self, slot: Slot) -> Touch;
}

/// The order in which entries leave. One owner at a time.
///
/// The owner keeps the contract that a slot is inserted once before it is removed or evicted; every method panics
/// when given a slot beyond [`Eviction::reserve`]d ones.
pub trait Eviction {
    /// The half that hits may use without owning the order.
    type Marks: Marks;

    /// The marks that go with this order.
    fn marks(&self) -> &Self::Marks;

    /// Makes room for slots `0..slots`. Never shrinks.
    fn reserve(&mut self, slots: usize);

    /// The number of slots in the order.
    fn len(&self) -> usize;

    /// Whether no slot is in the order.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pays what a [`Touch::Promote`] owed: the delink and the head update. A slot that has left meanwhile is
    /// ignored.
    fn promote(&mut self, slot: Slot);

    /// Puts a slot into the order; it must not be in it.
    fn insert(&mut self, slot: Slot, access: &Access);

    /// Takes the slot out that is worth least, `None` when the order is empty. `incoming` is what the room is for,
    /// where that is known.
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;

    /// Takes a slot out wherever it is; one that is not in the order is ignored.
    fn remove(&mut self, slot: Slot);

    /// Notes a hit and pays at once for what it owes: for owners that hold the order exclusively anyway.
    #[inline]
    fn access(&mut self, slot: Slot) {
        if self.marks().touch(slot) == Touch::Promote {
            self.promote(slot);
        }
    }

    /// Bytes of memory held for the order.
    fn memory_bytes(&self) -> usize;
}

/// Orders that can be walked from the first to leave to the last without changing them.
pub trait Ranked: Eviction {
    /// Slots in the order in which [`Eviction::evict`] would return them.
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_;
}

/// Marks of policies for which a hit changes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMarks;

impl Marks for NoMarks {
    #[inline]
    fn touch(&self, _: Slot) -> Touch {
        Touch::Noted
    }
}

/// Marks of policies that move an entry on each hit.
#[derive(Debug, Clone, Copy, Default)]
pub struct AlwaysPromote;

impl Marks for AlwaysPromote {
    #[inline]
    fn touch(&self, _: Slot) -> Touch {
        Touch::Promote
    }
}
