//! The lease of an active server, and its record beside the first image.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

use floe_device::RbdSource;
use serde::{Deserialize, Serialize};

use super::{Held, OwnNote, Role, Turn, now};

/// The error number of a Ceph cluster to a client that it has blocklisted.
const FENCED: i32 = 108;

/// The reason why a lease could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The lease record could not be read or written.
    #[error("cannot keep a lease in image {image}: {source}")]
    Image {
        /// Name of the first image.
        image: String,
        /// The error of the Ceph library.
        source: io::Error,
    },
    /// The thread that renews the lease could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The lease of an active server. It is renewed until this value is dropped.
#[derive(Debug)]
pub struct Lease {
    turn: Arc<Turn>,
    /// Dropping this sender stops the renewing thread.
    ending: Option<Sender<()>>,
    /// Disconnected once the renewing thread has closed its image.
    renewing: Receiver<()>,
    /// Lock file that shows the next server on this machine that this one runs.
    _held: Option<Held>,
}

/// Longest wait for a renewal under way when the lease is dropped. The cluster may not answer at
/// all.
const PATIENCE: Duration = Duration::from_secs(10);

impl Lease {
    /// Takes the lease for images whose locks this server holds, and renews it in a thread. `own`
    /// is the server's lock file on this machine, if it has a state directory.
    ///
    /// # Errors
    /// When the record cannot be read or written, or a thread cannot be started.
    ///
    /// # Panics
    /// When there is no image.
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
            upper_half: turn.choose_half(standby(&first).is_some_and(|it| it.upper_half)),
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
    /// Ends the lease after the server's last reply. The locks are released with the devices.
    fn drop(&mut self) {
        self.turn.release();
        self.ending = None;
        let _ = self.renewing.recv_timeout(PATIENCE); // nothing is ever sent
    }
}

/// Renews the lease three times in its duration, until the server ends. Also looks for notes of a
/// standby.
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

/// Returns the note of a standby; `None` if there is none or it cannot be read.
fn standby(image: &RbdSource) -> Option<StandbyRecord> {
    image.note(STANDBY).ok().flatten().and_then(|text| StandbyRecord::decode(&text))
}

/// Ends the process when the lease has run out, even if no client sends a request.
fn watch(turn: &Weak<Turn>) {
    while let Some(turn) = turn.upgrade() {
        turn.check();
        let left = turn.left();
        drop(turn);
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_secs(1)));
    }
}

/// The key of the note with the lease record.
pub(super) const KEY: &str = "lease";

/// The record of a lease, stored as JSON. Fields that newer versions add are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Host name of the active server.
    pub server: String,
    /// Number of the server that has the images, counted from 1 for the first one.
    pub generation: u64,
    /// Number of renewals so far.
    pub beat: u64,
    /// Duration of the lease, in milliseconds.
    pub lease_ms: u64,
    /// Owners of the images' locks, as the cluster names them, in the order of the volumes.
    pub owners: Vec<String>,
    /// Its NVMe controllers have identifiers of the upper half.
    #[serde(default)]
    pub upper_half: bool,
}

impl LeaseRecord {
    /// Returns the duration of the lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Returns the record as JSON, the text of the note.
    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    /// Parses the text of a note; `None` if it is no lease record.
    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// The key of the note by which a standby announces itself.
pub(super) const STANDBY: &str = "standby";

/// The note of a running standby, rewritten each second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StandbyRecord {
    /// Host name of the standby.
    pub(super) server: String,
    /// Uptime of the standby's machine in milliseconds, so that each note differs from the last.
    pub(super) beat: u64,
    /// Its NVMe controllers have identifiers of the upper half.
    #[serde(default)]
    pub(super) upper_half: bool,
}

impl StandbyRecord {
    pub(super) fn new(beat: Duration, upper_half: bool) -> Self {
        Self { server: machine(), beat: beat.as_millis() as u64, upper_half }
    }

    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("it is plain data")
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// Returns the host name of this machine.
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
            upper_half: true,
        };
        assert_eq!(LeaseRecord::decode(&record.encode()), Some(record.clone()));
        let newer = record.encode().replacen('{', "{\"colour\":\"red\",", 1);
        assert_eq!(LeaseRecord::decode(&newer), Some(record.clone()));
        let older = record.encode().replacen(",\"upper_half\":true", "", 1);
        assert_eq!(LeaseRecord::decode(&older), Some(LeaseRecord { upper_half: false, ..record }));
        for text in ["", "{}", "[]", "storage1", "{\"server\":1}"] {
            assert_eq!(LeaseRecord::decode(text), None, "{text}");
        }
    }
}
