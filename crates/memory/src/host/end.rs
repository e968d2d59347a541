//! The end of a host's cache: all values without a handle are dropped before it returns, since what
//! their deleters need, such as an allocator, may go next.

use std::time::Duration;

use floe_policy::Replacement;

use super::HostCache;
use crate::maintenance;
use crate::sync::Arc;

/// The pause between two looks, and how many there are: 10 s at least, for a process that was
/// forked while a thread was with the cache, which never leaves it there.
const WAIT: Duration = Duration::from_micros(50);
const WAITS: u32 = 200_000;

impl<K, V, P: Replacement, S> Drop for HostCache<K, V, P, S> {
    fn drop(&mut self) {
        let inner = &self.cache.inner;
        // From here on the library's threads do not begin anything with the cache.
        inner.lifetimes.upkeep().forget();
        // A value that is dropped by one of these threads may own another host's cache. Waiting
        // there would be for the thread itself.
        if maintenance::is_own_thread() {
            return;
        }
        for _ in 0..WAITS {
            if Arc::strong_count(inner) == 1 {
                return;
            }
            std::thread::sleep(WAIT);
        }
    }
}
