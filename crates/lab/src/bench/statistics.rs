//! Medians and how sure they are.
//!
//! Nothing is assumed about how measurements scatter: the interval around a median runs between two
//! of the measurements themselves (order statistics), chosen so that it holds the true median with
//! at least 95 %. With fewer than six measurements no two are far enough apart; the interval is
//! then all of them, and its confidence says how sure that is.

/// The confidence that an interval has to reach.
const CONFIDENCE: f64 = 0.95;

/// A median, and the interval that holds the true one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the measurements.
    pub median: f64,
    /// Where the interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// The probability that it holds the true median: 0.95 or more, or less where the measurements
    /// were too few for that.
    pub confidence: f64,
}

impl Estimate {
    /// Of some measurements, in any order.
    ///
    /// # Panics
    /// Without any, or with one that is not a number.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = measurements.into_iter().collect();
        assert!(
            sorted.iter().all(|measurement| !measurement.is_nan()),
            "a measurement is a number"
        );
        sorted.sort_unstable_by(f64::total_cmp);
        let (count, middle) = (sorted.len(), sorted.len() / 2);
        assert!(count > 0, "a median is one of measurements");
        let median = if count % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        let (cut, confidence) = cut(count);
        Self { median, low: sorted[cut], high: sorted[count - 1 - cut], confidence }
    }

    /// Of the ratios of measurements to those made beside them.
    ///
    /// # Panics
    /// Where there are none, or the two are not equally many.
    pub fn of_ratios(measurements: &[f64], beside: &[f64]) -> Self {
        assert_eq!(measurements.len(), beside.len(), "ratios are of pairs");
        Self::of(measurements.iter().zip(beside).map(|(measurement, other)| measurement / other))
    }
}

/// Returns the number of measurements to leave off at each end, and the probability that the rest
/// surrounds the median.
fn cut(count: usize) -> (usize, f64) {
    // Each measurement is as likely below the median as above: the number of those below is
    // binomial.
    let halves = 0.5f64.powi(count.min(1000) as i32);
    let (mut exactly, mut outside) = (halves, halves);
    let confidence = |outside: f64| (1.0 - 2.0 * outside).max(0.0);
    let mut best = (0, confidence(outside));
    for below in 1..count.min(1000) / 2 {
        exactly *= (count.min(1000) - below + 1) as f64 / below as f64;
        outside += exactly;
        if confidence(outside) < CONFIDENCE {
            break;
        }
        best = (below, confidence(outside));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Ranks from tables of the binomial distribution with p = 1/2.
        for (count, low, high, confidence) in [
            (1, 1.0, 1.0, 0.0),
            (5, 1.0, 5.0, 0.9375),
            (6, 1.0, 6.0, 0.96875),
            (8, 1.0, 8.0, 0.9921875),
            (9, 2.0, 8.0, 0.9609375),
            (12, 3.0, 10.0, 0.961_425_781_25),
            (30, 10.0, 21.0, 0.957_226_054_7),
        ] {
            let estimate = Estimate::of((1..=count).rev().map(f64::from));
            assert_eq!((estimate.low, estimate.high), (low, high), "{count}");
            assert!(
                (estimate.confidence - confidence).abs() < 1e-9,
                "{count}: {}",
                estimate.confidence
            );
            assert_eq!(estimate.median, f64::from(count + 1) / 2.0);
        }
    }

    #[test]
    fn the_interval_holds_the_true_median_as_often_as_it_says() {
        let mut state = 1u64;
        let mut draw = || {
            state += 1;
            (floe_policy::mix(state) >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut held, runs) = (0, 20_000);
        let mut confidence = 0.0;
        for _ in 0..runs {
            let estimate = Estimate::of((0..15).map(|_| draw().powi(3)));
            confidence = estimate.confidence;
            held += u32::from((estimate.low..=estimate.high).contains(&0.125));
        }
        let share = f64::from(held) / f64::from(runs);
        assert!((share - confidence).abs() < 0.006, "{share} {confidence}"); // four standard errors
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        // A machine that slows down threefold between the pairs leaves their ratios alone.
        let estimate = Estimate::of_ratios(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]);
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn thousands_of_measurements_are_no_trouble() {
        let estimate = Estimate::of((0..5000).map(f64::from));
        assert!(estimate.low < estimate.median && estimate.median < estimate.high);
        assert!(estimate.confidence >= CONFIDENCE);
    }
}
