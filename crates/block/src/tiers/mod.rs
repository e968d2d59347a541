//! The tiers: a driver with its devices, on top of another or of backing devices, and memory above.

pub(crate) mod driver;
pub(crate) mod memory;
