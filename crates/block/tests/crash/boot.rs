//! From disks to a cache that serves: the only place here that knows how a cache begins.
//!
//! A *kept* cache is made on its device once, and every life opens it, brings it to life and goes
//! on with what it has. Where the cache is volatile, whatever its device holds is nothing to it:
//! every life begins with an empty cache over devices whose write caches have been flushed, and
//! what was certain to survive has to be on the backing devices.
//!
//! Both are begun by operations of the simulated disks, so the power can fail at any of them.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use floe_block::{
    AdmissionConfig, BeginError, Begun, BlockCache, BlockSizes, Config, Driver, Evict, Io,
    KeptCache, LEAST_MEMORY_BYTES, Tier,
};
use floe_block::{
    Layout, Memory, MemoryOptions, MemoryTier, MemoryWrite, NewCache, Salvage, StoreError,
    Superblock,
};
use floe_block::{Volume, VolumeId, WriteMode, scan, write_superblock};
use floe_device::{Action, Pool};

use crate::disk::Disk;
use crate::machine::Machine;

/// What a cache keeps for all its lives.
#[derive(Debug, Clone)]
pub struct Format {
    pub sizes: BlockSizes,
    pub groups: u64,
    pub shards: u64,
    /// Of a cache that outlives its process.
    pub kept: bool,
}

/// How a cache serves in one life.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    pub mode: WriteMode,
    pub admit: &'static str,
    pub evict: &'static str,
    pub memory: Option<MemoryWrite>,
    /// The cache reads the machine's time, so that its cleaning is paced.
    pub paced: bool,
    /// Blocks of the largest size that may be dirty in each shard; `None` without a limit.
    pub most_dirty: Option<u64>,
}

/// Why a cache does not begin.
#[derive(Debug)]
pub enum NoBoot {
    /// The power failed before it could.
    Power,
    /// A device failed.
    Device(io::Error),
    /// What is on the cache device is refused.
    Refused(StoreError),
    /// A sector of a volume that was flushed, and that only the cache has, has no checksum.
    Unsealed(usize, u64),
    /// A journal that lost pages was salvaged, and says what it must not.
    Salvaged(String),
}

impl Format {
    fn group_bytes(&self) -> u64 {
        self.sizes.bytes(self.sizes.classes().last().expect("there is a block size"))
    }

    pub fn cache_bytes(&self) -> u64 {
        self.bytes_of(self.groups)
    }

    /// Bytes of data with so many groups in each shard.
    pub fn bytes_of(&self, groups: u64) -> u64 {
        self.group_bytes() * groups * self.shards
    }

    /// Where everything is on a kept cache's device, which is as small as it can be.
    fn layout(&self) -> Layout {
        let layout = |bytes| Layout::new(&self.sizes, bytes, self.shards);
        let mut bytes = self.cache_bytes();
        loop {
            match layout(bytes) {
                Ok(layout) if layout.data_bytes() == self.cache_bytes() => return layout,
                _ => bytes += self.group_bytes(),
            }
        }
    }

    /// How large its device is.
    pub fn device_bytes(&self) -> u64 {
        if self.kept { self.layout().end_bytes() } else { self.cache_bytes() }
    }

    /// Where data begins on its device, after the metadata.
    pub fn data_start(&self) -> u64 {
        if self.kept { self.layout().data_offset_bytes(0) } else { 0 }
    }
}

/// Makes sure that what will be found on the devices survives a power cut: a process that was
/// killed may have left it in their write caches.
pub fn make_sure(backings: &[Disk]) -> Result<(), NoBoot> {
    let flush = |disk: &Disk| disk.handle().carry_out(0, Action::Flush);
    backings.iter().try_for_each(|disk| flush(disk).ok_or(NoBoot::Power)?.map_err(NoBoot::Device))
}

/// What a cache is begun with.
pub struct Boot<'a> {
    pub machine: &'a Rc<Machine>,
    pub format: &'a Format,
    pub cache: &'a Disk,
    pub backings: &'a [Disk],
    pub pool: &'a Pool,
}

