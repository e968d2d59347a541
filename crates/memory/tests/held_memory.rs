//! The memory of a cache that is no more, of which a value is still held: alone in its process, as
//! it looks at all of that's.

#![allow(unsafe_code)] // a call of the C library
#![cfg(all(
    target_os = "linux",
    target_env = "gnu",
    not(miri),
    not(floe_thread_sanitizer) // whose own memory stays
))]

use floe_memory::Cache;

const PAGE: usize = 4096;
type Page = [u8; PAGE];

unsafe extern "C" {
    /// Returns freed memory of the C library's heap to the system.
    fn malloc_trim(pad: usize) -> i32;
}

/// Bytes of the process that are in memory, without freed memory that the allocator keeps.
fn resident() -> usize {
    // SAFETY: it may be called at any time, from any thread.
    unsafe { malloc_trim(0) };
    let pages = std::fs::read_to_string("/proc/self/statm").expect("procfs is there");
    let pages: usize =
        pages.split(' ').nth(1).expect("the second field").parse().expect("a number");
    pages * PAGE
}

#[test]
fn a_held_value_does_not_keep_the_memory_of_its_cache() {
    // A value of those that came first, which lie in pieces of memory of their own, and one of the
    // last, which lie in one for all shards.
    for from_the_end in [false, true] {
        let entries = 16 << 10;
        let cache: Cache<usize, Page> = Cache::builder().capacity(entries).shards(4).build();
        (0..entries).for_each(|key| cache.insert(key, [key as u8; PAGE]));
        let mut keys = (0..entries).filter(|key| cache.contains_key(key));
        let key = if from_the_end { keys.next_back() } else { keys.next() }.expect("most are in");
        let (held, full) = (cache.hold(&key).expect("it is in"), resident());
        assert!(full > entries * PAGE / 2, "the test is not about {full} bytes");
        drop(cache);
        let left = resident();
        assert!(left < full / 4, "{left} of {full} bytes are left for one value");
        assert_eq!(*held, [key as u8; PAGE]);
    }
}
