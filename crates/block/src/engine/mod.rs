//! Requests, their parts and the tasks of a shard: locks, turns and operations, without the steps
//! that tasks run.

mod cuts;
pub(crate) mod join;
pub(crate) mod locks;
pub(crate) mod piece;
pub(crate) mod request;
mod task;
mod tasks;
pub(crate) mod turns;

pub(crate) use task::{Because, Data, Event, Offer, Part, Step, Task, Work, common, units};
pub(crate) use tasks::{Tasks, shard_of};
