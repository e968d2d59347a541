//! Tests of simulation, replay and measurement.

mod adacache_reference;
mod advise;
mod advise_shares;
mod bench_memory;
mod capacity_search;
mod demo;
mod derivation;
mod interference;
mod replay;
mod replay_accounting;
mod replay_queue;
mod replay_tails;
mod replay_volumes;
mod simulate_is_cache;
mod simulated_counts;
