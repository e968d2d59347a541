//! The tasks of a shard: their locks, turns and operations, without the steps that they run.

mod cuts;
mod task;
mod tasks;

pub(crate) use task::{Because, Data, Event, Offer, Part, Step, Task, Work, common, units};
pub(crate) use tasks::{Tasks, shard_of};
