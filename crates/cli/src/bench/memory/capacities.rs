//! Capacities of caches: from the arguments, or from simulations for a hit ratio.

use std::collections::HashMap;

use floe_lab::bench::{Curve, Found, Looped, PassOrder, capacity_for};
use floe_lab::simulate::stream::Stream;
use indicatif::ProgressBar;

use super::plan::{Capacity, Configuration};
use crate::error::CliError;

/// Difference to the requested hit ratio that is worth a message.
const FAR: f64 = 0.01;

/// Capacities of caches on a load.
pub(super) struct Capacities<'a> {
    looped: Option<Looped>,
    stream: &'a Stream,
    order: PassOrder,
    /// The curve of each policy.
    known: HashMap<String, Curve>,
}

impl<'a> Capacities<'a> {
    pub(super) fn new(stream: &'a Stream, order: PassOrder) -> Self {
        Self { looped: None, stream, order, known: HashMap::new() }
    }

    /// Returns the number of entries for a cache.
    pub(super) fn of(&mut self, cache: &Configuration, bar: &ProgressBar) -> Result<u64, CliError> {
        let capacity = match cache.capacity {
            Capacity::Size(size) => size.of(self.stream.distinct as u64),
            Capacity::HitRatio(ratio) => self.find(cache, ratio, bar),
        };
        if capacity == 0 {
            let keys = self.stream.distinct;
            return Err(CliError::usage(format!(
                "--capacity: a share of {keys} keys leaves room for nothing"
            )));
        }
        Ok(capacity)
    }

    fn find(&mut self, cache: &Configuration, ratio: f64, bar: &ProgressBar) -> u64 {
        let looped = self.looped.get_or_insert_with(|| Looped::new(self.stream, self.order));
        let known = self.known.entry(cache.policy.to_string()).or_default();
        bar.set_message(format!("{} for {ratio}", cache.policy));
        let Found { capacity, hit_ratio } = capacity_for(ratio, &cache.policy, looped, known);
        if (hit_ratio - ratio).abs() > FAR {
            let policy = &cache.policy;
            let nearest = format!("the nearest is {hit_ratio:.4}, with {capacity} entries");
            bar.suspend(|| eprintln!("floe: {policy} does not hit {ratio}; {nearest}"));
        }
        capacity
    }
}
