//! Reports on the whole server from the workers' counters and the published state, for admin
//! clients and the live page.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use floe_policy::Adaptation;
use rustix::time::{ClockId, clock_gettime};

use crate::control::board::PublishedState;
use crate::live::{EVENTS_HEAD, History, Outlook, Sample, Update, WhatIf, event};
use crate::offer::facts;
use crate::rate::SharedRate;
use crate::sampler::Sampling;
use crate::setup::ServerSetup;
use crate::status::{
    Facts, Lately, MemoryFacts, Report, ServiceTimes, SizeAdvice, Snapshot, Status, ThreadCounters,
};
use crate::total_limit::TotalLimit;
use crate::worker::shedding::ShedController;

/// The reader of a report. The live page asks more often than admin clients, so advice covers
/// separate intervals for each.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Audience {
    Admin,
    LivePage,
}

/// State for reports, in addition to counters and volumes.
pub(crate) struct Reporting {
    begun: Instant,
    started: SystemTime,
    /// Service times of list operations, for the advice in the status.
    service: ServiceTimes,
    /// The intervals that advice covers, indexed by `Audience as usize`.
    lately: [Lately; 2],
    /// The history of the live page.
    pub(crate) feed: Feed,
    /// The shed controller, if load shedding is configured.
    shed_controller: Option<Arc<ShedController>>,
    /// The rate of all volumes together.
    total: Arc<SharedRate>,
    /// For each tier, the changes of the eviction policy's setting that were logged.
    switches: Vec<Switches>,
}

impl Reporting {
    pub(crate) fn new(
        config: &ServerSetup,
        threads: usize,
        shed_controller: Option<Arc<ShedController>>,
        total: Arc<SharedRate>,
    ) -> Self {
        Self {
            begun: Instant::now(),
            started: SystemTime::now(),
            service: ServiceTimes::of(config.service.as_ref()),
            lately: Default::default(),
            feed: Feed::new(config.limits.sample_interval, threads),
            shed_controller,
            total,
            switches: Vec::new(),
        }
    }

    /// Logs changes of eviction policies' settings since the last call, with the reason: a line for
    /// each tier that has any. The report then tells of them.
    pub(crate) fn log_switches(&mut self, report: &mut Report) {
        let now = Instant::now();
        for (tier, evict) in switched(&mut self.switches, &report.sum, now) {
            tracing::info!(tier, %evict, "the eviction policy changed its setting");
        }
        report.facts.since_switch = self.since_switch(now);
    }

    /// Returns the time since each tier's eviction policy changed its setting, where it has.
    fn since_switch(&self, now: Instant) -> Vec<Option<Duration>> {
        let since = |switches: &Switches| Some(now.saturating_duration_since(switches.last?));
        self.switches.iter().map(since).collect()
    }

    /// Makes a report of the workers' snapshots and the acceptor's `counters`.
    pub(crate) fn report(
        &mut self,
        audience: Audience,
        config: &ServerSetup,
        state: &PublishedState,
        counters: &ThreadCounters,
        snapshots: Vec<Snapshot>,
    ) -> Report {
        let facts = Facts {
            volumes: facts(&state.volumes),
            total_limit: TotalLimit::of(self.total.rates()),
            tiers: state.tiers.clone(),
            started: self.started,
            uptime: self.begun.elapsed(),
            memory: config.memory.as_ref().map(|tier| MemoryFacts {
                write: tier.write(),
                usage: tier.usage(),
                freezing: tier.freezing(),
            }),
            shedding: self.shed_controller.as_ref().map(|it| it.status()),
            service: self.service.clone(),
            log_lines_dropped: (config.log_lines_dropped)(),
            pair: config.turn.as_ref().map(|turn| turn.status()),
            since_switch: self.since_switch(Instant::now()),
        };
        let mut report = Report::new(facts, snapshots);
        report.sum.counters += counters;
        report.advise(&mut self.lately[audience as usize], processor_time());
        report.size_advice = self.feed.size_advice(&report);
        report
    }
}

/// The changes of an eviction policy's setting that were noted.
#[derive(Debug, Clone, Copy, Default)]
struct Switches {
    count: u64,
    /// Time at which the last one was noted.
    last: Option<Instant>,
}

/// Returns the tiers, by number, whose eviction policies have changed their setting more often than
/// `noted`, and notes that.
fn switched<'s>(
    noted: &mut Vec<Switches>,
    sum: &'s Snapshot,
    now: Instant,
) -> Vec<(usize, &'s Adaptation)> {
    let mut switched = Vec::new();
    for (tier, (stats, _)) in sum.tiers().enumerate() {
        let count = stats.adaptation.as_ref().map_or(0, |adaptation| adaptation.switches);
        noted.resize(noted.len().max(tier + 1), Switches::default());
        let known = &mut noted[tier];
        // A tier that came in the place of another one begins at 0.
        if count < known.count {
            *known = Switches::default();
        }
        if count > known.count {
            *known = Switches { count, last: Some(now) };
            switched.extend(stats.adaptation.as_ref().map(|it| (tier, it)));
        }
    }
    switched
}

