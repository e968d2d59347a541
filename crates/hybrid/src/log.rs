//! The log of records, and the thread that writes it to flash.
//!
//! Producers append to the open segment, which is in memory. The writer thread writes it in chunks,
//! one at a time, since the bytes in flight decide the tail of the reads beside them. A segment
//! stays in memory until all of it is on flash, and is read from there until then. Producers wait
//! when the segments in memory are full, or when the writer has not yet evicted the content of the
//! next one.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use crate::flash::Flash;
use crate::format::{
    ENTRY_BYTES, FooterEntry, Geometry, LengthCode, NOTES, Note, PAGE_BYTES, Record, RecordHeader,
    RecordKind, SEGMENT_HEADER_BYTES, SegmentId, TRAILER_BYTES, Trailer, crc, footer_bytes,
    salt_record, seconds_now,
};
use crate::index::Place;

mod writer;

/// Size in bytes of a write to flash.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of segments in memory that producers may fill. The writer may fill one more with
/// records that it keeps.
const PRODUCER_SEGMENTS: usize = 2;
/// Number of segments after the open one whose places the writer empties in advance.
pub(crate) const EMPTY_AHEAD: u64 = 2;
/// Maximum number of segments in memory.
pub(crate) const SEGMENTS_IN_MEMORY: usize = PRODUCER_SEGMENTS + 1;

/// The reason why a record was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The segments in memory are full; [`Log::wait_for_room`] waits for the drive.
    Full,
    /// The flash has failed, or the log is closed.
    Ended,
}

/// A segment in memory.
#[derive(Debug)]
struct Segment {
    id: SegmentId,
    bytes: RwLock<Vec<u8>>,
}

/// A segment that is filled or written.
#[derive(Debug)]
struct Filling {
    segment: Arc<Segment>,
    /// Length of header and records in bytes.
    filled: usize,
    /// Bytes that are on flash, a multiple of the page size until the segment is complete.
    written: usize,
    /// Encoded entries of the footer.
    entries: Vec<u8>,
    /// Offset of the footer's first page once the segment is closed.
    footer: Option<usize>,
}

impl Filling {
    /// Returns whether a record fits before the footer.
    fn has_room(&self, segment_bytes: usize, log_bytes: usize) -> bool {
        let entries = self.entries.len() / ENTRY_BYTES + 1;
        // The footer has pages of its own: they are written last.
        let footer = footer_bytes(entries).next_multiple_of(PAGE_BYTES);
        self.filled + log_bytes + footer <= segment_bytes
    }
}

#[derive(Debug)]
struct State {
    /// Segments in memory, oldest first; the last one is open.
    fillings: VecDeque<Filling>,
    /// Number of the first segment whose place still has old content.
    empty_until: u64,
    /// Position up to which a caller requested durability.
    wanted: u64,
    /// Position up to which the log is durable.
    durable: u64,
    /// True when the writer is to end.
    ending: bool,
    /// Description of the failure that ended the log.
    failed: Option<String>,
    /// Buffers of segments for reuse.
    spare: Vec<Vec<u8>>,
    /// Wakers of futures that wait for progress.
    wakers: Vec<Waker>,
    /// Number of the next removal note.
    next_note: u64,
    /// Log positions of the removal notes, by place. A place is free once the log is written up to
    /// its position.
    notes: Vec<u64>,
    /// Position at which the log continued after a failure, which earlier records may not survive.
    revived_at: u64,
    /// Position up to which the log is to be written without delay. Durability is not required.
    hurried: u64,
}

impl State {
    /// Returns the position up to which the log is written.
    fn written(&self, segment_bytes: u64) -> u64 {
        let first = self.fillings.front().expect("a segment is open");
        first.segment.id.number * segment_bytes + first.written as u64
    }

    /// Returns the position up to which the log must be written before the next removal note has a
    /// place.
    fn note_waits_for(&self) -> u64 {
        self.notes[(self.next_note % NOTES as u64) as usize]
    }
}

/// Counters of bytes written to flash.
#[derive(Debug, Default)]
pub(crate) struct LogCounters {
    /// Bytes written, headers, padding and footers included.
    pub(crate) written_bytes: AtomicU64,
    /// Bytes of records that producers appended.
    pub(crate) appended_bytes: AtomicU64,
    /// Bytes of records that were kept when their segment was evicted.
    pub(crate) kept_bytes: AtomicU64,
    /// Bytes written that are no records, or were written before.
    pub(crate) overhead_bytes: AtomicU64,
    /// True while a write is in flight.
    pub(crate) is_writing: AtomicBool,
}

