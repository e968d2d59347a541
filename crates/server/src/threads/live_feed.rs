//! The history of the live page, as the acceptor keeps it, and the events made of it.

use std::time::{Duration, Instant};

use crate::live::{EVENTS_HEAD, History, Sample, Update, WhatIf, event};
use crate::sampler::Sampling;
use crate::status::{Report, Status};

/// The history of the live page, and the time of its next sample.
pub(super) struct Feed {
    history: History,
    what_if: WhatIf,
    /// As of the last sample.
    status: Option<Status>,
    interval: Duration,
    due: Instant,
    /// A sample is under way.
    is_asked: bool,
}

impl Feed {
    /// Nothing yet of so many threads; the first sample is due.
    pub(super) fn new(interval: Duration, threads: usize) -> Self {
        Self {
            history: History::default(),
            what_if: WhatIf::new(threads),
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
    pub(super) fn take(&mut self, report: &mut Report) -> Option<String> {
        self.is_asked = false;
        let smallest = report.sum.stats.blocks.first();
        self.what_if.count_blocks_of(smallest.map_or(4096, |(block_bytes, _)| *block_bytes));
        let touches = report.threads.iter_mut().map(|thread| std::mem::take(&mut thread.touches));
        self.what_if.take(touches.collect(), report.sum.tally.found, report.facts.uptime);
        let status = self.status.insert(report.status());
        let point = self.history.add(Sample::of(report))?;
        let what_if = self.what_if.outlook(report.facts.top().size_bytes);
        let model = report.model_curve();
        Some(event("update", &Update { point, status, what_if, model }))
    }

    /// The part of blocks that workers are to sample.
    pub(super) fn sampling(&self) -> Sampling {
        self.what_if.sampling()
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
