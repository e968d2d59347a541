//! Python's module `floe`: the cache, cached functions, and the lab.
//!
//! Python's threads hold the interpreter's lock (GIL) while they use a cache. Nothing here lets go
//! of it while a lock of Floe's is held, so Python's threads never wait for each other's locks:
//! keys are compared without any code of Python's (`key.rs`), and functions that weigh or load run
//! before or after. Builds of Python without that lock switch it on for this module: a reader of a
//! `Slot` relies on it.
#![allow(unsafe_code)] // Python's C API; each block says why it is sound

mod access;
mod cache;
mod cached;
mod flight;
mod identity;
mod key;
mod lab;
mod settings;
mod slot;
mod stats;
mod store;

#[pyo3::pymodule(gil_used = true)]
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
