//! The metrics that Prometheus expects of every process, under the names of its client libraries.
//! They are read from `/proc`.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

use super::page::Page;

/// Writes the metrics that the system offers.
pub(super) fn write(page: &mut Page, started: SystemTime) {
    if let Ok(started) = started.duration_since(UNIX_EPOCH) {
        let help = "Start of the server in seconds since 1970.";
        page.gauge("process_start_time_seconds", help, started.as_secs_f64());
    }
    if let Some(seconds) = cpu_seconds() {
        page.counter(
            "process_cpu_seconds_total",
            "Processor time spent, user and system.",
            seconds,
        );
    }
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Resident memory.", bytes);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // The count includes the descriptor that reads the folder.
        page.gauge(
            "process_open_fds",
            "Open file descriptors.",
            descriptors.count().saturating_sub(1),
        );
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        page.gauge("process_max_fds", "Most file descriptors that may be open.", most);
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11);
    let mut next = || ticks.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
