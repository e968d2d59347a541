//! Throughput by simulation, event by event: the same networks, with any distribution of service
//! times.
//!
//! What exact analysis cannot see is seen here: other distributions than the exponential one,
//! requests of different outcomes at one station, cores held while waiting for a lock. The paper's
//! section 3.3 simulates its networks likewise; lookups take always the same time, and the disk too
//! unless said otherwise, as there.
//!
//! The mean and its 95 % interval are by batch means. A run goes on, its batches growing with it,
//! until the interval is as narrow as asked for, batches no longer resemble their neighbours, and
//! enough misses have been seen; its first quarter is left out.

mod batches;
mod calendar;
mod run;
mod shape;

pub use shape::Distribution;

use crate::{Load, ModelError, Network, bound::bound};
use batches::{BATCHES, Batches};
use run::Run;

/// The distributions of a simulation's times around their means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distributions {
    /// Those of list operations.
    pub service: Distribution,
    /// Those of the disk.
    pub disk: Distribution,
}

impl Default for Distributions {
    /// As in the paper.
    fn default() -> Self {
        Self { service: Distribution::Exponential, disk: Distribution::Deterministic }
    }
}

/// The length and precision of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// Half the 95 % interval shall be no more than this share of the mean.
    pub precision: f64,
    /// No further than so many visits, and requests without any.
    pub visits_max: u64,
    /// The seed of the random numbers: the same seed gives the same run.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { precision: 0.005, visits_max: 50_000_000, seed: 1 }
    }
}

/// The results of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// Throughput in million requests a second.
    pub throughput_mrps: f64,
    /// Half of its 95 % interval.
    pub ci95_mrps: f64,
    /// Visits to stations, and requests without any, in the whole run.
    pub visits: u64,
    /// Misses in the whole run.
    pub misses: u64,
    /// True if all that was asked for was reached.
    pub is_settled: bool,
}

/// Fewer are no sample: some for each batch.
const MISSES_MIN: u64 = 2000;
/// Batches that resemble their neighbours more are too short to be counted as independent.
const CORRELATION_MAX: f64 = 0.3;
/// The run begins with so many requests of each customer in flight, and no fewer than so many in
/// all.
const CYCLES_MIN: f64 = 50.0;
const REQUESTS_MIN: f64 = 10_000.0;

/// Simulates a network under a load.
///
/// # Errors
/// The load is none, or a request takes no time at all.
pub fn simulate(
    network: &Network,
    load: &Load,
    distributions: &Distributions,
    effort: &Effort,
) -> Result<Simulated, ModelError> {
    load.check()?;
    let most = bound(network, load);
    if !most.is_finite() {
        return Err(ModelError::NoWork);
    }
    let requests = (CYCLES_MIN * f64::from(load.mpl)).max(REQUESTS_MIN);
    let mut batches = Batches::of(requests / most / BATCHES as f64);
    let mut run = Run::new(network, load, distributions, effort.seed);
    let can_miss =
        network.outcomes().iter().any(|outcome| outcome.is_miss && outcome.probability > 0.0);
    loop {
        // Twice for each length: three quarters of the way, and at the end, where pairs of batches
        // become one.
        for ready in [BATCHES * 3 / 4, BATCHES] {
            if ready > batches.ready() {
                run.until(batches.end_of(ready), &mut batches);
                batches.note_ready(ready);
                let estimate = batches.estimate();
                let is_settled = estimate.half_width <= effort.precision * estimate.mean
                    && estimate.correlation <= CORRELATION_MAX
                    && (run.misses >= MISSES_MIN || !can_miss);
                if is_settled || run.visits >= effort.visits_max {
                    return Ok(Simulated {
                        throughput_mrps: estimate.mean,
                        ci95_mrps: estimate.half_width,
                        visits: run.visits,
                        misses: run.misses,
                        is_settled,
                    });
                }
            }
        }
        batches.grow();
    }
}
