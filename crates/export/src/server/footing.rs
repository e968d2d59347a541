//! A worker's part in the tiers it stands on: what it has of each, and how one comes or goes, a
//! step for each deed.
//!
//! While the seam is shut where that happens, the worker begins nothing that nobody asks for, so
//! that what stands still below stays so.

use std::sync::Arc;
use std::time::Instant;

use floe_block::{BlockCache, Driver, Exchange, Fault, PartJournal};
use floe_device::{OpenError, Pool, Ring};

use super::letter::{News, Outcome, Problem, TierDeed};
use super::tier::TierKey;
use super::volume::DeviceSource;
use super::worker::Worker;

/// What a worker has of a tier, before its device is open there.
#[derive(Debug)]
pub(super) struct BeginningTier {
    pub(super) key: TierKey,
    pub(super) cache: BlockCache,
    /// Where the tier outlives the program.
    pub(super) journal: Option<PartJournal>,
    /// Where the data begins on the device otherwise, in bytes.
    pub(super) data_start: u64,
    pub(super) exchange: Exchange,
    pub(super) source: Arc<dyn DeviceSource>,
}

impl BeginningTier {
    /// Opens its device for a thread.
    pub(super) fn open(self, ring: &Ring, pool: &Pool) -> Result<Driver, OpenError> {
        let Self { cache, journal, data_start, exchange, source, .. } = self;
        let device = source.open(ring, pool)?;
        let tier = Driver::of_part(cache, device, pool.clone(), Some(exchange));
        Ok(tier.with_clock(Instant::now).with_data_at(data_start).with_journal(journal))
    }
}

/// A tier that a worker has, and what has been told the front desk of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) key: TierKey,
    pub(super) degraded: bool,
    pub(super) journal_lost: bool,
    /// Without a journal: nothing is dirty, or some of it could not be brought down.
    pub(super) emptied: bool,
    pub(super) blocked: bool,
    /// Some requests are refused.
    pub(super) refusing: bool,
    /// Data has been lost.
    pub(super) has_lost: bool,
}

impl Told {
    pub(super) fn nothing(key: TierKey) -> Self {
        let (degraded, journal_lost, emptied, blocked) = (false, false, false, false);
        Self { key, degraded, journal_lost, emptied, blocked, refusing: false, has_lost: false }
    }

    /// What is news of a tier's cache in this worker; it counts as told.
    pub(super) fn news(&mut self, worker: usize, cache: &BlockCache) -> Vec<News> {
        let (tier, mut news) = (self.key, Vec::new());
        let mut first = |is: bool, told: &mut bool, what: News| {
            if is && !std::mem::replace(told, is) {
                news.push(what);
            }
        };
        first(cache.is_degraded(), &mut self.degraded, News::Degraded { tier });
        if cache.has_lost_journal() {
            first(true, &mut self.journal_lost, News::JournalLost { tier });
            let emptied = cache.is_bypassed() && !self.emptied && cache.is_emptied();
            first(emptied, &mut self.emptied, News::Emptied { worker, tier });
            let blocked = cache.is_blocked();
            first(blocked, &mut self.blocked, News::Blocked { tier });
            self.blocked = blocked;
        }
        if self.degraded || self.has_lost || self.refusing {
            let refusing = cache.refused_bytes() > 0;
            if refusing != std::mem::replace(&mut self.refusing, refusing) {
                news.push(News::Refusing { worker, tier, refusing });
            }
        }
        news
    }
}

/// What a worker has under way with a tier that comes or goes.
#[derive(Default)]
pub(super) struct Restacking {
    /// The one that comes.
    newcomer: Option<(TierKey, Driver)>,
    is_shut: bool,
    /// Drains of the one that goes that have ended, by errand.
    emptied: Vec<(u32, Result<(), Fault>)>,
}

impl Restacking {
    /// Whether something is held back.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }
}

