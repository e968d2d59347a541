//! The history of the live page, as the acceptor keeps it, and the events made of it.

use std::time::{Duration, Instant};

use crate::live::{EVENTS_HEAD, History, Sample, Update, event};
use crate::status::{Report, Status};

/// The history of the live page, and the time of its next sample.
pub(super) struct Feed {
    history: History,
    /// As of the last sample.
    status: Option<Status>,
    interval: Duration,
    due: Instant,
    /// A sample is under way.
    is_asked: bool,
}

impl Feed {
    /// Nothing yet; the first sample is due.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            history: History::default(),
            status: None,
            interval,
            due: Instant::now(),
            is_asked: false,
        }
    }

    /// Returns the time of the next sample; `None` while one is under way.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.is_asked).then_some(self.due)
    }

    /// Begins a sample if one is due.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let begins = self.due().is_some_and(|due| due <= now);
        if begins {
            self.is_asked = true;
            // A late sample delays those after it: no burst follows a pause.
            self.due = now + self.interval;
        }
        begins
    }

    /// Ends a sample. Returns the event that tells of it; none of the first.
    pub(super) fn take(&mut self, report: &Report) -> Option<String> {
        self.is_asked = false;
        let status = self.status.insert(report.status());
        let point = self.history.add(Sample::of(report))?;
        Some(event("update", &Update { point, status }))
    }

    /// A sample has failed.
    pub(super) fn give_up(&mut self) {
        self.is_asked = false;
    }

    /// The start of a stream: everything so far.
    pub(super) fn beginning(&self) -> String {
        let history = event("history", self.history.points());
        let status = self.status.as_ref().map(|status| event("status", status));
        format!("{EVENTS_HEAD}{history}{}", status.unwrap_or_default())
    }
}
