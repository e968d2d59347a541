//! Opens the tiers of the cache of `floe serve`: persistent ones from their devices, others anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use floe_block::{BlockCache, Config, Layout, Memory, MemoryTier};
use floe_device::Role;
use floe_server::config::{ServerConfig, TierConfig};
use floe_server::kept::{
    Consent, Parts, StartError, StateDir, Wishes, claim, company, start, volatile_data_start,
};
use floe_server::{DeviceSource, Tier, TierMaker, TierOrder, TierRefused, Volume};

use crate::error::CliError;
use crate::{OrFail, output};

/// A large new cache gets shards for so many threads: later servers may have more threads than the
/// one that made it.
const THREADS_SOME_DAY: usize = 8;

/// Least groups of a useful shard, and the groups of a shard that is large enough for the cache to
/// have shards in reserve.
const GROUPS_A_SHARD: u64 = 16;
const GROUPS_A_LARGE_SHARD: u64 = 64;

/// Operations that take longer show progress.
const PATIENCE: Duration = Duration::from_secs(2);

/// The user's permissions to lose or overwrite data. No file has them: they are for one start.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Allowed {
    /// Make a new cache, whatever the cache device holds
    #[arg(long)]
    initialise: bool,
    /// Lose dirty data where the server would otherwise refuse to start; the log says how much
    #[arg(long)]
    discard_dirty: bool,
    /// Use backing devices that differ from the cache's records, and forget the cached data of them
    #[arg(long)]
    accept_backing: bool,
    /// With --accept-backing: write the cache's dirty data to these devices
    #[arg(long, requires = "accept_backing", conflicts_with = "discard_dirty")]
    keep_dirty: bool,
}

impl From<Allowed> for Consent {
    fn from(allowed: Allowed) -> Self {
        let Allowed { initialise, discard_dirty, accept_backing, keep_dirty } = allowed;
        Self { initialise, discard_dirty, accept_backing, keep_dirty }
    }
}

/// The tiers of a cache, from the top, checked as far as possible without opening devices.
pub(super) struct Prepared {
    tiers: Vec<(TierConfig, How)>,
    consent: Consent,
}

enum How {
    Kept(Box<Wishes>),
    Volatile {
        caches: Vec<BlockCache>,
        /// The byte of a file or disk at which the data begins.
        data_start: u64,
        consent: Consent,
    },
}

impl Prepared {
    pub(super) fn new(
        config: &ServerConfig,
        memory: Option<&MemoryTier>,
        consent: Consent,
        state: Option<StateDir>,
    ) -> Result<Self, CliError> {
        let needed = Consent { initialise: false, ..consent } != Consent::default();
        let is_for =
            |tier: &TierConfig| tier.is_kept() || !needed && !tier.cache().paths().is_empty();
        if consent != Consent::default() && !config.tiers().any(is_for) {
            let problem = "--initialise, --discard-dirty, --accept-backing and --keep-dirty are \
                           for a cache that is kept";
            return Err(CliError::usage(problem));
        }
        let above = memory.map_or(Memory::None, MemoryTier::config);
        // Memory is above the first tier only; the tier above a lower one holds data for it, too.
        let memories = std::iter::once(above).chain(std::iter::repeat(Memory::None));
        let mut above_bytes = memory.map_or(0, |memory| memory.usage().size_bytes);
        let (tiers, threads): (Vec<_>, _) = (config.tiers().collect(), config.threads());
        let several = tiers.len() > 1;
        // With several tiers all need shards for the same number of threads.
        let fewer_threads = config.serving.threads.is_none() && !several;
        let lowest = tiers.iter().rposition(|tier| tier.is_kept());
        let tier = |(at, (tier, memory)): (usize, (TierConfig, Memory))| {
            let config = tier.config(memory, above_bytes);
            above_bytes += tier.cache_bytes();
            let mut how = How::new(&tier, config, threads, fewer_threads, consent)
                .map_err(|error| in_tier(error, &tier, several))?;
            if let How::Kept(wishes) = &mut how {
                (wishes.lowest, wishes.state) = (lowest == Some(at), state.clone());
            }
            Ok((tier, how))
        };
        let tiers = tiers
            .into_iter()
            .cloned()
            .zip(memories)
            .enumerate()
            .map(tier)
            .collect::<Result<_, CliError>>()?;
        Ok(Self { tiers, consent })
    }

