//! Zipf's law: the key of rank r is asked for in proportion to r^-θ.
//!
//! Ranks are cut into cells: the first thousand stand alone, the others share cells 1/64 as wide as
//! their first rank. A cell is drawn from an alias table (Vose, 1991) in proportion to its width
//! times its first rank's weight, a rank uniformly from the cell, and it is kept with the
//! probability that corrects the difference. That follows the law exactly for any θ ≥ 0, takes a
//! few nanoseconds, and needs a table of some thousand cells for any number of keys. Nearly all
//! draws are kept without computing a power.

use super::parameter::{KEYS, Parameter, THETA, Type};
use super::rng::Rng;
use super::{Access, Entry, Generate, Made};

pub(super) static ZIPF: Entry = Entry {
    name: "zipf",
    about: "keys 0, 1, 2, … by Zipf's law, key 0 most often",
    parameters: &[
        KEYS,
        THETA,
        Parameter {
            name: "scatter",
            of: Type::Flag,
            default: "no",
            about: "spread popular keys over all",
        },
    ],
    chooses_ops: false,
    make: |spec, plan| {
        let (keys, theta) = (spec.whole("keys"), spec.real("theta"));
        let rng = Rng::new(plan.seed);
        let ranks = Ranks::new(keys, theta);
        let scatter = spec.flag("scatter").then(|| Scatter::new(keys));
        Ok(Made { span: keys, generator: Box::new(Zipf { rng, ranks, scatter }) })
    },
};

struct Zipf {
    rng: Rng,
    ranks: Ranks,
    scatter: Option<Scatter>,
}

impl Generate for Zipf {
    #[inline]
    fn next(&mut self) -> Access {
        let rank = self.ranks.draw(&mut self.rng);
        Access::to(self.scatter.as_ref().map_or(rank, |scatter| scatter.key(rank)))
    }
}

/// Ranks with a cell of their own.
const ALONE: u64 = 1024;
/// A wider cell is at most this part of its first rank wide.
const PART: u64 = 64;

/// Draws ranks, counted from 0.
#[derive(Debug, Clone)]
pub(super) struct Ranks {
    cells: Vec<Cell>,
    theta: f64,
    /// Every rank is at least this likely to be kept.
    kept_share: f64,
}

#[derive(Debug, Clone)]
struct Cell {
    /// Draws that fall below this stay here, the others go to `alias`.
    stay: u64,
    alias: u32,
    /// The first rank, counted from 1.
    first: u64,
    width: u64,
}

impl Ranks {
    /// The law of θ over `keys` ranks.
    pub(super) fn new(keys: u64, theta: f64) -> Self {
        let mut cells = Vec::new();
        let mut first = 1;
        while first <= keys {
            let width = if first <= ALONE { 1 } else { (first / PART).min(keys - first + 1) };
            cells.push(Cell { stay: u64::MAX, alias: 0, first, width });
            first += width;
        }
        let weights: Vec<f64> =
            cells.iter().map(|cell| cell.width as f64 * (cell.first as f64).powf(-theta)).collect();
        alias(&mut cells, &weights);
        let kept_share = (1.0 + 1.0 / PART as f64).powf(-theta);
        Self { cells, theta, kept_share }
    }

    /// The next rank.
    #[inline]
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let (index, place) = rng.place(self.cells.len() as u64);
            let mut cell = &self.cells[index as usize];
            if place >= cell.stay {
                cell = &self.cells[cell.alias as usize];
            }
            if cell.width == 1 {
                return cell.first - 1;
            }
            let (step, place) = rng.place(cell.width);
            let share = place as f64 / 18_446_744_073_709_551_616.0;
            let kept = || ((cell.first + step) as f64 / cell.first as f64).powf(-self.theta);
            if share < self.kept_share || share < kept() {
                return cell.first + step - 1;
            }
        }
    }
}

