//! The tiers: a driver carries the orders of a tier's cache out, on top of another tier or of
//! backing devices, with memory above.

pub(crate) mod driver;
pub(crate) mod memory;
pub(crate) mod tier;
mod watched;
