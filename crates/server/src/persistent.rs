//! Persistent caches: opens them for serving, and checks, repairs or drains them without a server.
//!
//! A cache belongs to the volumes with which it was used. `examine` compares its superblock with
//! the given volumes (`validate_volumes`). It makes a new cache, opens the old one, or refuses with
//! a reason and without a change. Steps that lose or may lose data need the user's [`ForceFlags`].
//! While a server runs, its `SuperblockWriter` records the volumes in the superblock, and at the
//! end the clean shutdown.

mod check;
mod content;
mod disk;
mod error;
mod guard;
mod peer_tiers;
mod state_dir;
mod superblock_writer;
mod validate;
mod write_back;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_block::{
    Begun, BlockSizes, Calibrated, Config, KeptCache, Layout, NewCache, Samples, Volume as Known,
    VolumeId, scan, write_superblock,
};
use floe_device::Identity;

use self::content::{Found, look};
use self::error::Bytes;
use self::state_dir::Judged;
use self::superblock_writer::random_id;
use self::validate::{Candidate, known, sampled, validate_volumes};
use crate::status::OpenedStatus;
use crate::volume::{DeviceSource, Volume};

pub use check::{Checked, check, repair};
pub use content::{ForceFlags, Holds, claim, holds, refuse_kept, volatile_data_start};
pub use disk::{Disk, DiskError};
pub use error::{Difference, Given, Refusal, StartError};
pub use peer_tiers::{Peered, check_peers};
pub use state_dir::StateDir;
pub use superblock_writer::Parts;
pub use write_back::{Target, WrittenBack, write_back};

pub(crate) use content::{may_claim, refuse_as_volume, try_volatile};
pub(crate) use guard::guarded;
pub(crate) use peer_tiers::{missing, without};
pub(crate) use superblock_writer::{CacheSizes, SuperblockWriter, random_stack};

/// A cache that can begin a session. Nothing on its device has been changed yet.
pub(crate) struct Ready {
    source: Arc<dyn DeviceSource>,
    cache: Disk,
    found: Examined,
    /// Id of the cache that a new one replaces.
    replaces: Option<[u8; 16]>,
    /// Maps names of volumes to names of their backing devices.
    backings: BTreeMap<String, String>,
    options: OpenOptions,
    took: Duration,
}

/// The cache with which a session can begin: an existing one with its volume entries, or a new one.
enum Examined {
    Kept(Box<KeptCache>, Vec<Known>),
    New(NewCache),
}

