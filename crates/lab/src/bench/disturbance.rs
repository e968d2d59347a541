//! Time that other work on the machine takes from a measurement: threads wait for a processor, or a
//! hypervisor runs other machines.

use std::time::Instant;

/// Number of times that a run is made at most, until other work takes little enough of it.
pub const TRIES: usize = 4;

/// Returns the nanoseconds for which the calling thread has waited for a processor, since it
/// began, while it could have run; `None` where the system does not say.
pub(super) fn waited_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns whether this system says how long threads wait for a processor.
pub fn disturbance_is_known() -> bool {
    waited_ns().is_some()
}

/// The time that a hypervisor has given to other machines.
#[derive(Debug)]
pub(super) struct Stolen {
    since: Instant,
    ticks: Option<u64>,
}

impl Stolen {
    pub(super) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").ok();
        Self { since: Instant::now(), ticks: stat.as_deref().and_then(stolen_ticks) }
    }

    /// Returns the share of the time of all processors that was stolen since then; 0 where the
    /// system does not say.
    pub(super) fn share(&self) -> f64 {
        let (Some(before), Some(after)) = (self.ticks, Self::now().ticks) else { return 0.0 };
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let seconds = after.saturating_sub(before) as f64 / ticks;
        seconds / (processors * self.since.elapsed().as_secs_f64().max(1e-9))
    }
}

/// Returns the stolen ticks of all processors together, as `/proc/stat` has them.
fn stolen_ticks(stat: &str) -> Option<u64> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    all.split_ascii_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_that_of_all_processors() {
        let stat = "cpu  30232 0 5264 25329 581 0 123 425 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(stolen_ticks(stat), Some(425));
        assert_eq!(stolen_ticks("cpu  1 2 3 4\n"), None);
    }
}