/// Returns the processor time that the process has used.
fn processor_time() -> Duration {
    let processor = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(processor.tv_sec as u64, processor.tv_nsec as u32)
}

/// History of the live page, and the schedule of its samples.
pub(crate) struct Feed {
    history: History,
    what_if: WhatIf,
    /// Status of the server at the last sample.
    status: Option<Status>,
    interval: Duration,
    due: Instant,
    /// True while a sample is under way.
    is_asked: bool,
}

impl Feed {
    /// Creates an empty history for a server with `threads` workers. The first sample is due at
    /// once.
    pub(crate) fn new(interval: Duration, threads: usize) -> Self {
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
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.is_asked).then_some(self.due)
    }

    /// Begins a sample if one is due. Returns whether it has begun.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let begins = self.due().is_some_and(|due| due <= now);
        if begins {
            self.is_asked = true;
            // A late sample delays those after it: no burst follows a pause.
            self.due = now + self.interval;
        }
        begins
    }

    /// Ends a sample. Returns the event for watching clients; `None` for the first sample, which
    /// has no predecessor to compare with, and while a tier is being attached or detached.
    pub(crate) fn take(&mut self, report: &mut Report) -> Option<String> {
        self.is_asked = false;
        let smallest = report.sum.stats.blocks.first();
        self.what_if.count_blocks_of(smallest.map_or(4096, |(block_bytes, _)| *block_bytes));
        let touches = report.threads.iter_mut().map(|thread| std::mem::take(&mut thread.touches));
        self.what_if.take(touches.collect(), report.sum.counters.found, report.facts.uptime);
        let what_if = self.what_if.outlook(report.facts.top().size_bytes);
        report.size_advice = what_if.as_ref().and_then(Outlook::advice);
        let status = self.status.insert(report.status());
        let point = self.history.add(Sample::of(report)?)?;
        let model = report.model_curve();
        Some(event("update", &Update { point, status, what_if, model }))
    }

    /// Returns advice on the size of the first tier; `None` before enough reads.
    fn size_advice(&self, report: &Report) -> Option<SizeAdvice> {
        self.what_if.outlook(report.facts.top().size_bytes)?.advice()
    }

    /// Returns the set of blocks that workers are to sample.
    pub(crate) fn sampling(&self) -> Sampling {
        self.what_if.sampling()
    }

    /// Ends a sample that failed.
    pub(crate) fn give_up(&mut self) {
        self.is_asked = false;
    }

    /// Returns the start of an event stream: the HTTP header, the history and the last status.
    pub(crate) fn beginning(&self) -> String {
        let history = event("history", self.history.points());
        let status = self.status.as_ref().map(|status| event("status", status));
        format!("{EVENTS_HEAD}{history}{}", status.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use floe_block::Stats;
    use floe_policy::{AnyPolicy, Eviction};

    use super::*;

    #[test]
    fn each_change_of_a_setting_is_told_once() {
        let auto: AnyPolicy = "auto".parse().expect("a policy");
        let sum = |switches| {
            let adaptation = auto.adaptation().map(|mut adaptation| {
                adaptation.switches = switches;
                adaptation
            });
            Snapshot { stats: Stats { adaptation, ..Stats::default() }, ..Snapshot::default() }
        };
        let (mut noted, begun) = (Vec::new(), Instant::now());
        let mut seconds = 0;
        // The tiers that have switched, and the second of the last switch.
        let told = [0, 1, 1, 4, 0, 2, 2].map(|switches| {
            seconds += 1;
            let now = begun + Duration::from_secs(seconds);
            let sum = sum(switches);
            let tiers: Vec<_> =
                switched(&mut noted, &sum, now).into_iter().map(|(tier, _)| tier).collect();
            (tiers, noted[0].last.map(|last| last.duration_since(begun).as_secs()))
        });
        let (once, never) = (vec![0], Vec::new());
        let expected = [
            (never.clone(), None),
            (once.clone(), Some(2)),
            (never.clone(), Some(2)),
            (once.clone(), Some(4)),
            (never.clone(), None),
            (once, Some(6)),
            (never, Some(6)),
        ];
        assert_eq!(told, expected);
        let lru = switched(&mut noted, &Snapshot::default(), begun).len();
        assert_eq!(lru, 0, "LRU has no settings");
    }
}
