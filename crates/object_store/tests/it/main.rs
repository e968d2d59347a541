//! Tests of the caching store against stores in memory and on files.

#![allow(clippy::single_range_in_vec_init)] // lists of ranges may have one

mod conformance;
mod faults;
mod faulty;
mod model;
mod reads;
mod sizes;
mod threads;

use std::path::Path;

use bytes::Bytes;
use floe_hybrid::Hybrid;

/// Opens a small cache in a folder.
fn cache(folder: &Path) -> Hybrid<Vec<u8>, Bytes> {
    Hybrid::builder().memory(8 << 20).flash(folder.join("cache"), 64 << 20).open().unwrap()
}

/// Runs a future on one thread, with a clock that jumps to the next timer when all wait.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}
