//! Follows the leader: finds the expert with the fewest misses on the sample.
//!
//! Each expert's misses are summed, and old ones fade ([`HORIZON`]), so that the sums follow a load
//! that changes. Another expert takes over when its lead exceeds what a change costs. All experts
//! serve the same requests, so the noise of the sums is common to them and decides little.

use super::expert::{EXPERTS, Expert};
use crate::{Adaptation, Setting};

/// Number of sampled requests after which a miss counts 1/e, in multiples of the sampled entries.
const HORIZON: f64 = 100.0;
/// Least lead of an expert that takes over, as a share of the sampled entries: until the queues
/// have their new sizes, requests miss about so often in vain.
const COST: f64 = 0.01;
/// Least lead in a sample of a few entries.
const LEAD_MIN: f64 = 1.0;
/// Weight of a request at which all sums are scaled down, long before they lose precision.
const UNIT_MAX: f64 = 1e9;

/// The misses of the experts, and the expert that leads.
#[derive(Debug, Clone)]
pub(crate) struct Leader {
    leader: usize,
    /// Misses of each expert, in units of which a request now counts `unit`.
    misses: [f64; EXPERTS.len()],
    /// Requests, in the same units.
    requests: f64,
    /// Weight of a request now.
    unit: f64,
    /// Number of changes of the leader.
    switches: u64,
}

impl Default for Leader {
    fn default() -> Self {
        Self { leader: 0, misses: [0.0; EXPERTS.len()], requests: 0.0, unit: 1.0, switches: 0 }
    }
}

impl Leader {
    /// Takes a request to a sample of so many entries, with a bit set for each expert that missed
    /// it. Returns the expert that takes over, if one does.
    pub(crate) fn observe(&mut self, missed: u32, entries: usize) -> Option<usize> {
        let entries = entries.max(1) as f64;
        self.unit *= 1.0 + 1.0 / (HORIZON * entries);
        if self.unit > UNIT_MAX {
            self.misses.iter_mut().for_each(|misses| *misses /= self.unit);
            self.requests /= self.unit;
            self.unit = 1.0;
        }
        self.requests += self.unit;
        for (expert, misses) in self.misses.iter_mut().enumerate() {
            *misses += self.unit * f64::from(missed >> expert & 1);
        }
        let best = (0..EXPERTS.len())
            .min_by(|&one, &other| self.misses[one].total_cmp(&self.misses[other]))?;
        let lead = (self.misses[self.leader] - self.misses[best]) / self.unit;
        if lead <= (COST * entries).max(LEAD_MIN) {
            return None;
        }
        self.leader = best;
        self.switches += 1;
        Some(best)
    }

    /// Reports the estimates for all experts.
    pub(crate) fn adaptation(&self) -> Adaptation {
        let share = |misses: f64| if self.requests > 0.0 { misses / self.requests } else { 0.0 };
        let setting = |(at, expert): (usize, &Expert)| Setting {
            name: expert.name.into(),
            miss_ratio: share(self.misses[at]),
            orders: u64::from(at == self.leader),
        };
        Adaptation {
            settings: EXPERTS.iter().enumerate().map(setting).collect(),
            sampled_requests: self.requests / self.unit,
            switches: self.switches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misses of all experts but those given.
    fn all_but(hits: &[usize]) -> u32 {
        hits.iter().fold((1 << EXPERTS.len()) - 1, |missed, expert| missed & !(1 << expert))
    }

    #[test]
    fn an_expert_takes_over_when_its_lead_is_worth_a_change() {
        let mut leader = Leader::default();
        let taken = (1..100).find(|_| leader.observe(all_but(&[2]), 10).is_some());
        assert_eq!(taken, Some(2), "a lead of more than one miss is needed in a small sample");
        assert_eq!(leader.leader, 2);

        let mut leader = Leader::default();
        let taken = (1..1000).find(|_| leader.observe(all_but(&[2]), 1000).is_some());
        assert_eq!(taken, Some(11), "a lead of more than one in a hundred entries is needed");
    }

    #[test]
    fn experts_that_are_level_do_not_replace_each_other() {
        let mut leader = Leader::default();
        for request in 0..100_000 {
            let missed = all_but(&[request % EXPERTS.len()]);
            assert_eq!(leader.observe(missed, 100), None, "at request {request}");
        }
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut leader = Leader::default();
        (0..100_000).for_each(|_| {
            leader.observe(all_but(&[1]), 20);
        });
        assert_eq!(leader.leader, 1);
        // Without fading it would take as many requests again.
        let taken = (1..100_000).find(|_| leader.observe(all_but(&[3]), 20).is_some());
        assert!(taken.is_some_and(|taken| taken < 5_000), "{taken:?}");
        assert_eq!(leader.leader, 3);
    }
}
