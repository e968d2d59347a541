//! The cache of `floe serve`: kept on its device, or made anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use floe_block::{BlockCache, Config, Gate, Layout, Memory, MemoryTier, Serving};
use floe_device::{Role, Spec};
use floe_export::kept::{Consent, Parts, StartError, Wishes, refuse_kept, start};
use floe_export::server::{DeviceSource, Volume};

use crate::error::CliError;
use crate::settings::Plan;
use crate::{OrFail, output};

/// A new cache that is large gets shards for so many threads: it may be served by more than those it was made with.
const THREADS_SOME_DAY: usize = 8;

/// Groups that keep a shard useful, and those of one that is large enough for others beside it that no thread needs yet.
const GROUPS_A_SHARD: u64 = 16;
const GROUPS_A_LARGE_SHARD: u64 = 64;

/// Progress is shown of what takes longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the user allows to be done to data, which no file says: it is for one start.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Allowed {
    /// Make a new cache, whatever is on the cache device
    #[arg(long)]
    initialise: bool,
    /// Lose what only the cache has of volumes, where it would otherwise refuse to serve; what is lost is logged
    #[arg(long)]
    discard_dirty: bool,
    /// Use backing devices that are not as the cache knows them, and forget what the cache has of them
    #[arg(long)]
    accept_backing: bool,
    /// With --accept-backing: write what only the cache has of them to these devices
    #[arg(long, requires = "accept_backing", conflicts_with = "discard_dirty")]
    keep_dirty: bool,
}

impl From<Allowed> for Consent {
    fn from(allowed: Allowed) -> Self {
        let Allowed { initialise, discard_dirty, accept_backing, keep_dirty } = allowed;
        Self { initialise, discard_dirty, accept_backing, keep_dirty }
    }
}

/// A cache that could be made: what can be known before devices are opened has been checked.
pub(super) enum Prepared {
    Kept(Box<Wishes>),
    Volatile { caches: Vec<BlockCache>, cache_bytes: u64 },
}

impl Prepared {
    pub(super) fn new(plan: &Plan, consent: Consent) -> Result<Self, CliError> {
        let kept = plan.keeps_cache();
        let memory = plan.memory.as_ref().map_or(Memory::None, |memory| MemoryTier::config(&memory.tier));
        let above_bytes = plan.memory.as_ref().map_or(0, |memory| memory.tier.usage().size_bytes);
        let gate = Gate { admission: plan.admit.clone(), above_bytes };
        let config = Config {
            sizes: plan.sizes.clone().unwrap_or_default(),
            cache_bytes: plan.cache_bytes,
            mode: plan.mode,
            gate: gate.clone(),
            shards: plan.shards,
            memory,
            kept,
        };
        if !kept {
            if consent != Consent::default() {
                let problem = "--initialise, --discard-dirty, --accept-backing and --keep-dirty are for a cache that is kept";
                return Err(CliError::usage(problem));
            }
            let caches = BlockCache::parts(config, plan.threads).or_usage()?;
            return Ok(Self::Volatile { caches, cache_bytes: plan.cache_bytes });
        }
        let new_shards = plan.shards.unwrap_or_else(|| new_shards(&config, plan.threads));
        if plan.cache.paths().iter().any(|path| !path.exists()) {
            let layout = Layout::new(&config.sizes, config.cache_bytes, new_shards).or_usage()?;
            let config = Config { cache_bytes: layout.data_bytes(), shards: Some(new_shards), ..config };
            BlockCache::<floe_policy::Lru>::parts(config, plan.threads).or_usage()?;
        }
        Ok(Self::Kept(Box::new(Wishes {
            sizes: plan.sizes.clone(),
            shards: plan.shards,
            cache_bytes: plan.cache_bytes,
            new_shards,
            serving: Serving { mode: plan.mode, gate, memory, parts: plan.threads },
            fewer_threads: !plan.threads_given,
            consent,
        })))
    }

    /// Opens the cache on its device.
    pub(super) fn open(
        self,
        cache: &Spec,
        volumes: &[Volume],
    ) -> Result<(Arc<dyn DeviceSource>, Parts), CliError> {
        let size = match &self {
            Self::Kept(wishes) => wishes.cache_bytes,
            Self::Volatile { cache_bytes, .. } => *cache_bytes,
        };
        let source: Arc<dyn DeviceSource> = Arc::new(cache.prepare(Role::Cache { size }).or_usage()?);
        let parts = match self {
            Self::Kept(wishes) => watched(|progress| start(&source, volumes, &wishes, progress)),
            Self::Volatile { caches, .. } => refuse_kept(&source).map(|()| Parts::volatile(caches)),
        };
        Ok((source, parts.map_err(refused)?))
    }
}

/// The number of shards of a new cache: several for each of its threads, and more where that leaves them large.
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

/// Shows progress of something that takes its time.
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
