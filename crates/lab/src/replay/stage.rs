//! The stage of a replay: a cache with its devices and their clock.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_block::{BlockCache, CacheShare, Config, ConfigError, Driver, VolumeId};
use floe_device::medium::{Direction, Model};
use floe_device::{
    Completion, Device, MEDIUM_SEED, MemoryDevice, OpenError, Operation, Pool, Ring, RingError,
    Role, SECTOR_BYTES, Spec, StripeDevice, delegate_device,
};

use super::bucket::{BucketMeter, SimulatedBucket};
use super::verify::Content;
use super::virtual_clock::VirtualClock;

#[cfg(feature = "full")]
use floe_server::config::{ServerConfig, TierConfig};
#[cfg(feature = "full")]
use floe_server::{RequestLimit, VolumeLimit, check_shares};

/// Number of submissions that the io_uring ring holds.
const RING_ENTRIES: u32 = 512;

/// Initial size in bytes of the buffer pool for requests in flight; it grows as needed.
const ARENA_BYTES: usize = 64 << 20;

/// Description of a cache and its volumes, before any device is opened.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The tiers of the cache, from the top; at least one.
    pub tiers: Vec<Tier>,
    /// Volumes that the cache serves.
    pub volumes: Vec<Volume>,
}

/// A tier: its settings, and its device `D`, by default the description of one to be opened.
#[derive(Debug, Clone)]
pub struct Tier<D = Spec> {
    /// Settings of the tier.
    pub config: Config,
    /// Largest number of dirty bytes in the tier; `None` for no limit.
    pub most_dirty_bytes: Option<u64>,
    /// The tier's device.
    pub device: D,
}

/// Description of a volume, before its device is opened.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Name of the volume, for messages.
    pub name: String,
    /// The volume's backing device.
    pub spec: Spec,
    /// True if nothing will be written to the volume.
    pub read_only: bool,
    /// Shares of the volume in the tiers, from the top; empty without a share.
    pub shares: Vec<CacheShare>,
    /// Limits of the volume's requests.
    #[cfg(feature = "full")]
    pub limit: RequestLimit,
}

impl Volume {
    /// Creates the description of a volume that may be written to, without a share or a limit.
    pub fn new(name: &str, spec: Spec) -> Self {
        Self {
            name: name.to_owned(),
            spec,
            read_only: false,
            shares: Vec::new(),
            #[cfg(feature = "full")]
            limit: RequestLimit::default(),
        }
    }
}

impl Plan {
    /// Returns the cache that a server with these settings would have, without persistence: tiers
    /// end with the replay. `read_only` states that nothing will be written.
    ///
    /// # Errors
    /// When a tier cannot guarantee all that volumes are to have of it, in the server's words.
    #[cfg(feature = "full")]
    pub fn of(settings: &ServerConfig, read_only: bool) -> Result<Self, String> {
        for tier in settings.tiers() {
            let shares = settings.volume.iter().map(|it| (it.name(), it.cache_share()));
            check_shares(shares, &tier.name(), tier.cache_bytes())?;
        }
        let volumes = settings.volume.iter().map(|volume| Volume {
            read_only,
            shares: match volume.cache_share() {
                share if share.is_any() => {
                    settings.tiers().map(|tier| share.of(tier.cache_bytes())).collect()
                }
                _ => Vec::new(),
            },
            limit: volume.limit(),
            ..Volume::new(volume.name(), volume.backing().clone())
        });
        let mut above_bytes = 0;
        let tier = |tier: &TierConfig| {
            let config =
                Config { kept: false, ..tier.config(floe_block::Memory::None, above_bytes) };
            above_bytes += tier.cache_bytes();
            Tier { config, most_dirty_bytes: tier.most_dirty_bytes(), device: tier.cache().clone() }
        };
        let tiers = settings.tiers().map(tier).collect();
        Ok(Self { tiers, volumes: volumes.collect() })
    }

    /// Returns the sizes of the volumes in bytes, from their settings or their files.
    ///
    /// # Errors
    /// When the size of a file cannot be determined.
    pub fn volume_sizes(&self) -> Result<Vec<u64>, StageError> {
        let size =
            |spec: &Spec| spec.size_found().ok_or_else(|| StageError::Size(spec.to_string()));
        self.volumes.iter().map(|volume| size(&volume.spec)).collect()
    }

    /// Opens a device for each tier.
    fn opened<E>(
        &self,
        open: impl Fn(&Spec, u64) -> Result<Box<dyn Device>, E>,
    ) -> Result<Vec<Tier<Box<dyn Device>>>, E> {
        let opened = |tier: &Tier| {
            let device = open(&tier.device, tier.config.cache_bytes)?;
            Ok(Tier {
                config: tier.config.clone(),
                most_dirty_bytes: tier.most_dirty_bytes,
                device,
            })
        };
        self.tiers.iter().map(opened).collect()
    }

