//! Fetches of fixed and of learned sizes from a real S3 server, over sockets and with signatures.
//!
//! The bucket, its region and the keys are those of the environment, as the crate `object_store`
//! reads them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, …). The objects of the loads are put below the
//! prefix `floe-rivals/` first. For a server on the same machine, `--latency` and `--bandwidth`
//! impose the time of a far one on each request.

mod check;
#[path = "../../far.rs"]
mod far;
#[path = "../../objects.rs"]
mod objects;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Parser;
use floe_hybrid::Hybrid;
use floe_object_store::{CachedStore, FetchSize};
use futures_util::future::join_all;
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStore, ObjectStoreExt};

use far::Far;
use objects::{POINTS, SCANS, content, path, points, read, scans};

/// Compares fetches of fixed and of learned sizes from S3.
#[derive(Debug, Parser)]
struct Args {
    /// The bucket.
    #[arg(long)]
    bucket: String,
    /// The folder of the cache's file.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// Milliseconds that are added to each request.
    #[arg(long, default_value_t = 30)]
    latency: u64,
    /// Megabytes a second that a connection has at most.
    #[arg(long, default_value_t = 75)]
    bandwidth: u64,
    /// The loads.
    #[arg(long, value_delimiter = ',', value_parser = LOADS, default_values = LOADS)]
    loads: Vec<String>,
    /// The fetches, by their names in the table, separated by semicolons [default: all].
    #[arg(long, value_delimiter = ';', value_parser = FETCHES.map(|(name, _)| name))]
    fetches: Vec<String>,
    /// Checks the caching store above the bucket, which must be empty, instead of measuring it.
    #[arg(long)]
    check: bool,
}

const MIB: u64 = 1 << 20;
/// Fetches by their names in the table.
const FETCHES: [(&str, Option<FetchSize>); 8] = [
    ("no cache", None),
    ("64 KiB", Some(FetchSize::Fixed(64 << 10))),
    ("1 MiB", Some(FetchSize::Fixed(MIB))),
    ("4 MiB", Some(FetchSize::Fixed(4 * MIB))),
    ("64 KiB, ahead", Some(FetchSize::FixedAhead(64 << 10))),
    ("1 MiB, ahead", Some(FetchSize::FixedAhead(MIB))),
    ("4 MiB, ahead", Some(FetchSize::FixedAhead(4 * MIB))),
    ("adaptive", Some(FetchSize::Adaptive)),
];
const LOADS: [&str; 4] = ["points", "scans", "columns", "all at once"];

/// Files of columns, with their length.
const COLUMNS: (u64, u64) = (6, 16 * MIB);

async fn prepare(store: &dyn ObjectStore) {
    for (load, (count, len)) in [("points", POINTS), ("scans", SCANS), ("columns", COLUMNS)] {
        for number in 0..count {
            let path = path(load, number);
            if store.head(&path).await.is_ok_and(|meta| meta.size == len) {
                continue;
            }
            let bytes = content(&path, 0..len);
            store.put(&path, bytes.into()).await.expect("the bucket takes objects");
        }
    }
}

/// A footer, then 3 of 16 columns of each of 4 groups of rows.
async fn columns(store: &dyn ObjectStore) {
    let len = COLUMNS.1;
    let column = len / 4 / 16;
    for number in 0..COLUMNS.0 {
        let path = path("columns", number);
        read(store, &path, len - 8..len).await;
        read(store, &path, len - 40_000..len - 8).await;
        for group in 0..4 {
            let chunk = |at: u64| {
                let start = (group * 16 + at) * column;
                start..(start + column).min(len - 40_000)
            };
            let ranges = [chunk(2), chunk(3), chunk(11)];
            let chunks = store.get_ranges(&path, &ranges).await.expect("the server answers");
            for (range, bytes) in ranges.into_iter().zip(chunks) {
                assert!(bytes == content(&path, range), "{path}: other bytes");
            }
        }
    }
}

async fn run(load: &str, store: &dyn ObjectStore) -> Duration {
    let begun = Instant::now();
    match load {
        "points" => points(store).await,
        "scans" => scans(store).await,
        _ => columns(store).await,
    }
    begun.elapsed()
}

fn main() {
    let args = Args::parse();
    rustls::crypto::ring::default_provider().install_default().expect("there is none yet");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    runtime.block_on(compare(&args));
}

async fn compare(args: &Args) {
    let server = AmazonS3Builder::from_env()
        .with_bucket_name(&args.bucket)
        .with_allow_http(true)
        .build()
        .expect("the environment names a server");
    let server: Arc<dyn ObjectStore> = Arc::new(server);
    if args.check {
        return check::check(&server, &args.folder).await;
    }
    prepare(&*server).await;
    println!("| load | fetch | time | requests | MB | again |");
    println!("|---|---|---:|---:|---:|---:|");
    for load in &args.loads {
        for (name, fetch) in FETCHES {
            if !args.fetches.is_empty() && !args.fetches.iter().any(|fetch| fetch == name) {
                continue;
            }
            let latency = Duration::from_millis(args.latency);
            let far = Far::new(Arc::clone(&server), latency, args.bandwidth * 1_000_000);
            let folder = tempfile::tempdir_in(&args.folder).expect("a folder");
            let store: Arc<dyn ObjectStore> = match fetch {
                None => Arc::new(far.clone()),
                Some(fetch) => Arc::new(cached(&far, fetch, folder.path())),
            };
            let time = time(load, &*store).await;
            let (requests, bytes) =
                (far.requests.load(Ordering::Relaxed), far.bytes.load(Ordering::Relaxed));
            let again = time_again(load, fetch, &*store).await;
            println!(
                "| {load} | {name} | {:.2} s | {requests} | {:.0} | {again} |",
                time.as_secs_f64(),
                bytes as f64 / 1e6
            );
        }
    }
}

async fn time(load: &str, store: &dyn ObjectStore) -> Duration {
    match load {
        "all at once" => {
            let all = ["points", "scans", "columns"].map(|load| run(load, store));
            join_all(all).await.into_iter().sum()
        }
        load => run(load, store).await,
    }
}

/// The time of a load whose bytes the cache has.
async fn time_again(load: &str, fetch: Option<FetchSize>, store: &dyn ObjectStore) -> String {
    match fetch {
        None => "–".to_owned(),
        Some(_) => format!("{:.3} s", time(load, store).await.as_secs_f64()),
    }
}

fn cached(far: &Far, fetch: FetchSize, folder: &std::path::Path) -> CachedStore {
    let cache = Hybrid::builder().memory(1 << 30).flash(folder.join("cache"), 4 << 30);
    CachedStore::builder(far.clone())
        .hybrid(cache.open().expect("the folder takes a file"))
        .fetch(fetch)
        .immutable()
        .spawn(|task| drop(tokio::spawn(task)))
        .build()
        .expect("the settings are possible")
}