impl LogCounters {
    /// Returns the bytes written, and those appended that are still to be written.
    pub(crate) fn spent_bytes(&self) -> u64 {
        let counters = [&self.appended_bytes, &self.kept_bytes, &self.overhead_bytes];
        counters.map(|counter| counter.load(Ordering::Relaxed)).iter().sum() // statistics
    }

    /// Counts bytes written beside the log.
    pub(crate) fn count_beside(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.overhead_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The log of a cache on flash.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) flash: Arc<dyn Flash>,
    pub(crate) geometry: Geometry,
    /// Written under the lock of `state`, as the session is.
    cache_id: AtomicU64,
    /// Written under the lock of `state`.
    session: AtomicU64,
    state: Mutex<State>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes producers and callers of [`Log::sync_until`].
    progress: Condvar,
    /// The segments in memory, for readers.
    resident: RwLock<Vec<Arc<Segment>>>,
    /// Number of the segment in each place, and the session that wrote it.
    places: Vec<(AtomicU64, AtomicU64)>,
    pub(crate) counters: LogCounters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Evicts the old content of a segment's place before the log reaches it.
pub(crate) trait Evict {
    /// Removes the objects in the place of segment `number` from the index, or appends them again.
    ///
    /// # Errors
    /// When the flash fails; the log then ends.
    fn evict(&mut self, number: u64) -> io::Result<()>;

