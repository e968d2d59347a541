//! Admission decides which blocks enter a cache; [`Eviction`](crate::Eviction) decides which leave.
//!
//! Where writing to a cache slows its reads, or the device below is hardly slower, most blocks
//! should not be cached. The cache asks its [`Admission`] about every block that is read or written
//! and not held. Hits reach an admission as counts per interval ([`Window`]), not one by one, so a
//! hit writes no shared memory. Like an eviction order, an admission sees only hashes and slots,
//! and has no clock and no locks. It orders deferred work on ticks ([`Orders`]).
//!
//! Several admissions can be combined: `small-bypass + obp` admits a block if both do
//! ([`Admissions`]).
//!
//! ```
//! use floe_policy::Access;
//! use floe_policy::admission::{Admission, Admissions, Room, Verdict};
//!
//! let mut admission: Admissions = "second-access".parse()?;
//! admission.reserve(&Room { entries: 100, weight: 100, above: 0 });
//! assert_eq!(admission.admit(&Access::new(7), None), Verdict::Bypass);
//! assert_eq!(admission.admit(&Access::new(7), None), Verdict::Admit);
//! # Ok::<(), floe_policy::admission::registry::ChoiceError>(())
//! ```

use std::ops::AddAssign;

use crate::{Access, Parameters, PolicyInfo, Slot, Tick};

pub use self::registry::{Admissions, Calibrated};

/// Calls a macro with the list of all admissions, after the tokens in `given`.
macro_rules! with_admissions {
    ($then:ident $($given:tt)*) => {
        $then! {
            ($($given)*)
            simple::Always,
            simple::Never,
            simple::UntilFull,
            simple::Reads,
            simple::Probability,
            simple::SecondAccess,
            simple::Duel,
            obp::Obp,
            small_bypass::SmallBypass,
            #[cfg(feature = "policies")]
            fussy::Fussy,
            #[cfg(feature = "policies")]
            simple::Sequential,
        }
    };
}

// The parts of admissions.
pub mod registry;

// The admissions.
#[cfg(feature = "policies")]
mod fussy;
mod obp;
mod simple;
mod small_bypass;

/// The decision about a block offered to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The block is admitted; if room is needed, the eviction order picks the victim.
    Admit,
    /// The block is admitted, and the entry in this slot is evicted if room is needed.
    Replace(Slot),
    /// The block is not cached.
    Bypass,
}

impl Verdict {
    /// Returns whether the offer is admitted.
    pub fn admits(self) -> bool {
        self != Self::Bypass
    }
}

/// The entry that would be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Slot of the entry.
    pub slot: Slot,
    /// Hash of the entry's key, as in [`Access::hash`].
    pub hash: u64,
}

/// The size of the cache and of the caches above it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Approximate number of entries that fit.
    pub entries: usize,
    /// Total weight that fits, in the unit of [`Access::weight`].
    pub weight: u64,
    /// Capacity of the caches above that are looked up first, in the unit of [`Access::weight`]; 0
    /// if there are none.
    pub above: u64,
}

/// A block worth fetching into the cache, though no request waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetch {
    /// Hash of the block's key, as in [`Access::hash`].
    pub hash: u64,
    /// Position of the block, as in [`Access::position`].
    pub position: u64,
}

/// Deferred work that an admission orders. The owner keeps one value and passes it to every
/// [`Admission::tick`], which fills it anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// Blocks to read from the device below and to insert without asking again. The owner skips
    /// those already cached.
    pub fetch: Vec<Fetch>,
    /// True if nothing may be evicted, neither ahead of need nor for an offer. Offers that need an
    /// eviction are bypassed, because making room would cost, too.
    pub hold: bool,
}

/// Optional inputs that an admission requires from its owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// True if it needs the stream lengths in [`Access::in_a_row`].
    pub streams: bool,
    /// True if the owner has to carry out its [fetches](Orders::fetch): otherwise the cache stays
    /// empty.
    pub fetches: bool,
    /// True if it needs the [`Victim`] whenever an entry would have to leave. Without one it admits
    /// as if there were room.
    pub victims: bool,
    /// True if it needs the capacity of the memory above ([`Room::above`]).
    pub above: bool,
    /// True if the owner must ask it before a clean cached block is overwritten
    /// ([`Admission::overwrite`]).
    pub overwrites: bool,
}

/// Decides which blocks are cached, for one owner at a time.
///
/// The owner calls [`reserve`](Self::reserve) and [`tick`](Self::tick) before anything else. Then
/// it calls [`admit`](Self::admit) for each offer, and at intervals [`observe`](Self::observe)
/// followed by [`tick`](Self::tick).
pub trait Admission {
    /// Returns the optional inputs that the admission requires. Owners that cannot provide them
    /// refuse the admission.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Assigns the admission to shard `part`, from 0, of `parts` shards that divide the keys of a
    /// cache evenly. Parameters in operations or in weight are totals of all shards. Called before
    /// `reserve`.
    fn split(&mut self, _part: usize, _parts: usize) {}

    /// Sets the size of the cache, and allocates for it. Never shrinks. The only method that
    /// allocates.
    fn reserve(&mut self, _: &Room) {}

