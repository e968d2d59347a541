//! The two halves of a policy: marks that hits set from any thread, and the order that one owner
//! changes.
//!
//! The split carries the finding of "Can Increasing the Hit Ratio Hurt Cache Throughput?" in the
//! types. A policy whose [`Marks::KIND`] is [`HitKind::FifoLike`] does no list operation for a hit,
//! so more hits never hurt throughput. One that is [`HitKind::LruLike`] owes a delink and a head
//! update per hit, which past some hit ratio become the bottleneck.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use crate::Adaptation;

/// The place of an entry in its owner's arrays: a small number, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// Returns the slot as an array index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The direction in which a request moves data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// Data is read from the cache.
    #[default]
    Read,
    /// Data is written to the cache.
    Write,
}

/// The properties of a request that a policy sees besides the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Hash of the key, well mixed in all its bits and equal for equal keys. Ghost lists and
    /// sketches remember it.
    pub hash: u64,
    /// The part of the capacity that the entry takes: bytes, blocks, or 1 where entries are
    /// counted. At least 1.
    pub weight: u32,
    /// Direction in which the request moves data.
    pub direction: Direction,
    /// Block number of the key, where keys have one.
    pub position: u64,
    /// Length of the sequential run that this position ends, as followed by the owner's
    /// [`Streams`](crate::streams::Streams); 0 where no streams are followed.
    pub in_a_row: u64,
    /// True if the block was [fetched ahead](Eviction::fetches_ahead) and not requested.
    pub ahead: bool,
    /// Time of the next request for the key, in any increasing count of requests; [`Access::NEVER`]
    /// if there is none or it is unknown. Only Belady uses it.
    pub next_use: u64,
}

impl Access {
    /// The `next_use` of a key that is not requested again.
    pub const NEVER: u64 = u64::MAX;

    /// Creates a read of weight 1 with this key hash.
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

/// Returns the 32 bits of a key's hash by which ghost lists know the key.
#[inline]
pub fn tag_of(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

/// The work that a hit still owes the order after its mark is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The hit owes nothing.
    Noted,
    /// The owner of the order has to call [`Eviction::promote`].
    Promote,
    /// The owner of the order calls [`Eviction::promote`] if the order's lock is free, and skips it
    /// otherwise.
    TryPromote,
}

/// The effect of more hits on throughput (queueing paper, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitKind {
    /// A hit does no list operation, so throughput rises with every further hit.
    FifoLike,
    /// A hit owes the list a delink and a head update, so throughput falls past some hit ratio.
    LruLike,
}

/// Marks that hits set concurrently, from any thread.
///
/// Marks are a handle: clones share one set of marks, so hits on other threads need not borrow the
/// order. An [`Eviction::reserve`] that grows allocates new marks and leaves earlier handles
/// behind, so owners that share marks reserve first.
///
/// The marks of this crate ([`NoMarks`](crate::NoMarks), [`Counters`](crate::Counters), …) make
/// hits cheapest. Marks of another crate may run any code, even calls of the same cache, so a hit
/// protects them for the time of the touch.
pub trait Marks: Clone + Send + Sync {
    /// The effect of hits on throughput. The touches of a FIFO-like policy never owe the order
    /// anything.
    const KIND: HitKind;

    /// Set by the marks of this crate only: their touches call no foreign code, so a cache need not
    /// protect them during a hit.
    #[doc(hidden)]
    const PLAIN: Option<Plain<Self>> = None;

    /// Allocates for slots `0..slots`. Never shrinks.
    fn reserve(&mut self, _slots: usize) {}

    /// Returns the bytes of memory held.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Returns a handle for readers of an order [by place](Eviction::BY_PLACE), who only
    /// [touch places](Self::touch_at). It keeps nothing in memory that only the owner needs.
    #[must_use]
    fn of_readers(&self) -> Self {
        self.clone()
    }