    /// Returns the first backing device that exists already, if any. Writing to it destroys its
    /// contents.
    pub fn existing(&self) -> Option<&Spec> {
        self.volumes.iter().map(|volume| &volume.spec).find(|spec| spec.is_there())
    }
}

/// Errors of preparing a stage.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The cache cannot be created with these settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel refused to create an io_uring ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A device in virtual time is a file and names no medium.
    #[error(
        "{0} names no medium, and in virtual time no file is used: name one, such as \
         {0},medium=nvme"
    )]
    NoMedium(String),
    /// The size of a volume is unknown.
    #[error("cannot tell the size of {0}: it does not exist; create it or add size=SIZE")]
    Size(String),
    /// No address space for the bytes of a simulated device.
    #[error("no memory for the {size} bytes of {spec}, which verification needs: {source}")]
    Memory {
        /// The device, as named in the settings.
        spec: String,
        /// Size of the device in bytes.
        size: u64,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// A volume whose backing device is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: VolumeId,
    pub(super) name: String,
    pub(super) content: Content,
    /// Bytes that the backing device has moved.
    pub(super) moved: Rc<Moved>,
    /// The token bucket of the volume's limits, which the server has as well. A trace knows no
    /// clients, so those of each client are left out.
    #[cfg(feature = "full")]
    limit: Option<VolumeLimit>,
}

impl Opened {
    /// Takes the share of a request of so many bytes that arrives `now` in the volume's limits.
    /// Returns the time at which it may start.
    #[cfg(feature = "full")]
    pub(super) fn start(&self, bytes: u64, now: Instant) -> Instant {
        self.limit.as_ref().map_or(now, |limit| limit.take(bytes, now))
    }

    /// Returns the time `now`: without the server there are no limits.
    #[cfg(not(feature = "full"))]
    pub(super) fn start(&self, _: u64, now: Instant) -> Instant {
        now
    }
}

/// A cache with open devices, ready for requests.
pub struct Stage {
    pub(super) driver: Driver,
    /// Settings of the tiers, from the top.
    pub(super) tiers: Vec<Config>,
    pub(super) volumes: Vec<Opened>,
    pub(super) clock: Clock,
    pub(super) meter: Meter,
    /// True if devices store the data that is written.
    pub(super) holds_data: bool,
    /// Requests of simulated volumes in buckets.
    pub(super) buckets: BucketMeter,
    /// True if there are such volumes.
    pub(super) has_buckets: bool,
}

