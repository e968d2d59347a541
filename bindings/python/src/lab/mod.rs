//! The lab: traces, simulations, replays and models, as Python's module `floe_cache.lab`.
//!
//! Whatever takes time runs without the interpreter's lock. Results are objects of JSON, one a
//! line, with the fields that `floe` prints with `--json`; Python's side makes columns of them.

pub(crate) mod models;
pub(crate) mod own_policy;
pub(crate) mod replays;
pub(crate) mod simulations;
pub(crate) mod trace;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;

/// Python's exception for what the lab refuses.
fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The lines of results.
fn lines<T: Serialize>(results: &[T]) -> PyResult<Vec<String>> {
    results.iter().map(|result| serde_json::to_string(result).map_err(invalid)).collect()
}
