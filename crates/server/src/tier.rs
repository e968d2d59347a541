//! The tiers of a server's cache, in the control thread and in each worker.

pub(crate) mod open;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use floe_block::{BlockCache, Companion, Driver, Exchange, Fault, PartJournal};
use floe_device::{OpenError, Pool, Ring};

use crate::persistent::{CacheSizes, Parts, StartError, SuperblockWriter};
use crate::status::{BackingBytes, CacheFacts, TierKey};
use crate::volume::DeviceSource;

/// A tier of a server's cache: open and ready to serve, then the control thread's state of it.
///
/// Tiers are counted from the top. A failing device or a lost journal of one tier does not affect
/// the others: each goes on as far as it can, and the tier above sees the errors.
#[derive(Debug)]
pub struct Tier {
    /// Properties of the tier for status and metrics, without its failures.
    pub(crate) facts: CacheFacts,
    /// The tier's cache. Once the tier is attached, the workers have its parts.
    pub(crate) cache: Parts,
    /// The cache device of the tier.
    pub(crate) source: Arc<dyn DeviceSource>,
    /// Number of shards of the tier's cache.
    pub(crate) shards: u64,
    /// The recorded size of a persistent tier, and the largest that it can have.
    pub(crate) sizes: Option<CacheSizes>,
    /// True if the last resize has failed where not all workers or not the superblock may have the
    /// size: a resize to the present size is not done yet.
    pub(crate) unsettled: bool,
    /// Limit of dirty data, as a share of the size; `None` without a limit.
    pub(crate) dirty_share: Option<f64>,
    /// The tier may hold dirty data.
    may_be_dirty: bool,
    pub(crate) failing: Failing,
    /// Number of lost ranges that were reported.
    pub(crate) lost_places: u32,
}

/// A worker's part of a tier, before that worker opens the device.
#[derive(Debug)]
pub(crate) struct CachePart {
    pub(crate) key: TierKey,
    pub(crate) cache: BlockCache,
    /// The journal of a persistent tier.
    pub(crate) journal: Option<PartJournal>,
    /// Offset of a volatile tier's data on the device, in bytes.
    pub(crate) data_start: u64,
    pub(crate) exchange: Exchange,
    pub(crate) source: Arc<dyn DeviceSource>,
}

impl CachePart {
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
    /// True if the cache device has failed and is no longer used.
    pub(crate) degraded: bool,
    /// True if the journal cannot be written.
    pub(crate) journal_lost: bool,
    /// True if some dirty data could not be written back after the journal was lost.
    pub(crate) stuck: bool,
    /// True if the cache is retired: nothing in it is valid any more.
    pub(crate) retired: bool,
    /// True if the superblock does not record the failure yet.
    pub(crate) unnoted: bool,
    /// Numbers of the workers that have written back all dirty data of their part.
    pub(crate) emptied: BTreeSet<usize>,
    /// Numbers of the workers that refuse requests for dirty data in their part.
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

impl Tier {
    /// Creates a tier of `cache_bytes` bytes. `name` is its device and settings, as the user wrote
    /// them.
    ///
    /// # Panics
    /// When `cache` has no part.
    pub fn new(
        name: String,
        cache: Parts,
        source: Arc<dyn DeviceSource>,
        cache_bytes: u64,
    ) -> Self {
        let config = cache.parts[0].0.config();
        let facts = CacheFacts {
            key: TierKey(0),
            name,
            config: Arc::new(config.clone()),
            session: cache.writer.as_ref().map(SuperblockWriter::session),
            opened: cache.opened.clone(),
            journal_lost: false,
            bypass: "",
            size_bytes: cache_bytes,
            mirror: source.mirror(),
        };
        let share = |most: u64| most as f64 / cache_bytes.max(1) as f64;
        Self {
            shards: cache.parts[0].0.shards() as u64,
            sizes: cache.writer.as_ref().map(|writer| writer.sizes(source.size_bytes())),
            unsettled: false,
            dirty_share: cache.most_dirty_bytes.map(share),
            may_be_dirty: config.mode.keeps_writes()
                || cache.parts.iter().any(|(cache, _)| cache.condition().has_dirty_data()),
            facts,
            cache,
            source,
            failing: Failing::default(),
            lost_places: 0,
        }
    }

    /// Returns whether the tier's data is in memory, by the name of its device.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.facts.name.starts_with("memory:")
    }

