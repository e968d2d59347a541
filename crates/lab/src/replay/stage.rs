//! The stage of a replay: a cache, its devices, and their clock.

use std::time::Instant;

use floe_block::{BlockCache, Config, ConfigError, Driver, VolumeId};
use floe_device::medium::Model;
use floe_device::{
    Device, MEDIUM_SEED, MemoryDevice, OpenError, Pool, Ring, RingError, Role, SECTOR_BYTES, Spec,
    StripeDevice,
};

#[cfg(feature = "full")]
use floe_server::config::{ServerConfig, TierConfig};

use super::clock::{Clock, VirtualClock};
use super::meter::{Meter, Metered};
use super::simulated::SimulatedDevice;
use super::verify::Content;

/// Submissions the ring takes at a time.
const RING_ENTRIES: u32 = 512;

/// Memory for requests under way; more is taken as needed.
const ARENA_BYTES: usize = 64 << 20;

/// A cache as `floe serve` would be told to make it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The tiers of the cache, from the top; at least one.
    pub tiers: Vec<Tier>,
    /// The volumes.
    pub volumes: Vec<Volume>,
}

/// A tier, before it is opened.
#[derive(Debug, Clone)]
pub struct Tier {
    /// Its part of the cache.
    pub config: Config,
    /// The most dirty bytes that it may hold; `None` for no limit.
    pub most_dirty_bytes: Option<u64>,
    /// Its device.
    pub cache: Spec,
}

/// A volume, before it is opened.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its name, for messages.
    pub name: String,
    /// Its device.
    pub spec: Spec,
    /// Nothing will be written to it.
    pub read_only: bool,
}

impl Plan {
    /// The cache that a server with these settings would have. Its tiers end with the replay, even
    /// where a server would keep them. `read_only` says that nothing will be written.
    #[cfg(feature = "full")]
    pub fn of(settings: &ServerConfig, read_only: bool) -> Self {
        let volumes = settings.volume.iter().map(|volume| Volume {
            name: volume.name().to_owned(),
            spec: volume.backing().clone(),
            read_only,
        });
        let mut above_bytes = 0;
        let tier = |tier: &TierConfig| {
            let config =
                Config { kept: false, ..tier.config(floe_block::Memory::None, above_bytes) };
            above_bytes += tier.cache_bytes();
            Tier { config, most_dirty_bytes: tier.most_dirty_bytes(), cache: tier.cache().clone() }
        };
        let tiers = settings.tiers().map(tier).collect();
        Self { tiers, volumes: volumes.collect() }
    }

    /// The sizes of the volumes in bytes: as large as they say, or as their files.
    ///
    /// # Errors
    /// When a file's size cannot be told.
    pub fn volume_sizes(&self) -> Result<Vec<u64>, StageError> {
        let size =
            |spec: &Spec| spec.size_found().ok_or_else(|| StageError::Size(spec.to_string()));
        self.volumes.iter().map(|volume| size(&volume.spec)).collect()
    }

    /// Opens a device for each tier.
    fn opened<E>(
        &self,
        open: impl Fn(&Spec, u64) -> Result<Box<dyn Device>, E>,
    ) -> Result<Vec<OpenTier>, E> {
        let opened = |tier: &Tier| {
            let device = open(&tier.cache, tier.config.cache_bytes)?;
            Ok(OpenTier {
                config: tier.config.clone(),
                most_dirty_bytes: tier.most_dirty_bytes,
                device,
            })
        };
        self.tiers.iter().map(opened).collect()
    }

    /// The device of a volume that is there already, if one is: writing to it destroys what it
    /// holds.
    pub fn existing(&self) -> Option<&Spec> {
        self.volumes.iter().map(|volume| &volume.spec).find(|spec| spec.is_there())
    }
}

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The cache cannot be made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel gives no ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file without a medium in virtual time.
    #[error(
        "{0} says no medium, and in virtual time no file is touched: say which medium it is like, \
         such as {0},medium=nvme"
    )]
    NoMedium(String),
    /// A volume of unknown size.
    #[error("cannot tell the size of {0}: it does not exist; create it or add size=SIZE")]
    Size(String),
    /// No address space for the bytes.
    #[error("no memory for the {size} bytes of {spec}, which verification needs: {source}")]
    Memory {
        /// The device.
        spec: String,
        /// Its size.
        size: u64,
        /// Why.
        source: std::io::Error,
    },
}

/// A volume of a stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub(super) id: VolumeId,
    pub(super) content: Content,
}

/// A tier whose device is open.
pub struct OpenTier {
    /// Its part of the cache.
    pub config: Config,
    /// As in [`Tier`].
    pub most_dirty_bytes: Option<u64>,
    /// Its device.
    pub device: Box<dyn Device>,
}

/// A cache with devices, ready to be asked.
pub struct Stage {
    pub(super) driver: Driver,
    /// The settings of its tiers, from the top.
    pub(super) tiers: Vec<Config>,
    pub(super) volumes: Vec<Opened>,
    pub(super) clock: Clock,
    pub(super) meter: Meter,
    /// True if written data is stored.
    pub(super) holds_data: bool,
}

