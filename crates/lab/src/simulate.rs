//! Running caches over traces without devices.

pub mod blocks;
