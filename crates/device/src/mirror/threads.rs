//! The background threads of a mirror: one lane for each kind of job of the state machine, and one
//! that looks for halves that can return.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::layout::{HEAD_BYTES, Seen, encode, slot};
use super::shared::{Core, HalfDevice, Opened, Shared, Waiting, no_answer};
use super::state::{Job, Raised};
use super::witness::{Generation, RaiseError};
use crate::buffer::{Pool, Slice};
use crate::device::{Action, Damage, Halves, Operation};
use crate::ring::Ring;

/// The time between two attempts after an error.
const AGAIN: Duration = Duration::from_millis(500);

/// The interval at which marks are aged. A mark is removed when its region was not written for one
/// to two intervals.
const TICK: Duration = Duration::from_secs(5);

/// Bytes copied with one read and one write.
const COPY_BYTES: u64 = 1 << 20;

/// The main loop of a thread, which runs until the mirror ends.
type Lane = fn(&Shared);

/// An open mirror and its threads, which end when it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(shared: Shared) -> io::Result<Running> {
        let shared = Arc::new(shared);
        let lanes: [(&str, Lane); 4] = [
            ("floe-mirror", write_headers),
            ("floe-witness", ask_witness),
            ("floe-resync", copy_regions),
            ("floe-halves", look_for_halves),
        ];
        let mut running = Running { shared, threads: Vec::new() };
        for (name, lane) in lanes {
            let shared = Arc::clone(&running.shared);
            let thread = std::thread::Builder::new().name(name.to_owned());
            running.threads.push(thread.spawn(move || lane(&shared))?);
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.wake_lanes();
        for thread in self.threads.drain(..) {
            // It has printed its panic; nothing is left to do.
            let _ = thread.join();
        }
    }
}

/// Waits for a job. Returns `None` when nothing is due yet, when the caller must close devices
/// first, or when the mirror ends.
fn next(
    shared: &Shared,
    hands: &mut Hands<'_>,
    find: impl Fn(&mut Core) -> Option<Job>,
    until: Option<Instant>,
) -> Option<Job> {
    hands.release();
    let mut core = shared.lock();
    if core.ends || hands.has_stale(&core) {
        return None;
    }
    let found = find(&mut core);
    if found.is_none() {
        let until = until.into_iter().chain(hands.due()).min();
        drop(shared.wait(core, until));
    }
    found
}

fn write_headers(shared: &Shared) {
    let mut hands = Hands::new(shared);
    while !shared.lock().ends {
        let find = |core: &mut Core| core.state.next_header();
        let Some(Job::Header(header, halves)) = next(shared, &mut hands, find, None) else {
            continue;
        };
        let slots: Vec<usize> = shared.lock().halves.iter().map(|half| half.slot).collect();
        let writes = halves.iter().map(|half| {
            let from = hands.buffer(&encode(&shared.label(half), &header));
            (half, slot(slots[half]), Action::Write { from, durable: true })
        });
        let writes = writes.collect();
        let failed = hands.run(writes);
        let mut core = shared.lock();
        let missed = core.note(&failed);
        halves.without(missed).iter().for_each(|half| core.halves[half].slot = 1 - slots[half]);
        core.state.header_done(missed);
        shared.wake(&mut core);
        drop(core);
        if !missed.is_empty() {
            std::thread::sleep(AGAIN / 10);
        }
    }
}

fn ask_witness(shared: &Shared) {
    let mut hands = Hands::new(shared);
    let mut failing_since = None;
    while !shared.lock().ends {
        let find = |core: &mut Core| core.state.next_witness();
        let Some(Job::Raise { from, to, anew }) = next(shared, &mut hands, find, None) else {
            continue;
        };
        let raised = raise(shared, from, to, anew);
        let mut core = shared.lock();
        match &raised {
            Ok(()) => (core.witness_error, failing_since) = (None, None),
            Err(error) => {
                core.witness_error = Some(error.to_string());
                let since = *failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() > shared.pace.timeout {
                    core.state.refuse_held();
                }
            }
        }
        let is_unknown = matches!(raised, Err(RaiseError::Unreachable(_)));
        core.state.witness_done(match raised {
            Ok(()) => Raised::Done,
            Err(RaiseError::Other { .. }) => Raised::Refused,
            Err(RaiseError::Unreachable(_)) => Raised::Unknown,
        });
        shared.wake(&mut core);
        let again = Instant::now() + AGAIN;
        while is_unknown && !core.ends && Instant::now() < again {
            core = shared.wait(core, Some(again));
        }
    }
}

