//! An open volume, and the thread that runs its requests.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bucket::{Bucket, Failure, Pace};
use super::engine::{Engine, Part};
use super::lease::Lease;
use super::name::{S3Error, S3Name};
use super::volume::{Volume, random_name};
use crate::queue::Mailbox;

/// The time for which requests are repeated where the specification has none.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit for one attempt of a request.
const ATTEMPT: Duration = Duration::from_secs(30);

/// The time limit for operations in flight when the volume is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The times of a volume's requests and of its lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) pace: Pace,
    /// The term of the lease.
    pub(super) term: Duration,
}

impl Times {
    const USUAL: Times = Times {
        pace: Pace { first: Duration::from_millis(100), longest: Duration::from_secs(5) },
        term: Duration::from_secs(45),
    };
}

/// The action of an operation, with the bytes that it writes.
#[derive(Debug)]
pub(super) enum JobAction {
    Read,
    Write(Bytes),
    /// Make a range zeros.
    Zero,
    /// Remove the whole objects in a range.
    Discard,
}

/// An operation on its way to the thread.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) to: Arc<Mailbox<Answer>>,
    pub(super) slot: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) action: JobAction,
}

/// The slot of an operation, and its result with the parts that were read.
pub(super) type Answer = (usize, Result<Vec<Part>, Failure>);

/// An open volume, from which each thread opens a device. Clones share it; the lease ends with the
/// last clone and device.
#[derive(Debug, Clone)]
pub(super) struct S3Source(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    engine: Arc<Engine>,
    name: S3Name,
    /// Jobs for the thread; `None` once it is to end.
    jobs: Option<UnboundedSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Source {
    /// Opens the volume, or creates it, and takes its lease unless it is read only.
    ///
    /// # Errors
    /// Names the volume and the step that failed.
    pub(super) fn prepare(name: &S3Name, read_only: bool) -> Result<S3Source, S3Error> {
        let store = connect(name).map_err(|error| S3Error::Request {
            what: "connect to",
            volume: name.to_string(),
            reason: with_causes(&error),
        })?;
        Self::prepare_on(store, name, read_only, Times::USUAL)
    }

    /// Opens a volume like [`prepare`](Self::prepare), on a store that is given.
    pub(super) fn prepare_on(
        store: Arc<dyn ObjectStore>,
        name: &S3Name,
        read_only: bool,
        times: Times,
    ) -> Result<S3Source, S3Error> {
        let failed = |source| S3Error::System { volume: name.to_string(), source };
        let (sender, opened) = sync_channel(1);
        let (jobs, coming) = unbounded_channel();
        let wanted = name.clone();
        let run = move || run(store, &wanted, read_only, times, &sender, coming);
        let thread =
            std::thread::Builder::new().name("s3".to_owned()).spawn(run).map_err(failed)?;
        let engine =
            opened.recv().map_err(|_| failed(io::Error::other("the thread has ended")))??;
        let jobs = Some(jobs);
        let opened = Opened { engine, name: name.clone(), jobs, thread: Some(thread) };
        Ok(S3Source(Arc::new(opened)))
    }

    pub(super) fn name(&self) -> &S3Name {
        &self.0.name
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(super) fn begin(&self, job: Job) {
        let jobs = self.0.jobs.as_ref().expect("it is open");
        if let Err(lost) = jobs.send(job) {
            let failure = Failure::new(io::ErrorKind::Other, "the thread of the volume has ended");
            lost.0.to.leave((lost.0.slot, Err(failure)));
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic has been printed
        }
    }
}

/// Runs the volume's requests until the source has been dropped.
fn run(
    store: Arc<dyn ObjectStore>,
    name: &S3Name,
    read_only: bool,
    times: Times,
    sender: &SyncSender<Result<Arc<Engine>, S3Error>>,
    mut jobs: UnboundedReceiver<Job>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(source) => {
            let _ = sender.send(Err(S3Error::System { volume: name.to_string(), source }));
            return;
        }
    };
    runtime.block_on(async {
        let engine = match open(store, name, read_only, times).await {
            Ok(engine) => Arc::new(engine),
            Err(error) => return drop(sender.send(Err(error))),
        };
        let _ = sender.send(Ok(Arc::clone(&engine))); // it is waited for
        let keeper = Arc::clone(&engine);
        let keeper = tokio::spawn(async move {
            if let Some(lease) = &keeper.lease {
                let owner = lease.keep(&keeper.bucket).await;
                keeper.fence(&format!("{owner} has its lease"));
            }
        });
        let mut running = JoinSet::new();
        while let Some(job) = jobs.recv().await {
            running.spawn(perform(Arc::clone(&engine), job));
            while running.try_join_next().is_some() {}
        }
        let all_ended = async { while running.join_next().await.is_some() {} };
        let is_quiet = timeout(PATIENCE, all_ended).await.is_ok();
        keeper.abort();
        let _ = keeper.await; // no renewal after the release
        // A put that is under way keeps the lease, which then ends with its term.
        if let Some(lease) = engine.lease.as_ref().filter(|_| is_quiet) {
            engine.bucket.shorten_timeout(PATIENCE);
            lease.release(&engine.bucket).await;
        }
    });
}

async fn open(
    store: Arc<dyn ObjectStore>,
    name: &S3Name,
    read_only: bool,
    times: Times,
) -> Result<Engine, S3Error> {
    let limit = name.timeout.unwrap_or(TIMEOUT);
    let bucket = Bucket::new(store, name.to_string(), times.pace, limit);
    let volume = Volume::open(&bucket, name, read_only).await?;
    let session =
        random_name().map_err(|source| S3Error::System { volume: name.to_string(), source })?;
    let lease = match read_only {
        true => None,
        false => Some(Lease::take(&bucket, name, volume.owner(), &session, times.term).await?),
    };
    Ok(Engine::new(bucket, volume, lease, session))
}

async fn perform(engine: Arc<Engine>, job: Job) {
    let Job { to, slot, offset, bytes, action } = job;
    let result = match action {
        JobAction::Read => engine.read(offset, bytes).await,
        JobAction::Write(bytes) => engine.write(offset, bytes).await.map(|()| Vec::new()),
        JobAction::Zero => engine.clear(offset, bytes, false).await.map(|()| Vec::new()),
        JobAction::Discard => engine.clear(offset, bytes, true).await.map(|()| Vec::new()),
    };
    to.leave((slot, result));
}

/// Returns an error with its causes, which alone say what is wrong with a client's settings.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        cause = error.source();
    }
    text
}

/// Prepares a client of the bucket, with the credentials of the environment.
fn connect(name: &S3Name) -> object_store::Result<Arc<dyn ObjectStore>> {
    // One of the program's own may be there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&name.bucket);
    if let Some(endpoint) = &name.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &name.region {
        builder = builder.with_region(region);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let attempt = name.timeout.map_or(ATTEMPT, |timeout| timeout.min(ATTEMPT));
    let options = ClientOptions::new().with_timeout(attempt).with_allow_http(is_plain);
    // `Bucket` repeats requests.
    let retry = RetryConfig { max_retries: 0, ..Default::default() };
    let builder = builder.with_client_options(options).with_retry(retry);
    Ok(Arc::new(builder.with_disable_bulk_delete(true).build()?))
}
