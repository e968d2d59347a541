//! Opens the tiers of the cache: persistent ones from their devices, volatile ones empty. A tier
//! that is added to a running server is opened in the same way as those of the start.

use std::cell::RefCell;
use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use floe_block::{BlockCache, Config, Layout, Memory, MemoryTier};
use floe_device::{FolderWitness, MirrorStatus, OpenError, Role, Witness};

use crate::admin::AllowedPaths;
use crate::config::{ServerConfig, TierConfig};
use crate::persistent::{
    CacheSizes, ForceFlags, OpenOptions, Parts, Peered, Ready, StartError, StateDir, check_peers,
    claim, examine, may_claim, missing, refuse_as_volume, volatile_data_start,
};
use crate::tier::Tier;
use crate::volume::{DeviceSource, Volume, too_long};
use crate::volume_share::{self, VolumeShare};

/// Number of threads for which a large new cache gets enough shards, because a later server may
/// have more threads than the one that created the cache.
const THREADS_SOME_DAY: usize = 8;

/// Minimum number of groups in a useful shard.
const GROUPS_A_SHARD: u64 = 16;

/// Minimum number of groups in the shards of a cache that gets more shards than it needs now.
const GROUPS_A_LARGE_SHARD: u64 = 64;

/// The tiers of a cache, from the top, validated as far as possible without opening devices.
#[derive(Debug)]
pub struct PreparedCache {
    /// Each tier with its plan and its place in the configuration file, for errors.
    tiers: Vec<(TierConfig, CachePlan, String)>,
    /// Names of the volumes that should not hold a cache.
    own_data: Vec<String>,
    force: ForceFlags,
    state: Option<StateDir>,
}

#[derive(Debug)]
enum CachePlan {
    Kept(Box<OpenOptions>),
    Volatile(VolatileCache),
}

/// A volatile cache to be created.
#[derive(Debug)]
struct VolatileCache {
    caches: Vec<BlockCache>,
    /// Offset of the data on a file or disk, in bytes.
    data_start: u64,
    force: ForceFlags,
}

impl PreparedCache {
    /// Validates the tiers of the settings. `memory` is the memory tier above them, and `force` the
    /// user's permissions to lose or overwrite data.
    ///
    /// # Errors
    /// When a tier is not possible with its settings, or no tier could need the permissions in
    /// `force`.
    pub fn new(
        config: &ServerConfig,
        memory: Option<&MemoryTier>,
        force: ForceFlags,
        state: Option<StateDir>,
    ) -> Result<Self, CacheError> {
        let is_state = |path: &&PathBuf| state.as_ref().is_some_and(|state| state.has(path));
        for (at, tier) in config.tiers().enumerate() {
            if let Some(path) = tier.cache().paths().iter().find(is_state) {
                let problem = format!(
                    "cache: {} has the state of a cache; give a file of its own",
                    path.display()
                );
                return Err(CacheError::usage(problem).at(&config.before_cache(at)));
            }
        }
        let needed = ForceFlags { initialise: false, ..force } != ForceFlags::default();
        let is_for =
            |tier: &TierConfig| tier.is_persistent() || !needed && !tier.cache().is_memory();
        // Without a persistent tier --discard-dirty may still be about one that is missing.
        let may_miss =
            state.is_some() && force == ForceFlags { discard_dirty: true, ..ForceFlags::default() };
        if force != ForceFlags::default() && !may_miss && !config.tiers().any(is_for) {
            return Err(CacheError::usage(FOR_PERSISTENT));
        }
        let above = memory.map_or(Memory::None, MemoryTier::config);
        // Memory is above the first tier only; the tier above a lower one holds data for it, too.
        let memories = std::iter::once(above).chain(std::iter::repeat(Memory::None));
        let mut above_bytes = memory.map_or(0, |memory| memory.usage().size_bytes);
        let (tiers, threads): (Vec<_>, _) = (config.tiers().collect(), config.threads());
        let before = |at| config.before_cache(at);
        let several = tiers.len() > 1;
        // With several tiers all need shards for the same number of threads.
        let fewer_threads = config.serving.threads.is_none() && !several;
        let lowest = tiers.iter().rposition(|tier| tier.is_persistent());
        let volumes = &config.volume;
        let tier = |(at, (tier, memory)): (usize, (TierConfig, Memory))| {
            let shares = volumes.iter().map(|volume| (volume.name(), volume.cache_share()));
            check_shares(shares, &tier, tier.cache_bytes())?;
            let config = tier.config(memory, above_bytes);
            above_bytes += tier.cache_bytes();
            let mut how = CachePlan::new(&tier, config, threads, fewer_threads, force)
                .map_err(|error| in_tier(error, &tier, several).at(&before(at)))?;
            if let CachePlan::Kept(options) = &mut how {
                (options.lowest, options.state) = (lowest == Some(at), state.clone());
            }
            Ok((tier, how, before(at)))
        };
        let tiers = tiers
            .into_iter()
            .cloned()
            .zip(memories)
            .enumerate()
            .map(tier)
            .collect::<Result<_, CacheError>>()?;
        let own_data = config.volume.iter().filter(|volume| !volume.holds_cache);
        let own_data = own_data.map(|volume| volume.name().to_owned());
        Ok(Self { tiers, own_data: own_data.collect(), force, state })
    }

