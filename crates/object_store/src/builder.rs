//! [`Builder`]: the settings of a caching store.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use floe_hybrid::Hybrid;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::catalog::Catalog;
use crate::inner::{Filter, Inner, Loading, Spawn, Task};
use crate::parts::{PART_BYTES, UNIT};
use crate::planner::{FetchSize, Planner};
use crate::store::CachedStore;
use crate::transfers::{Clock, Transfers};

/// The reason why a store could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No cache was given.
    #[error("a caching store needs a cache: call `hybrid`")]
    NoCache,
    /// The fixed size of fetches is not a power of two of at least 4 KiB.
    #[error("fetches have a power of two from 4096 to 16777216 bytes, not {0}")]
    FetchSize(u64),
    /// The segments of the cache are too small for parts of 256 KiB.
    #[error(
        "the cache has segments of {0} bytes; it needs 524288: \
         open it with 8 MiB of memory and 64 MiB of flash"
    )]
    Segments(u64),
    /// The namespace has a zero byte.
    #[error("the namespace {0:?} has a zero byte")]
    Namespace(String),
}

/// Builds a caching store. [`CachedStore::builder`] makes one.
#[must_use = "nothing is built before `build`"]
pub struct Builder {
    store: Arc<dyn ObjectStore>,
    hybrid: Option<Hybrid<Vec<u8>, Bytes>>,
    namespace: String,
    revalidate_after: Option<Duration>,
    filter: Option<Filter>,
    fetch: FetchSize,
    parallel: u64,
    metadata_bytes: u64,
    in_flight_bytes: u64,
    dollars_per_million_requests: f64,
    dollars_per_gigabyte: f64,
    spawn: Option<Spawn>,
    clock: Option<Clock>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("store", &self.store)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl CachedStore {
    /// Returns a builder of a store above another one.
    pub fn builder(store: impl ObjectStore) -> Builder {
        Builder::new(Arc::new(store))
    }
}

impl Builder {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            namespace: store.to_string(),
            store,
            hybrid: None,
            revalidate_after: Some(Duration::from_secs(60)),
            filter: None,
            fetch: FetchSize::Adaptive,
            parallel: 8,
            metadata_bytes: 16 << 20,
            in_flight_bytes: 256 << 20,
            dollars_per_million_requests: 0.40,
            dollars_per_gigabyte: 0.0,
            spawn: None,
            clock: None,
        }
    }

    /// Sets the cache, which needs at least 8 MiB of memory and 64 MiB of flash. Several stores may
    /// share one; see [`namespace`](Self::namespace).
    pub fn hybrid(self, cache: Hybrid<Vec<u8>, Bytes>) -> Self {
        Self { hybrid: Some(cache), ..self }
    }

    /// Sets the name of the store in the keys of the cache. The default is the store's `Display`,
    /// such as `AmazonS3(bucket)`. Stores of one cache whose objects differ need names that do.
    pub fn namespace(self, name: impl Into<String>) -> Self {
        Self { namespace: name.into(), ..self }
    }

    /// Sets the age of metadata from which the store is asked for it again, 60 seconds by default.
    /// A read returns an object as it was at most so long before the read began. With
    /// [`Duration::ZERO`] each read that needs no bytes from the store asks for metadata.
    pub fn revalidate(self, after: Duration) -> Self {
        Self { revalidate_after: Some(after), ..self }
    }

    /// Declares that an object is never replaced by another of its location, except through this
    /// store. Metadata is then kept without an end, and through restarts. A replacement by another
    /// program goes unnoticed as long as the cache has the old metadata and bytes.
    pub fn immutable(self) -> Self {
        Self { revalidate_after: None, ..self }
    }

    /// Sets which objects are cached, all by default. Reads of the others go to the store as they
    /// are ([`Stats::bypassed`](crate::Stats::bypassed)), and [`CachedStore::prefetch`] and
    /// [`CachedStore::pin`] fail on them. An engine whose files of data are immutable and whose
    /// small files are not is cached so: `.immutable().filter(|path| path.extension() ==
    /// Some("sst"))`.
    pub fn filter(self, is_cached: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        Self { filter: Some(Arc::new(is_cached)), ..self }
    }

    /// Sets the bytes that a miss requests. The default learns them.
    pub fn fetch(self, size: FetchSize) -> Self {
        Self { fetch: size, ..self }
    }

    /// Sets the largest number of requests at once for one range, 8 by default.
    pub fn parallel(self, requests: u32) -> Self {
        Self { parallel: u64::from(requests.max(1)), ..self }
    }

    /// Sets the limit of memory for metadata in bytes, 16 MiB by default.
    pub fn metadata_bytes(self, bytes: u64) -> Self {
        Self { metadata_bytes: bytes, ..self }
    }

    /// Sets the bytes of requests under way from which misses fetch no more than they need, 256 MiB
    /// by default. Nothing is fetched ahead that would pass them.
    pub fn in_flight_bytes(self, bytes: u64) -> Self {
        Self { in_flight_bytes: bytes, ..self }
    }

    /// Sets the price of the store, for [`Stats::dollars`](crate::Stats::dollars): dollars for a
    /// million requests, 0.40 by default as in S3, and for a gigabyte sent, 0 by default as within
    /// a region.
    pub fn price(self, million_requests: f64, gigabyte: f64) -> Self {
        Self {
            dollars_per_million_requests: million_requests,
            dollars_per_gigabyte: gigabyte,
            ..self
        }
    }

    /// Sets a function that hands tasks to a runtime, such as `|task| { tokio::spawn(task); }`. A
    /// read then returns as soon as its own bytes are there, and the rest of the request goes on.
    /// Without one, reads carry out what they request to the end.
    pub fn spawn(self, spawn: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self { spawn: Some(Arc::new(spawn)), ..self }
    }

    /// Sets the clock, for simulations: the time since any moment.
    #[doc(hidden)]
    pub fn clock(self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { clock: Some(Arc::new(now)), ..self }
    }

    /// Builds the store.
    ///
    /// # Errors
    /// When there is no cache, or a setting is not possible.
    pub fn build(self) -> Result<CachedStore, BuildError> {
        let hybrid = self.hybrid.ok_or(BuildError::NoCache)?;
        if let Some(bytes) = self.fetch.fixed()
            && (!bytes.is_power_of_two() || !(UNIT..=16 << 20).contains(&bytes))
        {
            return Err(BuildError::FetchSize(bytes));
        }
        if self.namespace.contains('\0') {
            return Err(BuildError::Namespace(self.namespace));
        }
        let is_immutable = self.revalidate_after.is_none();
        let begun = Instant::now();
        let stats = hybrid.stats();
        let segment = stats.flash.capacity_bytes / stats.flash.segments.max(1);
        if segment < 2 * PART_BYTES[PART_BYTES.len() - 1] {
            return Err(BuildError::Segments(segment));
        }
        let capacity = stats.flash.capacity_bytes + stats.memory.weight_capacity.unwrap_or(0);
        let planner = Planner::new(self.fetch, self.parallel, self.spawn.is_some(), capacity);
        let clock = self.clock.unwrap_or_else(|| Arc::new(move || begun.elapsed()));
        Ok(CachedStore::from_inner(Inner {
            store: self.store,
            catalog: Catalog::new(self.namespace, hybrid, self.metadata_bytes, is_immutable),
            fetches: Arc::default(),
            transfers: Arc::new(Transfers::new(Arc::clone(&clock))),
            planner: Mutex::new(planner),
            loading: Loading::default(),
            pins: Arc::default(),
            counters: crate::stats::Counters::default(),
            spawn: self.spawn,
            clock,
            revalidate_after: self.revalidate_after,
            filter: self.filter,
            in_flight_bytes: self.in_flight_bytes,
            dollars_per_million_requests: self.dollars_per_million_requests,
            dollars_per_gigabyte: self.dollars_per_gigabyte,
        }))
    }
}