/// Examines the cache on a device for a session of these volumes, without changing anything.
/// `progress` receives the bytes read so far and their total.
///
/// # Errors
/// When the user has to decide something first, or a device fails.
pub(crate) fn examine(
    source: &Arc<dyn DeviceSource>,
    volumes: &[Volume],
    options: &OpenOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Ready, StartError> {
    let begun_at = Instant::now();
    let mut cache = Disk::open(source)?;
    let mut candidates = candidates(volumes)?;
    let found = cache.with_io(|io| look(io, progress))?;
    let (found, before) = noted(found, options.state.as_ref(), options.peered.passed);
    let id = match &found {
        Found::Cache(kept) => Some(kept.superblock().id),
        _ => cache.with_io(KeptCache::identify).ok().flatten().map(|superblock| superblock.id),
    };
    let (found, replaces) = match replacement(found, &mut cache, options)? {
        Some(mut kept) => {
            let old = old_copy(&kept, before.judged, options.force)?;
            let apart = old.or(options.peered.differs);
            let without = &before.without;
            let (lowest, force) = (options.lowest, options.force);
            let volumes =
                validate_volumes(&mut kept, &mut candidates, apart, without, lowest, force)?;
            let parts = options.threads.min(kept.superblock().layout.shards() as usize);
            kept.try_parts(&options.config, parts)?;
            (Examined::Kept(Box::new(kept), volumes), None)
        }
        None => {
            let layout = Layout::new(
                options.sizes.as_ref().unwrap_or(&options.config.sizes),
                options.config.cache_bytes,
                options.new_shards,
            )?;
            let ids = (0..).map(VolumeId).zip(&mut candidates);
            let volume = |(id, candidate): (VolumeId, &mut Candidate<'_>)| match options.joins {
                true => known(id, candidate.volume), // clients may be writing to it
                false => sampled(id, candidate, &Samples::default()),
            };
            let volumes = ids.map(volume).collect();
            (Examined::New(NewCache { id: random_id()?, layout, volumes }), id)
        }
    };
    let backing = |volume: &Volume| (volume.name.clone(), volume.backing.name());
    Ok(Ready {
        source: Arc::clone(source),
        cache,
        found,
        replaces,
        backings: volumes.iter().map(backing).collect(),
        options: options.clone(),
        took: begun_at.elapsed(),
    })
}

impl Ready {
    /// Returns the sizes of the cache on a device of `has` bytes.
    pub(crate) fn sizes(&self, has: u64) -> CacheSizes {
        match &self.found {
            Examined::Kept(kept, _) => CacheSizes::of(kept.superblock(), has),
            Examined::New(_) => CacheSizes { used: has, most: has },
        }
    }

    /// Begins the session; makes the cache first if it is a new one.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn begin(self) -> Result<Parts, StartError> {
        let Self { source, mut cache, found, replaces, backings, options, took } = self;
        let (kept, volumes) = match found {
            Examined::Kept(kept, volumes) => (*kept, volumes),
            Examined::New(new) => {
                let volumes = new.volumes.clone();
                let kept = cache.with_io(|io| KeptCache::create(io, new))?;
                if let (Some(state), Some(id)) = (&options.state, replaces) {
                    state.forget(&id);
                }
                let layout = &kept.superblock().layout;
                tracing::info!(
                    bytes = layout.end_bytes(),
                    data_bytes = layout.data_bytes(),
                    shards = layout.shards(),
                    block_sizes = %layout.sizes(),
                    "cache made"
                );
                (kept, volumes)
            }
        };
        begin(&source, cache, kept, volumes, backings, &options, took)
    }
}

/// The state directory's record of a cache.
struct Before {
    judged: Judged,
    /// Names of volumes that were served without the cache since its last session.
    without: Vec<String>,
}

/// Compares a cache with its note in the state directory. Applies a record of a bypass, from the
/// note or from a peer tier, that the cache device itself has refused.
fn noted(found: Found, state: Option<&StateDir>, by_peers: Option<bool>) -> (Found, Before) {
    let mut before = Before { judged: Judged::Current, without: Vec::new() };
    let mut kept = match found {
        Found::Cache(kept) => kept,
        other => return (other, before),
    };
    let superblock = kept.superblock();
    if let Some(state) = state {
        before.judged = state.judge(superblock);
        before.without = state.read(&superblock.id).map_or(Vec::new(), |(it, _)| it.without);
    }
    let by_state = match &before.judged {
        Judged::Bypassed { retired, file } => Some((*retired, file.display().to_string())),
        _ => None,
    };
    let by_peers = by_peers.map(|retired| (retired, "the superblock of another tier".to_owned()));
    // That it was ended is noted last.
    let Some((retired, witness)) = by_state.into_iter().chain(by_peers).max_by_key(|it| it.0)
    else {
        return (Found::Cache(kept), before);
    };
    tracing::warn!(
        session = superblock.session,
        witness,
        retired,
        "the cache device could not record that requests bypassed the cache; the note in the state \
         folder counts"
    );
    if matches!(before.judged, Judged::Unclear { .. }) {
        before.judged = Judged::Current; // a peer knows
    }
    if retired {
        return (Found::Retired, before);
    }
    kept.pass_by();
    (Found::Cache(kept), before)
}

