//! Batch means: a run cut into stretches of equal length, each counted by itself.
//!
//! When all are full, pairs become one and there is room for as many again. So their number stays
//! within bounds, and their length grows with the run.

use crate::t_975;

/// Stretches of a run.
pub(super) const BATCHES: usize = 64;

/// Requests completed in each stretch.
pub(super) struct Batches {
    length_us: f64,
    per_us: f64,
    /// As many again as are simulated to: what is being served at the end completes after it.
    counts: [u64; 2 * BATCHES],
    ready: usize,
}

/// The estimate from batches.
pub(super) struct Estimate {
    /// Requests a microsecond.
    pub(super) mean: f64,
    /// Half of the 95 % interval.
    pub(super) half_width: f64,
    /// The correlation of a batch with the next: 0 without any.
    pub(super) correlation: f64,
}

impl Batches {
    pub(super) fn of(length_us: f64) -> Self {
        Self { length_us, per_us: 1.0 / length_us, counts: [0; 2 * BATCHES], ready: 0 }
    }

    /// Counts a request.
    #[inline]
    pub(super) fn completed(&mut self, at_us: f64) {
        let last = self.counts.len() - 1;
        self.counts[((at_us * self.per_us) as usize).min(last)] += 1;
    }

    /// When so many batches are over.
    pub(super) fn end_of(&self, batches: usize) -> f64 {
        batches as f64 * self.length_us
    }

    /// Returns the number of batches that are over.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn note_ready(&mut self, ready: usize) {
        self.ready = ready;
    }

    /// Makes one of each pair.
    pub(super) fn grow(&mut self) {
        for at in 0..BATCHES {
            self.counts[at] = self.counts[2 * at] + self.counts[2 * at + 1];
        }
        self.counts[BATCHES..].fill(0);
        self.length_us *= 2.0;
        self.per_us /= 2.0;
        self.ready /= 2;
    }

    /// From all that are over but the first quarter, while the run was warming up.
    pub(super) fn estimate(&self) -> Estimate {
        let kept = &self.counts[self.ready / 4..self.ready];
        let number = kept.len() as f64;
        let mean = kept.iter().sum::<u64>() as f64 / number;
        let off = |count: &u64| *count as f64 - mean;
        let squares: f64 = kept.iter().map(|count| off(count).powi(2)).sum();
        let neighbours: f64 = kept.windows(2).map(|pair| off(&pair[0]) * off(&pair[1])).sum();
        let standard_error = (squares / (number - 1.0) / number).sqrt();
        Estimate {
            mean: mean * self.per_us,
            half_width: t_975(number - 1.0) * standard_error * self.per_us,
            correlation: if squares > 0.0 { neighbours / squares } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_every_request_at_its_time() {
        let mut batches = Batches::of(1.0);
        (0..BATCHES).for_each(|at| (0..=at).for_each(|_| batches.completed(at as f64 + 0.5)));
        batches.note_ready(BATCHES);
        let all: u64 = batches.counts.iter().sum();
        batches.grow();
        assert_eq!((batches.ready(), batches.end_of(BATCHES / 2)), (BATCHES / 2, BATCHES as f64));
        assert_eq!(batches.counts.iter().sum::<u64>(), all);
        assert_eq!(batches.counts[..3], [3, 7, 11]);
    }
}
