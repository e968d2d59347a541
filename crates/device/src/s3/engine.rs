//! Reads and writes of a volume: from ranges of the volume to requests on objects.
//!
//! Each object has one task at a time that writes it. A turn of the task reads the object if the
//! waiting writes do not cover it, takes the writes that wait by then, and puts or removes it. A
//! put that failed may arrive late. So the next turn reads the object, and accepts it only if it is
//! as before or was made by this process.

use std::collections::HashSet;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep};

use super::bucket::{Bucket, Failure, Found, PutError, Version};
use super::content::{Change, Content};
use super::lease::Lease;
use super::objects::{Known, Objects, Pending};
use super::volume::Volume;

/// Memory in bytes for objects that are being written.
const WRITING_BYTES: u64 = 64 << 20;

/// Objects that are written at the same time.
const WRITERS: std::ops::RangeInclusive<u64> = 4..=48;

/// Late puts of this process that one turn of a task works around.
const MOST_LATE: usize = 8;

/// Objects that one step of a discard looks at.
const MOST_CLEARED: usize = 1000;

/// A part of a read: the range of the caller's bytes, and the bytes; `None` if they are zeros.
pub(super) type Part = (Range<usize>, Option<Bytes>);

/// A volume whose objects are read and written.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) bucket: Bucket,
    pub(super) volume: Volume,
    /// The lease of a writer; `None` if the volume is read only.
    pub(super) lease: Option<Lease>,
    /// The start of the stamps of this process.
    session: String,
    puts: AtomicU64,
    objects: Objects,
    writers: Semaphore,
    /// The reason why the volume is not used any more.
    fenced: OnceLock<Failure>,
}

impl Engine {
    pub(super) fn new(
        bucket: Bucket,
        volume: Volume,
        lease: Option<Lease>,
        session: String,
    ) -> Engine {
        let writers = (WRITING_BYTES / volume.object_bytes).clamp(*WRITERS.start(), *WRITERS.end());
        Engine {
            objects: Objects::new(volume.object_bytes),
            bucket,
            volume,
            lease,
            session,
            puts: AtomicU64::new(0),
            writers: Semaphore::new(writers as usize),
            fenced: OnceLock::new(),
        }
    }

    /// Ends the use of the volume, which another server writes to.
    pub(super) fn fence(&self, evidence: &str) -> Failure {
        let fenced = self.fenced.get_or_init(|| {
            let name = self.bucket.name();
            let reason = format!(
                "another server writes to {name} ({evidence}); this one has stopped using it"
            );
            Failure::new(io::ErrorKind::Other, reason)
        });
        fenced.clone()
    }

    fn check_use(&self) -> Result<(), Failure> {
        self.fenced.get().map_or(Ok(()), |fenced| Err(fenced.clone()))
    }

    /// Reads a range of the volume.
    pub(super) async fn read(&self, offset: u64, bytes: u64) -> Result<Vec<Part>, Failure> {
        self.check_use()?;
        let object = self.volume.object_bytes;
        let parts = self.volume.parts(offset, bytes).map(async |(number, range)| {
            let start = (number * object + range.start as u64 - offset) as usize;
            let to = start..start + range.len();
            Ok((to, self.read_part(number, range).await?))
        });
        try_join_all(parts).await
    }

    /// Reads a range of an object; `None` if the object does not exist.
    async fn read_part(&self, number: u64, range: Range<usize>) -> Result<Option<Bytes>, Failure> {
        let moment = self.objects.moment(number);
        let known = match (&moment.known, moment.is_busy) {
            (Known::Version(version), false) => Some(version),
            _ => None,
        };
        if known == Some(&Version::Missing) {
            return Ok(None);
        }
        let at = self.volume.object(number);
        let wanted = range.start as u64..range.end as u64;
        let found = self.bucket.get(&at, Some(wanted)).await?;
        if self.lease.is_some() {
            // Nothing of this process has changed the object meanwhile: another has.
            let is_other = known.is_some_and(|known| *known != found.version);
            if is_other && self.objects.moment(number) == moment {
                return Err(self.fence(&format!("{at} has changed")));
            }
            self.objects.learn_by_read(number, &moment, found.version.clone());
        }
        match found.version {
            Version::Missing => Ok(None),
            Version::Tag(_) if found.bytes.len() == range.len() => Ok(Some(found.bytes)),
            Version::Tag(_) => {
                let (read, wanted) = (found.bytes.len(), range.len());
                let name = self.bucket.name();
                let reason = format!("{name}: {at} gave {read} of {wanted} bytes");
                Err(Failure::new(io::ErrorKind::UnexpectedEof, reason))
            }
        }
    }

