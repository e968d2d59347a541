//! The tiers of a server's cache: as opened at the start, in the control thread, and in each
//! worker.

pub(crate) mod open;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use floe_block::{BlockCache, Companion, Exchange, PartJournal, WriteMode};
use floe_device::{OpenError, Pool, Ring};

use crate::persistent::{Parts, StartError, SuperblockWriter};
use crate::status::{CacheFacts, OpenedStatus};
use crate::volume::DeviceSource;

/// An open tier of a server's cache, ready to serve.
#[derive(Debug)]
pub struct Tier {
    /// Device and settings of the tier, as the user wrote them.
    pub name: String,
    /// The tier's cache, split into one part for each thread.
    pub cache: Parts,
    /// The cache device of the tier.
    pub source: Arc<dyn DeviceSource>,
    /// Capacity of the tier in bytes.
    pub cache_bytes: u64,
}

/// Identifies a tier for the lifetime of the server, while its position may change. Keys are never
/// reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TierKey(pub(crate) u32);

/// A worker's part of a tier, before that worker opens the device.
#[derive(Debug)]
pub(crate) struct TierPart {
    pub(crate) key: TierKey,
    pub(crate) cache: BlockCache,
    /// The journal of a persistent tier.
    pub(crate) journal: Option<PartJournal>,
    /// Offset of a volatile tier's data on the device, in bytes.
    pub(crate) data_start: u64,
    pub(crate) exchange: Exchange,
    pub(crate) source: Arc<dyn DeviceSource>,
}

impl TierPart {
    /// Opens the tier's device on a worker's ring, and creates the worker's tier.
    pub(crate) fn open(self, ring: &Ring, pool: &Pool) -> Result<floe_block::Tier, OpenError> {
        let Self { cache, journal, data_start, exchange, source, .. } = self;
        let device = source.open(ring, pool)?;
        let tier = floe_block::Tier::of_part(cache, device, pool.clone(), Some(exchange));
        Ok(tier.with_clock(Instant::now).with_data_at(data_start).with_journal(journal))
    }
}

/// Failures of a tier, as the control thread knows them.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// The cache device has failed and is no longer used.
    pub(crate) degraded: bool,
    /// The journal cannot be written.
    pub(crate) journal_lost: bool,
    /// Some dirty data could not be written back after the journal was lost.
    pub(crate) stuck: bool,
    /// The cache is retired: nothing in it is valid any more.
    pub(crate) retired: bool,
    /// The superblock does not record the failure yet.
    pub(crate) unnoted: bool,
    /// Workers that have written back all dirty data of their part.
    pub(crate) emptied: BTreeSet<usize>,
    /// Workers that refuse requests for dirty data in their part.
    pub(crate) refusing: BTreeSet<usize>,
}

impl Failing {
    /// Returns the `bypass` state that the status shows.
    pub(crate) fn bypass(&self) -> &'static str {
        match self {
            Self { retired: true, unnoted: true, .. } => "ended-unnoted",
            Self { retired: true, .. } => "ended",
            Self { stuck: true, .. } => "stuck",
            Self { journal_lost: true, .. } => "emptying",
            _ => "",
        }
    }
}

/// The control thread's state of a tier.
///
/// Tiers are counted from the top. A failing device or a lost journal of one tier does not affect
/// the others: each goes on as far as it can, and the tier above sees the errors.
#[derive(Debug)]
pub(crate) struct KnownTier {
    pub(crate) key: TierKey,
    pub(crate) name: String,
    /// Limit of dirty data in bytes, if there is one.
    pub(crate) most_dirty_bytes: Option<u64>,
    pub(crate) mode: WriteMode,
    /// Name of the admission policy; `None` if everything is admitted.
    pub(crate) admission: Option<String>,
    /// Name of the eviction policy.
    pub(crate) evict: String,
    pub(crate) cache_bytes: u64,
    /// State in which the start found a persistent tier.
    opened: Option<OpenedStatus>,
    /// The tier may hold dirty data.
    may_be_dirty: bool,
    /// Superblock writer of a persistent tier; `None` for a volatile one.
    pub(crate) writer: Option<SuperblockWriter>,
    pub(crate) source: Arc<dyn DeviceSource>,
    /// Offset of a volatile tier's data on the device, in bytes.
    pub(crate) data_start: u64,
    pub(crate) failing: Failing,
    /// Number of lost ranges that were reported.
    pub(crate) lost_places: u32,
}