impl Stage {
    /// Creates an empty cache of these tiers, from the top, without volumes.
    ///
    /// # Errors
    /// When a tier cannot be created.
    ///
    /// # Panics
    /// Without a tier.
    pub fn new(
        clock: Clock,
        pool: Pool,
        tiers: Vec<Tier<Box<dyn Device>>>,
    ) -> Result<Self, ConfigError> {
        let meter = Meter::default();
        let configs = tiers.iter().map(|tier| tier.config.clone()).collect();
        let mut below: Option<Driver> = None;
        for Tier { config, most_dirty_bytes, device } in tiers.into_iter().rev() {
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
        Ok(Self {
            driver,
            tiers: configs,
            volumes: Vec::new(),
            clock,
            meter,
            holds_data: true,
            buckets: BucketMeter::default(),
            has_buckets: false,
        })
    }

    /// Adds a volume on a backing device with the given initial content.
    pub fn add_volume(&mut self, name: &str, backing: Box<dyn Device>, content: Content) {
        let metered = Metered::new(backing, &self.meter);
        let moved = metered.moved.clone();
        let id = self.driver.add_volume(name, Box::new(metered));
        let name = name.to_owned();
        self.volumes.push(Opened {
            id,
            name,
            content,
            moved,
            #[cfg(feature = "full")]
            limit: None,
        });
    }

    /// Adds a volume of a plan on its open backing device, with its share and its limits.
    fn add_planned(&mut self, volume: &Volume, backing: Box<dyn Device>, content: Content) {
        self.add_volume(&volume.name, backing, content);
        let opened = self.volumes.last_mut().expect("one has been added");
        let ids = self.driver.volume_ids(opened.id);
        for (number, (id, share)) in ids.into_iter().zip(&volume.shares).enumerate() {
            let tier = self.driver.tier_mut(number).expect("it has numbered the volume");
            tier.set_share(id, *share);
        }
        #[cfg(feature = "full")]
        {
            let limit = volume.limit.has_volume_rate().then(|| volume.limit.clone());
            opened.limit = limit.map(|limit| VolumeLimit::since(limit, self.clock.now()));
        }
    }

    /// Opens the devices of a plan, and creates the cache on them.
    ///
    /// # Errors
    /// When the cache cannot be created, the kernel refuses a ring, or a device cannot be opened.
    pub fn real(plan: &Plan) -> Result<Self, StageError> {
        for tier in &plan.tiers {
            BlockCache::new(tier.config.clone())?; // opening devices may create files
        }
        let ring = Ring::new(RING_ENTRIES)?;
        let pool = Pool::new(ARENA_BYTES);
        let _ = ring.register_pool(&pool); // without, I/O costs a little more
        let mut volumes = Vec::new();
        for volume in &plan.volumes {
            let there = volume.spec.is_there();
            let content = if there { Content::Unknown } else { Content::Zero };
            let read_only = volume.read_only && there;
            let device = volume.spec.open(&ring, &pool, Role::Backing { read_only })?;
            volumes.push((volume, device, content));
        }
        let tiers = plan.opened(|spec, size| spec.open(&ring, &pool, Role::Cache { size }))?;
        let mut stage = Self::new(Clock::Real(ring), pool, tiers)?;
        for (volume, device, content) in volumes {
            stage.add_planned(volume, device, content);
        }
        Ok(stage)
    }

    /// Creates the cache on simulated devices, which take as long as their media would, and volumes
    /// in buckets as long as their requests. With `holds_data` they also store data, in memory, and
    /// all volumes begin as zeros. Each write into a tier occupies the processor for `insert`, and
    /// operations of tiers and media that begin meanwhile wait until then.
    ///
    /// # Errors
    /// When the cache cannot be created, a file has no medium, or the size of a volume is unknown.
    pub fn simulated(plan: &Plan, holds_data: bool, insert: Duration) -> Result<Self, StageError> {
        let clock = VirtualClock::default();
        let device =
            |spec: &Spec, size: u64| simulated(spec, size, &clock, holds_data, Duration::ZERO);
        let tier = |spec: &Spec, size: u64| simulated(spec, size, &clock, holds_data, insert);
        let clock_of_stage = Clock::Virtual(clock.clone());
        let mut stage = Self::new(clock_of_stage, Pool::new(ARENA_BYTES), plan.opened(tier)?)?;
        stage.holds_data = holds_data;
        for (volume, size) in plan.volumes.iter().zip(plan.volume_sizes()?) {
            let spec = &volume.spec;
            // A medium that is named takes the place of the bucket.
            let object_bytes = spec.object_bytes().filter(|_| spec.medium().is_none());
            let device = match object_bytes {
                Some(object_bytes) => {
                    let content = content(spec, size, holds_data)?;
                    let (clock, meter) = (clock.clone(), stage.buckets.clone());
                    stage.has_buckets = true;
                    Box::new(SimulatedBucket::new(clock, meter, size, object_bytes, content))
                }
                None => device(spec, size)?,
            };
            stage.add_planned(volume, device, Content::Zero);
        }
        Ok(stage)
    }
}

/// Creates a simulated device of `size` bytes, with the medium of `spec` and striped like it. Each
/// write occupies the processor for `write`.
pub(crate) fn simulated(
    spec: &Spec,
    size: u64,
    clock: &VirtualClock,
    holds_data: bool,
    write: Duration,
) -> Result<Box<dyn Device>, StageError> {
    if spec.medium().is_none() && !spec.is_memory() {
        return Err(StageError::NoMedium(spec.to_string()));
    }
    let one = |size: u64, seed: u64| {
        let model = spec.medium().map(|medium| Model::new(medium.clone(), seed));
        let content = content(spec, size, holds_data)?;
        let device = SimulatedDevice::new(clock.clone(), size, model, content);
        Ok(device.with_write_time(write))
    };
    let Some(chunk) = spec.chunk_bytes() else { return Ok(Box::new(one(size, MEDIUM_SEED)?)) };
    let members = spec.members();
    let each = size.div_ceil(chunk * members) * chunk;
    let members = (0..members).map(|number| one(each, MEDIUM_SEED + number));
    let stripe = StripeDevice::new(members.collect::<Result<Vec<_>, StageError>>()?, chunk);
    Ok(Box::new(stripe.cut_to(size / SECTOR_BYTES * SECTOR_BYTES)))
}

/// Returns the memory for a simulated device's data, if it holds data.
fn content(spec: &Spec, size: u64, holds_data: bool) -> Result<Option<MemoryDevice>, StageError> {
    let refused = |source| StageError::Memory { spec: spec.to_string(), size, source };
    holds_data.then(|| MemoryDevice::try_new(size).map_err(refused)).transpose()
}

/// The clock of a replay.
#[derive(Debug)]
pub enum Clock {
    /// The machine's clock, with the io_uring ring of the real devices.
    Real(Ring),
    /// A clock that advances to the next due time instead of waiting.
    Virtual(VirtualClock),
}

impl Clock {
    /// Returns the current time.
    pub fn now(&self) -> Instant {
        match self {
            Self::Real(_) => Instant::now(),
            Self::Virtual(clock) => clock.at(clock.passed_ns()),
        }
    }