/// Opens the backing devices and flushes the writable ones. Recovery relies on data written to them
/// earlier, which must not be lost later.
fn candidates(volumes: &[Volume]) -> Result<Vec<Candidate<'_>>, StartError> {
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

/// Returns the existing cache to open, or `None` if a new one is to be made.
fn replacement(
    found: Found,
    cache: &mut Disk,
    options: &OpenOptions,
) -> Result<Option<KeptCache>, StartError> {
    let force = options.force;
    let (dirty_bytes, exact) = match found {
        Found::Nothing => return Ok(None),
        Found::Retired => {
            tracing::warn!(
                "the cache was ended when its journal could not be written; a new one is made in \
                 its place"
            );
            return Ok(None);
        }
        Found::Foreign if force.initialise => (0, true),
        Found::Foreign => return Err(Refusal::Foreign.into()),
        Found::Cache(kept) if force.initialise => (all_dirty_bytes(&kept), true),
        // A cache that was detached from a running server holds nothing.
        Found::Cache(kept) if kept.superblock().volumes.is_empty() => return Ok(None),
        Found::Cache(_) if options.joins => return Err(Refusal::Joins.into()),
        Found::Cache(kept) => {
            check_layout(&kept, options)?;
            return Ok(Some(*kept));
        }
        Found::Unreadable(error) if !force.initialise => {
            return Err(Refusal::Unreadable(error).into());
        }
        Found::Unreadable(_) => {
            let report = cache.with_io(|io| scan(io, &mut |_, _| {}))?;
            (report.shards.iter().map(|shard| shard.dirty_bytes).sum(), false)
        }
    };
    if (dirty_bytes > 0 || !exact) && !force.discard_dirty {
        return Err(Refusal::WouldLose { dirty_bytes, exact }.into());
    }
    if dirty_bytes > 0 {
        tracing::warn!(
            "{} of dirty data of the old cache are discarded, as --discard-dirty says",
            Bytes(dirty_bytes)
        );
    }
    Ok(None)
}

/// Refuses an old copy of the cache, and a bypassed cache whose dirty data may or may not have been
/// written back. Returns [`Difference::Old`] if the user accepts it.
fn old_copy(
    kept: &KeptCache,
    judged: Judged,
    force: ForceFlags,
) -> Result<Option<Difference>, Refusal> {
    let (noted, file, is_old) = match judged {
        Judged::Current | Judged::Bypassed { .. } => return Ok(None),
        Judged::Old { noted, file } => (noted.session, file, true),
        Judged::Unclear { noted, file } => (noted.session, file, false),
    };
    let session = kept.superblock().session;
    let witness = file.display().to_string();
    if !force.accept_backing {
        let dirty_bytes = all_dirty_bytes(kept);
        return Err(match is_old {
            true => Refusal::OldCache { session, noted, witness, dirty_bytes },
            false => Refusal::Unclear { noted, witness, dirty_bytes },
        });
    }
    tracing::warn!(session, noted, witness, "continues with an old copy of the cache");
    Ok(Some(Difference::Old))
}

fn all_dirty_bytes(kept: &KeptCache) -> u64 {
    kept.superblock().volumes.iter().map(|volume| kept.dirty_bytes(volume.id)).sum()
}

/// Fails if the options ask for block sizes, shards or threads that the existing cache does not
/// allow.
fn check_layout(kept: &KeptCache, options: &OpenOptions) -> Result<(), Refusal> {
    let layout = &kept.superblock().layout;
    if let Some(asked) = &options.sizes
        && asked != layout.sizes()
    {
        let (has, asked) = (layout.sizes().to_string(), asked.to_string());
        return Err(Refusal::Layout { setting: "block-sizes", has, asked });
    }
    if let Some(asked) = options.shards
        && asked != layout.shards()
    {
        let (has, asked) = (layout.shards().to_string(), asked.to_string());
        return Err(Refusal::Layout { setting: "shards", has, asked });
    }
    let threads = options.threads;
    if threads as u64 > layout.shards() && !options.fewer_threads {
        return Err(Refusal::Threads { shards: layout.shards(), threads });
    }
    Ok(())
}

