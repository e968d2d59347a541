//! The reservations of all namespaces, shared by the connections of all hosts.
//!
//! Changes are made one at a time: each is saved, then published, then answered. A published change
//! of any host's access has a number. Each I/O queue compares that number with the one that it
//! knows before it begins a command, and acknowledges a new number once it has no command left that
//! the change forbids. A command that takes a reservation is answered after that. So nothing that a
//! host began before it lost its access is written after the other host was told that it has the
//! reservation.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Action, HostId, Notice, Reservation, ReservationOrder};
use crate::target::io::{Namespace, Namespaces};
use crate::target::request::Commands;
use crate::wire::{ALL_NAMESPACES, Status};

/// Maximum number of notices kept for hosts that have not looked yet.
const NOTICES_MAX: usize = 1024;
/// Maximum number of entries of a controller's log.
const LOG_MAX: usize = 255;

/// Keeps reservations across restarts of the server.
pub trait ReservationStore: Debug + Send + Sync {
    /// Replaces what is kept with the reservations of these volumes, durably.
    ///
    /// # Errors
    /// When they could not be kept. The change that led to them is refused then.
    fn save(&self, reservations: &BTreeMap<String, Reservation>) -> io::Result<()>;
}

/// The function that makes all connections look at the reservations.
type WakeAll = dyn Fn() + Send + Sync;

/// The reservations of a subsystem's namespaces.
#[derive(Default)]
pub struct Reservations {
    /// Number of the last change of any host's access, or notice. Written under the lock of `shared`.
    version: AtomicU64,
    shared: Mutex<Shared>,
    /// Held while a change is made, which may take as long as a device.
    changing: Mutex<()>,
    store: Option<Box<dyn ReservationStore>>,
    wake: Mutex<Option<Arc<WakeAll>>>,
}

#[derive(Debug, Default)]
struct Shared {
    by_volume: BTreeMap<String, Arc<Reservation>>,
    /// Volumes that others than NVMe hosts use, which no reservation could bind.
    excluded: Vec<String>,
    queues: BTreeMap<u64, QueueState>,
    last_queue: u64,
    /// Commands that wait for I/O queues to acknowledge a change, by ticket.
    draining: BTreeMap<u64, Draining>,
    last_ticket: u64,
    /// The last notices, of which the newest has the number `noticed`.
    notices: VecDeque<HostNotice>,
    noticed: u64,
}

/// An I/O queue.
#[derive(Debug)]
struct QueueState {
    host: HostId,
    /// Number of the last change that the queue has acknowledged.
    acknowledged: u64,
}

/// A command of `host` that waits until `left` queues of other hosts have acknowledged the change
/// with number `version`.
#[derive(Debug)]
struct Draining {
    host: HostId,
    version: u64,
    left: usize,
}

#[derive(Debug, Clone)]
struct HostNotice {
    host: HostId,
    volume: String,
    notice: Notice,
}

impl Reservations {
    /// Creates the reservations, from those that `store` has kept. Without a store, all of them end
    /// with the server.
    pub fn new(
        kept: BTreeMap<String, Reservation>,
        store: Option<Box<dyn ReservationStore>>,
    ) -> Self {
        let by_volume = kept.into_iter().map(|(name, it)| (name, Arc::new(it))).collect();
        let shared = Mutex::new(Shared { by_volume, ..Shared::default() });
        Self { shared, store, ..Self::default() }
    }

    /// Replaces all reservations with those that another server has kept, before this one serves
    /// in its place. Hosts are not notified: the other server has done that.
    pub fn restore(&self, kept: BTreeMap<String, Reservation>) {
        let _one = lock(&self.changing);
        let by_volume = kept.into_iter().map(|(name, it)| (name, Arc::new(it))).collect();
        self.publish(by_volume, true, Vec::new());
    }

    /// Allows no reservations of these volumes, because others than NVMe hosts use them.
    pub fn exclude(&self, volumes: impl IntoIterator<Item = String>) {
        lock(&self.shared).excluded.extend(volumes);
    }

