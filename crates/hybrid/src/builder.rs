//! [`Builder`]: the settings of a hybrid cache before it is opened.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Admission, GateOptions};
use crate::budget::WriteBudget;
use crate::codec::{Key, Value};
use crate::compression::Compression;
use crate::flash::{Flash, FlashOptions, FlashSwitch};
use crate::flow::{OnFull, Settings, lock};
use crate::format::{Geometry, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, PAGE_BYTES, UNIT_BYTES};
use crate::hybrid::Hybrid;
use crate::insertion::Declined;
use crate::log::SEGMENTS_IN_MEMORY;
use crate::recovery::{self, OpenFailure, StoreOptions};
use crate::reopen::{self, Reopened};
use crate::shared::OnDeclined;
use crate::store::{Pace, spawn_writer};

/// Largest size of the flash in bytes, 16 TiB: addresses have 40 bits.
const MAX_FLASH_BYTES: u64 = (UNIT_BYTES as u64) << 40;

/// Builds a hybrid cache. [`Hybrid::builder`] makes one.
#[must_use = "nothing is opened before `open`"]
pub struct Builder<K, V> {
    memory: u64,
    flash: Option<(PathBuf, Option<u64>)>,
    on_full: OnFull,
    time_to_live: Option<Duration>,
    refresh_ahead: Option<Duration>,
    compression: Compression,
    object_bytes: u64,
    keep_share: f64,
    admission: Admission,
    write_budget: Option<WriteBudget>,
    on_declined: Option<OnDeclined<K>>,
    pace: Pace,
    types: PhantomData<fn() -> (K, V)>,
}

/// The reason why a hybrid cache could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be opened or created.
    #[error(transparent)]
    File(#[from] crate::flash::OpenError),
    /// A read or write failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a hybrid cache.
    #[error(
        "{path} holds something other than a hybrid cache; use another path, or remove it",
        path = path.display()
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// Both superblocks are damaged.
    #[error(
        "{path}: both superblocks are damaged; remove the file to begin anew",
        path = path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
    },
    /// A later version of Floe wrote the file.
    #[error(
        "{path} has format {version}, which this version of Floe does not read",
        path = path.display()
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the format.
        version: u32,
    },
    /// The file is shorter than the cache in it.
    #[error(
        "{path} has {actual} bytes, and the cache in it {expected}: it was cut short",
        path = path.display()
    )]
    Short {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of the cache.
        expected: u64,
        /// Bytes of the file.
        actual: u64,
    },
    /// The file holds another cache than the one that is open.
    #[error("{path} holds another cache than the one that failed", path = path.display())]
    OtherCache {
        /// Path of the file.
        path: PathBuf,
    },
    /// A setting is missing or too small.
    #[error("{0}")]
    Setting(String),
}

impl<K: Key + Send + Sync + 'static, V: Value> Hybrid<K, V> {
    /// Returns a [`Builder`], which needs [`memory`](Builder::memory) and
    /// [`flash`](Builder::flash).
    pub fn builder() -> Builder<K, V> {
        Builder {
            memory: 0,
            flash: None,
            on_full: OnFull::default(),
            time_to_live: None,
            refresh_ahead: None,
            compression: Compression::default(),
            object_bytes: 16 << 10,
            keep_share: 0.25,
            admission: Admission::default(),
            write_budget: None,
            on_declined: None,
            pace: Pace::Free,
            types: PhantomData,
        }
    }

    /// Opens the file again after a failure of the flash, such as the loss of the drive. Memory
    /// serves meanwhile. The content is verified as by [`open`](crate::Builder::open): objects
    /// whose records are intact are found again. Objects that were removed or replaced since the
    /// failure are removed on flash, too, before the call returns. If the file is missing or empty,
    /// as on a new drive, it is created.
    ///
    /// The call blocks for as long as an open after a crash, and takes the memory of the index once
    /// more meanwhile.
    ///
    /// # Errors
    /// When the file cannot be opened, holds another cache, or fails again. The flash stays failed,
    /// and the call can be repeated.
    pub fn reopen_flash(&self) -> Result<Reopened, OpenError> {
        let shared = &*self.shared;
        let (switch, store) = (&*shared.switch, &shared.flow.store);
        let failed = |source| OpenError::Io { path: switch.path().to_owned(), source };
        let mut writer = lock(&shared.writer); // one at a time, and none while it is closed
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
            let revived = reopen::revive(store, &shared.superblock, switch, flash);
            revived.map_err(|failure| failure.at(switch.path()))
        });
        *writer = Some(spawn_writer(store, &shared.reporter).map_err(failed)?);
        reopen::complete(store, &shared.superblock, revived?).map_err(failed)
    }
}

