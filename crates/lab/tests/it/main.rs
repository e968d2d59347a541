//! Tests of simulation, replay and measurement.

mod adacache_reference;
mod bench_memory;
mod interference;
mod replay;
mod simulate_is_cache;
