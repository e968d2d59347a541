#![doc = include_str!("../README.md")]

#[doc(inline)]
pub use floe_memory::{
    AdmissionStats, BuildError, Builder, Cache, Cause, Clock, DefaultHasher, FreezeDecision,
    FreezeStats, Freezing, Held, InsertOptions, Item, Iter, Loaded, Phase, Ref, SheddingOptions,
    SheddingStats, Stats, hits_are_fenceless, policy,
};

/// What a cache is limited by and what would help, as [`Stats::advice`] says.
pub mod advice {
    #[doc(inline)]
    pub use floe_model::advice::{Advice, Alternative, Busy};
    #[doc(inline)]
    pub use floe_model::service::{Locks, Operation, Service, Time, Times};
    #[doc(inline)]
    pub use floe_model::{Load, ModelError};
}

#[doc = include_str!("../../../docs/coming-from.md")]
pub mod coming_from {}
