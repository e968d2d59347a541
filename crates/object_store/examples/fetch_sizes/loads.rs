//! A store with the latency and bandwidth of S3 in virtual time, and loads on it.

use std::fmt;
use std::ops::Range;
use std::path::Path as File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use floe_hybrid::Hybrid;
use floe_object_store::{CachedStore, FetchSize};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// Time from a request to its first byte.
pub(crate) const REQUEST: Duration = Duration::from_millis(30);
/// Bytes a second on one connection.
pub(crate) const BANDWIDTH: u64 = 75_000_000;
/// Bytes that arrive together.
const CHUNK: u64 = 64 << 10;

/// Objects of zeroes: the length of each is in its name, as in `scans/7-1048576`. Clones share the
/// counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    pub(crate) requests: Arc<AtomicU64>,
    pub(crate) bytes: Arc<AtomicU64>,
    /// The time at which the link that all connections share is free; none if each has its own.
    pub(crate) link: Option<Arc<Mutex<Instant>>>,
}

/// Returns the time of some bytes on a link.
fn transfer(bytes: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(BANDWIDTH);
    Duration::from_nanos(nanos as u64)
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote")
    }
}

static ZEROES: [u8; CHUNK as usize] = [0; CHUNK as usize];

fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: "Remote".into() }
}

#[async_trait]
impl ObjectStore for Remote {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let size = location.as_ref().rsplit('-').next().and_then(|size| size.parse().ok());
        let size: u64 = size.expect("the name ends with a length");
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: Default::default(),
            size,
            e_tag: Some("\"1\"".into()),
            version: None,
        };
        options.check_preconditions(&meta)?;
        let range = options.range.unwrap_or(GetRange::Offset(0)).as_range(size);
        let range =
            range.map_err(|error| Error::Generic { store: "Remote", source: error.into() })?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(REQUEST).await;
        let bytes = if options.head { 0 } else { range.end - range.start };
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // The time of the whole body is exact: each chunk comes at its time from the start.
        let (begun, link) = (Instant::now(), self.link.clone());
        let body = stream::iter((0..bytes).step_by(CHUNK as usize)).then(move |at| {
            let end = (at + CHUNK).min(bytes);
            let arrival = match &link {
                None => begun + transfer(end),
                Some(link) => {
                    let mut free = link.lock().unwrap();
                    *free = Instant::now().max(*free) + transfer(end - at);
                    *free
                }
            };
            async move {
                tokio::time::sleep_until(arrival).await;
                Ok(Bytes::from_static(&ZEROES[..(end - at) as usize]))
            }
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(body.boxed()),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(not_implemented("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_implemented("put_multipart"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::empty().boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_implemented("list"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_implemented("copy"))
    }
}

/// The sizes of the loads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Reads of 4 KB.
    pub(crate) points: u64,
    /// Objects that are scanned, of 64 MiB.
    pub(crate) scans: u64,
    /// Files of columns, of 32 MiB.
    pub(crate) files: u64,
    /// Files of columns of other lengths, of about 17 MB.
    pub(crate) other_files: u64,
}

/// Reads of 4 KB at random places of 64 objects of 1 GiB.
async fn points(store: &dyn ObjectStore, scale: Scale) {
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..scale.points {
        let path = Path::from(format!("points/{}-{}", random.random_range(0..64), 1u64 << 30));
        let at = random.random_range(0..(1u64 << 30) / 4096) * 4096;
        store.get_range(&path, at..at + 4096).await.unwrap();
    }
}

/// Scans of objects by reads of 128 KiB, one after the other.
async fn scans(store: &dyn ObjectStore, scale: Scale) {
    const LEN: u64 = 64 << 20;
    for object in 0..scale.scans {
        let path = Path::from(format!("scans/{object}-{LEN}"));
        for at in (0..LEN).step_by(128 << 10) {
            store.get_range(&path, at..at + (128 << 10)).await.unwrap();
        }
    }
}

/// Queries of files of columns: the last 8 bytes, a footer of 40 KB, then 3 of 16 columns of each
/// of 8 groups of rows. The columns are the same in all files.
async fn columns(store: &dyn ObjectStore, scale: Scale) {
    const LEN: u64 = 32 << 20;
    const COLUMN: u64 = LEN / 8 / 16;
    for file in 0..scale.files {
        let path = Path::from(format!("columns/date={file}/0-{LEN}"));
        store.get_range(&path, LEN - 8..LEN).await.unwrap();
        store.get_range(&path, LEN - 40_000..LEN - 8).await.unwrap();
        for group in 0..8u64 {
            let chunk = |column: u64| -> Range<u64> {
                let start = (group * 16 + column) * COLUMN;
                start..(start + COLUMN).min(LEN - 40_000)
            };
            store.get_ranges(&path, &[chunk(2), chunk(3), chunk(11)]).await.unwrap();
        }
    }
}

/// Queries of files whose columns differ in length: the last 8 bytes, a footer of 25 KB, then 4 of
/// 12 columns of each of 6 groups of rows, by a call for each group. A third of the groups is left
/// out, as by the statistics in the footer. The planner was not adjusted on this load.
async fn other_columns(store: &dyn ObjectStore, scale: Scale) {
    const GROUPS: usize = 6;
    const COLUMNS: usize = 12;
    const FOOTER: u64 = 25_000;
    let mut random = SmallRng::seed_from_u64(7);
    // From 16 KiB to 1 MiB, as many of each order of magnitude.
    let usual: [f64; COLUMNS] =
        std::array::from_fn(|_| 16_384.0 * 64f64.powf(random.random_range(0.0..1.0)));
    for file in 0..scale.other_files {
        let mut ends = Vec::with_capacity(GROUPS * COLUMNS);
        let mut end = 0;
        for at in 0..GROUPS * COLUMNS {
            end += (usual[at % COLUMNS] * random.random_range(0.8..1.2)) as u64;
            ends.push(end);
        }
        let len = end + FOOTER;
        let path = Path::from(format!("other/date={file}/0-{len}"));
        store.get_range(&path, len - 8..len).await.unwrap();
        store.get_range(&path, end..len - 8).await.unwrap();
        for group in 0..GROUPS {
            if random.random_range(0..3) == 0 {
                continue;
            }
            let chunk = |column: usize| {
                let at = group * COLUMNS + column;
                at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]
            };
            store.get_ranges(&path, &[1, 4, 5, 9].map(chunk)).await.unwrap();
        }
    }
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Points,
    Scans,
    Columns,
    OtherColumns,
    /// Points, scans and columns at once.
    All,
}

