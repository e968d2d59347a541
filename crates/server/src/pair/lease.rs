//! The lease of an active server, and its record beside the first image.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

use floe_device::RbdSource;
use serde::{Deserialize, Serialize};

use super::{Held, OwnNote, Role, Turn, now};

/// The answer of a cluster to a client that it refuses by name.
const FENCED: i32 = 108;

/// Why a lease could not be begun.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The record could not be read or written.
    #[error("cannot keep a lease in image {image}: {source}")]
    Image {
        /// The first image.
        image: String,
        /// The library's answer.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The lease of this server; it is renewed until this is dropped.
#[derive(Debug)]
pub struct Lease {
    turn: Arc<Turn>,
    /// Dropped when the lease is to end.
    ending: Option<Sender<()>>,
    /// Ends when the thread that renews has let go of the image.
    renewing: Receiver<()>,
    /// Tells the next server of this machine that this one lives.
    _held: Option<Held>,
}

/// The longest wait for a renewal that is under way; a cluster that does not answer keeps it.
const PATIENCE: Duration = Duration::from_secs(10);

impl Lease {
    /// Takes the lease of images whose locks this server has, and renews it. `own` is its note on
    /// this machine, if it has a place for one.
    ///
    /// # Errors
    /// When the record cannot be written.
    ///
    /// # Panics
    /// Without an image.
    pub fn begin(
        turn: &Arc<Turn>,
        images: &[RbdSource],
        own: Option<&OwnNote>,
        lease: Duration,
        why: &str,
    ) -> Result<Self, LeaseError> {
        let first = images.first().expect("there is an image").clone();
        let failed = |source| LeaseError::Image { image: first.name().to_string(), source };
        let owners = images.iter().map(RbdSource::owner).collect::<io::Result<Vec<_>>>();
        let before = first.note(KEY).map_err(failed)?;
        let before = before.and_then(|text| LeaseRecord::decode(&text));
        let record = LeaseRecord {
            server: machine(),
            generation: before.map_or(0, |before| before.generation) + 1,
            beat: 0,
            lease_ms: lease.as_millis() as u64,
            owners: owners.map_err(failed)?.into_iter().flatten().collect(),
        };
        let held = own.and_then(|own| match own.hold(&record.owners) {
            Ok(held) => Some(held),
            Err(error) => {
                tracing::warn!(%error, "a start after a crash will wait for the lease");
                None
            }
        });
        let asked = now();
        first.set_note(KEY, &record.encode()).map_err(failed)?;
        turn.lease(lease);
        turn.change(Role::Active, record.generation, Some(record.server.clone()), why);
        turn.renew(asked, lease);
        tracing::info!(generation = record.generation, reason = why, "this server is active");
        let (sender, ending) = channel();
        let (done, renewing) = channel::<()>();
        let (of_renewal, of_watch) = (Arc::clone(turn), Arc::downgrade(turn));
        let renewal = move || {
            renew(&of_renewal, first, record, &ending);
            drop(done);
        };
        let watch = move || watch(&of_watch);
        Builder::new().name("floe-lease".into()).spawn(renewal).map_err(LeaseError::Thread)?;
        Builder::new().name("floe-lease-end".into()).spawn(watch).map_err(LeaseError::Thread)?;
        Ok(Self { turn: Arc::clone(turn), ending: Some(sender), renewing, _held: held })
    }
}

impl Drop for Lease {
    /// The server has answered its last client; the locks end with the devices.
    fn drop(&mut self) {
        self.turn.release();
        self.ending = None;
        let _ = self.renewing.recv_timeout(PATIENCE); // nothing is ever sent
    }
}

/// Renews the lease three times in its duration, until the server ends.
fn renew(turn: &Turn, image: RbdSource, mut record: LeaseRecord, ending: &Receiver<()>) {
    let lease = record.lease();
    let mut standby = standby(&image); // an old note does not change
    while ending.recv_timeout(lease / 3) == Err(RecvTimeoutError::Timeout) {
        record.beat += 1;
        let asked = now();
        match image.set_note(KEY, &record.encode()) {
            Ok(()) if turn.left().is_zero() => {} // too late: the other thread ends the process
            Ok(()) => turn.renew(asked, lease),
            Err(error) if error.raw_os_error() == Some(FENCED) => {
                turn.end("another server has fenced this one and taken the images");
            }
            Err(error) => tracing::warn!(%error, "the lease could not be renewed; trying again"),
        }
        let seen = self::standby(&image);
        if let Some(seen) = seen.filter(|seen| standby.as_ref() != Some(seen)) {
            turn.saw_standby(seen.server.clone());
            standby = Some(seen);
        }
    }
}

/// The note of a standby; none where it cannot be read.
fn standby(image: &RbdSource) -> Option<StandbyRecord> {
    image.note(STANDBY).ok().flatten().and_then(|text| StandbyRecord::decode(&text))
}

/// Ends the process when its turn is over, also where no client asks anything.
fn watch(turn: &Weak<Turn>) {
    while let Some(turn) = turn.upgrade() {
        turn.check();
        let left = turn.left();
        drop(turn);
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_secs(1)));
    }
}

/// The key of the record's note.
pub(super) const KEY: &str = "lease";

/// The record, as JSON. Fields that a newer version adds are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The machine of the server.
    pub server: String,
    /// Counts the servers that have had the images, one after the other.
    pub generation: u64,
    /// Counts the renewals.
    pub beat: u64,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// The owners of the images' locks, as the cluster calls them, in the order of the volumes.
    pub owners: Vec<String>,
}

impl LeaseRecord {
    /// The lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// The text of the note.
    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    /// Reads the text of a note; `None` where it is something else.
    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The key of the note in which a standby says that it is there.
pub(super) const STANDBY: &str = "standby";

/// A standby that is there. Its note changes each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandbyRecord {
    /// The machine of the server.
    pub(super) server: String,
    /// The time since its machine was started, in milliseconds.
    pub(super) beat: u64,
}

impl StandbyRecord {
    pub(super) fn new(beat: Duration) -> Self {
        Self { server: machine(), beat: beat.as_millis() as u64 }
    }

    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The name of this machine.
pub(super) fn machine() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod record_tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let record = LeaseRecord {
            server: "storage1".to_owned(),
            generation: 7,
            beat: 12,
            lease_ms: 5000,
            owners: vec!["127.0.0.1:0/1".to_owned()],
        };
        assert_eq!(LeaseRecord::decode(&record.encode()), Some(record.clone()));
        let newer = record.encode().replacen('{', "{\"colour\":\"red\",", 1);
        assert_eq!(LeaseRecord::decode(&newer), Some(record));
        for text in ["", "{}", "[]", "storage1", "{\"server\":1}"] {
            assert_eq!(LeaseRecord::decode(text), None, "{text}");
        }
    }
}
