//! The state of volumes and tiers that the control thread publishes, so that status, metrics and
//! health are answered while it works.

use std::sync::{Arc, Mutex, PoisonError};

use floe_block::Fault;

use crate::admin::{Reply, Trouble};
use crate::messages::Problem;
use crate::offer::{Offer, Offered};
use crate::status::{CacheFacts, Snapshot};
use crate::tier::Tier;

/// The reply of `/healthz` when all clients are served but the server needs attention.
const DEGRADED: Reply = Reply::Done("degraded");

/// The most recently published state, shared between threads.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Arc<PublishedState>>);

/// A snapshot of the volumes, the tiers and the server's health.
#[derive(Debug)]
pub(crate) struct PublishedState {
    /// All volumes, including those that are being removed.
    pub(crate) volumes: Vec<Offered>,
    pub(crate) tiers: Vec<CacheFacts>,
    /// The reply of `/healthz` without the state of mirrors.
    health: Reply,
}

impl Board {
    pub(crate) fn new(offer: &Offer, tiers: &[Tier]) -> Self {
        Self(Mutex::new(Arc::new(PublishedState::of(offer, tiers))))
    }

    pub(crate) fn publish(&self, offer: &Offer, tiers: &[Tier]) {
        let state = Arc::new(PublishedState::of(offer, tiers));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(crate) fn state(&self) -> Arc<PublishedState> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PublishedState {
    fn of(offer: &Offer, tiers: &[Tier]) -> Self {
        Self {
            volumes: offer.all().to_vec(),
            tiers: tiers.iter().map(Tier::facts).collect(),
            health: health(tiers),
        }
    }

    /// Returns a problem of a command for an admin client: one with a request names the volume.
    pub(crate) fn name_volume(&self, problem: Problem) -> Problem {
        let Problem::Request { volume, fault } = problem else { return problem };
        let offered = self.volumes.iter().find(|offered| offered.id == volume);
        let Some(Offered { volume, .. }) = offered else { return problem };
        let more = match fault {
            Fault::Io => "; the log of the server names the device",
            _ => "",
        };
        Problem::Other(format!("volume {:?}: {fault}{more}", volume.name))
    }

    /// Returns the reply of `/healthz`, including the present state of mirrors.
    pub(crate) fn health(&self) -> Reply {
        match &self.health {
            Reply::Done(_) if self.lacks_half() => DEGRADED,
            known => known.clone(),
        }
    }

    /// Returns whether a mirror is degraded. The mirrors are queried now, because their state
    /// changes without the control thread.
    pub(crate) fn lacks_half(&self) -> bool {
        self.tiers.iter().any(CacheFacts::lacks_half)
    }
}

fn health(tiers: &[Tier]) -> Reply {
    let mut failing = tiers.iter().enumerate();
    if let Some((at, tier)) = failing.find(|(_, tier)| !tier.failing.refusing.is_empty()) {
        let problem = format!(
            "requests are refused: tier {at} ({}) has dirty data that cannot be read or replaced; \
             floe status says how much",
            tier.facts.name
        );
        return Reply::trouble(Trouble::Refusing, problem);
    }
    let is_degraded = tiers.iter().any(|tier| tier.failing.degraded);
    if is_degraded { DEGRADED } else { Reply::Done("ok") }
}

/// Bytes of dirty data in each tier, from the top, and bytes that only memory has.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) tiers: Vec<u64>,
    pub(crate) held_bytes: u64,
}

impl Dirty {
    pub(crate) fn of(snapshots: &[Snapshot]) -> Self {
        let mut dirty = Self::default();
        for snapshot in snapshots {
            for (at, (stats, _)) in snapshot.tiers().enumerate() {
                dirty.tiers.resize(dirty.tiers.len().max(at + 1), 0);
                dirty.tiers[at] += stats.dirty_bytes;
                dirty.held_bytes += stats.held_bytes;
            }
        }
        dirty
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tiers.iter().sum()
    }

    /// Logs the amount of data that `kill -9` would lose.
    pub(crate) fn log(&self) {
        let (dirty_bytes, held_bytes) = (self.bytes(), self.held_bytes);
        match dirty_bytes + held_bytes {
            0 => tracing::warn!("still ending; kill -9 would lose nothing"),
            _ => tracing::warn!(
                dirty_bytes,
                held_bytes,
                "still flushing; kill -9 would lose what is dirty"
            ),
        }
    }
}
