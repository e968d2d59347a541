//! Load shedding in a replay, decided as a server does, by the replay's clock.

use std::time::{Duration, Instant};

use floe_block::{Driver, Shedder, shedding_options};
use serde::Serialize;

/// The shed controller and its measurements.
#[derive(Debug)]
pub(super) struct Shed {
    shedder: Shedder,
    begun: Instant,
    requests: u64,
    time: Duration,
}

/// A share of hits that was decided to be shed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShedDecision {
    /// When, since the start of the replay, by its clock.
    pub seconds: f64,
    /// The share from then on.
    pub share: f64,
    /// Why, in words and numbers.
    pub reason: String,
}

/// The results of shedding.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ShedOutcome {
    /// The share of hits that was shed in the end.
    pub share: f64,
    /// Bytes of hits that were read from the backing devices, without those of the warm-up.
    pub bytes: u64,
    /// The last decisions, newest last.
    pub decisions: Vec<ShedDecision>,
}

impl Shed {
    pub(super) fn new(most: f64, begun: Instant) -> Self {
        let shedder = Shedder::new(shedding_options(most));
        Self { shedder, begun, requests: 0, time: Duration::ZERO }
    }

    /// A request has ended.
    pub(super) fn served(&mut self, latency: Duration) {
        self.requests += 1;
        self.time += latency;
    }

    /// Decides, if it is time.
    pub(super) fn turn(&mut self, now: Instant, driver: &mut Driver) {
        let now = now.saturating_duration_since(self.begun);
        if now >= self.shedder.due() {
            driver.top_mut().shed(self.shedder.step(now, self.requests, self.time));
        }
    }

    /// Returns the results; the cache tells the bytes.
    pub(super) fn into_outcome(self) -> ShedOutcome {
        let decisions = self.shedder.decisions().iter().map(|decision| ShedDecision {
            seconds: decision.at.as_secs_f64(),
            share: decision.share,
            reason: decision.reason.clone(),
        });
        ShedOutcome { share: self.shedder.share(), bytes: 0, decisions: decisions.collect() }
    }
}
