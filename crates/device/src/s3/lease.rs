//! The lease of a volume's writer: the object `owner`.
//!
//! The writer puts it anew every third of its term, and sends no write once its last renewal is
//! older than four fifths of the term. Another server takes the lease over when it has watched it
//! for a whole term without a change. No clocks are compared. The lease of a process that has died
//! on the same machine is taken over at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use object_store::path::Path;
use tokio::time::{Instant, sleep};

use super::bucket::{Bucket, Failure, Found, PutError, Version};
use super::name::{S3Error, S3Name};
use super::volume::reason;

/// The first word of a lease that nobody holds.
const FREE: &str = "free";

/// A lease that this process holds.
#[derive(Debug)]
pub(super) struct Lease {
    at: Path,
    /// The start of the stamps of this process.
    session: String,
    term: Duration,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    version: Version,
    /// The time before the last renewal was sent.
    renewed: Instant,
    count: u64,
}

impl Lease {
    /// Takes the lease, once it is free or its holder is dead.
    pub(super) async fn take(
        bucket: &Bucket,
        name: &S3Name,
        at: Path,
        session: &str,
        term: Duration,
    ) -> Result<Lease, S3Error> {
        let failed = |failure: Failure| S3Error::Request {
            what: "take the lease of",
            volume: name.to_string(),
            reason: reason(&failure, name),
        };
        let mut found = bucket.get(&at, None).await.map_err(failed)?;
        let process = Process::own();
        if let Some(owner) = holder(&found).filter(|owner| !process.knows_dead(owner)) {
            let first = found.version.clone();
            let begun = Instant::now();
            while begun.elapsed() < term {
                sleep(term / 10).await;
                found = bucket.get(&at, None).await.map_err(failed)?;
                if holder(&found).is_none() {
                    break;
                }
                if found.version != first {
                    return Err(S3Error::Locked { volume: name.to_string(), owner: short(&owner) });
                }
            }
        }
        let renewed = Instant::now();
        let text = format!("{}\ncount 0\n", process.text());
        match bucket.put(&at, text.into(), &found.version, &format!("{session}/lease-0")).await {
            Ok(version) => {
                let held = Mutex::new(Held { version, renewed, count: 0 });
                Ok(Lease { at, session: session.to_owned(), term, held })
            }
            Err(PutError::Failed(failure)) => Err(failed(failure)),
            Err(PutError::Conflict(_)) => {
                let owner = match bucket.get(&at, None).await {
                    Ok(found) => holder(&found),
                    Err(_) => None,
                };
                let owner = owner.map(|it| short(&it)).unwrap_or_else(|| "just begun".to_owned());
                Err(S3Error::Locked { volume: name.to_string(), owner })
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the last renewal is young enough to write.
    pub(super) fn is_fresh(&self) -> bool {
        self.held().renewed.elapsed() < self.term * 4 / 5
    }

    /// Renews the lease until another server has it, and returns that one's name.
    pub(super) async fn keep(&self, bucket: &Bucket) -> String {
        loop {
            // A renewal that took long is old already.
            if self.is_fresh() {
                sleep(self.term / 3).await;
            }
            if let Some(owner) = self.renew(bucket, false).await {
                return owner;
            }
        }
    }

    /// Gives the lease back.
    pub(super) async fn release(&self, bucket: &Bucket) {
        self.renew(bucket, true).await; // else it ends with its term
    }

    /// Puts the lease once. Returns the name of another holder, if there is one.
    async fn renew(&self, bucket: &Bucket, is_last: bool) -> Option<String> {
        let (version, count) = {
            let mut held = self.held();
            held.count += 1;
            (held.version.clone(), held.count)
        };
        let text = match is_last {
            true => format!("{FREE}\ncount {count}\n"),
            false => format!("{}\ncount {count}\n", Process::own().text()),
        };
        let stamp = format!("{}/lease-{count}", self.session);
        let begun = Instant::now();
        match bucket.put(&self.at, text.into(), &version, &stamp).await {
            Ok(version) => {
                let mut held = self.held();
                (held.version, held.renewed) = (version, begun);
                None
            }
            Err(PutError::Failed(_)) => {
                sleep(self.term / 10).await; // `is_fresh` ends the writes in time
                None
            }
            Err(PutError::Conflict(found)) => {
                // An earlier renewal that was thought to have failed.
                let is_own = found.stamp.as_ref().is_some_and(|it| it.starts_with(&self.session));
                if is_own {
                    self.held().version = found.version;
                    return None;
                }
                let owner = bucket.get(&self.at, None).await.ok().as_ref().and_then(holder);
                Some(owner.map(|it| short(&it)).unwrap_or_else(|| "unknown".to_owned()))
            }
        }
    }
}

/// Returns the name of a lease's holder; `None` if it is free.
fn holder(found: &Found) -> Option<String> {
    let text = String::from_utf8_lossy(&found.bytes);
    let first = text.lines().next().filter(|line| !line.is_empty() && *line != FREE)?;
    Some(first.to_owned())
}

/// Returns the host and process of a holder, for messages.
fn short(owner: &str) -> String {
    owner.split(" of ").next().unwrap_or(owner).to_owned()
}

/// The process that holds a lease, by names that no other process on the machine has at the time.
struct Process {
    host: String,
    pid: u32,
    /// The boot of the machine and the process's name space, in which the number is valid.
    space: String,
}

impl Process {
    fn own() -> Process {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Process {
            host: read("/proc/sys/kernel/hostname"),
            pid: std::process::id(),
            space: format!("{} {}", read("/proc/sys/kernel/random/boot_id"), space.display()),
        }
    }

    fn text(&self) -> String {
        format!("{} process {} of {}", self.host, self.pid, self.space)
    }

    /// Returns whether a holder was a process of this machine and this boot that has ended.
    fn knows_dead(&self, owner: &str) -> bool {
        let Some((process, space)) = owner.split_once(" of ") else { return false };
        let pid = process.rsplit(' ').next().and_then(|pid| pid.parse::<u32>().ok());
        let is_gone =
            |pid: u32| pid != self.pid && !std::path::Path::new(&format!("/proc/{pid}")).exists();
        space == self.space && self.space.len() > 8 && pid.is_some_and(is_gone)
    }
}

#[cfg(test)]
mod lease_tests {
    use super::*;

    #[test]
    fn only_a_process_of_this_boot_is_known_to_be_dead() {
        let own = Process::own();
        let other = |pid: u32, space: &str| {
            Process { host: own.host.clone(), pid, space: space.to_owned() }.text()
        };
        assert!(!own.knows_dead(&own.text()), "this process lives");
        assert!(!own.knows_dead(&other(1, &own.space)), "the first process lives");
        let none = u32::MAX - 1;
        assert!(own.knows_dead(&other(none, &own.space)));
        assert!(!own.knows_dead(&other(none, "another boot")));
        assert!(!own.knows_dead("") && !own.knows_dead("host process 1"));
    }
}
