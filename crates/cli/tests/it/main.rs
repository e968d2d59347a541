//! The program as its users run it.

mod administration;
mod admission;
mod bad_input;
mod bench;
mod calibrate;
mod campaign;
#[path = "../../../server/tests/it/certificates.rs"]
mod certificates;
mod clients;
mod clients_map;
mod clients_tls;
mod clients_together;
mod common;
mod counted_models;
mod evict;
mod failing_cache;
mod guest;
mod interference;
mod kept;
mod kills;
mod missing_tier;
mod model;
mod packaging;
mod replay;
mod restack;
mod simulate;
mod stalled_log;
mod swaps;
mod tiers;
mod trace_commands;
mod version_2;