fn raise(shared: &Shared, from: Generation, to: Generation, anew: bool) -> Result<(), RaiseError> {
    let (witness, mirror) = (&shared.witness, &shared.mirror);
    match witness.raise(mirror, Some(from), to) {
        Err(RaiseError::Other { found: None, .. }) if anew => witness.raise(mirror, None, to),
        other => other,
    }
}

fn copy_regions(shared: &Shared) {
    let mut hands = Hands::new(shared);
    let (mut due, mut tick) = (Instant::now(), Instant::now() + TICK);
    while !shared.lock().ends {
        let until = if due > Instant::now() { due.min(tick) } else { tick };
        // Readers wait for regions in which halves in sync may differ: these are not slowed.
        let find = |core: &mut Core| {
            let may = due <= Instant::now() || core.state.is_recovering();
            if may { core.state.next_copy() } else { None }
        };
        let job = next(shared, &mut hands, find, Some(until));
        let mut bytes = 0;
        match job {
            Some(Job::Copy { region, from, to }) => {
                let (unread, failed) = copy(shared, &mut hands, region, from, to.iter().collect());
                let mut core = shared.lock();
                let missed = core.note(&failed);
                core.state.copy_done(unread, missed);
                shared.wake(&mut core);
                let range = shared.shape.range(region);
                bytes = range.end - range.start;
            }
            Some(Job::Flush(halves)) => {
                let flushes = halves.iter().map(|half| (half, 0, Action::Flush)).collect();
                let failed = hands.run(flushes);
                let mut core = shared.lock();
                let missed = core.note(&failed);
                core.state.flush_done(missed);
                shared.wake(&mut core);
            }
            _ => {}
        }
        let now = Instant::now();
        let time = Duration::from_secs_f64(bytes as f64 / shared.pace.resync_bytes as f64);
        due = due.max(now) + time;
        if now >= tick {
            tick = now + TICK;
            shared.lock().state.tick();
        }
    }
}

/// Copies a region. Returns the source if it could not be read, and the errors of other halves.
fn copy(
    shared: &Shared,
    hands: &mut Hands<'_>,
    region: usize,
    from: usize,
    mut to: Vec<usize>,
) -> (Option<usize>, Vec<(usize, io::Error)>) {
    let range = shared.shape.range(region);
    let mut failed = Vec::new();
    for start in range.clone().step_by(COPY_BYTES as usize) {
        let bytes = (range.end - start).min(COPY_BYTES);
        let part = hands.room(bytes as usize);
        if !hands.run(vec![(from, start + HEAD_BYTES, Action::Read(part.clone()))]).is_empty() {
            return (Some(from), failed);
        }
        let (replaced, unread) = replace_damage(shared, hands, start, &part, from, &to);
        // An intact copy may be on a half that cannot be read now.
        to.retain(|half| unread.iter().all(|(other, _)| half != other));
        failed.extend(unread);
        for range in replaced {
            // A power cut would show the damage again, after a write over the intact copy.
            let mended = Action::Write { from: part.slice(range.clone()), durable: true };
            let at = start + HEAD_BYTES + range.start as u64;
            failed.extend(hands.run(vec![(from, at, mended)]));
            shared.lock().count_wrong(Halves::one(from), range.len() as u64);
        }
        let write = |half: &usize| {
            let action = Action::Write { from: part.clone(), durable: false };
            (*half, start + HEAD_BYTES, action)
        };
        let lost = hands.run(to.iter().map(write).collect());
        to.retain(|half| lost.iter().all(|(other, _)| half != other));
        failed.extend(lost);
    }
    (None, failed)
}

