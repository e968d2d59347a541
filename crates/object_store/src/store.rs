//! [`CachedStore`]: an object store whose reads come from memory and flash.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, UploadPart,
};

use crate::catalog::lock;
use crate::failure::{Failure, Fault, share};
use crate::fetches::Pieces;
use crate::identity::Known;
use crate::inner::{Inner, Opened};
use crate::parts::{align, allocate};
use crate::pins::Pin;
use crate::read::{concatenate, slices};
use crate::stats::Stats;

/// Times that a read begins anew because its object was replaced, before it fails.
const ATTEMPTS: u32 = 16;
/// Windows of a stream that are read at once: one that is consumed, and the next.
const WINDOWS: usize = 2;

/// An [`ObjectStore`] that keeps what it reads from another one in a
/// [`Hybrid`](floe_hybrid::Hybrid), in memory and on flash. Clones share it.
///
/// ```
/// # use floe_object_store::CachedStore;
/// # use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("cache");
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let cache = floe_hybrid::Hybrid::builder().memory(8 << 20).flash(file, 64 << 20).open()?;
/// let store = CachedStore::builder(InMemory::new())   // or AmazonS3 and the like
///     .hybrid(cache)
///     .spawn(|task| { tokio::spawn(task); })
///     .build()?;
/// let path = Path::from("table/part-0.parquet");
/// store.put(&path, "0123456789".into()).await?;
/// assert_eq!(store.get_range(&path, 2..5).await?, "234");
/// assert_eq!(store.get_range(&path, 5..7).await?, "56");
/// assert_eq!((store.stats().requests, store.stats().hits), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CachedStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedStore")
            .field("store", &self.inner.store)
            .field("stats", &self.stats())
            .finish()
    }
}

impl fmt::Display for CachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedStore({})", self.inner.store)
    }
}

/// A change of an object through this store. What is known about it is forgotten when it begins
/// and when it ends, also if the call is dropped.
struct Change {
    inner: Arc<Inner>,
    location: Path,
}

impl Change {
    async fn begin(inner: &Arc<Inner>, location: &Path) -> Self {
        inner.catalog.begin_change(location);
        let change = Self { inner: Arc::clone(inner), location: location.clone() };
        inner.catalog.remove_kept(location).await;
        change
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.inner.catalog.end_change(&self.location);
        self.inner.forget_loads(&self.location);
    }
}

