//! A cache device that fails: what the control thread writes down, tells the workers and lets an
//! operator do about it.
//!
//! A device that was only given up is used again after `floe restore`. A *journal* that could not
//! be written is another matter: it keeps saying what it said last. So before clients change what
//! it speaks of, it is written down that it does not count, first of what is clean, then, when all
//! that was dirty has been brought down, of everything. Each step is tried in the cache's own
//! superblock. A note that cannot be written is tried again later; requests go past the cache all
//! the same, and status, log and `/healthz` say what the next start must not do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::Kind;

use super::errand::{Admin, Then};
use super::front::Front;
use super::letter::{Deed, Instruction, Problem};
use super::tier::{KnownTier, TierKey};
use crate::admin::{Reply, Trouble};
use crate::kept::StartError;

/// How long to wait before a note is tried again.
const NOTE_AGAIN: Duration = Duration::from_secs(10);

/// How far a tier is from being used as it was.
#[derive(Debug, Default)]
pub(super) struct Failing {
    /// The cache device has been given up.
    pub(super) degraded: bool,
    /// The journal cannot be written.
    pub(super) journal_lost: bool,
    /// Some dirty data could not be brought down since.
    stuck: bool,
    /// Nothing that the cache has counts any more.
    pub(super) retired: bool,
    /// What the superblock is still to say of that.
    unnoted: bool,
    /// Workers in which nothing of it is dirty any more.
    emptied: BTreeSet<usize>,
    /// Workers that refuse requests for what they have of it.
    refusing: BTreeSet<usize>,
}

impl Failing {
    /// What is said of it in the status.
    pub(super) fn bypass(&self) -> &'static str {
        match self {
            Self { retired: true, unnoted: true, .. } => "ended-unnoted",
            Self { retired: true, .. } => "ended",
            Self { stuck: true, .. } => "stuck",
            Self { journal_lost: true, .. } => "emptying",
            _ => "",
        }
    }
}

impl Front {
    /// What `/healthz` answers.
    pub(super) fn health(&self) -> Reply {
        let failing = || self.tiers.iter().enumerate();
        if let Some((at, tier)) = failing().find(|(_, tier)| !tier.failing.refusing.is_empty()) {
            let problem = format!(
                "requests are refused: tier {at} ({}) has dirty data that cannot be read or \
                 replaced; floe status says how much",
                tier.name
            );
            return Reply::trouble(Trouble::Refusing, problem);
        }
        Reply::Done(if self.is_degraded() { "degraded" } else { "ok" })
    }

    /// Whether some tier's cache device has been given up.
    pub(super) fn is_degraded(&self) -> bool {
        self.tiers.iter().any(|tier| tier.failing.degraded)
    }

    /// A worker has found a cache device failing: none uses it from now on.
    pub(super) fn degrade(&mut self, key: TierKey) {
        let Some(tier) = self.at(key) else { return };
        if !std::mem::replace(&mut self.tiers[tier].failing.degraded, true) {
            tracing::error!(
                tier,
                "the cache device is failing and is not used any more; `floe restore` tries it \
                 again"
            );
        }
        self.tell_workers(&|| Instruction::Degrade { tier: key });
        self.note(tier);
    }

    /// A worker could not write a journal: requests go past the cache, and what is dirty in it is
    /// brought down.
    pub(super) fn lose_journal(&mut self, key: TierKey) {
        let Some(tier) = self.at(key) else { return };
        if std::mem::replace(&mut self.tiers[tier].failing.journal_lost, true) {
            return;
        }
        tracing::error!(
            tier,
            "the journal of the cache cannot be written: nothing is cached any more, and what is \
             dirty is written back"
        );
        self.tiers[tier].failing.degraded = true;
        self.note(tier);
        self.tell_workers(&|| Instruction::Bypass { tier: key, stuck: false });
    }

    /// Some dirty data of a tier without a journal could not be brought down: what would replace it
    /// is refused.
    pub(super) fn block_tier(&mut self, key: TierKey) {
        let Some(tier) = self.at(key) else { return };
        let failing = &mut self.tiers[tier].failing;
        if failing.retired || std::mem::replace(&mut failing.stuck, true) {
            return;
        }
        tracing::error!(
            tier,
            "dirty data of the cache cannot be written back: requests for it are refused, others \
             are served past the cache; it is tried again every --flush-interval"
        );
        self.tell_workers(&|| Instruction::Bypass { tier: key, stuck: true });
    }

    /// Nothing is dirty any more in a worker's part of a tier without a journal. After the last,
    /// nothing of the tier counts.
    pub(super) fn tier_emptied(&mut self, worker: usize, key: TierKey) {
        let Some(tier) = self.at(key) else { return };
        let workers = self.workers.len();
        let failing = &mut self.tiers[tier].failing;
        failing.emptied.insert(worker);
        if failing.emptied.len() < workers || std::mem::replace(&mut failing.retired, true) {
            return;
        }
        failing.stuck = false;
        self.note(tier);
        match self.tiers[tier].failing.unnoted {
            false => tracing::warn!(
                tier,
                "the cache was ended: the volumes have all that was in it, and the next start \
                 finds it empty"
            ),
            true => tracing::error!(
                tier,
                "the cache was ended, but its device cannot be told: the volumes have all that \
                 was in it; do not start floe with it again without --initialise"
            ),
        }
        self.tell_workers(&|| Instruction::Retire { tier: key });
    }