    /// Opens all tiers. `devices` opens their cache devices, and `progress` receives the bytes of a
    /// journal read so far and their total.
    ///
    /// # Errors
    /// When a tier cannot be opened. All tiers are examined before any device is changed, so that a
    /// refused start changes none.
    pub fn open(
        self,
        volumes: &[Volume],
        devices: &dyn CacheDevices,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Tier>, CacheError> {
        let Self { tiers, own_data, force, state } = self;
        let witness = witness(volumes, state.as_ref());
        let several = tiers.len() > 1;
        if let Some(state) = state.as_ref().filter(|_| tiers.iter().any(|it| it.0.is_persistent()))
        {
            state.try_out().map_err(|refusal| refused(refusal.into()))?;
        }
        // A cache that is missing is found before a file is made in its place.
        let mut sources: Vec<_> = tiers.iter().map(|_| None).collect();
        let prepare = |which: &dyn Fn(&TierConfig) -> bool, sources: &mut [Option<_>]| {
            for ((plan, _, before), source) in tiers.iter().zip(sources) {
                if which(plan) {
                    let device = device(plan, devices, witness.as_ref());
                    *source =
                        Some(device.map_err(|error| in_tier(error, plan, several).at(before))?);
                }
            }
            Ok::<_, CacheError>(())
        };
        prepare(&is_made, &mut sources)?;
        let kept = tiers.iter().zip(&sources).filter(|((plan, ..), _)| plan.is_persistent());
        let kept: Vec<_> = kept.filter_map(|(_, source)| source.clone()).collect();
        // A client may have put a cache there, so this is no reason not to serve.
        for volume in volumes.iter().filter(|volume| own_data.contains(&volume.name)) {
            if let Err(found) = refuse_as_volume(volume) {
                tracing::warn!("{found}");
            }
        }
        let paths = tiers.iter().flat_map(|(plan, ..)| plan.cache().paths());
        let given = kept.iter().map(|source| source.name());
        let given: Vec<_> = given.chain(paths.map(|path| path.display().to_string())).collect();
        let missing = missing(state.as_ref(), volumes, &kept, &given, force).map_err(refused)?;
        let discards = force.discard_dirty || force.accept_backing;
        if discards && !missing.is_dirty() && !tiers.iter().any(|(plan, ..)| plan.is_persistent()) {
            return Err(CacheError::usage(FOR_PERSISTENT));
        }
        prepare(&|plan| !is_made(plan), &mut sources)?;
        let sources = sources.into_iter().map(|source| source.expect("all are open"));
        let mut tiers: Vec<_> = tiers
            .into_iter()
            .zip(sources)
            .map(|((plan, how, _), source)| (plan, how, source))
            .collect();
        let mut kept: Vec<_> = tiers.iter_mut().filter(|(plan, ..)| plan.is_persistent()).collect();
        let sources =
            kept.iter().map(|(plan, _, source)| (plan.cache().to_string(), Arc::clone(source)));
        let peered = check_peers(&sources.collect::<Vec<_>>(), force)
            .map_err(|(at, error)| in_tier(refused(error), &kept[at].0, several))?;
        for ((_, how, _), peered) in kept.iter_mut().zip(peered) {
            if let CachePlan::Kept(options) = how {
                options.peered = peered;
            }
        }
        let examine = |(plan, how, source): (TierConfig, CachePlan, _)| {
            let examined = how.examine(&source, volumes, progress);
            let examined = examined.map_err(|error| in_tier(error, &plan, several))?;
            Ok((plan, examined, source))
        };
        let tiers = tiers.into_iter().map(examine).collect::<Result<Vec<_>, CacheError>>()?;
        for (plan, examined, _) in &tiers {
            examined.check_shares(volumes, plan)?;
        }
        missing.go_on();
        let begin = |(plan, examined, source): (TierConfig, Examined, _)| {
            examined.begin(&plan, source).map_err(|error| in_tier(error, &plan, several))
        };
        tiers.into_iter().map(begin).collect()
    }
}

/// Checks that a tier of `tier_bytes` can guarantee to these volumes what it is to guarantee.
fn check_shares<'a>(
    volumes: impl Iterator<Item = (&'a str, VolumeShare)>,
    tier: &TierConfig,
    tier_bytes: u64,
) -> Result<(), CacheError> {
    let checked = volume_share::check(volumes, &tier.name(), tier_bytes);
    checked.map_err(CacheError::usage)
}

/// The error message for permissions that no configured cache can need.
const FOR_PERSISTENT: &str = "--initialise, --discard-dirty, --accept-backing and --keep-dirty \
                              apply to persistent caches only";

/// Returns whether the device of a tier exists already: a file with a length, a disk, or anything
/// on a network. A mirror exists if one of its halves does, a stripe if all its parts do.
fn is_made(plan: &TierConfig) -> bool {
    let cache = plan.cache();
    let is_made = |path: &std::path::PathBuf| {
        std::fs::metadata(path).is_ok_and(|data| !data.is_file() || data.len() > 0)
    };
    let mut paths = cache.paths().iter();
    match cache.is_mirror() {
        true => cache.is_remote() || paths.any(is_made),
        false => !cache.is_memory() && paths.all(is_made),
    }
}

/// The result of examining a tier, which has changed nothing.
enum Examined {
    Kept(Box<Ready>),
    Volatile(VolatileCache),
}

impl Examined {
    /// Checks that the tier can guarantee to these volumes what it is to guarantee, with the size
    /// that it was made for. A smaller size that a running server has recorded only causes a
    /// warning: the shares of that server may have been others, and the data has to be served.
    fn check_shares(&self, volumes: &[Volume], plan: &TierConfig) -> Result<(), CacheError> {
        let Self::Kept(ready) = self else { return Ok(()) }; // checked by its settings
        let shares = || volumes.iter().map(|volume| (volume.name.as_str(), volume.share));
        let CacheSizes { used, most } = ready.sizes(plan.cache_bytes());
        check_shares(shares(), plan, most)?;
        if let Err(problem) = check_shares(shares(), plan, used) {
            tracing::warn!(
                %problem,
                "the tier was resized and guarantees less; floe tier resize makes it larger, and \
                 floe volume share changes what is guaranteed"
            );
        }
        Ok(())
    }