/// Splits a tier into the control thread's state and a part for each worker. `exchanges` are the
/// workers' ends of the queues between them.
///
/// # Panics
/// When the tier does not have one part for each worker.
pub(crate) fn in_threads(
    tier: Tier,
    key: TierKey,
    exchanges: Vec<Exchange>,
) -> (KnownTier, Vec<TierPart>) {
    let Tier { name, cache, source, cache_bytes } = tier;
    assert_eq!(cache.threads(), exchanges.len(), "all tiers have as many parts");
    let config = cache.parts[0].0.config();
    let mode = config.mode;
    let known = KnownTier {
        key,
        name,
        most_dirty_bytes: cache.most_dirty_bytes,
        may_be_dirty: mode.keeps_writes()
            || cache.parts.iter().any(|(cache, _)| cache.condition().has_dirty_data()),
        mode,
        admission: config.gate.policy(),
        evict: config.evict.to_string(),
        cache_bytes,
        opened: cache.opened,
        writer: cache.writer,
        source: Arc::clone(&source),
        data_start: cache.data_start,
        failing: Failing::default(),
        lost_places: 0,
    };
    let data_start = cache.data_start;
    let parts = cache.parts.into_iter().zip(exchanges);
    let begin = |((cache, journal), exchange)| {
        let source = Arc::clone(&source);
        TierPart { key, cache, journal, data_start, exchange, source }
    };
    (known, parts.map(begin).collect())
}

impl KnownTier {
    /// Returns the entry of this tier for the superblocks of its peers; `None` if it needs none. A
    /// persistent tier needs one if it `may` hold dirty data, or if it was retired and its own
    /// superblock could not record that.
    pub(crate) fn companion(&self, may: bool) -> Option<Companion> {
        let Failing { unnoted, retired, .. } = self.failing;
        let writer = self.writer.as_ref().filter(|_| may || unnoted && retired)?;
        let passed = unnoted.then_some(retired);
        Some(Companion { passed, ..writer.as_companion(&self.name) })
    }

    pub(crate) fn facts(&self) -> CacheFacts {
        CacheFacts {
            name: self.name.clone(),
            mode: self.mode,
            admission: self.admission.clone(),
            evict: self.evict.clone(),
            session: self.writer.as_ref().map(SuperblockWriter::session),
            opened: self.opened.clone(),
            journal_lost: self.failing.journal_lost,
            bypass: self.failing.bypass(),
            size_bytes: self.cache_bytes,
            mirror: self.source.mirror(),
        }
    }

    /// Records in the tier's superblock how much of its data may be stale.
    pub(crate) fn note(&mut self) -> Result<(), StartError> {
        let Self { writer: Some(writer), failing, .. } = self else { return Ok(()) };
        writer.set_void(failing.degraded, failing.retired)
    }

    /// Tests that the tier's cache device stores and returns data.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        match &mut self.writer {
            Some(writer) => writer.try_device(),
            None => crate::persistent::try_volatile(&Arc::clone(&self.source), self.data_start),
        }
    }
}

/// Records in each persistent tier's superblock which peer tiers may hold dirty data, and that the
/// tiers are served together. Runs before a tier accepts dirty data and after it has been cleaned.
/// `tiers` are given from the top; those with a failed device are left out.
///
/// # Errors
/// The first failure of a device.
pub(crate) fn link<'a>(
    stack: u32,
    tiers: impl Iterator<Item = &'a mut KnownTier>,
) -> Result<(), StartError> {
    let mut tiers: Vec<&mut KnownTier> = tiers.collect();
    let all: Vec<_> = tiers.iter().map(|tier| tier.companion(tier.may_be_dirty)).collect();
    let writers =
        |tiers: &mut [&mut KnownTier],
         act: &dyn Fn(usize, &mut SuperblockWriter) -> Result<(), StartError>| {
            let mut sound = tiers.iter_mut().enumerate().filter(|(_, tier)| !tier.failing.degraded);
            sound.try_for_each(|(at, tier)| {
                tier.writer.as_mut().map_or(Ok(()), |writer| act(at, writer))
            })
        };
    writers(&mut tiers, &|_, writer| writer.announce(stack))?;
    writers(&mut tiers, &|at, writer| writer.link(stack, others(&all, at)))
}

/// Returns the entries for all peers of the tier at this position, each marked as above or below
/// it.
pub(crate) fn others(companions: &[Option<Companion>], at: usize) -> Vec<Companion> {
    let others = companions.iter().enumerate().filter(|(other, _)| *other != at);
    let seen = |(other, companion): (usize, &Option<Companion>)| {
        companion.clone().map(|companion| Companion { above: other < at, ..companion })
    };
    others.filter_map(seen).collect()
}
