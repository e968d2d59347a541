//! What a trace is replayed on: a cache, its devices, and the clock they keep.

use std::path::{Path, PathBuf};

use floe_block::{BlockCache, Config, ConfigError, Driver, VolumeId};
use floe_device::medium::Model;
use floe_device::{Device, MEDIUM_SEED, MemoryDevice, OpenError, Pool, Ring, RingError, Role, Spec};

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
    /// The cache.
    pub config: Config,
    /// The cache device.
    pub cache: Spec,
    /// The volumes, with their names.
    pub volumes: Vec<(String, Spec)>,
}

impl Plan {
    /// The sizes of the volumes in bytes: as large as they say, or as their files.
    ///
    /// # Errors
    /// When a file's size cannot be told.
    pub fn volume_sizes(&self) -> Result<Vec<u64>, StageError> {
        self.volumes.iter().map(|(_, spec)| volume_bytes(spec)).collect()
    }

    /// The existing file or block device that a volume is on, if one is: writing to it destroys what it holds.
    pub fn existing(&self) -> Option<&Path> {
        self.volumes.iter().filter_map(|(_, spec)| spec.path()).find(|path| path.exists())
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
        "{0} says no medium, and in virtual time no file is touched: say which medium it is like, such as {0},medium=nvme"
    )]
    NoMedium(String),
    /// A file whose size says how large a simulated volume is.
    #[error("cannot tell the size of {path}: {source}; give it as size=SIZE")]
    Size {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
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
pub(super) struct Volume {
    pub(super) id: VolumeId,
    pub(super) content: Content,
}

/// A cache with devices, ready to be asked.
pub struct Stage {
    pub(super) driver: Driver,
    pub(super) volumes: Vec<Volume>,
    pub(super) clock: Clock,
    pub(super) meter: Meter,
    /// Whether what is written arrives anywhere.
    pub(super) holds_data: bool,
}

impl Stage {
    /// An empty cache on a device, without volumes.
    ///
    /// # Errors
    /// When the cache cannot be made.
    pub fn new(
        clock: Clock,
        pool: Pool,
        config: Config,
        cache: Box<dyn Device>,
    ) -> Result<Self, ConfigError> {
        let meter = Meter::default();
        let cache = Box::new(Metered::new(cache, &meter));
        let driver = Driver::new(BlockCache::new(config)?, cache, pool);
        Ok(Self { driver, volumes: Vec::new(), clock, meter, holds_data: true })
    }

    /// Adds a volume on a device, which holds `content`.
    pub fn add_volume(&mut self, name: &str, backing: Box<dyn Device>, content: Content) {
        let id = self.driver.add_volume(name, Box::new(Metered::new(backing, &self.meter)));
        self.volumes.push(Volume { id, content });
    }

    /// Opens the devices of a plan and makes the cache on them.
    ///
    /// # Errors
    /// When the cache cannot be made, the kernel gives no ring, or a device cannot be opened.
    pub fn real(plan: &Plan) -> Result<Self, StageError> {
        BlockCache::<floe_policy::Lru>::new(plan.config.clone())?; // opening devices may create files
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = Pool::new(ARENA_BYTES);
        let _ = ring.register_pool(&pool); // without, I/O costs a little more
        let mut volumes = Vec::new();
        for (name, spec) in &plan.volumes {
            let there = spec.path().is_some_and(Path::exists);
            let content = if there { Content::Unknown } else { Content::Zero };
            let device = spec.open(&ring, &pool, Role::Backing { read_only: false })?;
            volumes.push((name, device, content));
        }
        let cache = plan.cache.open(&ring, &pool, Role::Cache { size: plan.config.cache_bytes })?;
        let mut stage = Self::new(Clock::Real(ring), pool, plan.config.clone(), cache)?;
        for (name, device, content) in volumes {
            stage.add_volume(name, device, content);
        }
        Ok(stage)
    }

    /// Devices that only take time: as long as their media would. With `holds_data` they hold bytes too, in memory, and
    /// all volumes begin as zeros.
    ///
    /// # Errors
    /// When the cache cannot be made, a file has no medium, or a volume's size cannot be told.
    pub fn simulated(plan: &Plan, holds_data: bool) -> Result<Self, StageError> {
        let clock = VirtualClock::default();
        let device = |spec: &Spec, size: u64| -> Result<Box<dyn Device>, StageError> {
            if spec.medium().is_none() && spec.path().is_some() {
                return Err(StageError::NoMedium(spec.to_string()));
            }
            let model = spec.medium().map(|medium| Model::new(medium.clone(), MEDIUM_SEED));
            let memory = |source| StageError::Memory { spec: spec.to_string(), size, source };
            let content = holds_data.then(|| MemoryDevice::try_new(size).map_err(memory)).transpose()?;
            Ok(Box::new(SimulatedDevice::new(clock.clone(), size, model, content)))
        };
        let cache = device(&plan.cache, plan.config.cache_bytes)?;
        let clock_of_stage = Clock::Virtual(clock.clone());
        let mut stage = Self::new(clock_of_stage, Pool::new(ARENA_BYTES), plan.config.clone(), cache)?;
        stage.holds_data = holds_data;
        for (name, spec) in &plan.volumes {
            let backing = device(spec, volume_bytes(spec)?)?;
            stage.add_volume(name, backing, Content::Zero);
        }
        Ok(stage)
    }
}

fn volume_bytes(spec: &Spec) -> Result<u64, StageError> {
    use std::io::Seek;

    match (spec.size_bytes(), spec.path()) {
        (Some(size), _) => Ok(size),
        (None, Some(path)) => std::fs::File::open(path)
            .and_then(|mut file| file.seek(std::io::SeekFrom::End(0)))
            .map_err(|source| StageError::Size { path: path.into(), source }),
        (None, None) => unreachable!("memory has a size"),
    }
}