    /// Starts to use the device: creates the tier, or begins the next session of a persistent one.
    fn begin(self, plan: &TierConfig, source: Arc<dyn DeviceSource>) -> Result<Tier, CacheError> {
        let mut cache = match self {
            Self::Kept(ready) => ready.begin().map_err(refused)?,
            Self::Volatile(VolatileCache { caches, data_start, force }) => {
                if data_start > 0 {
                    claim(&source, force).map_err(refused)?;
                }
                Parts::volatile(caches).with_data_at(data_start)
            }
        };
        keep_from_others(plan.cache().paths());
        let cache_bytes = cache.used_bytes(plan.cache_bytes());
        if let Some(most) = plan.most_dirty_of(cache_bytes) {
            cache.limit_dirty(most);
        }
        Ok(Tier::new(plan.name(), cache, source, cache_bytes))
    }
}

impl CachePlan {
    fn new(
        tier: &TierConfig,
        config: Config,
        threads: usize,
        fewer_threads: bool,
        force: ForceFlags,
    ) -> Result<Self, CacheError> {
        if !tier.is_persistent() {
            let on_disk = !tier.cache().is_memory();
            let data_start = if on_disk { volatile_data_start(&config.sizes) } else { 0 };
            let config =
                Config { cache_bytes: config.cache_bytes.saturating_sub(data_start), ..config };
            let caches = BlockCache::parts(config, threads).map_err(CacheError::usage)?;
            return Ok(Self::Volatile(VolatileCache { caches, data_start, force }));
        }
        let new_shards = tier.shards.unwrap_or_else(|| new_shards(&config, threads));
        if tier.cache().paths().iter().any(|path| !path.exists()) {
            let layout = Layout::new(&config.sizes, config.cache_bytes, new_shards)
                .map_err(CacheError::usage)?;
            let config = Config {
                cache_bytes: layout.data_bytes(),
                shards: Some(new_shards),
                ..config.clone()
            };
            BlockCache::parts(config, threads).map_err(CacheError::usage)?;
        }
        Ok(Self::Kept(Box::new(OpenOptions {
            sizes: tier.block_sizes.clone(),
            shards: tier.shards,
            config,
            threads,
            new_shards,
            fewer_threads,
            peered: Peered { differs: None, passed: None },
            joins: false,
            lowest: false,
            state: None,
            force,
        })))
    }

