//! Simulates caches over traces without devices.
//!
//! Policies are [compared](Reference) over many caches, each of a trace and a size. Those that know
//! the future or fetch what was not requested yet are set apart: their figures are relative to the
//! best of the others.

use floe_policy::registry::Choice;
use floe_policy::{POLICIES, admission};
use floe_trace::Kind;
use serde::Serialize;

use self::objects::{Run, SimulationResult};
use self::stream::{Keep, Stream};
use crate::sizes::{CacheSize, Sizes};

pub mod blocks;
pub mod hybrid;
pub mod objects;
pub mod operations;
mod policy_loop;
pub mod prompts;
pub mod stream;

/// Size in bytes of the blocks into which block traces are cut.
pub const BLOCK_BYTES: u64 = 4096;

/// Settings of the runs over one trace: all combinations of policies, admissions and sizes.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Eviction policies to compare.
    pub policies: Vec<Choice>,
    /// Lists of admission policies to compare; an empty list admits everything.
    pub admissions: Vec<Vec<admission::registry::Choice>>,
    /// Cache sizes to compare.
    pub sizes: Sizes,
    /// Number of objects below which a cache is left out.
    pub objects_min: u64,
    /// True to count capacity in bytes, by the sizes of objects.
    pub in_bytes: bool,
    /// Share of the keys to simulate, above 0 and at most 1.
    pub rate: f64,
}

/// Reasons why the runs of a grid are not possible.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GridError {
    /// Sizes are in bytes, but the trace has keys without sizes.
    #[error("a trace of keys has no sizes; give the size as a count or a share")]
    NoSizes,
    /// A cache size leaves room for no object.
    #[error("this share of {footprint} is less than one object ({policy})")]
    NoRoom {
        /// Footprint of the trace, in objects or bytes.
        footprint: u64,
        /// The policy of the run.
        policy: String,
    },
}

/// Instructions for reading a trace into a stream.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// The parts of the trace to keep.
    pub keep: Keep,
    /// Bytes in a unit of capacity: a block's size where sizes in bytes are counted in blocks, else
    /// 1.
    pub unit: u64,
}

impl Grid {
    /// Returns whether cache sizes are in bytes.
    pub fn counts_bytes(&self) -> bool {
        self.in_bytes || self.sizes.0.iter().any(|size| matches!(size, CacheSize::Bytes(_)))
    }

    /// Returns the parts of a trace to keep. Blocks of equal size need no sizes, except for an
    /// admission policy with parameters in bytes.
    ///
    /// # Errors
    /// When bytes are counted and the trace has no sizes.
    pub fn reading(&self, kind: Kind) -> Result<Reading, GridError> {
        let in_bytes = self.counts_bytes();
        if in_bytes && kind == Kind::Key {
            return Err(GridError::NoSizes);
        }
        let admits = self.admissions.iter().any(|admission| !admission.is_empty());
        let sizes = in_bytes && (kind != Kind::Block || admits);
        let next_use = self.policies.iter().any(|policy| policy.name() == "belady");
        let unit = if in_bytes && !sizes { BLOCK_BYTES } else { 1 };
        Ok(Reading { keep: Keep { rate: self.rate, sizes, next_use }, unit })
    }

    /// Returns the runs over a stream: by size, then by eviction policy, then by admission policy.
    /// Caches with too few objects are left out.
    ///
    /// # Errors
    /// When a cache size leaves room for no object.
    pub fn runs(&self, stream: &Stream, unit: u64) -> Result<Vec<Run>, GridError> {
        let footprint = (stream.footprint as f64 / stream.rate) as u64;
        let mut runs = Vec::new();
        for size in &self.sizes.0 {
            let size = size.of(footprint * unit) / unit;
            if size < self.objects_min {
                continue;
            }
            for policy in &self.policies {
                if size == 0 {
                    return Err(GridError::NoRoom { footprint, policy: policy.to_string() });
                }
                let run =
                    |admit: &Vec<_>| Run { policy: policy.clone(), size, admit: admit.clone() };
                runs.extend(self.admissions.iter().map(run));
            }
        }
        Ok(runs)
    }
}

/// Applies `work` to a list on all cores, and returns the results in order.
///
/// # Panics
/// When `work` panics.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let worker = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: the counter only hands out numbers; results travel by the join.
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a simulation does not panic"))
            .collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The name of the row that has the least misses of each cache.
const BEST: &str = "best of each";

/// Misses that count for a policy that misses nothing, so that ratios are defined.
const FEWEST_MISSES: f64 = 0.5;

/// A policy that others are compared with, among those of a grid.
#[derive(Debug, Clone)]
pub struct Reference {
    names: Vec<String>,
    is_apart: Vec<bool>,
    /// Place of the reference in each cache's results.
    place: usize,
}

