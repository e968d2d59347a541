//! The state that all handles and lanes of a mirror share. A lane is a background thread that
//! carries out one kind of job.
//!
//! Each half has a source while it can be used. Handles and lanes open devices from it, and count
//! as its users. When the half has left, each user closes its device as soon as no operation is in
//! flight on it. Only then is the half opened again, so no earlier operation can arrive late.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::layout::{HEAD_BYTES, Header, Label, Seen, Shape, encode, look, slot};
use super::marks::Regions;
use super::state::State;
use super::witness::{Generation, Witness};
use crate::buffer::Pool;
use crate::device::{Action, Device, Halves, Judge, Operation};
use crate::queue::Mailbox;
use crate::ring::Ring;

/// The timeout and the resynchronisation rate of a mirror.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    /// The time after which an operation that a half has not answered fails.
    pub(crate) timeout: Duration,
    /// The resynchronisation rate in bytes per second.
    pub(crate) resync_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    core: Mutex<Core>,
    changed: Condvar,
    /// The callback for changes of the mirror's status.
    pub(super) listener: Listener,
    /// The places of the halves, by number.
    pub(super) places: Vec<Arc<dyn HalfPlace>>,
    pub(super) mirror: [u8; 16],
    pub(super) shape: Shape,
    pub(super) pace: Pace,
    pub(super) witness: Arc<dyn Witness>,
}

/// An optional callback for changes of a mirror's status.
#[derive(Default)]
pub(super) struct Listener(Mutex<Option<Hear>>);

type Hear = Box<dyn Fn(&MirrorStatus) + Send>;

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl Listener {
    pub(super) fn set(&self, hear: Hear) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(hear);
    }

    pub(super) fn tell(&self, status: &MirrorStatus) -> bool {
        let hear = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hear.iter().for_each(|hear| hear(status));
        hear.is_some()
    }
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) state: State,
    pub(super) halves: Vec<HalfSource>,
    handles: Vec<Arc<Mailbox<()>>>,
    /// The last error of the witness; `None` while the witness answers.
    pub(super) witness_error: Option<String>,
    /// True once the last handle is gone, so the threads must end.
    pub(super) ends: bool,
    /// The test for damaged data, once the mirror's user has set one.
    pub(super) judge: Option<Arc<dyn Judge>>,
}

/// The source of a half, and the number of its users.
#[derive(Debug)]
pub(super) struct HalfSource {
    pub(super) name: String,
    pub(super) source: Option<Box<dyn HalfDevice>>,
    /// The source in use when the half left. Closing it may take a while, so the thread that looks
    /// for halves does it.
    pub(super) left: Option<Box<dyn HalfDevice>>,
    /// The number of times the half has left; distinguishes devices opened before and after.
    opening: u64,
    users: usize,
    /// The header slot, 0 or 1, to write next.
    pub(super) slot: usize,
    /// The last reason why the half left or cannot return.
    pub(super) error: Option<String>,
    /// Bytes that were found damaged on the half and repaired.
    pub(super) mended_bytes: u64,
}

/// A user's open device of a half.
pub(super) struct Opened {
    pub(super) device: Box<dyn Device>,
    opening: u64,
    /// The number of operations in flight on the device.
    pub(super) busy: usize,
}

/// The state of a mirror, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorStatus {
    /// The number of the mirror's generation. Each start and each change of the set of halves in
    /// sync raises it.
    pub generation: u64,
    /// The halves, in the order of their numbers.
    pub halves: Vec<HalfStatus>,
    /// Bytes still to be resynchronised.
    pub resync_bytes: u64,
    /// Bytes of the regions in which halves may differ.
    pub marked_bytes: u64,
    /// True if another server owns the mirror, so that this one serves nothing.
    pub fenced: bool,
    /// The last error of the witness; `None` while the witness answers. During an error no half can
    /// leave or return, and writes that depend on this wait.
    pub witness_error: Option<String>,
}

/// The state of a mirror's half, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfStatus {
    /// The name of the half's device.
    pub name: String,
    /// `in-sync`, `resync` (being brought up to date) or `out`.
    pub state: &'static str,
    /// The last error of a half that is not in sync.
    pub error: Option<String>,
    /// Bytes found damaged on this half and rewritten from another half since the mirror was
    /// opened.
    pub mended_bytes: u64,
}

impl MirrorStatus {
    /// Returns whether another status agrees in everything but generations and the bytes still to
    /// be copied.
    fn is_alike(&self, other: &MirrorStatus) -> bool {
        let states =
            |it: &MirrorStatus| it.halves.iter().map(|half| half.state).collect::<Vec<_>>();
        let troubles = |it: &MirrorStatus| (it.fenced, it.witness_error.is_some());
        let mended =
            |it: &MirrorStatus| it.halves.iter().map(|half| half.mended_bytes).collect::<Vec<_>>();
        states(self) == states(other)
            && troubles(self) == troubles(other)
            && mended(self) == mended(other)
    }