    /// Writes bytes at an offset of the volume; ends when they are in the store.
    pub(super) async fn write(self: &Arc<Self>, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let object = self.volume.object_bytes;
        let parts = self.volume.parts(offset, bytes.len() as u64);
        self.change(parts.map(|(number, range)| {
            let start = (number * object + range.start as u64 - offset) as usize;
            let part = bytes.slice(start..start + range.len());
            (number, range, Change::Bytes(part))
        }))
        .await
    }

    /// Makes a range of the volume zeros, or only the whole objects in it.
    pub(super) async fn clear(
        self: &Arc<Self>,
        offset: u64,
        bytes: u64,
        whole_only: bool,
    ) -> Result<(), Failure> {
        let mut parts = self.volume.parts(offset, bytes);
        loop {
            let some: Vec<_> = parts.by_ref().take(MOST_CLEARED).collect();
            let [(first, _), .., (last, _)] = &some[..] else {
                return self
                    .change(zeros(some.into_iter(), |at| self.is_wanted(at, whole_only)))
                    .await;
            };
            let there = self.found_in(*first..=*last).await?;
            let is_wanted = |at: &(u64, Range<usize>)| {
                self.is_wanted(at, whole_only) && (there.contains(&at.0) || !self.is_idle(at.0))
            };
            self.change(zeros(some.into_iter(), is_wanted)).await?;
        }
    }

    fn is_wanted(&self, (number, range): &(u64, Range<usize>), whole_only: bool) -> bool {
        !whole_only || self.is_whole(*number, range)
    }

    /// Returns whether nothing is being written to an object.
    fn is_idle(&self, number: u64) -> bool {
        !self.objects.moment(number).is_busy
    }

    /// Returns the objects that exist in a range of numbers.
    async fn found_in(&self, numbers: RangeInclusive<u64>) -> Result<HashSet<u64>, Failure> {
        let is_missing = Known::Version(Version::Missing);
        if numbers.clone().all(|number| self.objects.moment(number).known == is_missing) {
            return Ok(HashSet::new());
        }
        let before = numbers.start().checked_sub(1).map(|number| self.volume.object(number));
        let last = self.volume.object(*numbers.end());
        let found = self.bucket.list(&self.volume.folder(), before, &last).await?;
        Ok(found.iter().filter_map(Volume::number).collect())
    }

    /// Returns whether a range of an object is all of it.
    pub(super) fn is_whole(&self, number: u64, range: &Range<usize>) -> bool {
        *range == (0..self.volume.object_len(number))
    }

    /// Queues changes of objects, and waits for all of them.
    async fn change(
        self: &Arc<Self>,
        changes: impl Iterator<Item = (u64, Range<usize>, Change)>,
    ) -> Result<(), Failure> {
        self.check_use()?;
        let mut all = Vec::new();
        for (number, range, change) in changes {
            let (done, ended) = oneshot::channel();
            if self.objects.add(number, Pending { range, change, done }) {
                tokio::spawn(Arc::clone(self).work(number));
            }
            all.push(ended);
        }
        let mut result = Ok(());
        for ended in all {
            let ended = ended.await.unwrap_or_else(|_| {
                Err(Failure::new(io::ErrorKind::Interrupted, "the volume has been closed"))
            });
            result = result.and(ended);
        }
        result
    }

    /// Writes an object until no write waits for it.
    async fn work(self: Arc<Self>, number: u64) {
        loop {
            // A turn at a time: the objects of other tasks have theirs between them.
            let _turn = self.writers.acquire().await.expect("it is never closed");
            self.turn(number).await;
            if !self.objects.end_turn(number) {
                return;
            }
        }
    }

    async fn turn(&self, number: u64) {
        let mut writes = Vec::new();
        let mut result = Ok(());
        for _ in 0..MOST_LATE {
            result = match self.replace(number, &mut writes).await {
                Ok(true) => Ok(()),
                Ok(false) => {
                    let reason = format!("{}: puts arrive late", self.bucket.name());
                    result = Err(Failure::new(io::ErrorKind::Other, reason));
                    continue;
                }
                Err(failure) => Err(failure),
            };
            break;
        }
        if writes.is_empty() {
            writes = self.objects.take(number); // nothing could be read for them
        }
        for write in writes {
            let _ = write.done.send(result.clone()); // the caller may have gone
        }
    }

