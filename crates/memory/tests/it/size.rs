//! The memory of an entry beside its key and value, so that it does not grow unnoticed.

use floe_memory::Cache;
use floe_memory::policy::{Fifo, QdClock, Replacement};

/// Bytes of a full cache for each of its entries, without key and value.
fn beside<P: Replacement>(policy: P) -> f64 {
    const ENTRIES: u64 = 200_000;
    let cache = Cache::<u64, u64>::builder().capacity(ENTRIES as usize).policy(policy).build();
    // So that ghosts, and what waits to be used again, are there, too.
    (0..3 * ENTRIES).for_each(|key| cache.insert(key, key));
    let stats = cache.stats();
    assert_eq!(stats.entries, ENTRIES);
    stats.memory_bytes as f64 / ENTRIES as f64 - 2.0 * size_of::<u64>() as f64
}

#[test]
#[cfg_attr(miri, ignore = "many entries")]
fn an_entry_takes_few_bytes_beside_key_and_value() {
    let (ordered, fifo) = (beside(QdClock::default()), beside(Fifo::default()));
    println!("bytes an entry: QD-CLOCK {ordered:.1}, FIFO {fifo:.1}");
    assert!(ordered < 40.0, "{ordered} with the default policy");
    assert!(fifo < 32.0, "{fifo} with FIFO");
}
