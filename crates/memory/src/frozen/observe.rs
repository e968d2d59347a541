//! Observations and actions of the freeze controller.
//!
//! The cache keeps a *frozen* bit with every entry, and counts a hit on an entry that has it as a
//! frozen hit, however the entry was found: by the frozen index, or by the index of everything when
//! there is no frozen one (while the controller learns) or it is bypassed. Nothing here knows
//! entries: shares and counts say all.

use std::time::Duration;

use floe_policy::trial::Sums;

/// Latencies in nanoseconds of the requests that were sampled, by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Latencies {
    /// Hits on entries that are frozen.
    pub(crate) frozen: Sums,
    /// Hits on others, with the promotion, and with the lookup in the frozen index that found
    /// nothing.
    pub(crate) dynamic: Sums,
    /// Misses from the first lookup to the end of the insertion, what was loaded between included.
    pub(crate) miss: Sums,
}

impl Latencies {
    /// Returns what came since another look.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let since = |now: Sums, before: Sums| Sums {
            count: now.count.saturating_sub(before.count),
            sum: now.sum - before.sum,
            squares: now.squares - before.squares,
        };
        Self {
            frozen: since(self.frozen, before.frozen),
            dynamic: since(self.dynamic, before.dynamic),
            miss: since(self.miss, before.miss),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.frozen += other.frozen;
        self.dynamic += other.dynamic;
        self.miss += other.miss;
    }
}

/// Holds what was asked for is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Done {
    /// [`Action::Thaw`]: all entries are in the order, the index is unpublished.
    Thawed,
    /// [`Action::Extend`]: this share of the entries is frozen now. Less than was asked for where
    /// entries cannot be frozen.
    Extended { share: f64 },
    /// [`Action::Freeze`] or [`Action::FreezeAll`]: the index is published. `took` is the time from
    /// the action to the publication, `entries` what the index holds.
    Constructed { took: Duration, entries: u64 },
}

/// Holds what has happened since the step before. Counts start at 0 with each step, so what is
/// reported together with `done` belongs to the way there and is not counted for what comes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Observations {
    /// Since any fixed start; never goes back.
    pub(crate) now: Duration,
    /// Hits on frozen entries.
    pub(crate) frozen_hits: u64,
    /// Hits on others.
    pub(crate) dynamic_hits: u64,
    /// Lookups that found nothing.
    pub(crate) misses: u64,
    /// Entries that came in under a new key.
    pub(crate) insertions: u64,
    /// Entries that left to make room.
    pub(crate) evictions: u64,
    /// Of the sampled requests among these.
    pub(crate) latencies: Latencies,
    /// Entries there are now.
    pub(crate) entries: u64,
    /// Of these, the frozen ones.
    pub(crate) frozen: u64,
    /// Entries there may be, as far as that is known: the limit of entries, or the number there is
    /// room for by weight.
    pub(crate) capacity: u64,
    /// Threads that looked something up since the step before; at least 1 where there were lookups.
    pub(crate) threads: u32,
    /// Tells what was completed, if anything. A completion brings the next step about.
    pub(crate) done: Option<Done>,
}

impl Observations {
    pub(crate) fn lookups(&self) -> u64 {
        self.frozen_hits + self.dynamic_hits + self.misses
    }
}

/// Holds what the cache is to do. One action is under way at a time: until it is [`Done`] the
/// controller asks for [`Action::Keep`] only, or for [`Action::Thaw`], which calls off whatever is
/// under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Action {
    /// Nothing.
    Keep,
    /// Everything back into the order (`Eviction::thaw`), the index unpublished and freed when no
    /// thread reads it.
    Thaw,
    /// Of each shard, freeze the entries that `Eviction::rank` names first until the frozen ones
    /// are this share of its entries, in bounded batches under the lock and without an index.
    /// Entries already frozen count, and stay.
    Extend {
        /// From 0 to 1.
        to: f64,
    },
    /// Thaw, rank anew, freeze this share of each shard's entries, build the index in the
    /// background and publish it. Entries that are already in an index that is published may be
    /// served by it until the new one takes its place.
    Freeze {
        /// From 0 to 1.
        ratio: f64,
    },
    /// The same with all entries, without thawing what is frozen already. Insertions after a miss
    /// are skipped from the publication on until the next [`Action::Thaw`] or [`Action::Freeze`].
    FreezeAll,
    /// Unpublish the index and keep it. Frozen entries stay frozen and are found by the index of
    /// everything. Takes effect within a moment and is not reported. Differences from the merged
    /// cache: hits on frozen entries are not promoted, and the dynamic part is smaller. So this
    /// shows the worth of the *index*, cheaply; the merged cache shows the worth of freezing.
    Bypass,
    /// Publish again the index that is bypassed. Takes effect within a moment and is not reported.
    Resume,
}

/// When to step the controller next: at that time, after so many lookups, or when something is
/// done; whatever comes first.
///
/// Its driver need not be exact: 5 ms late is early enough, and more lookups than wanted do no
/// harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wake {
    /// In the time of [`Observations::now`].
    pub(crate) at: Duration,
    /// Lookups since this step; `u64::MAX` when their number does not matter.
    pub(crate) lookups: u64,
}

/// The answer of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    /// To be started now.
    pub(crate) action: Action,
    /// When to come back.
    pub(crate) wake: Wake,
}
