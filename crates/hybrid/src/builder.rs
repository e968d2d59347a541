//! [`Builder`]: the settings of a hybrid cache before it is opened.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_memory::Cause;

use crate::admission::{Admission, GateOptions};
use crate::budget::WriteBudget;
use crate::codec::{Key, Value};
use crate::compression::Compression;
use crate::drives::Drive;
use crate::flash::{Flash, FlashOptions, FlashSwitch};
use crate::flow::{Flow, OnFull, Settings, lock};
use crate::format::{
    DriveSet, Geometry, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, PAGE_BYTES, UNIT_BYTES,
};
use crate::hybrid::{Hybrid, OpenDrive};
use crate::insertion::Declined;
use crate::left::Listener;
use crate::log::SEGMENTS_IN_MEMORY;
use crate::open_error::OpenError;
use crate::recovery::{self, OpenFailure, OpenStore, StoreOptions, read_superblock};
use crate::reopen::{self, Reopened};
use crate::set::{Given, arrange};
use crate::shared::OnDeclined;
use crate::store::{Pace, spawn_writer};

/// Largest size of the flash in bytes, 16 TiB: addresses have 40 bits.
const MAX_FLASH_BYTES: u64 = (UNIT_BYTES as u64) << 40;

/// Builds a hybrid cache. [`Hybrid::builder`] makes one.
#[must_use = "nothing is opened before `open`"]
pub struct Builder<K, V> {
    memory: u64,
    /// Paths of the drives, and bytes to use of each.
    drives: Vec<(PathBuf, u64)>,
    on_full: OnFull,
    time_to_live: Option<Duration>,
    refresh_ahead: Option<Duration>,
    compression: Compression,
    object_bytes: u64,
    keep_share: f64,
    admission: Admission,
    write_budget: Option<WriteBudget>,
    on_declined: Option<OnDeclined<K>>,
    listener: Option<Listener<K, V>>,
    pace: Pace,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key + Send + Sync + 'static, V: Value> Hybrid<K, V> {
    /// Returns a [`Builder`], which needs [`memory`](Builder::memory) and
    /// [`flash`](Builder::flash).
    pub fn builder() -> Builder<K, V> {
        Builder {
            memory: 0,
            drives: Vec::new(),
            on_full: OnFull::default(),
            time_to_live: None,
            refresh_ahead: None,
            compression: Compression::default(),
            object_bytes: 16 << 10,
            keep_share: 0.25,
            admission: Admission::default(),
            write_budget: None,
            on_declined: None,
            listener: None,
            pace: Pace::Free,
            types: PhantomData,
        }
    }

    /// Opens the files of failed drives again, such as after the loss of a drive. Memory and the
    /// other drives serve meanwhile. The content is verified as by [`open`](crate::Builder::open):
    /// objects whose records are intact are found again. Objects that were removed or replaced
    /// since the failure are removed on flash, too, before the call returns. If the file is missing
    /// or empty, as on a new drive, it is created.
    ///
    /// The call blocks for as long as an open after a crash, and takes the memory of the drive's
    /// index once more meanwhile.
    ///
    /// # Errors
    /// When a file cannot be opened, holds another cache, or fails again. That drive stays failed,
    /// and the call can be repeated. The other drives are opened nevertheless.
    pub fn reopen_flash(&self) -> Result<Reopened, OpenError> {
        let shared = &*self.shared;
        let mut result = Ok(Reopened::Working);
        for place in 0..shared.drives.len() {
            let reopened = reopen_drive(shared.flows.all(), &shared.drives, place);
            result = result.and_then(|all| Ok(all.and(reopened?)));
        }
        result
    }
}

