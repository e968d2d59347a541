//! The subsystem that hosts connect to, and the controllers of all hosts.
//!
//! A controller is made when a host connects its admin queue, and goes with that connection. I/O
//! queues join it, each on a connection of its own, perhaps of another thread. A queue holds a
//! `QueueLease`: it learns from an atomic number that its controller is gone or was reset.
//!
//! Invariant: a lock is held only while a queue connects or ends, while admin commands enable a
//! controller or grant queues, and while queues are counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::access::{AccessRules, NotAllowed, Paths, Proof};
use crate::wire::{NQN_MAX_BYTES, Status};

/// Most I/O queues of a controller: the bits of [`Queues::connected`].
pub(super) const QUEUES_MAX: u16 = 64;
/// Highest identifier of a controller.
const CONTROLLER_MAX: u16 = 0xffef;

/// The subsystem of a server.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    number: u128,
    firmware: String,
    controllers: Mutex<Controllers>,
    rules: Arc<RwLock<AccessRules>>,
    paths: Arc<Paths>,
}

#[derive(Debug, Default)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

/// A host, as it presents itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// Its identifier.
    pub id: [u8; 16],
}

/// A host's controller, as its queues share it.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: u16,
    pub(super) host: Host,
    /// Serves the discovery log and nothing else.
    pub(super) discovery: bool,
    queues: Mutex<Queues>,
    /// Changes when the controller is reset, and when it goes: I/O queues end then.
    epoch: AtomicU32,
}

#[derive(Debug, Default)]
struct Queues {
    enabled: bool,
    granted: u16,
    /// A bit for each I/O queue that is connected.
    connected: u64,
}

impl Subsystem {
    /// Makes a subsystem. `firmware` is the version that hosts are told.
    ///
    /// # Errors
    /// When the name is no NVMe qualified name.
    pub fn new(nqn: &str, firmware: &str) -> Result<Self, NqnError> {
        check_nqn(nqn)?;
        let controllers = Mutex::default();
        let (nqn, number, firmware) = (nqn.to_owned(), number_of(&[nqn]), firmware.to_owned());
        let (rules, paths) = (Arc::default(), Arc::default());
        Ok(Self { nqn, number, firmware, controllers, rules, paths })
    }

    /// Numbers its controllers from the one after this on. Servers of one subsystem begin apart: a
    /// host refuses two controllers of one number.
    #[must_use]
    pub fn numbering_after(self, last: u16) -> Self {
        lock(&self.controllers).last = last.min(CONTROLLER_MAX - 1);
        self
    }

    /// Has these paths. They may change.
    #[must_use]
    pub fn with_paths(self, paths: Arc<Paths>) -> Self {
        Self { paths, ..self }
    }

    /// The ways to it.
    pub fn paths(&self) -> &Arc<Paths> {
        &self.paths
    }

    /// Lets in only hosts that these rules admit. They may change; a change is for the queues that
    /// connect after it.
    #[must_use]
    pub fn with_access(self, rules: Arc<RwLock<AccessRules>>) -> Self {
        Self { rules, ..self }
    }

    /// Lets a host connect, if it gives the proof that is returned.
    pub(super) fn may_connect(&self, host: &str) -> Result<Option<Proof>, NotAllowed> {
        self.rules().admit(host)
    }

    /// Returns whether hosts have to prove their names.
    pub fn asks_for_proof(&self) -> bool {
        self.rules().asks_for_proof()
    }

    /// Locks the rules, also after a thread has panicked: each change is complete by itself.
    fn rules(&self) -> RwLockReadGuard<'_, AccessRules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Its serial number.
    pub(super) fn serial(&self) -> String {
        format!("{:016x}", (self.number >> 64) as u64)
    }

    pub(super) fn firmware(&self) -> &str {
        &self.firmware
    }

    /// The identifier of a namespace, which no other subsystem gives to one of its own.
    pub(super) fn identifier(&self, name: &str) -> [u8; 16] {
        let mut bytes = number_of(&[&self.nqn, name]).to_be_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x80; // a UUID of version 8
        bytes[8] = bytes[8] & 0x3f | 0x80;
        bytes
    }

