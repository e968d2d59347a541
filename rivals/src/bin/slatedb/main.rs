//! SlateDB above the cache for object storage: time, requests and bytes of its reads from a far
//! store with Floe's cache, with SlateDB's own cache on disk, and with neither.
//!
//! The bucket is a store in memory, on which the latency and the bandwidth of S3 are imposed. A
//! database is filled and closed. Then, with each cache, it is opened, read and closed twice: first
//! with an empty cache, then with what that kept on its drive. SlateDB's cache of blocks in memory
//! is above all of them, and begins empty each time.
//!
//! `cargo run --manifest-path rivals/Cargo.toml --features slatedb --bin floe-rivals-slatedb`

#[path = "../../far.rs"]
mod far;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use floe_hybrid::Hybrid;
use floe_object_store::CachedStore;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use slatedb::config::{ObjectStoreCacheOptions, Settings};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::memory::InMemory;
use slatedb::{Db, DbIterator};

use far::Far;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LATENCY: Duration = Duration::from_millis(30);
/// Bytes a second of a connection.
const BANDWIDTH: u64 = 75_000_000;
/// Entries of the database, of about 1 KB.
const KEYS: u32 = 240_000;
/// Random lookups after an opening.
const LOOKUPS: u32 = 300;
/// Entries that are scanned after the lookups.
const SCANNED: u32 = 2_000;

/// A cache between SlateDB and the bucket.
#[derive(Debug, Clone, Copy)]
enum Cache {
    None,
    /// SlateDB's own cache on disk, of parts of 4 MiB.
    Parts,
    Floe,
}

fn key(number: u32) -> String {
    format!("key-{number:08}")
}

fn value(number: u32) -> Vec<u8> {
    let mut value = vec![0; 1000];
    SmallRng::seed_from_u64(number.into()).fill(&mut value[..]);
    value
}

/// Compaction and the collection of garbage run by the clock. Without them the requests of two runs
/// are the same.
fn settings() -> Settings {
    Settings { compactor_options: None, garbage_collector_options: None, ..Settings::default() }
}

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare())
}

async fn compare() -> Result<()> {
    let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    fill(&bucket).await?;
    println!("| cache | opened | until it is open | requests | reads | requests | MB |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    for (name, cache) in
        [("none", Cache::None), ("SlateDB's, on disk", Cache::Parts), ("Floe's", Cache::Floe)]
    {
        let folder = tempfile::tempdir_in(".")?;
        for opening in ["first", "again"] {
            let far = Far::new(Arc::clone(&bucket), LATENCY, BANDWIDTH);
            let [open, reads] = read(&far, cache, folder.path()).await?;
            println!(
                "| {name} | {opening} | {:.2} s | {} | {:.2} s | {} | {:.1} |",
                open.time.as_secs_f64(),
                open.requests,
                reads.time.as_secs_f64(),
                reads.requests,
                reads.bytes as f64 / 1e6
            );
        }
    }
    Ok(())
}

/// Fills the database in random order, so that each of its tables has keys of the whole range.
async fn fill(bucket: &Arc<dyn ObjectStore>) -> Result<()> {
    let db = Db::builder("db", Arc::clone(bucket)).with_settings(settings()).build().await?;
    let mut numbers: Vec<u32> = (0..KEYS).collect();
    numbers.shuffle(&mut SmallRng::seed_from_u64(1));
    for number in numbers {
        db.put(key(number), value(number)).await?;
    }
    Ok(db.close().await?)
}

/// Time, requests and bytes of a phase.
struct Phase {
    time: Duration,
    requests: u64,
    bytes: u64,
}

async fn phase<T>(far: &Far, work: impl Future<Output = Result<T>>) -> Result<(Phase, T)> {
    let begun = Instant::now();
    let (requests, bytes) =
        (far.requests.load(Ordering::Relaxed), far.bytes.load(Ordering::Relaxed));
    let result = work.await?;
    let phase = Phase {
        time: begun.elapsed(),
        requests: far.requests.load(Ordering::Relaxed) - requests,
        bytes: far.bytes.load(Ordering::Relaxed) - bytes,
    };
    Ok((phase, result))
}

/// Opens the database above a store, reads, and closes it.
async fn use_database(
    far: &Far,
    store: Arc<dyn ObjectStore>,
    settings: Settings,
) -> Result<[Phase; 2]> {
    let open = async { Ok(Db::builder("db", store).with_settings(settings).build().await?) };
    let (open, db) = phase(far, open).await?;
    let (reads, ()) = phase(far, reads(&db)).await?;
    db.close().await?;
    Ok([open, reads])
}

/// Opens the database behind a cache, reads, and closes both. Returns the opening and the reads.
async fn read(far: &Far, cache: Cache, folder: &Path) -> Result<[Phase; 2]> {
    let mut settings = settings();
    let store: Arc<dyn ObjectStore> = Arc::new(far.clone());
    match cache {
        Cache::None => use_database(far, store, settings).await,
        Cache::Parts => {
            settings.object_store_cache_options = ObjectStoreCacheOptions {
                root_folder: Some(folder.to_owned()),
                ..ObjectStoreCacheOptions::default()
            };
            use_database(far, store, settings).await
        }
        Cache::Floe => {
            let flash = folder.join("floe");
            let cache = Hybrid::builder().memory(32 << 20).flash(flash, 1 << 30).open()?;
            let store = CachedStore::builder(store)
                .hybrid(cache.clone())
                .immutable()
                .filter(|location| location.as_ref().contains("/compacted/")) // tables
                .spawn(|task| drop(tokio::spawn(task)))
                .build()?;
            let phases = use_database(far, Arc::new(store), settings).await?;
            cache.close()?;
            Ok(phases)
        }
    }
}

/// Looks up entries at random, then scans some, and compares all with what was put.
async fn reads(db: &Db) -> Result<()> {
    let mut random = SmallRng::seed_from_u64(2);
    for _ in 0..LOOKUPS {
        let number = random.random_range(0..KEYS);
        assert_eq!(db.get(key(number)).await?.as_deref(), Some(&value(number)[..]));
    }
    let first = random.random_range(0..KEYS - SCANNED);
    let mut entries: DbIterator = db.scan(key(first)..key(first + SCANNED)).await?;
    for number in first..first + SCANNED {
        let entry = entries.next().await?.expect("an entry for each key");
        assert!(entry.key == key(number) && entry.value == value(number));
    }
    assert!(entries.next().await?.is_none());
    Ok(())
}