/// Opens the file of the drive at a place again if the drive has failed.
fn reopen_drive(flows: &[Flow], drives: &[Drive], place: usize) -> Result<Reopened, OpenError> {
    let (drive, store) = (&drives[place], &flows[place].store);
    let switch = &*drive.switch;
    let failed = |source| OpenError::Io { path: switch.path().to_owned(), source };
    let mut writer = lock(&drive.writer); // one at a time, and none while it is closed
    if writer.is_none() {
        return Err(failed(io::Error::other("the cache is closed")));
    }
    if store.log.failure().is_none() {
        return Ok(Reopened::Working);
    }
    if store.log.flash.is_forked() {
        let line = "the cache belongs to the process that forked this one";
        return Err(failed(io::Error::other(line)));
    }
    if let Some(ended) = writer.take() {
        let _ = ended.join(); // a panic of it has ended the log
    }
    // Without a writer the cache would count as closed.
    let revived = switch.open_again().map_err(OpenError::from).and_then(|flash| {
        let revived = reopen::revive(store, &drive.superblock, switch, flash, random());
        revived.map_err(|failure| failure.at(switch.path()))
    });
    *writer = Some(spawn_writer(store, &drive.reporter).map_err(failed)?);
    let revived = revived?;
    if let Some(set) = revived.new_set {
        // The others first: from then on the lost drive cannot come back.
        for (at, (flow, other)) in flows.iter().zip(drives).enumerate().filter(|it| it.0 != place) {
            other.superblock.join(&*flow.store.log.flash, set.at(at));
        }
    }
    reopen::complete(store, &drive.superblock, revived).map_err(failed)
}

impl<K, V> fmt::Debug for Builder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("memory", &self.memory)
            .field("drives", &self.drives)
            .finish_non_exhaustive()
    }
}

