//! Writes the superblock of a cache that is being served: when a volume is added, removed or
//! resized, before a sampled sector of a volume changes, and at a clean shutdown.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use floe_block::{
    Companion, KeptCache, SECTOR_BYTES, Samples, Superblock, VolumeId, write_superblock,
};

use super::disk::Disk;
use super::marker;
use super::random::random_id;
use super::start_error::StartError;
use super::state_dir::StateDir;
use super::suit::known;
use crate::volume::{DeviceSource, Volume};

/// Added to the noted generation when the superblock cannot be written, so that the device's copy
/// counts as old.
const UNWRITTEN: u64 = 1 << 20;

/// Time for all backing devices to be read for their markers at the end; a device of this machine
/// takes as long as it needs.
const CONTENT_TIME: Duration = Duration::from_secs(10);

/// The superblock writer of one cache.
#[derive(Debug)]
pub(crate) struct Keeper(Arc<Mutex<Written>>);

/// A superblock and the device it is on.
#[derive(Debug)]
struct Written {
    cache: Arc<dyn DeviceSource>,
    superblock: Superblock,
    /// The state directory in which its starts are noted as well.
    state: Option<StateDir>,
    /// The session has ended, or the tier was detached: nothing is written any more.
    over: bool,
}

/// Makes a superblock forget samples of a volume, from any thread, as long as its session goes on.
/// It does not keep the device of a detached tier open.
#[derive(Debug)]
pub(super) struct SampleWriter {
    written: Weak<Mutex<Written>>,
    volume: VolumeId,
}

impl SampleWriter {
    /// Durably forgets the samples of these sectors.
    pub(super) fn forget(&self, sectors: &[u64]) -> Result<(), StartError> {
        let Some(written) = self.written.upgrade() else { return Ok(()) };
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        let volumes = &written.superblock.volumes;
        let Some(at) = volumes.iter().position(|volume| volume.id == self.volume) else {
            return Ok(());
        };
        let knows = |(sector, _): (u64, u32)| sectors.contains(&sector);
        if written.over || !volumes[at].samples.known().any(knows) {
            return Ok(());
        }
        written.change(|superblock| {
            superblock.volumes[at].samples.forget(sectors);
        })
    }
}

