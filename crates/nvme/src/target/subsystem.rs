//! The subsystem that hosts connect to, and the controllers of all hosts.
//!
//! A controller is created when a host connects its admin queue, and is removed with that
//! connection. I/O queues join the controller, each on a connection of its own, possibly on another
//! thread. A queue holds a `QueueLease`: an atomic number tells it that its controller was removed
//! or reset.
//!
//! Invariant: a lock is held only while a queue connects or ends, while admin commands enable a
//! controller or grant queues, and while queues are counted.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use super::access::{AccessRules, NotAllowed, Paths, Proof};
use super::reservation::{HostId, Reservations};
use crate::wire::{NQN_MAX_BYTES, Status};

/// Maximum number of I/O queues of a controller: the bits of [`Queues::connected`].
pub(super) const QUEUES_MAX: u16 = 64;
/// All identifiers that a controller may have.
const IDENTIFIERS: RangeInclusive<u16> = 1..=0xffef;

/// The admission of hosts, by which a server limits their number.
pub trait HostAdmission: Debug + Send + Sync {
    /// Takes a place for one more controller of the host with this name; `None` if none is left.
    fn admit(&self, host: &str) -> Option<HostPlace>;

    /// Returns whether a place is left, for a host that must authenticate before it takes one.
    fn has_room(&self) -> bool;
}

/// The place of a host's controller. Dropping it leaves the place to others.
pub type HostPlace = Box<dyn Any + Send>;

/// The NVMe subsystem of a server.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    number: u128,
    firmware: String,
    controllers: Mutex<Controllers>,
    rules: Arc<RwLock<AccessRules>>,
    paths: Arc<Paths>,
    /// `None` where namespaces cannot be reserved.
    reservations: Option<Arc<Reservations>>,
    /// `None` where the number of hosts has no limit.
    admission: Option<Arc<dyn HostAdmission>>,
}

#[derive(Debug)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    /// The identifiers of new controllers.
    identifiers: RangeInclusive<u16>,
    /// Place in this range at which the search for a free identifier begins; may lie beyond it.
    next: u16,
}

/// The identity that a host presents when it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// NVMe qualified name of the host.
    pub nqn: String,
    /// Identifier of the host.
    pub id: HostId,
}

/// A host's controller, shared by its queues.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: u16,
    pub(super) host: Host,
    /// The controller serves the discovery log and nothing else.
    pub(super) discovery: bool,
    queues: Mutex<Queues>,
    /// Incremented when the controller is reset or removed. Its I/O queues end then.
    epoch: AtomicU32,
}

#[derive(Debug, Default)]
struct Queues {
    enabled: bool,
    granted: u16,
    /// Bit mask of the connected I/O queues.
    connected: u64,
}

impl Subsystem {
    /// Creates a subsystem. Hosts see `firmware` as the firmware version.
    ///
    /// # Errors
    /// When `nqn` is not an NVMe qualified name.
    pub fn new(nqn: &str, firmware: &str) -> Result<Self, NqnError> {
        check_nqn(nqn)?;
        let (by_id, identifiers) = (BTreeMap::new(), IDENTIFIERS);
        let controllers = Mutex::new(Controllers { by_id, identifiers, next: 0 });
        let (nqn, number, firmware) = (nqn.to_owned(), number_of(&[nqn]), firmware.to_owned());
        let (rules, paths) = (Arc::default(), Arc::default());
        let (reservations, admission) = (None, None);
        Ok(Self { nqn, number, firmware, controllers, rules, paths, reservations, admission })
    }

    /// Makes controller identifiers start at this place, which may be any number. A host refuses two
    /// controllers with the same identifier, and remembers those of a server that has restarted
    /// until all its paths are connected again. So each start should begin at another place.
    #[must_use]
    pub fn numbering_from(self, place: u16) -> Self {
        lock(&self.controllers).next = place;
        self
    }

    /// Gives new controllers identifiers of one half only: the upper one if `upper`. Two servers of
    /// a subsystem should have a half each.
    pub fn use_half(&self, upper: bool) {
        let middle = IDENTIFIERS.end() / 2;
        let half = match upper {
            true => middle + 1..=*IDENTIFIERS.end(),
            false => *IDENTIFIERS.start()..=middle,
        };
        lock(&self.controllers).identifiers = half;
    }