impl<K: Key + Send + Sync + 'static, V: Value> Builder<K, V> {
    /// Sets the limit of memory in bytes. It covers the objects in memory, the segments being
    /// filled or written, and the [index](crate::FlashStats::index_bytes). The index takes about 9
    /// bytes for each object on flash. The objects in memory keep at least an eighth of the limit;
    /// a larger index exceeds it.
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Adds a drive: a file or a block device, and the number of its bytes to use. For a new cache,
    /// missing files are created. For an existing file, `bytes` must be its size.
    ///
    /// The cache is striped over all drives that are added, up to 32. Each has the keys of a part
    /// of the hashes, in proportion to its size when the cache is created. A drive that fails ends
    /// only its part. A cache keeps its drives: their number must be the same each time, in any
    /// order. An empty file in the place of a lost drive begins that drive anew.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    /// use floe_hybrid::Hybrid;
    ///
    /// let cache: Hybrid<String, Vec<u8>> =
    ///     Hybrid::builder().memory(8 << 20).flash(one, 64 << 20).flash(other, 64 << 20).open()?;
    /// assert_eq!(cache.stats().drives.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flash(mut self, path: impl AsRef<Path>, bytes: u64) -> Self {
        let bytes = bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        self.drives.push((path.as_ref().to_owned(), bytes));
        self
    }

    /// Sets the behaviour when producers are faster than the drive. By default they wait.
    pub fn on_full(self, on_full: OnFull) -> Self {
        Self { on_full, ..self }
    }

    /// Sets the default time to live of objects.
    pub fn time_to_live(self, time: Duration) -> Self {
        Self { time_to_live: Some(time), ..self }
    }

    /// Sets the time before the end of the time to live from which objects are refreshed; see
    /// [`InsertOptions::refresh_ahead`](crate::InsertOptions::refresh_ahead).
    pub fn refresh_ahead(self, time: Duration) -> Self {
        Self { refresh_ahead: Some(time), ..self }
    }

    /// Sets the compression of values on flash. By default they are not compressed. Objects that
    /// are there already stay as they are, and are read.
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Sets the expected mean size of an object, key and value, in bytes. The index is then
    /// allocated for the expected number of objects and need not grow.
    pub fn object_bytes(self, bytes: u64) -> Self {
        Self { object_bytes: bytes.max(1), ..self }
    }

    /// Sets the rule that decides which objects are written to flash when memory evicts them. By
    /// default all are.
    pub fn admission(self, admission: Admission) -> Self {
        Self { admission, ..self }
    }

    /// Limits the bytes written to flash in a time. When the budget is short, the least valuable
    /// objects are declined: those with the fewest requests a byte.
    ///
    /// Footers, removals, used objects that are appended again and the index saved at the end count
    /// as well. Removals are never declined. Up to half an hour's budget is saved while there is
    /// less to write. The drive's own write amplification is not counted.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// use floe_hybrid::{Admission, Hybrid};
    ///
    /// let cache: Hybrid<String, Vec<u8>> = Hybrid::builder()
    ///     .memory(8 << 20)
    ///     .flash(path, 64 << 20)
    ///     .admission(Admission::Popularity)
    ///     .write_budget("1 DWPD".parse()?)
    ///     .on_declined(|key, reason| println!("{key} stays out of flash: {reason:?}"))
    ///     .open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_budget(self, budget: WriteBudget) -> Self {
        Self { write_budget: Some(budget), ..self }
    }

    /// Sets a function that is called with the key of each object that is not kept or not written
    /// to flash, and the reason. It must not use the cache, and runs in the call that evicted the
    /// object. Objects that wait for the drive when it fails are only counted.
    pub fn on_declined(self, listen: impl Fn(&K, Declined) + Send + Sync + 'static) -> Self {
        Self { on_declined: Some(Arc::new(listen)), ..self }
    }

    /// Sets the listener, which is called with key, value and [`Cause`] for each object that leaves
    /// the cache as a whole. An object that only goes from memory to flash, or whose copy in memory
    /// is evicted, does not leave. The value is `None` if only flash had the object.
    ///
    /// The index knows keys by a part of their hash. So with a listener, the cache reads the keys
    /// of the objects that flash evicts: nearly all bytes of each segment once more, in large
    /// reads, before the log overwrites it.
    ///
    /// The listener is not called for objects that a [`clear`](Hybrid::clear) removes from flash,
    /// that damage, an unreadable segment or a failed drive takes away, that the index loses to a
    /// key of an equal tag, or that the cache has when it is closed. A removal of a key that the
    /// cache does not have may be told as one that it has, as by [`contains`](Hybrid::contains).
    ///
    /// It runs in the call that made the object leave, or in the thread that writes to flash. It
    /// must not use the cache.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// use floe_hybrid::{Cause, Hybrid};
    ///
    /// let (left, log) = std::sync::mpsc::channel();
    /// let cache: Hybrid<String, Vec<u8>> = Hybrid::builder()
    ///     .memory(8 << 20)
    ///     .flash(path, 64 << 20)
    ///     .listener(move |key: &String, _value, cause| left.send((key.clone(), cause)).unwrap())
    ///     .open()?;
    /// cache.insert("key".to_string(), vec![1]);
    /// cache.remove("key");
    /// assert_eq!(log.try_recv()?, ("key".to_string(), Cause::Removed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listener(self, listen: impl Fn(&K, Option<&V>, Cause) + Send + Sync + 'static) -> Self {
        Self { listener: Some(Arc::new(listen)), ..self }
    }

    /// Makes the cache reproducible, for comparisons with a simulation: equal calls of one thread
    /// have equal results in every process. Hashes have fixed seeds, and calls wait for the drive.
    #[doc(hidden)]
    pub fn reproducible(self) -> Self {
        Self { pace: Pace::InStep, ..self }
    }

    /// Makes a cache without a thread, for a simulation.
    pub(crate) fn in_line(self) -> Self {
        Self { pace: Pace::InLine, ..self }
    }

    /// Opens the cache, or creates it.
    ///
    /// # Errors
    /// Names the path and the reason. The content of an existing file stays as it was.
    pub fn open(self) -> Result<Hybrid<K, V>, OpenError> {
        self.open_on(|path, size| {
            FlashSwitch::open(path, FlashOptions { size, ..FlashOptions::default() })
        })
    }

    /// Opens the cache on the flash that `make` returns for a path and a size in bytes.
    pub(crate) fn open_on(
        self,
        mut make: impl FnMut(&Path, Option<u64>) -> Result<FlashSwitch, crate::flash::OpenError>,
    ) -> Result<Hybrid<K, V>, OpenError> {
        let count = self.drives.len() as u64;
        if count == 0 {
            return Err(OpenError::Setting("a hybrid cache needs a path for its flash".to_owned()));
        }
        let max_segment_bytes = segment_bytes(self.memory / count);
        let buffers = count * SEGMENTS_IN_MEMORY as u64 * max_segment_bytes;
        let Some(memory_bytes) = self.memory.checked_sub(buffers).filter(|left| *left > 0) else {
            return Err(OpenError::Setting(format!(
                "{} bytes of memory are too few: a hybrid cache needs at least {}",
                self.memory,
                (count as usize * SEGMENTS_IN_MEMORY + 1) * MIN_SEGMENT_BYTES
            )));
        };
        // Before a file is made.
        for (path, bytes) in &self.drives {
            if *bytes > MAX_FLASH_BYTES {
                return Err(OpenError::Setting(format!(
                    "{bytes} bytes of flash are too many: a drive of a hybrid cache has at most \
                     {MAX_FLASH_BYTES}"
                )));
            }
            if Geometry::of(*bytes, max_segment_bytes).is_none() {
                return Err(OpenFailure::Small.at(path));
            }
        }
        let reproducible = self.pace.is_reproducible();
        let random = || if reproducible { 1 } else { random() };
        let (set, switches, seed) = find_drives(&self.drives, &mut make, random)?;
        let options = |place: usize, bytes: u64| StoreOptions {
            expected_objects: bytes / self.object_bytes,
            max_segment_bytes,
            keep_share: self.keep_share,
            random: (set.members().get(place).map_or_else(random, |member| member.id), seed),
            pace: self.pace,
            set: if set.drives == 0 { set } else { set.at(place) },
        };
        let open = |place: usize, switch: &Arc<FlashSwitch>| {
            let options = options(place, switch.size_bytes());
            recovery::open(Arc::clone(switch) as Arc<dyn Flash>, &options)
                .map_err(|failure| failure.at(switch.path()))
        };
        // Side by side: each drive may have a crash to recover from.
        let opened: Vec<Result<OpenStore<_>, OpenError>> = std::thread::scope(|scope| {
            let others = switches.iter().enumerate().skip(1);
            let open = &open;
            let others: Vec<_> =
                others.map(|(place, switch)| scope.spawn(move || open(place, switch))).collect();
            let first = open(0, &switches[0]);
            let joined = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(first).chain(joined).collect()
        });
        let mut drives = Vec::with_capacity(switches.len());
        for ((place, switch), open) in switches.into_iter().enumerate().zip(opened) {
            let open = open?;
            let geometry = open.store.log.geometry;
            let part = if set.drives == 0 { 1.0 } else { set.at(place).part() };
            let gate = GateOptions {
                admission: self.admission,
                budget: self.write_budget.map(|budget| budget.part(part)),
                capacity_bytes: geometry.segments * geometry.segment_bytes,
                memory_bytes: (memory_bytes as f64 * part) as u64,
                object_bytes: self.object_bytes,
                fixed: None,
            };
            drives.push(OpenDrive { open, gate, switch });
        }
        let settings = Settings {
            memory_bytes,
            on_full: self.on_full,
            time_to_live: self.time_to_live,
            refresh_ahead: self.refresh_ahead,
            compression: self.compression,
        };
        Hybrid::assemble(drives, &settings, (self.on_declined, self.listener))
    }
}

