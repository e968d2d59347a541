//! Tests of the cache through its public interface, each subject a module. A test that needs a
//! process or a configuration of its own is a file beside this folder.

#[path = "../common/mod.rs"]
mod common;
#[path = "../history/mod.rs"]
mod history;

mod adaptation;
mod adaptive;
mod admission;
mod bounded;
mod chains;
mod circles;
mod clock;
mod collection;
mod complaints;
mod conditional;
mod frozen;
mod frozen_faults;
mod frozen_from_within;
mod host;
mod host_usage;
mod hostile_policies;
mod hottest;
mod linearizable;
mod listener_panics;
mod loads;
mod maintenance;
mod model;
mod ownership;
mod panics;
mod priorities;
mod quiet;
mod reentrant;
mod refreshes;
mod shares;
mod size;
mod stress;
