//! The tiers of a server: what it is given of each, and what its front desk knows of each while it
//! serves.
//!
//! Tiers are counted from the top. What happens to one, a failing device, a lost journal, is
//! nothing to the others: each goes on as far as it can, and the one above it sees its answers.

use std::ops::Range;
use std::sync::Arc;

use floe_block::{Companion, Exchange, SECTOR_BYTES, VolumeId, WriteMode};

use super::bypass::Failing;
use super::footing::BeginningTier;
use super::front::Front;
use super::volume::DeviceSource;
use crate::kept::{Keeper, Parts, StartError};
use crate::status::TierFacts;

/// Places with lost data that the log names, of each tier.
const MOST_LOST_LINES: u32 = 32;

/// A tier of a server's cache, ready to serve.
#[derive(Debug)]
pub struct Tier {
    /// What people know it by: its device and settings, as they were written.
    pub name: String,
    /// Its parts, one for each thread.
    pub cache: Parts,
    /// Its cache device.
    pub source: Arc<dyn DeviceSource>,
    /// Bytes it may hold, for the status.
    pub cache_bytes: u64,
}

/// What tells tiers apart, whatever comes or goes above them: no two of a server have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TierKey(pub(super) u32);

/// A tier as the front desk knows it.
#[derive(Debug)]
pub(super) struct KnownTier {
    pub(super) key: TierKey,
    pub(super) name: String,
    /// How much of it may be dirty, where that is bounded.
    pub(super) most_dirty_bytes: Option<u64>,
    pub(super) mode: WriteMode,
    /// Who decides what comes in, where not everything does.
    pub(super) admission: Option<String>,
    /// Who decides what leaves.
    pub(super) evict: String,
    pub(super) cache_bytes: u64,
    /// It may hold what nothing below it has.
    may_be_dirty: bool,
    /// Of a tier that outlives the program.
    pub(super) keeper: Option<Keeper>,
    /// Its cache device.
    pub(super) source: Arc<dyn DeviceSource>,
    /// Where its data begins on it, of one that ends with the program, in bytes.
    pub(super) data_start: u64,
    /// What is wrong with it.
    pub(super) failing: Failing,
    /// Places of which it was said that the only copy of data is gone.
    pub(super) lost_places: u32,
}

/// A tier as the front desk knows it, and what each thread has of it, for their ends of its queues.
///
/// # Panics
/// When it does not have a part for each thread.
pub(super) fn in_threads(
    tier: Tier,
    key: TierKey,
    exchanges: Vec<Exchange>,
) -> (KnownTier, Vec<BeginningTier>) {
    let Tier { name, cache, source, cache_bytes } = tier;
    assert_eq!(cache.threads(), exchanges.len(), "all tiers have as many parts");
    let mode = cache.parts[0].0.mode();
    let known = KnownTier {
        key,
        name,
        most_dirty_bytes: cache.most_dirty_bytes,
        may_be_dirty: mode.keeps_writes()
            || cache.parts.iter().any(|(cache, _)| cache.has_dirty_data()),
        mode,
        admission: cache.parts[0].0.admission(),
        evict: cache.parts[0].0.evict().to_string(),
        cache_bytes,
        keeper: cache.keeper,
        source: Arc::clone(&source),
        data_start: cache.data_start,
        failing: Failing::default(),
        lost_places: 0,
    };
    let data_start = cache.data_start;
    let parts = cache.parts.into_iter().zip(exchanges);
    let begin = |((cache, journal), exchange)| {
        let source = Arc::clone(&source);
        BeginningTier { key, cache, journal, data_start, exchange, source }
    };
    (known, parts.map(begin).collect())
}

impl KnownTier {
    /// What tiers below are to know of it, if it outlives the program and `may` hold what they
    /// lack.
    fn companion(&self, may: bool) -> Option<Companion> {
        self.keeper.as_ref().filter(|_| may).map(|keeper| keeper.as_companion(&self.name))
    }

    pub(super) fn facts(&self) -> TierFacts {
        TierFacts {
            name: self.name.clone(),
            mode: self.mode,
            admission: self.admission.clone(),
            evict: self.evict.clone(),
            session: self.keeper.as_ref().map(Keeper::session),
            journal_lost: self.failing.journal_lost,
            bypass: self.failing.bypass(),
            size_bytes: self.cache_bytes,
        }
    }
}

