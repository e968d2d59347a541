//! Tests of the end of a host's cache.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{HostCache, Insertion};

#[test]
fn values_are_dropped_although_a_thread_of_the_library_is_with_the_cache() {
    let value = Arc::new(());
    let cache = HostCache::new(1000);
    let _ = cache.insert("key", Arc::clone(&value), 1, Insertion::new());
    let used = Arc::clone(&cache.cache.inner); // as a thread has that freezes
    let user = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(used);
    });
    drop(cache);
    assert_eq!(Arc::strong_count(&value), 1);
    user.join().expect("it ends");
}