    /// Sets the function that makes all connections call
    /// [`Connection::reservations_changed`](crate::target::connection::Connection::reservations_changed).
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        *lock(&self.wake) = Some(Arc::new(wake));
    }

    /// Forgets the reservation of a volume that is removed.
    ///
    /// # Errors
    /// When that could not be saved; the reservation stays then.
    pub fn forget(&self, volume: &str) -> io::Result<()> {
        let _one = lock(&self.changing);
        let before = lock(&self.shared).by_volume.clone();
        let mut after = before.clone();
        after.remove(volume);
        self.save(&before, &after)?;
        self.publish(after, true, Vec::new());
        Ok(())
    }

    /// Returns the number of the last change.
    pub(super) fn version(&self) -> u64 {
        // Acquire: pairs with the release of the thread that made the change.
        self.version.load(Ordering::Acquire)
    }

    /// Returns the capabilities of a volume's namespace (RESCAP); 0 without reservations.
    pub(in crate::target) fn capabilities(&self, volume: &str) -> u8 {
        const TYPES: u8 = 0x3f << 1;
        const IGNORES_KEY_AS_1_3: u8 = 1 << 7;
        match self.has(volume) {
            true => TYPES | IGNORES_KEY_AS_1_3 | u8::from(self.store.is_some()),
            false => 0,
        }
    }

    /// Returns whether the volume may be reserved.
    pub(in crate::target) fn has(&self, volume: &str) -> bool {
        !lock(&self.shared).excluded.iter().any(|other| other == volume)
    }

    /// Returns the present reservation of a volume.
    pub(in crate::target) fn of(&self, volume: &str) -> Arc<Reservation> {
        lock(&self.shared).by_volume.get(volume).cloned().unwrap_or_default()
    }

    /// Calls `each` with every volume whose reservation is held. Returns the number of the last
    /// change.
    pub(super) fn held(&self, mut each: impl FnMut(&str, &Reservation)) -> u64 {
        let shared = lock(&self.shared);
        let applies = |volume: &String| !shared.excluded.contains(volume);
        let held =
            shared.by_volume.iter().filter(|(volume, it)| it.held.is_some() && applies(volume));
        held.for_each(|(volume, reservation)| each(volume, reservation));
        self.version()
    }

    /// Adds an I/O queue of a host, which has no command yet. Returns its number.
    pub(super) fn join(&self, host: HostId) -> u64 {
        let mut shared = lock(&self.shared);
        shared.last_queue += 1;
        let (queue, acknowledged) = (shared.last_queue, self.version());
        shared.queues.insert(queue, QueueState { host, acknowledged });
        queue
    }

    /// Records that a queue has no command left that a change up to `version` forbids.
    pub(super) fn acknowledge(&self, queue: u64, version: u64) {
        let mut shared = lock(&self.shared);
        let Shared { queues, draining, .. } = &mut *shared;
        let Some(state) = queues.get_mut(&queue) else { return };
        let before = std::mem::replace(&mut state.acknowledged, version);
        let is_drained = drain(draining, &state.host, before, version);
        drop(shared);
        self.wake_if(is_drained);
    }

    /// Removes an I/O queue that has ended.
    pub(super) fn leave(&self, queue: u64) {
        let mut shared = lock(&self.shared);
        let Shared { queues, draining, .. } = &mut *shared;
        let Some(state) = queues.remove(&queue) else { return };
        let is_drained = drain(draining, &state.host, state.acknowledged, u64::MAX);
        drop(shared);
        self.wake_if(is_drained);
    }

    fn wake_if(&self, is_wanted: bool) {
        let wake = lock(&self.wake).clone().filter(|_| is_wanted);
        if let Some(wake) = wake {
            wake();
        }
    }

    /// Carries out a host's order. Returns the ticket to wait for, if the order took a reservation.
    fn change(
        &self,
        volume: &str,
        host: &HostId,
        order: ReservationOrder,
    ) -> Result<Option<u64>, Status> {
        let _one = lock(&self.changing);
        if order.persists == Some(true) && self.store.is_none() {
            return Err(Status::INVALID_FIELD.final_());
        }
        let before = lock(&self.shared).by_volume.clone();
        let mut after = before.clone();
        let reservation = Arc::make_mut(after.entry(volume.to_owned()).or_default());
        let was = reservation.clone();
        let notices = reservation.apply(host, order).map_err(super::Refusal::status)?;
        let concerns_access = !reservation.leaves_same_access_as(&was);
        self.save(&before, &after).map_err(|_| Status::INTERNAL_ERROR.final_())?;
        let notice = |(host, notice)| HostNotice { host, volume: volume.to_owned(), notice };
        let notices = notices.into_iter().map(notice).collect();
        self.publish(after, concerns_access, notices);
        let takes = matches!(order.action, Action::Acquire { .. } | Action::Preempt { .. });
        // Also if it had the reservation: an earlier command may have lost its connection.
        Ok(if takes { self.ticket(host) } else { None })
    }

    /// Saves what survives a restart, if that has changed.
    fn save(
        &self,
        before: &BTreeMap<String, Arc<Reservation>>,
        after: &BTreeMap<String, Arc<Reservation>>,
    ) -> io::Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let kept = |all: &BTreeMap<String, Arc<Reservation>>| -> BTreeMap<String, Reservation> {
            let kept = all.iter().filter(|(_, it)| it.persists);
            kept.map(|(volume, it)| (volume.clone(), Reservation::clone(it))).collect()
        };
        let kept_after = kept(after);
        if kept(before) == kept_after { Ok(()) } else { store.save(&kept_after) }
    }

    /// Publishes a change. All connections look at it if it concerns the access of any host or has
    /// notices.
    fn publish(
        &self,
        by_volume: BTreeMap<String, Arc<Reservation>>,
        concerns_access: bool,
        notices: Vec<HostNotice>,
    ) {
        let concerns = concerns_access || !notices.is_empty();
        let mut shared = lock(&self.shared);
        shared.by_volume = by_volume;
        shared.noticed += notices.len() as u64;
        shared.notices.extend(notices);
        let excess = shared.notices.len().saturating_sub(NOTICES_MAX);
        shared.notices.drain(..excess);
        if concerns {
            // Release: a queue that sees the number also sees what was written before it.
            self.version.store(self.version() + 1, Ordering::Release);
        }
        drop(shared);
        self.wake_if(concerns);
    }

    /// Returns a ticket to wait until all queues of other hosts have acknowledged all changes;
    /// `None` if they have.
    fn ticket(&self, host: &HostId) -> Option<u64> {
        let mut shared = lock(&self.shared);
        let version = self.version();
        let is_behind = |it: &&QueueState| it.host != *host && it.acknowledged < version;
        let left = shared.queues.values().filter(is_behind).count();
        if left == 0 {
            return None;
        }
        shared.last_ticket += 1;
        let ticket = shared.last_ticket;
        shared.draining.insert(ticket, Draining { host: *host, version, left });
        Some(ticket)
    }
}

