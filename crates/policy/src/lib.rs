//! Eviction orders and [`admission`] policies of caches, as pure data structures.
//!
//! A policy orders *slots*, dense small numbers that its owner assigns to the entries it stores.
//! The policy never sees keys, values, locks or clocks. So the same code runs in the simulator, in
//! the memory cache and in the block cache: what you simulate is what you run.
//!
//! A policy has two halves: [`Marks`], which hits set from any thread without exclusive access, and
//! [`Eviction`], the order itself, which one owner changes. [`Marks::KIND`] distinguishes FIFO-like
//! from LRU-like policies, and [`registry::table`] lists all of them.
//!
//! A type that can be chosen by name is a [`Policy`]; [`AnyPolicy`] is any of them, chosen at run
//! time. A cache that takes either is generic over [`Replacement`] and clones the value it is given
//! for each of its shards.
//!
//! State lives in flat arrays indexed by slot, linked by `u32`s. Only [`Eviction::reserve`],
//! [`Eviction::set_capacity`] and [`Eviction::freeze`] allocate, and once in the life of an order
//! the first weight that is not 1. Randomised policies draw from a fixed seed, so every run can be
//! repeated.
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

pub mod admission;
pub mod owner;
pub mod registry;
pub mod shedding;
pub mod streams;
pub mod trial;

// The parts of policies.
mod adaptation;
mod contract;
#[cfg(not(feature = "count-operations"))]
mod count;
#[cfg(feature = "count-operations")]
pub mod count;
mod ghost_queues;
mod ghost_table;
mod ghosts;
mod listed;
mod lists;
mod marks;
mod priority_pools;
mod sketch;
mod slot_array;

// The policies.
mod arc;
mod auto;
mod belady;
mod cacheus;
mod car;
mod clock;
mod clock2q_plus;
mod clock_pro;
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
mod mq;
mod quick_demotion;
mod s3_fifo;
mod s4_fifo;
mod sampled;
mod sarc;
mod sieve;
mod slru;
mod two_q;
mod w_tinylfu;

pub use adaptation::{Adaptation, Setting};
#[doc(hidden)]
pub use contract::Plain;
pub use contract::{
    Access, Cursor, Direction, Eviction, HitKind, Marks, Parameter, Parameters, Policy, PolicyInfo,
    Priority, Ranked, Replacement, Slot, Tick, Touch, tag_of,
};
pub use listed::{Listed, SlotLists};
pub use lists::Lists;
pub use marks::{AlwaysPromote, Coins, Counters, LastUses, NoMarks, Stamps, TryPromote};
pub use owner::PendingVictims;
pub use priority_pools::PriorityPools;
pub use registry::policies::*;
pub use registry::{AnyMarks, AnyPolicy, POLICIES, with};
pub use sketch::mix;

#[deprecated(note = "use `shedding::Shedder`")]
#[doc(hidden)]
pub mod shedder {
    pub use crate::shedding::Shedder;
}

#[deprecated(note = "use `registry::nearest`")]
#[doc(hidden)]
pub mod spelling {
    pub use crate::registry::nearest;
}
