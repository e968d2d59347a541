//! A cache takes memory as its entries come, however many it may hold: alone in its process, as it
//! counts all bytes that are allocated there.

#![allow(unsafe_code)] // an allocator that counts
#![cfg(not(miri))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use floe_memory::Cache;
use floe_memory::policy::registry;

/// The system's allocator; counts bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller says.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

type Plain = Cache<u64, u64>;

/// Returns what something makes, and how many bytes that takes.
fn taken<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED.load(Relaxed);
    let made = make();
    (made, ALLOCATED.load(Relaxed).saturating_sub(before))
}

/// One test, as others would allocate beside it.
#[test]
fn memory_is_taken_as_entries_come() {
    an_empty_cache_takes_little_however_much_it_may_hold();
    memory_grows_with_the_entries();
}

fn an_empty_cache_takes_little_however_much_it_may_hold() {
    drop(taken(|| Plain::new(1))); // what is made once
    for (capacity, most) in [(10, 8 << 10), (1000, 64 << 10), (1_000_000, 512 << 10)] {
        let (cache, bytes) = taken(|| Plain::new(capacity));
        println!("{capacity}: {bytes} bytes");
        assert!(bytes <= most, "{bytes} bytes for {capacity} entries that are not there");
        drop(cache);
    }
    let (cache, bytes) = taken(|| Plain::builder().capacity(1_000_000).shards(1).build());
    println!("in one shard: {bytes} bytes");
    assert!(bytes <= 16 << 10, "{bytes} bytes for one empty shard");
    drop(cache);
    let time = Duration::from_secs(60);
    let build = || Plain::builder().capacity(1000).time_to_live(time).build();
    let (caches, bytes) = taken(|| (0..1000).map(|_| build()).collect::<Vec<_>>());
    println!("1000 with lifetimes: {bytes} bytes");
    assert!(bytes <= 24 << 20, "{bytes} bytes for a thousand empty caches");
    drop(caches);
    for name in registry::names() {
        let Ok(builder) = Plain::builder().capacity(1_000_000).policy_named(name) else { continue };
        let (cache, bytes) = taken(|| builder.try_build());
        println!("{name}: {bytes} bytes");
        // W-TinyLFU reserves its sketch, 8 bytes an entry, which the system provides as it is used.
        let sketch = if name == "w-tinylfu" { 8 << 20 } else { 0 };
        assert!(bytes <= sketch + (1 << 20), "{bytes} bytes under {name}");
        drop(cache);
    }
}

fn memory_grows_with_the_entries() {
    for shards in [1, 32] {
        let cache = Plain::builder().capacity(1_000_000).shards(shards).build();
        cache.insert(0, 0);
        let begun = ALLOCATED.load(Relaxed);
        let mut done = 0;
        for entries in [1000, 10_000, 60_000] {
            (done..entries).for_each(|key| cache.insert(key, key));
            done = entries;
            let bytes = ALLOCATED.load(Relaxed) - begun;
            println!("{shards} shards: {bytes} bytes for {entries} entries");
            // Lists double, and each shard has some for those that are to come.
            let most = 300 * entries as usize + shards * (16 << 10);
            assert!(bytes <= most, "{bytes} bytes for {entries} entries in {shards} shards");
        }
    }
}
