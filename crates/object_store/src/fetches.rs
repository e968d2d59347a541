//! [`Fetches`]: requests for bytes of objects that are under way, shared by all that wait.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use object_store::GetResult;

use crate::catalog::lock;
use crate::failure::Failure;
use crate::parts::{overlap, union, without};
use crate::transfers::Transfer;

/// The future that carries a request out. Whoever waits for the request polls it.
pub(crate) type Driver = Shared<BoxFuture<'static, Result<(), Failure>>>;

/// Bytes of an object by their offsets.
pub(crate) type Pieces = BTreeMap<u64, Bytes>;

/// A request for bytes of one version of an object.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// The bytes that are kept, in ascending order. The request may have others between them.
    pub(crate) covers: Vec<Range<u64>>,
    arrived: Mutex<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    pieces: Pieces,
    /// Waiters, woken at each piece.
    wakers: Vec<Waker>,
}

impl Fetch {
    pub(crate) fn new(covers: Vec<Range<u64>>) -> Self {
        Self { covers, arrived: Mutex::default() }
    }

    /// Adds bytes that have arrived.
    pub(crate) fn arrive(&self, offset: u64, bytes: Bytes) {
        let wakers = {
            let mut arrived = lock(&self.arrived);
            arrived.pieces.insert(offset, bytes);
            std::mem::take(&mut arrived.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Copies what has arrived of ascending ranges.
    pub(crate) fn take(&self, needed: &[Range<u64>], into: &mut Pieces) {
        for (offset, bytes) in &lock(&self.arrived).pieces {
            let piece = *offset..offset + bytes.len() as u64;
            if needed.iter().any(|needed| overlap(needed, &piece)) {
                into.insert(*offset, bytes.clone());
            }
        }
    }

    /// Returns whether all has arrived that the fetch covers of ascending ranges.
    fn has(arrived: &Arrived, covers: &[Range<u64>], needed: &[Range<u64>]) -> bool {
        let there: Vec<_> = ranges(&arrived.pieces);
        let lacking = without(covers, &there);
        !lacking.iter().any(|lacking| needed.iter().any(|needed| overlap(lacking, needed)))
    }
}

/// Returns the ranges of pieces.
pub(crate) fn ranges(pieces: &Pieces) -> Vec<Range<u64>> {
    let mut ranges = Vec::with_capacity(pieces.len());
    for (offset, bytes) in pieces {
        crate::parts::push(&mut ranges, *offset..offset + bytes.len() as u64);
    }
    ranges
}

/// A place in a fetch. The request goes on while one is held, or a task drives it.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) driver: Driver,
}

impl Waiting {
    /// Waits for the end of the request.
    pub(crate) async fn finish(&self) -> Result<(), Failure> {
        self.driver.clone().await
    }

    /// Waits until all has arrived that the fetch covers of ascending ranges.
    pub(crate) async fn wait_for(&self, needed: &[Range<u64>]) -> Result<(), Failure> {
        let mut driver = self.driver.clone();
        poll_fn(|context| {
            if self.is_there(needed, context.waker()) {
                return Poll::Ready(Ok(()));
            }
            match driver.poll_unpin(context) {
                Poll::Ready(end) => Poll::Ready(end),
                Poll::Pending if self.is_there(needed, context.waker()) => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl Waiting {
    /// Returns whether all has arrived that the fetch covers of ascending ranges. Otherwise the
    /// waker is woken by the next piece.
    fn is_there(&self, needed: &[Range<u64>], waker: &Waker) -> bool {
        let mut arrived = lock(&self.fetch.arrived);
        if Fetch::has(&arrived, &self.fetch.covers, needed) {
            return true;
        }
        if !arrived.wakers.iter().any(|old| old.will_wake(waker)) {
            arrived.wakers.push(waker.clone());
        }
        false
    }
}

struct Entry {
    id: u64,
    fetch: Arc<Fetch>,
    driver: WeakShared<BoxFuture<'static, Result<(), Failure>>>,
}

/// All fetches, by the keys of the versions.
#[derive(Default)]
pub(crate) struct Fetches {
    entries: Mutex<HashMap<Arc<[u8]>, Vec<Entry>, RandomState>>,
    next: AtomicU64,
    /// Bytes of all requests under way.
    bytes: AtomicU64,
}

/// Removes a fetch from the table when its request ends or nobody waits for it any more.
pub(crate) struct FetchGuard {
    fetches: Arc<Fetches>,
    version: Arc<[u8]>,
    id: u64,
    bytes: u64,
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        self.fetches.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut entries = lock(&self.fetches.entries);
        if let Some(of_version) = entries.get_mut(&self.version) {
            of_version.retain(|entry| entry.id != self.id);
            if of_version.is_empty() {
                entries.remove(&self.version);
            }
        }
    }
}

impl Fetches {
    /// Finds the fetches that bring bytes of ascending ranges, and has `launch` begin others. It
    /// gets the bytes that are under way. Returns the old fetches and the new ones.
    pub(crate) fn join_fetches(
        self: &Arc<Self>,
        version: &Arc<[u8]>,
        needed: &[Range<u64>],
        launch: impl FnOnce(&[Range<u64>]) -> Vec<NewFetch>,
    ) -> (Vec<Waiting>, Vec<Waiting>) {
        // Declared before the lock, and so dropped after it: the end of a fetch takes the lock.
        let mut old: Vec<Waiting>;
        let mut other: Vec<Waiting>;
        let mut entries = lock(&self.entries);
        let of_version = entries.entry(Arc::clone(version)).or_default();
        let under_way = of_version.iter().filter_map(|entry| {
            Some(Waiting { fetch: Arc::clone(&entry.fetch), driver: entry.driver.upgrade()? })
        });
        (old, other) = under_way.partition(|waiting| {
            let covers = &waiting.fetch.covers;
            covers.iter().any(|cover| needed.iter().any(|needed| overlap(cover, needed)))
        });
        let covers =
            old.iter().chain(&other).flat_map(|waiting| waiting.fetch.covers.iter().cloned());
        let new: Vec<Waiting> = launch(&union(covers.collect()))
            .into_iter()
            .map(|new| {
                let driver = new.driver.shared();
                let weak = driver.downgrade().expect("it was not polled");
                let fetch = Arc::clone(&new.fetch);
                of_version.push(Entry { id: new.id, fetch, driver: weak });
                Waiting { fetch: new.fetch, driver }
            })
            .collect();
        if of_version.is_empty() {
            entries.remove(version);
        }
        drop(entries);
        other.clear();
        (std::mem::take(&mut old), new)
    }

    /// Makes the guard of a new fetch, which its driver owns.
    pub(crate) fn prepare(self: &Arc<Self>, version: &Arc<[u8]>, bytes: u64) -> FetchGuard {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        FetchGuard { fetches: Arc::clone(self), version: Arc::clone(version), id, bytes }
    }

    /// Bytes of all requests under way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl FetchGuard {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// A request that was answered up to its body.
pub(crate) struct Answer {
    pub(crate) result: GetResult,
    pub(crate) started: Duration,
    pub(crate) transfer: Transfer,
}

/// A fetch whose request has not begun.
pub(crate) struct NewFetch {
    pub(crate) id: u64,
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) driver: BoxFuture<'static, Result<(), Failure>>,
}
