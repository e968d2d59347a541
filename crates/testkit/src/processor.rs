//! The time that benchmarks measure, without that of other programs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time that this thread has used.
pub fn thread_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
