//! The Python module `floe_cache`: the cache, cached functions, and the lab.
//!
//! Python threads are attached to the interpreter while they use a cache. Most builds attach only
//! one thread at a time (the GIL). Nothing here detaches, or runs Python code, while a lock of
//! Floe's is held. So a suspended thread holds no lock, and Python threads never wait for each
//! other's locks. Keys are compared without Python code (`key.rs`). Functions that weigh or load
//! run before or after the lock is held, and so do destructors (`later.rs`).
//!
//! Free-threaded builds attach all threads at once, and the module does not re-enable the GIL
//! there. For concurrent reads, comparisons and loads see `slot.rs`, `identity.rs` and `flight.rs`.
#![allow(unsafe_code)] // Python's C API; each block says why it is sound

mod cache;
mod cached;
mod flight;
mod hybrid;
mod identity;
mod key;
mod lab;
mod later;
mod mapping;
mod pointer;
mod slot;
mod sort;
mod stored;
mod waits;

/// Atomics of [`mod@pointer`], whose model test replaces them by those of a model checker.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicPtr, Ordering};

    /// Yields briefly to another thread.
    pub(crate) fn spin() {
        std::thread::yield_now(); // it may have been interrupted
    }
}

#[pyo3::pymodule(gil_used = false)]
mod _floe {
    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::cached::{CachedFunction, Calls, Listener, Ticket};
    #[pymodule_export]
    use crate::hybrid::HybridStore;
    #[pymodule_export]
    use crate::lab::{Trace, model, model_policies, policies, replay, simulate, simulate_own};
    #[pymodule_export]
    use crate::mapping::{Stats, make_stats};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    /// Resets process-wide state in a child of `fork`.
    #[pyfunction]
    fn after_fork() {
        crate::waits::after_fork();
        crate::later::after_fork();
    }

    /// Prepares for the shutdown of the interpreter.
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
