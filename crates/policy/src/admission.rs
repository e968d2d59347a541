//! Admission decides which blocks enter a cache; [`Eviction`](crate::Eviction) decides which leave.
//!
//! Where writing to a cache slows its reads, or what lies below is hardly slower, most of what
//! could be cached should not be. An [`Admission`] is asked about every block that is read or
//! written and not held. It is not told of hits one by one: what it has to know of them comes as
//! counts per interval ([`Window`]), so nothing shared is written on a hit. Like an order it sees
//! hashes and slots only, and neither clock nor locks; what it wants done later, it orders on ticks
//! ([`Orders`]).
//!
//! Several may have to agree: `small-bypass + obp` admits what both do ([`Admissions`]).
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

/// Calls a macro with the list of all admissions, behind what else it is `given`.
macro_rules! with_admissions {
    ($then:ident $($given:tt)*) => {
        $then! {
            ($($given)*)
            simple::Always,
            simple::Never,
            simple::UntilFull,
            simple::Probability,
            simple::SecondAccess,
            simple::Duel,
            obp::Obp,
            small_bypass::SmallBypass,
            fussy::Fussy,
            simple::Sequential,
        }
    };
}

// The parts of admissions.
pub mod registry;

// The admissions.
mod fussy;
mod obp;
mod simple;
mod small_bypass;

/// The decision about an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It comes in; where room is needed, the order of eviction names the victim.
    Admit,
    /// It comes in, and this one leaves for it if room is needed.
    Replace(Slot),
    /// It stays out.
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
    /// Its slot.
    pub slot: Slot,
    /// The hash of its key, as in [`Access::hash`].
    pub hash: u64,
}

/// The size of the cache and of the caches above it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Entries that fit, roughly.
    pub entries: usize,
    /// The weight that fits, in the unit of [`Access::weight`].
    pub weight: u64,
    /// The capacity of the caches above that answer first, in the same unit; 0 without any.
    pub above: u64,
}

/// A block worth fetching into the cache, though no request waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetch {
    /// The hash of its key, as in [`Access::hash`].
    pub hash: u64,
    /// Its [`Access::position`].
    pub position: u64,
}

/// The orders of an admission. The owner keeps one and hands it to every [`Admission::tick`], which
/// fills it anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// Blocks to read from below and to insert without asking again; those that are cached already
    /// are left out by the owner.
    pub fetch: Vec<Fetch>,
    /// True if nothing is to be evicted, neither ahead of need nor for an offer, which is then
    /// bypassed: making room would cost, too.
    pub hold: bool,
}

/// The inputs that an admission requires beside those that every owner gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Access::in_a_row`].
    pub streams: bool,
    /// That what it [orders](Orders::fetch) to be fetched is: it lets nothing in otherwise.
    pub fetches: bool,
    /// The [`Victim`], whenever an entry would have to leave; where none is named, it admits as if
    /// there were room.
    pub victims: bool,
    /// [`Room::above`]: what memory above holds.
    pub above: bool,
    /// To be asked about newer data of clean blocks that are held ([`Admission::overwrite`]).
    pub overwrites: bool,
}

/// Decides which blocks are cached. One owner at a time.
///
/// The owner calls [`reserve`](Self::reserve) and [`tick`](Self::tick) before anything else,
/// [`admit`](Self::admit) for each offer, and now and then [`observe`](Self::observe), then
/// [`tick`](Self::tick).
pub trait Admission {
    /// The inputs it requires. Owners that cannot give it refuse the admission.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Makes it the part with the number `part`, from 0, of so many that share the keys of a cache
    /// evenly, and each see a part of its accesses. Its parameters in operations or in weight are
    /// for all parts together. Called before it has room.
    fn split(&mut self, _part: usize, _parts: usize) {}

    /// Sets the size of the cache, and makes room for what is remembered of it. Never shrinks.
    /// The only method that allocates.
    fn reserve(&mut self, _: &Room) {}

    /// Takes in what happened since the last window.
    fn observe(&mut self, _: &Window) {}

    /// Takes in a hit, whenever the owner gets to it: drained from buffers of threads, or at once
    /// where the owner serves alone. All or a fair sample of them.
    fn used(&mut self, _: &Access) {}

