//! The superblock of a cache that is being served: changed when volumes come, go or grow, before a
//! sampled sector of a volume changes, and when all has come to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use floe_block::{
    Companion, KeptCache, SECTOR_BYTES, Samples, Superblock, VolumeId, write_superblock,
};

use super::disk::Disk;
use super::marker;
use super::refusal::StartError;
use super::start::random_id;
use super::state_dir::StateDir;
use super::suit::known;
use crate::server::{DeviceSource, Volume};

/// How far the state noted of a cache is ahead of its superblock when that cannot be written.
const UNWRITTEN: u64 = 1 << 20;

/// Writes the superblock of a cache.
#[derive(Debug)]
pub(crate) struct Keeper(Arc<Mutex<Written>>);

/// A superblock and the device it is on.
#[derive(Debug)]
struct Written {
    cache: Arc<dyn DeviceSource>,
    superblock: Superblock,
    /// Where its state is noted as well.
    state: Option<StateDir>,
    /// The session has ended, or the tier has gone: nothing is written any more.
    over: bool,
}

/// Has a superblock forget samples of a volume, from any thread, as long as its session goes on. A
/// tier that has gone does not keep its device for it.
#[derive(Debug)]
pub(super) struct SampleWriter {
    written: Weak<Mutex<Written>>,
    volume: VolumeId,
}

impl SampleWriter {
    /// Writes down that nothing is known of these sectors any more.
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
    /// Of a cache of which a session has begun, or that no session uses.
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

    /// The samples of a volume that count, and what has them forgotten; `None` where there are
    /// none.
    pub(super) fn samples(&self, volume: VolumeId) -> Option<(Vec<u64>, SampleWriter)> {
        let written = self.written();
        let of = written.superblock.volumes.iter().find(|known| known.id == volume)?;
        let sectors: Vec<u64> = of.samples.known().map(|(sector, _)| sector).collect();
        let writer = SampleWriter { written: Arc::downgrade(&self.0), volume };
        (!sectors.is_empty()).then_some((sectors, writer))
    }

    /// Writes down that nothing is known of the content of these volumes, before their backing
    /// devices are changed in a way that this cache is not told of.
    pub(super) fn forget_content(&mut self, ids: &[VolumeId]) -> Result<(), StartError> {
        self.change(|superblock| {
            let of = superblock.volumes.iter_mut().filter(|volume| ids.contains(&volume.id));
            of.for_each(|volume| (volume.marker, volume.samples) = (0, Samples::default()));
        })
    }

    /// Counts the times the cache was opened.
    pub(crate) fn session(&self) -> u64 {
        self.written().superblock.session
    }

    /// What a tier below it is to know of this one, if it is called so.
    pub(crate) fn as_companion(&self, name: &str) -> Companion {
        let superblock = &self.written().superblock;
        let session = superblock.session as u32;
        Companion { id: superblock.id, name: name.to_owned(), above: true, session }
    }

    /// Writes down that the tier is about to be served as one of a stack. Whoever finds that knows
    /// which tiers would have been.
    pub(crate) fn announce(&mut self, stack: u32) -> Result<(), StartError> {
        let mut written = self.written();
        if [written.superblock.stack, written.superblock.next_stack].contains(&stack) {
            return Ok(());
        }
        written.change(|superblock| superblock.next_stack = stack)
    }

    /// Writes down that it is one of the stack, and which of the others may hold what nothing else
    /// has. It has been announced in all of them.
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

    /// Writes down that another tier is not one of the stack any more.
    pub(crate) fn forget_companion(&self, gone: &Keeper) -> Result<(), StartError> {
        let id = gone.written().superblock.id;
        let mut written = self.written();
        if !written.superblock.companions.iter().any(|companion| companion.id == id) {
            return Ok(());
        }
        written.change(|superblock| superblock.companions.retain(|companion| companion.id != id))
    }

    /// Writes down that it was used without the other tiers of its stack.
    pub(crate) fn link_alone(&mut self, stack: u32) -> Result<(), StartError> {
        let companions = self.written().superblock.companions.clone();
        self.link(stack, companions)
    }

    /// Writes down a volume that has come. What a volume of this number had before must be
    /// forgotten durably.
    pub(crate) fn add(&mut self, id: VolumeId, volume: &Volume) -> Result<(), StartError> {
        self.change(|superblock| {
            superblock.volumes.push(known(id, volume));
            superblock.volumes.sort_by_key(|volume| volume.id);
        })
    }

    /// Writes down that a volume has gone: whatever is still said of it does not count from now on.
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

    /// Writes down whether what the cache has as clean may be old, and whether nothing in it counts
    /// any more.
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
            // What is on the device counts as an old copy from now on, until it says so itself.
            let generation = it.superblock.generation + UNWRITTEN;
            let _ = state.note(&Superblock { generation, ..it.superblock.clone() });
        }
        written
    }

    /// Whether the cache device takes what is written to it, and gives it back.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        let mut written = self.written();
        written.write()?;
        let found = Disk::open(&written.cache)?.with_io(KeptCache::identify)?;
        match found {
            Some(found) if found.generation == written.superblock.generation => Ok(()),
            _ => Err(StartError::Forgets),
        }
    }

    /// Writes down that all is in order, and what the ends of the backing devices look like.
    /// Nothing writes to any device any more.
    ///
    /// `companions` are the tiers that hold what nothing else has; `None` where nothing is known of
    /// that but what is written down.
    pub(crate) fn end(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        self.written().superblock.void = false;
        self.close(backings, companions)
    }

    /// The same, where what it has as clean may still be old.
    pub(super) fn close(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        // What cannot be read is not known.
        let content = |backing| {
            let mut disk = Disk::open(backing).ok()?;
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

    /// Leaves an empty cache of no volumes on the device, durably: what was there will be old as
    /// soon as a volume is written to without it. Nothing uses the device any more.
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
    /// Changes the superblock, durably. If that fails, either the old or the new one counts on the
    /// device, and the old one here.
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