impl<K, V> fmt::Debug for Builder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("memory", &self.memory)
            .field("flash", &self.flash)
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

    /// Sets the file or block device, and the number of its bytes to use. A missing file is
    /// created. For an existing file, `bytes` must be its size.
    pub fn flash(self, path: impl AsRef<Path>, bytes: u64) -> Self {
        let bytes = bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        Self { flash: Some((path.as_ref().to_owned(), Some(bytes))), ..self }
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
        make: impl FnOnce(&Path, Option<u64>) -> Result<FlashSwitch, crate::flash::OpenError>,
    ) -> Result<Hybrid<K, V>, OpenError> {
        let Some((path, bytes)) = self.flash else {
            return Err(OpenError::Setting("a hybrid cache needs a path for its flash".to_owned()));
        };
        let max_segment_bytes = segment_bytes(self.memory);
        let buffers = SEGMENTS_IN_MEMORY as u64 * max_segment_bytes;
        let Some(memory_bytes) = self.memory.checked_sub(buffers).filter(|left| *left > 0) else {
            return Err(OpenError::Setting(format!(
                "{} bytes of memory are too few: a hybrid cache needs at least {}",
                self.memory,
                (SEGMENTS_IN_MEMORY + 1) * MIN_SEGMENT_BYTES
            )));
        };
        if let Some(bytes) = bytes.filter(|bytes| *bytes > MAX_FLASH_BYTES) {
            return Err(OpenError::Setting(format!(
                "{bytes} bytes of flash are too many: a hybrid cache has at most {MAX_FLASH_BYTES}"
            )));
        }
        if bytes.is_some_and(|bytes| Geometry::of(bytes, max_segment_bytes).is_none()) {
            return Err(OpenFailure::Small.at(&path)); // before a file is made
        }
        let switch = Arc::new(make(&path, bytes)?);
        let options = StoreOptions {
            expected_objects: bytes.unwrap_or(0) / self.object_bytes,
            max_segment_bytes,
            keep_share: self.keep_share,
            random: if self.pace.is_reproducible() { (1, 1) } else { (random(), random()) },
            pace: self.pace,
        };
        let open = recovery::open(Arc::clone(&switch) as Arc<dyn Flash>, &options)
            .map_err(|failure| failure.at(&path))?;
        let geometry = open.store.log.geometry;
        let gate = GateOptions {
            admission: self.admission,
            budget: self.write_budget,
            capacity_bytes: geometry.segments * geometry.segment_bytes,
            memory_bytes,
            object_bytes: self.object_bytes,
            fixed: None,
        };
        let settings = Settings {
            memory_bytes,
            on_full: self.on_full,
            time_to_live: self.time_to_live,
            refresh_ahead: self.refresh_ahead,
            compression: self.compression,
            gate,
            switch,
        };
        Hybrid::assemble(open, &settings, self.on_declined)
            .map_err(|source| OpenError::Io { path, source })
    }
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

impl OpenFailure {
    pub(crate) fn at(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Io(source) => OpenError::Io { path, source },
            Self::Foreign => OpenError::Foreign { path },
            Self::Damaged => OpenError::Damaged { path },
            Self::OtherCache => OpenError::OtherCache { path },
            Self::Version(version) => OpenError::Version { path, version },
            Self::Short { expected, actual } => OpenError::Short { path, expected, actual },
            Self::Small => OpenError::Setting(format!(
                "{}: too small for a hybrid cache, which has at least 8 segments of {} bytes",
                path.display(),
                MIN_SEGMENT_BYTES
            )),
        }
    }
}
