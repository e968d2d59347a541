//! The difference between two modes with its error, from the means of windows.
//!
//! Requests that follow one another resemble each other, so single latencies say much less than
//! their number suggests. The units here are the means of windows, which are nearly independent.
//! Extremes are cut off: a fifth of the windows at each end does not count, so that a stall of
//! milliseconds in a few of them changes nothing (Yuen, "The two-sample trimmed t for unequal
//! population variances", Biometrika 1974). So rarer effects of a variant go unnoticed.

use super::Mode;

/// Of the windows, the share that is cut off at each end.
const TRIM: f64 = 0.2;
/// Windows below which nothing is said.
const WINDOWS_MIN: usize = 4;
/// Steps of the integral behind Student's distribution.
const STEPS: usize = 1024;
/// Degrees of freedom above which more do not matter.
const FREEDOM_MAX: f64 = 500.0;

/// The amount by which the variant is lower than the baseline, in the unit of the measurement, as a
/// rule nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The mean of the baseline.
    pub baseline: f64,
    /// The baseline less the variant: positive when the variant is better.
    pub gain: f64,
    /// The true gain is within so much of [`gain`](Self::gain), with the confidence that was asked
    /// for.
    pub error: f64,
    /// The windows behind it, or pairs of them.
    pub windows: usize,
}

impl Difference {
    /// Compares rounds: the mean of a window in the baseline, and the one in the variant beside it.
    /// Slow changes cancel. `risk` is the chance to be wrong about the error, such as 0.01. `None`
    /// for too few rounds.
    pub fn paired(rounds: &[(f64, f64)], risk: f64) -> Option<Self> {
        let baseline = Trimmed::of(rounds.iter().map(|round| round.0))?;
        let gain = Trimmed::of(rounds.iter().map(|(baseline, variant)| baseline - variant))?;
        let error = student(risk, gain.freedom) * gain.variance.sqrt();
        Some(Self { baseline: baseline.mean, gain: gain.mean, error, windows: rounds.len() })
    }

    /// From windows that were not run side by side. `None` for too few on either side.
    pub fn between(baseline: &[f64], variant: &[f64], risk: f64) -> Option<Self> {
        let (one, other) =
            (Trimmed::of(baseline.iter().copied())?, Trimmed::of(variant.iter().copied())?);
        let variance = one.variance + other.variance;
        let share = |side: &Trimmed| side.variance * side.variance / side.freedom;
        // Welch's degrees of freedom; without any variance there is no doubt either.
        let freedom = if variance > 0.0 {
            variance * variance / (share(&one) + share(&other))
        } else {
            FREEDOM_MAX
        };
        Some(Self {
            baseline: one.mean,
            gain: one.mean - other.mean,
            error: student(risk, freedom) * variance.sqrt(),
            windows: baseline.len().min(variant.len()),
        })
    }

    /// Returns whether the variant is better by more than the error and this share of the baseline.
    pub fn is_gain(&self, margin: f64) -> bool {
        self.gain - self.error > margin * self.baseline
    }

    /// Returns whether it is worse by more than the error and this share of the baseline.
    pub fn is_loss(&self, margin: f64) -> bool {
        self.gain + self.error < -margin * self.baseline
    }

    /// Returns whether the error leaves open which of the two is better.
    pub fn is_open(&self) -> bool {
        self.gain.abs() <= self.error
    }

    /// The mode to go on with if there were no error.
    pub(super) fn would_choose(&self, current: Mode, margin: f64) -> Mode {
        Self { error: 0.0, ..*self }.choose(current, margin)
    }

    /// The mode to go on with. It takes a gain above the margin to enter the variant, and a loss to
    /// leave it.
    pub fn choose(&self, current: Mode, margin: f64) -> Mode {
        match current {
            Mode::Baseline if self.is_gain(margin) => Mode::Variant,
            Mode::Variant if self.is_loss(0.0) => Mode::Baseline,
            stay => stay,
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { baseline, gain, error, windows } = self;
        let percent = 100.0 / baseline;
        write!(
            f,
            "{:.1} ns against {baseline:.1} ns ({:+.1} ± {:.1} %, {windows} windows)",
            baseline - gain,
            -gain * percent,
            error * percent
        )
    }
}

/// The mean of what is left when extremes are cut off.
#[derive(Debug, Clone, Copy)]
struct Trimmed {
    mean: f64,
    /// Of the mean, not of the windows.
    variance: f64,
    freedom: f64,
}

impl Trimmed {
    /// `None` for too few values; those that are no number are left out.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        if values.len() < WINDOWS_MIN {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let cut = (values.len() as f64 * TRIM) as usize;
        let kept = &values[cut..values.len() - cut];
        let (least, most) = (kept[0], kept[kept.len() - 1]);
        let count = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / count;
        // The variance takes those that were cut off for the nearest that was kept.
        let pulled = values.iter().map(|value| value.clamp(least, most));
        let center = pulled.clone().sum::<f64>() / values.len() as f64;
        let squares: f64 = pulled.map(|value| (value - center).powi(2)).sum();
        Some(Self { mean, variance: squares / (count * (count - 1.0)), freedom: count - 1.0 })
    }
}

