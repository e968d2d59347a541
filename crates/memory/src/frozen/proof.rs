//! Proves that a ratio that was just chosen pays, at work, before it is relied upon.
//!
//! The result of learning is a prediction, made of latencies from different moments: where the
//! machine was slow while the baseline was measured, freezing anything looks like a gain. So the
//! ratio is frozen with its index for short windows that take turns with windows of the merged
//! cache, in the order merged, frozen, frozen, merged, …, so that what changes slowly cancels. It
//! ends as soon as nothing is left to be hoped for; doubt counts against freezing.
//!
//! The merged cache beside it has just had a part that could not change, and lacks what would have
//! come in meanwhile. It gets a few lookups per entry to recover (the renewal of [`Warmth`]); hits
//! that are still missing against a cache that was left alone are added at the price of a miss.
//!
//! It is no `Trial` of the policy crate, though it compares with its sums and differences: a trial
//! knows windows only, and here a switch takes time (an index is built, the cache recovers), hits
//! that are lost beside the comparison have a price, and the number of looks is fixed ahead.

use std::time::Duration;

use floe_policy::trial::{Difference, Sums};

use super::observe::{Action, Done, Observations};
use super::shares::Prices;
use super::warmth::Warmth;
use super::windows::{Costs, WindowCounts, typical};

/// Length of a window, and what passes before it after a switch.
const WINDOW: Duration = Duration::from_millis(25);
const SETTLE: Duration = Duration::from_millis(5);
/// Tells what a window has at least, unless it takes so many times its length.
const SAMPLES_MIN: u64 = 30;
const LOOKUPS_MIN: u64 = 5_000;
const PATIENCE: u32 = 10;
/// Lookups per entry that a window has, unless it takes so many times its length: what was kept is
/// often asked for again only when a loop, or whatever else goes around, has come to it once more.
const LOOKUPS_PER_ENTRY: u64 = 4;
const LONG_PATIENCE: u32 = 100;
/// Rounds of a window each after which what was seen is looked at. At the first look a gain may be
/// certain, at the last it must.
const LOOKS: [usize; 3] = [4, 8, 16];
/// The chance that what does not pay is taken for a gain, over all looks.
const RISK: f64 = 0.05;
/// Tells what may be lost by hits alone, as a share, before the first look.
const HOPELESS_MARGIN: f64 = 0.02;

/// Tells how it goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Course {
    /// With this, and to be stepped on completion.
    Do(Action),
    /// To be stepped at this time.
    Wait(Duration),
    /// Freezing is faster beyond doubt. Nothing is frozen now.
    Pays(Difference),
    /// It is not, and why. Nothing is frozen if the second is true.
    Fails(String, bool),
}

#[derive(Debug, Clone)]
enum Stage {
    Freezing,
    Thawing,
    Recovering(Warmth),
    /// Tells what is seen before `from` does not count.
    Window {
        from: Duration,
        tally: WindowCounts,
    },
}

/// Turns with the frozen index and without.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    freeze: Action,
    /// A cache that was left alone.
    baseline: WindowCounts,
    /// Tells what is not sampled in a window.
    costs: Costs,
    stage: Stage,
    /// True if the index serves, or is about to.
    serves: bool,
    merged: Vec<WindowCounts>,
    served: Vec<WindowCounts>,
}

impl Proof {
    /// Of a merged cache that is warm. `freeze` asks for the index.
    pub(super) fn new(now: Duration, freeze: Action, baseline: WindowCounts, costs: Costs) -> Self {
        Self {
            freeze,
            baseline,
            costs,
            stage: Stage::Window { from: now, tally: WindowCounts::default() },
            serves: false,
            merged: Vec::new(),
            served: Vec::new(),
        }
    }