impl Boot<'_> {
    /// Does something with a cache device on which nothing else is under way.
    fn with_io<T>(
        &self,
        act: impl FnOnce(&mut Io<'_>) -> Result<T, StoreError>,
    ) -> Result<T, NoBoot> {
        let mut device = self.cache.device();
        let mut wait = || match self.cache.next_due() {
            Some(due) if self.machine.has_power() => {
                // What is due may be a driver's, that does not look now.
                self.machine.pass_until(due.max(self.machine.now() + 1));
                Ok(())
            }
            _ => Err(io::Error::other("the power has failed")),
        };
        let done = act(&mut Io { device: &mut device, pool: self.pool, wait: &mut wait });
        match done {
            _ if !self.machine.has_power() => Err(NoBoot::Power),
            Ok(done) => Ok(done),
            Err(StoreError::Io { source, .. }) => Err(NoBoot::Device(source)),
            Err(error) => Err(NoBoot::Refused(error)),
        }
    }

    fn volumes(&self) -> Vec<Volume> {
        let volume = |(id, disk): (usize, &Disk)| {
            Volume::new(VolumeId(id as u16), format!("volume {id}"), disk.size_bytes())
        };
        self.backings.iter().enumerate().map(volume).collect()
    }

    /// Makes an empty kept cache.
    pub fn create(&self, id: [u8; 16]) -> Result<KeptCache, NoBoot> {
        let new = NewCache { id, layout: self.format.layout(), volumes: self.volumes() };
        self.with_io(|io| KeptCache::create(io, new))
    }

    /// Opens the kept cache, if there is one.
    pub fn open(&self) -> Result<Option<KeptCache>, NoBoot> {
        self.with_io(|io| KeptCache::open(io, &mut |_, _| {}))
    }

    /// Opens what can be trusted of a kept cache whose journals are damaged.
    pub fn salvage(&self) -> Result<Option<(KeptCache, Vec<Salvage>)>, NoBoot> {
        self.with_io(KeptCache::salvage)
    }

    /// Writes the journals anew of which that was salvaged.
    pub fn rewrite(&self, kept: KeptCache, salvages: &[Salvage]) -> Result<(), NoBoot> {
        match self.with_io(|io| kept.rewrite(io, salvages))? {
            Some(_) => Ok(()),
            None => Err(NoBoot::Salvaged("a log has no room".to_owned())),
        }
    }

    /// Writes the superblock of a cache that is being served.
    pub fn write(&self, superblock: &mut Superblock) -> Result<(), NoBoot> {
        self.with_io(|io| write_superblock(io, superblock))
    }

    /// Says that a session ends in good order.
    pub fn end_session(&self, mut superblock: Superblock) -> Result<(), NoBoot> {
        superblock.clean = true;
        superblock.volumes.iter_mut().for_each(|volume| volume.marker += 1);
        self.with_io(|io| write_superblock(io, &mut superblock))
    }

    /// How many checkpoints the kept cache has had.
    pub fn checkpoints(&self) -> Result<u64, NoBoot> {
        let report = self.with_io(|io| scan(io, &mut |_, _| {}))?;
        Ok(report.shards.iter().map(|shard| shard.checkpoint_generation).sum())
    }

    /// Brings a kept cache to life.
    pub fn begin(&self, kept: KeptCache, service: Service) -> Result<(Driver, Superblock), NoBoot> {
        let tier = tier(service);
        let memory = tier.as_ref().map_or(Memory::None, MemoryTier::config);
        let (gate, evict) = (gate(service), evict(service));
        let adapts_fetches = adapts(service);
        let config =
            Config { mode: service.mode, gate, evict, memory, adapts_fetches, ..Config::default() };
        let begin = |io: &mut Io<'_>| {
            kept.begin(io, self.volumes(), &config, 1).map_err(|error| match error {
                BeginError::Store(error) => error,
                BeginError::Config(error) => panic!("the format is sound: {error}"),
            })
        };
        let Begun { superblock, parts }: Begun = self.with_io(begin)?;
        let (cache, journal) = parts.into_iter().next().expect("there is one part");
        let top = Tier::new(cache, self.cache.device(), self.pool.clone());
        let top = self.with_time(top, service);
        let mut driver = Driver::new(top.with_memory(tier).with_journal(Some(journal)));
        for (id, disk) in self.backings.iter().enumerate() {
            driver.add_volume_at(VolumeId(id as u16), "simulated", Box::new(disk.handle()));
        }
        Ok((driver, superblock))
    }

    /// Gives a tier the machine's clock and a limit of its dirty data, as its service wants.
    fn with_time(&self, mut tier: Tier, service: Service) -> Tier {
        if let Some(most) = service.most_dirty {
            tier.limit_dirty(most * self.format.group_bytes() * self.format.shards);
        }
        if !service.paced {
            return tier;
        }
        let (machine, epoch) = (self.machine.clone(), self.machine.epoch());
        tier.with_clock(move || epoch + Duration::from_micros(machine.now()))
    }

    /// Begins a volatile cache.
    pub fn begin_volatile(&self, service: Service) -> Driver {
        let tier = tier(service);
        let config = Config {
            sizes: self.format.sizes.clone(),
            cache_bytes: self.format.cache_bytes(),
            adapts_fetches: adapts(service),
            mode: service.mode,
            gate: gate(service),
            evict: evict(service),
            shards: Some(self.format.shards),
            memory: tier.as_ref().map_or(Memory::None, MemoryTier::config),
            kept: false,
        };
        let parts = BlockCache::new(config).expect("the format is sound");
        let top = Tier::new(parts, self.cache.device(), self.pool.clone());
        let mut driver = Driver::new(self.with_time(top, service).with_memory(tier));
        for disk in self.backings {
            driver.add_volume("simulated", Box::new(disk.handle()));
        }
        driver
    }
}

fn gate(service: Service) -> AdmissionConfig {
    AdmissionConfig::new(service.admit.parse().expect("the admission is registered"))
}

/// Returns whether the size of fetches is learned: in the worlds with the default policy.
fn adapts(service: Service) -> bool {
    service.evict == "lru"
}

fn evict(service: Service) -> Evict {
    service.evict.parse().expect("a block cache can have it")
}

fn tier(service: Service) -> Option<MemoryTier> {
    let options = |write| MemoryOptions { write, ..MemoryOptions::default() };
    let tier = |write| MemoryTier::new(LEAST_MEMORY_BYTES, options(write));
    service.memory.map(|write| tier(write).expect("the least memory is enough"))
}
