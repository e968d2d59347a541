//! One thread's device of a volume in a bucket.
//!
//! The bytes of a write are copied when it is submitted, and those of a read when its answer is
//! collected. So the volume's thread never touches the caller's memory.

use std::io;
use std::time::{Duration, Instant};

use super::name::S3Error;
use super::source::{Answer, Job, JobAction, S3Source};
use crate::buffer::{Pool, Slice};
use crate::device::{Action, Completion, Device, Operation, clip};
use crate::file::OpenError;
use crate::identity::{Fact, FactKind, Identity};
use crate::queue::{Inbox, Queue, check_resize};
use crate::ring::Ring;
use crate::source::PreparedDevice;

/// One thread's handle of a volume in a bucket.
#[derive(Debug)]
pub(super) struct S3Device {
    source: S3Source,
    size: u64,
    inbox: Inbox<Answer>,
    queue: Queue<S3Operation>,
    answers: Vec<Answer>,
}

/// An operation that the volume's thread has.
#[derive(Debug)]
struct S3Operation {
    token: u64,
    /// The memory to read into.
    into: Option<Slice>,
}

impl S3Device {
    /// Creates a thread's device for an open volume.
    ///
    /// # Errors
    /// When the system has no eventfd left.
    pub(super) fn new(ring: &Ring, source: &S3Source) -> io::Result<S3Device> {
        Ok(S3Device {
            source: source.clone(),
            size: source.size_bytes(),
            inbox: Inbox::new(ring)?,
            queue: Queue::default(),
            answers: Vec::new(),
        })
    }

    fn begin(&mut self, operation: Operation) -> io::Result<()> {
        let bytes = clip(&operation, self.size)?;
        let Operation { token, offset, action } = operation;
        let engine = self.source.engine();
        if engine.lease.is_none() && !matches!(action, Action::Read(_) | Action::Flush) {
            let message = format!("{} was opened for reading only", S3Source::name(&self.source));
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let mut parts = engine.volume.parts(offset, bytes);
        if matches!(action, Action::Zero { fast: true, .. })
            && !parts.all(|(number, range)| engine.is_whole(number, &range))
        {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "zeros would be written"));
        }
        let into = match &action {
            Action::Read(into) => {
                into.slice(bytes as usize..into.len()).fill_zero();
                Some(into.slice(0..bytes as usize))
            }
            _ => None,
        };
        // A write that has been acknowledged is durable.
        if bytes == 0 || matches!(action, Action::Flush) {
            self.queue.end(token, Ok(()));
            return Ok(());
        }
        let action = match action {
            Action::Read(_) => JobAction::Read,
            Action::Write { from, .. } => {
                JobAction::Write(from.slice(0..bytes as usize).to_vec().into())
            }
            Action::Zero { .. } => JobAction::Zero,
            Action::Discard { .. } => JobAction::Discard,
            Action::Flush => unreachable!("it has ended"),
        };
        self.inbox.listen()?;
        let slot = self.queue.insert(S3Operation { token, into });
        let to = std::sync::Arc::clone(&self.inbox.mailbox);
        self.source.begin(Job { to, slot, offset, bytes, action });
        Ok(())
    }
}

impl Device for S3Device {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn submit(&mut self, operation: Operation) {
        let token = operation.token;
        if let Err(error) = self.begin(operation) {
            self.queue.end(token, Err(error));
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.queue.take_ended(done);
        self.inbox.collect(&mut self.answers, self.queue.len());
        for (slot, result) in self.answers.drain(..) {
            let operation = self.queue.remove(slot);
            let result = result.map(|parts| {
                let Some(into) = operation.into else { return };
                for (range, bytes) in parts {
                    let part = into.slice(range);
                    match bytes {
                        Some(bytes) => part.copy_from(&bytes),
                        None => part.fill_zero(),
                    }
                }
            });
            let result = result.map_err(io::Error::from);
            done.push(Completion { token: operation.token, result });
        }
    }

    fn set_size(&mut self, bytes: u64) -> io::Result<()> {
        check_resize("volume", bytes, self.source.size_bytes())?;
        self.size = bytes;
        Ok(())
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.source.engine().bucket.shorten_timeout(timeout);
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.next_due().or_else(|| self.inbox.next_due(self.queue.len()))
    }
}

impl PreparedDevice for S3Source {
    fn size_bytes(&self) -> u64 {
        self.engine().volume.size
    }

    fn name(&self) -> String {
        S3Source::name(self).to_string()
    }

    fn identity(&self) -> Identity {
        Identity::of([Fact::text(FactKind::Bucket, &self.engine().volume.id)])
    }

    fn refresh(&self) -> io::Result<u64> {
        Ok(self.size_bytes())
    }

    fn open(&self, ring: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        let failed = |source| S3Error::System { volume: S3Source::name(self).to_string(), source };
        Ok(Box::new(S3Device::new(ring, self).map_err(failed)?))
    }
}
