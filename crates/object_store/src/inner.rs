//! [`Inner`]: the state that all handles of a store share, and requests for metadata.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::fast::RandomState;
use foldhash::quality::FixedState;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore};

use crate::catalog::{Catalog, lock};
use crate::failure::Fault;
use crate::fetches::{Answer, Fetches, Waiting};
use crate::identity::Known;
use crate::parts::UNIT;
use crate::pins::Pins;
use crate::planner::Planner;
use crate::stats::Counters;
use crate::transfers::{Clock, Transfers};

/// A task of a runtime, for requests that go on after the read that began them.
pub type Task = BoxFuture<'static, ()>;

/// Returns whether an object is cached.
pub(crate) type Filter = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// Hands a task to a runtime.
pub(crate) type Spawn = Arc<dyn Fn(Task) + Send + Sync>;

/// Metadata, and the fetch of the bytes that came with it.
pub(crate) type Opened = (Arc<Known>, Option<Waiting>);

type Load = Shared<BoxFuture<'static, Result<Opened, Arc<Error>>>>;

/// The kind of a request for metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LoadKind {
    /// By the first bytes of an object.
    Bytes,
    /// For metadata alone.
    Head,
}

struct LoadEntry {
    id: u64,
    /// Time at which it began.
    started: Duration,
    load: WeakShared<BoxFuture<'static, Result<Opened, Arc<Error>>>>,
}

/// Requests for metadata under way.
#[derive(Default)]
pub(crate) struct Loading {
    entries: Mutex<HashMap<(Path, LoadKind), LoadEntry, RandomState>>,
    next: AtomicU64,
}

/// Removes a load from the table when it ends or nobody waits for it.
struct LoadEnd {
    inner: Arc<Inner>,
    key: (Path, LoadKind),
    id: u64,
}

impl Drop for LoadEnd {
    fn drop(&mut self) {
        let mut entries = lock(&self.inner.loading.entries);
        if entries.get(&self.key).is_some_and(|entry| entry.id == self.id) {
            entries.remove(&self.key);
        }
    }
}

/// Largest first request for an object whose size is not known.
const FIRST_BYTES: u64 = 4 << 20;

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) catalog: Catalog,
    pub(crate) fetches: Arc<Fetches>,
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) planner: Mutex<Planner>,
    pub(crate) loading: Loading,
    pub(crate) pins: Arc<Pins>,
    pub(crate) counters: Counters,
    pub(crate) spawn: Option<Spawn>,
    pub(crate) clock: Clock,
    /// Age from which metadata is asked for again. `None`: objects are immutable.
    pub(crate) revalidate_after: Option<Duration>,
    /// The objects that are cached. `None`: all.
    pub(crate) filter: Option<Filter>,
    /// Bytes of requests under way from which misses fetch only what they need.
    pub(crate) in_flight_bytes: u64,
    pub(crate) dollars_per_million_requests: f64,
    pub(crate) dollars_per_gigabyte: f64,
}

impl Inner {
    /// Returns the time of the program, which is not zero.
    pub(crate) fn now(&self) -> Duration {
        (self.clock)() + Duration::from_secs(1)
    }