    /// Makes a controller for a host; `None` when there are too many.
    pub(super) fn admit(self: &Arc<Self>, host: Host, discovery: bool) -> Option<ControllerLease> {
        let mut all = lock(&self.controllers);
        let after = all.last;
        let ids = (after + 1..=CONTROLLER_MAX).chain(1..=after);
        let id = ids.into_iter().find(|id| !all.by_id.contains_key(id))?;
        all.last = if id == CONTROLLER_MAX { 0 } else { id };
        let (queues, epoch) = (Mutex::default(), AtomicU32::new(0));
        let controller = Arc::new(Controller { id, host, discovery, queues, epoch });
        all.by_id.insert(id, Arc::clone(&controller));
        Some(ControllerLease { subsystem: Arc::clone(self), controller })
    }

    /// Finds the controller that an I/O queue names.
    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers).by_id.get(&id).cloned()
    }

    /// Returns the number of controllers.
    pub fn controllers(&self) -> usize {
        lock(&self.controllers).by_id.len()
    }
}

impl Controller {
    /// Enables the controller, or resets it.
    pub(super) fn enable(&self, enabled: bool) {
        let mut queues = lock(&self.queues);
        queues.enabled = enabled;
        if !enabled {
            *queues = Queues::default();
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Grants so many I/O queues at most. Returns the number granted.
    pub(super) fn grant(&self, wanted: u16) -> u16 {
        let mut queues = lock(&self.queues);
        queues.granted = wanted.min(QUEUES_MAX);
        queues.granted
    }

    /// Returns whether I/O queues are connected.
    pub(super) fn has_queues(&self) -> bool {
        lock(&self.queues).connected != 0
    }

    /// Connects an I/O queue. It has its number from then on, or, where it owes a proof, once it
    /// [claims](QueueLease::claim) it: until then it keeps nobody else from that.
    pub(super) fn connect(
        self: &Arc<Self>,
        queue: u16,
        owes_proof: bool,
    ) -> Result<QueueLease, Status> {
        let queues = lock(&self.queues);
        if !queues.enabled {
            return Err(Status::SEQUENCE_ERROR);
        }
        if queue == 0 || queue > queues.granted {
            return Err(Status::INVALID_QUEUE);
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        drop(queues);
        let bit = 1 << (queue - 1);
        let mut lease = QueueLease { controller: Arc::clone(self), bit, epoch, holds: false };
        if owes_proof { Ok(lease) } else { lease.claim().map(|()| lease) }
    }
}

/// The admin queue's hold on its controller, which goes with it.
#[derive(Debug)]
pub(super) struct ControllerLease {
    subsystem: Arc<Subsystem>,
    pub(super) controller: Arc<Controller>,
}

impl ControllerLease {
    pub(super) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }
}

impl Drop for ControllerLease {
    fn drop(&mut self) {
        lock(&self.subsystem.controllers).by_id.remove(&self.controller.id);
        self.controller.enable(false);
    }
}

/// An I/O queue's hold on its controller.
#[derive(Debug)]
pub(super) struct QueueLease {
    controller: Arc<Controller>,
    bit: u64,
    epoch: u32,
    /// It has the queue's number, and nobody else.
    holds: bool,
}

impl QueueLease {
    /// Takes the number of the queue.
    ///
    /// # Errors
    /// When another queue has it, the controller is gone, or grants fewer queues by now.
    pub(super) fn claim(&mut self) -> Result<(), Status> {
        let mut queues = lock(&self.controller.queues);
        if self.bit.trailing_zeros() >= queues.granted.into() {
            return Err(Status::INVALID_QUEUE);
        }
        if !self.is_valid() || queues.connected & self.bit != 0 {
            return Err(Status::SEQUENCE_ERROR);
        }
        queues.connected |= self.bit;
        self.holds = true;
        Ok(())
    }

    /// Returns whether it has the number of the queue.
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Returns whether the controller is still there, and was not reset.
    pub(super) fn is_valid(&self) -> bool {
        // Acquire: pairs with the release of the thread that ended the controller.
        self.controller.epoch.load(Ordering::Acquire) == self.epoch
    }
}

impl Drop for QueueLease {
    fn drop(&mut self) {
        let mut queues = lock(&self.controller.queues);
        if self.holds && self.is_valid() {
            queues.connected &= !self.bit;
        }
    }
}

/// A name that is no NVMe qualified name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{nqn:?} is no NVMe qualified name: it begins with nqn.YYYY-MM. and has at most 223 bytes \
     without spaces"
)]
pub struct NqnError {
    /// The text.
    pub nqn: String,
}