    /// Returns whether the mirror lacks redundancy or a working witness: a half is not in sync, the
    /// witness has failed, or another server owns the mirror.
    pub fn is_degraded(&self) -> bool {
        self.fenced
            || self.witness_error.is_some()
            || self.halves.iter().any(|half| half.state != "in-sync")
    }
}

impl HalfSource {
    pub(super) fn new(
        name: String,
        source: Option<Box<dyn HalfDevice>>,
        slot: usize,
    ) -> HalfSource {
        HalfSource {
            name,
            source,
            left: None,
            opening: 0,
            users: 0,
            slot,
            error: None,
            mended_bytes: 0,
        }
    }

    pub(super) fn put(&mut self, source: Box<dyn HalfDevice>, slot: usize) {
        (self.source, self.slot) = (Some(source), slot);
    }

    /// Returns whether the half has no users, so that it can be opened again.
    pub(super) fn is_free(&self) -> bool {
        self.users == 0
    }
}

impl Shared {
    pub(super) fn new(
        places: Vec<Arc<dyn HalfPlace>>,
        label: &Label,
        pace: Pace,
        witness: Arc<dyn Witness>,
        state: State,
        halves: Vec<HalfSource>,
    ) -> Shared {
        let core =
            Core { state, halves, handles: vec![], witness_error: None, ends: false, judge: None };
        Shared {
            core: Mutex::new(core),
            changed: Condvar::new(),
            listener: Listener::default(),
            places,
            mirror: label.mirror,
            shape: label.shape,
            pace,
            witness,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic while it was locked is a bug of the state machine; the data is safe on disk.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn label(&self, half: usize) -> Label {
        Label { mirror: self.mirror, half, shape: self.shape }
    }

    pub(super) fn wake_lanes(&self) {
        self.changed.notify_all();
    }

    /// Wakes the lanes and all handles after a state change.
    pub(super) fn wake(&self, core: &mut Core) {
        core.forget_sources();
        core.handles.iter().for_each(|handle| handle.wake());
        self.changed.notify_all();
    }

    /// Waits for a state change, until `until` at most.
    pub(super) fn wait<'a>(
        &self,
        core: MutexGuard<'a, Core>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Core> {
        let Some(until) = until else {
            return self.changed.wait(core).unwrap_or_else(PoisonError::into_inner);
        };
        let left = until.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records that a half has failed. Returns false for the last working half, which cannot leave.
    pub(super) fn fail(&self, core: &mut Core, half: usize, error: &io::Error) -> bool {
        core.halves[half].error = Some(error.to_string());
        let leaves = core.state.fail(half);
        self.wake(core);
        leaves
    }

    /// Reports the status to the listener if it differs from `last`.
    pub(super) fn tell(&self, last: &mut Option<MirrorStatus>) {
        let status = self.status();
        let is_new = last.as_ref().is_none_or(|last| !last.is_alike(&status));
        if is_new && self.listener.tell(&status) {
            *last = Some(status);
        }
    }

    pub(super) fn status(&self) -> MirrorStatus {
        let core = self.lock();
        let state = &core.state;
        let half = |(number, half): (usize, &HalfSource)| {
            let kind = match () {
                () if state.members().contains(number) => "in-sync",
                () if state.returning().contains(number) => "resync",
                () => "out",
            };
            // A half may have to leave because of another one.
            let stale = (kind == "out").then(|| "it lacks the last writes".to_owned());
            let error = half.error.clone().or(stale).filter(|_| kind != "in-sync");
            let (name, mended_bytes) = (half.name.clone(), half.mended_bytes);
            HalfStatus { name, state: kind, error, mended_bytes }
        };
        let bytes =
            |regions: usize| (regions as u64 * self.shape.region_bytes).min(self.shape.bytes);
        MirrorStatus {
            generation: state.generation().number,
            halves: (0..).zip(&core.halves).map(half).collect(),
            resync_bytes: bytes(state.regions_left()),
            marked_bytes: bytes(state.regions_marked()),
            fenced: state.is_fenced(),
            witness_error: core.witness_error.clone(),
        }
    }
}

impl Core {
    pub(super) fn add_handle(&mut self, handle: Arc<Mailbox<()>>) {
        self.handles.push(handle);
    }

    pub(super) fn remove_handle(&mut self, handle: &Arc<Mailbox<()>>) {
        self.handles.retain(|other| !Arc::ptr_eq(other, handle));
    }

    /// Closes the sources of halves that have left.
    fn forget_sources(&mut self) {
        let gone = self.state.out();
        for half in gone.iter() {
            let half = &mut self.halves[half];
            if let Some(source) = half.source.take() {
                half.left = Some(source);
                half.opening += 1;
            }
        }
    }

    /// Opens a device of a half for a handle or lane.
    pub(super) fn open(&mut self, half: usize, ring: &Ring, pool: &Pool) -> io::Result<Opened> {
        let half = &mut self.halves[half];
        let source = half.source.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let device = source.open(ring, pool)?;
        half.users += 1;
        Ok(Opened { device, opening: half.opening, busy: 0 })
    }

    /// Returns whether a device has to be closed: it was opened before the half left, and is idle.
    pub(super) fn is_stale(&self, half: usize, opened: &Opened) -> bool {
        opened.busy == 0 && opened.opening != self.halves[half].opening
    }

    /// Records that a user has closed its device of a half.
    pub(super) fn closed(&mut self, half: usize) {
        self.halves[half].users -= 1;
    }

    /// Adds to the number of bytes repaired on each of these halves.
    pub(super) fn count_wrong(&mut self, halves: Halves, bytes: u64) {
        halves.iter().for_each(|half| self.halves[half].mended_bytes += bytes);
    }

    /// Records the errors of halves, and returns the set of these halves.
    pub(super) fn note(&mut self, failed: &[(usize, io::Error)]) -> Halves {
        let mut missed = Halves::NONE;
        for (half, error) in failed {
            self.halves[*half].error = Some(error.to_string());
            missed = missed.with(Halves::one(*half));
        }
        missed
    }
}

/// Submission entries of a ring that carries one operation at a time.
const RING_ENTRIES: u32 = 8;

/// The longest wait on a ring. It is short because devices that imitate a medium do not wake the
/// ring.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// The place of a half, whether or not the half is present there.
pub(crate) trait HalfPlace: fmt::Debug + Send + Sync {
    /// Returns the name shown to operators.
    fn name(&self) -> String;

    /// Returns whether the place is a file that does not exist.
    fn is_absent(&self) -> bool;

    /// Opens the half. With a size, creates the file if necessary.
    ///
    /// # Errors
    /// When the half cannot be reached or created.
    fn open(&self, size: Option<u64>) -> io::Result<Box<dyn HalfDevice>>;
}

/// A reachable half, from which every thread opens a device.
pub(crate) trait HalfDevice: fmt::Debug + Send + Sync {
    fn size_bytes(&self) -> u64;

    /// Opens a device of the half for one thread.
    ///
    /// # Errors
    /// When the device cannot be opened.
    fn open(&self, ring: &Ring, pool: &Pool) -> io::Result<Box<dyn Device>>;
}

/// A blocking handle of a half, which waits for each operation.
pub(super) struct Waiting {
    // Before the ring it is on.
    device: Option<Box<dyn Device>>,
    ring: Ring,
    pool: Pool,
    timeout: Duration,
}

impl Waiting {
    pub(super) fn open(source: &dyn HalfDevice, timeout: Duration) -> io::Result<Waiting> {
        let (ring, pool) = (Ring::new(RING_ENTRIES).map_err(io::Error::other)?, Pool::new(0));
        let device = source.open(&ring, &pool)?;
        Ok(Waiting { device: Some(device), ring, pool, timeout })
    }

    /// Reads the half's header. Also returns the slot to write next.
    pub(super) fn look(&mut self) -> io::Result<(Seen, usize)> {
        let into = self.pool.allocate(HEAD_BYTES as usize).whole();
        self.run(0, Action::Read(into.clone()))?;
        let mut head = vec![0; HEAD_BYTES as usize];
        into.copy_to(&mut head);
        Ok(look(&head))
    }

    /// Writes a header, durably.
    pub(super) fn write(&mut self, label: &Label, header: &Header, at: usize) -> io::Result<()> {
        let bytes = encode(label, header);
        let from = self.pool.allocate(bytes.len()).slice(0..bytes.len());
        from.copy_from(&bytes);
        self.run(slot(at), Action::Write { from, durable: true })
    }

    fn run(&mut self, offset: u64, action: Action) -> io::Result<()> {
        let device = self.device.as_mut().ok_or(io::ErrorKind::TimedOut)?;
        device.submit(Operation { token: 0, offset, action });
        let (mut done, until) = (Vec::new(), Instant::now() + self.timeout);
        loop {
            device.poll(&mut done);
            match done.pop() {
                Some(completion) => return completion.result,
                None if Instant::now() > until => {
                    // Dropping it would wait for the operation.
                    std::mem::forget(self.device.take());
                    return Err(no_answer(self.timeout));
                }
                None => drop(self.ring.wait(Some(LONGEST_WAIT))?),
            }
        }
    }
}

pub(super) fn no_answer(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("it has not answered for {timeout:?}"))
}

/// Returns the two headers of a new mirror, written before and after the witness has recorded it.
pub(super) fn first_headers(shape: Shape, generation: Generation, map: &Regions) -> [Header; 2] {
    debug_assert_eq!(map.count(), shape.regions());
    [(1, Generation::default()), (2, generation)].map(|(sequence, previous)| Header {
        sequence,
        generation,
        previous,
        known: [0; Halves::MAX],
        map: map.clone(),
    })
}
