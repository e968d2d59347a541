//! A cache whose memory an allocator scatters: alone in its process, as it has an allocator of its
//! own.

#![allow(unsafe_code)] // an allocator
#![cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use floe_memory::Cache;

/// Sizes of memory from which it is scattered, in bytes.
const LARGE_BYTES: usize = 1 << 10;
/// Address at which the region of the smallest size begins, and the distance between two regions.
/// Nothing else is there in a process of 47 bits.
const FIRST_REGION: usize = 0x2000_0000_0000;
const REGION_BYTES: usize = 1 << 40;
const PAGE: usize = 4096;

/// An allocator with a region for each size, terabytes apart, like that of the address sanitizer.
struct Scattering;

/// Bytes of each region that have been handed out.
static USED: [AtomicUsize; 20] = [const { AtomicUsize::new(0) }; 20];
/// Number of pieces of memory that lie in their region.
static SCATTERED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: memory is a mapping of its own or the system's, by its size alone.
unsafe impl GlobalAlloc for Scattering {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() < LARGE_BYTES {
            // SAFETY: as the caller says.
            return unsafe { System.alloc(layout) };
        }
        let bytes = layout.size().next_multiple_of(PAGE);
        let region = layout.size().ilog2() as usize - LARGE_BYTES.ilog2() as usize;
        let address = FIRST_REGION + region * REGION_BYTES + USED[region].fetch_add(bytes, Relaxed);
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; the address is a hint.
        let memory = unsafe {
            libc::mmap(std::ptr::without_provenance_mut(address), bytes, access, flags, -1, 0)
        };
        if memory == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        SCATTERED.fetch_add(usize::from(memory.addr() == address), Relaxed);
        memory.cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.size() < LARGE_BYTES {
            // SAFETY: as the caller says, and the system's.
            return unsafe { System.dealloc(memory, layout) };
        }
        // SAFETY: as the caller says, and a mapping of its own.
        unsafe { libc::munmap(memory.cast(), layout.size().next_multiple_of(PAGE)) };
    }
}

#[global_allocator]
static SCATTERING: Scattering = Scattering;

/// Fills a cache with keys, and checks that all of them are frozen and found.
fn is_frozen_in_whole(cache: &Cache<u64, u64>, keys: std::ops::Range<u64>) {
    keys.clone().for_each(|key| cache.insert(key, key));
    let frozen = cache.freeze(1.0).entries;
    assert_eq!((frozen, cache.len()), (cache.len(), (keys.end - keys.start) as usize));
    let unfrozen = cache.stats();
    assert_eq!(unfrozen.frozen, frozen as u64);
    for key in keys {
        assert_eq!(cache.get_cloned(&key), Some(key));
    }
    cache.thaw();
}

#[test]
fn a_cache_is_frozen_in_whole_wherever_its_memory_lies() {
    let entries = 10_000;
    let scattered = SCATTERED.load(Relaxed);
    for shards in [1, 8] {
        let builder = || Cache::builder().shards(shards);
        // Of a known number of entries, of an unknown number, and of more than were expected.
        let known = builder().capacity(2 * entries as usize).build();
        let unknown = builder().weight_capacity(2 * entries).weigher(|_, _| 1u32).build();
        let grown = builder().capacity(100).build();
        grown.resize(2 * entries as usize);
        for cache in [known, unknown, grown] {
            is_frozen_in_whole(&cache, 0..1000);
            cache.clear();
            is_frozen_in_whole(&cache, 0..entries);
            cache.clear();
            is_frozen_in_whole(&cache, 1000..entries);
        }
    }
    let scattered = SCATTERED.load(Relaxed) - scattered;
    assert!(scattered > 100, "only {scattered} pieces of memory lie far apart");
}
