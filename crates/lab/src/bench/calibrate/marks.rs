//! The price of a mark that a hit writes: runs in which some requests miss.
//!
//! Where all requests hit, all entries are marked and no hit writes. Evictions take marks away, and
//! the next hit on such an entry writes its mark again, in a line that other processors hold. So
//! policies that mark run beside FIFO with room for half of the keys. Their requests take longer by
//! the marks that are written, whose number is counted over the policy's own code.

use std::collections::BTreeMap;

use floe_model::{ModelError, Operation, Time};
use floe_policy::registry::Choice;

use super::contention::computing;
use super::{Calibrate, CalibrateError, Hits, Known, LEAST_US, MeasureStep, Mixed};
use crate::simulate::operations::Candidate;

/// Keys for each entry of the cache: by Zipf's law nine requests in ten hit.
const KEYS_AN_ENTRY: usize = 2;

/// Runs in which the same cache holds a part of the keys.
pub(super) struct Marking {
    threads: usize,
    fifo: Mixed,
    runs: BTreeMap<String, Mixed>,
    /// Of the hits of each policy, those that write their mark.
    written: BTreeMap<String, f64>,
}

/// The known times of a policy.
pub(super) struct Around<'a> {
    pub(super) lookup_us: &'a [f64],
    pub(super) mark_us: f64,
    pub(super) fifo_visit: &'a Time,
    pub(super) visit: &'a Time,
}

impl Marking {
    /// Runs and counts.
    ///
    /// # Errors
    /// A run was not what it should be.
    pub(super) fn run(
        what: &Calibrate<'_>,
        choices: &[(Choice, Known)],
        progress: &mut impl FnMut(MeasureStep),
    ) -> Result<Self, CalibrateError> {
        let entries = what.load.keys() / KEYS_AN_ENTRY;
        let marking = choices.iter().filter(|(_, known)| known.hits == Hits::Mark);
        let policies: Vec<&Choice> =
            std::iter::once(&choices[1].0).chain(marking.map(|(choice, _)| choice)).collect();
        let mut runs = what.mixed(&policies, entries, progress)?;
        let fifo = runs.remove(0);
        let names = || policies[1..].iter().map(ToString::to_string);
        let mut written = BTreeMap::new();
        for name in names() {
            let candidate: Candidate = name.parse().expect("a policy of the bench can be counted");
            written.insert(name, written_share(&candidate, what, entries));
        }
        Ok(Self { threads: what.threads, fifo, runs: names().zip(runs).collect(), written })
    }

    /// Returns the price of a mark that a hit of a policy writes, repetition by repetition.
    ///
    /// # Errors
    /// A time is none.
    pub(super) fn price(&self, policy: &str, around: &Around<'_>) -> Result<Vec<f64>, ModelError> {
        let (run, written) = (&self.runs[policy], self.written[policy]);
        let computes = |run: &Mixed, visit: &Time, at: usize| {
            let throughput_mrps = self.threads as f64 / run.us[at];
            computing(visit, run.misses, self.threads as u32, throughput_mrps)
        };
        let mut prices = Vec::new();
        for (at, lookup_us) in around.lookup_us.iter().enumerate() {
            let fifo_us = computes(&self.fifo, around.fifo_visit, at)?;
            let miss_us = (fifo_us - lookup_us) / self.fifo.misses;
            let hits = 1.0 - run.misses;
            let unwritten_us = lookup_us + hits * around.mark_us + run.misses * miss_us;
            let beyond_us = computes(run, around.visit, at)? - unwritten_us;
            prices.push((beyond_us / (hits * written).max(LEAST_US)).max(LEAST_US));
        }
        Ok(prices)
    }
}

/// Returns the share of hits that write their mark.
fn written_share(candidate: &Candidate, what: &Calibrate<'_>, entries: usize) -> f64 {
    let counted = candidate.count(what.stream, entries as u64).counted;
    let hits = counted.outcomes.iter().find(|outcome| !outcome.is_miss);
    hits.map_or(0.0, |hits| {
        let marks = hits.operations.get(&("", Operation::WrittenMark));
        marks.copied().unwrap_or(0.0) / hits.requests as f64
    })
}