/// Vose's alias method: shares the draws out so that cell i gets `weights[i]` of their sum.
fn alias(cells: &mut [Cell], weights: &[f64]) {
    let scale = weights.len() as f64 / weights.iter().sum::<f64>();
    let mut shares: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
    let (mut small, mut large): (Vec<_>, Vec<_>) =
        (0..shares.len()).partition(|&i| shares[i] < 1.0);
    while let (Some(&rich), Some(poor)) = (large.last(), small.pop()) {
        cells[poor].stay = super::rng::threshold(shares[poor]);
        cells[poor].alias = rich as u32;
        shares[rich] -= 1.0 - shares[poor];
        if shares[rich] < 1.0 {
            large.pop();
            small.push(rich);
        }
    }
    // What is left has a whole share but for rounding; it keeps all of its draws.
    for index in small.into_iter().chain(large) {
        cells[index].alias = index as u32;
    }
}

/// Sends ranks to keys so that neighbours in rank lie far apart: rank times a number close to the
/// golden section of `keys`, modulo `keys`. One to one, because the two have no common divisor.
#[derive(Debug, Clone)]
pub(super) struct Scatter {
    keys: u64,
    factor: u64,
}

impl Scatter {
    pub(super) fn new(keys: u64) -> Self {
        let golden = ((keys as f64 * 0.618_033_988_749_894_9) as u64).max(1);
        let factor = (golden..).find(|&factor| divisor(factor, keys) == 1).unwrap_or(1);
        Self { keys, factor }
    }

    #[inline]
    pub(super) fn key(&self, rank: u64) -> u64 {
        match rank.checked_mul(self.factor) {
            Some(product) => product % self.keys,
            None => (u128::from(rank) * u128::from(self.factor) % u128::from(self.keys)) as u64,
        }
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chi-square statistic of draws against the law, in standard deviations from its mean.
    fn deviation(keys: u64, theta: f64, seed: u64) -> f64 {
        const DRAWS: u64 = 2_000_000;
        let (ranks, mut rng) = (Ranks::new(keys, theta), Rng::new(seed));
        let mut counts = vec![0u64; keys as usize];
        (0..DRAWS).for_each(|_| counts[ranks.draw(&mut rng) as usize] += 1);
        let weights: Vec<f64> = (1..=keys).map(|rank| (rank as f64).powf(-theta)).collect();
        let sum: f64 = weights.iter().sum();
        // Ranks in groups that expect at least 20 draws.
        let (mut chi_square, mut groups, mut count, mut expected) = (0.0, 0.0, 0.0, 0.0);
        for (&n, weight) in counts.iter().zip(&weights) {
            count += n as f64;
            expected += DRAWS as f64 * weight / sum;
            if expected >= 20.0 {
                chi_square += (count - expected) * (count - expected) / expected;
                groups += 1.0;
                (count, expected) = (0.0, 0.0);
            }
        }
        let freedom: f64 = groups - 1.0;
        if freedom < 1.0 { 0.0 } else { (chi_square - freedom) / (2.0 * freedom).sqrt() }
    }

    #[test]
    fn draws_follow_the_law_for_any_exponent() {
        for (keys, theta) in [
            (1, 1.0),
            (10, 0.0),
            (1024, 0.5),
            (1025, 1.0),
            (5000, 0.0),
            (20_000, 0.8),
            (100_000, 0.99),
        ]
        .into_iter()
        .chain([(100_000, 1.0), (50_000, 1.2), (3000, 2.0), (100_000, 0.2), (100, 5.0)])
        {
            let deviation = deviation(keys, theta, 7);
            assert!(deviation.abs() < 4.0, "{keys} keys, theta {theta}: {deviation}");
        }
    }

    #[test]
    fn scattered_keys_are_each_used_once() {
        for keys in [1, 2, 3, 10, 97, 1000, 65_536] {
            let scatter = Scatter::new(keys);
            let mut seen = vec![false; keys as usize];
            (0..keys).for_each(|rank| seen[scatter.key(rank) as usize] = true);
            assert!(seen.iter().all(|&seen| seen), "{keys}");
        }
    }
}
