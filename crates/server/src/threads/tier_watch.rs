//! A worker's watch over a tier: each change is reported to the control thread once.

use floe_block::BlockCache;

use super::messages::TierEvent;
use super::tier::TierKey;

/// A tier of a worker, and what the control thread knows of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TierWatch {
    pub(super) key: TierKey,
    pub(super) degraded: bool,
    pub(super) journal_lost: bool,
    /// A tier without a journal has no dirty data any more, or some that could not be written back.
    emptied: bool,
    blocked: bool,
    /// Some requests are refused.
    refusing: bool,
    /// Data has been lost.
    pub(super) has_lost: bool,
}

impl TierWatch {
    pub(super) fn new(key: TierKey) -> Self {
        let (degraded, journal_lost, emptied, blocked) = (false, false, false, false);
        Self { key, degraded, journal_lost, emptied, blocked, refusing: false, has_lost: false }
    }

    /// The changes of a tier's cache in this worker; they count as reported.
    pub(super) fn events(&mut self, worker: usize, cache: &BlockCache) -> Vec<TierEvent> {
        let mut events = Vec::new();
        let mut first = |is: bool, reported: &mut bool, event: TierEvent| {
            if is && !std::mem::replace(reported, is) {
                events.push(event);
            }
        };
        first(cache.is_degraded(), &mut self.degraded, TierEvent::Degraded);
        if cache.has_lost_journal() {
            first(true, &mut self.journal_lost, TierEvent::JournalLost);
            let emptied = cache.is_bypassed() && !self.emptied && cache.is_emptied();
            first(emptied, &mut self.emptied, TierEvent::Emptied { worker });
            let blocked = cache.is_blocked();
            first(blocked, &mut self.blocked, TierEvent::Blocked);
            self.blocked = blocked;
        }
        if self.degraded || self.has_lost || self.refusing {
            let refusing = cache.refused_bytes() > 0;
            if refusing != std::mem::replace(&mut self.refusing, refusing) {
                events.push(TierEvent::Refusing { worker, refusing });
            }
        }
        events
    }
}
