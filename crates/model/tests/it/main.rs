//! Tests of the queueing models against closed forms, the paper and each other.

mod closed_forms;
mod events;
mod open;
mod paper;
mod reference;
