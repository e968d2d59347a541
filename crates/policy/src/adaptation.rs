//! The report of a policy that changes its own settings: its estimate for each setting, and the
//! setting in use.

use std::borrow::Cow;
use std::fmt;

/// The settings that a policy chooses from, with its estimates.
///
/// [`Eviction::adaptation`](crate::Eviction::adaptation) returns it. The reports of several orders,
/// such as the shards of a cache, can be added.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Adaptation {
    /// The settings, the baseline first. A policy starts with the baseline.
    pub settings: Vec<Setting>,
    /// Number of recent requests, old ones counting less, that the estimates come from. They are
    /// requests for a sample of the keys.
    pub sampled_requests: f64,
    /// Number of changes from one setting to another.
    pub switches: u64,
}

/// A setting that a policy can take, with its estimated misses.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Setting {
    /// The policy that this setting is, as one chooses it by name.
    pub name: Cow<'static, str>,
    /// Estimated share of requests that miss under this setting; 0 before the first request.
    pub miss_ratio: f64,
    /// Number of orders that use the setting now. A cache has an order in each shard.
    pub orders: u64,
}

impl Adaptation {
    /// Adds the report of another order, which chooses from the same settings. Estimates are
    /// weighted by their requests.
    pub fn add(&mut self, other: &Self) {
        if self.settings.is_empty() {
            self.settings.clone_from(&other.settings);
            self.settings.iter_mut().for_each(|setting| setting.orders = 0);
        }
        let requests = self.sampled_requests + other.sampled_requests;
        let share = if requests > 0.0 { other.sampled_requests / requests } else { 0.0 };
        for (sum, part) in self.settings.iter_mut().zip(&other.settings) {
            debug_assert_eq!(sum.name, part.name, "orders of one cache have the same settings");
            sum.miss_ratio += (part.miss_ratio - sum.miss_ratio) * share;
            sum.orders += part.orders;
        }
        self.sampled_requests = requests;
        self.switches += other.switches;
    }

    /// Returns the setting that most orders use.
    pub fn in_use(&self) -> Option<&Setting> {
        self.settings.iter().rev().max_by_key(|setting| setting.orders) // of several, the first
    }
}

/// Writes one line: the setting in use, the estimates behind it, and the changes until now.
impl fmt::Display for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(used), Some(baseline)) = (self.in_use(), self.settings.first()) else {
            return f.write_str("no setting");
        };
        let all: u64 = self.settings.iter().map(|setting| setting.orders).sum();
        f.write_str(&used.name)?;
        if used.orders < all {
            write!(f, " in {} of {all} shards", used.orders)?;
        }
        if self.sampled_requests > 0.0 {
            write!(f, ", estimated to miss {:.1} %", used.miss_ratio * 100.0)?;
            if used.name != baseline.name {
                write!(f, "; {} {:.1} %", baseline.name, baseline.miss_ratio * 100.0)?;
            }
        }
        match self.switches {
            0 => f.write_str("; not changed"),
            1 => f.write_str("; changed once"),
            switches => write!(f, "; changed {switches} times"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(used: usize, miss_ratios: [f64; 2], sampled_requests: f64) -> Adaptation {
        let setting = |at: usize| Setting {
            name: ["fifo", "lru"][at].into(),
            miss_ratio: miss_ratios[at],
            orders: u64::from(at == used),
        };
        let settings = vec![setting(0), setting(1)];
        Adaptation { settings, sampled_requests, switches: used as u64 }
    }

    #[test]
    fn estimates_are_added_by_the_requests_behind_them() {
        let mut sum = Adaptation::default();
        for part in [
            report(1, [0.5, 0.25], 300.0),
            report(1, [0.9, 0.85], 100.0),
            report(0, [0.0, 0.0], 0.0),
        ] {
            sum.add(&part);
        }
        let miss_ratios = sum.settings.iter().map(|setting| setting.miss_ratio);
        let close = miss_ratios.zip([0.6, 0.4]).all(|(one, other)| (one - other).abs() < 1e-12);
        assert!(close, "{sum:?}");
        assert_eq!((sum.sampled_requests, sum.switches), (400.0, 2));
        assert_eq!(
            sum.to_string(),
            "lru in 2 of 3 shards, estimated to miss 40.0 %; fifo 60.0 %; changed 2 times"
        );
    }

    #[test]
    fn a_report_of_one_order_says_what_it_does() {
        let of = |report: Adaptation| report.to_string();
        assert_eq!(of(Adaptation::default()), "no setting");
        assert_eq!(of(report(0, [0.0, 0.0], 0.0)), "fifo; not changed");
        assert_eq!(of(report(0, [0.5, 0.6], 9.0)), "fifo, estimated to miss 50.0 %; not changed");
    }
}