    /// Sets the tier's key, and takes its part for each worker. `exchanges` are the workers' ends
    /// of the queues between them.
    ///
    /// # Panics
    /// When the tier does not have one part for each worker.
    pub(crate) fn take_parts(&mut self, key: TierKey, exchanges: Vec<Exchange>) -> Vec<CachePart> {
        assert_eq!(self.cache.threads(), exchanges.len(), "all tiers have as many parts");
        self.facts.key = key;
        let data_start = self.cache.data_start;
        let part = |((cache, journal), exchange)| {
            let source = Arc::clone(&self.source);
            CachePart { key, cache, journal, data_start, exchange, source }
        };
        std::mem::take(&mut self.cache.parts).into_iter().zip(exchanges).map(part).collect()
    }

    /// Returns the entry of this tier for the superblocks of its peers; `None` if it needs none. A
    /// persistent tier needs one if it `may` hold dirty data, or if it was retired and its own
    /// superblock could not record that.
    pub(crate) fn companion(&self, may: bool) -> Option<Companion> {
        let Failing { unnoted, retired, .. } = self.failing;
        let writer = self.cache.writer.as_ref().filter(|_| may || unnoted && retired)?;
        let passed = unnoted.then_some(retired);
        Some(Companion { passed, ..writer.as_companion(&self.facts.name) })
    }

    /// Returns the properties of the tier for status and metrics.
    pub(crate) fn facts(&self) -> CacheFacts {
        let (journal_lost, bypass) = (self.failing.journal_lost, self.failing.bypass());
        CacheFacts { journal_lost, bypass, ..self.facts.clone() }
    }

    /// Records in the tier's superblock how much of its data may be stale.
    pub(crate) fn note(&mut self) -> Result<(), StartError> {
        let Some(writer) = &mut self.cache.writer else { return Ok(()) };
        writer.set_void(self.failing.degraded, self.failing.retired)
    }

    /// Tests that the tier's cache device stores and returns data.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        match &mut self.cache.writer {
            Some(writer) => writer.try_device(),
            None => {
                crate::persistent::try_volatile(&Arc::clone(&self.source), self.cache.data_start)
            }
        }
    }
}

/// A worker's progress in attaching or detaching a tier.
#[derive(Default)]
pub(crate) struct StackChange {
    /// The tier to attach, with its device open.
    pub(crate) attaching: Option<(TierKey, floe_block::Tier)>,
    /// The I/O gate is shut, and requests may be held back.
    pub(crate) is_shut: bool,
    /// Results of drains of the tier to detach, by the number of the command's ticket.
    pub(crate) emptied: Vec<(u32, Result<(), Fault>)>,
    /// Bytes of the backing devices that the lowest tier has not counted, because it was not the
    /// lowest, less those that it moved from and to a tier below.
    backing_before: BackingBytes,
}

impl StackChange {
    /// Returns the bytes moved from and to the backing devices since the server began.
    pub(crate) fn backing_bytes(&self, driver: &Driver) -> BackingBytes {
        let lowest = driver.tiers().last().expect("there is a tier");
        self.backing_before.plus(BackingBytes::below(&lowest.stats()))
    }

    /// Attaches or detaches a tier by `change`. The count of the backing devices' bytes goes on
    /// from where it was, whichever tier is the lowest then.
    pub(crate) fn restack(&mut self, driver: &mut Driver, change: impl FnOnce(&mut Driver)) {
        let before = self.backing_bytes(driver);
        change(driver);
        self.backing_before = BackingBytes::default();
        self.backing_before = before.minus(self.backing_bytes(driver));
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
    tiers: impl Iterator<Item = &'a mut Tier>,
) -> Result<(), StartError> {
    let mut tiers: Vec<&mut Tier> = tiers.collect();
    let all: Vec<_> = tiers.iter().map(|tier| tier.companion(tier.may_be_dirty)).collect();
    let writers =
        |tiers: &mut [&mut Tier],
         act: &dyn Fn(usize, &mut SuperblockWriter) -> Result<(), StartError>| {
            let mut sound = tiers.iter_mut().enumerate().filter(|(_, tier)| !tier.failing.degraded);
            sound.try_for_each(|(at, tier)| {
                tier.cache.writer.as_mut().map_or(Ok(()), |writer| act(at, writer))
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
