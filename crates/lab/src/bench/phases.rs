//! Time and throughput by phase of the freeze controller.

use serde::Serialize;

use super::watch::Sample;

/// Frozen entries whose hit ratio is that far below the mean were chosen for a load that has moved
/// on.
const FEWER_HITS: f64 = 0.02;

/// The sum of a phase's parts of a measurement, warming up included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseTime {
    /// The phase, and that there were fewer hits than usual while entries were frozen.
    pub phase: String,
    /// Time in it.
    pub seconds: f64,
    /// Operations in it.
    pub operations: f64,
    /// Operations a second in it.
    pub ops_per_second: f64,
    /// Share of its lookups that hit.
    pub hit_ratio: f64,
    /// Share of its hits on frozen entries.
    pub frozen_share: f64,
}

impl PhaseTime {
    /// Sums what was seen up by phase, in the order in which phases first came. A look at the cache
    /// counts for the phase at its end.
    pub fn of(samples: &[Sample]) -> Vec<PhaseTime> {
        let mut all: Vec<PhaseTime> = Vec::new();
        let done = |sample: &Sample| sample.ops_per_second * sample.span;
        let operations: f64 = samples.iter().map(done).sum();
        let hits: f64 = samples.iter().map(|sample| sample.hit_ratio * done(sample)).sum();
        for sample in samples {
            let Some(phase) = sample.phase else { continue };
            let is_stale =
                sample.frozen_ratio > 0.0 && sample.hit_ratio < hits / operations - FEWER_HITS;
            let phase = format!("{phase}{}", if is_stale { ", fewer hits" } else { "" });
            let known = all.iter().position(|known| known.phase == phase);
            let at = known.unwrap_or_else(|| {
                all.push(PhaseTime {
                    phase: phase.clone(),
                    seconds: 0.0,
                    operations: 0.0,
                    ops_per_second: 0.0,
                    hit_ratio: 0.0,
                    frozen_share: 0.0,
                });
                all.len() - 1
            });
            let sum = &mut all[at];
            let operations = done(sample);
            sum.seconds += sample.span;
            sum.operations += operations;
            sum.hit_ratio += sample.hit_ratio * operations;
            sum.frozen_share += sample.frozen_share * sample.hit_ratio * operations;
        }
        for sum in &mut all {
            let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
            sum.frozen_share = share(sum.frozen_share, sum.hit_ratio);
            sum.hit_ratio = share(sum.hit_ratio, sum.operations);
            sum.ops_per_second = share(sum.operations, sum.seconds);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use floe_memory::Phase;

    use super::*;

    #[test]
    fn phases_are_summed_up_by_their_operations() {
        let sample = |phase, span, ops_per_second, hit_ratio, frozen_share| Sample {
            seconds: 0.0,
            span,
            ops_per_second,
            hit_ratio,
            frozen_share,
            frozen_ratio: frozen_share,
            phase,
        };
        let samples = [
            sample(None, 1.0, 7.0, 0.5, 0.0),
            sample(Some(Phase::Measuring), 1.0, 100.0, 0.5, 0.0),
            sample(Some(Phase::Frozen), 2.0, 200.0, 1.0, 0.5),
            sample(Some(Phase::Measuring), 3.0, 100.0, 0.9, 0.0),
            sample(Some(Phase::Frozen), 1.0, 50.0, 0.5, 0.5),
        ];
        let found = PhaseTime::of(&samples);
        assert_eq!(found.iter().map(|of| of.seconds).collect::<Vec<_>>(), [4.0, 2.0, 1.0]);
        assert_eq!(found[2].phase, "frozen, fewer hits");
        assert!((found[0].hit_ratio - 0.8).abs() < 1e-9);
        assert_eq!((found[1].ops_per_second, found[1].frozen_share), (200.0, 0.5));
    }
}