/// The mean of values without the extreme fifths; the plain mean of a few, `None` of none.
pub fn trimmed_mean(values: &[f64]) -> Option<f64> {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    match finite().count() {
        0 => None,
        few if few < WINDOWS_MIN => Some(finite().sum::<f64>() / few as f64),
        _ => Trimmed::of(finite()).map(|trimmed| trimmed.mean),
    }
}

/// Returns the number of standard errors that hold the truth except for a share of `risk`: the
/// two-sided quantile of Student's t.
///
/// With t = √ν·tan θ its density is that of cosᵛ⁻¹θ, which one walk from the far end adds up.
fn student(risk: f64, freedom: f64) -> f64 {
    let freedom = freedom.clamp(1.0, FREEDOM_MAX);
    let step = std::f64::consts::FRAC_PI_2 / STEPS as f64;
    let density = |at: usize| (at as f64 * step).cos().max(0.0).powf(freedom - 1.0);
    let strip = |at: usize| {
        (density(at) + 4.0 * ((at as f64 + 0.5) * step).cos().powf(freedom - 1.0) + density(at + 1))
            / 6.0
    };
    let whole: f64 = (0..STEPS).map(strip).sum();
    let mut tail = 0.0;
    for at in (0..STEPS).rev() {
        let next = tail + strip(at) / whole;
        if next >= risk {
            let into = (next - risk) / (next - tail).max(f64::MIN_POSITIVE);
            return freedom.sqrt() * ((at as f64 + into) * step).tan();
        }
        tail = next;
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_of_student_are_those_of_the_tables() {
        let known = [
            (0.05, 1.0, 12.706),
            (0.05, 2.0, 4.303),
            (0.05, 4.0, 2.776),
            (0.01, 4.0, 4.604),
            (0.01, 10.0, 3.169),
            (0.001, 30.0, 3.646),
            (0.05, 120.0, 1.980),
        ];
        for (risk, freedom, quantile) in known {
            let ours = student(risk, freedom);
            assert!((ours / quantile - 1.0).abs() < 0.002, "{ours} for {quantile}");
        }
    }

    #[test]
    fn a_trimmed_mean_is_worked_out_by_hand() {
        // Two of ten are cut off at each end; 3..=8 are left. Pulled to them, squares add up to
        // 2·2·2.5² + 2·(2.5² + 1.5² + .5²).
        let trimmed =
            Trimmed::of([1.0, 900.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0].into_iter()).unwrap();
        assert_eq!((trimmed.mean, trimmed.freedom), (5.5, 5.0));
        assert!((trimmed.variance - (25.0 + 17.5) / 30.0).abs() < 1e-12, "{}", trimmed.variance);
    }

    #[test]
    fn a_stall_in_one_window_decides_nothing() {
        let rounds: Vec<(f64, f64)> = (0..12)
            .map(|at| (100.0 + f64::from(at % 3), if at == 5 { 1e6 } else { 90.0 }))
            .collect();
        let difference = Difference::paired(&rounds, 0.01).unwrap();
        assert!(difference.is_gain(0.01) && difference.error < 2.0, "{difference}");
    }

    #[test]
    fn too_few_windows_and_those_that_are_no_numbers_say_nothing() {
        assert_eq!(Difference::paired(&[(1.0, 2.0); 3], 0.01), None);
        assert_eq!(
            Difference::between(&[1.0; 9], &[f64::NAN, f64::INFINITY, 1.0, 1.0], 0.01),
            None
        );
        assert_eq!(trimmed_mean(&[f64::NAN]), None);
    }

    #[test]
    fn windows_that_are_all_the_same_leave_no_doubt() {
        let difference = Difference::between(&[100.0; 8], &[99.0; 8], 0.01).unwrap();
        assert_eq!((difference.gain, difference.error), (1.0, 0.0));
    }
}
