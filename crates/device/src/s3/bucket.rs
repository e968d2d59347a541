//! Requests to the store, repeated until they are answered or their time is over.
//!
//! Puts are conditional, and stamped: a put that may have arrived although its answer was lost is
//! found again by its stamp.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, GetResult, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// Requests of a volume at the same time.
const MOST_REQUESTS: usize = 64;

/// Refusals of a put on an object that has not changed.
const MOST_REFUSALS: usize = 10;

/// The metadata field with the stamp of the put that made an object.
const STAMP: &str = "floe-writer";

/// The error of an operation, which several waiters get.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) kind: io::ErrorKind,
    pub(super) reason: Arc<str>,
}

impl Failure {
    pub(super) fn new(kind: io::ErrorKind, reason: impl Into<Arc<str>>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        io::Error::new(failure.kind, &*failure.reason)
    }
}

/// The version of an object that a put replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Version {
    /// The object does not exist.
    Missing,
    /// The object has this ETag.
    Tag(Arc<str>),
}

/// An object as the store has it.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) version: Version,
    /// The stamp of the put that made it, if that was one of ours or of another server.
    pub(super) stamp: Option<String>,
    /// The bytes asked for; empty if there were none, or if only metadata was asked for.
    pub(super) bytes: Bytes,
}

impl Found {
    const NOTHING: Found =
        Found { version: Version::Missing, stamp: None, bytes: Bytes::from_static(b"") };
}

/// The reason why a put failed.
#[derive(Debug)]
pub(super) enum PutError {
    /// The object is not of the version that was to be replaced, but as found.
    Conflict(Found),
    /// The store refused the put or gave no answer. The put may arrive still.
    Failed(Failure),
}

/// The times of repetitions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The pause before the first repetition; it doubles with each.
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

/// The store that has a volume's objects.
#[derive(Debug)]
pub(super) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// The name of the volume, for messages.
    name: String,
    pace: Pace,
    /// Milliseconds for which a request is repeated. No other memory depends on it, so relaxed
    /// loads and stores suffice.
    timeout_ms: AtomicU64,
    room: Semaphore,
}

