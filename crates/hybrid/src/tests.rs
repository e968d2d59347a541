//! Tests of several modules together, and the simulated drive that they run on.

mod large;
mod removal;
mod reopen;
pub(crate) mod simulated;
pub(crate) mod store;
