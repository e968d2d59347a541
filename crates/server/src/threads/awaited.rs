//! Commands that a worker has begun and will reply to later.

use std::collections::HashMap;
use std::time::Instant;

use floe_block::{Fault, Tier, VolumeId};
use floe_device::Device;

use super::messages::Ticket;
use super::tier::TierKey;

/// The commands that a worker has begun, and what they have left for later ones.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) awaited: Vec<(Ticket, Awaited)>,
    pub(super) tier_change: TierChange,
    /// Devices of volumes to come.
    pub(super) opened: HashMap<String, Box<dyn Device>>,
    /// The worker begins no work of its own any more, such as cleaning.
    pub(super) resting: bool,
}

impl Commands {
    /// Replies to a command when this has come.
    pub(super) fn wait_for(&mut self, ticket: Ticket, awaited: Awaited) {
        self.awaited.push((ticket, awaited));
    }

    /// Returns whether the worker begins no work of its own: at the end, and while the I/O gate is
    /// shut.
    pub(super) fn is_resting(&self) -> bool {
        self.resting || self.tier_change.is_shut
    }

    /// Returns the time at which clients are broken off with.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |(_, awaited): &(Ticket, Awaited)| match awaited {
            Awaited::Quiet { until } | Awaited::Unused { until, .. } => *until,
            _ => None,
        };
        self.awaited.iter().filter_map(due).min()
    }
}

/// The condition for the reply to a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Awaited {
    /// All clients have their answers. At this time the worker disconnects clients that do not take
    /// them; `None` when that is done.
    Quiet { until: Option<Instant> },
    /// No client uses the volume. At this time the worker disconnects those that still do.
    Unused { volume: VolumeId, until: Option<Instant> },
    /// Nothing is under way for the volume in a tier: it can be removed there.
    Idle { tier: usize, volume: VolumeId },
    /// The sector that a volume's old end cuts is not in use: it can grow.
    Grown { volume: VolumeId, bytes: u64 },
    /// Nothing is under way at all.
    Rest,
    /// Nothing is under way at all, and the checksums of dirty data are noted, once that has
    /// `begun`.
    Noted { begun: bool },
    /// A step of attaching or detaching a tier.
    Tier(TierAwaited),
}

impl Awaited {
    /// The rest to await after a look at this time: clients that were broken off with end by
    /// themselves.
    pub(super) fn after(self, now: Instant) -> Self {
        let left = |until: Option<Instant>| until.filter(|until| *until > now);
        match self {
            Self::Quiet { until } => Self::Quiet { until: left(until) },
            Self::Unused { volume, until } => Self::Unused { volume, until: left(until) },
            _ => self,
        }
    }
}

/// The condition for the end of a step of attaching or detaching a tier.
#[derive(Debug, Clone, Copy)]
pub(super) enum TierAwaited {
    /// Nothing is under way below this tier.
    Quiet { above: TierKey },
    /// The tier below this one has written back all its dirty data of a volume.
    Emptied { above: TierKey },
    /// Nothing is under way in the tier below this one.
    Rest { above: TierKey },
}

/// A tier that a worker attaches or detaches.
#[derive(Default)]
pub(super) struct TierChange {
    /// The one to attach, its device open.
    pub(super) newcomer: Option<(TierKey, Tier)>,
    /// The I/O gate is shut, and something may be held back.
    pub(super) is_shut: bool,
    /// Drains of the one to detach that have ended, by ticket.
    pub(super) emptied: Vec<(u32, Result<(), Fault>)>,
}