/// Has each tier that outlives the program know which others do and may hold what nothing else has,
/// before they get any of that or after they have got rid of it, and whether they are above or
/// below it; and that they are served together. The tiers are given from the top. One whose device
/// is given up cannot be told.
///
/// # Errors
/// The first failure of a device.
pub(super) fn link<'a>(
    stack: u32,
    tiers: impl Iterator<Item = &'a mut KnownTier>,
) -> Result<(), StartError> {
    let mut tiers: Vec<&mut KnownTier> = tiers.collect();
    let all: Vec<_> = tiers.iter().map(|tier| tier.companion(tier.may_be_dirty)).collect();
    let keepers = |tiers: &mut [&mut KnownTier],
                   act: &dyn Fn(usize, &mut Keeper) -> Result<(), StartError>| {
        let mut sound = tiers.iter_mut().enumerate().filter(|(_, tier)| !tier.failing.degraded);
        sound.try_for_each(|(at, tier)| {
            tier.keeper.as_mut().map_or(Ok(()), |keeper| act(at, keeper))
        })
    };
    keepers(&mut tiers, &|_, keeper| keeper.announce(stack))?;
    keepers(&mut tiers, &|at, keeper| keeper.link(stack, others(&all, at)))
}

/// All but the one at this place, as it is to know them.
fn others(companions: &[Option<Companion>], at: usize) -> Vec<Companion> {
    let others = companions.iter().enumerate().filter(|(other, _)| *other != at);
    let seen = |(other, companion): (usize, &Option<Companion>)| {
        companion.clone().map(|companion| Companion { above: other < at, ..companion })
    };
    others.filter_map(seen).collect()
}

impl Front {
    /// Whether some tier outlives the program.
    pub(super) fn keeps_anything(&self) -> bool {
        self.tiers.iter().any(|tier| tier.keeper.is_some())
    }

    /// Where a tier is, from the top; one that has gone is nowhere.
    pub(super) fn at(&self, key: TierKey) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.key == key)
    }

    /// A tier has found that the only copy of a run of a volume is gone.
    pub(super) fn lose_data(&mut self, key: TierKey, volume: VolumeId, run: &Range<u64>) {
        let Some(tier) = self.at(key) else { return };
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

    /// Changes what the tiers that outlive the program know of their volumes, by the number each
    /// has for one; tells of a failure.
    pub(super) fn written_down(
        &mut self,
        ids: &[VolumeId],
        change: impl Fn(&mut Keeper, VolumeId) -> Result<(), StartError>,
    ) -> Option<String> {
        // What is not to be used again need not know.
        let used = self.tiers.iter_mut().zip(ids).filter(|(tier, _)| !tier.failing.journal_lost);
        let keepers = used.filter_map(|(tier, id)| Some((tier.keeper.as_mut()?, *id)));
        let failed = keepers.filter_map(|(keeper, id)| change(keeper, id).err());
        failed.map(|error| error.to_string()).reduce(|first, _| first)
    }
}

/// What is left to do once all workers have stopped: those tiers are told that all is in order of
/// which it is so.
pub(super) struct Closing {
    in_order: Vec<InOrder>,
    lost: Option<String>,
}

/// A tier that is in order, and the backing devices of its volumes.
struct InOrder {
    keeper: Keeper,
    backings: Vec<(VolumeId, Arc<dyn DeviceSource>)>,
    /// Tiers that hold what nothing else has.
    companions: Vec<Companion>,
}

impl Closing {
    /// Of a front desk that has come to its end.
    pub(super) fn of(front: Front) -> Self {
        let lost = front.says_what_is_lost();
        let Front { tiers, offer, left_dirty, .. } = front;
        let dirty = tiers.iter().zip(&left_dirty.tiers);
        let all: Vec<_> = dirty.map(|(tier, bytes)| tier.companion(*bytes > 0)).collect();
        let in_order = |(at, tier): (usize, KnownTier)| {
            let keeper =
                tier.keeper.filter(|_| !tier.failing.degraded && !tier.failing.journal_lost)?;
            let backings =
                offer.all().iter().map(|it| (it.ids[at], Arc::clone(&it.volume.backing)));
            Some(InOrder { keeper, backings: backings.collect(), companions: others(&all, at) })
        };
        Self { in_order: tiers.into_iter().enumerate().filter_map(in_order).collect(), lost }
    }

    /// What nobody can read any more, if there is anything.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Writes down that the tiers are in order.
    ///
    /// # Errors
    /// The first failure of a device; the other tiers are told all the same.
    pub(super) fn finish(self) -> Result<(), StartError> {
        let ended = self.in_order.into_iter().map(|InOrder { keeper, backings, companions }| {
            keeper.end(&backings, Some(companions))
        });
        ended.fold(Ok(()), Result::and)
    }
}