    /// Returns whether an object is cached.
    pub(crate) fn is_cached(&self, location: &Path) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(location))
    }

    /// Returns the hash of the part of a location that objects of one kind share: its folder, up
    /// to the first partition such as `date=2026-11-27`.
    pub(crate) fn prefix_of(location: &Path) -> u64 {
        let path = location.as_ref();
        let end = match path.find('=') {
            Some(partition) => path[..partition].rfind('/'),
            None => path.rfind('/'),
        };
        FixedState::default().hash_one(&path[..end.unwrap_or(0)])
    }

    /// Returns whether the cache or a pin may have a part.
    pub(crate) fn has_part(&self, key: &[u8]) -> bool {
        self.catalog.hybrid.contains(key) || self.pins.has(key)
    }

    /// Sends a request for bytes.
    pub(crate) async fn request(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> Result<Answer, Error> {
        let started = self.now();
        let counter =
            if options.head { &self.counters.head_requests } else { &self.counters.requests };
        counter.fetch_add(1, Relaxed);
        let result = self.store.get_opts(location, options).await;
        if result.is_err() {
            self.counters.failed_requests.fetch_add(1, Relaxed);
        }
        Ok(Answer { result: result?, started, transfer: self.transfers.begin() })
    }

    /// Returns the version of an object that is known, or that its store has. The first request for
    /// an object is for the bytes of a range, too.
    pub(crate) async fn open(
        self: &Arc<Self>,
        location: &Path,
        range: Option<&GetRange>,
    ) -> Result<Opened, Arc<Error>> {
        if let Some(known) = self.catalog.find(location).await {
            return Ok((known, None));
        }
        let first = self.first_range(location, range);
        let kind = if first.is_some() { LoadKind::Bytes } else { LoadKind::Head };
        self.load(location, kind, first, Duration::ZERO).await
    }

    /// Returns the version that the store has at a time or later.
    pub(crate) async fn revalidate(
        self: &Arc<Self>,
        location: &Path,
        since: Duration,
    ) -> Result<Arc<Known>, Arc<Error>> {
        if let Some(known) = self.catalog.in_memory(location)
            && known.was_valid_at(since)
        {
            return Ok(known);
        }
        Ok(self.load(location, LoadKind::Head, None, since).await?.0)
    }

    /// Loads metadata once for all that ask, unless the load under way began before `since`.
    async fn load(
        self: &Arc<Self>,
        location: &Path,
        kind: LoadKind,
        first: Option<GetRange>,
        since: Duration,
    ) -> Result<Opened, Arc<Error>> {
        let key = (location.clone(), kind);
        let load = {
            let mut entries = lock(&self.loading.entries);
            let under_way = entries
                .get(&key)
                .filter(|entry| entry.started >= since)
                .and_then(|entry| entry.load.upgrade());
            match under_way {
                Some(load) => load,
                None => {
                    let id = self.loading.next.fetch_add(1, Relaxed);
                    let end = LoadEnd { inner: Arc::clone(self), key: key.clone(), id };
                    let load: Load = begin_load(end, first).boxed().shared();
                    let weak = load.downgrade().expect("it was not polled");
                    entries.insert(key, LoadEntry { id, started: self.now(), load: weak });
                    load
                }
            }
        };
        load.await
    }

    /// Has later reads wait for no load that began before a change.
    pub(crate) fn forget_loads(&self, location: &Path) {
        let mut entries = lock(&self.loading.entries);
        entries.remove(&(location.clone(), LoadKind::Bytes));
        entries.remove(&(location.clone(), LoadKind::Head));
    }

    /// Returns the range of the first request for an object, or `None` if its metadata must be
    /// known first.
    fn first_range(&self, location: &Path, range: Option<&GetRange>) -> Option<GetRange> {
        let advice = lock(&self.planner).first(Self::prefix_of(location), range);
        let block = advice.block.min(FIRST_BYTES);
        let bounded = |start: u64, end: u64| {
            let start = start / UNIT * UNIT;
            let end = end.min(start + FIRST_BYTES).next_multiple_of(block).max(start + block);
            Some(GetRange::Bounded(start..end))
        };
        match range {
            None => bounded(0, FIRST_BYTES),
            Some(GetRange::Offset(start)) => bounded(*start, start.checked_add(FIRST_BYTES)?),
            Some(GetRange::Bounded(range)) if range.start < range.end => {
                bounded(range.start, range.end.min(u64::MAX / 2))
            }
            Some(GetRange::Suffix(bytes)) if *bytes > 0 => {
                // The first bytes may be a part of a unit.
                Some(GetRange::Suffix(bytes.saturating_add(UNIT).min(FIRST_BYTES).max(block)))
            }
            Some(_) => None,
        }
    }
}

/// Loads the metadata of an object.
async fn begin_load(end: LoadEnd, first: Option<GetRange>) -> Result<Opened, Arc<Error>> {
    let (inner, (location, _)) = (Arc::clone(&end.inner), end.key.clone());
    let token = inner.catalog.token(&location);
    if let Some(range) = first {
        let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
        match inner.request(&location, options).await {
            Ok(answer) => {
                let meta = answer.result.meta.clone();
                let sent = answer.result.range.clone();
                if let Some(expected) = range.as_range(meta.size).ok().filter(|all| *all != sent) {
                    return Err(Arc::new(Fault::Range { location, expected, sent }.into()));
                }
                let attributes = answer.result.attributes.clone();
                let known = inner.catalog.known(meta, attributes, token, answer.started);
                inner.note_version(&known);
                inner.catalog.keep(&known, token).await;
                let waiting = inner.join_answer(&known, answer);
                return Ok((known, waiting));
            }
            Err(
                error @ (Error::NotFound { .. }
                | Error::PermissionDenied { .. }
                | Error::Unauthenticated { .. }),
            ) => return Err(Arc::new(error)),
            // The range may be wrong for the object, or be of a kind that the store lacks.
            Err(_) => {}
        }
    }
    let head = GetOptions { head: true, ..GetOptions::default() };
    let answer = match inner.request(&location, head).await {
        Ok(answer) => answer,
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                inner.catalog.forget(&location);
            }
            return Err(Arc::new(error));
        }
    };
    let (meta, attributes) = (answer.result.meta, answer.result.attributes);
    if let Some(known) = inner.catalog.in_memory(&location)
        && known.meta == meta
        && known.attributes == attributes
    {
        known.validate(answer.started);
        return Ok((known, None));
    }
    let known = inner.catalog.known(meta, attributes, token, answer.started);
    inner.note_version(&known);
    inner.catalog.keep(&known, token).await;
    Ok((known, None))
}

impl Inner {
    fn note_version(&self, known: &Known) {
        if !known.is_versioned() {
            self.counters.unversioned.fetch_add(1, Relaxed);
        }
    }
}
