//! A failover pair: two servers of the same images of Ceph, of which one serves.
//!
//! The images' exclusive locks say which one that is. The server that has them, the *active* one,
//! keeps a lease: a record in a note beside the first image, which it renews. The other, the
//! *standby*, looks at the record. Where it has stood still for longer than the lease, the standby
//! fences the owner of the locks and takes them. An active server that could not renew its lease in
//! time ends itself before it answers anything more. Which server may serve is Ceph's word alone:
//! there is no vote here, and no message between the two.

mod last_half;
mod lease;
mod watching;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use floe_device::{RbdName, create_private_folder, end_process, patiently};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use last_half::LastHalf;
pub use lease::{Lease, LeaseError, LeaseRecord};
pub use watching::{StandbyError, Waited, stand_by};

/// The exit code of a server whose turn has ended without its doing: it was paused for longer than
/// its lease, could not renew it, or was fenced.
pub const LOST_TURN: u8 = 4;

/// The time for the log to say why, before the process ends.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A moment that never comes.
const NEVER: u64 = u64::MAX;

/// The part of a server in its pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It waits.
    #[default]
    Standby,
    /// It serves.
    Active,
}

/// The state of a server of a pair.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PairStatus {
    /// Its part.
    pub role: Role,
    /// The number of servers that have had the images up to the active one.
    pub generation: u64,
    /// The machine of the active server, if one is known.
    pub active: Option<String>,
    /// The lease of the active server, in seconds.
    pub lease_seconds: f64,
    /// Time since the lease was last seen to be renewed, in seconds.
    pub renewed_seconds: f64,
    /// The machine of a standby that was seen within the last lease, or by itself.
    #[serde(default)]
    pub standby: Option<String>,
    /// Time since the last change, in seconds.
    pub since_seconds: f64,
    /// The last change, and its reason.
    pub reason: String,
}

/// The status of a server that stands by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandbyStatus {
    /// Its part in the pair.
    pub pair: PairStatus,
}

/// The state of the pair, and its times.
#[derive(Debug, Default)]
struct Told {
    status: PairStatus,
    changed: Duration,
    renewed: Duration,
    /// The standby that was seen last, and when.
    standby: Option<(String, Duration)>,
    /// The thing without which it cannot serve yet.
    lacks: Option<String>,
}

/// The turn of this server, shared by all its threads.
#[derive(Debug)]
pub struct Turn {
    /// The moment of the clock that counts also while the machine sleeps, in nanoseconds, up to
    /// which it may answer. Nothing else is read because of it, so that relaxed loads and stores
    /// do: a thread that sees an old value ends the process too early, never too late.
    until: AtomicU64,
    /// Ending has begun.
    is_over: AtomicBool,
    /// An operator wants it to take over now.
    wanted: AtomicBool,
    told: Mutex<Told>,
}

/// Time since the machine was started, while it slept too.
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
            told: Mutex::new(told),
        }
    }
}

impl Turn {
    /// Ends the process if its turn is over. Called before answers are handed to clients.
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

    /// The time that is left.
    fn left(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Ordering::Relaxed));
        until.saturating_sub(now())
    }

    /// The lease was renewed by a request that began at `asked`.
    fn renew(&self, asked: Duration, lease: Duration) {
        self.until.store(nanoseconds(asked + lease), Ordering::Relaxed);
        self.tell(|told| told.renewed = asked);
    }

    /// The server ends in good order: it keeps its locks to the end, but no lease any more.
    fn release(&self) {
        self.until.store(NEVER, Ordering::Relaxed);
    }

    /// Ends the process without an answer to anybody.
    fn end(&self, why: &str) -> ! {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            tracing::error!(why, "this server's turn is over; it ends and answers nothing more");
        }
        std::thread::sleep(LAST_WORDS); // other threads come here as well before they answer
        end_process(LOST_TURN)
    }

    /// Asks for the images though the active server may be well.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().expect("nobody panics with it"));
    }

    /// Notes a change of roles.
    fn change(&self, role: Role, generation: u64, active: Option<String>, why: &str) {
        self.tell(|told| {
            told.changed = now();
            told.status.role = role;
            told.status.generation = generation;
            told.status.active = active;
            why.clone_into(&mut told.status.reason);
        });
    }

    /// Notes what a standby has seen of the active server.
    fn saw(&self, generation: u64, active: &str, lease: Duration, renewed: Duration) {
        self.tell(|told| {
            told.status.generation = generation;
            told.status.active = Some(active.to_owned());
            told.status.lease_seconds = lease.as_secs_f64();
            told.renewed = renewed;
        });
    }

    /// Notes that a standby is there.
    fn saw_standby(&self, server: String) {
        self.tell(|told| told.standby = Some((server, now())));
    }

    /// Notes the thing without which it cannot serve yet.
    pub fn lacks(&self, what: Option<String>) {
        self.tell(|told| told.lacks = what);
    }

    /// Notes the lease of this server.
    fn lease(&self, lease: Duration) {
        self.tell(|told| told.status.lease_seconds = lease.as_secs_f64());
    }

    /// The state for people and programs.
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

/// The file; nothing is held yet.
///
/// The server keeps the file locked for as long as it runs. The system frees it when the process
/// has ended, however that was. So a server that is started again knows at once that the owner of
/// the images is its dead predecessor, and does not wait for the lease. The file names the owner as
/// the cluster does, so that an old file, or one of another pair, says nothing.
#[derive(Debug, Clone)]
pub struct OwnNote(PathBuf);

/// The file while it is held.
#[derive(Debug)]
struct Held(#[expect(dead_code, reason = "its lock ends with it")] File);

impl OwnNote {
    /// Names the file of a pair with this first image, in the state directory.
    pub(crate) fn new(state: &std::path::Path, image: &RbdName) -> Self {
        let image = image.to_string().replace(['/', '@'], "-");
        Self(state.join(format!("pair-{image}")))
    }

    /// Holds the file for a server with these locks. Two servers of one state directory have one
    /// note, and the second has none.
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

    /// Returns the locks of the server that had this one, if that has ended.
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