impl CachedStore {
    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Brings ranges of an object into the cache, by windows. Ranges may reach beyond its end.
    ///
    /// # Errors
    /// The error of the store; `NotSupported` for an object that
    /// [`filter`](crate::Builder::filter) leaves out.
    pub async fn prefetch(&self, location: &Path, ranges: &[Range<u64>]) -> Result<()> {
        self.check_filter(location)?;
        self.inner.counters.reads.fetch_add(1, Relaxed);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                // No more than a window is in memory at once.
                let window = lock(&self.inner.planner).window();
                let end = range.end.min(at.saturating_add(window));
                let (known, ..) = self.read_clamped(location, &[at..end]).await?;
                at = if end < known.meta.size { end } else { range.end };
            }
        }
        Ok(())
    }

    /// Keeps ranges of an object in memory, beside the limit of the cache, until the returned pin
    /// is dropped. Ranges may reach beyond the object's end. If the object is replaced, the pin
    /// keeps the bytes of the version that it was made of, which are then read no more.
    ///
    /// # Errors
    /// The error of the store; `NotSupported` for an object that
    /// [`filter`](crate::Builder::filter) leaves out.
    pub async fn pin(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Pin> {
        self.check_filter(location)?;
        self.inner.counters.reads.fetch_add(1, Relaxed);
        let (known, ranges, pieces) = self.read_clamped(location, ranges).await?;
        let len = known.meta.size;
        let aligned = crate::parts::union(ranges.iter().map(|range| align(range, len)).collect());
        let mut pin = Pin::new(Arc::clone(&self.inner.pins), known.meta.clone());
        for part in aligned.iter().flat_map(|range| allocate(range, len)) {
            pin.add(known.part_key(part), concatenate(&pieces, &part.range(len)));
        }
        Ok(pin)
    }

    /// Removes all objects below a prefix from the cache, and the object that the prefix names.
    /// Pinned bytes stay. Returns the number of records that were removed, parts and metadata.
    ///
    /// The call blocks its thread. It reads the keys of all of flash: see
    /// [`Hybrid::remove_if`](floe_hybrid::Hybrid::remove_if).
    ///
    /// # Errors
    /// When the flash has failed or is closed.
    pub fn evict(&self, prefix: &Path) -> std::io::Result<u64> {
        self.inner.catalog.evict(prefix)
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Stats {
        let inner = &*self.inner;
        let counters = &inner.counters;
        let (requests, heads) =
            (counters.requests.load(Relaxed), counters.head_requests.load(Relaxed));
        let fetched_bytes = counters.fetched_bytes.load(Relaxed);
        let (request, byte, parallel) = {
            let planner = lock(&inner.planner);
            (planner.prices.request(), planner.prices.byte(), planner.lanes())
        };
        Stats {
            reads: counters.reads.load(Relaxed),
            read_bytes: counters.read_bytes.load(Relaxed),
            hits: counters.hits.load(Relaxed),
            misses: counters.misses.load(Relaxed),
            cached_bytes: counters.cached_bytes.load(Relaxed),
            requests,
            head_requests: heads,
            failed_requests: counters.failed_requests.load(Relaxed),
            fetched_bytes,
            replaced: counters.replaced.load(Relaxed),
            unversioned: counters.unversioned.load(Relaxed),
            bypassed: counters.bypassed.load(Relaxed),
            pinned_bytes: inner.pins.bytes(),
            in_flight_bytes: inner.fetches.bytes(),
            request_time: Duration::from_secs_f64(request),
            bytes_per_second: 1.0 / byte,
            parallel,
            dollars: (requests + heads) as f64 / 1e6 * inner.dollars_per_million_requests
                + fetched_bytes as f64 / 1e9 * inner.dollars_per_gigabyte,
        }
    }

    fn check_filter(&self, location: &Path) -> Result<()> {
        match self.inner.is_cached(location) {
            true => Ok(()),
            false => Err(Fault::Filtered { location: location.clone() }.into()),
        }
    }

    /// Returns the time from which what is known must be valid for a read that begins now.
    fn oldest(&self, now: Duration) -> Duration {
        self.inner.revalidate_after.map_or(Duration::ZERO, |age| now.saturating_sub(age))
    }

    /// Reads ranges, cut at the end of the object.
    async fn read_clamped(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<(Arc<Known>, Vec<Range<u64>>, Pieces)> {
        let first = ranges.iter().find(|range| !range.is_empty()).cloned().map(GetRange::Bounded);
        self.attempts(location, first.as_ref(), |known| {
            let cut = ranges.iter().map(|range| range.start..range.end.min(known.meta.size));
            Ok(Some(cut.filter(|range| !range.is_empty()).collect()))
        })
        .await
    }

    /// Reads ranges of one version of an object. `choose` gets each version that is found and
    /// returns the ranges, or `None` if what is known must be asked for again.
    async fn attempts(
        &self,
        location: &Path,
        first: Option<&GetRange>,
        mut choose: impl FnMut(&Known) -> Result<Option<Vec<Range<u64>>>>,
    ) -> Result<(Arc<Known>, Vec<Range<u64>>, Pieces)> {
        let inner = &self.inner;
        let begun = inner.now();
        let oldest = self.oldest(begun);
        for _ in 0..ATTEMPTS {
            let opened = inner.open(location, first).await;
            // The waiting keeps the bytes that came with the metadata until they are read.
            let (known, _waiting): Opened = opened.map_err(|error| share(&error))?;
            let Some(ranges) = choose(&known)? else {
                inner.revalidate(location, begun).await.map_err(|error| share(&error))?;
                continue;
            };
            match inner.read(&known, &ranges, true).await {
                Ok(pieces) if known.was_valid_at(oldest) => return Ok((known, ranges, pieces)),
                Ok(_) => {
                    inner.revalidate(location, oldest).await.map_err(|error| share(&error))?;
                }
                Err(Failure::Changed) => {
                    inner.counters.replaced.fetch_add(1, Relaxed);
                    inner.catalog.forget(location);
                }
                Err(Failure::Store(error)) => return Err(share(&error)),
            }
        }
        Err(Fault::Replaced { location: location.clone(), times: ATTEMPTS }.into())
    }

    /// Returns metadata that is valid from a time on.
    async fn metadata(&self, location: &Path, since: Duration) -> Result<Arc<Known>> {
        if let Some(known) = self.inner.catalog.find(location).await
            && known.was_valid_at(since)
        {
            return Ok(known);
        }
        self.inner.revalidate(location, since).await.map_err(|error| share(&error))
    }

    /// Streams the rest of a range, window by window.
    fn stream(
        &self,
        known: &Arc<Known>,
        range: Range<u64>,
        window: u64,
    ) -> BoxStream<'static, Result<Bytes>> {
        let (inner, known) = (Arc::clone(&self.inner), Arc::clone(known));
        let starts = (range.start..range.end).step_by(window as usize);
        stream::iter(starts)
            .map(move |start| {
                let (inner, known) = (Arc::clone(&inner), Arc::clone(&known));
                let window = start..(start + window).min(range.end);
                async move {
                    match inner.read(&known, std::slice::from_ref(&window), false).await {
                        Ok(pieces) => Ok(stream::iter(slices(&pieces, &window)).map(Ok)),
                        Err(failure) => Err(failure.in_stream(&known.meta)),
                    }
                }
            })
            .buffered(WINDOWS)
            .try_flatten()
            .boxed()
    }
}

/// Returns whether the caller asks whether the object has changed.
fn asks_for_change(options: &GetOptions) -> bool {
    options.if_none_match.is_some() || options.if_modified_since.is_some()
}

/// Returns the bytes that a request is for, or `None` if only the store can answer it.
fn resolve(range: Option<&GetRange>, len: u64) -> Option<Range<u64>> {
    match range {
        None => Some(0..len),
        Some(GetRange::Suffix(0)) => None,
        Some(range) => range.as_range(len).ok(),
    }
}

#[async_trait]
impl ObjectStore for CachedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let _change = Change::begin(&self.inner, location).await;
        self.inner.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.store.put_multipart_opts(location, options).await?;
        let inner = Arc::clone(&self.inner);
        Ok(Box::new(Upload { upload, inner, location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let inner = &self.inner;
        if options.version.is_some() || !inner.is_cached(location) {
            inner.counters.bypassed.fetch_add(1, Relaxed);
            return inner.store.get_opts(location, options).await;
        }
        let begun = inner.now();
        // Whoever asks for a change does not want to learn of it later.
        let oldest = match asks_for_change(&options) && inner.revalidate_after.is_some() {
            true => begun,
            false => self.oldest(begun),
        };
        if options.head {
            let mut known = self.metadata(location, oldest).await?;
            if options.check_preconditions(&known.meta).is_err() {
                known = self.metadata(location, begun).await?;
                options.check_preconditions(&known.meta)?;
            }
            let range = 0..known.meta.size;
            return Ok(Self::result(&known, range, stream::empty().boxed()));
        }
        inner.counters.reads.fetch_add(1, Relaxed);
        let window = lock(&inner.planner).window();
        let mut is_for_store = false;
        let read = self.attempts(location, options.range.as_ref(), |known| {
            // That something is absent, or the same as before, is never answered from the cache.
            let check = options.check_preconditions(&known.meta);
            let range = resolve(options.range.as_ref(), known.meta.size);
            let is_denial = check.is_err() || range.is_none();
            if (is_denial || oldest == begun) && !known.was_valid_at(begun) {
                return Ok(None);
            }
            check?;
            is_for_store = range.is_none();
            Ok(Some(range.map(|range| first_window(&range, window)).into_iter().collect()))
        });
        let (known, _, pieces) = read.await?;
        if is_for_store {
            return inner.store.get_opts(location, options).await;
        }
        let Some(range) = resolve(options.range.as_ref(), known.meta.size) else {
            return inner.store.get_opts(location, options).await;
        };
        inner.counters.read_bytes.fetch_add(range.end - range.start, Relaxed);
        let first = first_window(&range, window);
        let head = stream::iter(slices(&pieces, &first)).map(Ok);
        let body = match first.end == range.end {
            true => head.boxed(),
            false => head.chain(self.stream(&known, first.end..range.end, window)).boxed(),
        };
        Ok(Self::result(&known, range, body))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let inner = &self.inner;
        if !inner.is_cached(location) {
            inner.counters.bypassed.fetch_add(1, Relaxed);
            return inner.store.get_ranges(location, ranges).await;
        }
        let begun = inner.now();
        inner.counters.reads.fetch_add(1, Relaxed);
        let whole = Self::hull(ranges).map(GetRange::Bounded);
        // A range that only the store can answer, with an error, is the other result.
        let cut = |known: &Known, range: &Range<u64>| {
            let cut = GetRange::Bounded(range.clone()).as_range(known.meta.size);
            cut.map_err(|_| range.clone())
        };
        let mut wrong = None;
        let read = self.attempts(location, whole.as_ref(), |known| {
            let cut = ranges.iter().map(|range| cut(known, range));
            let cut: std::result::Result<Vec<_>, _> = cut.collect();
            if cut.is_err() && !known.was_valid_at(begun) {
                return Ok(None);
            }
            wrong = cut.as_ref().err().cloned();
            Ok(Some(cut.unwrap_or_default()))
        });
        let (_, ranges_read, pieces) = read.await?;
        if let Some(wrong) = wrong {
            let options = GetOptions::new().with_range(Some(wrong));
            inner.store.get_opts(location, options).await?; // fails, as the range is wrong
            inner.catalog.forget(location);
            return Err(Fault::Replaced { location: location.clone(), times: 1 }.into());
        }
        let bytes: Vec<Bytes> =
            ranges_read.iter().map(|range| concatenate(&pieces, range)).collect();
        let sum = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        inner.counters.read_bytes.fetch_add(sum, Relaxed);
        Ok(bytes)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.inner);
        let changes: Arc<Mutex<Vec<Change>>> = Arc::default();
        let begun = Arc::clone(&changes);
        let locations = locations.then(move |location| {
            let (inner, begun) = (Arc::clone(&inner), Arc::clone(&begun));
            async move {
                if let Ok(location) = &location {
                    let change = Change::begin(&inner, location).await;
                    lock(&begun).push(change);
                }
                location
            }
        });
        let deleted = self.inner.store.delete_stream(locations.boxed());
        // Changes whose end is not told end with the stream.
        deleted
            .inspect(move |deleted| {
                let Ok(location) = deleted else { return };
                let mut changes = lock(&changes);
                if let Some(at) = changes.iter().position(|change| change.location == *location) {
                    changes.remove(at);
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.observe(self.inner.store.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.observe(self.inner.store.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (token, begun) = (self.inner.catalog.now(), self.inner.now());
        let listed = self.inner.store.list_with_delimiter(prefix).await?;
        for meta in &listed.objects {
            self.inner.catalog.observe(meta, token, begun);
        }
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _change = Change::begin(&self.inner, to).await;
        self.inner.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let _changes =
            (Change::begin(&self.inner, from).await, Change::begin(&self.inner, to).await);
        self.inner.store.rename_opts(from, to, options).await
    }
}

impl CachedStore {
    fn result(
        known: &Known,
        range: Range<u64>,
        body: BoxStream<'static, Result<Bytes>>,
    ) -> GetResult {
        GetResult {
            payload: GetResultPayload::Stream(body),
            meta: known.meta.clone(),
            range,
            attributes: known.attributes.clone(),
            extensions: Default::default(),
        }
    }

    /// Returns the bytes from the first range to the last.
    fn hull(ranges: &[Range<u64>]) -> Option<Range<u64>> {
        let start = ranges.iter().map(|range| range.start).min()?;
        Some(start..ranges.iter().map(|range| range.end).max()?)
    }

    /// Compares a list with what is known, as it passes.
    fn observe(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let inner = Arc::clone(&self.inner);
        let (token, begun) = (inner.catalog.now(), inner.now());
        listed.inspect_ok(move |meta| inner.catalog.observe(meta, token, begun)).boxed()
    }
}

/// Returns the bytes of a range that are read before its stream begins.
fn first_window(range: &Range<u64>, window: u64) -> Range<u64> {
    range.start..range.end.min(range.start.saturating_add(window))
}

/// An upload in parts, whose end changes the object.
struct Upload {
    upload: Box<dyn MultipartUpload>,
    inner: Arc<Inner>,
    location: Path,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("upload", &self.upload).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let _change = Change::begin(&self.inner, &self.location).await;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
