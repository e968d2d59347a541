//! Running caches over traces without devices.

mod admitted;
pub mod blocks;
mod changes;
pub mod grid;
pub mod intervals;
mod latency;
pub mod objects;
pub mod operations;
mod positions;
mod sample;
pub mod stream;