/// The figures of a policy over all caches: the output fields of `floe simulate --relative-to`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The eviction policy with its parameters and the admission policy.
    pub policy: String,
    /// True if the policy is never the best: it knows the future, or fetches what was not requested
    /// yet.
    pub apart: bool,
    /// Number of caches compared, each of a trace and a size.
    pub caches: usize,
    /// Misses to those of the reference, as the geometric mean.
    pub misses_to_reference: f64,
    /// Number of caches in which no policy misses less.
    pub best_in: usize,
    /// Largest ratio of the misses to those of the best policy in the same cache.
    pub worst_to_best: f64,
    /// Share of the way from the reference to `belady`, by the mean miss ratio; `None` if `belady`
    /// is not among the policies or misses as often.
    pub gap_closed: Option<f64>,
    /// Points of the miss ratio, hundredths, behind the best policy: the median.
    pub behind_median: f64,
    /// Points behind the best policy that nine caches in ten do not exceed.
    pub behind_worst_tenth: f64,
    /// Points behind the best policy in the worst cache.
    pub behind_worst: f64,
}

impl Reference {
    /// Finds a policy of the grid by its name, as in the results.
    ///
    /// # Errors
    /// When the grid has no policy of this name. The error lists the names.
    pub fn named(name: &str, grid: &Grid) -> Result<Self, String> {
        let mut names = Vec::new();
        let mut is_apart = Vec::new();
        for policy in &grid.policies {
            let info = POLICIES.iter().map(|entry| &entry.info);
            let info = info.into_iter().find(|info| info.name == policy.name());
            for admit in &grid.admissions {
                names.push(objects::name(policy, admit));
                is_apart.push(info.is_some_and(|info| info.next_uses || info.streams));
            }
        }
        match names.iter().position(|known| known == name) {
            Some(place) => Ok(Self { names, is_apart, place }),
            None => Err(format!("it is none of the policies compared: {}", names.join(", "))),
        }
    }

    /// Returns the name of the reference.
    pub fn name(&self) -> &str {
        &self.names[self.place]
    }

    /// Compares all policies of the grid. `traces` has the results of each trace, in the order of
    /// the grid's [runs](Grid::runs). Returns the best of each cache first, then the policies by
    /// their misses.
    pub fn compare(&self, traces: &[Vec<SimulationResult>]) -> Vec<Comparison> {
        let caches: Vec<CellResults<'_>> = traces
            .iter()
            .flat_map(|results| results.chunks(self.names.len()))
            .map(|results| CellResults { results, best: self.best(results) })
            .collect();
        if caches.is_empty() {
            return Vec::new();
        }
        let belady = self.names.iter().position(|name| name == "belady");
        let mean = |misses: &dyn Fn(&CellResults<'_>) -> f64| {
            caches.iter().map(misses).sum::<f64>() / caches.len() as f64
        };
        let ratio_of =
            |place: usize| move |cache: &CellResults<'_>| cache.results[place].miss_ratio;
        let row = |policy: &str, apart, result: &dyn Fn(&CellResults<'_>) -> (f64, f64)| {
            let ratio = |cache: &CellResults<'_>| result(cache).1;
            let reference = mean(&ratio_of(self.place));
            let gap = belady.map(|belady| reference - mean(&ratio_of(belady)));
            let logs = caches.iter().map(|cache| {
                let of_reference = cache.misses(self.place);
                (result(cache).0 / of_reference).ln()
            });
            let mut behind: Vec<f64> = caches
                .iter()
                .map(|cache| (ratio(cache) - cache.results[cache.best].miss_ratio) * 100.0)
                .collect();
            behind.sort_by(f64::total_cmp);
            let last = behind.len() - 1;
            Comparison {
                policy: policy.to_owned(),
                apart,
                caches: caches.len(),
                misses_to_reference: (logs.sum::<f64>() / caches.len() as f64).exp(),
                best_in: behind.iter().filter(|&&behind| behind <= 0.0).count(),
                worst_to_best: caches
                    .iter()
                    .map(|cache| result(cache).0 / cache.misses(cache.best))
                    .fold(0.0, f64::max),
                gap_closed: gap
                    .filter(|&gap| gap > 0.0)
                    .map(|gap| (reference - mean(&ratio)) / gap),
                behind_median: (behind[last / 2] + behind[behind.len() / 2]) / 2.0,
                behind_worst_tenth: behind[(behind.len() * 9).div_ceil(10) - 1],
                behind_worst: behind[last],
            }
        };
        let of_policies = self.names.iter().zip(&self.is_apart).zip(0..);
        let mut rows: Vec<_> = of_policies
            .map(|((name, &is_apart), place)| {
                row(name, is_apart, &|cache| (cache.misses(place), cache.results[place].miss_ratio))
            })
            .collect();
        rows.sort_by(|a, b| a.misses_to_reference.total_cmp(&b.misses_to_reference));
        let best = |cache: &CellResults<'_>| {
            (cache.misses(cache.best), cache.results[cache.best].miss_ratio)
        };
        rows.insert(0, row(BEST, false, &best));
        rows
    }

    /// Returns the place of the fewest misses, of policies apart only if there are no others.
    fn best(&self, results: &[SimulationResult]) -> usize {
        let misses = |place: &usize| (self.is_apart[*place], results[*place].miss_ratio);
        let order = |a: &usize, b: &usize| {
            let (a, b) = (misses(a), misses(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        (0..results.len()).min_by(order).unwrap_or(self.place)
    }
}

/// The results of all policies for one trace and size.
struct CellResults<'a> {
    results: &'a [SimulationResult],
    /// Place of the policy with the fewest misses.
    best: usize,
}

impl CellResults<'_> {
    fn misses(&self, place: usize) -> f64 {
        (self.results[place].misses as f64).max(FEWEST_MISSES)
    }
}

