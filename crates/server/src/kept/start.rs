//! Opens the cache on a device for serving: uses it, replaces it, or refuses to touch it.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::{
    Begun, BlockCache, BlockSizes, Calibrated, Config, Io, KeptCache, Layout, NewCache,
    PartJournal, SECTOR_BYTES, Samples, StoreError, Superblock, VolumeId, scan, write_superblock,
};
use floe_device::Identity;

use super::disk::Disk;
use super::keeper::Keeper;
use super::passing::is_marked;
use super::refusal::{Bytes, Difference, Refusal, StartError};
use super::state_dir::StateDir;
use super::suit::{Candidate, known, sampled, suit};
use crate::threads::{DeviceSource, Volume};

/// File systems, partition tables, RAID and LVM have their signatures within these ends.
const FIRST_BYTES: u64 = 1 << 20;
const LAST_BYTES: u64 = 64 << 10;

/// The magic number of each superblock copy, and its positions.
const MAGIC: &[u8] = b"FloeBlk\n";
const MAGIC_AT: [usize; 2] = [8, (32 << 10) + 8];

/// The user's permissions to lose or overwrite data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Consent {
    /// Make a new cache, whatever is on the device.
    pub initialise: bool,
    /// Lose dirty data of the cache that cannot be kept.
    pub discard_dirty: bool,
    /// Use backing devices that are not as the cache knows them.
    pub accept_backing: bool,
    /// Keep the cache's dirty data of such devices.
    pub keep_dirty: bool,
}

/// The options for opening a cache.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The block sizes; `None` accepts those of an existing cache.
    pub sizes: Option<BlockSizes>,
    /// The number of shards; `None` accepts that of an existing cache.
    pub shards: Option<u64>,
    /// The number of shards of a new cache.
    pub new_shards: u64,
    /// The configuration in which it is served, with the device bytes that a new cache may take.
    pub config: Config,
    /// The number of threads that share it.
    pub threads: usize,
    /// Use fewer threads if the cache has fewer shards.
    pub fewer_threads: bool,
    /// The possible difference between this tier and its peers, from
    /// [`company()`](super::company()).
    pub apart: Option<Difference>,
    /// The cache joins a running server: its content of the volumes may be old by now.
    pub joins: bool,
    /// No persistent tier is below it.
    pub lowest: bool,
    /// The state directory, by which an old copy of the cache is detected.
    pub state: Option<StateDir>,
    /// The user's permissions.
    pub consent: Consent,
}

/// The parts of a cache, ready for a server.
#[derive(Debug)]
pub struct Parts {
    pub(crate) parts: Vec<(BlockCache, Option<PartJournal>)>,
    /// The cache's id of each volume, in the order of the volumes.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) keeper: Option<Keeper>,
    /// The byte of the device at which the data of a cache without a journal begins.
    pub(crate) data_start: u64,
    /// The limit of dirty bytes, if there is one.
    pub(crate) most_dirty_bytes: Option<u64>,
}

impl Parts {
    /// Makes the parts of a volatile cache.
    pub fn volatile(caches: Vec<BlockCache>) -> Self {
        let parts = caches.into_iter().map(|cache| (cache, None)).collect();
        Self { parts, ids: Vec::new(), keeper: None, data_start: 0, most_dirty_bytes: None }
    }

    /// Sets the byte at which the data begins: see [`claim()`](super::claim()).
    pub fn with_data_at(self, bytes: u64) -> Self {
        Self { data_start: bytes, ..self }
    }

    /// Sets how many bytes of the cache may be newer than the backing devices: see
    /// [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.most_dirty_bytes = Some(bytes);
        self.parts.iter_mut().for_each(|(cache, _)| cache.limit_dirty(bytes));
    }

    /// Returns the number of threads that the parts are for.
    pub fn threads(&self) -> usize {
        self.parts.len()
    }

    /// Returns the cache's id of the volume at this place in the list of volumes.
    pub(crate) fn id(&self, at: usize) -> VolumeId {
        self.ids.get(at).copied().unwrap_or(VolumeId(at as u16))
    }
}

/// The content of a device that is about to be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Nothing visible: zeros in the places of file system signatures and partition tables.
    Nothing,
    /// Data that is not a cache's.
    Data,
    /// A persistent cache, usable or not.
    Cache,
}

