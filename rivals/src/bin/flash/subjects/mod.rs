//! The interface of a cache of bytes on flash, and one file for each subject.
//!
//! A subject implements [`Subject`]; [`Bench`] adds the loops, compiled for each subject, behind an
//! interface without futures.

pub mod floe;
pub mod floe_memory;
pub mod floor;
pub mod foyer;
pub mod moka_redb;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Runtime;

use crate::load::{Stream, is_of, value};

/// Sizes and place of a cache.
#[derive(Clone)]
pub struct Settings {
    /// A folder of its own.
    pub folder: PathBuf,
    /// Bytes of values that memory may hold.
    pub memory: usize,
    /// Bytes that the file may take.
    pub flash: usize,
    /// Bytes of the largest value; subjects that need a size of slot or block start from it.
    pub value_bytes: usize,
    /// Words after the subject's name, as `engine=uring`.
    pub words: Vec<String>,
}

impl Settings {
    /// The value of a word, `NAME=VALUE`.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// A word's number, with `K`, `M` or `G` behind it for powers of 1,024.
    pub fn number(&self, name: &str, default: usize) -> Result<usize, String> {
        let Some(word) = self.word(name) else { return Ok(default) };
        let digits = word.trim_end_matches(['K', 'M', 'G']);
        let unit = match &word[digits.len()..] {
            "" => 1,
            "K" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            _ => return Err(format!("{name}={word} is no number")),
        };
        digits.parse::<usize>().map(|n| n * unit).map_err(|_| format!("{name}={word} is no number"))
    }
}

/// A cache of bytes in memory and on flash.
pub trait Subject: Send + Sync + Sized + 'static {
    /// Opens the cache in its folder, with what an earlier one left there.
    fn open(settings: &Settings) -> impl Future<Output = Result<Self, String>>;

    /// Inserts a value from a thread without a runtime. May wait for the disk.
    fn insert(&self, key: u64, value: Bytes);

    fn get(&self, key: u64) -> impl Future<Output = Option<Bytes>> + Send;

    /// Gets a value from a thread without a runtime. Subjects of the figure `warm` have it.
    fn get_blocking(&self, _key: u64) -> Option<Bytes> {
        None
    }

    fn remove(&self, key: u64);

    /// Waits until nothing is left to write.
    fn sync(&self) -> impl Future<Output = ()> + Send;

    fn close(self) -> impl Future<Output = ()>;

    /// Bytes of memory that the cache itself counts for its index on flash.
    fn index_bytes(&self) -> Option<usize> {
        None
    }
}

/// The result of a batch of reads.
#[derive(Default)]
pub struct Reads {
    pub found: usize,
    /// Values that belonged to another key.
    pub wrong: usize,
    /// Nanoseconds of each read.
    pub nanos: Vec<u64>,
}

impl Reads {
    fn add(&mut self, key: u64, value: Option<&[u8]>, begun: Instant) {
        self.nanos.push(begun.elapsed().as_nanos() as u64);
        if let Some(value) = value {
            self.found += 1;
            self.wrong += usize::from(!is_of(key, value));
        }
    }

    fn append(&mut self, mut other: Self) {
        self.found += other.found;
        self.wrong += other.wrong;
        self.nanos.append(&mut other.nanos);
    }
}

/// A subject with its runtime, ready for batches.
pub trait Bench: Send + Sync {
    fn insert(&self, values: Vec<(u64, Bytes)>);

    /// Inserts one value under new keys from `first` on, at so many bytes a second.
    fn insert_paced(&self, first: u64, value: &Bytes, rate: f64, length: Duration);

    /// Reads keys, `depth` at a time.
    fn read(&self, keys: &[u64], depth: usize) -> Reads;

    /// Gets keys on the calling thread, without futures. Returns the number found.
    fn read_blocking(&self, keys: &[u64]) -> usize;

    fn remove(&self, keys: &[u64]);

    fn sync(&self);

    fn close(self: Box<Self>);

    /// Gets keys of a stream, 16 at a time, and inserts those that miss: hits of the second half.
    fn hits(&self, stream: &Stream) -> f64;

    /// Reads keys over and over, `depth` at a time, until `stop`.
    fn read_until(&self, keys: &[u64], depth: usize, stop: &AtomicBool) -> Reads;

    fn index_bytes(&self) -> Option<usize>;
}

struct Driver<S> {
    subject: Arc<S>,
    runtime: Runtime,
    /// Whether the runtime runs only while a caller waits for a future.
    has_no_threads: bool,
}

