//! The two halves of a policy: what a hit may note from any thread, and the order that one owner
//! changes.
//!
//! The split carries the finding of "Can Increasing the Hit Ratio Hurt Cache Throughput?" in the
//! types. A policy whose [`Marks::KIND`] is [`HitKind::FifoLike`] pays nothing on its lists for a
//! hit, so more hits never hurt. One that is [`HitKind::LruLike`] owes a delink and a head update
//! per hit, which past some hit ratio become the bottleneck.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

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

/// The direction in which a request moves data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// Out of the cache.
    #[default]
    Read,
    /// Into it.
    Write,
}

/// The properties of a request that a policy sees beyond the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// A hash of the key, well mixed in all its bits and the same each time the key comes back;
    /// ghost lists and sketches remember it.
    pub hash: u64,
    /// The part of the capacity that the entry takes: bytes, blocks, or 1 where entries are
    /// counted. At least 1.
    pub weight: u32,
    /// The direction of the data.
    pub direction: Direction,
    /// The block number, where there is one.
    pub position: u64,
    /// The length of the run of positions that it ends, as the owner's
    /// [`Streams`](crate::streams::Streams) follow them; 0 where none are followed.
    pub in_a_row: u64,
    /// True if it was not requested but [fetched ahead](Eviction::fetches_ahead).
    pub ahead: bool,
    /// The time of the next request for the same key, as any increasing count of requests;
    /// [`Access::NEVER`] if there is none or it is unknown. Only Belady uses it.
    pub next_use: u64,
}

impl Access {
    /// The `next_use` of a key that does not come back.
    pub const NEVER: u64 = u64::MAX;

    /// A read of one unit.
    #[inline]
    pub fn new(hash: u64) -> Self {
        Self {
            hash,
            weight: 1,
            direction: Direction::Read,
            position: 0,
            in_a_row: 0,
            ahead: false,
            next_use: Self::NEVER,
        }
    }
}

impl Default for Access {
    fn default() -> Self {
        Self::new(0)
    }
}

/// The work that a hit still owes the order after it has set its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Nothing.
    Noted,
    /// A call of [`Eviction::promote`], by the owner of the order.
    Promote,
    /// A call of [`Eviction::promote`] if the order can be had without waiting, otherwise nothing.
    TryPromote,
}

/// The response of throughput to hits (queueing paper, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitKind {
    /// A hit does no list operation: throughput rises with every further hit.
    FifoLike,
    /// A hit owes the list a delink and a head update: past some hit ratio throughput falls.
    LruLike,
}

/// Marks that hits set concurrently, from any thread.
///
/// Marks are a handle: clones share one set of marks, so hits on other threads need not borrow the
/// order. An [`Eviction::reserve`] that grows leaves earlier handles behind; owners that share
/// marks reserve first.
///
/// The marks of this crate ([`NoMarks`](crate::NoMarks), [`Counters`](crate::Counters), …) cost a
/// hit least. Those of a crate of your own may do anything, this cache included, so a hit protects
/// them for the time of the touch.
pub trait Marks: Clone + Send + Sync {
    /// The response of throughput to hits: a FIFO-like policy's touches never owe the order
    /// anything.
    const KIND: HitKind;

    /// For the marks of this crate: their touches call no code but their own, so nothing need
    /// protect them meanwhile.
    #[doc(hidden)]
    const PLAIN: Option<Plain<Self>> = None;

    /// Makes room for slots `0..slots`. Never shrinks.
    fn reserve(&mut self, _slots: usize) {}

    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Notes a hit on `slot`. A hit on a slot that has just left is harmless.
    fn touch(&self, slot: Slot) -> Touch;
}

/// Only this crate can say it, as memory safety depends on it: see [`Marks::PLAIN`].
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Plain<M>(PhantomData<fn(M)>);

impl<M> Plain<M> {
    pub(crate) const YES: Option<Self> = Some(Self(PhantomData));
}

/// The position of a walk through the ranking of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub(crate) part: u32,
    pub(crate) at: u32,
}

impl Cursor {
    /// Before the slot that is most worth keeping.
    pub const START: Self = Self { part: 0, at: 0 };
    /// After the last slot.
    pub const END: Self = Self { part: u32::MAX, at: 0 };
    /// The most slots that one call of [`Eviction::rank`] looks at.
    pub const BATCH: usize = 1024;
}

/// Microseconds since any fixed start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(pub u64);

/// The order in which entries leave. One owner at a time.
///
/// The owner keeps three promises: every slot is below what was [`reserve`](Self::reserve)d
/// (methods panic otherwise), a slot is not inserted while it is in the order, and before an
/// insertion that does not fit it calls [`evict`](Self::evict) until it does. Slots are in one of
/// three states: out, in reach of `evict`, or frozen.
///
/// No owner's memory safety depends on an order. The cache in memory panics if `evict` returns a
/// slot without an entry in reach, and passes over such slots in what [`rank`](Self::rank) appends;
/// other mistakes cost hits.
pub trait Eviction {
    /// The half that hits may use without owning the order.
    type Marks: Marks;