    /// Opens the tiers on their devices.
    pub(super) fn open(self, volumes: &[Volume]) -> Result<Vec<Tier>, CliError> {
        let Self { tiers, consent } = self;
        let several = tiers.len() > 1;
        let prepare = |(plan, how): (TierConfig, How)| {
            let source = device(&plan).map_err(|error| in_tier(error, &plan, several))?;
            Ok((plan, how, source))
        };
        let mut tiers = tiers.into_iter().map(prepare).collect::<Result<Vec<_>, CliError>>()?;
        let mut kept: Vec<_> = tiers.iter_mut().filter(|(plan, ..)| plan.is_kept()).collect();
        let sources =
            kept.iter().map(|(plan, _, source)| (plan.cache().to_string(), Arc::clone(source)));
        let apart = company(&sources.collect::<Vec<_>>(), consent)
            .map_err(|(at, error)| in_tier(refused(error), &kept[at].0, several))?;
        for ((_, how, _), apart) in kept.iter_mut().zip(apart) {
            if let How::Kept(wishes) = how {
                wishes.apart = apart;
            }
        }
        let open = |(plan, how, source): (TierConfig, How, _)| {
            watched(|progress| how.open(&plan, source, volumes, progress))
                .map_err(|error| in_tier(error, &plan, several))
        };
        tiers.into_iter().map(open).collect()
    }
}

impl How {
    fn new(
        tier: &TierConfig,
        config: Config,
        threads: usize,
        fewer_threads: bool,
        consent: Consent,
    ) -> Result<Self, CliError> {
        if !tier.is_kept() {
            let on_disk = !tier.cache().paths().is_empty();
            let data_start = if on_disk { volatile_data_start(&config.sizes) } else { 0 };
            let config =
                Config { cache_bytes: config.cache_bytes.saturating_sub(data_start), ..config };
            let caches = BlockCache::parts(config, threads).or_usage()?;
            return Ok(Self::Volatile { caches, data_start, consent });
        }
        let new_shards = tier.shards.unwrap_or_else(|| new_shards(&config, threads));
        if tier.cache().paths().iter().any(|path| !path.exists()) {
            let layout = Layout::new(&config.sizes, config.cache_bytes, new_shards).or_usage()?;
            let config = Config {
                cache_bytes: layout.data_bytes(),
                shards: Some(new_shards),
                ..config.clone()
            };
            BlockCache::parts(config, threads).or_usage()?;
        }
        Ok(Self::Kept(Box::new(Wishes {
            sizes: tier.block_sizes.clone(),
            shards: tier.shards,
            config,
            threads,
            new_shards,
            fewer_threads,
            apart: None,
            joins: false,
            lowest: false,
            state: None,
            consent,
        })))
    }

    fn open(
        self,
        plan: &TierConfig,
        source: Arc<dyn DeviceSource>,
        volumes: &[Volume],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Tier, CliError> {
        let mut cache = match self {
            Self::Kept(wishes) => start(&source, volumes, &wishes, progress).map_err(refused)?,
            Self::Volatile { caches, data_start, consent } => {
                if data_start > 0 {
                    claim(&source, consent).map_err(refused)?;
                }
                Parts::volatile(caches).with_data_at(data_start)
            }
        };
        if let Some(most) = plan.most_dirty_bytes() {
            cache.limit_dirty(most);
        }
        Ok(Tier { name: plan.name(), cache, source, cache_bytes: plan.cache_bytes() })
    }
}

/// Makes the tiers that are added while the server runs.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// The state directory of the persistent tiers.
    pub(super) state: Option<StateDir>,
}

impl TierMaker for Newcomers {
    fn make(&self, order: &TierOrder) -> Result<Tier, TierRefused> {
        let TierOrder { spec, consent, threads, above_bytes, paths, volumes } = order;
        let make = || {
            let plan = TierConfig::of(spec, paths).or_usage()?;
            let config = plan.config(Memory::None, *above_bytes);
            let mut how = How::new(&plan, config, *threads, false, *consent)?;
            if let How::Kept(wishes) = &mut how {
                (wishes.joins, wishes.state) = (true, self.state.clone());
            }
            how.open(&plan, device(&plan)?, volumes, &mut |_, _| {})
        };
        make().map_err(|error: CliError| {
            let error = error.about(&format!("tier {spec}"));
            TierRefused { problem: error.line().to_owned(), is_failure: error.is_failure() }
        })
    }
}

/// Opens a tier's device, which is made if necessary.
fn device(plan: &TierConfig) -> Result<Arc<dyn DeviceSource>, CliError> {
    let role = Role::Cache { size: plan.cache_bytes() };
    Ok(Arc::new(plan.cache().prepare(role).or_usage()?))
}

/// Adds the tier to the error, where there are several tiers.
fn in_tier(error: CliError, tier: &TierConfig, several: bool) -> CliError {
    if several { error.about(&format!("tier {}", tier.cache())) } else { error }
}

/// Returns the number of shards of a new cache: several for each of its threads, and more where
/// that leaves them large.
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

/// Runs an operation and shows its progress if it takes long.
fn watched<T>(act: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let begun = Instant::now();
    let mut bar = None;
    let done = act(&mut |read, all| {
        if begun.elapsed() >= PATIENCE {
            bar.get_or_insert_with(|| output::progress(all, "reading the cache's journal"))
                .set_position(read);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    done
}

fn refused(error: StartError) -> CliError {
    let line = error.to_string();
    if error.is_failure() { CliError::failure(line) } else { CliError::usage(line) }
}
