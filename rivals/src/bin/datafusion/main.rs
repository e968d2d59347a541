//! Queries of TPC-H by DataFusion over Parquet above the cache for object storage: fetches of fixed
//! and of learned sizes, and none.
//!
//! The bucket is a store in memory, on which the latency and the bandwidth of S3 are imposed in
//! virtual time, where computing takes none. Each answer is compared with that of the bucket
//! itself. Beside them run the random reads and the scans of the program `floe-rivals-s3`.
//!
//! `cargo run --profile quick --manifest-path rivals/Cargo.toml --features datafusion --bin
//! floe-rivals-datafusion`

mod bridge;
#[path = "../../far.rs"]
mod far;
#[path = "../../objects.rs"]
mod objects;
mod tables;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Parser;
use floe_hybrid::Hybrid;
use floe_object_store::{CachedStore, FetchSize};
use futures_util::future::join_all;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use far::Far;
use objects::{POINTS, SCANS, content, path, points, scans};
use tables::{QUERIES, Query, put_tables};

/// Compares fetches of fixed and of learned sizes by DataFusion over Parquet.
#[derive(Debug, Parser)]
struct Args {
    /// The scale factor of TPC-H.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Milliseconds that a request takes.
    #[arg(long, default_value_t = 30)]
    latency: u64,
    /// Megabytes a second of a connection.
    #[arg(long, default_value_t = 75)]
    bandwidth: u64,
}

/// All that a load reads fits into memory: the drive has no virtual time.
const MEMORY: u64 = 3 << 29;
const FLASH: u64 = 4 << 30;

/// A load on an empty cache.
#[derive(Debug, Clone, Copy)]
enum Load {
    Query(Query),
    /// The queries one after the other.
    Queries,
    /// The queries, random reads and scans at once.
    All,
}

/// The bucket, the answers, and the far store's times.
struct Bench {
    bucket: Arc<dyn ObjectStore>,
    answers: Vec<String>,
    latency: Duration,
    bandwidth: u64,
}

/// Time, requests and bytes of a load.
struct Outcome {
    /// Sum of the times that the callers waited.
    time: Duration,
    requests: u64,
    bytes: u64,
}

/// Makes a runtime of one thread, whose clock jumps to the next timer when all wait.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn main() {
    let args = Args::parse();
    let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let answers = runtime().block_on(async {
        put_tables(&*bucket, args.scale).await.expect("possible tables");
        for (load, (count, len)) in [("points", POINTS), ("scans", SCANS)] {
            for path in (0..count).map(|number| path(load, number)) {
                bucket.put(&path, content(&path, 0..len).into()).await.expect("memory");
            }
        }
        let answer =
            async |query: Query| query.answer(Arc::clone(&bucket)).await.expect("an answer");
        join_all(QUERIES.map(answer)).await
    });
    for (query, answer) in QUERIES.iter().zip(&answers) {
        println!("{}:\n{answer}\n", query.name);
    }
    let latency = Duration::from_millis(args.latency);
    Bench { bucket, answers, latency, bandwidth: args.bandwidth * 1_000_000 }.compare();
}

impl Bench {
    fn compare(&self) {
        let sizes: [(&str, Option<FetchSize>); 8] = [
            ("no cache", None),
            ("64 KiB", Some(FetchSize::Fixed(64 << 10))),
            ("1 MiB", Some(FetchSize::Fixed(1 << 20))),
            ("4 MiB", Some(FetchSize::Fixed(4 << 20))),
            ("64 KiB, ahead", Some(FetchSize::FixedAhead(64 << 10))),
            ("1 MiB, ahead", Some(FetchSize::FixedAhead(1 << 20))),
            ("4 MiB, ahead", Some(FetchSize::FixedAhead(4 << 20))),
            ("adaptive", Some(FetchSize::Adaptive)),
        ];
        let queries = QUERIES.map(|query| (query.name, Load::Query(query)));
        let others = [("one after the other", Load::Queries), ("all at once", Load::All)];
        println!("| load | fetch | time | requests | MB | again | requests |");
        println!("|---|---|---:|---:|---:|---:|---:|");
        for (load_name, load) in queries.into_iter().chain(others) {
            for (name, fetch) in sizes {
                let [cold, again] = self.run(load, fetch);
                println!(
                    "| {load_name} | {name} | {:.2} s | {} | {:.0} | {:.2} s | {} |",
                    cold.time.as_secs_f64(),
                    cold.requests,
                    cold.bytes as f64 / 1e6,
                    again.time.as_secs_f64(),
                    again.requests,
                );
            }
        }
    }

    /// Runs a load on an empty cache, and again.
    fn run(&self, load: Load, fetch: Option<FetchSize>) -> [Outcome; 2] {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let runtime = runtime();
        let far = Far::new(Arc::clone(&self.bucket), self.latency, self.bandwidth);
        let store: Arc<dyn ObjectStore> = match fetch {
            Some(fetch) => Arc::new(caching(&far, fetch, folder.path())),
            None => Arc::new(far.clone()),
        };
        [(), ()].map(|()| {
            let time = runtime.block_on(self.time(load, &store));
            let requests = far.requests.swap(0, Ordering::Relaxed);
            Outcome { time, requests, bytes: far.bytes.swap(0, Ordering::Relaxed) }
        })
    }

    /// Returns the sum of the times that the callers of a load wait.
    async fn time(&self, load: Load, store: &Arc<dyn ObjectStore>) -> Duration {
        let begun = Instant::now();
        match load {
            Load::Query(query) => {
                let answer = query.answer(Arc::clone(store)).await.expect("an answer");
                let at = QUERIES.iter().position(|other| *other == query);
                assert_eq!(Some(&answer), at.map(|at| &self.answers[at]));
                begun.elapsed()
            }
            Load::Queries => {
                for query in QUERIES {
                    Box::pin(self.time(Load::Query(query), store)).await;
                }
                begun.elapsed()
            }
            Load::All => {
                let queries = Box::pin(self.time(Load::Queries, store));
                let points = async {
                    points(&**store).await;
                    begun.elapsed()
                };
                let scans = async {
                    scans(&**store).await;
                    begun.elapsed()
                };
                let (queries, points, scans) = tokio::join!(queries, points, scans);
                queries + points + scans
            }
        }
    }
}

/// Makes a caching store whose clock is that of the runtime.
fn caching(far: &Far, fetch: FetchSize, folder: &Path) -> CachedStore {
    let cache = Hybrid::builder().memory(MEMORY).flash(folder.join("cache"), FLASH);
    let begun = std::sync::OnceLock::new();
    CachedStore::builder(far.clone())
        .hybrid(cache.open().expect("the folder takes a file"))
        .fetch(fetch)
        .immutable()
        .spawn(|task| drop(tokio::spawn(task)))
        .clock(move || begun.get_or_init(Instant::now).elapsed())
        .build()
        .expect("the settings are possible")
}