impl Debug for Reservations {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { version, shared, store, .. } = self;
        let mut debug = f.debug_struct("Reservations");
        debug.field("version", version).field("shared", shared).field("store", store);
        debug.finish_non_exhaustive()
    }
}

/// Counts a queue of `host` that has acknowledged the changes after `before` up to `version`.
/// Returns whether a command need not wait any more.
fn drain(draining: &mut BTreeMap<u64, Draining>, host: &HostId, before: u64, version: u64) -> bool {
    let mut is_drained = false;
    draining.retain(|_, waiting| {
        let acknowledged = before < waiting.version && waiting.version <= version;
        waiting.left -= usize::from(acknowledged && waiting.host != *host);
        is_drained |= waiting.left == 0;
        waiting.left > 0
    });
    is_drained
}

/// A host's command that changes a reservation. Clones share the result.
///
/// It may wait for the store, and for other hosts' requests under way.
#[derive(Debug, Clone)]
pub struct ReservationChange(Arc<ChangeState>);

#[derive(Debug)]
struct ChangeState {
    reservations: Arc<Reservations>,
    volume: String,
    host: HostId,
    order: ReservationOrder,
    /// Ticket to wait for, if any, or the status of a refusal.
    outcome: OnceLock<Result<Option<u64>, Status>>,
}

