//! The bytes that an entry takes beside its key and value, by the structures that they are for.

use std::time::Duration;

use floe_policy::{Eviction, Marks};

use crate::policy::{Fifo, QdClock, Replacement};
use crate::{Cache, InsertOptions};

const ENTRIES: u64 = 200_000;

/// Bytes an entry of a full cache of `u64` pairs, which has evicted for so long that its ghosts,
/// and the entries that wait to be freed, are there. Key and value count among the entries' own.
#[derive(Debug)]
#[allow(dead_code)] // printed
struct Bytes {
    entries: f64,
    slots: f64,
    index: f64,
    order: f64,
    waiting: f64,
    others: f64,
}

fn bytes<P: Replacement>(policy: P) -> Bytes {
    let cache = Cache::<u64, u64>::builder().capacity(ENTRIES as usize).policy(policy).build();
    (0..3 * ENTRIES).for_each(|key| cache.insert(key, key));
    let (mut entries, mut slots, mut index, mut order, mut waiting) = (0, 0, 0, 0, 0);
    for shard in cache.inner.shards.iter() {
        let owner = shard.owner();
        entries += owner.slab.memory_bytes();
        slots += owner.slots.memory_bytes();
        index += shard.table().memory_bytes();
        order += owner.order.memory_bytes();
        waiting += owner.limbo.memory_bytes();
    }
    let all = cache.stats().memory_bytes;
    let others = all - (entries + slots + index + order + waiting) as u64;
    let each = |bytes: usize| bytes as f64 / ENTRIES as f64;
    Bytes {
        entries: each(entries),
        slots: each(slots),
        index: each(index),
        order: each(order),
        waiting: each(waiting),
        others: each(others as usize),
    }
}

#[test]
#[cfg_attr(miri, ignore = "many entries")]
fn each_structure_takes_its_bytes() {
    for (name, bytes, order) in
        [("QD-CLOCK", bytes(QdClock::default()), 13.0), ("FIFO", bytes(Fifo::default()), 5.4)]
    {
        println!("{name}: {bytes:.2?}");
        assert!(bytes.entries < 16.0 + 10.5, "heads, and places to be used again: {bytes:?}");
        assert!(bytes.slots < 5.4, "five bytes a slot: {bytes:?}");
        assert!(bytes.index < 9.1, "half a cache line for 3.7 keys: {bytes:?}");
        assert!(bytes.order < order, "{name}: {bytes:?}");
        // The rest of replaced indexes depends on where pages begin.
        assert!(bytes.waiting < 1.1 && bytes.others < 2.8, "{bytes:?}");
    }
}

/// Bytes of a shard that 1,000 entries have filled, with a time to idle or without. Those of old
/// indexes, which depend on where pages begin, are left out.
fn bytes_of_shard(idle: bool) -> usize {
    let cache = Cache::<u64, u64>::builder().capacity(1000).shards(1).build();
    for key in 0..1000 {
        let options = InsertOptions::new();
        let options = if idle { options.time_to_idle(Duration::from_secs(600)) } else { options };
        cache.insert_with(key, key, options);
    }
    let owner = cache.inner.shards[0].owner();
    owner.memory_bytes() - owner.growth.kept_bytes()
}

#[test]
#[cfg_attr(miri, ignore = "many entries")]
fn marks_that_late_readers_may_use_are_few_and_counted() {
    // Nobody says how many are to come, so that memory grows in small steps.
    for (shards, limit) in [(1, None), (16, None), (1, Some(ENTRIES)), (16, Some(ENTRIES))] {
        let builder = Cache::<u64, u64>::builder().shards(shards);
        let builder = match limit {
            Some(limit) => builder.capacity(limit as usize),
            None => builder.weight_capacity(ENTRIES).weigher(|_, _| 1u64),
        };
        let cache = builder.build();
        (0..ENTRIES).for_each(|key| cache.insert(key, key));
        let owners = cache.inner.shards.iter().map(|shard| shard.owner());
        let (mut replaced, mut arrays) = (0, 0);
        for owner in owners {
            replaced += crate::owner::replaced_bytes(&owner);
            // SAFETY: the shard has not ended.
            let tables = owner.replaced_tables.iter().map(|&table| unsafe { &*table });
            let mut marks: Vec<_> = tables.map(|table| table.marks.memory_bytes()).collect();
            let present = owner.order.marks().of_readers().memory_bytes();
            marks.dedup();
            marks.retain(|&bytes| bytes != present);
            arrays += marks.iter().sum::<usize>();
        }
        let bytes = [replaced, arrays].map(|bytes| bytes as f64 / ENTRIES as f64);
        println!("{shards} shards, at most {limit:?}: {bytes:.2?} an entry, of it arrays");
        assert!(replaced >= arrays && arrays > 0, "{bytes:?}");
        assert!(bytes[0] < 1.65, "{bytes:?}");
    }
}

#[test]
fn renewals_that_late_readers_may_use_are_counted() {
    // Eight bytes for each slot of the present array, and as much for all that it has replaced.
    let more = bytes_of_shard(true) - bytes_of_shard(false);
    assert!((16_000..16_500).contains(&more), "{more} bytes for renewals");
}