#[cfg(test)]
mod comparison_tests {
    use super::*;

    fn grid(policies: &[&str]) -> Grid {
        Grid {
            policies: policies.iter().map(|name| name.parse().expect("registered")).collect(),
            admissions: vec![Vec::new()],
            sizes: Sizes(vec![CacheSize::Percent(1.0)]),
            objects_min: 0,
            in_bytes: false,
            rate: 1.0,
        }
    }

    /// Results of a cache with 100 requests.
    fn results(policies: &[&str], misses: &[u64]) -> Vec<SimulationResult> {
        let result = |(policy, &misses): (&&str, &u64)| SimulationResult {
            policy: (*policy).to_owned(),
            misses,
            miss_ratio: misses as f64 / 100.0,
            ..SimulationResult::default()
        };
        policies.iter().zip(misses).map(result).collect()
    }

    #[test]
    fn the_figures_are_those_counted_by_hand() {
        let policies = ["lru", "arc", "belady"];
        let reference = Reference::named("lru", &grid(&policies)).expect("it is there");
        let of = |misses: &[u64]| results(&policies, misses);
        // One trace with two sizes, and one with one.
        let traces = [[of(&[40, 10, 10]), of(&[10, 40, 5])].concat(), of(&[50, 50, 25])];
        let rows = reference.compare(&traces);
        let names: Vec<_> = rows.iter().map(|row| &row.policy[..]).collect();
        assert_eq!(names, ["best of each", "belady", "lru", "arc"]);
        let is = |at: usize, expected: [f64; 7]| {
            let row = &rows[at];
            let gap = row.gap_closed.expect("belady is there");
            let behind = [row.behind_median, row.behind_worst_tenth, row.behind_worst];
            let found = [row.misses_to_reference, row.best_in as f64, row.worst_to_best, gap];
            for (found, expected) in found.iter().chain(&behind).zip(expected) {
                assert!((found - expected).abs() < 1e-9, "{row:?}: not {expected}");
            }
            assert_eq!(row.caches, 3);
        };
        let mean = |product: f64| product.cbrt();
        is(0, [mean(0.25), 3.0, 1.0, 0.5, 0.0, 0.0, 0.0]); // of 100, 70 and 40 misses in all
        is(1, [mean(0.25 * 0.5 * 0.5), 3.0, 1.0, 1.0, -5.0, 0.0, 0.0]);
        is(2, [1.0, 2.0, 4.0, 0.0, 0.0, 30.0, 30.0]);
        is(3, [mean(0.25 * 4.0), 2.0, 4.0, 0.0, 0.0, 30.0, 30.0]);
        assert_eq!(
            rows.iter().map(|row| row.apart).collect::<Vec<_>>(),
            [false, true, false, false]
        );
    }

    #[test]
    fn a_tenth_of_the_caches_may_be_worse_than_the_worst_tenth() {
        let policies = ["lru", "arc"];
        let reference = Reference::named("arc", &grid(&policies)).expect("it is there");
        let caches = |count: u64| -> Vec<_> {
            (0..count).flat_map(|behind| results(&policies, &[10 + behind, 10])).collect()
        };
        let worst_tenth = |count| {
            let rows = reference.compare(&[caches(count)]);
            rows.iter().find(|row| row.policy == "lru").map(|row| row.behind_worst_tenth.round())
        };
        assert_eq!(worst_tenth(20), Some(17.0), "18 and 19 are the tenth");
        assert_eq!(worst_tenth(1), Some(0.0));
        assert_eq!(reference.compare(&[]), []);
    }

    #[test]
    fn no_misses_count_as_half_a_miss() {
        let policies = ["lru", "arc"];
        let reference = Reference::named("lru", &grid(&policies)).expect("it is there");
        let rows = reference.compare(&[results(&policies, &[0, 4])]);
        assert!((rows[2].misses_to_reference - 8.0).abs() < 1e-9, "{rows:?}");
        assert_eq!((rows[2].gap_closed, rows[0].misses_to_reference), (None, 1.0));
    }

    #[test]
    fn a_reference_that_is_not_compared_is_refused() {
        let error = Reference::named("fifo", &grid(&["lru", "arc"])).expect_err("it is not there");
        assert_eq!(error, "it is none of the policies compared: lru, arc");
    }
}
