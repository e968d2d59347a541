//! A failover pair: two servers of the same Ceph images, one of which serves at a time.
//!
//! The images' exclusive locks determine which one serves. The *active* server holds the locks and
//! keeps a lease: a record in a note (an object beside the first image), which it renews. The
//! *standby* watches the record. If the record has not changed for longer than the lease, the
//! standby fences the owner of the locks and takes them. An active server that could not renew its
//! lease in time ends its process before it answers another request. Only Ceph decides which server
//! may serve: the two servers neither vote nor exchange messages.

mod last_half;
mod lease;
mod watching;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use floe_device::{RbdName, create_private_folder, end_process, patiently};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use last_half::last_half;
pub use lease::{Lease, LeaseError, LeaseRecord};
pub use watching::{StandbyError, Waited, stand_by};

/// The exit code of a server that involuntarily lost its right to serve: it was paused for longer
/// than its lease, could not renew the lease, or was fenced.
pub const LOST_TURN: u8 = 4;

/// Pause before the process ends, so that the log can report the reason.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The value of [`Turn::until`] for a server without a deadline.
const NEVER: u64 = u64::MAX;

/// The role of a server in its pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The server waits to take over.
    #[default]
    Standby,
    /// The server serves clients.
    Active,
}

/// The status of a server of a pair, as the admin interface shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PairStatus {
    /// Role of this server.
    pub role: Role,
    /// Number of the active server, counted from 1 for the first server that ever had the images.
    pub generation: u64,
    /// Host name of the active server, if known.
    pub active: Option<String>,
    /// Duration of the active server's lease, in seconds.
    pub lease_seconds: f64,
    /// Time since the lease was last seen to be renewed, in seconds.
    pub renewed_seconds: f64,
    /// Host name of the standby, if one was seen within the duration of the lease.
    #[serde(default)]
    pub standby: Option<String>,
    /// Time since the last change of roles, in seconds.
    pub since_seconds: f64,
    /// The reason of the last change of roles, and the obstacle to serving, if there is one.
    pub reason: String,
}

/// The status document of a standby server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandbyStatus {
    /// State of the pair.
    pub pair: PairStatus,
}

/// The pair's status and the times behind its durations.
#[derive(Debug, Default)]
struct Told {
    status: PairStatus,
    changed: Duration,
    renewed: Duration,
    /// Host name of the standby that was seen last, and the time.
    standby: Option<(String, Duration)>,
    /// The obstacle that keeps this server from serving, as shown in the status.
    lacks: Option<String>,
}

/// This server's right to serve the pair's images (its *turn*), shared by all threads.
#[derive(Debug)]
pub struct Turn {
    /// Deadline up to which the server may answer, in nanoseconds of `CLOCK_BOOTTIME`, which also
    /// runs while the machine sleeps. No other data depends on the value, so relaxed loads and
    /// stores suffice: a thread that sees an old value ends the process too early, never too late.
    until: AtomicU64,
    /// Set once the process has begun to end because the turn is over.
    is_over: AtomicBool,
    /// Set once an operator has asked this server to take over.
    wanted: AtomicBool,
    /// The half of the identifiers that this server gives to NVMe controllers: the upper one if
    /// true. Decided once, when the other server's half is known: hosts keep their controllers.
    upper_half: OnceLock<bool>,
    told: Mutex<Told>,
}

/// Returns the time since the machine booted, including time asleep.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

impl Default for Turn {
    fn default() -> Self {
        let told = Told { changed: now(), renewed: now(), ..Told::default() };
        Self {
            until: AtomicU64::new(NEVER),
            is_over: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            upper_half: OnceLock::new(),
            told: Mutex::new(told),
        }
    }
}

impl Turn {
    /// Ends the process if the server's lease has run out. Called before replies are sent to
    /// clients.
    #[inline]
    pub(crate) fn check(&self) {
        let until = self.until.load(Ordering::Relaxed);
        if until != NEVER && nanoseconds(now()) >= until {
            self.end(
                "the lease ran out before it was renewed: the server, its machine or the \
                      cluster stood still",
            );
        }
    }