    /// The marks that go with this order.
    fn marks(&self) -> &Self::Marks;

    /// Makes room for slots `0..slots`. Never shrinks. The only method that allocates in proportion
    /// to its argument, besides [`set_capacity`](Self::set_capacity) and [`freeze`](Self::freeze).
    fn reserve(&mut self, slots: usize);

    /// Sets the most slots that there will be, before the first insertion. A policy that sizes
    /// its memory of keys by the reserved slots then does so at once, and forgets nothing when
    /// [`reserve`](Self::reserve) is called again.
    fn expect(&mut self, _slots: usize) {}

    /// Sets the total weight of the cache, from which segments and ghost lists are sized.
    /// Without it, the number of reserved slots is assumed.
    fn set_capacity(&mut self, weight: u64);

    /// The number of slots in the order, frozen ones included.
    fn len(&self) -> usize;

    /// Returns whether no slot is in the order.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pays what a [`Touch::Promote`] owed: the delink and the head update. A slot that has left
    /// meanwhile or is frozen is ignored.
    fn promote(&mut self, slot: Slot);

    /// Puts a slot into the order; it must not be in it.
    fn insert(&mut self, slot: Slot, access: &Access);

    /// Sets the priority of the entry in `slot`, which has just come in and is not frozen. A slot
    /// that is not in the order is ignored. An order without [pools](crate::PriorityPools) counts
    /// one of high priority as used.
    fn prioritize(&mut self, slot: Slot, priority: Priority) {
        if priority == Priority::High {
            self.access(slot);
        }
    }

    /// Takes the slot out that is worth least, `None` when none is in reach. `incoming` is what the
    /// room is for, where that is known; policies with ghost lists decide better with it.
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;

    /// Returns the slot that [`evict`](Self::evict), called next with the same `incoming`, takes
    /// out, where the order can say: for an [admission](crate::admission) that compares candidate
    /// and victim. It searches as `evict` does, so a hand moves on, but no slot leaves. `None`
    /// where no slot is in reach, and from orders that cannot say.
    fn victim(&mut self, _incoming: Option<&Access>) -> Option<Slot> {
        None
    }

    /// Takes a slot out wherever it is, frozen or not; one that is not in the order is ignored.
    fn remove(&mut self, slot: Slot);

    /// Gives `to` the place, the weight and the history of `from`, which leaves: a replaced value
    /// has moved. `to` must not be in the order; if `from` is not in it either, nothing happens.
    fn transfer(&mut self, from: Slot, to: Slot);

    /// Notes a hit and pays at once for what it owes: for owners that hold the order exclusively
    /// anyway.
    #[inline]
    fn access(&mut self, slot: Slot) {
        if self.marks().touch(slot) != Touch::Noted {
            self.promote(slot);
        }
    }

    /// Gives the entry in `slot` another weight: its value was replaced in place. Its place and its
    /// history stay, what is sized by weight follows. A slot that is not in the order is ignored.
    fn reweigh(&mut self, slot: Slot, weight: u32);

    /// [`access`](Self::access) for owners that know the request, too: Belady learns the next use
    /// from it.
    #[inline]
    fn hit(&mut self, slot: Slot, _: &Access) {
        self.access(slot);
    }

    /// Appends slots to `out`, most worth keeping first, and returns where to go on;
    /// [`Cursor::END`] when all were seen. A call looks at [`Cursor::BATCH`] slots at most. Without
    /// changes in between, the batches together hold each slot in reach of `evict` once; after
    /// changes slots may be missing or appear twice. To freeze what was named and to go on from
    /// there is fine: what is still missing in the end is named by another walk.
    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor;

    /// Puts `slots`, given most worth keeping first, out of reach of [`evict`](Self::evict) until
    /// [`thaw`](Self::thaw). Slots that are not in the order or frozen already are ignored; further
    /// calls freeze more.
    fn freeze(&mut self, slots: &[Slot]);

    /// Brings every frozen slot back, as if it had just been used: what was frozen first comes back
    /// as the best.
    fn thaw(&mut self);

    /// Brings at most so many frozen slots back, those that were frozen last first, and returns
    /// whether all are back. In the end all are where [`thaw`](Self::thaw) has them, but for what
    /// was used or came in meanwhile. An order that can only bring all back at once does so.
    fn thaw_some(&mut self, most: usize) -> bool {
        let _ = most; // all come back
        self.thaw();
        true
    }