    /// Says that the entry in `slot` lies at `place`, as [`Eviction::place`] does. With `moves`,
    /// the hits of the former place go along. Only the order's owner calls this.
    #[inline]
    fn place(&self, _slot: Slot, _place: u32, _moves: bool) {}

    /// Marks a hit on `slot`. A hit on a slot that has just left is harmless.
    fn touch(&self, slot: Slot) -> Touch;

    /// Marks a hit on the entry at a place in memory, for owners of an order
    /// [by place](Eviction::BY_PLACE). A reader that knows the place reads the mark together with
    /// the entry, and has no need to read the slot from the entry first. Marks that are kept by
    /// slot use `slot`. A hit on an entry that has just left is harmless, and so is one on a place
    /// beyond those that were reserved.
    #[inline]
    fn touch_at(&self, slot: impl FnOnce() -> Slot, _place: impl FnOnce() -> u32) -> Touch {
        self.touch(slot())
    }
}

/// Proof that touching the marks `M` runs no foreign code. Only this crate can create one, because
/// memory safety depends on it: see [`Marks::PLAIN`].
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
    /// The position before the slot that is most worth keeping.
    pub const START: Self = Self { part: 0, at: 0 };
    /// The position after the last slot.
    pub const END: Self = Self { part: u32::MAX, at: 0 };
    /// Maximum number of slots that one call of [`Eviction::rank`] looks at.
    pub const BATCH: usize = 1024;
}

/// A time in microseconds since any fixed start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(pub u64);

/// The order in which entries leave, changed by one owner at a time.
///
/// The owner keeps three promises. Every slot is below the number that was
/// [`reserve`](Self::reserve)d (methods panic otherwise). A slot is not inserted while it is in the
/// order. Before an insertion that does not fit, the owner calls [`evict`](Self::evict) until it
/// does. Slots are in one of three states: not in the order, in reach of `evict`, or frozen.
///
/// No owner's memory safety depends on an order. The cache in memory panics if `evict` returns a
/// slot without an entry in reach, and skips such slots in the results of [`rank`](Self::rank);
/// other mistakes cost hits.
pub trait Eviction {
    /// The marks, which hits may set without owning the order.
    type Marks: Marks;

    /// True if the order can keep marks by the entries' places in memory. An owner whose entries
    /// have such places then calls [`reserve_places`](Self::reserve_places) before the first
    /// insertion, says of each entry [where](Self::place) it lies, and marks hits by
    /// [`Marks::touch_at`]. Any other owner marks hits by slot.
    const BY_PLACE: bool = false;

    /// Returns the marks of this order.
    fn marks(&self) -> &Self::Marks;

    /// Allocates for slots `0..slots`. Never shrinks. The only method that allocates in proportion
    /// to its argument, besides [`set_capacity`](Self::set_capacity) and [`freeze`](Self::freeze).
    fn reserve(&mut self, slots: usize);

    /// Sets the largest number of slots that will ever be reserved, before the first insertion. A
    /// policy that sizes something else by the reserved slots, such as a time, then does so at
    /// once.
    fn expect(&mut self, _slots: usize) {}

    /// Allocates marks for entries at places `0..places` in memory, after slots were reserved.
    /// Never shrinks. For orders [by place](Self::BY_PLACE).
    fn reserve_places(&mut self, _places: usize) {}

    /// Says that the entry in `slot` lies at `place` from now on, before its insertion. With
    /// `moves`, a replaced value has moved: the hits of its former place go along. For orders
    /// [by place](Self::BY_PLACE).
    #[inline]
    fn place(&mut self, _slot: Slot, _place: u32, _moves: bool) {}

    /// Says that the owner keeps the [tag](tag_of) of each slot's key, and tells it [after an
    /// eviction](Self::departed). So the order need not keep the tags of keys that may become
    /// ghosts. Called before slots are reserved. Orders that ignore it keep tags of their own.
    fn leave_tags_to_owner(&mut self) {}

