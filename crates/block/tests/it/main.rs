//! The block cache, from outside.

mod admission;
mod common;
mod degraded;
mod dirt;
mod driver;
mod held;
mod kept;
mod kinds;
mod model;
mod newcomer;
mod pace;
mod reads;
mod replacement;
mod resize;
mod shares;
mod shedding;
mod sleepers;
mod streams;
mod superblock;
mod threads;
mod tiers;
mod volumes;
mod writes;
