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
//! The feature `policies` has all policies and admissions. Without it there are those that most
//! caches choose from.
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

#![cfg_attr(not(feature = "policies"), allow(dead_code))] // parts of policies left out

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
#[cfg(feature = "policies")]
mod slot_array;

// The policies of every build.
mod arc;
mod clock;
mod fifo;
mod lfu;
mod lirs;
mod lru;
mod quick_demotion;
mod s3_fifo;
mod sieve;
mod slru;
mod two_q;
mod w_tinylfu;

// The policies of the feature `policies`.
#[cfg(feature = "policies")]
mod auto;
#[cfg(feature = "policies")]
mod belady;
#[cfg(feature = "policies")]
mod cacheus;
#[cfg(feature = "policies")]
mod car;
#[cfg(feature = "policies")]
mod clock2q_plus;
#[cfg(feature = "policies")]
mod clock_pro;
#[cfg(feature = "policies")]
mod gdsf;
#[cfg(feature = "policies")]
mod hyperbolic;
#[cfg(feature = "policies")]
mod lecar;
#[cfg(feature = "policies")]
mod lfru;
#[cfg(feature = "policies")]
mod lhd;
#[cfg(feature = "policies")]
mod lru_k;
#[cfg(feature = "policies")]
mod mq;
#[cfg(feature = "policies")]
mod s4_fifo;
#[cfg(feature = "policies")]
mod sampled;
#[cfg(feature = "policies")]
mod sarc;

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