    /// Tells the [tag](tag_of) of the key in the slot that [`evict`](Self::evict) has just
    /// returned, before any other call. For orders whose owner
    /// [keeps tags](Self::leave_tags_to_owner).
    #[inline]
    fn departed(&mut self, _tag: u32) {}

    /// Sets the total weight of the cache, which sizes segments and ghost lists. Until it is
    /// called, the capacity is the number of reserved slots.
    fn set_capacity(&mut self, weight: u64);

    /// Returns the number of slots in the order, frozen ones included.
    fn len(&self) -> usize;

    /// Returns whether no slot is in the order.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves a slot after a hit that returned [`Touch::Promote`]. A slot that has left meanwhile or
    /// is frozen is ignored.
    fn promote(&mut self, slot: Slot);

    /// Puts a slot into the order, in which it must not be yet.
    fn insert(&mut self, slot: Slot, access: &Access);

    /// Sets the priority of the entry in `slot`, which was just inserted and is not frozen. A slot
    /// that is not in the order is ignored. An order without [pools](crate::PriorityPools) counts
    /// an entry of high priority as used once.
    fn prioritize(&mut self, slot: Slot, priority: Priority) {
        if priority == Priority::High {
            self.access(slot);
        }
    }

    /// Removes the slot that is least worth keeping and returns it; `None` if none is in reach.
    /// `incoming` is the candidate that needs the room, where it is known; policies with ghost
    /// lists decide better with it.
    fn evict(&mut self, incoming: Option<&Access>) -> Option<Slot>;

    /// Returns the slot that [`evict`](Self::evict), called next with the same `incoming`, would
    /// remove. An [admission](crate::admission) compares this victim with the candidate. The search
    /// may move a hand as in `evict`, but no slot leaves. `None` if no slot is in reach, and from
    /// orders that cannot name their victim.
    fn victim(&mut self, _incoming: Option<&Access>) -> Option<Slot> {
        None
    }

    /// Removes a slot from the order, frozen or not; a slot that is not in the order is ignored.
    fn remove(&mut self, slot: Slot);

    /// Replaces slot `from` by `to`, which gets its place, weight and history: a replaced value has
    /// moved. `to` must not be in the order; if `from` is not in it either, nothing happens.
    fn transfer(&mut self, from: Slot, to: Slot);

    /// Marks a hit and does at once the promotion that it owes. For owners with exclusive access to
    /// the order.
    #[inline(always)] // a call takes as long as marking the hit
    fn access(&mut self, slot: Slot) {
        if self.marks().touch(slot) != Touch::Noted {
            self.promote(slot);
        }
    }

    /// Changes the weight of the entry in `slot`, whose value was replaced in place. Its place and
    /// history stay, and sizes in weight are updated. A slot that is not in the order is ignored.
    fn reweigh(&mut self, slot: Slot, weight: u32);

    /// Does [`access`](Self::access) with the properties of the request, from which Belady learns
    /// the next use.
    #[inline]
    fn hit(&mut self, slot: Slot, _: &Access) {
        self.access(slot);
    }

    /// Appends slots to `out`, most worth keeping first, and returns the cursor of the next batch,
    /// or [`Cursor::END`] after the last. A call looks at [`Cursor::BATCH`] slots at most. Without
    /// changes in between, the batches together hold each slot in reach of `evict` once; after
    /// changes slots may be missing or appear twice. The caller may freeze the slots of a batch and
    /// continue; another walk finds the slots that were missed.
    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor;

    /// Returns the hits of a slot that the order remembers, to compare slots of several orders; 0
    /// if it counts none.
    fn remembered_hits(&self, _slot: Slot) -> u32 {
        0
    }

    /// Puts `slots`, given most worth keeping first, out of reach of [`evict`](Self::evict) until
    /// [`thaw`](Self::thaw). Slots that are not in the order or already frozen are ignored; further
    /// calls freeze more.
    fn freeze(&mut self, slots: &[Slot]);

    /// Returns every frozen slot to the order, as if it had just been used: the slot frozen first
    /// becomes the one most worth keeping.
    fn thaw(&mut self);