/// Replaces damaged ranges in data read from one half by intact data from another. Returns the
/// ranges replaced, and the halves that could not be read.
fn replace_damage(
    shared: &Shared,
    hands: &mut Hands<'_>,
    start: u64,
    part: &Slice,
    from: usize,
    to: &[usize],
) -> (Vec<Range<usize>>, Vec<(usize, io::Error)>) {
    let (judge, members) = {
        let core = shared.lock();
        (core.judge.clone(), core.state.members())
    };
    let (mut replaced, mut unread) = (Vec::new(), Vec::new());
    let Some(judge) = judge else { return (replaced, unread) };
    let others = members.without(Halves::one(from));
    let targets = to.iter().copied().filter(|half| !others.contains(*half));
    let others: Vec<usize> = others.iter().chain(targets).collect();
    for Damage { range, exact } in judge.damage(start, &part.to_vec()) {
        let at = start + range.start as u64;
        for half in others.iter().filter(|half| exact || members.contains(**half)) {
            let other = hands.room(range.len());
            let read = Action::Read(other.clone());
            let failure = hands.run(vec![(*half, at + HEAD_BYTES, read)]).pop();
            if let Some(failure) = failure {
                unread.push(failure);
                continue;
            }
            let found = other.to_vec();
            if judge.damage(at, &found).is_empty() {
                part.slice(range.clone()).copy_from(&found);
                replaced.push(range);
                break;
            }
        }
    }
    (replaced, unread)
}

fn look_for_halves(shared: &Shared) {
    let mut told = None;
    loop {
        shared.tell(&mut told);
        let mut core = shared.lock();
        let again = Instant::now() + AGAIN;
        while !core.ends && Instant::now() < again {
            core = shared.wait(core, Some(again));
        }
        if core.ends {
            return;
        }
        shared.wake(&mut core);
        let halves: Vec<usize> =
            core.state.out().iter().filter(|half| core.halves[*half].is_free()).collect();
        for half in halves {
            let left = core.halves[half].left.take();
            drop(core);
            drop(left);
            let found = look(shared, half);
            core = shared.lock();
            match found {
                Ok((source, slot, sequence)) => {
                    core.halves[half].put(source, slot);
                    core.state.begin_return(half, sequence);
                    shared.wake(&mut core);
                }
                Err(error) => core.halves[half].error = Some(error.to_string()),
            }
        }
    }
}

/// Checks whether a half can return. Returns its source, the slot to write next, and the number of
/// its newest header.
fn look(shared: &Shared, half: usize) -> io::Result<(Box<dyn HalfDevice>, usize, Option<u64>)> {
    let source = shared.places[half].open(None)?;
    let wanted = shared.shape.bytes + HEAD_BYTES;
    if source.size_bytes() < wanted {
        let message = format!("it has {} bytes, and {wanted} are needed", source.size_bytes());
        return Err(io::Error::other(message));
    }
    let (seen, slot) = Waiting::open(&*source, shared.pace.timeout)?.look()?;
    let sequence = match seen {
        Seen::Blank | Seen::Damaged => None,
        Seen::Header(label, header) if label == shared.label(half) => Some(header.sequence),
        Seen::Header(..) => return Err(io::Error::other("it is a half of another mirror")),
        Seen::Foreign | Seen::Missing(_) => {
            let message = "it holds data that is not a half of a mirror: overwrite its first MiB \
                           with zeros";
            return Err(io::Error::other(message));
        }
    };
    Ok((source, slot, sequence))
}

const RING_ENTRIES: u32 = 16;

/// The longest wait on the ring. It is short because devices that imitate a medium do not wake the
/// ring.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// The polling interval for operations that have timed out and may still end.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A lane's devices, one for each half, with blocking operations.
struct Hands<'a> {
    shared: &'a Shared,
    /// The device of each half; `None` until the half is used. Declared before the ring, so that
    /// devices are dropped first.
    devices: Vec<Option<Opened>>,
    /// Devices with operations in flight that have timed out, and their halves.
    late: Vec<(usize, Opened)>,
    ring: Option<Ring>,
    pool: Pool,
}

