#![doc = include_str!("../README.md")]

#[cfg(feature = "advice")]
pub mod advice;
#[cfg(feature = "hybrid")]
#[doc(inline)]
pub use floe_hybrid as hybrid;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "object_store")]
#[doc(inline)]
pub use floe_object_store as object_store;

#[doc(inline)]
pub use floe_memory::{
    AdmissionStats, BuildError, Builder, Cache, Cause, Clock, DefaultHasher, Equivalent,
    FreezeDecision, FreezeStats, Freezing, Frozen, Held, InsertOptions, Item, Iter, KeyEntry,
    LoadError, Loads, Phase, Ref, RefreshJob, RefreshTask, Stats, hits_are_fenceless, host, policy,
};

#[cfg(feature = "serde")]
#[doc(inline)]
pub use floe_memory::Snapshot;

#[doc = include_str!("../docs/coming-from.md")]
pub mod coming_from {}
