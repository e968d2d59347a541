//! Writes the superblock of a cache that is being served: when a volume is added, removed or
//! resized, or the cache itself is, before a sampled sector of a volume changes, and at a clean
//! shutdown.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use floe_block::{
    BlockCache, Companion, KeptCache, Layout, PartJournal, SECTOR_BYTES, Samples, Superblock,
    VolumeId, write_superblock,
};

use super::disk::Disk;
use super::error::StartError;
use super::state_dir::{Bypassed, Noted, StateDir, UNWRITTEN};
use super::validate::{known, marker_of, samples};
use crate::status::OpenedStatus;
use crate::volume::{DeviceSource, Volume};

/// Time in which all backing devices must be read for their markers at a clean shutdown. Local
/// devices may take longer.
const CONTENT_TIME: Duration = Duration::from_secs(10);

/// The superblock writer of one cache.
#[derive(Debug, Clone)]
pub(crate) struct SuperblockWriter(Arc<Mutex<Written>>);

/// The superblock of a cache in memory, with its state on the device and in the state directory.
#[derive(Debug)]
struct Written {
    cache: Arc<dyn DeviceSource>,
    superblock: Superblock,
    /// Generation of the last superblock that the device accepted.
    taken: u64,
    /// True if the superblock in memory has changes that the device has refused.
    unwritten: bool,
    /// The state directory in which each written superblock is noted, too.
    state: Option<StateDir>,
    /// Maps names of volumes to names of their backing devices.
    backings: BTreeMap<String, String>,
    /// True if the cache may hold dirty data.
    dirty: bool,
    /// True if the cache accepts dirty data once it is part of a stack.
    keeps_writes: bool,
    /// Bytes of dirty data at the end of the session.
    dirty_bytes: Option<u64>,
    /// True if the session has ended or the tier was detached: nothing is written any more.
    over: bool,
}

/// A handle by which any thread makes a superblock forget samples of one volume. It has no effect
/// after the session, and does not keep the device of a detached tier open.
#[derive(Debug)]
pub(super) struct SampleWriter {
    written: Weak<Mutex<Written>>,
    volume: VolumeId,
}

impl SampleWriter {
    /// Removes the samples of these sectors from the superblock, durably.
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
        // They stay forgotten also where the device refuses to record it.
        written.superblock.volumes[at].samples.forget(sectors);
        written.write_surely()
    }
}