    /// Updates the admission with the counts and times since the last window.
    fn observe(&mut self, _: &Window) {}

    /// Reports a hit. Owners may report hits late, from per-thread buffers, and may report a fair
    /// sample of them.
    fn used(&mut self, _: &Access) {}

    /// Returns this admission's own verdict and records the offer; a call of
    /// [`settle`](Self::settle) follows.
    fn judge(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict;

    /// Reports the joint decision of all admissions about the offer just judged.
    fn settle(&mut self, _: &Access, _: Verdict) {}

    /// Decides about a block that is not cached and was read from the device below, or is being
    /// written. `victim` is the entry that would have to leave; `None` while there is room, and
    /// where the victim is known only at the eviction.
    fn admit(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict {
        let verdict = self.judge(offer, victim);
        self.settle(offer, verdict);
        verdict
    }

    /// Decides about an overwrite of a clean cached block. Returns true if the cache takes the
    /// data. Otherwise the cached copy is dropped and the data goes only to the device below.
    fn overwrite(&mut self, _: &Access) -> bool {
        true
    }

    /// Reports an eviction, but not an invalidation. Called at once, because the latest decision
    /// may have caused it.
    fn evicted(&mut self, _: &Access) {}

    /// Advances time to `now` and fills `orders` with the work to be done, after clearing it.
    /// Called after each window.
    fn tick(&mut self, now: Tick, orders: &mut Orders) {
        orders.fetch.clear();
        orders.hold = false;
        self.order(now, orders);
    }

    /// Adds this admission's work to the orders, for [`tick`](Self::tick).
    fn order(&mut self, _: Tick, _: &mut Orders) {}

    /// Returns the bytes of memory held.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// An admission that can be chosen by name. A value without room is a template that is cloned for
/// each shard.
pub trait RegisteredAdmission: Admission + Clone + Send + Sync + 'static {
    /// Name, idea, source and parameters of the admission.
    const INFO: PolicyInfo;

    /// Creates an admission without room from its parameters.
    fn with(parameters: &Parameters) -> Self;
}

/// A template of the admissions of a cache's shards, with a name. It is chosen by type (any
/// [`RegisteredAdmission`]) or at run time ([`Admissions`]).
pub trait AdmissionFactory: Admission + Clone + Send + Sync + 'static {
    /// Returns the admission's name, with parameters if it was chosen by a text.
    fn name(&self) -> String;
}

impl<A: RegisteredAdmission> AdmissionFactory for A {
    fn name(&self) -> String {
        A::INFO.name.to_owned()
    }
}

impl AdmissionFactory for Admissions {
    fn name(&self) -> String {
        self.to_string()
    }
}

/// Exports and registers each admission's type, and implements `Default` with its default
/// parameters.
macro_rules! register {
    (() $($(#[$gate:meta])* $module:ident::$Kind:ident,)*) => {
        $(
            $(#[$gate])*
            pub use $module::$Kind;

            $(#[$gate])*
            impl Default for $Kind {
                /// Creates an admission without room, with the default parameters of the registry.
                fn default() -> Self {
                    let info = <Self as RegisteredAdmission>::INFO;
                    <Self as RegisteredAdmission>::with(&Parameters::defaults(&info))
                }
            }
        )*

        /// Info of every registered admission.
        pub const ADMISSIONS: &[PolicyInfo] =
            &[$($(#[$gate])* <$Kind as RegisteredAdmission>::INFO),*];
    };
}
with_admissions!(register);

/// A number of blocks and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes in these blocks.
    pub bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }
}

/// Mean times of operations in an interval, in nanoseconds; `None` for operations that did not
/// happen or were not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// Mean time of a hit in this cache.
    pub hit_ns: Option<f64>,
    /// Mean time of a read from the device below.
    pub backing_read_ns: Option<f64>,
    /// Mean time of a write to the device below.
    pub backing_write_ns: Option<f64>,
    /// Mean time of inserting a block into this cache.
    pub insert_ns: Option<f64>,
    /// Lower bound of the cost of a byte written to this cache, in bytes read from it: the ratio of
    /// the time per byte, including waits.
    pub write_cost: Option<f64>,
}

/// Counts and times of the events in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// Requests with at least one lookup; 0 where each request looks up one block.
    pub requests: u64,
    /// True if an admitted write is answered before the device below has it (write-back).
    pub puts_writes_off: bool,
    /// Blocks looked up by reads and writes, found or not.
    pub lookups: Traffic,
    /// Blocks looked up and found.
    pub hits: Traffic,
    /// Blocks inserted, including overwrites of cached blocks.
    pub inserted: Traffic,
    /// Blocks removed by eviction and by invalidation. The bytes are those *written* to remove
    /// them, which may be few.
    pub removed: Traffic,
    /// The part of `inserted` and `removed` due to overwrites of cached blocks, for which no
    /// admission was asked. The bytes are those inserted.
    pub replaced: Traffic,
    /// Entries held at the end of the interval.
    pub entries: u64,
    /// Mean times of operations.
    pub times: Times,
}