    /// Returns the time left until the lease runs out.
    fn left(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Ordering::Relaxed));
        until.saturating_sub(now())
    }

    /// Extends the turn after the lease was renewed by a request that began at `asked`.
    fn renew(&self, asked: Duration, lease: Duration) {
        self.until.store(nanoseconds(asked + lease), Ordering::Relaxed);
        self.tell(|told| told.renewed = asked);
    }

    /// Removes the deadline for a normal shutdown, during which the server keeps its locks but no
    /// lease.
    fn release(&self) {
        self.until.store(NEVER, Ordering::Relaxed);
    }

    /// Ends the process at once, without any further reply to clients.
    fn end(&self, why: &str) -> ! {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            tracing::error!(
                why,
                "another server may have taken over; this one answers nothing \
                                  more and ends"
            );
        }
        std::thread::sleep(LAST_WORDS); // other threads come here as well before they answer
        end_process(LOST_TURN)
    }

    /// Records an operator's wish that this server takes over, even from a healthy active server.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Decides the half of the identifiers that this server gives to NVMe controllers, unless that
    /// is decided: not the half of the other server. Returns whether it is the upper one.
    fn choose_half(&self, others: bool) -> bool {
        *self.upper_half.get_or_init(|| !others)
    }

    /// Returns whether this server gives NVMe controllers identifiers of the upper half; `None`
    /// until that is decided.
    pub(crate) fn upper_half(&self) -> Option<bool> {
        self.upper_half.get().copied()
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().expect("nobody panics with it"));
    }

    /// Records a change of roles in the status.
    fn change(&self, role: Role, generation: u64, active: Option<String>, why: &str) {
        self.tell(|told| {
            told.changed = now();
            told.status.role = role;
            told.status.generation = generation;
            told.status.active = active;
            why.clone_into(&mut told.status.reason);
        });
    }

    /// Records in the status what a standby has observed of the active server.
    fn saw(&self, generation: u64, active: &str, lease: Duration, renewed: Duration) {
        self.tell(|told| {
            told.status.generation = generation;
            told.status.active = Some(active.to_owned());
            told.status.lease_seconds = lease.as_secs_f64();
            told.renewed = renewed;
        });
    }

    /// Records in the status that a standby was seen.
    fn saw_standby(&self, server: String) {
        self.tell(|told| told.standby = Some((server, now())));
    }

    /// Records in the status the obstacle that keeps this server from serving; `None` if there is
    /// none.
    pub fn lacks(&self, what: Option<String>) {
        self.tell(|told| told.lacks = what);
    }

    /// Records in the status the duration of this server's lease.
    fn lease(&self, lease: Duration) {
        self.tell(|told| told.status.lease_seconds = lease.as_secs_f64());
    }

    /// Returns the present status of the pair.
    pub fn status(&self) -> PairStatus {
        let (told, now) = (self.told.lock().expect("nobody panics with it"), now());
        let lately =
            |seen: Duration| now.saturating_sub(seen).as_secs_f64() < told.status.lease_seconds;
        let standby = told.standby.as_ref().filter(|(_, seen)| lately(*seen));
        let reason = &told.status.reason;
        PairStatus {
            reason: match &told.lacks {
                Some(lacks) => format!("{reason}; serves nothing yet: {lacks}"),
                None => reason.clone(),
            },
            standby: standby.map(|(server, _)| server.clone()),
            renewed_seconds: now.saturating_sub(told.renewed).as_secs_f64(),
            since_seconds: now.saturating_sub(told.changed).as_secs_f64(),
            ..told.status.clone()
        }
    }
}

/// A lock file on this machine that records which image locks the running server owns.
///
/// The server keeps the file locked for as long as it runs, and the system releases that lock when
/// the process ends, however it ends. So a restarted server knows at once that its predecessor,
/// which owns the images, is dead, and does not wait for the lease. The file names the owner as the
/// cluster does, so that an old file or one of another pair has no effect.
#[derive(Debug, Clone)]
pub struct OwnNote(PathBuf);

/// The locked file; dropping it releases the lock.
#[derive(Debug)]
struct Held(#[expect(dead_code, reason = "its lock ends with it")] File);

impl OwnNote {
    /// Names the file for the pair with this first image, in the state directory.
    pub(crate) fn new(state: &std::path::Path, image: &RbdName) -> Self {
        let image = image.to_string().replace(['/', '@'], "-");
        Self(state.join(format!("pair-{image}")))
    }

    /// Locks the file and writes the owners of the server's image locks into it. If two servers
    /// share a state directory, the second one fails here.
    fn hold(&self, owners: &[String]) -> io::Result<Held> {
        self.0.parent().map_or(Ok(()), create_private_folder)?;
        let mut how = File::options();
        let how = how.create(true).write(true).truncate(false).mode(0o600);
        let mut file = how.open(&self.0)?;
        let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
        patiently(lock, |error| *error == Errno::WOULDBLOCK)?;
        file.set_len(0)?;
        file.write_all(owners.join("\n").as_bytes())?;
        Ok(Held(file))
    }

    /// Returns all image locks of the server that wrote the file, if that server has ended and
    /// `owner` is among them.
    fn of_the_dead(&self, owner: &str) -> Option<Vec<String>> {
        let mut file = File::open(&self.0).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        let owners: Vec<String> = text.lines().map(str::to_owned).collect();
        owners.iter().any(|other| other == owner).then_some(owners)
    }
}

#[cfg(test)]
mod own_tests {
    use super::*;

    #[test]
    fn a_server_is_known_to_have_ended_by_its_own_locks_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let note = OwnNote(folder.path().join("state/pair"));
        assert_eq!(note.of_the_dead("a"), None, "there was none");
        let owners = vec!["a".to_owned(), "b".to_owned()];
        let held = note.hold(&owners).unwrap();
        assert_eq!(note.of_the_dead("a"), None, "it lives");
        drop(held);
        assert_eq!(note.of_the_dead("b"), Some(owners));
        assert_eq!(note.of_the_dead("c"), None, "another server's lock");
        let held = note.hold(&["c".to_owned()]).unwrap();
        drop(held);
        assert_eq!(note.of_the_dead("a"), None, "an earlier one");
    }
}