impl<'a> Hands<'a> {
    fn new(shared: &'a Shared) -> Hands<'a> {
        let devices = shared.places.iter().map(|_| None).collect();
        // Without a ring every operation fails, and is tried again.
        let ring = Ring::new(RING_ENTRIES).ok();
        Hands { shared, devices, late: Vec::new(), ring, pool: Pool::new(0) }
    }

    fn room(&self, bytes: usize) -> Slice {
        self.pool.allocate(bytes).slice(0..bytes)
    }

    fn buffer(&self, bytes: &[u8]) -> Slice {
        let slice = self.room(bytes.len());
        slice.copy_from(bytes);
        slice
    }

    /// Runs at most one operation on each half, and returns those that failed. A half that exceeds
    /// the timeout fails too, unless it is the last one.
    fn run(&mut self, operations: Vec<(usize, u64, Action)>) -> Vec<(usize, io::Error)> {
        let mut failed = Vec::new();
        let mut left = Vec::new();
        for (half, offset, action) in operations {
            match self.device(half) {
                Ok(opened) => {
                    opened.busy += 1;
                    opened.device.submit(Operation { token: 0, offset, action });
                    left.push(half);
                }
                Err(error) => failed.push((half, error)),
            }
        }
        let mut until = Instant::now() + self.shared.pace.timeout;
        let mut done = Vec::new();
        while !left.is_empty() {
            for half in std::mem::take(&mut left) {
                let opened = self.devices[half].as_mut().expect("it has an operation");
                opened.device.poll(&mut done);
                let Some(completion) = done.pop() else {
                    left.push(half);
                    continue;
                };
                opened.busy -= 1;
                failed.extend(completion.result.err().map(|error| (half, error)));
            }
            if Instant::now() > until && !left.is_empty() {
                for half in std::mem::take(&mut left) {
                    let error = no_answer(self.shared.pace.timeout);
                    if self.shared.fail(&mut self.shared.lock(), half, &error) {
                        self.late.extend(self.devices[half].take().map(|opened| (half, opened)));
                        failed.push((half, error));
                    } else {
                        left.push(half);
                    }
                }
                until = Instant::now() + self.shared.pace.timeout;
            }
            if let Some(ring) = self.ring.as_ref().filter(|_| !left.is_empty()) {
                // The next poll finds what the ring does not report.
                let _ = ring.wait(Some(LONGEST_WAIT));
            }
        }
        failed
    }

    fn device(&mut self, half: usize) -> io::Result<&mut Opened> {
        self.release();
        if self.devices[half].is_none() {
            let ring = self.ring.as_ref().ok_or(io::ErrorKind::OutOfMemory)?;
            self.devices[half] = Some(self.shared.lock().open(half, ring, &self.pool)?);
        }
        Ok(self.devices[half].as_mut().expect("it was opened"))
    }

    /// Returns whether a device of a half that has left is ready to be closed.
    fn has_stale(&self, core: &Core) -> bool {
        let is_stale = |(half, opened): (usize, &Option<Opened>)| {
            opened.as_ref().is_some_and(|opened| core.is_stale(half, opened))
        };
        (0..).zip(&self.devices).any(is_stale)
    }

    /// Returns when to poll timed-out operations again.
    fn due(&self) -> Option<Instant> {
        (!self.late.is_empty()).then(|| Instant::now() + LOOK_AGAIN)
    }

    /// Closes idle devices of halves that have left.
    fn release(&mut self) {
        let mut done = Vec::new();
        if let Some(ring) = self.ring.as_ref().filter(|_| !self.late.is_empty()) {
            let _ = ring.wait(Some(Duration::ZERO));
        }
        for (_, opened) in &mut self.late {
            opened.device.poll(&mut done);
            opened.busy -= done.drain(..).count();
        }
        let rests = |late: &mut (usize, Opened)| late.1.busy == 0;
        for (half, opened) in self.late.extract_if(.., rests) {
            drop(opened);
            self.shared.lock().closed(half);
        }
        for (half, slot) in self.devices.iter_mut().enumerate() {
            let core = self.shared.lock();
            let stale = slot.take_if(|opened| core.is_stale(half, opened));
            drop(core);
            if stale.is_some() {
                drop(stale);
                self.shared.lock().closed(half);
            }
        }
    }
}

impl Drop for Hands<'_> {
    fn drop(&mut self) {
        for half in 0..self.devices.len() {
            if self.devices[half].take().is_some() {
                self.shared.lock().closed(half);
            }
        }
    }
}