/// The content of a cache device.
pub(super) enum Found {
    /// Zeros in all places that matter.
    Nothing,
    Foreign,
    Cache(KeptCache),
    /// A cache of which nothing is valid any more.
    Retired,
    Unreadable(StoreError),
}

/// Makes or opens the cache on a device and begins a session for these volumes. `progress` receives
/// the bytes read so far and their total.
///
/// # Errors
/// When the user has to decide something first, or something fails. A refusal changes nothing.
pub fn start(
    source: &Arc<dyn DeviceSource>,
    volumes: &[Volume],
    wishes: &Wishes,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Parts, StartError> {
    let begun_at = Instant::now();
    let mut cache = Disk::open(source)?;
    let mut candidates = candidates(volumes)?;
    let found = cache.with_io(|io| look(io, progress))?;
    let (kept, volumes) = match replacement(found, &mut cache, wishes)? {
        Some(mut kept) => {
            let old = old_copy(&kept, wishes.state.as_ref(), wishes.consent)?;
            let apart = old.or(wishes.apart);
            let volumes = suit(&mut kept, &mut candidates, apart, wishes.lowest, wishes.consent)?;
            (kept, volumes)
        }
        None => {
            let layout = Layout::new(
                wishes.sizes.as_ref().unwrap_or(&BlockSizes::default()),
                wishes.config.cache_bytes,
                wishes.new_shards,
            )?;
            let ids = (0..).map(VolumeId).zip(&mut candidates);
            let volume = |(id, candidate): (VolumeId, &mut Candidate<'_>)| match wishes.joins {
                true => known(id, candidate.volume), // clients may be writing to it
                false => sampled(id, candidate, &Samples::default()),
            };
            let volumes: Vec<_> = ids.map(volume).collect();
            let new = NewCache { id: random_id()?, layout, volumes: volumes.clone() };
            let kept = cache.with_io(|io| KeptCache::create(io, new))?;
            let layout = &kept.superblock().layout;
            tracing::info!(
                bytes = layout.end_bytes(), data_bytes = layout.data_bytes(), shards = layout.shards(), block_sizes = %layout.sizes(), "cache made"
            );
            (kept, volumes)
        }
    };
    begin(source, cache, kept, volumes, wishes, begun_at.elapsed())
}

/// Opens the backing devices and flushes them: recovery relies on data written to them earlier,
/// which must not be lost later.
pub(super) fn candidates(volumes: &[Volume]) -> Result<Vec<Candidate<'_>>, StartError> {
    let candidate = |volume: &'_ Volume| -> Result<_, StartError> {
        let mut disk = Disk::open(&volume.backing)?;
        if !volume.read_only {
            let failed = |source| StartError::Backing {
                volume: volume.name.clone(),
                doing: "flushing",
                source,
            };
            disk.flush().map_err(failed)?;
        }
        Ok(disk)
    };
    volumes.iter().map(|volume| Ok(Candidate { volume, disk: candidate(volume)? })).collect()
}

