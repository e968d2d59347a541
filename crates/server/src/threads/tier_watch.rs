//! A worker's watch over a tier: each change is reported to the control thread once.

use floe_block::{BlockCache, Driver, Sectors, VolumeId};

use super::messages::{Event, TierEvent};
use super::tier::TierKey;
use super::worker_outbox::WorkerOutbox;

/// A tier of a worker, and what the control thread knows of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TierWatch {
    key: TierKey,
    pub(super) degraded: bool,
    pub(super) journal_lost: bool,
    /// A tier without a journal has no dirty data any more, or some that could not be written back.
    emptied: bool,
    blocked: bool,
    /// Some requests are refused.
    refusing: bool,
}

impl TierWatch {
    pub(super) fn new(key: TierKey) -> Self {
        let (degraded, journal_lost, emptied, blocked) = (false, false, false, false);
        Self { key, degraded, journal_lost, emptied, blocked, refusing: false }
    }

    /// The changes of a tier's cache in this worker; they count as reported.
    pub(super) fn events(&mut self, worker: usize, cache: &BlockCache) -> Vec<TierEvent> {
        let condition = cache.condition();
        let mut events = Vec::new();
        let mut first = |is: bool, reported: &mut bool, event: TierEvent| {
            if is && !std::mem::replace(reported, is) {
                events.push(event);
            }
        };
        first(condition.is_degraded(), &mut self.degraded, TierEvent::Degraded);
        if condition.has_lost_journal() {
            first(true, &mut self.journal_lost, TierEvent::JournalLost);
            let emptied = condition.is_bypassed() && !self.emptied && condition.is_emptied();
            first(emptied, &mut self.emptied, TierEvent::Emptied { worker });
            let blocked = condition.is_blocked();
            first(blocked, &mut self.blocked, TierEvent::Blocked);
            self.blocked = blocked;
        }
        // A device that fails now and then is never degraded, and refuses what cannot be read.
        let refusing = condition.is_refusing();
        if refusing != std::mem::replace(&mut self.refusing, refusing) {
            events.push(TierEvent::Refusing { worker, refusing });
        }
        events
    }
}

/// The watches over all tiers of a worker, from the top.
pub(super) struct TierWatches {
    list: Vec<TierWatch>,
    /// Empty but for its memory.
    newly_lost: Vec<(VolumeId, Sectors)>,
}

impl TierWatches {
    pub(super) fn new(keys: impl Iterator<Item = TierKey>) -> Self {
        Self { list: keys.map(TierWatch::new).collect(), newly_lost: Vec::new() }
    }

    /// Returns the position of a tier, from the top; `None` when it is not there any more.
    pub(super) fn position(&self, key: TierKey) -> Option<usize> {
        self.list.iter().position(|watch| watch.key == key)
    }

    /// Returns the watch over a tier, unless that is not there any more.
    pub(super) fn of(&mut self, key: TierKey) -> Option<&mut TierWatch> {
        self.list.iter_mut().find(|watch| watch.key == key)
    }

    pub(super) fn insert(&mut self, at: usize, key: TierKey) {
        self.list.insert(at, TierWatch::new(key));
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.list.remove(at);
    }

    /// The cache devices of all tiers are used again.
    pub(super) fn restored(&mut self, driver: &mut Driver) {
        for (tier, watch) in self.list.iter_mut().enumerate() {
            watch.degraded = false;
            driver.tier_mut(tier).expect("workers have all tiers").restore();
        }
    }

    /// Reports changes of the tiers to the control thread.
    pub(super) fn report(&mut self, worker: usize, driver: &mut Driver, outbox: &WorkerOutbox) {
        for (tier, watch) in self.list.iter_mut().enumerate() {
            let tier = driver.tier_mut(tier).expect("workers have all tiers");
            tier.take_newly_lost(&mut self.newly_lost);
            for event in watch.events(worker, tier.cache()) {
                outbox.send(Event::Tier(watch.key, event));
            }
            for (volume, run) in self.newly_lost.drain(..) {
                outbox.send(Event::Tier(watch.key, TierEvent::DataLost { volume, run }));
            }
        }
    }
}