    /// Writes the statistics to the file. Called from time to time.
    fn report(&mut self) {}
}

impl Log {
    /// Creates a log that continues with segment `next` and note `next_note`. `known` has the
    /// numbers and sessions of the valid segments on flash.
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        geometry: Geometry,
        (cache_id, session): (u64, u64),
        (next, next_note): (u64, u64),
        known: &[(u64, u64)],
    ) -> Self {
        let places: Vec<_> = (0..geometry.segments).map(|_| Default::default()).collect();
        let log = Self {
            flash,
            geometry,
            cache_id: AtomicU64::new(cache_id),
            session: AtomicU64::new(session),
            state: Mutex::new(State {
                revived_at: 0,
                fillings: VecDeque::new(),
                // Places behind the log that hold nothing need no eviction.
                empty_until: next,
                wanted: 0,
                durable: next * geometry.segment_bytes,
                ending: false,
                failed: None,
                spare: Vec::new(),
                wakers: Vec::new(),
                next_note,
                notes: vec![0; NOTES],
                hurried: 0,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
            resident: RwLock::default(),
            places,
            counters: LogCounters::default(),
        };
        for &(number, session) in known {
            log.set_place(number, session);
        }
        let mut state = lock(&log.state);
        // The next place is emptied by the caller.
        state.empty_until = next + 1;
        log.open_segment(&mut state, next);
        drop(state);
        log
    }

    fn set_place(&self, number: u64, session: u64) {
        let (numbers, sessions) = &self.places[(number % self.geometry.segments) as usize];
        // Relaxed: a reader with a number of the past finds that the record's checksum differs.
        numbers.store(number, Ordering::Relaxed);
        sessions.store(session, Ordering::Relaxed);
    }

    /// Records that the place of a segment is empty.
    pub(crate) fn empty_place(&self, number: u64) {
        let (numbers, sessions) = &self.places[(number % self.geometry.segments) as usize];
        numbers.store(0, Ordering::Relaxed);
        sessions.store(0, Ordering::Relaxed);
    }

    /// Returns the number of the cache and that of the session.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.cache_id(), self.session())
    }

    fn cache_id(&self) -> u64 {
        self.cache_id.load(Ordering::Relaxed) // the lock of the state orders it
    }

    fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed) // the lock of the state orders it
    }

    /// Returns the identity of the content in a place.
    pub(crate) fn segment_in(&self, place: u64) -> SegmentId {
        let (number, session) = &self.places[place as usize];
        SegmentId {
            cache: self.cache_id(),
            number: number.load(Ordering::Relaxed),
            session: session.load(Ordering::Relaxed),
        }
    }

    /// Opens the next segment in memory.
    fn open_segment(&self, state: &mut State, number: u64) {
        debug_assert!(number < state.empty_until);
        let size = self.geometry.segment_bytes as usize;
        let session = self.session();
        let id = SegmentId { cache: self.cache_id(), number, session };
        let mut bytes = state.spare.pop().unwrap_or_else(|| vec![0; size]);
        id.encode(&mut bytes, seconds_now());
        self.set_place(number, session);
        let segment = Arc::new(Segment { id, bytes: RwLock::new(bytes) });
        self.resident.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&segment));
        state.fillings.push_back(Filling {
            segment,
            filled: SEGMENT_HEADER_BYTES,
            written: 0,
            entries: Vec::new(),
            footer: None,
        });
    }

    /// Closes the open segment by writing its footer into the buffer.
    fn close_segment(&self, filling: &mut Filling) {
        let size = self.geometry.segment_bytes as usize;
        let entries = filling.entries.len() / ENTRY_BYTES;
        let trailer = Trailer { id: filling.segment.id, entries }.encode(crc(&filling.entries));
        let mut bytes = filling.segment.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let start = size - footer_bytes(entries);
        bytes[start..size - TRAILER_BYTES].copy_from_slice(&filling.entries);
        bytes[size - TRAILER_BYTES..].copy_from_slice(&trailer);
        filling.footer = Some(start / PAGE_BYTES * PAGE_BYTES);
        filling.entries = Vec::new();
    }

    /// Appends a record, if there is room for it. `header` is encoded without a salt. Returns the
    /// record's place, and the position after it, for [`Log::sync_until`].
    pub(crate) fn append(
        &self,
        hash: u64,
        header: &RecordHeader,
        encoded: &[u8],
        (key, value): (&[u8], &[u8]),
        keeps: bool,
    ) -> Result<(Place, u64), Refused> {
        let (size, log_bytes) = (self.geometry.segment_bytes as usize, header.log_bytes());
        if self.flash.is_forked() {
            return Err(Refused::Ended); // the writer is the parent's
        }
        let mut state = lock(&self.state);
        if state.failed.is_some() || state.ending {
            return Err(Refused::Ended);
        }
        if header.kind == RecordKind::Removal {
            let needed = state.note_waits_for();
            if needed > state.written(self.geometry.segment_bytes) {
                state.hurried = state.hurried.max(needed);
                self.work.notify_one();
                return Err(Refused::Full);
            }
        }
        let open = state.fillings.back_mut().expect("a segment is open");
        if !open.has_room(size, log_bytes) {
            let next = open.segment.id.number + 1;
            // Removals and records that are kept may use the last reserve: others make room for
            // them.
            let reserve = keeps || header.kind == RecordKind::Removal;
            let most = PRODUCER_SEGMENTS + usize::from(reserve);
            let empty = if reserve { 0 } else { 1 };
            if state.fillings.len() >= most || next + empty >= state.empty_until {
                self.work.notify_one();
                return Err(Refused::Full);
            }
            let open = state.fillings.back_mut().expect("a segment is open");
            self.close_segment(open);
            self.open_segment(&mut state, next);
            self.work.notify_one();
        }
        let open = state.fillings.back_mut().expect("a segment is open");
        let (id, offset) = (open.segment.id, open.filled);
        {
            let mut bytes = open.segment.bytes.write().unwrap_or_else(PoisonError::into_inner);
            let record = &mut bytes[offset..offset + log_bytes];
            let (head, body) = record.split_at_mut(encoded.len());
            head.copy_from_slice(encoded);
            salt_record(head, id.salt());
            body[..key.len()].copy_from_slice(key);
            body[key.len()..][..value.len()].copy_from_slice(value);
            body[key.len() + value.len()..].fill(0);
        }
        let length = LengthCode::of(header.record_bytes());
        let entry = FooterEntry { hash, offset, length, kind: header.kind };
        open.entries.extend_from_slice(&entry.encode());
        open.filled += log_bytes;
        let (filled, written) = (open.filled, open.written);
        if written / CHUNK_BYTES != filled / CHUNK_BYTES {
            self.work.notify_one();
        }
        let count = if keeps { &self.counters.kept_bytes } else { &self.counters.appended_bytes };
        count.fetch_add(log_bytes as u64, Ordering::Relaxed);
        let place = Place { address: self.geometry.address(id.number, offset), length };
        let position = id.number * self.geometry.segment_bytes + filled as u64;
        if header.kind == RecordKind::Removal {
            let (number, session) = (state.next_note, self.session() as u32);
            let note = Note { hash, position, number, session };
            if let Err(error) = self.flash.write_cached(&note.encode(), note.offset()) {
                drop(state);
                self.fail(&error);
                return Err(Refused::Ended);
            }
            state.notes[(number % NOTES as u64) as usize] = position;
            state.next_note += 1;
        }
        Ok((place, position))
    }

    /// Waits until producers may append this many bytes, or the log has ended.
    pub(crate) fn wait_for_room(&self, log_bytes: usize) {
        self.wait(|state| self.has_room(state, log_bytes).then_some(()));
    }

    /// Waits for room in the log without blocking a thread, like [`Log::wait_for_room`].
    pub(crate) async fn room(&self, log_bytes: usize) {
        self.progress_until(|state| self.has_room(state, log_bytes).then_some(())).await;
    }

    fn has_room(&self, state: &State, log_bytes: usize) -> bool {
        let open = state.fillings.back().expect("a segment is open");
        let next = open.segment.id.number + 1;
        let may_open = state.fillings.len() < PRODUCER_SEGMENTS && next + 1 < state.empty_until;
        let has_ended = state.failed.is_some() || state.ending;
        if has_ended {
            return true;
        }
        let has_room = open.has_room(self.geometry.segment_bytes as usize, log_bytes);
        let written = state.written(self.geometry.segment_bytes);
        (may_open || has_room) && state.note_waits_for() <= written
    }

    /// Waits until `check` returns a result. It is called after each progress of the writer.
    fn wait<R>(&self, mut check: impl FnMut(&mut State) -> Option<R>) -> R {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = check(&mut state) {
                return result;
            }
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a result of `check` without blocking a thread, like [`Log::wait`].
    async fn progress_until<R>(&self, mut check: impl FnMut(&mut State) -> Option<R>) -> R {
        poll_fn(|context: &mut Context<'_>| {
            let mut state = lock(&self.state);
            if let Some(result) = check(&mut state) {
                return Poll::Ready(result);
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes all threads and futures that wait for progress.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.progress.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Passes the bytes at an address to `read`, if their segment is in memory.
    pub(crate) fn read_resident<R>(
        &self,
        place: Place,
        read: impl FnOnce(&[u8], u32) -> R,
    ) -> Option<R> {
        let (at, offset) = self.geometry.locate(place.address);
        let resident = self.resident.read().unwrap_or_else(PoisonError::into_inner);
        let segment =
            resident.iter().rev().find(|it| it.id.number % self.geometry.segments == at)?;
        let segment = Arc::clone(segment);
        drop(resident);
        let bytes = segment.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let until = (offset + place.length.bytes()).min(bytes.len());
        Some(read(&bytes[offset..until], segment.id.salt()))
    }

    /// Passes the records of a segment in memory to `visit`, in order. Returns false if the segment
    /// is not in memory.
    pub(crate) fn visit_resident(
        &self,
        number: u64,
        mut visit: impl FnMut(RecordKind, &[u8]),
    ) -> bool {
        let resident = self.resident.read().unwrap_or_else(PoisonError::into_inner);
        let found = resident.iter().find(|segment| segment.id.number == number).map(Arc::clone);
        drop(resident);
        let Some(segment) = found else { return false };
        let mut offset = SEGMENT_HEADER_BYTES;
        loop {
            // The lock is released between records: producers append to the segment.
            let bytes = segment.bytes.read().unwrap_or_else(PoisonError::into_inner);
            let record = bytes.get(offset..);
            let Some(record) = record.and_then(|it| Record::decode(it, segment.id.salt())) else {
                return true;
            };
            let (header, key) = (record.header, record.key.to_vec());
            drop(bytes);
            visit(header.kind, &key);
            offset += header.log_bytes();
        }
    }

    /// Returns the numbers of the segments of the log, oldest first, with the open one.
    pub(crate) fn segments(&self) -> Vec<u64> {
        // Places of later segments may be set already.
        let open = self.end() / self.geometry.segment_bytes;
        let number = |place: &(AtomicU64, AtomicU64)| place.0.load(Ordering::Relaxed);
        let mut numbers: Vec<u64> = self.places.iter().map(number).collect();
        numbers.retain(|number| (1..=open).contains(number));
        numbers.sort_unstable();
        numbers
    }

    /// Returns the pages of the file that hold a record, and the record's offset in them.
    pub(crate) fn pages(&self, place: Place) -> (u64, usize, usize) {
        let (at, offset) = self.geometry.locate(place.address);
        let until = (offset + place.length.bytes()).min(self.geometry.segment_bytes as usize);
        let first = offset / PAGE_BYTES * PAGE_BYTES;
        let len = until.next_multiple_of(PAGE_BYTES) - first;
        (self.geometry.segment_start(at) + first as u64, len, offset - first)
    }

    /// Returns the position of the log's end.
    pub(crate) fn end(&self) -> u64 {
        let state = lock(&self.state);
        let open = state.fillings.back().expect("a segment is open");
        open.segment.id.number * self.geometry.segment_bytes + open.filled as u64
    }

    /// Begins to make the log durable. Returns the position of its end, to wait for.
    pub(crate) fn begin_sync(&self) -> u64 {
        let end = self.end();
        let _ = self.is_durable(&mut lock(&self.state), end); // the wait has the result
        end
    }

    /// Waits until the log is durable up to a position.
    ///
    /// # Errors
    /// When the flash fails.
    pub(crate) fn sync_until(&self, position: u64) -> io::Result<()> {
        self.wait(|state| self.is_durable(state, position))
    }

    /// Waits for durability without blocking a thread, like [`Log::sync_until`].
    ///
    /// # Errors
    /// When the flash fails.
    pub(crate) async fn durable(&self, position: u64) -> io::Result<()> {
        self.progress_until(|state| self.is_durable(state, position)).await
    }

    /// Returns whether the log is durable up to a position; `None` while that is under way.
    fn is_durable(&self, state: &mut State, position: u64) -> Option<io::Result<()>> {
        if position < state.revived_at {
            return Some(Err(io::Error::other("the flash has failed meanwhile")));
        }
        if state.durable >= position {
            return Some(Ok(()));
        }
        if let Some(failure) = &state.failed {
            return Some(Err(io::Error::other(failure.clone())));
        }
        if state.wanted < position {
            if state.ending {
                return Some(Err(io::Error::other("the cache is closed")));
            }
            state.wanted = position;
            self.work.notify_one();
        }
        None
    }

    /// Starts a new segment unless the open one is empty. Returns the number of the open segment:
    /// all earlier records are in older ones.
    ///
    /// # Errors
    /// When no segment is empty yet: [`Log::wait_for_room`] waits.
    pub(crate) fn turn(&self) -> Result<u64, Refused> {
        let mut state = lock(&self.state);
        if state.failed.is_some() || state.ending {
            return Err(Refused::Ended);
        }
        let open = state.fillings.back_mut().expect("a segment is open");
        let next = open.segment.id.number + 1;
        if open.filled == SEGMENT_HEADER_BYTES {
            return Ok(next - 1);
        }
        if state.fillings.len() > PRODUCER_SEGMENTS || next >= state.empty_until {
            self.work.notify_one();
            return Err(Refused::Full);
        }
        self.close_segment(state.fillings.back_mut().expect("a segment is open"));
        self.open_segment(&mut state, next);
        self.work.notify_one();
        Ok(next)
    }

    /// Ends the log: nothing is appended any more, and the writer ends once all is durable.
    pub(crate) fn end_soon(&self) {
        let mut state = lock(&self.state);
        let open = state.fillings.back().expect("a segment is open");
        state.wanted = open.segment.id.number * self.geometry.segment_bytes + open.filled as u64;
        state.ending = true;
        self.work.notify_all();
        self.notify(state);
    }

    /// Ends the log after a failure of the flash.
    pub(crate) fn fail(&self, error: &io::Error) {
        let mut state = lock(&self.state);
        state.failed.get_or_insert_with(|| error.to_string());
        self.work.notify_all();
        self.notify(state);
    }

    /// Returns an error if the log has ended.
    pub(crate) fn check_open(&self) -> io::Result<()> {
        let state = lock(&self.state);
        match &state.failed {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None if state.ending => Err(io::Error::other("the cache is closed")),
            None => Ok(()),
        }
    }

    /// Continues a log that has failed, in a new session, with segment `next`, whose place is
    /// empty. `known` has the numbers and sessions of the valid segments. The caller holds all
    /// stripes, has replaced the flash, and then runs the log.
    pub(crate) fn revive(&self, (cache_id, session): (u64, u64), next: u64, known: &[(u64, u64)]) {
        let mut state = lock(&self.state);
        debug_assert!(next > state.fillings.back().expect("a segment is open").segment.id.number);
        self.cache_id.store(cache_id, Ordering::Relaxed);
        self.session.store(session, Ordering::Relaxed);
        (0..self.geometry.segments).for_each(|place| self.empty_place(place));
        known.iter().for_each(|&(number, session)| self.set_place(number, session));
        self.resident.write().unwrap_or_else(PoisonError::into_inner).clear();
        state.fillings.clear();
        (state.empty_until, state.wanted, state.hurried) = (next + 1, 0, 0);
        state.revived_at = next * self.geometry.segment_bytes;
        state.durable = state.revived_at;
        state.notes.fill(0);
        state.failed = None;
        self.open_segment(&mut state, next);
        self.notify(state);
    }

    /// Returns the number of the open segment.
    pub(crate) fn open_number(&self) -> u64 {
        lock(&self.state).fillings.back().expect("a segment is open").segment.id.number
    }

    /// Returns the description of the log's failure, if it has failed.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.state).failed.clone()
    }
}
