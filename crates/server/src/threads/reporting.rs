//! Reports on the whole server, from what the workers handed in and the control thread published.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use super::board::State;
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
    /// The shed controller, if anything may be shed.
    valve: Option<Arc<Valve>>,
}

impl Reporting {
    pub(super) fn new(config: &ServerSetup, valve: Option<Arc<Valve>>) -> Self {
        Self {
            begun: Instant::now(),
            started: SystemTime::now(),
            service: ServiceTimes::of(config.service.as_ref()),
            lately: Lately::default(),
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
        let processor = clock_gettime(ClockId::ProcessCPUTime);
        let processor = Duration::new(processor.tv_sec as u64, processor.tv_nsec as u32);
        report.advise(&mut self.lately, processor);
        report
    }
}