    /// Returns what was asked for and is not reported yet.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Freezing | Stage::Thawing)
    }

    /// Takes in what was seen.
    pub(super) fn step(&mut self, seen: &Observations) -> Course {
        match &mut self.stage {
            Stage::Freezing => {
                if let Some(Done::Constructed { entries, .. }) = seen.done {
                    if entries == 0 {
                        return Course::Fails(
                            "there is nothing that can be frozen".to_owned(),
                            false,
                        );
                    }
                    self.begin(seen.now + SETTLE);
                }
            }
            Stage::Thawing => {
                if seen.done == Some(Done::Thawed) {
                    self.stage = Stage::Recovering(Warmth::renewal(seen.now));
                }
            }
            Stage::Recovering(warmth) => {
                if warmth.add(seen).is_some() {
                    self.begin(seen.now);
                }
            }
            Stage::Window { from, tally } => {
                if seen.now > *from {
                    tally.add(seen);
                }
                let age = seen.now.saturating_sub(*from);
                let is_full = tally.samples() >= SAMPLES_MIN && tally.lookups() >= LOOKUPS_MIN;
                let went_around = tally.lookups() >= LOOKUPS_PER_ENTRY * seen.entries
                    || age >= WINDOW * LONG_PATIENCE;
                if age >= WINDOW
                    && went_around
                    && (is_full || age >= WINDOW * PATIENCE && tally.samples() > 0)
                {
                    let tally = *tally;
                    return self.close(tally, seen.now);
                }
            }
        }
        self.wait(seen.now)
    }

    fn begin(&mut self, from: Duration) {
        self.stage = Stage::Window { from, tally: WindowCounts::default() };
    }

    fn wait(&self, now: Duration) -> Course {
        Course::Wait(match &self.stage {
            Stage::Window { from, .. } if now < *from => *from,
            Stage::Window { from, .. } if now < *from + WINDOW => *from + WINDOW,
            Stage::Window { .. } => now + WINDOW / 2,
            Stage::Freezing | Stage::Thawing => now + WINDOW,
            Stage::Recovering(_) => now + SETTLE,
        })
    }

    /// A window is full: what is next?
    fn close(&mut self, window: WindowCounts, now: Duration) -> Course {
        if self.serves {
            self.served.push(window)
        } else {
            self.merged.push(window)
        }
        if self.serves
            && let Some(loss) = self.lost_hits()
        {
            return Course::Fails(
                format!("misses alone take longer than all requests did: {loss}"),
                false,
            );
        }
        let (merged, served) = (self.merged.len(), self.served.len());
        if merged == served
            && let Some(look) = LOOKS.iter().position(|&look| look == merged)
        {
            let found = self.found(RISK / LOOKS.len() as f64);
            let numbers =
                found.map_or_else(|| "too little was seen".to_owned(), |found| found.to_string());
            match found {
                Some(found) if found.is_gain(0.0) => return Course::Pays(found),
                Some(found) if found.gain > 0.0 && look + 1 < LOOKS.len() => {}
                _ => {
                    return Course::Fails(
                        format!("no gain is seen beside the merged cache: {numbers}"),
                        true,
                    );
                }
            }
        }
        // Of each two rounds the first begins merged and the second frozen.
        let serves = matches!((merged + served) % 4, 1 | 2);
        match (self.serves, serves) {
            (false, true) => {
                (self.serves, self.stage) = (true, Stage::Freezing);
                Course::Do(self.freeze)
            }
            (true, false) => {
                (self.serves, self.stage) = (false, Stage::Thawing);
                Course::Do(Action::Thaw)
            }
            _ => {
                self.begin(now);
                self.wait(now)
            }
        }
    }

    /// Returns what is lost for certain by hits alone, if that is too much: beside a cache that was
    /// left alone, and the one of just now.
    fn lost_hits(&self) -> Option<Difference> {
        let (prices, served) = (self.prices()?.at_best(), total(&self.served));
        let merged = total(&self.merged);
        let found = [&self.baseline, &merged].map(|before| prices.difference(before, &served));
        found
            .iter()
            .all(|found| found.is_some_and(|found| found.is_loss(HOPELESS_MARGIN)))
            .then_some(found[0]?)
    }

    /// As they were seen here, or as they were known before. A miss costs the same either way.
    pub(super) fn prices(&self) -> Option<Prices> {
        let everywhere = || self.merged.iter().chain(&self.served);
        let hit =
            typical(self.merged.iter(), WindowCounts::hit_latencies).or(self.costs.dynamic)?;
        let of = |sums: fn(&WindowCounts) -> Sums| typical(self.served.iter(), sums);
        Some(Prices {
            hit,
            frozen: of(|window| window.latencies.frozen).or(self.costs.frozen).unwrap_or(hit),
            dynamic: of(|window| window.latencies.dynamic).unwrap_or(hit),
            miss: typical(everywhere(), misses).or(self.costs.miss).unwrap_or(hit),
        })
    }

    /// The gain over all rounds.
    fn found(&self, risk: f64) -> Option<Difference> {
        let (merged, served) = self.means(risk);
        let rounds: Vec<_> = merged.into_iter().zip(served).collect();
        let found = Difference::paired(&rounds, risk)?;
        let missing = self.missing();
        Some(Difference { baseline: found.baseline - missing, gain: found.gain - missing, ..found })
    }

    /// Nanoseconds a request that hits take the merged cache which have not come back yet.
    fn missing(&self) -> f64 {
        let prices = self.prices().map_or(0.0, |prices| (prices.miss - prices.hit).max(0.0));
        let hits = |tally: &WindowCounts| tally.hit_ratio().unwrap_or(0.0);
        (hits(&self.baseline) - hits(&total(&self.merged))).max(0.0) * prices
    }

    /// Of the merged windows, as those of a cache that was left alone.
    pub(super) fn baseline_means(&self) -> Vec<f64> {
        let missing = self.missing();
        self.means(RISK).0.into_iter().map(|mean| mean - missing).collect()
    }

    /// Nanoseconds a request of each window, merged and served. Misses have one price in all of
    /// them unless it differs by more than its error: it may be a thousand times what else differs.
    fn means(&self, risk: f64) -> (Vec<f64>, Vec<f64>) {
        let sampled = |windows: &[WindowCounts]| -> Vec<f64> {
            windows
                .iter()
                .filter(|window| misses(window).count >= SAMPLES_FEW)
                .filter_map(|window| misses(window).mean())
                .collect()
        };
        let differs = Difference::between(&sampled(&self.merged), &sampled(&self.served), risk)
            .is_some_and(|found| !found.is_open());
        let price = |windows: &[WindowCounts]| {
            let own = typical(windows.iter(), misses).filter(|_| differs);
            own.or_else(|| typical(self.merged.iter().chain(&self.served), misses))
        };
        let means = |windows: &[WindowCounts]| {
            let costs = Costs { miss: price(windows), ..Costs::default() }.or(&self.costs);
            let mean = |window: &WindowCounts| {
                let mut window = *window;
                window.latencies.miss = Sums::default();
                window.mean(&costs).unwrap_or(f64::NAN)
            };
            windows.iter().map(mean).collect()
        };
        (means(&self.merged), means(&self.served))
    }
}