impl ReservationChange {
    pub(in crate::target) fn new(
        reservations: &Arc<Reservations>,
        volume: &str,
        host: HostId,
        order: ReservationOrder,
    ) -> Self {
        let (reservations, volume) = (Arc::clone(reservations), volume.to_owned());
        let outcome = OnceLock::new();
        Self(Arc::new(ChangeState { reservations, volume, host, order, outcome }))
    }

    /// Makes the change on the calling thread, which may wait for the store. The connection picks
    /// up the result when it is advanced after [`ReservationChange::is_done`].
    pub fn run(&self) {
        let ChangeState { reservations, volume, host, order, outcome } = &*self.0;
        outcome.get_or_init(|| reservations.change(volume, host, *order));
    }

    /// Returns whether both are clones of one change.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether the command can be answered: the change was refused, or it was made and no
    /// request under way contradicts it.
    pub fn is_done(&self) -> bool {
        self.result().is_some()
    }

    pub(in crate::target) fn result(&self) -> Option<Result<(), Status>> {
        match *self.0.outcome.get()? {
            Err(status) => Some(Err(status)),
            Ok(None) => Some(Ok(())),
            Ok(Some(ticket)) => {
                let is_draining = lock(&self.0.reservations.shared).draining.contains_key(&ticket);
                (!is_draining).then_some(Ok(()))
            }
        }
    }
}

impl PartialEq for ReservationChange {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for ReservationChange {}

/// The reservations as an I/O queue knows them.
#[derive(Debug)]
pub(in crate::target) struct QueueGuard {
    reservations: Arc<Reservations>,
    host: HostId,
    /// Number of the queue.
    queue: u64,
    /// Number of the last change that `barred` includes; `None` if it has to be made anew.
    seen: Option<u64>,
    /// Identifiers of the namespaces that the host may not write, in order. The flag is set if it
    /// may not read them either.
    barred: Vec<(u32, bool)>,
    /// Number of writing commands under way that a change has forbidden since they began.
    stragglers: usize,
}

impl QueueGuard {
    pub(in crate::target) fn new(reservations: &Arc<Reservations>, host: HostId) -> Self {
        let queue = reservations.join(host);
        let reservations = Arc::clone(reservations);
        Self { reservations, host, queue, seen: None, barred: Vec::new(), stragglers: 0 }
    }

    pub(in crate::target) fn host(&self) -> HostId {
        self.host
    }

    pub(in crate::target) fn reservations(&self) -> &Arc<Reservations> {
        &self.reservations
    }

    /// Looks at the reservations, if they have changed. `commands` are those of the queue.
    #[inline]
    pub(in crate::target) fn update(&mut self, namespaces: &Namespaces, commands: &mut Commands) {
        if self.seen != Some(self.reservations.version()) {
            self.look(namespaces, commands);
        }
    }

    /// Makes the next [`QueueGuard::update`] look, because the namespaces have changed.
    pub(in crate::target) fn forget(&mut self) {
        self.seen = None;
    }

    #[cold]
    fn look(&mut self, namespaces: &Namespaces, commands: &mut Commands) {
        self.barred.clear();
        let (barred, host) = (&mut self.barred, &self.host);
        let version = self.reservations.held(|volume, reservation| {
            if let Some(namespace) = namespaces.iter().find(|it| it.name == volume)
                && !reservation.allows(host, true)
            {
                barred.push((Namespace::id(namespace), !reservation.allows(host, false)));
            }
        });
        self.barred.sort_unstable();
        self.seen = Some(version);
        for command in commands.iter_mut() {
            // A read under way does no harm.
            let is_forbidden = command.writes && !allows(&self.barred, command.namespace, true);
            if is_forbidden && command.started && !command.is_straggler {
                command.is_straggler = true;
                self.stragglers += 1;
            }
        }
        self.acknowledge();
    }

