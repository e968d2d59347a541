//! Running caches over traces without devices.

mod admitted;
pub mod blocks;
pub mod objects;
pub mod operations;
mod sample;
pub mod stream;