impl Bucket {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        name: String,
        pace: Pace,
        timeout: Duration,
    ) -> Self {
        let timeout_ms = AtomicU64::new(timeout.as_millis() as u64);
        Self { store, name, pace, timeout_ms, room: Semaphore::new(MOST_REQUESTS) }
    }

    /// Returns the name of the volume.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time for which a request is repeated.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    /// Shortens the time for which a request is repeated.
    pub(super) fn shorten_timeout(&self, timeout: Duration) {
        self.timeout_ms.fetch_min(timeout.as_millis() as u64, Ordering::Relaxed);
    }

    /// Repeats a request until it has an answer that no repetition changes.
    async fn repeat<T, F>(
        &self,
        what: &str,
        at: &Path,
        mut send: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let _room = self.room.acquire().await.expect("it is never closed");
        let begun = Instant::now();
        let due = begun + self.timeout();
        let mut pause = self.pace.first;
        for attempt in 1.. {
            let error = match timeout_at(due, send()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if is_final(&error) => return Err(error),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + pause >= due {
                let name = &self.name;
                let taken = begun.elapsed();
                let message =
                    format!("{name}: {what} {at} failed {attempt} times in {taken:.1?}: {error}");
                return Err(Error::Generic { store: "S3", source: message.into() });
            }
            // Servers that were refused at the same time do not return at the same time.
            let part = begun.elapsed().subsec_nanos() % 512;
            sleep(pause * (512 + part) / 1024).await;
            pause = (pause * 2).min(self.pace.longest);
        }
        unreachable!("the time ends")
    }

    /// Reads a range of an object, or all of it.
    pub(super) async fn get(&self, at: &Path, range: Option<Range<u64>>) -> Result<Found, Failure> {
        let read = || async {
            let range = range.clone().map(Into::into);
            let got = self.store.get_opts(at, GetOptions { range, ..Default::default() }).await?;
            let mut found = found(&got)?;
            found.bytes = got.bytes().await?;
            Ok(found)
        };
        self.found(self.repeat("reading", at, read).await)
    }

    /// Reads an object's version and stamp.
    pub(super) async fn head(&self, at: &Path) -> Result<Found, Failure> {
        let ask = || async {
            let options = GetOptions { head: true, ..Default::default() };
            found(&self.store.get_opts(at, options).await?)
        };
        self.found(self.repeat("asking for", at, ask).await)
    }

    fn found(&self, answer: Result<Found, Error>) -> Result<Found, Failure> {
        match answer {
            Err(error @ Error::NotFound { .. }) if is_without_bucket(&error) => {
                Err(self.failure(error))
            }
            Err(Error::NotFound { .. }) => Ok(Found::NOTHING),
            answer => answer.map_err(|error| self.failure(error)),
        }
    }

    /// Replaces an object of a known version. Returns its new version.
    pub(super) async fn put(
        &self,
        at: &Path,
        bytes: Bytes,
        replaced: &Version,
        stamp: &str,
    ) -> Result<Version, PutError> {
        let mode = match replaced {
            Version::Missing => PutMode::Create,
            Version::Tag(tag) => {
                PutMode::Update(UpdateVersion { e_tag: Some(tag.to_string()), version: None })
            }
        };
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(STAMP.into()), stamp.to_owned().into());
        let options = PutOptions { mode, attributes, ..Default::default() };
        for _ in 0..MOST_REFUSALS {
            let payload = PutPayload::from(bytes.clone());
            let send = || self.store.put_opts(at, payload.clone(), options.clone());
            let error = match self.repeat("writing", at, send).await {
                Ok(put) => return tag(put.e_tag).map_err(|error| self.failed(error)),
                Err(error) => error,
            };
            if !matches!(error, Error::Precondition { .. } | Error::AlreadyExists { .. }) {
                return Err(self.failed(error));
            }
            let found = self.head(at).await.map_err(PutError::Failed)?;
            if found.stamp.as_deref() == Some(stamp) {
                return Ok(found.version); // an earlier attempt, whose answer was lost
            }
            if found.version != *replaced {
                return Err(PutError::Conflict(found));
            }
            // Stores refuse with "conflict" while they are busy with another request on the object.
            sleep(self.pace.first).await;
        }
        let reason = format!("{}: {at} is unchanged, but cannot be replaced", self.name);
        Err(PutError::Failed(Failure::new(io::ErrorKind::Other, reason)))
    }

    /// Removes an object, which need not exist.
    pub(super) async fn delete(&self, at: &Path) -> Result<(), Failure> {
        match self.repeat("removing", at, || self.store.delete(at)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            answer => answer.map_err(|error| self.failure(error)),
        }
    }

    /// Returns whether there are objects below a folder.
    pub(super) async fn has_any(&self, folder: &Path) -> Result<bool, Failure> {
        let first = || async { self.store.list(Some(folder)).try_next().await };
        let first = self.repeat("listing", folder, first).await;
        Ok(first.map_err(|error| self.failure(error))?.is_some())
    }

    /// Returns the locations in a folder after `before`, in order, up to `last`.
    pub(super) async fn list(
        &self,
        folder: &Path,
        before: Option<Path>,
        last: &Path,
    ) -> Result<Vec<Path>, Failure> {
        let list = || async {
            let found = match &before {
                Some(before) => self.store.list_with_offset(Some(folder), before),
                None => self.store.list(Some(folder)),
            };
            let found = found.map_ok(|found| found.location);
            found.try_take_while(|at| std::future::ready(Ok(at <= last))).try_collect().await
        };
        self.repeat("listing", folder, list).await.map_err(|error| self.failure(error))
    }

    fn failed(&self, error: Error) -> PutError {
        PutError::Failed(self.failure(error))
    }

    /// Returns an error of the store by its name, with the name of the volume once.
    fn failure(&self, error: Error) -> Failure {
        let kind = match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            _ => io::ErrorKind::Other,
        };
        let text = match &error {
            Error::Generic { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        let reason =
            if text.contains(&self.name) { text } else { format!("{}: {text}", self.name) };
        Failure::new(kind, reason)
    }
}

/// Returns whether a repetition of the request would fail in the same way.
fn is_final(error: &Error) -> bool {
    !matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

/// Returns whether the bucket, rather than the object, does not exist.
fn is_without_bucket(error: &Error) -> bool {
    error.to_string().contains("NoSuchBucket")
}

fn found(got: &GetResult) -> Result<Found, Error> {
    let stamp = got.attributes.get(&Attribute::Metadata(STAMP.into()));
    let version = tag(got.meta.e_tag.clone())?;
    Ok(Found { version, stamp: stamp.map(|stamp| stamp.to_string()), bytes: Bytes::new() })
}

fn tag(tag: Option<String>) -> Result<Version, Error> {
    let missing = || Error::NotSupported { source: "the store gives objects no ETag".into() };
    // Some stores quote it in some answers only, or call it weak.
    let tag = tag.ok_or_else(missing)?;
    Ok(Version::Tag(format!("\"{}\"", tag.trim_start_matches("W/").trim_matches('"')).into()))
}