/// Opens the files of the drives and finds the set that they are. Files are made only for a new
/// cache. Returns the set, the drives by place, and the seed of the hashes of keys.
fn find_drives(
    drives: &[(PathBuf, u64)],
    make: &mut impl FnMut(&Path, Option<u64>) -> Result<FlashSwitch, crate::flash::OpenError>,
    random: impl Fn() -> u64,
) -> Result<(DriveSet, Vec<Arc<FlashSwitch>>, u64), OpenError> {
    let mut given = Vec::with_capacity(drives.len());
    let mut found: Vec<Option<FlashSwitch>> = Vec::with_capacity(drives.len());
    for (path, bytes) in drives {
        // Another error is told when the file is opened.
        let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let exists = !std::fs::metadata(path).is_err_and(is_missing);
        let switch = if exists { Some(make(path, Some(*bytes))?) } else { None };
        let block = match &switch {
            Some(switch) => read_superblock(switch).map_err(|failure| failure.at(path))?,
            None => None,
        };
        given.push(Given { path, bytes: *bytes, block, new_id: random(), exists });
        found.push(switch);
    }
    let (set, places) = arrange(&given, random())?;
    let known = given.iter().find_map(|it| it.block.map(|block| block.hash_seed));
    let seed = known.unwrap_or_else(random);
    let mut switches = Vec::with_capacity(drives.len());
    for ((switch, (path, bytes)), place) in found.into_iter().zip(drives).zip(places) {
        let switch = match switch {
            Some(switch) => switch,
            None => make(path, Some(*bytes))?,
        };
        switches.push((place, Arc::new(switch)));
    }
    switches.sort_by_key(|(place, _)| *place);
    Ok((set, switches.into_iter().map(|(_, switch)| switch).collect(), seed))
}

/// Returns a random number.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Returns the largest segment size at which the segments in memory fit into a quarter of it.
fn segment_bytes(memory: u64) -> u64 {
    let most = memory / 4 / SEGMENTS_IN_MEMORY as u64;
    let largest = if most == 0 { 0 } else { 1 << most.ilog2() };
    largest.clamp(MIN_SEGMENT_BYTES as u64, MAX_SEGMENT_BYTES as u64)
}