    /// Returns whether the host may read a namespace, or write it if `writes`.
    #[inline]
    pub(in crate::target) fn allows(&self, namespace: u32, writes: bool) -> bool {
        allows(&self.barred, namespace, writes)
    }

    /// Records the end of a command that a change has forbidden since it began.
    pub(in crate::target) fn straggler_ended(&mut self) {
        self.stragglers -= 1;
        self.acknowledge();
    }

    fn acknowledge(&self) {
        if self.stragglers == 0
            && let Some(seen) = self.seen
        {
            self.reservations.acknowledge(self.queue, seen);
        }
    }
}

fn allows(barred: &[(u32, bool)], namespace: u32, writes: bool) -> bool {
    if barred.is_empty() {
        return true;
    }
    if namespace == ALL_NAMESPACES {
        return !writes && barred.iter().all(|(_, reads)| !reads);
    }
    match barred.binary_search_by_key(&namespace, |(id, _)| *id) {
        Ok(at) => !writes && !barred[at].1,
        Err(_) => true,
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.reservations.leave(self.queue);
    }
}

/// The log of reservation notifications of a controller (log page 80h), and the host's masks.
#[derive(Debug)]
pub(in crate::target) struct ReservationLog {
    /// Number of the last notice that was looked at.
    noticed: u64,
    /// Identifier of the namespace, notice and number of each entry.
    entries: VecDeque<(u32, Notice, u64)>,
    /// Number of entries so far.
    count: u64,
    /// Notices that the host does not want, by namespace: bits as in the feature.
    masks: BTreeMap<u32, u32>,
}

impl ReservationLog {
    /// Bits of the mask that have a meaning.
    pub(in crate::target) const MASK: u32 = 0b1110;

    /// Creates an empty log, which gets the notices that occur from now on.
    pub(in crate::target) fn new(reservations: Option<&Reservations>) -> Self {
        let noticed = reservations.map_or(0, |it| lock(&it.shared).noticed);
        Self { noticed, entries: VecDeque::new(), count: 0, masks: BTreeMap::new() }
    }

    /// Sets the mask of a namespace.
    pub(in crate::target) fn set_mask(&mut self, namespace: u32, mask: u32) {
        self.masks.insert(namespace, mask);
    }

    /// Returns the mask of a namespace.
    pub(in crate::target) fn mask(&self, namespace: u32) -> u32 {
        self.masks.get(&namespace).copied().unwrap_or_default()
    }

    /// Adds the notices for `host` that have occurred since the last call. `id_of` returns the
    /// identifier of a volume's namespace. Returns whether there were any.
    pub(in crate::target) fn look(
        &mut self,
        reservations: &Reservations,
        host: &HostId,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> bool {
        let shared = lock(&reservations.shared);
        let new = (shared.noticed - self.noticed).min(shared.notices.len() as u64) as usize;
        self.noticed = shared.noticed;
        let before = self.count;
        let new = shared.notices.iter().skip(shared.notices.len() - new);
        for HostNotice { volume, notice, .. } in new.filter(|it| it.host == *host) {
            let Some(namespace) = id_of(volume) else { continue };
            if self.mask(namespace) & 1 << *notice as u32 != 0 {
                continue;
            }
            self.count += 1;
            self.entries.push_back((namespace, *notice, self.count));
            if self.entries.len() > LOG_MAX {
                self.entries.pop_front();
            }
        }
        self.count != before
    }

    /// Returns the page of the oldest entry.
    pub(in crate::target) fn page(&self) -> Vec<u8> {
        let mut page = vec![0; 64];
        if let Some((namespace, notice, number)) = self.entries.front() {
            page[..8].copy_from_slice(&number.to_le_bytes());
            page[8] = *notice as u8;
            page[9] = (self.entries.len() - 1) as u8; // more pages
            page[12..16].copy_from_slice(&namespace.to_le_bytes());
        }
        page
    }

    /// Removes the oldest entry, which the host has read. Returns whether there are more.
    pub(in crate::target) fn read(&mut self) -> bool {
        self.entries.pop_front();
        !self.entries.is_empty()
    }
}

/// Locks a mutex even after a thread has panicked: each change is complete by itself.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
