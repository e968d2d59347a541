//! The board: the state of volumes and tiers that the control thread publishes, so that status,
//! metrics and health are answered while it works.

use std::sync::{Arc, Mutex, PoisonError};

use super::known_tier::KnownTier;
use super::offer::{Offer, Offered};
use crate::admin::{Reply, Trouble};
use crate::status::TierFacts;

/// All clients are served, and the server needs attention.
const DEGRADED: Reply = Reply::Done("degraded");

/// The state that was published last.
#[derive(Debug)]
pub(super) struct Board(Mutex<Arc<State>>);

/// The volumes and tiers at a moment.
#[derive(Debug)]
pub(super) struct State {
    /// Also those that are leaving.
    pub(super) volumes: Vec<Offered>,
    pub(super) tiers: Vec<TierFacts>,
    /// The reply of `/healthz`, as far as the control thread knows.
    health: Reply,
}

impl Board {
    pub(super) fn new(offer: &Offer, tiers: &[KnownTier]) -> Self {
        Self(Mutex::new(Arc::new(State::of(offer, tiers))))
    }

    pub(super) fn publish(&self, offer: &Offer, tiers: &[KnownTier]) {
        let state = Arc::new(State::of(offer, tiers));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn of(offer: &Offer, tiers: &[KnownTier]) -> Self {
        Self {
            volumes: offer.all().to_vec(),
            tiers: tiers.iter().map(KnownTier::facts).collect(),
            health: health(tiers),
        }
    }

    /// Returns the reply of `/healthz`.
    pub(super) fn health(&self) -> Reply {
        match &self.health {
            Reply::Done(_) if self.lacks_half() => DEGRADED,
            known => known.clone(),
        }
    }

    /// Returns whether a mirror is degraded. Mirrors are asked for their halves now: they change
    /// without the control thread.
    pub(super) fn lacks_half(&self) -> bool {
        self.tiers.iter().any(TierFacts::lacks_half)
    }
}

fn health(tiers: &[KnownTier]) -> Reply {
    let mut failing = tiers.iter().enumerate();
    if let Some((at, tier)) = failing.find(|(_, tier)| !tier.failing.refusing.is_empty()) {
        let problem = format!(
            "requests are refused: tier {at} ({}) has dirty data that cannot be read or replaced; \
             floe status says how much",
            tier.name
        );
        return Reply::trouble(Trouble::Refusing, problem);
    }
    let is_degraded = tiers.iter().any(|tier| tier.failing.degraded);
    if is_degraded { DEGRADED } else { Reply::Done("ok") }
}