    /// Returns its own verdict and notes the offer; [`settle`](Self::settle) follows.
    fn judge(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict;

    /// Takes in the joint decision of all admissions about the offer just judged.
    fn settle(&mut self, _: &Access, _: Verdict) {}

    /// Decides about a block that is not held and was read from below, or is written. `victim` is
    /// the entry that would have to leave; `None` while there is room, and where the victim is only
    /// known at the eviction.
    fn admit(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict {
        let verdict = self.judge(offer, victim);
        self.settle(offer, verdict);
        verdict
    }

    /// Decides about newer data of a block that is held and clean. Returns whether the cache is to
    /// take it; otherwise the cached copy is dropped and the data goes below only.
    fn overwrite(&mut self, _: &Access) -> bool {
        true
    }

    /// Takes in that an entry was evicted (not that it was invalidated), at once: it may be what
    /// was just decided that made it leave.
    fn evicted(&mut self, _: &Access) {}

    /// Lets time pass and writes what is to be done into `orders`, which is emptied before. To be
    /// called after each window.
    fn tick(&mut self, now: Tick, orders: &mut Orders) {
        orders.fetch.clear();
        orders.hold = false;
        self.order(now, orders);
    }

    /// Adds to what is to be done.
    fn order(&mut self, _: Tick, _: &mut Orders) {}

    /// Bytes of memory held.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// An admission that can be chosen by name. One without room is a template, to be cloned for each
/// shard.
pub trait RegisteredAdmission: Admission + Clone + Send + Sync + 'static {
    /// Its name, idea, source and parameters.
    const INFO: PolicyInfo;

    /// An admission without room.
    fn with(parameters: &Parameters) -> Self;
}

/// Makes the admissions of a cache's shards, chosen by type (any [`RegisteredAdmission`]) or at run
/// time ([`Admissions`]): a template to clone, with its name.
pub trait AdmissionFactory: Admission + Clone + Send + Sync + 'static {
    /// Its name; with its parameters, where it was chosen by a text.
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

/// Exports each admission's type, registers it and makes it from its defaults.
macro_rules! register {
    (() $($module:ident::$Kind:ident,)*) => {
        $(
            pub use $module::$Kind;

            impl Default for $Kind {
                /// An admission without room, with the default parameters of the registry.
                fn default() -> Self {
                    let info = <Self as RegisteredAdmission>::INFO;
                    <Self as RegisteredAdmission>::with(&Parameters::defaults(&info))
                }
            }
        )*

        /// Every admission.
        pub const ADMISSIONS: &[PolicyInfo] = &[$(<$Kind as RegisteredAdmission>::INFO),*];
    };
}
with_admissions!(register);

/// Blocks, and the bytes in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }
}

/// Mean times in nanoseconds as measured in an interval; `None` for what did not happen or was not
/// measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Times {
    /// To answer from this cache.
    pub hit_ns: Option<f64>,
    /// To read from below.
    pub backing_read_ns: Option<f64>,
    /// To write below.
    pub backing_write_ns: Option<f64>,
    /// To put a block into this cache.
    pub insert_ns: Option<f64>,
    /// The least cost of a byte written to this cache, in bytes read from it: the ratio of the
    /// times that each takes, waiting included.
    pub write_cost: Option<f64>,
}

/// The events of an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Window {
    /// Requests that looked something up; 0 where each looks up one block.
    pub requests: u64,
    /// True if a write that comes in is answered before the device below has it (write-back).
    pub puts_writes_off: bool,
    /// Blocks looked up, found or not, for reads and writes.
    pub lookups: Traffic,
    /// The lookups that found their block.
    pub hits: Traffic,
    /// Blocks put in, replaced values included.
    pub inserted: Traffic,
    /// Blocks taken out, by eviction and by invalidation. The bytes are those *written* for it,
    /// which may be few.
    pub removed: Traffic,
    /// Of both, the traffic of newer data of held blocks, about which no admission was asked. The
    /// bytes are those put in.
    pub replaced: Traffic,
    /// Entries held at the end.
    pub entries: u64,
    /// The times of operations.
    pub times: Times,
}
