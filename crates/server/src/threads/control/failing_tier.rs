//! Failing cache devices: the control thread records the failure and tells the workers.
//!
//! `restore` makes a device that only failed usable again. A *journal* that could not be written is
//! worse: its last state remains on the device. So before clients change data it describes, its
//! superblock records that it is invalid: first its clean data, then, when all dirty data has been
//! written back, all of it. A note that the device refuses goes into the state directory, where the
//! next start finds it, and is tried again later. Requests bypass the cache also where neither
//! takes it, and status, log and `/healthz` say what the next start must not do.

use std::ops::Range;
use std::time::{Duration, Instant};

use floe_block::{SECTOR_BYTES, VolumeId};

use super::super::known_tier::link;
use super::super::messages::{Message, TierEvent};
use super::super::tier::TierKey;
use super::core::Control;

/// The pause before a note is tried again.
const NOTE_AGAIN: Duration = Duration::from_secs(10);

/// Places with lost data that the log names, of each tier.
const MOST_LOST_LINES: u32 = 32;

impl Control {
    /// Handles a worker's event of a tier; events of a detached one are ignored.
    pub(super) fn tier_event(&mut self, key: TierKey, event: TierEvent) {
        let Some(tier) = self.at(key) else { return };
        match event {
            TierEvent::Degraded => self.degrade(tier),
            TierEvent::JournalLost => self.lose_journal(tier),
            TierEvent::Emptied { worker } => self.tier_emptied(worker, tier),
            TierEvent::Blocked => self.block_tier(tier),
            TierEvent::Refusing { worker, refusing } => self.tier_refuses(worker, tier, refusing),
            TierEvent::DataLost { volume, run } => self.lose_data(tier, volume, &run),
        }
    }

    /// Stops all workers from using a cache device that one has found failing.
    fn degrade(&mut self, tier: usize) {
        let key = self.tiers[tier].key;
        if !std::mem::replace(&mut self.tiers[tier].failing.degraded, true) {
            tracing::error!(
                tier,
                "the cache device is failing and is not used any more; `floe restore` tries it \
                 again"
            );
        }
        self.workers.tell_all(|| Message::Degrade { tier: key });
        self.note(tier);
    }

    /// Bypasses a cache whose journal a worker could not write, and writes its dirty data back.
    fn lose_journal(&mut self, tier: usize) {
        let key = self.tiers[tier].key;
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
        self.workers.tell_all(|| Message::Bypass { tier: key, stuck: false });
    }

    /// Refuses requests for dirty data of a tier without a journal that could not be written back.
    fn block_tier(&mut self, tier: usize) {
        let key = self.tiers[tier].key;
        let failing = &mut self.tiers[tier].failing;
        if failing.retired || std::mem::replace(&mut failing.stuck, true) {
            return;
        }
        tracing::error!(
            tier,
            "dirty data of the cache cannot be written back: requests for it are refused, others \
             are served past the cache; it is tried again every --flush-interval"
        );
        self.workers.tell_all(|| Message::Bypass { tier: key, stuck: true });
    }

    /// The part of one worker is clean. After the last part the tier is retired.
    fn tier_emptied(&mut self, worker: usize, tier: usize) {
        let key = self.tiers[tier].key;
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
                 was in it; without the state folder's note do not start floe with it again but \
                 with --initialise"
            ),
        }
        self.workers.tell_all(|| Message::Retire { tier: key });
    }

    /// A worker begins to refuse requests, or no longer does.
    fn tier_refuses(&mut self, worker: usize, tier: usize, refusing: bool) {
        let of = &mut self.tiers[tier].failing.refusing;
        let changed = if refusing { of.insert(worker) } else { of.remove(&worker) };
        if changed && refusing && of.len() == 1 {
            tracing::error!(tier, "requests for some dirty data of the cache are refused");
        } else if changed && of.is_empty() {
            tracing::info!(tier, "no requests are refused any more");
        }
    }

    /// A tier has found that the only copy of a run of a volume is gone.
    fn lose_data(&mut self, tier: usize, volume: VolumeId, run: &Range<u64>) {
        let known = &mut self.tiers[tier];
        known.lost_places += 1;
        if known.lost_places > MOST_LOST_LINES {
            return;
        }
        let offered =
            self.offer.all().iter().find(|offered| offered.ids.get(tier) == Some(&volume));
        let name = offered.map_or("one that is gone", |offered| offered.volume.name.as_str());
        tracing::error!(
            tier,
            volume = name,
            offset = run.start * SECTOR_BYTES,
            bytes = (run.end - run.start) * SECTOR_BYTES,
            "dirty data is lost, for the cache device has something else in its place: it reads \
             as an error until it is written anew"
        );
        if self.tiers[tier].lost_places == MOST_LOST_LINES {
            tracing::error!(
                tier,
                "of further places with lost data nothing is said here; `floe status` counts them"
            );
        }
    }

    /// Records in the superblock how much of a tier's data may be old, if that is still possible.
    pub(super) fn note(&mut self, tier: usize) {
        let written = self.tiers[tier].note();
        let failing = &mut self.tiers[tier].failing;
        let was_unnoted = std::mem::replace(&mut failing.unnoted, written.is_err());
        match written {
            Err(error) if !was_unnoted => {
                tracing::error!(
                    tier,
                    %error,
                    "the superblock of the cache could not be written; it is tried again"
                );
            }
            Ok(()) if was_unnoted => {
                tracing::info!(
                    tier,
                    "the superblock of the cache says by now that it is not to be used"
                );
            }
            _ => {}
        }
        // The peer tiers know of it, too: they may be there where the state directory is not.
        if let Err(error) = link(self.stack, self.tiers.iter_mut()) {
            tracing::error!(tier, %error, "the superblock of a peer tier could not be written");
        }
        let unnoted = self.tiers.iter().any(|tier| tier.failing.unnoted);
        self.note_again = unnoted.then(|| Instant::now() + NOTE_AGAIN);
    }

    /// Retries failed notes that are due.
    pub(super) fn note_when_due(&mut self) {
        if self.note_again.take_if(|due| *due <= Instant::now()).is_some() {
            self.note_unnoted();
        }
    }

    /// Retries failed notes.
    pub(super) fn note_unnoted(&mut self) {
        let unnoted = |tier: &usize| self.tiers[*tier].failing.unnoted;
        let unnoted: Vec<usize> = (0..self.tiers.len()).filter(unnoted).collect();
        unnoted.into_iter().for_each(|tier| self.note(tier));
    }
}