    /// Waits for a completion of a device, or until `due`.
    ///
    /// # Errors
    /// When the ring fails.
    ///
    /// # Panics
    /// In virtual time when nothing is due, since the wait would never end.
    pub(crate) fn wait_until(&self, due: Option<Instant>) -> io::Result<()> {
        match self {
            Self::Real(ring) => ring.wait_until(due).map(drop),
            Self::Virtual(clock) => {
                clock.set(due.expect("something under way is due at some time"));
                Ok(())
            }
        }
    }
}

/// A device whose operations complete by a [`VirtualClock`].
#[derive(Debug)]
pub struct SimulatedDevice {
    clock: VirtualClock,
    size_bytes: u64,
    /// Model of operation times; without one, operations take no time.
    model: Option<Model>,
    /// Time for which a write occupies the processor.
    write_ns: u64,
    /// Stored data; `None` where no data is stored.
    content: Option<MemoryDevice>,
    /// Operations in flight, ordered by due time and then by submission.
    waiting: BinaryHeap<Reverse<(u64, u64, u64)>>,
    submitted: u64,
    finished: Vec<Completion>,
}

impl SimulatedDevice {
    /// Creates a device of `size_bytes` with the latencies of `model`. Data is stored in `content`,
    /// if given.
    pub fn new(
        clock: VirtualClock,
        size_bytes: u64,
        model: Option<Model>,
        content: Option<MemoryDevice>,
    ) -> Self {
        let (waiting, finished) = (BinaryHeap::new(), Vec::new());
        Self { clock, size_bytes, model, write_ns: 0, content, waiting, submitted: 0, finished }
    }

    fn with_write_time(self, write: Duration) -> Self {
        Self { write_ns: write.as_nanos() as u64, ..self }
    }
}

impl Device for SimulatedDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn submit(&mut self, operation: Operation) {
        let (direction, bytes) = Direction::of(&operation.action);
        let begin_ns =
            self.clock.occupy(if direction == Direction::Write { self.write_ns } else { 0 });
        let due_ns =
            self.model.as_mut().map_or(begin_ns, |model| model.start(begin_ns, direction, bytes));
        self.waiting.push(Reverse((due_ns, self.submitted, operation.token)));
        self.submitted += 1;
        if let Some(content) = &mut self.content {
            content.submit(operation);
            content.poll(&mut self.finished);
            // The cache asks for nothing outside of a device, and memory refuses nothing else.
            self.finished
                .drain(..)
                .for_each(|done| done.result.expect("memory does what it is asked"));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        while let Some(&Reverse((due_ns, _, token))) = self.waiting.peek() {
            if due_ns > self.clock.passed_ns() {
                return;
            }
            self.waiting.pop();
            done.push(Completion { token, result: Ok(()) });
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|&Reverse((due_ns, ..))| self.clock.at(due_ns))
    }
}

/// Measures the time spent in the driver; clones share their total.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    driver_ns: Rc<Cell<u64>>,
    device_ns: Rc<Cell<u64>>,
}

impl Meter {
    /// Runs a part of the driver's work, and adds its time to the total.
    pub(super) fn driver<T>(&self, work: impl FnOnce() -> T) -> T {
        timed(&self.driver_ns, work)
    }

    /// Returns the time spent in the driver, without that in its devices.
    pub(super) fn processing(&self) -> Duration {
        Duration::from_nanos(self.driver_ns.get().saturating_sub(self.device_ns.get()))
    }
}

fn timed<T>(sum_ns: &Cell<u64>, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    sum_ns.set(sum_ns.get() + began.elapsed().as_nanos() as u64);
    done
}

/// Bytes that a device has been asked to move.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) read: Cell<u64>,
    pub(super) written: Cell<u64>,
}

/// A device whose time is subtracted from that of the driver, and whose bytes are counted.
pub(super) struct Metered {
    device: Box<dyn Device>,
    meter: Meter,
    moved: Rc<Moved>,
}

impl Metered {
    pub(super) fn new(device: Box<dyn Device>, meter: &Meter) -> Self {
        Self { device, meter: meter.clone(), moved: Rc::default() }
    }
}

impl Device for Metered {
    delegate_device!(this => this.device; size_bytes is_immediate spun next_due);

    fn submit(&mut self, operation: Operation) {
        let (direction, bytes) = Direction::of(&operation.action);
        match direction {
            Direction::Read => self.moved.read.update(|sum| sum + bytes),
            Direction::Write => self.moved.written.update(|sum| sum + bytes),
            Direction::Flush => {}
        }
        timed(&self.meter.device_ns, || self.device.submit(operation));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        timed(&self.meter.device_ns, || self.device.poll(done));
    }
}
