//! Python's module `floe_cache`: the cache, cached functions, and the lab.
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
mod mapping;
mod plain;
mod pointer;
mod settings;
mod slot;
mod sort;
mod stats;
mod store;
mod sync;
mod waits;

#[pyo3::pymodule(gil_used = false)]
mod _floe {
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::cached::{CachedFunction, Calls, Listener, Ticket};
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
    use crate::stats::{Stats, make_stats};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    /// Begins the life of a child of `fork`.
    #[pyfunction]
    fn after_fork() {
        crate::waits::after_fork();
        crate::later::after_fork();
    }

    /// Prepares for the end of the interpreter.
    #[pyfunction]
    fn end() {
        crate::later::end();
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        let after = PyDict::new(py);
        after.set_item("after_in_child", module.getattr("after_fork")?)?;
        py.import("os")?.call_method("register_at_fork", (), Some(&after))?;
        py.import("atexit")?.call_method1("register", (module.getattr("end")?,))?;
        Ok(())
    }
}