/// What is waited for on the way of a tier.
#[derive(Debug, Clone, Copy)]
pub(super) enum StandStill {
    /// Nothing is under way below this tier.
    Quiet { above: TierKey },
    /// The tier below this one has brought down all it had of a volume.
    Emptied { above: TierKey },
    /// Nothing is under way in the tier below this one.
    Rest { above: TierKey },
}

impl Worker {
    /// Opens the device of a tier to come.
    pub(super) fn open_newcomer(&mut self, tier: BeginningTier) -> Result<(), Problem> {
        let key = tier.key;
        let opened = tier.open(&self.ring, &self.common.pool);
        let driver = opened.map_err(|error| Problem::Other(error.to_string()))?;
        self.restacking.newcomer = Some((key, driver));
        Ok(())
    }

    /// Takes a step with a tier, or tells what has to happen before it is done.
    pub(super) fn restack(&mut self, errand: u32, deed: TierDeed) -> Result<(), StandStill> {
        match deed {
            TierDeed::LimitDirty { tier, bytes } => self.tier(tier).limit_dirty(bytes),
            TierDeed::Empty { above, volume } => {
                self.tier(above).drain_below(volume, errand);
                return Err(StandStill::Emptied { above });
            }
            TierDeed::Shut { above } => {
                self.restacking.is_shut = true;
                self.tier(above).shut_seam();
                return Err(StandStill::Quiet { above });
            }
            TierDeed::Rest { above } => return Err(StandStill::Rest { above }),
            TierDeed::PutIn { above, ids } => {
                let newcomer = self.restacking.newcomer.take();
                let (key, newcomer) = newcomer.expect("a tier is put in after its device is open");
                self.tier(above).put_below(newcomer, &ids);
                let at = self.place(above) + 1;
                self.told.insert(at, Told::nothing(key));
                self.open_seam(above);
            }
            TierDeed::TakeOut { above } => {
                drop(self.tier(above).take_below());
                let at = self.place(above) + 1;
                self.told.remove(at);
                self.open_seam(above);
            }
            TierDeed::Dismiss { above } => {
                // where its device could not be opened there is none
                self.restacking.newcomer = None;
                self.open_seam(above);
            }
            TierDeed::Keep { above, bytes } => {
                self.tier(above).below_mut().expect("it stays").limit_dirty(bytes);
                self.open_seam(above);
            }
        }
        Ok(())
    }

    /// How a step has ended, if it has.
    pub(super) fn has_stood_still(
        &mut self,
        errand: u32,
        awaited: StandStill,
    ) -> Option<Result<Outcome, Problem>> {
        match awaited {
            StandStill::Quiet { above } => {
                self.tier(above).is_quiet_below().then_some(Ok(Outcome::Nothing))
            }
            StandStill::Emptied { above } => {
                let mut emptied = std::mem::take(&mut self.restacking.emptied);
                self.tier(above).take_drained(&mut emptied);
                let at = emptied.iter().position(|(of, _)| *of == errand);
                let ended = at.map(|at| emptied.swap_remove(at).1);
                self.restacking.emptied = emptied;
                ended.map(|result| result.map(|()| Outcome::Nothing).map_err(Problem::Fault))
            }
            StandStill::Rest { above } => {
                let below = self.tier(above).below().expect("a tier rests before it goes");
                match (below.is_at_rest(), below.cache().has_dirty_data()) {
                    (false, _) => None,
                    (true, false) => Some(Ok(Outcome::Nothing)),
                    (true, true) => Some(Err(Problem::Other("some of it is dirty again".into()))),
                }
            }
        }
    }

    /// Where a tier is that is there, from the top.
    fn place(&self, key: TierKey) -> usize {
        self.told.iter().position(|told| told.key == key).expect("the tier is there")
    }

    /// A tier that is there.
    pub(super) fn tier(&mut self, key: TierKey) -> &mut Driver {
        let at = self.place(key);
        self.driver.tier_mut(at).expect("workers have all tiers")
    }

    /// Goes on after a tier has come or gone, or stays as it was.
    fn open_seam(&mut self, above: TierKey) {
        self.restacking.is_shut = false;
        self.tier(above).open_seam();
    }
}
