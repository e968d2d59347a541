//! A standby's watch of the active server, and the decision to take over.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use floe_device::{RbdError, RbdName, RbdWatch};

use super::lease::{KEY, LeaseRecord, STANDBY, StandbyRecord};
use super::{OwnNote, Role, Turn, now};

/// Interval at which a standby checks the images' lock and lease.
const LOOK: Duration = Duration::from_millis(200);

/// Interval at which a standby announces itself.
const NOTE: Duration = Duration::from_secs(1);

/// The reason why a standby cannot watch the images.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// An image cannot be opened.
    #[error(transparent)]
    Image(#[from] RbdError),
}

/// The reason why a standby's wait has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// No server owns the images: this one may take their locks. The text is the reason, for the
    /// log.
    Free(String),
    /// The server was told to end.
    Ended,
}

/// One check of the first image's lock and lease record. Times are those of [`now`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    /// Time at which the check began, before its first request to the cluster.
    asked: Duration,
    answered: Duration,
    /// The owner of the lock, and whether that client may still be running.
    owner: Option<(String, bool)>,
    record: Option<LeaseRecord>,
}

/// The conclusion from one check of the lock and the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LeaseState {
    /// Nobody owns the lock.
    Free,
    /// The active server renews its lease.
    Wait,
    /// The lock belongs to this client, which keeps no lease.
    Foreign(String),
    /// The lock belongs to this client, which keeps no lease and has died, perhaps before its first
    /// lease.
    Dead(String),
    /// The lease of the active server has run out.
    Late(LeaseRecord),
    /// These locks belong to the server that ran on this machine before this one, and has ended.
    Own(Vec<String>),
}

/// The lease record of the active server as last observed.
#[derive(Debug, Default)]
struct Seen {
    record: Option<LeaseRecord>,
    /// Time at which the present record was first observed. The renewal itself is older.
    since: Duration,
}

impl Seen {
    /// Updates the observed record, and returns the conclusion from a check.
    ///
    /// The owner's lease begins before its renewal is observed, and clocks differ in speed by much
    /// less than a tenth. A lease has run out if a check that *began* 1.1 leases after the first
    /// observation still finds the same record. The owner then answers no client any more.
    fn look(&mut self, look: &Look) -> LeaseState {
        let Some((owner, lives)) = &look.owner else { return LeaseState::Free };
        let Some(record) = look.record.as_ref().filter(|it| it.owners.contains(owner)) else {
            return if *lives {
                LeaseState::Foreign(owner.clone())
            } else {
                LeaseState::Dead(owner.clone())
            };
        };
        if self.record.as_ref() != Some(record) {
            (self.record, self.since) = (Some(record.clone()), look.answered);
        }
        match look.asked >= self.over() {
            true => LeaseState::Late(record.clone()),
            false => LeaseState::Wait,
        }
    }

    /// Returns the time at which the lease has run out if it is not renewed.
    fn over(&self) -> Duration {
        let lease = self.record.as_ref().map_or(Duration::ZERO, LeaseRecord::lease);
        self.since + lease + lease / 10
    }
}

/// Waits until no other server owns the images: because it ended, because its lease ran out (then
/// it is fenced first), or because an operator wants this server to take over.
///
/// The wait also ends when `ended` gets a message or loses its sender, because this server is to
/// end. `own` is the lock file of the server that ran here before. `export` is called after each
/// check that finds another server with the images.
///
/// # Errors
/// When an image cannot be opened. Later errors are logged, and the check is repeated.
///
/// # Panics
/// When there is no image.
pub fn stand_by(
    turn: &Arc<Turn>,
    images: &[RbdName],
    own: Option<&OwnNote>,
    ended: &Receiver<()>,
    export: &mut dyn FnMut(),
) -> Result<Waited, StandbyError> {
    let watches = images.iter().map(RbdWatch::open).collect::<Result<Vec<_>, _>>()?;
    let first = watches.first().expect("there is an image");
    let (mut seen, mut told, mut not_before) = (Seen::default(), LeaseState::Free, Duration::ZERO);
    let mut reason = "no other server has the images".to_owned();
    let mut note_at = now();
    loop {
        let next = match look(first) {
            Ok(look) => {
                let owner = look.owner.as_ref();
                let dead = owner.zip(own).and_then(|((owner, _), own)| own.of_the_dead(owner));
                let next = dead.map_or_else(|| seen.look(&look), LeaseState::Own);
                if let (LeaseState::Wait, Some(record)) = (&next, &look.record) {
                    turn.saw(record.generation, &record.server, record.lease(), seen.since);
                    turn.choose_half(record.upper_half);
                }
                next
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the locks of the images; trying again");
                LeaseState::Wait
            }
        };
        let mut pause = LOOK;
        let forced = turn.is_wanted() && next == LeaseState::Wait && seen.record.is_some();
        match &next {
            LeaseState::Free if now() >= not_before => return Ok(Waited::Free(reason)),
            LeaseState::Free => {}
            LeaseState::Wait | LeaseState::Foreign(_) if !forced => {
                if let LeaseState::Foreign(owner) = &next
                    && told != next
                {
                    tracing::warn!(%owner, "a client that keeps no lease has the images; waiting");
                }
                if told == LeaseState::Free {
                    let why = "another server has the images";
                    turn.change(Role::Standby, turn.status().generation, None, why);
                    tracing::info!("standing by: {why}");
                }
            }
            LeaseState::Dead(owner) => {
                reason = format!("{owner}, which kept no lease, has died");
                tracing::warn!(reason, "fencing");
                fence(&watches, std::slice::from_ref(owner));
            }
            LeaseState::Own(owners) => {
                "the server that ran here before has died".clone_into(&mut reason);
                tracing::warn!(reason, "fencing");
                if fence(&watches, owners) {
                    pause = Duration::ZERO; // this server takes them, and not the other
                }
            }
            _ => {
                let why = match forced {
                    true => "an operator took over from",
                    false => "the lease ran out of",
                };
                let record = seen.record.as_ref().expect("it has been seen");
                reason = format!("{why} {}", record.server);
                tracing::warn!(generation = record.generation, reason, "fencing");
                if fence(&watches, &record.owners) {
                    not_before = seen.over(); // until then it may answer hits
                }
            }
        }
        if next == LeaseState::Wait && now() >= note_at {
            note_at = now() + NOTE;
            let half = turn.upper_half().unwrap_or_default();
            let note = StandbyRecord::new(note_at, half).encode();
            if let Err(error) = first.set_note(STANDBY, &note) {
                tracing::warn!(%error, "the active server cannot be told of this; trying again");
            }
        }
        if next != LeaseState::Free {
            export();
        }
        told = next;
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(Waited::Ended),
        }
    }
}