impl Stage {
    /// An empty cache of these tiers, from the top, each with its device; without volumes.
    ///
    /// # Errors
    /// When a tier cannot be made.
    ///
    /// # Panics
    /// Without a tier.
    pub fn new(clock: Clock, pool: Pool, tiers: Vec<OpenTier>) -> Result<Self, ConfigError> {
        let meter = Meter::default();
        let configs = tiers.iter().map(|tier| tier.config.clone()).collect();
        let mut below: Option<Driver> = None;
        for OpenTier { config, most_dirty_bytes, device } in tiers.into_iter().rev() {
            let device = Box::new(Metered::new(device, &meter));
            let mut cache = BlockCache::new(config)?;
            if let Some(most) = most_dirty_bytes {
                cache.limit_dirty(most);
            }
            let tier = floe_block::Tier::new(cache, device, pool.clone());
            let tier = match &clock {
                Clock::Real(_) => tier.with_clock(Instant::now),
                Clock::Virtual(clock) => {
                    let clock = clock.clone();
                    tier.with_clock(move || clock.at(clock.passed_ns()))
                }
            };
            below = Some(match below {
                Some(below) => Driver::on(tier, below),
                None => Driver::new(tier),
            });
        }
        let driver = below.expect("there is a tier");
        Ok(Self { driver, tiers: configs, volumes: Vec::new(), clock, meter, holds_data: true })
    }

    /// Adds a volume on a device, which holds `content`.
    pub fn add_volume(&mut self, name: &str, backing: Box<dyn Device>, content: Content) {
        let id = self.driver.add_volume(name, Box::new(Metered::new(backing, &self.meter)));
        self.volumes.push(Opened { id, content });
    }

    /// Opens the devices of a plan and makes the cache on them.
    ///
    /// # Errors
    /// When the cache cannot be made, the kernel gives no ring, or a device cannot be opened.
    pub fn real(plan: &Plan) -> Result<Self, StageError> {
        for tier in &plan.tiers {
            BlockCache::new(tier.config.clone())?; // opening devices may create files
        }
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = Pool::new(ARENA_BYTES);
        let _ = ring.register_pool(&pool); // without, I/O costs a little more
        let mut volumes = Vec::new();
        for Volume { name, spec, read_only } in &plan.volumes {
            let there = spec.is_there();
            let content = if there { Content::Unknown } else { Content::Zero };
            let device =
                spec.open(&ring, &pool, Role::Backing { read_only: *read_only && there })?;
            volumes.push((name, device, content));
        }
        let tiers = plan.opened(|spec, size| spec.open(&ring, &pool, Role::Cache { size }))?;
        let mut stage = Self::new(Clock::Real(ring), pool, tiers)?;
        for (name, device, content) in volumes {
            stage.add_volume(name, device, content);
        }
        Ok(stage)
    }

    /// Devices that only take time: as long as their media would. With `holds_data` they hold bytes
    /// too, in memory, and all volumes begin as zeros.
    ///
    /// # Errors
    /// When the cache cannot be made, a file has no medium, or a volume's size cannot be told.
    pub fn simulated(plan: &Plan, holds_data: bool) -> Result<Self, StageError> {
        let clock = VirtualClock::default();
        let device = |spec: &Spec, size: u64| simulated(spec, size, &clock, holds_data);
        let clock_of_stage = Clock::Virtual(clock.clone());
        let mut stage = Self::new(clock_of_stage, Pool::new(ARENA_BYTES), plan.opened(device)?)?;
        stage.holds_data = holds_data;
        for (Volume { name, spec, .. }, size) in plan.volumes.iter().zip(plan.volume_sizes()?) {
            stage.add_volume(name, device(spec, size)?, Content::Zero);
        }
        Ok(stage)
    }
}

/// A device of `size` bytes as slow as a spec's medium, and like it made of several.
pub(crate) fn simulated(
    spec: &Spec,
    size: u64,
    clock: &VirtualClock,
    holds_data: bool,
) -> Result<Box<dyn Device>, StageError> {
    if spec.medium().is_none() && !spec.is_memory() {
        return Err(StageError::NoMedium(spec.to_string()));
    }
    let one = |size: u64, seed: u64| {
        let model = spec.medium().map(|medium| Model::new(medium.clone(), seed));
        let memory = |source| StageError::Memory { spec: spec.to_string(), size, source };
        let content =
            holds_data.then(|| MemoryDevice::try_new(size).map_err(memory)).transpose()?;
        Ok(SimulatedDevice::new(clock.clone(), size, model, content))
    };
    let Some(chunk) = spec.chunk_bytes() else { return Ok(Box::new(one(size, MEDIUM_SEED)?)) };
    let members = spec.members();
    let each = size.div_ceil(chunk * members) * chunk;
    let members = (0..members).map(|number| one(each, MEDIUM_SEED + number));
    let stripe = StripeDevice::new(members.collect::<Result<Vec<_>, StageError>>()?, chunk);
    Ok(Box::new(stripe.cut_to(size / SECTOR_BYTES * SECTOR_BYTES)))
}
