//! Pure eviction orders and [`admission`] policies of caches.
//!
//! A policy orders *slots*, dense small numbers that its owner gives to whatever it stores. It
//! never sees keys, values, locks or clocks, and so the same code runs in the simulator, in the
//! memory cache and in the block cache: what you simulate is what you run.
//!
//! A policy comes in two halves: [`Marks`], which hits set from any thread without exclusive
//! access, and [`Eviction`], the order itself, which one owner changes. [`Marks::KIND`] tells
//! FIFO-like from LRU-like policies, and [`registry::table`] lists all of them.
//!
//! A type that can be chosen by name is a [`Policy`]; [`AnyPolicy`] is any of them, chosen at run
//! time. A cache that takes either is generic over [`Replacement`] and clones the value it is given
//! for each of its shards.
//!
//! State lives in flat arrays indexed by slot, linked by `u32`s; no operation allocates except
//! [`Eviction::reserve`], [`Eviction::set_capacity`] and [`Eviction::freeze`], and once in the life
//! of an order the first weight that is not 1. Randomised policies draw from a fixed seed, so every
//! run can be repeated.
//!
//! ```
//! use floe_policy::{Access, Eviction, Lru, Slot};
//!
//! let mut order = Lru::default();
//! order.reserve(2);
//! order.insert(Slot(0), &Access::new(10));
//! order.insert(Slot(1), &Access::new(11));
//! order.access(Slot(0));
//! assert_eq!(order.evict(None), Some(Slot(1)));
//! ```

/// Every policy, told to a macro behind what else it is `given`. New ones get their line here.
macro_rules! with_policies {
    ($then:ident $($given:tt)*) => {
        $then! {
            ($($given)*)
            fifo::Fifo,
            lru::Lru,
            relaxed_lru::RelaxedLru,
            prob_lru::ProbLru,
            clock::Clock,
            slru::Slru,
            two_q::TwoQ,
            arc::Arc,
            s3_fifo::S3Fifo,
            sieve::Sieve,
            lfu::Lfu,
            gdsf::Gdsf,
            lirs::Lirs,
            qdlp::Qdlp,
            qd_clock::QdClock,
            w_tinylfu::WTinyLfu,
            lru_k::LruK,
            sampled::Sampled,
            hyperbolic::Hyperbolic,
            lfru::Lfru,
            lecar::LeCaR,
            lhd::Lhd,
            cacheus::Cacheus,
            sarc::Sarc,
            belady::Belady,
        }
    };
}

// Admissions.
pub mod admission;

// Sequential streams.
pub mod streams;

// The parts of policies.
mod any;
#[cfg(not(feature = "count-operations"))]
mod count;
#[cfg(feature = "count-operations")]
pub mod count;
mod frequency;
mod frozen_list;
mod ghost;
mod ghost_queues;
mod ghost_table;
mod heap;
mod index;
mod listed;
mod lists;
mod marks;
mod order;
pub mod owner;
mod pending_victims;
mod policy_info;
mod priority;
mod priority_pools;
mod quick_demotion;
mod random;
pub mod registry;
mod sample_set;
pub mod shedder;
pub mod shedding;
mod sketch;
mod small_queue;
pub mod spelling;
pub mod trial;

// The policies.
mod arc;
mod belady;
mod cacheus;
mod clock;
mod fifo;
mod gdsf;
mod hyperbolic;
mod lecar;
mod lfru;
mod lfu;
mod lhd;
mod lirs;
mod lru;
mod lru_k;
mod prob_lru;
mod qd_clock;
mod qdlp;
mod relaxed_lru;
mod s3_fifo;
mod sampled;
mod sarc;
mod sieve;
mod slru;
mod two_q;
mod w_tinylfu;

pub use any::{AnyMarks, AnyPolicy};
pub use listed::{Listed, SlotLists};
pub use lists::Lists;
pub use marks::{AlwaysPromote, Coins, Counters, LastUses, NoMarks, Stamps, TryPromote};
#[doc(hidden)]
pub use order::Plain;
pub use order::{Access, Cursor, Direction, Eviction, HitKind, Marks, Ranked, Slot, Tick, Touch};
pub use pending_victims::PendingVictims;
pub use policy_info::{Parameter, Parameters, Policy, PolicyInfo, Replacement};
pub use priority::Priority;
pub use priority_pools::PriorityPools;
pub use random::mix;

/// Exports each policy's type, registers it and makes it from its defaults.
macro_rules! register {
    (() $($module:ident::$Policy:ident,)*) => {
        $(
            pub use $module::$Policy;

            impl Default for $Policy {
                /// An empty order without room, with the parameters of the registry.
                fn default() -> Self {
                    <Self as Policy>::new(&Parameters::defaults(&<Self as Policy>::INFO))
                }
            }
        )*

        /// Every policy.
        pub const POLICIES: &[registry::Entry] = &[$(registry::Entry::of::<$Policy>()),*];

        /// Runs a visitor over the chosen policy.
        pub fn with<V: registry::Visitor>(choice: &registry::Choice, visitor: V) -> V::Out {
            let parameters = &choice.parameters;
            $(
                if choice.name() == <$Policy as Policy>::INFO.name {
                    return visitor.visit(|| <$Policy as Policy>::new(parameters));
                }
            )*
            unreachable!("a choice names a registered policy")
        }
    };
}

with_policies!(register);