    /// From how many positions in a row on it pays for this order if the owner fetches ahead what
    /// comes next, as [`Streams::ahead`](crate::streams::Streams::ahead) says, and inserts it as
    /// such; `None` if it never does.
    fn fetches_ahead(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory held for the order, marks and ghosts included.
    fn memory_bytes(&self) -> usize;
}

/// Orders that can be walked from the first to leave to the last without changing them.
pub trait Ranked: Eviction {
    /// Slots in the order in which [`Eviction::evict`] would return them.
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_;
}

/// The importance of an entry, as its user has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// The entry comes in to the [pool](crate::PriorityPools) for such entries.
    ///
    /// Where there is none, it counts as used once more than others when it comes in. So an LRU
    /// order has it where all new entries are, and an order with a queue for new entries, such as
    /// [`QdClock`](crate::QdClock), does not evict it from there without a second look.
    High,
    /// The entry comes in to the pool for such entries, or where the policy has new ones.
    #[default]
    Low,
    /// The entry comes in where the policy has new ones.
    Bottom,
}

/// A policy that can be chosen by name.
///
/// Orders without room are templates: [`Default`] gives one with the registry's parameters, and
/// [`Clone`] gives one that shares nothing with the first, for a cache that keeps an order per
/// shard. A clone of an order *with* room has its own lists but may share its marks, which are
/// handles ([`Marks`](crate::Marks)); an owner must not use both.
pub trait Policy: Eviction + Clone + Default + Send + Sync + 'static {
    /// Its name, idea, source and parameters.
    const INFO: PolicyInfo;

    /// An empty order without room.
    fn new(parameters: &Parameters) -> Self;
}

/// An order that a cache can use, chosen by type (any [`Policy`]) or at run time
/// ([`AnyPolicy`](crate::AnyPolicy)): a template for its shards, with its name and the inputs it
/// looks at.
pub trait Replacement: Eviction + Clone + Send + Sync + 'static {
    /// The policy's name and what else there is to know about it.
    fn info(&self) -> &'static PolicyInfo;
}

impl<P: Policy> Replacement for P {
    #[inline]
    fn info(&self) -> &'static PolicyInfo {
        &P::INFO
    }
}

/// A policy's name, what it does, where it comes from and what it can be told.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInfo {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// The idea, in one line.
    pub idea: &'static str,
    /// The paper or system it comes from.
    pub source: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// True if it looks at [`Access::in_a_row`](crate::Access::in_a_row), and at what was [fetched
    /// ahead](Eviction::fetches_ahead).
    pub streams: bool,
    /// True if it looks at [`Access::next_use`](crate::Access::next_use), of hits too.
    pub next_uses: bool,
}

impl PolicyInfo {
    /// A policy without parameters.
    pub const fn new(name: &'static str, idea: &'static str, source: &'static str) -> Self {
        Self { name, idea, source, parameters: &[], streams: false, next_uses: false }
    }

    /// Returns the info with parameters.
    pub const fn with(self, parameters: &'static [Parameter]) -> Self {
        Self { parameters, ..self }
    }

    /// Returns the info for a policy that looks at streams.
    pub const fn looking_at_streams(self) -> Self {
        Self { streams: true, ..self }
    }

    /// Returns the info for a policy that looks at next uses.
    pub const fn looking_at_next_uses(self) -> Self {
        Self { next_uses: true, ..self }
    }
}

/// A numeric parameter of a policy.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its default value.
    pub default: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// True if the value is a count.
    pub whole: bool,
    /// Its meaning, in a few words.
    pub about: &'static str,
}

impl Parameter {
    /// A number between 0 and 1.
    pub const fn share(name: &'static str, default: f64, about: &'static str) -> Self {
        Self { name, default, min: 0.0, max: 1.0, whole: false, about }
    }

    /// A whole number.
    pub const fn count(
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        about: &'static str,
    ) -> Self {
        let (min, max) = (*range.start() as f64, *range.end() as f64);
        Self { name, default: default as f64, min, max, whole: true, about }
    }

    /// The number that a text says: for what is counted also with a unit of bytes, such as `1GiB`.
    pub(crate) fn number(&self, text: &str) -> Option<f64> {
        const UNITS: [(&str, u64); 4] =
            [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
        let number = |unit: &str| text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit[..1]));
        let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((number(unit)?, bytes)));
        match unit.filter(|_| self.whole) {
            Some((number, bytes)) => number.parse::<f64>().ok().map(|number| number * bytes as f64),
            None => text.parse().ok(),
        }
    }

    /// Returns whether the parameter allows a value.
    pub fn allows(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value) && (!self.whole || value.fract() == 0.0)
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}..={})", self.name, self.min, self.max)
    }
}

/// The values of a policy's parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    values: Vec<(&'static str, f64)>,
}

impl Parameters {
    /// The default values.
    pub fn defaults(about: &PolicyInfo) -> Self {
        Self {
            values: about
                .parameters
                .iter()
                .map(|parameter| (parameter.name, parameter.default))
                .collect(),
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: f64) {
        if let Some(known) = self.values.iter_mut().find(|known| known.0 == name) {
            known.1 = value;
        }
    }

    /// The value of a parameter.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn get(&self, name: &str) -> f64 {
        let known = self.values.iter().find(|known| known.0 == name);
        known.unwrap_or_else(|| panic!("the policy has no parameter {name}")).1
    }

    /// The value of a parameter that counts something.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn count(&self, name: &str) -> u64 {
        self.get(name) as u64
    }
}