impl Keeper {
    /// Returns the writer for a cache whose session has begun, or that no session uses.
    pub(super) fn new(
        cache: Arc<dyn DeviceSource>,
        superblock: Superblock,
        state: Option<StateDir>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Written { cache, superblock, state, over: false })))
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the superblock, durably: see [`Written::change`].
    fn change(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), StartError> {
        self.written().change(change)
    }

    /// Returns the valid samples of a volume, and a handle that makes the superblock forget them.
    /// `None` where there are none.
    pub(super) fn samples(&self, volume: VolumeId) -> Option<(Vec<u64>, SampleWriter)> {
        let written = self.written();
        let of = written.superblock.volumes.iter().find(|known| known.id == volume)?;
        let sectors: Vec<u64> = of.samples.known().map(|(sector, _)| sector).collect();
        let writer = SampleWriter { written: Arc::downgrade(&self.0), volume };
        (!sectors.is_empty()).then_some((sectors, writer))
    }

    /// Forgets the content marker and samples of these volumes. Runs before their backing devices
    /// are changed without this cache's knowledge.
    pub(super) fn forget_content(&mut self, ids: &[VolumeId]) -> Result<(), StartError> {
        self.change(|superblock| {
            let of = superblock.volumes.iter_mut().filter(|volume| ids.contains(&volume.id));
            of.for_each(|volume| (volume.marker, volume.samples) = (0, Samples::default()));
        })
    }

    /// Returns the number of times the cache was opened.
    pub(crate) fn session(&self) -> u64 {
        self.written().superblock.session
    }

    /// Returns the entry for this tier, called `name`, in the superblocks of the tiers below it.
    pub(crate) fn as_companion(&self, name: &str) -> Companion {
        let superblock = &self.written().superblock;
        let session = superblock.session as u32;
        Companion { id: superblock.id, name: name.to_owned(), above: true, session }
    }

    /// Writes down that the tier is about to be served in a stack. After a crash the entry tells
    /// which tiers were to be served together.
    pub(crate) fn announce(&mut self, stack: u32) -> Result<(), StartError> {
        let mut written = self.written();
        if [written.superblock.stack, written.superblock.next_stack].contains(&stack) {
            return Ok(());
        }
        written.change(|superblock| superblock.next_stack = stack)
    }

    /// Writes down that the tier is part of the stack, and which companions may hold dirty data.
    /// The stack has been announced in all of its tiers.
    pub(crate) fn link(
        &mut self,
        stack: u32,
        companions: Vec<Companion>,
    ) -> Result<(), StartError> {
        let mut written = self.written();
        if written.superblock.stack == stack && written.superblock.companions == companions {
            return Ok(());
        }
        written.change(|superblock| {
            (superblock.stack, superblock.next_stack) = (stack, 0);
            superblock.companions = companions;
        })
    }

    /// Removes another tier from the companions: it is no longer part of the stack.
    pub(crate) fn forget_companion(&self, gone: &Keeper) -> Result<(), StartError> {
        let id = gone.written().superblock.id;
        let mut written = self.written();
        if !written.superblock.companions.iter().any(|companion| companion.id == id) {
            return Ok(());
        }
        written.change(|superblock| superblock.companions.retain(|companion| companion.id != id))
    }

    /// Writes down that the tier was used without its peer tiers.
    pub(crate) fn link_alone(&mut self, stack: u32) -> Result<(), StartError> {
        let companions = self.written().superblock.companions.clone();
        self.link(stack, companions)
    }

    /// Adds a volume to the superblock. The cache must have durably forgotten the content of an
    /// earlier volume with this id.
    pub(crate) fn add(&mut self, id: VolumeId, volume: &Volume) -> Result<(), StartError> {
        self.change(|superblock| {
            superblock.volumes.push(known(id, volume));
            superblock.volumes.sort_by_key(|volume| volume.id);
        })
    }

    /// Removes a volume from the superblock: journal records of it do not count from now on.
    pub(crate) fn remove(&mut self, id: VolumeId) -> Result<(), StartError> {
        self.change(|superblock| superblock.volumes.retain(|volume| volume.id != id))
    }

    /// Writes down the new size of a volume's backing device.
    pub(crate) fn resize(&mut self, id: VolumeId, bytes: u64) -> Result<(), StartError> {
        self.change(|superblock| {
            let of = superblock.volumes.iter_mut().filter(|volume| volume.id == id);
            of.for_each(|volume| {
                // A sector that the old end cuts is sampled up to there.
                if volume.bytes % SECTOR_BYTES != 0 {
                    volume.samples.forget(&[volume.bytes / SECTOR_BYTES]);
                }
                volume.bytes = bytes;
            });
        })
    }

    /// Writes down whether clean data may be old (`void`), and whether the whole cache is invalid
    /// (`retired`).
    pub(crate) fn set_void(&mut self, void: bool, retired: bool) -> Result<(), StartError> {
        let mut it = self.written();
        if (it.superblock.void, it.superblock.retired.is_some()) == (void, retired) {
            return Ok(());
        }
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let written = it.change(|superblock| {
            superblock.void = void;
            superblock.retired = retired.then_some(now);
        });
        if let (Err(_), true, Some(state)) = (&written, void, &it.state) {
            // The copy on the device counts as old from now on, until it can be marked void itself.
            let generation = it.superblock.generation + UNWRITTEN;
            let _ = state.note(&Superblock { generation, ..it.superblock.clone() });
        }
        written
    }

    /// Writes the superblock and reads it back, to test whether the cache device works.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        let mut written = self.written();
        written.write()?;
        let found = Disk::open(&written.cache)?.with_io(KeptCache::identify)?;
        match found {
            Some(found) if found.generation == written.superblock.generation => Ok(()),
            _ => Err(StartError::Forgets),
        }
    }

    /// Writes down a clean shutdown, with the marker and samples of each backing device. Nothing
    /// writes to any device any more.
    ///
    /// `companions` are the tiers that hold dirty data; `None` leaves those that are written down.
    pub(crate) fn end(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        self.written().superblock.void = false;
        self.close(backings, companions)
    }

    /// Writes down a clean shutdown, but leaves the void flag: clean data may still be old.
    pub(super) fn close(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        // Content that cannot be read, or not soon, stays unknown.
        let until = Instant::now() + CONTENT_TIME;
        let content = |backing| {
            let mut disk = Disk::open(backing).ok()?;
            disk.device.set_timeout(until.saturating_duration_since(Instant::now()));
            Some((marker::sample(&mut disk).ok()?, marker::samples(&mut disk).ok()?))
        };
        let mut written = self.written();
        written.over = true;
        written.change(|superblock| {
            superblock.clean = true;
            if let Some(companions) = companions {
                superblock.companions = companions;
            }
            for volume in &mut superblock.volumes {
                if let Some((_, backing)) = backings.iter().find(|(of, _)| *of == volume.id) {
                    (volume.marker, volume.samples) = content(backing).unwrap_or_default();
                }
            }
        })?;
        tracing::info!(session = written.superblock.session, "cache closed");
        Ok(())
    }

    /// Leaves a durably empty cache without volumes on the device: its content becomes old as soon
    /// as a volume is written to without it. Nothing uses the device any more.
    pub(crate) fn vacate(self) -> Result<(), StartError> {
        let id = random_id()?;
        let mut written = self.written();
        written.over = true;
        let mut cache = Disk::open(&written.cache)?;
        cache.with_io(|io| KeptCache::vacate(io, &written.superblock, id))?;
        if let Some(state) = &written.state {
            state.forget(&written.superblock.id);
        }
        Ok(())
    }
}

impl Written {
    /// Changes the superblock durably. If the write fails, the device has either the old or the new
    /// one, and memory keeps the old one.
    fn change(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<(), StartError> {
        let before = self.superblock.clone();
        change(&mut self.superblock);
        let written = self.write();
        if written.is_err() {
            let generation = self.superblock.generation;
            self.superblock = Superblock { generation, ..before };
        }
        written
    }

    fn write(&mut self) -> Result<(), StartError> {
        let mut cache = Disk::open(&self.cache)?;
        cache.with_io(|io| write_superblock(io, &mut self.superblock))?;
        match &self.state {
            Some(state) => Ok(state.note(&self.superblock)?),
            None => Ok(()),
        }
    }
}
