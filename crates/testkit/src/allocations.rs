//! Counts the heap allocations of a process. A test that uses this needs a process of its own:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: floe_testkit::allocations::Counting = floe_testkit::allocations::Counting;
//!
//! let before = floe_testkit::allocations::of_this_thread();
//! drop(vec![1]);
//! assert_eq!(floe_testkit::allocations::of_this_thread() - before, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static OF_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
}

static OF_ALL_THREADS: AtomicU64 = AtomicU64::new(0);

/// A global allocator that counts allocations and passes them to the system's allocator.
#[derive(Debug)]
pub struct Counting;

/// Returns the number of allocations of the calling thread so far.
pub fn of_this_thread() -> u64 {
    OF_THIS_THREAD.get()
}

/// Returns the number of allocations of all other threads so far.
pub fn of_other_threads() -> u64 {
    OF_ALL_THREADS.load(Relaxed) - of_this_thread()
}

// the only way to count allocations; everything is handed to the system's allocator as it is
#[allow(unsafe_code)]
// SAFETY: the system's allocator keeps the contract, and counting touches no memory it gives out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have no cell any more.
        let _ = OF_THIS_THREAD.try_with(|count| count.set(count.get() + 1));
        OF_ALL_THREADS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is this one's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Returns the processor time that the calling thread has used.
pub fn thread_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
