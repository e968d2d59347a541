//! Tests of the freeze controller on a simulated machine.

mod histories;
mod simulation;