impl SuperblockWriter {
    /// Creates the writer for a cache whose session has begun, or that no session uses.
    pub(super) fn new(
        cache: Arc<dyn DeviceSource>,
        superblock: Superblock,
        state: Option<StateDir>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Written {
            cache,
            taken: superblock.generation,
            unwritten: false,
            superblock,
            state,
            backings: BTreeMap::new(),
            dirty: true,
            keeps_writes: false,
            dirty_bytes: None,
            over: false,
        })))
    }

    /// Writes a note on the begun session to the state directory. It has the names of the backing
    /// devices, whether the cache is dirty, and whether it will accept dirty data as part of a
    /// stack.
    pub(super) fn note_begin(
        &self,
        backings: BTreeMap<String, String>,
        dirty: bool,
        keeps_writes: bool,
    ) {
        let mut written = self.written();
        (written.backings, written.dirty) = (backings, dirty);
        written.keeps_writes = keeps_writes;
        written.note();
    }

    /// Notes in the state directory that the cache has no dirty data and accepts none.
    pub(crate) fn note_clean(&self) {
        let mut written = self.written();
        (written.dirty, written.keeps_writes) = (false, false);
        written.note();
    }

    /// Returns the sizes of the cache on a device of this size.
    pub(crate) fn sizes(&self, device_bytes: u64) -> CacheSizes {
        CacheSizes::of(&self.written().superblock, device_bytes)
    }

    /// Returns the byte offset on the device at which the data begins.
    pub(crate) fn data_start(&self) -> u64 {
        self.written().superblock.layout.data_offset_bytes(0)
    }

    /// Records the bytes of the device that the cache takes. If that fails, writes what was
    /// recorded before again, since the device may have taken one of the two copies. If that fails,
    /// too, the device has either until the next write.
    pub(crate) fn set_cache_bytes(&mut self, bytes: u64) -> Result<(), StartError> {
        let mut written = self.written();
        if written.over {
            return Ok(()); // the session has ended while the device hung
        }
        let recorded = written.change(|superblock| superblock.set_cache_bytes(bytes));
        if recorded.is_err()
            && let Err(error) = written.write()
        {
            tracing::warn!(%error, "the next server may find the tier's size of before or after");
        }
        recorded
    }

    pub(crate) fn id(&self) -> [u8; 16] {
        self.written().superblock.id
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the superblock durably: see [`Written::change`].
    fn change(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), StartError> {
        self.written().change(change)
    }

    /// Returns the sectors of a volume that have valid samples, and a handle that removes samples.
    /// Returns `None` if the volume has none.
    pub(super) fn samples(&self, volume: VolumeId) -> Option<(Vec<u64>, SampleWriter)> {
        let written = self.written();
        let of = written.superblock.volumes.iter().find(|known| known.id == volume)?;
        let sectors: Vec<u64> = of.samples.known().map(|(sector, _)| sector).collect();
        let writer = SampleWriter { written: Arc::downgrade(&self.0), volume };
        (!sectors.is_empty()).then_some((sectors, writer))
    }

    /// Removes the markers and samples of these volumes from the superblock. Must run before their
    /// backing devices are changed without this cache's knowledge.
    pub(super) fn forget_content(&mut self, ids: &[VolumeId]) -> Result<(), StartError> {
        self.change(|superblock| {
            let of = superblock.volumes.iter_mut().filter(|volume| ids.contains(&volume.id));
            of.for_each(|volume| (volume.marker, volume.samples) = (0, Samples::default()));
        })
    }

    /// Returns the number of times that the cache was opened.
    pub(crate) fn session(&self) -> u64 {
        self.written().superblock.session
    }

    /// Returns the entry for this tier, called `name`, in the superblocks of the tiers below.
    pub(crate) fn as_companion(&self, name: &str) -> Companion {
        let superblock = &self.written().superblock;
        let session = superblock.session as u32;
        Companion { id: superblock.id, name: name.to_owned(), above: true, session, passed: None }
    }

    /// Records that the tier is about to be served in a stack. After a crash, tiers with the
    /// announced number count as served together.
    pub(crate) fn announce(&mut self, stack: u32) -> Result<(), StartError> {
        let mut written = self.written();
        if [written.superblock.stack, written.superblock.next_stack].contains(&stack) {
            return Ok(());
        }
        written.change(|superblock| superblock.next_stack = stack)
    }

    /// Records that the tier is part of a stack, and which companions may hold dirty data. All
    /// tiers of the stack must have announced it before.
    pub(crate) fn link(
        &mut self,
        stack: u32,
        companions: Vec<Companion>,
    ) -> Result<(), StartError> {
        let mut written = self.written();
        written.dirty |= written.keeps_writes;
        if written.superblock.stack == stack && written.superblock.companions == companions {
            return Ok(());
        }
        written.change(|superblock| {
            (superblock.stack, superblock.next_stack) = (stack, 0);
            superblock.companions = companions;
        })
    }

    /// Removes a detached tier from the companions.
    pub(crate) fn forget_companion(&self, gone: &SuperblockWriter) -> Result<(), StartError> {
        let id = gone.written().superblock.id;
        let mut written = self.written();
        if !written.superblock.companions.iter().any(|companion| companion.id == id) {
            return Ok(());
        }
        written.change(|superblock| superblock.companions.retain(|companion| companion.id != id))
    }

    /// Records that the tier was used without its peer tiers, by a stack number of its own: `stack`
    /// must be new. Keeps the companions.
    pub(crate) fn link_alone(&mut self, stack: u32) -> Result<(), StartError> {
        let companions = self.written().superblock.companions.clone();
        self.link(stack, companions)
    }

    /// Adds a volume to the superblock. The cache must have durably forgotten the content of an
    /// earlier volume with this id.
    pub(crate) fn add(&mut self, id: VolumeId, volume: &Volume) -> Result<(), StartError> {
        let mut written = self.written();
        written.backings.insert(volume.name.clone(), volume.backing.name());
        written.change(|superblock| {
            superblock.volumes.push(known(id, volume));
            superblock.volumes.sort_by_key(|volume| volume.id);
        })
    }

    /// Removes a volume from the superblock, which invalidates its journal records.
    pub(crate) fn remove(&mut self, id: VolumeId) -> Result<(), StartError> {
        self.change(|superblock| superblock.volumes.retain(|volume| volume.id != id))
    }

    /// Records the new size of a volume's backing device.
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

    /// Records whether clean data may be old (`void`), and whether the whole cache is invalid
    /// (`retired`).
    pub(crate) fn set_void(&mut self, void: bool, retired: bool) -> Result<(), StartError> {
        let mut it = self.written();
        if (it.superblock.void, it.superblock.retired.is_some()) == (void, retired) && !it.unwritten
        {
            return Ok(());
        }
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        it.superblock.void = void;
        it.superblock.retired = retired.then_some(now);
        it.write_surely()
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

    /// Records a clean shutdown, with the marker and samples of each backing device. No write to
    /// any device may follow.
    ///
    /// `companions` are the tiers that hold dirty data; `None` keeps the recorded ones.
    /// `dirty_bytes` is the dirty data of this tier.
    pub(crate) fn end(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
        dirty_bytes: u64,
    ) -> Result<(), StartError> {
        self.written().superblock.void = false;
        self.close(backings, companions, dirty_bytes)
    }

    /// Records a clean shutdown as [`end`](Self::end) does, but keeps the void flag: clean data may
    /// still be old.
    pub(super) fn close(
        self,
        backings: &[(VolumeId, Arc<dyn DeviceSource>)],
        companions: Option<Vec<Companion>>,
        dirty_bytes: u64,
    ) -> Result<(), StartError> {
        // Content that cannot be read, or not soon, stays unknown.
        let until = Instant::now() + CONTENT_TIME;
        let content = |backing| {
            let mut disk = Disk::open(backing).ok()?;
            disk.device.set_timeout(until.saturating_duration_since(Instant::now()));
            Some((marker_of(&mut disk).ok()?, samples(&mut disk).ok()?))
        };
        let mut written = self.written();
        written.over = true;
        (written.dirty, written.dirty_bytes) = (dirty_bytes > 0, Some(dirty_bytes));
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

    /// Replaces the cache on the device by an empty one without volumes, durably. A detached tier
    /// needs that: its content becomes old as soon as a volume is written to. No I/O may be in
    /// flight.
    pub(crate) fn vacate(self) -> Result<(), StartError> {
        let id = random_id()?;
        let mut written = self.written();
        written.over = true;
        let cache = Disk::open(&written.cache).map_err(StartError::from);
        let vacated = cache.and_then(|mut cache| {
            Ok(cache.with_io(|io| KeptCache::vacate(io, &written.superblock, id))?)
        });
        if vacated.is_err() {
            written.superblock.retired = Some(0);
            written.note_bypassed();
        } else if let Some(state) = &written.state {
            state.forget(&written.superblock.id);
        }
        vacated
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

    /// Writes a superblock that declares less of the cache valid than before. If the device refuses
    /// it, it is noted in the state directory and stays in memory for the next write.
    fn write_surely(&mut self) -> Result<(), StartError> {
        let written = self.write();
        if written.is_err() {
            self.unwritten = true;
            self.note_bypassed();
        }
        written
    }

    fn write(&mut self) -> Result<(), StartError> {
        let mut cache = Disk::open(&self.cache)?;
        cache.with_io(|io| write_superblock(io, &mut self.superblock))?;
        (self.taken, self.unwritten) = (self.superblock.generation, false);
        self.note();
        Ok(())
    }

    /// Notes in the state directory the superblock that the device has accepted. A note that cannot
    /// be written only causes a warning: the cache is then ahead of its note, which is safe.
    fn note(&self) {
        if let Some(state) = &self.state {
            state.note(&self.superblock.id, &self.noted());
        }
    }

    /// Notes in the state directory that the device refuses the superblock and the cache is
    /// bypassed.
    fn note_bypassed(&self) {
        let Some(state) = &self.state else { return };
        let retired = self.superblock.retired.is_some();
        let passed = Some(Bypassed { retired, generation: self.taken });
        let noted = self.noted();
        let noted = Noted { generation: noted.generation + UNWRITTEN, passed, ..noted };
        if !state.note(&self.superblock.id, &noted) {
            tracing::error!(
                "neither the cache device nor the state directory could record that requests \
                 bypass the cache: do not serve it again without --initialise"
            );
        }
    }

    fn noted(&self) -> Noted {
        let is_retired = self.superblock.retired.is_some();
        Noted {
            device: self.cache.name(),
            dirty: self.dirty && !is_retired,
            dirty_bytes: self.dirty_bytes,
            ..Noted::of(&self.superblock, &self.backings)
        }
    }
}

pub(super) fn random_id() -> Result<[u8; 16], StartError> {
    let mut id = [0; 16];
    let urandom = std::fs::File::open("/dev/urandom");
    urandom.and_then(|mut file| file.read_exact(&mut id)).map_err(StartError::Random)?;
    Ok(id)
}

/// Returns a random stack number; never 0.
pub(crate) fn random_stack() -> Result<u32, StartError> {
    let [a, b, c, d, ..] = random_id()?;
    Ok(u32::from_le_bytes([a, b, c, d]).max(1))
}

/// A cache that is ready to be served: a part for each thread, and the writer of its superblock.
#[derive(Debug)]
pub struct Parts {
    pub(crate) parts: Vec<(BlockCache, Option<PartJournal>)>,
    /// The cache's id of each volume, in the order of the server's volumes.
    pub(crate) ids: Vec<VolumeId>,
    pub(crate) writer: Option<SuperblockWriter>,
    /// Byte offset on the device at which the data begins.
    pub(crate) data_start: u64,
    /// Upper limit of dirty bytes, if any.
    pub(crate) most_dirty_bytes: Option<u64>,
    /// The state in which a persistent cache was found.
    pub(crate) opened: Option<OpenedStatus>,
}

impl Parts {
    /// Makes the parts of a volatile cache, one for each of `caches`.
    pub fn volatile(caches: Vec<BlockCache>) -> Self {
        let parts = caches.into_iter().map(|cache| (cache, None)).collect();
        Self {
            parts,
            ids: Vec::new(),
            writer: None,
            data_start: 0,
            most_dirty_bytes: None,
            opened: None,
        }
    }

    /// Sets the byte offset at which the data of a volatile cache begins: see
    /// [`claim()`](super::claim()).
    pub fn with_data_at(self, bytes: u64) -> Self {
        Self { data_start: bytes, ..self }
    }

    /// Limits the dirty bytes of the cache: see [`BlockCache::limit_dirty`].
    pub fn limit_dirty(&mut self, bytes: u64) {
        self.most_dirty_bytes = Some(bytes);
        self.parts.iter_mut().for_each(|(cache, _)| cache.limit_dirty(bytes));
    }

    /// Returns the bytes that the cache uses of a device of `has` bytes. If the device has grown,
    /// the cache keeps its size, and a warning is logged.
    pub(crate) fn used_bytes(&self, has: u64) -> u64 {
        let Some(writer) = &self.writer else { return has };
        let CacheSizes { used, most } = writer.sizes(has);
        if most < has {
            tracing::warn!(
                unused_bytes = has - most,
                "the cache device has grown, and the cache uses as much of it as it was made with; \
                 to use all of it, run floe flush, end the server, and start it with --initialise"
            );
        }
        if used < most {
            tracing::info!(bytes = used, of_bytes = most, "the cache was resized");
        }
        used
    }

    /// Returns the number of threads for which the cache was divided.
    pub fn threads(&self) -> usize {
        self.parts.len()
    }

    /// Returns the cache's id of the volume at this position in the server's list of volumes.
    pub(crate) fn id(&self, at: usize) -> VolumeId {
        self.ids.get(at).copied().unwrap_or(VolumeId(at as u16))
    }
}

/// Sizes of a cache on its device, in bytes, its metadata included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheSizes {
    /// Bytes that the cache uses.
    pub(crate) used: u64,
    /// Bytes that it can use: those that it was made for.
    pub(crate) most: u64,
}

impl CacheSizes {
    /// Returns the sizes of the cache with this superblock on a device of `device_bytes`. A rest of
    /// the device that a new cache would not use either counts as used.
    pub(super) fn of(superblock: &Superblock, device_bytes: u64) -> Self {
        let layout = &superblock.layout;
        let anew = Layout::new(layout.sizes(), device_bytes, layout.shards());
        let has_grown = anew.is_ok_and(|anew| anew.end_bytes() > layout.end_bytes());
        let most = if has_grown { layout.end_bytes() } else { device_bytes };
        Self { used: superblock.cache_bytes.map_or(most, |bytes| bytes.min(most)), most }
    }
}
