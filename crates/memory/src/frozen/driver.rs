//! A cache's freeze controller and what it has seen so far.

use std::time::Duration;

use crate::frozen::controller::Controller;
use crate::frozen::observe::{Done, Latencies, Wake};
use crate::frozen::options::Freezing;
use crate::frozen::timing;

/// Holds what a cache has counted since it was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) lookups: u64,
    pub(crate) misses: u64,
    pub(crate) dynamic_hits: u64,
    pub(crate) insertions: u64,
    pub(crate) evictions: u64,
    pub(crate) latencies: Latencies,
}

/// The controller of a cache and what it has seen so far.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Freezing,
    pub(crate) controller: Controller,
    /// Where its time begins.
    pub(crate) began: Duration,
    pub(crate) wake: Wake,
    pub(crate) seen: Totals,
    pub(crate) done: Option<Done>,
    /// True if entries may be frozen of which the controller knows nothing.
    pub(crate) by_hand: bool,
}

impl Driver {
    pub(crate) fn new(options: Freezing) -> Self {
        Self {
            options,
            controller: Controller::new(options),
            began: timing::now(),
            wake: Wake { at: Duration::ZERO, lookups: u64::MAX },
            seen: Totals::default(),
            done: None,
            by_hand: false,
        }
    }

    /// Begins anew, after a caller has frozen or thawed the cache.
    pub(crate) fn restart(&mut self) {
        *self = Self { seen: self.seen, by_hand: true, ..Self::new(self.options) };
    }
}
