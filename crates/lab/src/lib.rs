//! The lab: says what policies, sizes and tiers are worth, by running the very code that serves.

pub mod admission;
pub mod bench;
pub mod classes;
pub mod interference;
pub mod load;
pub mod model;
pub mod replay;
pub mod report;
pub mod simulate;