/// Begins a session on the cache and divides it into a part for each thread.
fn begin(
    source: &Arc<dyn DeviceSource>,
    mut cache: Disk,
    kept: KeptCache,
    volumes: Vec<Known>,
    backings: BTreeMap<String, String>,
    options: &OpenOptions,
    took: Duration,
) -> Result<Parts, StartError> {
    let sum = |bytes: &dyn Fn(VolumeId) -> u64| {
        volumes.iter().map(|volume| bytes(volume.id)).sum::<u64>()
    };
    let (valid_bytes, dirty_bytes) =
        (sum(&|id| kept.valid_bytes(id)), sum(&|id| kept.dirty_bytes(id)));
    let (clean, shards) = (kept.superblock().clean, kept.superblock().layout.shards());
    let (mut config, threads) = (options.config.clone(), options.threads.min(shards as usize));
    if let Some(calibrated) = &kept.superblock().calibrated {
        let gate = &mut config.gate;
        gate.admission = gate.admission.calibrated(calibrated);
        if !gate.admission.is_always() {
            tracing::info!(admit = %gate.admission, "the admission uses its recorded calibration");
        }
    }
    for volume in volumes.iter().filter(|volume| volume.identity == Identity::default()) {
        tracing::info!(
            volume = volume.name,
            "only some of its content identifies the device: after a crash another one in its \
             place may go unnoticed"
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
        tracing::warn!("requests had bypassed the cache; its clean data was forgotten");
    }
    let writer = SuperblockWriter::new(Arc::clone(source), superblock, options.state.clone());
    writer.note_begin(backings, dirty_bytes > 0, config.mode.keeps_writes());
    let parts = parts.into_iter().map(|(cache, journal)| (cache, Some(journal))).collect();
    Ok(Parts {
        parts,
        ids,
        data_start: writer.data_start(),
        writer: Some(writer),
        most_dirty_bytes: None,
        opened: Some(OpenedStatus { ended: ended.to_owned(), dirty_bytes, valid_bytes }),
    })
}

/// Stores calibration results in the superblock of the cache on a device, for later servers.
///
/// # Errors
/// When the device has no cache, the cache cannot be read, or the device fails.
pub fn note_calibration(
    source: &Arc<dyn DeviceSource>,
    calibrated: Calibrated,
) -> Result<(), StartError> {
    let mut disk = Disk::open(source)?;
    let kept = disk.with_io(|io| KeptCache::open(io, &mut |_, _| {}))?;
    let kept = kept.ok_or_else(|| Refusal::NoCache { device: source.name() })?;
    let mut superblock = kept.superblock().clone();
    superblock.calibrated = Some(calibrated);
    Ok(disk.with_io(|io| write_superblock(io, &mut superblock))?)
}

/// Options for opening or making a persistent cache.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Block sizes; `None` accepts those of an existing cache.
    pub sizes: Option<BlockSizes>,
    /// Number of shards; `None` accepts that of an existing cache.
    pub shards: Option<u64>,
    /// Number of shards of a new cache.
    pub new_shards: u64,
    /// Configuration for serving the cache, with the bytes of the device that a new cache may use.
    pub config: Config,
    /// Number of threads that share the cache.
    pub threads: usize,
    /// Use fewer threads if the cache has fewer shards.
    pub fewer_threads: bool,
    /// Facts about the tier from its peers' superblocks, by [`check_peers()`](check_peers()).
    pub peered: Peered,
    /// True if the tier is attached to a running server: its content may be old by now.
    pub joins: bool,
    /// True if no persistent tier is below.
    pub lowest: bool,
    /// The state directory, by which an old copy of the cache is detected.
    pub state: Option<StateDir>,
    /// The user's permissions to lose or overwrite data.
    pub force: ForceFlags,
}