    /// A worker begins to refuse requests, or no longer does.
    pub(super) fn tier_refuses(&mut self, worker: usize, key: TierKey, refusing: bool) {
        let Some(tier) = self.at(key) else { return };
        let of = &mut self.tiers[tier].failing.refusing;
        let changed = if refusing { of.insert(worker) } else { of.remove(&worker) };
        if changed && refusing && of.len() == 1 {
            tracing::error!(tier, "requests for some dirty data of the cache are refused");
        } else if changed && of.is_empty() {
            tracing::info!(tier, "no requests are refused any more");
        }
    }

    /// At the end: data that nobody can read any more, if there is any.
    pub(super) fn says_what_is_lost(&self) -> Option<String> {
        if self.left_lost.bytes > 0 {
            return Some(self.left_lost.to_string());
        }
        let bytes = self.left_refused_bytes;
        (bytes > 0).then(|| {
            format!(
                "{} of dirty data are only on a cache device that fails: requests for them were \
                 refused",
                floe_block::format_size(bytes)
            )
        })
    }

    fn tell_workers(&self, instruction: &dyn Fn() -> Instruction) {
        self.workers.iter().for_each(|worker| worker.instructions.post(instruction()));
    }

    /// Writes down how much of what a tier has may be old, if that is still possible.
    fn note(&mut self, tier: usize) {
        let written = self.tiers[tier].note();
        let failing = &mut self.tiers[tier].failing;
        let was_unnoted = std::mem::replace(&mut failing.unnoted, written.is_err());
        match written {
            Err(error) if !was_unnoted => {
                tracing::error!(tier, %error, "the superblock of the cache could not be written; it is tried again");
            }
            Ok(()) if was_unnoted => {
                tracing::info!(
                    tier,
                    "the superblock of the cache says by now that it is not to be used"
                );
            }
            _ => {}
        }
        let unnoted = self.tiers.iter().any(|tier| tier.failing.unnoted);
        self.note_again = unnoted.then(|| Instant::now() + NOTE_AGAIN);
    }

    /// Tries again what could not be written down, when that is due.
    pub(super) fn note_what_is_due(&mut self) {
        if self.note_again.take_if(|due| *due <= Instant::now()).is_some() {
            self.note_unnoted();
        }
    }

    /// Tries again what could not be written down.
    pub(super) fn note_unnoted(&mut self) {
        let unnoted = |tier: &usize| self.tiers[*tier].failing.unnoted;
        let unnoted: Vec<usize> = (0..self.tiers.len()).filter(unnoted).collect();
        unnoted.into_iter().for_each(|tier| self.note(tier));
    }

    /// The first step of using cache devices again: whether they work.
    pub(super) fn restore(&mut self, admin: Admin) -> Result<(), Reply> {
        let refuse = |at: usize, problem: &dyn std::fmt::Display| {
            Err(Reply::trouble(Trouble::Failed, format!("tier {at} is not restored: {problem}")))
        };
        self.note_unnoted();
        let given_up = |tier: &usize| self.tiers[*tier].failing.degraded;
        for at in (0..self.tiers.len()).filter(given_up).collect::<Vec<_>>() {
            if let Err(error) = self.tiers[at].try_device() {
                return refuse(at, &format!("its cache device still fails: {error}"));
            }
            if self.tiers[at].failing.retired {
                let problem = "its cache was ended when its journal could not be written; start \
                               floe again to use the device again";
                return refuse(at, &problem);
            }
            if self.tiers[at].failing.journal_lost {
                let (tier, stuck) = (self.tiers[at].key, self.tiers[at].failing.stuck);
                self.tell_workers(&|| Instruction::Bypass { tier, stuck });
                let problem = "its journal could not be written, and what is dirty in it is being \
                               written back; start floe again after that";
                return refuse(at, &problem);
            }
        }
        // unless a worker says otherwise from here on
        self.tiers.iter_mut().for_each(|tier| tier.failing.degraded = false);
        self.ask_all(Deed::Restore, Then::Restored { admin });
        Ok(())
    }

    /// All workers use the cache devices again: a flush shows whether persistent ones take what is
    /// written.
    pub(super) fn cache_restored(&mut self, admin: Admin) {
        tracing::info!("the cache device is used again");
        match self.keeps_anything() {
            true => self.flush(self.offer.ids(), Kind::Flush, Then::Remembered { admin }),
            false => self.ask_all(Deed::Snapshot, Then::Remembered { admin }),
        }
    }

    /// What became old while a cache device was given up is forgotten durably, or could not be.
    pub(super) fn remembered(&mut self, admin: Admin, problem: Option<Problem>) {
        let failed = |tier: &KnownTier| tier.failing.degraded;
        let reply = match (self.tiers.iter().position(failed), problem) {
            (Some(at), _) => format!("tier {at} is not restored: its cache device fails again"),
            (None, Some(problem)) => {
                format!("the cache device is used again, but a flush failed: {problem}")
            }
            (None, None) => {
                for tier in 0..self.tiers.len() {
                    self.note(tier);
                }
                return self.tell_admin(admin, &Reply::Done("restored"));
            }
        };
        self.tell_admin(admin, &Reply::trouble(Trouble::Failed, reply));
    }
}

impl KnownTier {
    /// Writes down how much of what it has may be old.
    fn note(&mut self) -> Result<(), StartError> {
        let Self { keeper: Some(keeper), failing, .. } = self else { return Ok(()) };
        keeper.set_void(failing.degraded, failing.retired)
    }

    /// Whether its cache device takes and gives what it is to.
    fn try_device(&mut self) -> Result<(), StartError> {
        match &mut self.keeper {
            Some(keeper) => keeper.try_device(),
            None => crate::kept::try_volatile(&Arc::clone(&self.source), self.data_start),
        }
    }
}
