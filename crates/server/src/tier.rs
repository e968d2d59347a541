//! The tiers of a server's cache: as they are opened, in the control thread, and in each worker.

pub(crate) mod open;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use floe_block::{BlockCache, Companion, Exchange, PartJournal, WriteMode};
use floe_device::{OpenError, Pool, Ring};

use crate::persistent::{Parts, StartError, SuperblockWriter};
use crate::status::{CacheFacts, OpenedStatus};
use crate::volume::DeviceSource;

/// A tier of a server's cache, ready to serve.
#[derive(Debug)]
pub struct Tier {
    /// Its device and settings, as they were written.
    pub name: String,
    /// Its parts, one for each thread.
    pub cache: Parts,
    /// Its cache device.
    pub source: Arc<dyn DeviceSource>,
    /// Bytes it may hold, for the status.
    pub cache_bytes: u64,
}

/// The name of a tier, whatever comes or goes above it: no two of a server have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TierKey(pub(crate) u32);

/// A worker's part of a tier, before its device is open there.
#[derive(Debug)]
pub(crate) struct TierPart {
    pub(crate) key: TierKey,
    pub(crate) cache: BlockCache,
    /// The journal of a persistent tier.
    pub(crate) journal: Option<PartJournal>,
    /// The byte of the device at which the data of other tiers begins.
    pub(crate) data_start: u64,
    pub(crate) exchange: Exchange,
    pub(crate) source: Arc<dyn DeviceSource>,
}

impl TierPart {
    /// Opens its device for a thread.
    pub(crate) fn open(self, ring: &Ring, pool: &Pool) -> Result<floe_block::Tier, OpenError> {
        let Self { cache, journal, data_start, exchange, source, .. } = self;
        let device = source.open(ring, pool)?;
        let tier = floe_block::Tier::of_part(cache, device, pool.clone(), Some(exchange));
        Ok(tier.with_clock(Instant::now).with_data_at(data_start).with_journal(journal))
    }
}

/// The failures of a tier.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// The cache device has failed and is no longer used.
    pub(crate) degraded: bool,
    /// The journal cannot be written.
    pub(crate) journal_lost: bool,
    /// Some dirty data could not be written back since.
    pub(crate) stuck: bool,
    /// The cache is retired: nothing in it is valid any more.
    pub(crate) retired: bool,
    /// The superblock does not say so yet.
    pub(crate) unnoted: bool,
    /// Workers whose part of it has no dirty data any more.
    pub(crate) emptied: BTreeSet<usize>,
    /// Workers that refuse requests for data in their part.
    pub(crate) refusing: BTreeSet<usize>,
}

impl Failing {
    /// The `bypass` of the status.
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

/// A tier as the control thread knows it.
///
/// Tiers are counted from the top. A failing device or a lost journal of one does not affect the
/// others: each goes on as far as it can, and the one above it sees its answers.
#[derive(Debug)]
pub(crate) struct KnownTier {
    pub(crate) key: TierKey,
    pub(crate) name: String,
    /// The bound on its dirty data, if there is one.
    pub(crate) most_dirty_bytes: Option<u64>,
    pub(crate) mode: WriteMode,
    /// The admission, where not everything comes in.
    pub(crate) admission: Option<String>,
    /// The eviction policy.
    pub(crate) evict: String,
    pub(crate) cache_bytes: u64,
    /// The state in which a persistent tier was found.
    opened: Option<OpenedStatus>,
    /// The tier may hold dirty data.
    may_be_dirty: bool,
    /// The superblock writer, of a persistent tier.
    pub(crate) writer: Option<SuperblockWriter>,
    /// Its cache device.
    pub(crate) source: Arc<dyn DeviceSource>,
    /// The byte of the device at which a volatile tier's data begins.
    pub(crate) data_start: u64,
    pub(crate) failing: Failing,
    /// Places already reported as lost.
    pub(crate) lost_places: u32,
}

/// Splits a tier into the control thread's part and one for each worker, for their ends of its
/// queues.
///
/// # Panics
/// When it does not have a part for each thread.
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
    /// Returns the tier's entry for its peers, if it is persistent and `may` hold data that they
    /// lack, or was ended and its device cannot be told.
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

    /// Records in the superblock how much of its data may be old.
    pub(crate) fn note(&mut self) -> Result<(), StartError> {
        let Self { writer: Some(writer), failing, .. } = self else { return Ok(()) };
        writer.set_void(failing.degraded, failing.retired)
    }

    /// Fails unless its cache device stores and returns data.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        match &mut self.writer {
            Some(writer) => writer.try_device(),
            None => crate::persistent::try_volatile(&Arc::clone(&self.source), self.data_start),
        }
    }
}

/// Records in each persistent tier's superblock which peer tiers may hold dirty data, and that they
/// are served together. Runs before a tier accepts dirty data and after it has been cleaned. The
/// tiers are given from the top; those whose device has failed are left out.
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

/// Returns the entries of all peers of the tier at this place.
pub(crate) fn others(companions: &[Option<Companion>], at: usize) -> Vec<Companion> {
    let others = companions.iter().enumerate().filter(|(other, _)| *other != at);
    let seen = |(other, companion): (usize, &Option<Companion>)| {
        companion.clone().map(|companion| Companion { above: other < at, ..companion })
    };
    others.filter_map(seen).collect()
}