    /// Examines the device of a tier without changing it.
    fn examine(
        self,
        source: &Arc<dyn DeviceSource>,
        volumes: &[Volume],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Examined, CacheError> {
        Ok(match self {
            Self::Kept(options) => {
                let ready = examine(source, volumes, &options, progress).map_err(refused)?;
                Examined::Kept(Box::new(ready))
            }
            Self::Volatile(cache) => {
                if cache.data_start > 0 {
                    may_claim(source, cache.force).map_err(refused)?;
                }
                Examined::Volatile(cache)
            }
        })
    }
}

/// Everything needed to open a tier on an extra thread for a running server.
#[derive(Debug)]
pub(crate) struct CacheMaker {
    /// Device and settings of the tier, as users write them.
    pub(crate) spec: String,
    /// The user's permissions to lose or overwrite data on the device.
    pub(crate) force: ForceFlags,
    /// Number of worker threads, each of which gets a part of the tier.
    pub(crate) threads: usize,
    /// Capacity of the tiers above, in bytes.
    pub(crate) above_bytes: u64,
    /// Restriction of the files and devices that the tier may use.
    pub(crate) paths: AllowedPaths,
    /// The server's volumes. A volatile tier numbers them in this order; a persistent one returns
    /// its own ids.
    pub(crate) volumes: Vec<Volume>,
    /// State directory of persistent tiers.
    pub(crate) state: Option<StateDir>,
    pub(crate) devices: Arc<dyn CacheDevices>,
}

impl CacheMaker {
    /// Opens the tier's device and creates its parts, which are empty. This may take long.
    ///
    /// # Errors
    /// The reason why the tier cannot be opened.
    pub(crate) fn make(self) -> Result<Tier, CacheError> {
        let Self { spec, force, threads, above_bytes, paths, volumes, state, devices } = self;
        let make = || {
            let tier = TierConfig::of(&spec, &paths).map_err(CacheError::usage)?;
            let shares = volumes.iter().map(|volume| (volume.name.as_str(), volume.share));
            check_shares(shares, &tier, tier.cache_bytes())?;
            let config = tier.config(Memory::None, above_bytes);
            let mut how = CachePlan::new(&tier, config, threads, false, force)?;
            if let CachePlan::Kept(options) = &mut how {
                (options.joins, options.state) = (true, state.clone());
                if let Some(problem) = volumes.iter().find_map(|volume| too_long(&volume.name)) {
                    return Err(CacheError::usage(problem));
                }
            }
            let witness = witness(&volumes, state.as_ref());
            let source = device(&tier, &*devices, witness.as_ref())?;
            let examined = how.examine(&source, &volumes, &mut |_, _| {})?;
            examined.check_shares(&volumes, &tier)?;
            examined.begin(&tier, source)
        };
        make().map_err(|error: CacheError| error.about(&format!("tier {spec}")))
    }
}

/// Opens cache devices. A program can implement this to supply devices of its own.
pub trait CacheDevices: Debug + Send + Sync {
    /// Prepares the device of a tier, which is created if necessary. A mirror whose settings name
    /// no witness uses the one given here.
    ///
    /// # Errors
    /// When the device cannot be opened or created.
    fn prepare(
        &self,
        tier: &TierConfig,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Arc<dyn DeviceSource>, OpenError>;
}

/// Opens the devices that the settings name.
#[derive(Debug, Clone, Copy, Default)]
pub struct NamedDevices;

impl CacheDevices for NamedDevices {
    fn prepare(
        &self,
        tier: &TierConfig,
        witness: Option<&Arc<dyn Witness>>,
    ) -> Result<Arc<dyn DeviceSource>, OpenError> {
        let size = tier.cache_bytes();
        let role = match tier.is_persistent() {
            true => Role::Cache { size },
            false => Role::VolatileCache { size },
        };
        Ok(Arc::new(tier.cache().prepare_witnessed(role, witness)?))
    }
}

/// The reason why a tier cannot be opened, as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct CacheError {
    problem: String,
    /// True if the cause is a failure, so that a retry may succeed; false for a wrong setting.
    pub is_failure: bool,
}

impl CacheError {
    fn usage(problem: impl ToString) -> Self {
        Self { problem: problem.to_string(), is_failure: false }
    }