/// The result of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Sum of the times that the callers waited.
    pub(crate) time: Duration,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

/// Runs a load on a store without a cache, or on one that fetches by a rule. Connections may share
/// one link.
pub(crate) fn run(
    load: Load,
    fetch: Option<FetchSize>,
    is_shared: bool,
    memory: u64,
    scale: Scale,
) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let mut remote = Remote::default();
    if is_shared {
        remote.link = Some(Arc::new(Mutex::new(runtime.block_on(async { Instant::now() }))));
    }
    let store: Arc<dyn ObjectStore> = match fetch {
        Some(fetch) => Arc::new(caching(&remote, fetch, memory, folder.path())),
        None => Arc::new(remote.clone()),
    };
    let time = runtime.block_on(async {
        let timed = async |load: Load| {
            let begun = Instant::now();
            match load {
                Load::Points => points(&store, scale).await,
                Load::Scans => scans(&store, scale).await,
                Load::Columns => columns(&store, scale).await,
                Load::OtherColumns => other_columns(&store, scale).await,
                Load::All => unreachable!("it is three others"),
            }
            begun.elapsed()
        };
        match load {
            Load::All => {
                let all = [Load::Points, Load::Scans, Load::Columns];
                join_all(all.map(timed)).await.into_iter().sum()
            }
            load => timed(load).await,
        }
    });
    Outcome {
        time,
        requests: remote.requests.load(Ordering::Relaxed),
        bytes: remote.bytes.load(Ordering::Relaxed),
    }
}

/// Makes a caching store whose clock is that of the runtime.
pub(crate) fn caching(
    remote: &Remote,
    fetch: FetchSize,
    memory: u64,
    folder: &File,
) -> CachedStore {
    let cache = Hybrid::builder().memory(memory).flash(folder.join("cache"), 512 << 20);
    let begun = std::sync::OnceLock::new();
    CachedStore::builder(remote.clone())
        .hybrid(cache.open().unwrap())
        .fetch(fetch)
        .immutable()
        .spawn(|task| drop(tokio::spawn(task)))
        .clock(move || begun.get_or_init(Instant::now).elapsed())
        .build()
        .unwrap()
}
