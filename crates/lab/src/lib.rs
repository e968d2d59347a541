//! The lab: predicts the performance of policies, cache sizes and tiers by running the server's own
//! code.
//!
//! Without the feature `full`, which is on by default, the crate has only replays and the
//! demonstration.

pub mod admission;
#[cfg(feature = "full")]
pub mod advise;
#[cfg(feature = "full")]
pub mod bench;
#[cfg(feature = "full")]
pub mod classes;
pub mod demo;
mod draw;
#[cfg(feature = "full")]
pub mod interference;
pub mod interval;
#[cfg(feature = "full")]
pub mod load;
#[cfg(feature = "full")]
pub mod model;
pub mod replay;
#[cfg(feature = "full")]
pub mod report;
#[cfg(feature = "full")]
pub mod simulate;
#[cfg(feature = "full")]
pub mod sizes;