    /// Prefixes the error with a place in the configuration file.
    fn at(self, before: &str) -> Self {
        Self { problem: format!("{before}{}", self.problem), ..self }
    }

    /// Prefixes the error with its subject.
    fn about(self, what: &str) -> Self {
        Self { problem: format!("{what}: {}", self.problem), ..self }
    }
}

/// Opens a tier's device, and logs the changes of a mirror.
fn device(
    tier: &TierConfig,
    devices: &dyn CacheDevices,
    witness: Option<&Arc<dyn Witness>>,
) -> Result<Arc<dyn DeviceSource>, CacheError> {
    let source = devices.prepare(tier, witness);
    let source = source.map_err(|error| CacheError::usage(format!("cache: {error}")))?;
    source.mirror().iter().for_each(|mirror| mirror.on_change(log_changes()));
    Ok(source)
}

/// Removes other users' permissions from the files of a cache, which earlier versions made readable
/// for all. Block devices keep theirs, which udev sets.
fn keep_from_others(paths: &[PathBuf]) {
    for path in paths {
        let Ok(data) = std::fs::metadata(path) else { continue };
        let mode = data.permissions().mode() & 0o777;
        if !data.is_file() || mode & 0o007 == 0 {
            continue;
        }
        let (file, mode) = (path.display(), format!("{mode:o}"));
        match std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)) {
            Ok(()) => tracing::warn!(
                %file, mode,
                "other users could read the cache's file; it has mode 600 now"
            ),
            Err(error) => tracing::warn!(
                %file, mode, %error,
                "other users can read the cache's file; chmod 600 it"
            ),
        }
    }
}

/// Returns the witness for mirrors whose settings name none: a Ceph image among the volumes, or
/// else the state directory.
fn witness(volumes: &[Volume], state: Option<&StateDir>) -> Option<Arc<dyn Witness>> {
    let images = volumes.iter().filter(|volume| !volume.read_only);
    let folder = || state.map(|state| Arc::new(FolderWitness::new(state.path())) as _);
    images.filter_map(|volume| volume.backing.witness()).next().or_else(folder)
}