    /// Applies the waiting writes, and those in `writes`, to an object. Returns false if a late put
    /// of this process came between, so that it has to be repeated.
    async fn replace(&self, number: u64, writes: &mut Vec<Pending>) -> Result<bool, Failure> {
        self.check_use()?;
        let (at, len) = (self.volume.object(number), self.volume.object_len(number));
        let prospect = self.objects.prospect(number, len);
        let is_covered = prospect.is_covered && writes.is_empty();
        let (version, base) = match (prospect.known, prospect.base) {
            (Known::Version(version @ Version::Missing), _) => (version, Bytes::new()),
            (Known::Version(version), _) if is_covered => (version, Bytes::new()),
            (Known::Version(version), Some(base)) => (version, base),
            (known, _) => {
                let found = match is_covered {
                    true => self.bucket.head(&at).await?,
                    false => self.bucket.get(&at, None).await?,
                };
                self.check_found(&at, &known, &found)?;
                (found.version, found.bytes)
            }
        };
        self.objects.learn(number, Known::Version(version.clone()), None);
        writes.append(&mut self.objects.take(number));
        let mut content = Content::new(len, base);
        for write in writes.iter() {
            content.apply(&write.range, &write.change);
        }
        let content = content.finish();
        let is_there = version != Version::Missing;
        if content.is_none() && !is_there {
            return Ok(true);
        }
        self.wait_for_lease().await?;
        let Some(bytes) = content else {
            self.objects.learn(number, Known::Before(version), None);
            self.bucket.delete(&at).await?;
            self.objects.learn(number, Known::Version(Version::Missing), None);
            return Ok(true);
        };
        let count = self.puts.fetch_add(1, Ordering::Relaxed);
        let stamp = format!("{}/{count}", self.session);
        match self.bucket.put(&at, bytes.clone(), &version, &stamp).await {
            Ok(version) => {
                self.objects.learn(number, Known::Version(version), Some(bytes));
                Ok(true)
            }
            Err(PutError::Failed(failure)) => {
                self.objects.learn(number, Known::Before(version), None);
                Err(failure)
            }
            Err(PutError::Conflict(found)) => {
                let before = Known::Before(version);
                self.objects.learn(number, before.clone(), None);
                self.check_found(&at, &before, &found)?;
                Ok(false)
            }
        }
    }

    /// Fences the volume if an object is neither as it was known nor made by this process.
    fn check_found(
        &self,
        at: &object_store::path::Path,
        known: &Known,
        found: &Found,
    ) -> Result<(), Failure> {
        let is_own = || found.stamp.as_ref().is_some_and(|it| it.starts_with(&self.session));
        let is_expected = match known {
            Known::Nothing => true,
            Known::Version(version) => *version == found.version,
            // A deletion may have been carried out.
            Known::Before(version) => {
                *version == found.version || found.version == Version::Missing || is_own()
            }
        };
        if is_expected { Ok(()) } else { Err(self.fence(&format!("{at} has changed"))) }
    }

    /// Waits until the lease has been renewed in time.
    async fn wait_for_lease(&self) -> Result<(), Failure> {
        let Some(lease) = &self.lease else {
            let reason = format!("{} was opened for reading only", self.bucket.name());
            return Err(Failure::new(io::ErrorKind::PermissionDenied, reason));
        };
        let due = Instant::now() + self.bucket.timeout();
        while !lease.is_fresh() {
            self.check_use()?;
            if Instant::now() >= due {
                let reason = format!("{}: the lease could not be renewed", self.bucket.name());
                return Err(Failure::new(io::ErrorKind::TimedOut, reason));
            }
            sleep(std::time::Duration::from_millis(20)).await;
        }
        self.check_use()
    }
}

/// Returns the changes that make some ranges of objects zeros.
fn zeros(
    parts: impl Iterator<Item = (u64, Range<usize>)>,
    mut is_wanted: impl FnMut(&(u64, Range<usize>)) -> bool,
) -> impl Iterator<Item = (u64, Range<usize>, Change)> {
    parts.filter(move |part| is_wanted(part)).map(|(number, range)| (number, range, Change::Zero))
}
