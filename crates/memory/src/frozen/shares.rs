//! Computes the worth of shares of hits at given prices.
//!
//! Latencies are noisy, and a machine changes its pace while they are compared. The number of hits,
//! and of those on frozen entries, is counted exactly. So where the difference is mostly hits, a
//! single window suffices: the loss by entries that should have left, or by an index that has grown
//! old, is seen within a fraction of a second.

use floe_policy::trial::Difference;

use super::windows::WindowCounts;

/// Standard errors that make a difference certain.
const ERRORS: f64 = 3.0;
/// Hits and misses come in bursts: shares vary by so many times what they would if each were drawn
/// by itself.
const BURSTS: f64 = 2.0;

/// Nanoseconds a request, by how it ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prices {
    /// A hit while nothing is frozen.
    pub(super) hit: f64,
    /// A hit on a frozen entry.
    pub(super) frozen: f64,
    /// A hit on another one beside a frozen index.
    pub(super) dynamic: f64,
    /// A miss, either way.
    pub(super) miss: f64,
}

impl Prices {
    /// By how much less the requests of `frozen` take than as many of `baseline` would, for nothing
    /// but their shares. `None` where one of the two has no requests.
    pub(super) fn difference(
        &self,
        baseline: &WindowCounts,
        frozen: &WindowCounts,
    ) -> Option<Difference> {
        let (before, after) = (baseline.hit_ratio()?, frozen.hit_ratio()?);
        let share = frozen.frozen_hits as f64 / frozen.lookups() as f64;
        let without = before * self.hit + (1.0 - before) * self.miss;
        let with = share * self.frozen + (after - share) * self.dynamic + (1.0 - after) * self.miss;
        let variance = share_variance(before, baseline.lookups()) * (self.miss - self.hit).powi(2)
            + share_variance(after, frozen.lookups()) * (self.miss - self.dynamic).powi(2)
            + share_variance(share, frozen.lookups()) * (self.dynamic - self.frozen).powi(2);
        Some(Difference {
            baseline: without,
            gain: without - with,
            error: ERRORS * variance.sqrt(),
            windows: 1,
        })
    }

    /// The same if hits took no time at all beside a frozen index: what is lost then is lost for
    /// certain.
    pub(super) fn at_best(&self) -> Self {
        Self { frozen: 0.0, dynamic: 0.0, ..*self }
    }
}

/// Of a share of so many requests. None of few is no proof that there are none at all.
pub(super) fn share_variance(share: f64, requests: u64) -> f64 {
    let requests = requests.max(1) as f64;
    let share = (share * requests + 1.0) / (requests + 2.0);
    BURSTS * share * (1.0 - share) / requests
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { hit: 80.0, frozen: 40.0, dynamic: 90.0, miss: 5000.0 };

    fn tally(frozen_hits: u64, dynamic_hits: u64, misses: u64) -> WindowCounts {
        WindowCounts { frozen_hits, dynamic_hits, misses, ..WindowCounts::default() }
    }

    #[test]
    fn four_points_of_hits_cost_more_than_faster_hits_save() {
        let found = PRICES
            .difference(&tally(0, 86_000, 14_000), &tally(60_000, 22_000, 18_000))
            .expect("requests");
        // 0.86·80 + 0.14·5000 less 0.6·40 + 0.22·90 + 0.18·5000.
        assert!(
            (found.baseline - 768.8).abs() < 1e-9 && (found.gain - (768.8 - 943.8)).abs() < 1e-9,
            "{found}"
        );
        assert!(found.is_loss(0.0));
    }

    #[test]
    fn a_few_requests_leave_it_open_and_none_say_nothing() {
        let few = PRICES.difference(&tally(0, 86_000, 14_000), &tally(6, 2, 2)).expect("requests");
        assert!(few.is_open(), "{few}");
        assert_eq!(PRICES.difference(&tally(0, 0, 0), &tally(6, 2, 2)), None);
        let all = PRICES.difference(&tally(0, 86_000, 14_000), &tally(0, 0, 20)).expect("requests");
        assert!(all.is_loss(0.0), "{all}");
    }

    #[test]
    fn what_is_lost_even_if_hits_took_no_time_is_less() {
        let (baseline, frozen) = (tally(0, 86_000, 14_000), tally(60_000, 22_000, 18_000));
        let [found, least] =
            [PRICES, PRICES.at_best()].map(|prices| prices.difference(&baseline, &frozen).unwrap());
        assert!(least.gain > found.gain && least.is_loss(0.1), "{least}");
    }
}