/// Prefixes the error with the tier's device if there are several tiers.
fn in_tier(error: CacheError, tier: &TierConfig, several: bool) -> CacheError {
    if several { error.about(&format!("tier {}", tier.cache())) } else { error }
}

/// Returns the number of shards of a new cache: several for each thread, and more as long as they
/// stay large.
fn new_shards(config: &Config, threads: usize) -> u64 {
    let groups_a_shard = |shards| {
        let layout = Layout::new(&config.sizes, config.cache_bytes, shards);
        layout.map_or(0, |layout| layout.shard_sectors() / config.sizes.largest())
    };
    let most = |parts, groups| {
        let mut shards = config.natural_shards(parts);
        while shards > threads as u64 && groups_a_shard(shards) < groups {
            shards = (shards / 2).max(threads as u64);
        }
        shards
    };
    most(threads, GROUPS_A_SHARD).max(most(THREADS_SOME_DAY.max(threads), GROUPS_A_LARGE_SHARD))
}

fn refused(error: StartError) -> CacheError {
    CacheError { problem: error.to_string(), is_failure: error.is_failure() }
}

/// Returns a function that logs the differences between a mirror's successive states.
fn log_changes() -> impl Fn(&MirrorStatus) + Send + 'static {
    let last: RefCell<Option<MirrorStatus>> = RefCell::default();
    move |status| {
        let before = last.replace(Some(status.clone()));
        for (at, half) in status.halves.iter().enumerate() {
            let was = before.as_ref().map_or("in-sync", |before| before.halves[at].state);
            let (name, generation) = (&half.name, status.generation);
            let error = half.error.as_deref().unwrap_or_default();
            let mended = before.as_ref().map_or(0, |before| before.halves[at].mended_bytes);
            if half.mended_bytes > mended {
                let bytes = half.mended_bytes - mended;
                tracing::warn!(
                    half = %name, bytes, all_bytes = half.mended_bytes,
                    "a half returned something else than was stored, and was repaired from another \
                     one"
                );
            }
            match half.state {
                state if state == was => {}
                "in-sync" => tracing::info!(half = %name, generation, "a half is in sync again"),
                "resync" => {
                    let bytes = status.resync_bytes;
                    tracing::info!(half = %name, bytes, "a half is back and is brought up to date");
                }
                _ => tracing::error!(
                    half = %name, generation, %error,
                    "a half has left the mirror, which goes on without it"
                ),
            }
        }
        let was_fenced = before.as_ref().is_some_and(|before| before.fenced);
        if status.fenced && !was_fenced {
            tracing::error!("another server uses the mirror: this one serves nothing from it");
        }
        let knew = before.as_ref().is_some_and(|before| before.witness_error.is_some());
        if let Some(error) = status.witness_error.as_ref().filter(|_| !knew) {
            tracing::error!(%error, "the witness of the mirror cannot record its generation");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Opens a tier on this file, as the start of a server does.
    fn open(file: &std::path::Path) -> Result<Vec<Tier>, CacheError> {
        let text =
            format!("cache = {file:?}\n[[volume]]\nname = \"disk\"\nbacking = \"memory:1MiB\"\n");
        let config = ServerConfig::from_text(&text).expect("good settings");
        let tiers = PreparedCache::new(&config, None, ForceFlags::default(), None)?;
        tiers.open(&[], &NamedDevices, &mut |_, _| {})
    }

    fn mode_of(file: &std::path::Path) -> u32 {
        file.metadata().expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn a_cache_file_that_others_can_read_is_taken_from_them_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("cache");
        for (content, before, after) in [
            (vec![0; 64 * MIB], 0o644, 0o600),
            (vec![0; 64 * MIB], 0o640, 0o640),
            (vec![7; 64 * MIB], 0o644, 0o644),
        ] {
            let is_foreign = content[0] != 0;
            std::fs::write(&file, content).expect("there is room");
            std::fs::set_permissions(&file, Permissions::from_mode(before)).expect("it is ours");
            let opened = open(&file);
            assert_eq!(opened.is_err(), is_foreign, "{opened:?}");
            assert_eq!(mode_of(&file), after, "from {before:o}");
        }
    }
}