fn look(first: &RbdWatch) -> io::Result<Look> {
    let asked = now();
    let record = first.note(KEY)?.and_then(|text| LeaseRecord::decode(&text));
    let owner = match first.owner()? {
        Some(owner) if record.as_ref().is_some_and(|it| it.owners.contains(&owner)) => {
            Some((owner, true)) // its lease tells
        }
        Some(owner) => {
            let lives = first.may_live(&owner)?;
            Some((owner, lives))
        }
        None => None,
    };
    Ok(Look { asked, answered: now(), owner, record })
}

/// Fences those of the `owners` that still have a lock, and breaks their locks. Returns whether all
/// of that succeeded.
fn fence(watches: &[RbdWatch], owners: &[String]) -> bool {
    let mut fenced = HashSet::new();
    let done = watches.iter().try_for_each(|watch| {
        let owner = watch.owner().map_err(|source| RbdError::Image {
            what: "find the owner of",
            image: watch.name().to_string(),
            source,
        })?;
        if let Some(owner) = owner.filter(|owner| owners.contains(owner)) {
            // The images of a server share connections, and each is fenced as a whole.
            if !fenced.contains(&owner) {
                watch.fence(&owner)?;
            }
            watch.break_lock(&owner)?;
            fenced.insert(owner);
        }
        Ok::<_, RbdError>(())
    });
    if let Err(error) = &done {
        tracing::warn!(%error, "fencing failed; trying again");
    }
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    fn record(beat: u64) -> LeaseRecord {
        LeaseRecord {
            server: "a".to_owned(),
            generation: 1,
            beat,
            lease_ms: LEASE.as_millis() as u64,
            owners: vec!["x".to_owned(), "y".to_owned()],
            upper_half: false,
        }
    }

    /// Returns a check that began at `asked` ms, took a tenth of a second, and found this owner and
    /// record.
    fn at(asked: u64, owner: Option<&str>, record: Option<LeaseRecord>) -> Look {
        let asked = Duration::from_millis(asked);
        let answered = asked + Duration::from_millis(100);
        Look { asked, answered, owner: owner.map(|owner| (owner.to_owned(), true)), record }
    }

    #[test]
    fn a_lease_that_stands_still_for_longer_than_it_lasts_has_run_out() {
        let mut seen = Seen::default();
        assert_eq!(seen.look(&at(0, Some("x"), Some(record(0)))), LeaseState::Wait);
        assert_eq!(seen.look(&at(4000, Some("x"), Some(record(1)))), LeaseState::Wait);
        // Seen at 4,100 ms; a lease and a tenth of it later is 9,600 ms.
        assert_eq!(seen.look(&at(9599, Some("x"), Some(record(1)))), LeaseState::Wait);
        assert_eq!(seen.look(&at(9600, Some("x"), Some(record(1)))), LeaseState::Late(record(1)));
        assert_eq!(seen.look(&at(9700, Some("x"), Some(record(2)))), LeaseState::Wait);
    }

    #[test]
    fn looks_that_were_not_answered_say_nothing_about_the_lease() {
        let mut seen = Seen::default();
        // The first answer after a minute shows a record for the first time.
        assert_eq!(seen.look(&at(60_000, Some("x"), Some(record(9)))), LeaseState::Wait);
        assert_eq!(seen.look(&at(65_000, Some("x"), Some(record(9)))), LeaseState::Wait);
    }

    #[test]
    fn a_lock_without_a_lease_is_left_alone_however_long() {
        let mut seen = Seen::default();
        for asked in [0, 60_000, 600_000] {
            assert_eq!(seen.look(&at(asked, Some("q"), None)), LeaseState::Foreign("q".to_owned()));
            let other = seen.look(&at(asked, Some("q"), Some(record(1))));
            assert_eq!(
                other,
                LeaseState::Foreign("q".to_owned()),
                "the record is an earlier owner's"
            );
        }
        assert_eq!(seen.look(&at(700_000, None, Some(record(1)))), LeaseState::Free);
    }

    #[test]
    fn a_client_that_died_before_its_first_lease_is_known_by_that() {
        let mut seen = Seen::default();
        let dead = |asked| Look { owner: Some(("q".to_owned(), false)), ..at(asked, None, None) };
        assert_eq!(seen.look(&dead(0)), LeaseState::Dead("q".to_owned()));
        let with_record = Look { record: Some(record(1)), ..dead(0) };
        assert_eq!(seen.look(&with_record), LeaseState::Dead("q".to_owned()));
    }
}