    /// Returns at most `most` frozen slots to the order, last frozen first; returns true if no
    /// frozen slot is left. After the last call the order is as after [`thaw`](Self::thaw), except
    /// for slots used or inserted meanwhile. An order that can only thaw all slots at once does so.
    fn thaw_some(&mut self, most: usize) -> bool {
        let _ = most; // all come back
        self.thaw();
        true
    }

    /// Returns the length of a sequential run, in positions, from which this order profits from
    /// fetching ahead; `None` for never. The owner then fetches the positions of
    /// [`Streams::ahead`](crate::streams::Streams::ahead) and inserts them with [`Access::ahead`]
    /// set.
    fn fetches_ahead(&self) -> Option<u64> {
        None
    }

    /// Returns the settings that this order chooses from and its estimates for them; `None` from
    /// orders whose settings do not change.
    fn adaptation(&self) -> Option<Adaptation> {
        None
    }

    /// Returns the bytes of memory held for the order, marks and ghosts included.
    fn memory_bytes(&self) -> usize;
}

/// An order that can be walked from the next victim to the last without changing it.
pub trait Ranked: Eviction {
    /// Returns slots in the order in which [`Eviction::evict`] would evict them.
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_;
}

/// The importance of an entry, given by the cache's user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// The entry enters the [pool](crate::PriorityPools) for high priority.
    ///
    /// Without pools, it counts as used once more than others when it is inserted. An LRU order
    /// therefore treats it like any new entry. An order with a queue for new entries, such as
    /// [`QdClock`](crate::QdClock), does not evict it from the queue without a second chance.
    High,
    /// The entry enters the pool for low priority, or without pools the policy's place for new
    /// entries.
    #[default]
    Low,
    /// The entry enters the policy's place for new entries.
    Bottom,
}

/// A policy that can be chosen by name.
///
/// Orders without room are templates. [`Default`] creates one with the registry's parameters, and
/// [`Clone`] creates one that shares nothing with the first, for a cache with one order per shard.
/// A clone of an order *with* room has its own lists but may share its marks, which are handles
/// ([`Marks`]); an owner must not use both.
pub trait Policy: Eviction + Clone + Default + Send + Sync + 'static {
    /// Name, idea, source and parameters of the policy.
    const INFO: PolicyInfo;

    /// Creates an empty order without room.
    fn new(parameters: &Parameters) -> Self;
}

/// A template of the orders of a cache's shards, with the policy's name and the inputs that it
/// needs. It is chosen by type (any [`Policy`]) or at run time ([`AnyPolicy`](crate::AnyPolicy)).
pub trait Replacement: Eviction + Clone + Send + Sync + 'static {
    /// Returns the policy's name, description, parameters and needed inputs.
    fn info(&self) -> &'static PolicyInfo;

    /// Returns true if the policy treats entries of low priority better than those of bottom
    /// priority. The owner then tells it also of [low](Priority::Low) ones, which most entries are.
    fn tells_low_from_bottom(&self) -> bool {
        false
    }
}

impl<P: Policy> Replacement for P {
    #[inline]
    fn info(&self) -> &'static PolicyInfo {
        &P::INFO
    }
}

/// A policy's name, idea, source, parameters and needed inputs.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInfo {
    /// Name by which the policy is chosen.
    pub name: &'static str,
    /// One-line description of the policy's idea.
    pub idea: &'static str,
    /// Paper or system that the policy comes from.
    pub source: &'static str,
    /// Parameters that the policy accepts.
    pub parameters: &'static [Parameter],
    /// True if the policy reads [`Access::in_a_row`](crate::Access::in_a_row) and
    /// [`Access::ahead`](crate::Access::ahead).
    pub streams: bool,
    /// True if the policy reads [`Access::next_use`](crate::Access::next_use), of hits too.
    pub next_uses: bool,
}

impl PolicyInfo {
    /// Creates the info of a policy without parameters.
    pub const fn new(name: &'static str, idea: &'static str, source: &'static str) -> Self {
        Self { name, idea, source, parameters: &[], streams: false, next_uses: false }
    }

