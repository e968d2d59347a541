//! Generators that draw keys at random, and the basis of all random generators: reproducible random
//! numbers, and Zipf's law.

use super::spec::{KEYS, Parameter, THETA, Type};
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

/// Number of first ranks that have a cell each.
const ALONE: u64 = 1024;
/// Largest width of a shared cell, as a divisor of its first rank.
const PART: u64 = 64;

/// Draws ranks, counted from 0, by Zipf's law: the key of rank r is requested in proportion to
/// r^-θ.
///
/// Ranks are cut into cells: the first thousand have a cell each, the others share cells 1/64 as
/// wide as their first rank. A cell is drawn from an alias table (Vose, 1991) in proportion to its
/// width times its first rank's weight. A rank is drawn uniformly from the cell, and kept with the
/// probability that corrects the difference. That follows the law exactly for any θ ≥ 0, takes a
/// few nanoseconds, and needs a table of some thousand cells for any number of keys. Nearly all
/// draws are kept without computing a power.
#[derive(Debug, Clone)]
pub(super) struct Ranks {
    cells: Vec<Cell>,
    theta: f64,
    /// Lower bound of the probability that a drawn rank is kept.
    kept_share: f64,
}

#[derive(Debug, Clone)]
struct Cell {
    /// Threshold of random draws below which this cell is chosen; other draws choose `alias`.
    stay: u64,
    alias: u32,
    /// First rank of the cell, counted from 1.
    first: u64,
    width: u64,
}

impl Ranks {
    /// Creates Zipf's law with exponent `theta` over `keys` ranks.
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

    /// Draws a rank.
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

/// Fills the alias table by Vose's method, so that cell i is drawn in proportion to `weights[i]`.
fn alias(cells: &mut [Cell], weights: &[f64]) {
    let scale = weights.len() as f64 / weights.iter().sum::<f64>();
    let mut shares: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
    let (mut small, mut large): (Vec<_>, Vec<_>) =
        (0..shares.len()).partition(|&i| shares[i] < 1.0);
    while let (Some(&rich), Some(poor)) = (large.last(), small.pop()) {
        cells[poor].stay = threshold(shares[poor]);
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

/// Maps ranks to keys one to one so that neighbouring ranks lie far apart. The key is the rank
/// times a factor modulo `keys`; the factor is close to the golden section of `keys` and has no
/// common divisor with it.
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

/// A reproducible random generator: xoshiro256++ (Blackman and Vigna, 2018), seeded by SplitMix64.
///
/// It is implemented here because a trace named by a seed must stay the same after every update of
/// every dependency.
#[derive(Debug, Clone)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates the generator for a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { state: [(); 4].map(|()| split_mix(&mut state)) }
    }

    /// Returns 64 random bits.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a whole number below `end`, each equally likely (Lemire, 2019).
    #[inline]
    pub(super) fn below(&mut self, end: u64) -> u64 {
        let mut product = u128::from(self.next()) * u128::from(end);
        if (product as u64) < end {
            let unfair = end.wrapping_neg() % end;
            while (product as u64) < unfair {
                product = u128::from(self.next()) * u128::from(end);
            }
        }
        (product >> 64) as u64
    }

    /// Returns a whole number below `end`, and 64 more random bits for a second decision. They are
    /// the fraction that the reduction to `end` leaves. The error from uniform is below `end` in
    /// 2⁶⁴.
    #[inline]
    pub(super) fn place(&mut self, end: u64) -> (u64, u64) {
        let product = u128::from(self.next()) * u128::from(end);
        ((product >> 64) as u64, product as u64)
    }
}

/// Derives the seed of the `index`-th part from the seed of the whole.
pub(super) fn derived(seed: u64, index: u64) -> u64 {
    let mut state = seed ^ index.wrapping_mul(0xa076_1d64_78bd_642f);
    split_mix(&mut state)
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Returns the threshold for a share between 0 and 1: `rng.next() < threshold(share)` holds for
/// that share of draws.
pub(super) fn threshold(share: f64) -> u64 {
    (share * 18_446_744_073_709_551_616.0) as u64
}

pub(super) static UNIFORM: Entry = Entry {
    name: "uniform",
    about: "every key equally likely",
    parameters: &[KEYS],
    chooses_ops: false,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        Ok(Made { span: keys, generator: Box::new(Uniform { rng: Rng::new(plan.seed), keys }) })
    },
};

/// Every key equally likely: the hit ratio of any policy is the share of keys that the cache holds.
struct Uniform {
    rng: Rng,
    keys: u64,
}

impl Generate for Uniform {
    #[inline]
    fn next(&mut self) -> Access {
        Access::to(self.rng.below(self.keys))
    }
}

pub(super) static DRIFT: Entry = Entry {
    name: "drift",
    about: "Zipf's law whose popular keys change over time",
    parameters: &[
        KEYS,
        THETA,
        Parameter {
            name: "shift",
            of: Type::Count,
            default: "1",
            about: "number of keys by which the ranks shift",
        },
        Parameter {
            name: "every",
            of: Type::Count,
            default: "1000",
            about: "requests between two shifts",
        },
    ],
    chooses_ops: false,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let generator = Drift {
            rng: Rng::new(plan.seed),
            ranks: Ranks::new(keys, spec.real("theta")),
            keys,
            shift: spec.whole("shift") % keys,
            every: spec.whole("every"),
            start: 0,
            left: spec.whole("every"),
        };
        Ok(Made { span: keys, generator: Box::new(generator) })
    },
};

/// Zipf's law with changing popularity: at fixed intervals, each key takes over the rank of a key
/// further down.
///
/// It tests how fast a policy forgets: counts of the past mislead it, recency does not.
struct Drift {
    rng: Rng,
    ranks: Ranks,
    keys: u64,
    shift: u64,
    every: u64,
    /// Key that has the first rank now.
    start: u64,
    /// Requests until the next change of ranks.
    left: u64,
}

impl Generate for Drift {
    #[inline]
    fn next(&mut self) -> Access {
        if self.left == 0 {
            self.start = (self.start + self.shift) % self.keys;
            self.left = self.every;
        }
        self.left -= 1;
        let key = self.start + self.ranks.draw(&mut self.rng);
        Access::to(if key < self.keys { key } else { key - self.keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the chi-square statistic of draws against the law, in standard deviations from its
    /// mean.
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

#[cfg(test)]
mod rng_tests {
    use super::*;

    #[test]
    fn numbers_below_an_end_are_equally_likely() {
        let mut rng = Rng::new(1);
        let mut counts = [0u32; 10];
        (0..1_000_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - 1e5).powi(2) / 1e5).sum();
        assert!(chi_square < 27.9, "{chi_square}"); // one in a thousand at 9 degrees of freedom
    }

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of the authors' C code for the state 1, 2, 3, 4.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [41_943_041, 58_720_359, 3_588_806_011_781_223]
        );
    }
}
