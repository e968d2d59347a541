//! The superblock of a cache that is being served: changed when volumes come, go or grow, and when
//! all has come to its end.

use std::sync::Arc;
use std::time::SystemTime;

use floe_block::{Companion, KeptCache, Samples, Superblock, VolumeId, write_superblock};

use super::disk::Disk;
use super::marker;
use super::refusal::StartError;
use super::start::random_id;
use super::state_dir::StateDir;
use super::suit::known;
use crate::server::{DeviceSource, Volume};

/// How far the state noted of a cache is ahead of its superblock when that cannot be written.
const UNWRITTEN: u64 = 1 << 20;

/// A superblock and the device it is on.
#[derive(Debug)]
pub(crate) struct Keeper {
    cache: Arc<dyn DeviceSource>,
    superblock: Superblock,
    /// Where its state is noted as well.
    state: Option<StateDir>,
}

impl Keeper {
    /// Of a cache of which a session has begun, or that no session uses.
    pub(super) fn new(
        cache: Arc<dyn DeviceSource>,
        superblock: Superblock,
        state: Option<StateDir>,
    ) -> Self {
        Self { cache, superblock, state }
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
        self.superblock.session
    }

    /// What a tier below it is to know of this one, if it is called so.
    pub(crate) fn as_companion(&self, name: &str) -> Companion {
        let session = self.superblock.session as u32;
        Companion { id: self.superblock.id, name: name.to_owned(), above: true, session }
    }

    /// Writes down that the tier is about to be served as one of a stack. Whoever finds that knows
    /// which tiers would have been.
    pub(crate) fn announce(&mut self, stack: u32) -> Result<(), StartError> {
        if [self.superblock.stack, self.superblock.next_stack].contains(&stack) {
            return Ok(());
        }
        self.change(|superblock| superblock.next_stack = stack)
    }

    /// Writes down that it is one of the stack, and which of the others may hold what nothing else
    /// has. It has been announced in all of them.
    pub(crate) fn link(
        &mut self,
        stack: u32,
        companions: Vec<Companion>,
    ) -> Result<(), StartError> {
        if self.superblock.stack == stack && self.superblock.companions == companions {
            return Ok(());
        }
        self.change(|superblock| {
            (superblock.stack, superblock.next_stack) = (stack, 0);
            superblock.companions = companions;
        })
    }

    /// Writes down that it was used without the other tiers of its stack.
    pub(crate) fn link_alone(&mut self, stack: u32) -> Result<(), StartError> {
        let companions = self.superblock.companions.clone();
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
            of.for_each(|volume| volume.bytes = bytes);
        })
    }

    /// Writes down whether what the cache has as clean may be old, and whether nothing in it counts
    /// any more.
    pub(crate) fn set_void(&mut self, void: bool, retired: bool) -> Result<(), StartError> {
        if (self.superblock.void, self.superblock.retired.is_some()) == (void, retired) {
            return Ok(());
        }
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let written = self.change(|superblock| {
            superblock.void = void;
            superblock.retired = retired.then_some(now);
        });
        if let (Err(_), true, Some(state)) = (&written, void, &self.state) {
            // What is on the device counts as an old copy from now on, until it says so itself.
            let generation = self.superblock.generation + UNWRITTEN;
            let _ = state.note(&Superblock { generation, ..self.superblock.clone() });
        }
        written
    }

    /// Whether the cache device takes what is written to it, and gives it back.
    pub(crate) fn try_device(&mut self) -> Result<(), StartError> {
        self.write()?;
        let found = Disk::open(&self.cache)?.with_io(KeptCache::identify)?;
        match found {
            Some(found) if found.generation == self.superblock.generation => Ok(()),
            _ => Err(StartError::Forgets),
        }
    }

    /// Writes down that all is in order, and what the ends of the backing devices look like.
    /// Nothing writes to any device any more.
    ///
    /// `companions` are the tiers that hold what nothing else has; `None` where nothing is known of
    /// that but what is written down.
    pub(crate) fn end(
        mut self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        self.superblock.void = false;
        self.close(backings, companions)
    }

    /// The same, where what it has as clean may still be old.
    pub(super) fn close(
        mut self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
    ) -> Result<(), StartError> {
        // What cannot be read is not known.
        let content = |backing| {
            let mut disk = Disk::open(backing).ok()?;
            Some((marker::sample(&mut disk).ok()?, marker::samples(&mut disk).ok()?))
        };
        self.change(|superblock| {
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
        tracing::info!(session = self.superblock.session, "cache closed");
        Ok(())
    }

    /// Leaves an empty cache of no volumes on the device, durably: what was there will be old as
    /// soon as a volume is written to without it. Nothing uses the device any more.
    pub(crate) fn vacate(self) -> Result<(), StartError> {
        let id = random_id()?;
        let mut cache = Disk::open(&self.cache)?;
        cache.with_io(|io| KeptCache::vacate(io, &self.superblock, id))?;
        if let Some(state) = &self.state {
            state.forget(&self.superblock.id);
        }
        Ok(())
    }

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
