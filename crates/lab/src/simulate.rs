//! Running caches over traces without devices.

pub mod blocks;
pub mod objects;
pub mod operations;
pub mod stream;
