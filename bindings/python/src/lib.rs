//! Python's module `floe`: the cache, cached functions, and the lab.
//!
//! Python's threads are attached to the interpreter while they use a cache, and most builds let one
//! at a time be so (the GIL). Nothing here detaches, or runs code of Python's, while a lock of
//! Floe's is held. So a thread that is stopped holds none, and Python's threads never wait for each
//! other's locks: keys are compared without any code of Python's (`key.rs`), functions that weigh
//! or load run before or after, and so do destructors (`later.rs`).
//!
//! Free-threaded builds let all threads be attached at once. The module asks for no lock there: see
//! `slot.rs`, `identity.rs` and `flight.rs` for what is read, compared and loaded by several.
#![allow(unsafe_code)] // Python's C API; each block says why it is sound

mod access;
mod cache;
mod cached;
mod flight;
mod identity;
mod key;
mod lab;
mod later;
mod pointer;
mod settings;
mod slot;
mod stats;
mod store;
mod sync;

#[pyo3::pymodule(gil_used = false)]
mod _floe {
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::cached::{CachedFunction, Calls, Ticket};
    #[pymodule_export]
    use crate::lab::models::{model, model_policies};
    #[pymodule_export]
    use crate::lab::own_policy::simulate_own;
    #[pymodule_export]
    use crate::lab::replays::replay;
    #[pymodule_export]
    use crate::lab::simulations::{policies, simulate};
    #[pymodule_export]
    use crate::lab::trace::Trace;
    #[pymodule_export]
    use crate::stats::Stats;
}
