//! Distributions of service times around their means, and the random numbers they are drawn from.

use std::str::FromStr;

use crate::{ModelError, Time};

/// A form of distribution; the mean is the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Distribution {
    /// Without memory: what exact analysis assumes.
    #[default]
    Exponential,
    /// Always the mean.
    Deterministic,
    /// Short ones and long ones: two exponential phases that contribute the same to the mean, with
    /// this squared coefficient of variation.
    Hyperexponential(f64),
    /// As in the histogram of each operation, and exponential where there is none.
    Measured,
}

impl FromStr for Distribution {
    type Err = ModelError;

    /// `exponential`, `deterministic`, `measured`, or `hyperexponential:CV2` with the squared
    /// coefficient of variation.
    fn from_str(name: &str) -> Result<Self, ModelError> {
        let unknown = || ModelError::UnknownDistribution { name: name.to_owned() };
        match name.split_once(':') {
            None if name == "exponential" => Ok(Distribution::Exponential),
            None if name == "deterministic" => Ok(Distribution::Deterministic),
            None if name == "measured" => Ok(Distribution::Measured),
            Some(("hyperexponential", squared)) => {
                let squared: f64 = squared.parse().map_err(|_| unknown())?;
                if squared >= 1.0 && squared.is_finite() {
                    return Ok(Distribution::Hyperexponential(squared));
                }
                Err(ModelError::Variation { squared })
            }
            _ => Err(unknown()),
        }
    }
}

/// A distribution with mean 1, ready to be drawn from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Exponential,
    Constant,
    /// The probability of the short phase, and both means.
    Phases(f64, [f64; 2]),
    /// Columns of equal probability: a share of each is one value, the rest another (Walker's
    /// aliases).
    Table(Vec<(f64, [f64; 2])>),
}

impl Shape {
    pub(super) fn of(distribution: &Distribution, time: &Time) -> Self {
        match distribution {
            Distribution::Deterministic => Shape::Constant,
            Distribution::Hyperexponential(squared) => {
                let short = (1.0 + ((squared - 1.0) / (squared + 1.0)).sqrt()) / 2.0;
                Shape::Phases(short, [0.5 / short, 0.5 / (1.0 - short)])
            }
            Distribution::Measured if !time.histogram.is_empty() => {
                Shape::Table(aliases(&time.histogram))
            }
            Distribution::Exponential | Distribution::Measured => Shape::Exponential,
        }
    }

    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> f64 {
        match self {
            Shape::Exponential => random.exponential(),
            Shape::Constant => 1.0,
            Shape::Phases(short, means) => {
                means[usize::from(random.unit() >= *short)] * random.exponential()
            }
            Shape::Table(columns) => {
                let at = random.unit() * columns.len() as f64;
                let (share, values) = columns[at as usize];
                values[usize::from(at.fract() >= share)]
            }
        }
    }
}

/// Columns for a histogram, scaled to mean 1.
fn aliases(histogram: &[(f64, f64)]) -> Vec<(f64, [f64; 2])> {
    let total: f64 = histogram.iter().map(|(_, weight)| weight).sum();
    let mean = histogram.iter().map(|(us, weight)| us * weight).sum::<f64>() / total;
    let value = |at: usize| histogram[at].0 / mean;
    let number = histogram.len();
    let mut left: Vec<f64> =
        histogram.iter().map(|(_, weight)| weight / total * number as f64).collect();
    let mut columns: Vec<(f64, [f64; 2])> = (0..number).map(|at| (1.0, [value(at); 2])).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..number).partition(|&at| left[at] < 1.0);
    while let (Some(&filler), Some(lacking)) = (large.last(), small.pop()) {
        columns[lacking] = (left[lacking], [value(lacking), value(filler)]);
        left[filler] -= 1.0 - left[lacking];
        if left[filler] < 1.0 {
            large.pop();
            small.push(filler);
        }
    }
    columns
}

/// The SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    #[inline]
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// With mean 1.
    #[inline]
    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_mean_one_and_the_variation_asked_for() {
        let histogram: Vec<(f64, f64)> = vec![(0.5, 10.0), (1.0, 80.0), (3.0, 9.0), (100.0, 1.0)];
        let total: f64 = histogram.iter().map(|(_, weight)| weight).sum();
        let moment = |power| {
            histogram.iter().map(|(us, weight)| us.powi(power) * weight / total).sum::<f64>()
        };
        let of_histogram = moment(2) / moment(1).powi(2) - 1.0;
        let time = Time { histogram: histogram.clone(), ..Time::of(7.0) };
        for (distribution, squared) in [
            (Distribution::Exponential, 1.0f64),
            (Distribution::Deterministic, 0.0),
            (Distribution::Hyperexponential(4.0), 4.0),
            (Distribution::Hyperexponential(1.0), 1.0),
            (Distribution::Measured, of_histogram),
        ] {
            let shape = Shape::of(&distribution, &time);
            let mut random = Random::new(7);
            let draws: Vec<f64> = (0..1_000_000).map(|_| shape.draw(&mut random)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let second = draws.iter().map(|draw| draw * draw).sum::<f64>() / draws.len() as f64;
            let found = second / (mean * mean) - 1.0;
            // Five standard errors of the mean, and the seed is fixed.
            assert!(
                (mean - 1.0).abs() < 5.0 * (squared / 1e6).sqrt() + 1e-9,
                "{distribution:?}: mean {mean}"
            );
            assert!(
                (found - squared).abs() < 0.05 * squared + 1e-9,
                "{distribution:?}: {found} for {squared}"
            );
        }
    }
}