    /// Sets the paths to the subsystem, which may change later.
    #[must_use]
    pub fn with_paths(self, paths: Arc<Paths>) -> Self {
        Self { paths, ..self }
    }

    /// Returns the paths to the subsystem.
    pub fn paths(&self) -> &Arc<Paths> {
        &self.paths
    }

    /// Allows hosts to reserve namespaces.
    #[must_use]
    pub fn with_reservations(self, reservations: Arc<Reservations>) -> Self {
        Self { reservations: Some(reservations), ..self }
    }

    /// Returns the reservations of the namespaces; `None` where they cannot be reserved.
    pub fn reservations(&self) -> Option<&Arc<Reservations>> {
        self.reservations.as_ref()
    }

    /// Sets the access rules. Later changes of the rules affect only queues that connect
    /// afterwards.
    #[must_use]
    pub fn with_access(self, rules: Arc<RwLock<AccessRules>>) -> Self {
        Self { rules, ..self }
    }

    /// Limits the number of hosts by this admission.
    #[must_use]
    pub fn with_admission(self, admission: Arc<dyn HostAdmission>) -> Self {
        Self { admission: Some(admission), ..self }
    }

    /// Returns whether a place is left for one more controller.
    pub(super) fn has_room(&self) -> bool {
        self.admission.as_ref().is_none_or(|admission| admission.has_room())
    }

    /// Takes a place for a controller of this host; an error if there is none left.
    pub(super) fn take_place(&self, host: &str) -> Result<Option<HostPlace>, NoPlace> {
        let Some(admission) = &self.admission else { return Ok(None) };
        admission.admit(host).map(Some).ok_or(NoPlace)
    }

    /// Admits a host. Returns the proof that the host must give first, if any.
    ///
    /// # Errors
    /// When the rules exclude the host.
    pub(super) fn may_connect(&self, host: &str) -> Result<Option<Proof>, NotAllowed> {
        self.rules().admit(host)
    }

    /// Returns whether hosts have to prove their names.
    pub fn asks_for_proof(&self) -> bool {
        self.rules().asks_for_proof()
    }

    /// Locks the rules even after a thread has panicked: each change is complete by itself.
    fn rules(&self) -> RwLockReadGuard<'_, AccessRules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the NVMe qualified name of the subsystem.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    pub(super) fn serial(&self) -> String {
        format!("{:016x}", (self.number >> 64) as u64)
    }

    pub(super) fn firmware(&self) -> &str {
        &self.firmware
    }

    /// Returns the UUID of the namespace with this name, which is its first text if it has several.
    /// Another subsystem's namespaces have other UUIDs.
    pub(super) fn identifier(&self, name: &[&str]) -> [u8; 16] {
        let mut bytes = number_of(&[&[self.nqn.as_str()], name].concat()).to_be_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x80; // a UUID of version 8
        bytes[8] = bytes[8] & 0x3f | 0x80;
        bytes
    }

    /// Creates a controller for a host; `None` when all identifiers are in use.
    pub(super) fn admit(self: &Arc<Self>, host: Host, discovery: bool) -> Option<ControllerLease> {
        let mut all = lock(&self.controllers);
        let (first, last) = all.identifiers.clone().into_inner();
        let next = first + all.next % (last - first + 1);
        let id = (next..=last).chain(first..next).find(|id| !all.by_id.contains_key(id))?;
        all.next = id - first + 1;
        let (queues, epoch) = (Mutex::default(), AtomicU32::new(0));
        let controller = Arc::new(Controller { id, host, discovery, queues, epoch });
        all.by_id.insert(id, Arc::clone(&controller));
        Some(ControllerLease { subsystem: Arc::clone(self), controller, place: None })
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers).by_id.get(&id).cloned()
    }

    /// Returns the number of controllers that exist.
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

    /// Grants at most `wanted` I/O queues. Returns the number granted.
    pub(super) fn grant(&self, wanted: u16) -> u16 {
        let mut queues = lock(&self.queues);
        queues.granted = wanted.min(QUEUES_MAX);
        queues.granted
    }

    /// Returns whether I/O queues are connected.
    pub(super) fn has_queues(&self) -> bool {
        lock(&self.queues).connected != 0
    }

    /// Connects an I/O queue. Without authentication the lease claims the queue's number
    /// immediately. Otherwise it must [claim](QueueLease::claim) the number later, and until then
    /// another connection may take it.
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

