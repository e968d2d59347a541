#![doc = include_str!("../README.md")]
#![allow(clippy::single_range_in_vec_init)] // lists of ranges may have one

mod builder;
mod catalog;
mod failure;
mod fetches;
mod ghosts;
mod identity;
mod inner;
mod parts;
mod pins;
mod planner;
mod prices;
mod read;
mod stats;
mod store;
mod transfers;

pub use builder::{BuildError, Builder};
pub use inner::Task;
pub use pins::Pin;
pub use planner::FetchSize;
pub use stats::Stats;
pub use store::CachedStore;
