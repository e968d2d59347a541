//! Reports on the whole server, from what the workers handed in and the control thread published.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use super::board::State;
use super::live_feed::Feed;
use super::offer::facts;
use super::setup::ServerSetup;
use super::valve::Valve;
use crate::status::{Facts, Lately, MemoryFacts, Report, ServiceTimes, Snapshot, Tally};

/// The other facts of a report, beside counters and volumes.
pub(super) struct Reporting {
    begun: Instant,
    started: SystemTime,
    /// The times that advice in the status goes by.
    service: ServiceTimes,
    lately: Lately,
    /// The same for the live page, which asks more often.
    live_lately: Lately,
    /// The history of the live page.
    pub(super) feed: Feed,
    /// The shed controller, if anything may be shed.
    valve: Option<Arc<Valve>>,
}

impl Reporting {
    pub(super) fn new(config: &ServerSetup, threads: usize, valve: Option<Arc<Valve>>) -> Self {
        Self {
            begun: Instant::now(),
            started: SystemTime::now(),
            service: ServiceTimes::of(config.service.as_ref()),
            lately: Lately::default(),
            live_lately: Lately::default(),
            feed: Feed::new(config.limits.sample_interval, threads),
            valve,
        }
    }

    /// A report of these counters; `tally` has those of the acceptor.
    pub(super) fn report(
        &mut self,
        config: &ServerSetup,
        state: &State,
        tally: &Tally,
        snapshots: Vec<Snapshot>,
    ) -> Report {
        let mut report = self.without_advice(config, state, tally, snapshots);
        report.advise(&mut self.lately, processor_time());
        report
    }

    /// The same for the live page.
    pub(super) fn sample(
        &mut self,
        config: &ServerSetup,
        state: &State,
        tally: &Tally,
        snapshots: Vec<Snapshot>,
    ) -> Report {
        let mut report = self.without_advice(config, state, tally, snapshots);
        report.advise(&mut self.live_lately, processor_time());
        report
    }

    fn without_advice(
        &self,
        config: &ServerSetup,
        state: &State,
        tally: &Tally,
        snapshots: Vec<Snapshot>,
    ) -> Report {
        let facts = Facts {
            volumes: facts(&state.volumes),
            tiers: state.tiers.clone(),
            started: self.started,
            uptime: self.begun.elapsed(),
            memory: config.memory.as_ref().map(|tier| MemoryFacts {
                write: tier.write(),
                usage: tier.usage(),
                freezing: tier.freezing(),
            }),
            shedding: self.valve.as_ref().map(|valve| valve.facts()),
            service: self.service.clone(),
            log_lines_dropped: (config.log_lines_dropped)(),
            pair: config.turn.as_ref().map(|turn| turn.status()),
        };
        let mut report = Report::new(facts, snapshots);
        report.sum.tally += tally;
        report
    }
}

/// The processor time that the program has spent.
fn processor_time() -> Duration {
    let processor = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(processor.tv_sec as u64, processor.tv_nsec as u32)
}