/// Fewer samples make no mean.
const SAMPLES_FEW: u64 = 4;

fn misses(window: &WindowCounts) -> Sums {
    window.latencies.miss
}

fn total(windows: &[WindowCounts]) -> WindowCounts {
    let mut total = WindowCounts::default();
    windows.iter().for_each(|window| total.merge(window));
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frozen::observe::Latencies;

    /// A machine that answers each order at once.
    struct Machine {
        /// Shares of frozen hits and of other hits, beside the index.
        shares: (f64, f64),
        frozen_ns: f64,
        /// By which everything is slower with each window.
        creeping: f64,
    }

    const ONE_IN: u64 = 100;
    const LOOKUPS: u64 = 100_000;
    const MISS: f64 = 5000.0;

    impl Machine {
        fn seen(&self, now: Duration, serves: bool, done: Option<Done>) -> Observations {
            let slower = 1.0 + self.creeping * now.as_secs_f64();
            let count = |share: f64| (share * LOOKUPS as f64) as u64;
            let sums = |requests: u64, ns: f64| {
                let (count, ns) = (requests / ONE_IN, ns * slower);
                Sums { count, sum: count as f64 * ns, squares: count as f64 * ns * ns }
            };
            let (frozen, dynamic) = if serves { self.shares } else { (0.0, 0.86) };
            let (frozen_hits, dynamic_hits) = (count(frozen), count(dynamic));
            let misses = LOOKUPS - frozen_hits - dynamic_hits;
            let latencies = Latencies {
                frozen: sums(frozen_hits, self.frozen_ns),
                dynamic: sums(dynamic_hits, 80.0),
                miss: sums(misses, MISS),
            };
            Observations {
                now,
                frozen_hits,
                dynamic_hits,
                misses,
                latencies,
                entries: 1000,
                done,
                ..Observations::default()
            }
        }

        /// Returns how it ends, and how often the index has served till then.
        fn end(&self) -> (Course, usize) {
            let baseline =
                WindowCounts { dynamic_hits: 860_000, misses: 140_000, ..WindowCounts::default() };
            let mut now = Duration::ZERO;
            let mut proof =
                Proof::new(now, Action::Freeze { ratio: 0.5 }, baseline, Costs::default());
            let (mut serves, mut done) = (false, None);
            for _ in 0..1000 {
                match proof.step(&self.seen(now, serves, done.take())) {
                    Course::Do(Action::Thaw) => (serves, done) = (false, Some(Done::Thawed)),
                    Course::Do(_) => {
                        let took = Duration::from_millis(1);
                        (serves, done) = (true, Some(Done::Constructed { took, entries: 500 }));
                    }
                    Course::Wait(at) => now = at.max(now + Duration::from_millis(1)),
                    end => return (end, proof.served.len()),
                }
            }
            panic!("it does not end");
        }
    }

    #[test]
    fn a_plain_gain_is_certain_at_the_first_look() {
        let (end, served) = Machine { shares: (0.6, 0.26), frozen_ns: 20.0, creeping: 0.0 }.end();
        let Course::Pays(gain) = end else { panic!("{end:?}") };
        // 0.6·60 of 0.86·80 + 0.14·5000.
        assert!((gain.gain - 36.0).abs() < 1.0 && (gain.baseline - 768.8).abs() < 1.0, "{gain}");
        assert_eq!(served, 4);
    }

    #[test]
    fn a_loss_ends_it_at_the_first_look_and_points_of_hits_after_one_window() {
        let (end, served) = Machine { shares: (0.6, 0.26), frozen_ns: 85.0, creeping: 0.0 }.end();
        assert!(matches!(end, Course::Fails(_, true)), "{end:?}");
        assert_eq!(served, 4);
        let (end, served) = Machine { shares: (0.6, 0.2), frozen_ns: 20.0, creeping: 0.0 }.end();
        assert!(matches!(end, Course::Fails(_, false)), "{end:?}");
        assert_eq!(served, 1);
    }

    #[test]
    fn a_machine_that_becomes_slower_all_the_while_is_not_taken_for_the_index() {
        // By a tenth from each window to the next, and no difference between the modes.
        for creeping in [4.0, -0.5] {
            let (end, _) = Machine { shares: (0.6, 0.26), frozen_ns: 80.0, creeping }.end();
            assert!(matches!(end, Course::Fails(_, true)), "{end:?}");
        }
    }
}
