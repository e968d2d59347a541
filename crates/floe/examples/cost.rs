//! Measures what an entry costs beside its key and value: a full cache of a million pairs of `u64`,
//! with some policies.
//!
//! `cargo run --release -p floe --example cost`

use floe::Cache;

const ENTRIES: usize = 1_000_000;

fn main() -> Result<(), floe::policy::registry::ChoiceError> {
    for name in ["fifo", "lru", "clock", "sieve", "qd-clock", "s3-fifo", "arc", "w-tinylfu"] {
        let cache = Cache::builder().capacity(ENTRIES).policy_named(name)?.build();
        (0..2 * ENTRIES as u64).for_each(|key| cache.insert(key, key));
        let stats = cache.stats();
        let bytes =
            stats.memory_bytes as f64 / stats.entries as f64 - size_of::<(u64, u64)>() as f64;
        println!("{name:<10} {bytes:5.1} bytes an entry, {} shards", stats.shards);
    }
    Ok(())
}