/// Identifies the content of a cache device.
pub(super) fn look(
    io: &mut Io<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Found, StoreError> {
    if let Ok(Some(Superblock { retired: Some(_), .. })) = KeptCache::identify(io) {
        return Ok(Found::Retired);
    }
    match KeptCache::open(io, progress) {
        Ok(Some(kept)) => return Ok(Found::Cache(kept)),
        Ok(None) => {}
        Err(error @ StoreError::Io { .. }) => return Err(error),
        Err(error) => return Ok(Found::Unreadable(error)),
    }
    let bytes = io.device.size_bytes();
    let first = io.read(0..FIRST_BYTES.min(bytes))?;
    if is_marked(&first) {
        return Ok(Found::Nothing);
    }
    let is_ours = MAGIC_AT.iter().any(|&at| first.get(at..at + MAGIC.len()) == Some(MAGIC));
    let last = bytes.saturating_sub(LAST_BYTES) / SECTOR_BYTES * SECTOR_BYTES..bytes;
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    // One of ours that is intact and cannot be opened: its creation was interrupted.
    Ok(if is_ours || is_blank(&first) && is_blank(&io.read(last)?) {
        Found::Nothing
    } else {
        Found::Foreign
    })
}

/// Returns the cache to open; `None` when a new one is to be made.
fn replacement(
    found: Found,
    cache: &mut Disk,
    wishes: &Wishes,
) -> Result<Option<KeptCache>, StartError> {
    let consent = wishes.consent;
    let (dirty_bytes, exact) = match found {
        Found::Nothing => return Ok(None),
        Found::Retired => {
            tracing::warn!(
                "the cache was ended when its journal could not be written; a new one is made in \
                 its place"
            );
            return Ok(None);
        }
        Found::Foreign if consent.initialise => (0, true),
        Found::Foreign => return Err(Refusal::Foreign.into()),
        Found::Cache(kept) if consent.initialise => (all_dirty_bytes(&kept), true),
        // A cache that was detached from a running server holds nothing.
        Found::Cache(kept) if kept.superblock().volumes.is_empty() => return Ok(None),
        Found::Cache(_) if wishes.joins => return Err(Refusal::Joins.into()),
        Found::Cache(kept) => {
            check_layout(&kept, wishes)?;
            return Ok(Some(kept));
        }
        Found::Unreadable(error) if !consent.initialise => {
            return Err(Refusal::Unreadable(error).into());
        }
        Found::Unreadable(_) => {
            let report = cache.with_io(|io| scan(io, &mut |_, _| {}))?;
            (report.shards.iter().map(|shard| shard.dirty_bytes).sum(), false)
        }
    };
    if (dirty_bytes > 0 || !exact) && !consent.discard_dirty {
        return Err(Refusal::WouldLose { dirty_bytes, exact }.into());
    }
    if dirty_bytes > 0 {
        tracing::warn!(
            "{} that only the old cache had are discarded, as --discard-dirty says",
            Bytes(dirty_bytes)
        );
    }
    Ok(None)
}

/// Refuses an old copy of the cache. Returns [`Difference::Old`] if the user accepts it.
pub(super) fn old_copy(
    kept: &KeptCache,
    state: Option<&StateDir>,
    consent: Consent,
) -> Result<Option<Difference>, Refusal> {
    let superblock = kept.superblock();
    let Some((noted, witness)) = state.and_then(|state| state.later(superblock)) else {
        return Ok(None);
    };
    let (session, noted) = (superblock.session, noted.session);
    let witness = witness.display().to_string();
    if !consent.accept_backing {
        let dirty_bytes = all_dirty_bytes(kept);
        return Err(Refusal::OldCache { session, noted, witness, dirty_bytes });
    }
    tracing::warn!(session, noted, witness, "goes on with an old copy of the cache");
    Ok(Some(Difference::Old))
}

fn all_dirty_bytes(kept: &KeptCache) -> u64 {
    kept.superblock().volumes.iter().map(|volume| kept.dirty_bytes(volume.id)).sum()
}

/// Compares the cache's layout with the options.
fn check_layout(kept: &KeptCache, wishes: &Wishes) -> Result<(), Refusal> {
    let layout = &kept.superblock().layout;
    if let Some(asked) = &wishes.sizes
        && asked != layout.sizes()
    {
        let (has, asked) = (layout.sizes().to_string(), asked.to_string());
        return Err(Refusal::Layout { setting: "block-sizes", has, asked });
    }
    if let Some(asked) = wishes.shards
        && asked != layout.shards()
    {
        let (has, asked) = (layout.shards().to_string(), asked.to_string());
        return Err(Refusal::Layout { setting: "shards", has, asked });
    }
    let threads = wishes.threads;
    if threads as u64 > layout.shards() && !wishes.fewer_threads {
        return Err(Refusal::Threads { shards: layout.shards(), threads });
    }
    Ok(())
}

/// Begins a session on the cache and builds its parts.
fn begin(
    source: &Arc<dyn DeviceSource>,
    mut cache: Disk,
    kept: KeptCache,
    volumes: Vec<floe_block::Volume>,
    wishes: &Wishes,
    took: Duration,
) -> Result<Parts, StartError> {
    let sum = |bytes: &dyn Fn(VolumeId) -> u64| {
        volumes.iter().map(|volume| bytes(volume.id)).sum::<u64>()
    };
    let (valid_bytes, dirty_bytes) =
        (sum(&|id| kept.valid_bytes(id)), sum(&|id| kept.dirty_bytes(id)));
    let (clean, shards) = (kept.superblock().clean, kept.superblock().layout.shards());
    let (mut config, threads) = (wishes.config.clone(), wishes.threads.min(shards as usize));
    if let Some(calibrated) = &kept.superblock().calibrated {
        let gate = &mut config.gate;
        gate.admission = gate.admission.calibrated(calibrated);
        if !gate.admission.is_always() {
            tracing::info!(admit = %gate.admission, "admission as calibrated");
        }
    }
    for volume in volumes.iter().filter(|volume| volume.identity == Identity::default()) {
        tracing::info!(
            volume = volume.name,
            "nothing identifies its device but some of its content: after a crash another one in \
             its place may go unnoticed"
        );
    }
    let ids = volumes.iter().map(|volume| volume.id).collect();
    let Begun { superblock, parts } =
        cache.with_io(|io| kept.begin(io, volumes, &config, threads))?;
    let ended = if superblock.session == 1 {
        "new"
    } else if clean {
        "clean"
    } else {
        "unclean"
    };
    tracing::info!(
        session = superblock.session,
        ended,
        valid_bytes,
        dirty_bytes,
        ?took,
        "cache opened"
    );
    if superblock.void {
        tracing::warn!(
            "the cache had been passed by; what the backing devices have too was forgotten"
        );
    }
    if let Some(state) = &wishes.state {
        state.note(&superblock)?;
    }
    let parts = parts.into_iter().map(|(cache, journal)| (cache, Some(journal))).collect();
    Ok(Parts {
        parts,
        ids,
        keeper: Some(Keeper::new(Arc::clone(source), superblock, wishes.state.clone())),
        data_start: 0,
        most_dirty_bytes: None,
    })
}

pub(super) fn random_id() -> Result<[u8; 16], StartError> {
    let mut id = [0; 16];
    let urandom = std::fs::File::open("/dev/urandom");
    urandom.and_then(|mut file| file.read_exact(&mut id)).map_err(StartError::Random)?;
    Ok(id)
}

/// Returns a random number for a stack of tiers; never 0.
pub(crate) fn random_stack() -> Result<u32, StartError> {
    let [a, b, c, d, ..] = random_id()?;
    Ok(u32::from_le_bytes([a, b, c, d]).max(1))
}

/// Refuses a device with a persistent cache, which a volatile one would overwrite.
///
/// # Errors
/// When there is one, or the device fails.
pub fn refuse_kept(source: &Arc<dyn DeviceSource>) -> Result<(), StartError> {
    let mut cache = Disk::open(source)?;
    let report = cache.with_io(|io| scan(io, &mut |_, _| {}))?;
    let has_volumes = report.superblock.as_ref().is_some_and(|it| !it.volumes.is_empty());
    if !has_volumes && report.problems.is_empty() {
        return Ok(());
    }
    let dirty_bytes = report.shards.iter().map(|shard| shard.dirty_bytes).sum();
    Err(Refusal::Kept { dirty_bytes }.into())
}

/// Identifies the content of a device.
///
/// # Errors
/// When the device fails.
pub fn holds(source: &Arc<dyn DeviceSource>) -> Result<Holds, StartError> {
    let mut disk = Disk::open(source)?;
    Ok(match disk.with_io(|io| look(io, &mut |_, _| {}))? {
        Found::Nothing => Holds::Nothing,
        Found::Foreign => Holds::Data,
        Found::Cache(_) | Found::Retired | Found::Unreadable(_) => Holds::Cache,
    })
}

/// Stores calibration results in the cache on a device, for later servers. Nothing else of it
/// changes.
///
/// # Errors
/// When there is no cache, it cannot be read, or the device fails.
pub fn note_calibration(
    source: &Arc<dyn DeviceSource>,
    calibrated: Calibrated,
) -> Result<(), StartError> {
    let mut disk = Disk::open(source)?;
    let kept = disk.with_io(|io| KeptCache::open(io, &mut |_, _| {}))?.ok_or(Refusal::NoCache)?;
    let mut superblock = kept.superblock().clone();
    superblock.calibrated = Some(calibrated);
    Ok(disk.with_io(|io| write_superblock(io, &mut superblock))?)
}
