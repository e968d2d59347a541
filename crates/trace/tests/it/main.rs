//! Tests of the readers, writers and generators of traces.

mod bad_records;
mod common;
mod compact;
mod detection;
mod generators;
mod known_answers;
mod lru_curve;
mod oracle_general;
mod reuse;
mod round_trip;
mod sums;