/// Opens a subject on a runtime of its own, which has two worker threads unless `workers=N` says
/// otherwise; with 0, the caller's thread does all the work of the futures.
pub fn open<S: Subject>(settings: &Settings) -> Result<Box<dyn Bench>, String> {
    let workers = settings.number("workers", 2)?;
    let mut builder = match workers {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .worker_threads(workers.max(1))
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    std::fs::create_dir_all(&settings.folder).map_err(|error| format!("no folder: {error}"))?;
    let subject = Arc::new(runtime.block_on(S::open(settings))?);
    Ok(Box::new(Driver { subject, runtime, has_no_threads: workers == 0 }))
}

impl<S: Subject> Driver<S> {
    /// Lets `depth` tasks read the keys that `next` gives each in turn.
    fn read_all(
        &self,
        depth: usize,
        next: impl Fn() -> Option<u64> + Clone + Send + 'static,
    ) -> Reads {
        let readers: Vec<_> = (0..depth)
            .map(|_| {
                let (subject, next) = (self.subject.clone(), next.clone());
                async move {
                    let mut reads = Reads::default();
                    while let Some(key) = next() {
                        let begun = Instant::now();
                        let value = subject.get(key).await;
                        reads.add(key, value.as_deref(), begun);
                    }
                    reads
                }
            })
            .collect();
        let mut all = Reads::default();
        self.runtime.block_on(async {
            let tasks: Vec<_> = readers.into_iter().map(tokio::spawn).collect();
            for task in tasks {
                all.append(task.await.expect("no reader panics"));
            }
        });
        all
    }
}

impl<S: Subject> Bench for Driver<S> {
    fn insert(&self, values: Vec<(u64, Bytes)>) {
        let insert = |subject: &S| {
            values.into_iter().for_each(|(key, value)| subject.insert(key, value));
        };
        if !self.has_no_threads {
            return insert(&self.subject);
        }
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| insert(&self.subject));
            self.runtime.block_on(async {
                while !producer.is_finished() {
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
            });
        });
    }

    fn insert_paced(&self, first: u64, value: &Bytes, rate: f64, length: Duration) {
        /// Values between two looks at the clock.
        const GROUP: u64 = 8;
        let begun = Instant::now();
        let group = Duration::from_secs_f64(GROUP as f64 * value.len() as f64 / rate);
        let groups = (length.as_secs_f64() / group.as_secs_f64()) as u32;
        for index in 0..groups {
            std::thread::sleep((group * index).saturating_sub(begun.elapsed()));
            let first = first + u64::from(index) * GROUP;
            (first..first + GROUP).for_each(|key| self.subject.insert(key, value.clone()));
        }
    }

    fn read(&self, keys: &[u64], depth: usize) -> Reads {
        let (keys, at) = (Arc::new(keys.to_vec()), Arc::new(AtomicUsize::new(0)));
        self.read_all(depth, move || keys.get(at.fetch_add(1, Ordering::Relaxed)).copied())
    }

    fn read_blocking(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|&&key| self.subject.get_blocking(key).is_some()).count()
    }

    fn remove(&self, keys: &[u64]) {
        let _guard = self.runtime.enter();
        keys.iter().for_each(|&key| self.subject.remove(key));
    }

    fn sync(&self) {
        self.runtime.block_on(self.subject.sync());
    }

    fn close(self: Box<Self>) {
        let Self { subject, runtime, .. } = *self;
        let subject = Arc::into_inner(subject).expect("all readers have ended");
        runtime.block_on(subject.close());
        runtime.shutdown_timeout(Duration::from_secs(5));
    }

    fn hits(&self, stream: &Stream) -> f64 {
        let (at, hits) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let requests = stream.keys.len();
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (subject, at, hits) = (self.subject.clone(), at.clone(), hits.clone());
                let (keys, value_bytes, pause) =
                    (stream.keys.clone(), stream.value_bytes, stream.pause);
                async move {
                    loop {
                        let index = at.fetch_add(1, Ordering::Relaxed);
                        let Some(&key) = keys.get(index) else { break };
                        if subject.get(key).await.is_some() {
                            hits.fetch_add(usize::from(index >= keys.len() / 2), Ordering::Relaxed);
                        } else {
                            subject.insert(key, value(key, value_bytes));
                        }
                        // Gives a cache that forgets what it cannot write at once time to write.
                        if index.is_multiple_of(pause) {
                            subject.sync().await;
                        }
                    }
                }
            })
            .collect();
        self.runtime.block_on(async {
            let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
            for task in tasks {
                task.await.expect("no reader panics");
            }
        });
        hits.load(Ordering::Relaxed) as f64 / (requests - requests / 2) as f64
    }

    fn read_until(&self, keys: &[u64], depth: usize, stop: &AtomicBool) -> Reads {
        let mut all = Reads::default();
        while !stop.load(Ordering::Relaxed) {
            all.append(self.read(keys, depth));
        }
        all
    }

    fn index_bytes(&self) -> Option<usize> {
        self.subject.index_bytes()
    }
}