/// The admin queue's ownership of its controller. Dropping the lease removes the controller.
#[derive(Debug)]
pub(super) struct ControllerLease {
    subsystem: Arc<Subsystem>,
    pub(super) controller: Arc<Controller>,
    /// The host's place; `None` before the host has authenticated, and where hosts have no limit.
    place: Option<HostPlace>,
}

/// Error: no place is left for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoPlace;

impl ControllerLease {
    /// Takes the place of a host that has authenticated, unless it has one.
    ///
    /// # Errors
    /// When none is left.
    pub(super) fn take_place(&mut self) -> Result<(), NoPlace> {
        if self.place.is_none() && !self.controller.discovery {
            self.place = self.subsystem.take_place(&self.controller.host.nqn)?;
        }
        Ok(())
    }

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

/// The membership of an I/O queue in its controller. Dropping the lease frees the queue's number.
#[derive(Debug)]
pub(super) struct QueueLease {
    controller: Arc<Controller>,
    bit: u64,
    epoch: u32,
    /// The lease owns the queue's number exclusively.
    holds: bool,
}

impl QueueLease {
    /// Claims the queue's number.
    ///
    /// # Errors
    /// When another queue has the number, the controller was removed or reset, or it now grants
    /// fewer queues.
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

    /// Returns whether the lease owns the queue's number.
    pub(super) fn holds(&self) -> bool {
        self.holds
    }

    /// Returns whether the controller still exists and was not reset.
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

/// Error: the text is not an NVMe qualified name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{nqn:?} is no NVMe qualified name: it begins with nqn.YYYY-MM. and has at most 223 bytes \
     without spaces"
)]
pub struct NqnError {
    /// The text that was given as a name.
    pub nqn: String,
}

/// Checks that a text is a valid NVMe qualified name of a host or a subsystem.
///
/// # Errors
/// When the name is not valid.
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

/// Returns a hash of `texts` that is practically unique: FNV-1a of 128 bits. The function must
/// never change, because hosts remember identifiers derived from it.
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

/// Locks a mutex even after a thread has panicked: each change is complete by itself.
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
        assert_eq!(subsystem.identifier(&["disk"]), subsystem.identifier(&["disk"]));
        assert_ne!(subsystem.identifier(&["disk"]), subsystem.identifier(&["disk2"]));
        assert_ne!(subsystem.identifier(&["disk"]), other.identifier(&["disk"]));
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

    #[test]
    fn servers_with_a_half_each_give_no_identifier_twice() {
        let subsystem = |place| {
            let subsystem = Subsystem::new("nqn.2026-11.io.example:a", "1").unwrap();
            Arc::new(subsystem.numbering_from(place))
        };
        let host = || Host { nqn: "nqn.2026-11.io.example:h".into(), id: [1; 16] };
        let one = subsystem(0);
        let leases: Vec<_> = std::iter::from_fn(|| one.admit(host(), false)).collect();
        let ids: Vec<_> = leases.iter().map(|it| it.controller.id).collect();
        assert!(ids.iter().copied().eq(IDENTIFIERS), "all of them, in order");
        // Places before, in, at the end of and beyond a half.
        for place in [0, 5, 0x7ff6, 0x7ff7, 0x7ff8, 0xffee, 0xffff] {
            let halves = [false, true].map(|upper| {
                let server = subsystem(place);
                server.use_half(upper);
                let leases = std::iter::from_fn(|| server.admit(host(), false));
                leases.map(|it| (it.controller.id, it)).collect::<BTreeMap<_, _>>()
            });
            let all: Vec<_> = halves.iter().flat_map(BTreeMap::keys).copied().collect();
            assert!(all.into_iter().eq(IDENTIFIERS), "{place}: each once");
            assert!(halves[0].len().abs_diff(halves[1].len()) <= 1);
        }
    }
}