    /// Returns the info with these parameters.
    pub const fn with(self, parameters: &'static [Parameter]) -> Self {
        Self { parameters, ..self }
    }

    /// Returns the info with [`streams`](Self::streams) set.
    pub const fn looking_at_streams(self) -> Self {
        Self { streams: true, ..self }
    }

    /// Returns the info with [`next_uses`](Self::next_uses) set.
    pub const fn looking_at_next_uses(self) -> Self {
        Self { next_uses: true, ..self }
    }
}

/// A parameter of a policy: a number, or one of a few names, each of which stands for its place
/// among them.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// Default value of the parameter.
    pub default: f64,
    /// Smallest allowed value.
    pub min: f64,
    /// Largest allowed value.
    pub max: f64,
    /// True if only whole numbers are allowed.
    pub whole: bool,
    /// Names of the values 0, 1, …; empty for a number.
    pub names: &'static [&'static str],
    /// Meaning of the parameter, in a few words.
    pub about: &'static str,
}

impl Parameter {
    /// Creates a parameter whose value is between 0 and 1.
    pub const fn share(name: &'static str, default: f64, about: &'static str) -> Self {
        Self { name, default, min: 0.0, max: 1.0, whole: false, names: &[], about }
    }

    /// Creates a parameter whose value is a whole number.
    pub const fn count(
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        about: &'static str,
    ) -> Self {
        let (min, max) = (*range.start() as f64, *range.end() as f64);
        Self { name, default: default as f64, min, max, whole: true, names: &[], about }
    }

    /// Creates a parameter whose value is one of `names`, the first by default.
    pub const fn choice(
        name: &'static str,
        names: &'static [&'static str],
        about: &'static str,
    ) -> Self {
        let max = (names.len() - 1) as f64;
        Self { name, default: 0.0, min: 0.0, max, whole: true, names, about }
    }

    /// Returns a value as it is written after the parameter's name.
    pub fn written(&self, value: f64) -> String {
        self.names.get(value as usize).map_or_else(|| value.to_string(), ToString::to_string)
    }

    /// Returns the allowed values, as in `from 0 to 1` or `small or main`.
    pub fn values(&self) -> String {
        if self.names.is_empty() {
            format!("from {} to {}", self.min, self.max)
        } else {
            self.names.join(" or ")
        }
    }

    /// Parses a value. Whole numbers may have a unit of bytes, such as `1GiB`.
    pub(crate) fn number(&self, text: &str) -> Option<f64> {
        if !self.names.is_empty() {
            return self.names.iter().position(|&name| name == text).map(|at| at as f64);
        }
        const UNITS: [(&str, u64); 4] =
            [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
        let number = |unit: &str| text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit[..1]));
        let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((number(unit)?, bytes)));
        match unit.filter(|_| self.whole) {
            Some((number, bytes)) => number.parse::<f64>().ok().map(|number| number * bytes as f64),
            None => text.parse().ok(),
        }
    }

    /// Returns whether the parameter allows `value`.
    pub fn allows(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value) && (!self.whole || value.fract() == 0.0)
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.names.is_empty() {
            write!(f, "{} ({}..={})", self.name, self.min, self.max)
        } else {
            write!(f, "{} ({})", self.name, self.values())
        }
    }
}

/// The values of a policy's parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    values: Vec<(&'static str, f64)>,
}

impl Parameters {
    /// Returns the default values of a policy's parameters.
    pub fn defaults(info: &PolicyInfo) -> Self {
        Self {
            values: info
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

    /// Returns the value of a parameter.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn get(&self, name: &str) -> f64 {
        let known = self.values.iter().find(|known| known.0 == name);
        known.unwrap_or_else(|| panic!("the policy has no parameter {name}")).1
    }

    /// Returns the value of a parameter that is a whole number.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn count(&self, name: &str) -> u64 {
        self.get(name) as u64
    }
}