/// Checks that a name may be that of a host or a subsystem.
///
/// # Errors
/// When it may not.
pub fn check_nqn(nqn: &str) -> Result<(), NqnError> {
    let date = nqn.strip_prefix("nqn.").and_then(|rest| rest.split_once('.'));
    let is_date = |date: &str| {
        date.len() == 7
            && date.bytes().enumerate().all(|(at, byte)| match at {
                4 => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    };
    let is_good = date.is_some_and(|(date, rest)| is_date(date) && !rest.is_empty())
        && nqn.len() <= NQN_MAX_BYTES
        && !nqn.chars().any(|it| it.is_whitespace() || it.is_control());
    if is_good { Ok(()) } else { Err(NqnError { nqn: nqn.to_owned() }) }
}

/// Makes a number of texts that other texts hardly have: FNV-1a of 128 bits. It stays the same in
/// all versions, because hosts remember what is made from it.
pub fn number_of(texts: &[&str]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut number = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for text in texts {
        for byte in text.bytes().chain([0]) {
            number = (number ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }
    number
}

/// Locks, also after a thread has panicked: each change is complete by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_date_and_an_owner() {
        for good in ["nqn.2014-08.org.nvmexpress:uuid:0", "nqn.2026-11.io.example:a"] {
            assert_eq!(check_nqn(good), Ok(()));
        }
        let long = format!("nqn.2026-11.io.example:{}", "a".repeat(NQN_MAX_BYTES));
        for bad in ["", "floe", "nqn.2026.io", "nqn.2026-11.", "nqn.2026-11.io a", &long] {
            assert!(check_nqn(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn identifiers_stay_what_they_are() {
        assert_eq!(number_of(&[""]), 0xd228_cb69_101a_8caf_7891_2b70_4e4a_147f);
        let subsystem = Subsystem::new("nqn.2026-11.io.example:a", "1").unwrap();
        let other = Subsystem::new("nqn.2026-11.io.example:b", "1").unwrap();
        assert_eq!(subsystem.identifier("disk"), subsystem.identifier("disk"));
        assert_ne!(subsystem.identifier("disk"), subsystem.identifier("disk2"));
        assert_ne!(subsystem.identifier("disk"), other.identifier("disk"));
    }

    #[test]
    fn a_queue_ends_with_its_controller_and_with_its_reset() {
        let subsystem = Arc::new(Subsystem::new("nqn.2026-11.io.example:a", "1").unwrap());
        let host = Host { nqn: "nqn.2026-11.io.example:h".into(), id: [1; 16] };
        let lease = subsystem.admit(host, false).unwrap();
        let controller = Arc::clone(&lease.controller);
        assert_eq!(controller.connect(1, false).unwrap_err(), Status::SEQUENCE_ERROR);
        controller.enable(true);
        assert_eq!(controller.connect(1, false).unwrap_err(), Status::INVALID_QUEUE);
        assert_eq!(controller.grant(1000), QUEUES_MAX);
        assert!(!controller.has_queues());
        let queue = controller.connect(64, false).unwrap();
        assert!(controller.has_queues());
        assert_eq!(controller.connect(64, false).unwrap_err(), Status::SEQUENCE_ERROR);
        drop(queue);
        assert!(!controller.has_queues());
        let queue = controller.connect(64, false).unwrap();
        assert!(queue.is_valid());
        controller.enable(false);
        assert!(!queue.is_valid());
        controller.enable(true);
        controller.grant(64);
        let newer = controller.connect(64, false).unwrap();
        drop(queue);
        assert!(controller.connect(64, false).is_err(), "the place of the newer queue stays taken");
        let mut unproved = controller.connect(64, true).unwrap();
        assert_eq!(unproved.claim(), Err(Status::SEQUENCE_ERROR));
        drop(newer);
        let mut other = controller.connect(64, true).unwrap();
        assert_eq!((other.claim(), unproved.claim()), (Ok(()), Err(Status::SEQUENCE_ERROR)));
        drop(unproved);
        assert!(controller.has_queues(), "the number is the other's");
        let mut late = controller.connect(63, true).unwrap();
        assert_eq!(controller.grant(62), 62);
        assert_eq!(late.claim(), Err(Status::INVALID_QUEUE), "it is granted no more");
        controller.grant(63);
        assert_eq!(late.claim(), Ok(()));
        drop(lease);
        assert!(!other.is_valid() && other.claim().is_err());
        assert_eq!(subsystem.controllers(), 0);
    }
}
