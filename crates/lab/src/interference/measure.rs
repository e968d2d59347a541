//! Rounds that take turns, and their medians.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::closed_loop::{Mix, Round, run};
use super::testbed::TestBed;
use crate::bench::Estimate;

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Sizes of operations in bytes.
    pub block_bytes: Vec<u64>,
    /// Shares of the operations that write, from 0 to below 1.
    pub write_shares: Vec<f64>,
    /// Operations in flight.
    pub depth: usize,
    /// Rounds at each size and share.
    pub rounds: usize,
    /// The length of each round.
    pub round: Duration,
}

impl Plan {
    /// Returns the number of all rounds.
    pub fn rounds_all(&self) -> usize {
        self.rounds * self.block_bytes.len() * self.write_shares.len()
    }
}

/// The results at a size and a share of writes: medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size of the operations.
    pub block_bytes: u64,
    /// Share of the operations that write.
    pub write_share: f64,
    /// Bytes read in a second.
    pub read_bytes_per_second: f64,
    /// Where the interval around their median begins, and where it ends.
    pub read_bytes_per_second_low: f64,
    /// See there.
    pub read_bytes_per_second_high: f64,
    /// Bytes written in a second.
    pub write_bytes_per_second: f64,
    /// Mean latency of a read.
    pub read_us_mean: f64,
    /// The latency that 99 % of the reads stay below.
    pub read_us_p99: f64,
    /// Mean latency of a write; `None` without writes.
    pub write_us_mean: Option<f64>,
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The device failed an operation.
    #[error("measuring failed: {0}")]
    Io(#[from] io::Error),
    /// A round was over before enough was read in it.
    #[error(
        "hardly anything was read in a round of {seconds} s; a larger --seconds leaves time for it"
    )]
    TooShort {
        /// Its length.
        seconds: f64,
    },
    /// It was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Measures a device; `progress` is told how many rounds have ended, and answers whether to go on.
///
/// # Errors
/// When the device fails, a round is too short for it, or `progress` says no.
pub fn measure(
    bed: &mut TestBed,
    plan: &Plan,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<Vec<Point>, MeasureError> {
    let mixes: Vec<Mix> = plan
        .block_bytes
        .iter()
        .flat_map(|&block_bytes| {
            let mix = move |&write_share: &f64| Mix { block_bytes, write_share, depth: plan.depth };
            plan.write_shares.iter().map(mix)
        })
        .collect();
    let mut rounds: Vec<Vec<Round>> = mixes.iter().map(|_| Vec::new()).collect();
    for number in 0..plan.rounds {
        for (at, (mix, rounds)) in mixes.iter().zip(&mut rounds).enumerate() {
            let round = run(bed, *mix, plan.round, number as u64)?;
            if !round.has_enough() {
                return Err(MeasureError::TooShort { seconds: plan.round.as_secs_f64() });
            }
            rounds.push(round);
            if !progress(number * mixes.len() + at + 1) {
                return Err(MeasureError::Interrupted);
            }
        }
    }
    Ok(mixes.iter().zip(&rounds).map(|(mix, rounds)| Point::of(mix, rounds)).collect())
}

impl Point {
    fn of(mix: &Mix, rounds: &[Round]) -> Self {
        let estimate = |of: &dyn Fn(&Round) -> f64| Estimate::of(rounds.iter().map(of));
        let bytes = mix.block_bytes as f64;
        let read = estimate(&|round| round.read_ns.len() as f64 * bytes / round.seconds);
        let writes = rounds.iter().filter(|round| !round.write_ns.is_empty());
        let write_us: Vec<f64> = writes.map(|round| round.write_ns.mean() / 1e3).collect();
        Self {
            block_bytes: mix.block_bytes,
            write_share: mix.write_share,
            read_bytes_per_second: read.median,
            read_bytes_per_second_low: read.low,
            read_bytes_per_second_high: read.high,
            write_bytes_per_second: estimate(&|round| {
                round.write_ns.len() as f64 * bytes / round.seconds
            })
            .median,
            read_us_mean: estimate(&|round| round.read_ns.mean() / 1e3).median,
            read_us_p99: estimate(&|round| round.read_ns.value_at_quantile(0.99) as f64 / 1e3)
                .median,
            write_us_mean: (!write_us.is_empty()).then(|| Estimate::of(write_us).median),
        }
    }
}
