//! The Python module `floe_cache.lab`: traces, simulations, replays and models.
//!
//! Long operations release the interpreter's lock. Results are JSON objects, one per line, with the
//! fields that `floe` prints with `--json`. The Python side turns them into columns.

pub(crate) mod models;
pub(crate) mod own_policy;
pub(crate) mod replays;
pub(crate) mod simulations;
pub(crate) mod trace;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;

/// Converts an error of the lab into a Python exception.
fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Serializes each result to a line of JSON.
fn lines<T: Serialize>(results: &[T]) -> PyResult<Vec<String>> {
    results.iter().map(|result| serde_json::to_string(result).map_err(invalid)).collect()
}
