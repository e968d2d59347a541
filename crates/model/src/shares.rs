//! Shares of a policy's outcomes at a hit ratio: functions that the authors fitted to their
//! simulations.
//!
//! Which share of hits is in the protected segment, how many misses the ghosts know: that depends
//! on policy and load, not only on the hit ratio. The fits are to Zipf 0.99 and hold for p_hit of
//! 0.4 to 1.

/// Shares at a hit ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Of all requests, those that hit the protected segment of SLRU, or the main queue of 2Q.
    pub protected: f64,
    /// Of misses, those whose key is among the ghosts.
    pub ghost: f64,
    /// Of the small queue's evictions, those that go on to the main queue.
    pub moved_on: f64,
    /// Of misses, those that the filter of W-TinyLFU keeps out.
    pub rejected: f64,
    /// Entries passed by, on average, before one may leave.
    pub passed_by: f64,
}

/// Measured by the authors: hit ratio, share of misses that TinyLFU rejects.
const REJECTED: [(f64, f64); 4] = [(0.486, 0.79), (0.62, 0.77), (0.9, 0.53), (0.997, 0.0)];

impl Shares {
    /// The authors' fits.
    pub fn fitted(hit_ratio: f64) -> Self {
        let miss = 1.0 - hit_ratio;
        let protected = -0.1158 * hit_ratio * hit_ratio + 1.0112 * hit_ratio - 0.0009;
        let of_misses =
            |density: f64| if miss > 0.0 { (density / miss).clamp(0.0, 1.0) } else { 0.0 };
        Self {
            protected: protected.clamp(0.0, hit_ratio),
            ghost: of_misses(chi_squared(65.0 * miss, 4.4912, 1.1394, 3.595)),
            moved_on: of_misses(chi_squared(400.0 * miss, 2.2870, 4.5309, 26.5874)),
            rejected: between(&REJECTED, hit_ratio),
            passed_by: 2.43e-5 * (11.24 * hit_ratio).exp() + 0.187,
        }
    }
}

/// The density of the χ² distribution with `freedom` degrees, moved and stretched.
fn chi_squared(x: f64, freedom: f64, location: f64, scale: f64) -> f64 {
    let (x, half) = ((x - location) / scale, freedom / 2.0);
    if x <= 0.0 {
        return 0.0;
    }
    let log = (half - 1.0) * x.ln() - x / 2.0 - half * std::f64::consts::LN_2 - log_gamma(half);
    log.exp() / scale
}

/// The logarithm of Γ for arguments of at least 1: Stirling's series far out, and from there back
/// by Γ(x + 1) = x Γ(x).
fn log_gamma(x: f64) -> f64 {
    let (mut x, mut product) = (x, 1.0);
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

/// On the lines between points, and level outside.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let above = points.partition_point(|point| point.0 < x);
    if above == 0 || above == points.len() {
        return points[above.min(points.len() - 1)].1;
    }
    let ((x0, y0), (x1, y1)) = (points[above - 1], points[above]);
    y0 + (x - x0) / (x1 - x0) * (y1 - y0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(value: f64, printed: f64, digits: i32) {
        assert!(
            (value - printed).abs() <= 0.500_001 * 10f64.powi(-digits),
            "{value} is not {printed}"
        );
    }

    #[test]
    fn fits_have_the_authors_values() {
        // p1 and p2 as evaluated with SciPy.
        let known = [
            (0.4, 0.008, 0.0005),
            (0.6, 0.045, 0.003),
            (0.8, 0.22, 0.026),
            (0.9, 0.405, 0.097),
            (0.95, 0.399, 0.252),
            (0.98, 0.053, 0.637),
        ];
        for (hit_ratio, ghost, moved_on) in known {
            let shares = Shares::fitted(hit_ratio);
            close(shares.ghost, ghost, if ghost == 0.22 { 2 } else { 3 });
            close(shares.moved_on, moved_on, if hit_ratio == 0.4 { 4 } else { 3 });
        }
        for (hit_ratio, passed_by) in
            [(0.4, 0.19), (0.8, 0.38), (0.9, 0.79), (0.95, 1.24), (0.98, 1.66), (1.0, 2.04)]
        {
            close(Shares::fitted(hit_ratio).passed_by, passed_by, 2);
        }
    }

    #[test]
    fn shares_are_shares_at_any_hit_ratio() {
        for at in 0..=1000 {
            let hit_ratio = f64::from(at) / 1000.0;
            let Shares { protected, ghost, moved_on, rejected, .. } = Shares::fitted(hit_ratio);
            assert!((0.0..=hit_ratio).contains(&protected), "{hit_ratio}: {protected}");
            assert!(
                [ghost, moved_on, rejected].iter().all(|share| (0.0..=1.0).contains(share)),
                "{hit_ratio}"
            );
        }
    }

    #[test]
    fn log_gamma_knows_factorials_and_halves() {
        for (x, gamma) in [(1.0, 1.0f64), (2.0, 1.0), (5.0, 24.0), (11.0, 3_628_800.0)] {
            assert!((log_gamma(x) - gamma.ln()).abs() < 1e-9, "{x}");
        }
        assert!((log_gamma(1.5) - (std::f64::consts::PI.sqrt() / 2.0).ln()).abs() < 1e-9);
    }
}
