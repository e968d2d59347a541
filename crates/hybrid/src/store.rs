//! The store on flash: the [log](crate::log) and the [index](crate::index), keyed by hashes.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use floe_memory::Cause;
use twox_hash::XxHash3_64;

use crate::admission::{Gate, Offer};
use crate::flash::{Buffer, Flash};
use crate::format::{
    ENTRY_BYTES, FooterEntry, Geometry, LengthCode, Lifetime, PAGE_BYTES, PartsList, Record,
    RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentId, TRAILER_BYTES, Trailer, UNIT_BYTES,
    crc, footer_bytes, seconds_now,
};
use crate::heads::visit_heads;
use crate::index::{Index, Inserted, Place};
use crate::left::{Left, evicted_or_expired};
use crate::log::{Evict, Log, Refused};
use crate::order::Stripes;
use crate::price::TimedRead;
use crate::read_times::ReadClock;

/// Bytes that eviction and recovery read at a time.
const READ_BYTES: usize = 1 << 20;
/// Gap between two records up to which they are read together, in bytes.
const READ_GAP: usize = 64 << 10;

/// Parts of a large object that are read at a time.
const PARTS_AT_ONCE: usize = 8;
/// Difference of the seeds of the hashes of parts and of keys.
const PART_SEED: u64 = 0x7061_7274_7061_7274;

/// Counters of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    /// Objects appended.
    pub(crate) inserted: AtomicU64,
    /// Objects whose segment was evicted.
    pub(crate) evicted: AtomicU64,
    /// Objects kept when their segment was evicted, because they had been used.
    pub(crate) kept: AtomicU64,
    /// Used objects that were evicted because the log had no room.
    pub(crate) dropped_used: AtomicU64,
    /// Objects lost to a key with an equal tag.
    pub(crate) collided: AtomicU64,
    /// Lookups that read the record of another key.
    pub(crate) mistaken: AtomicU64,
    /// Records whose checksum did not match.
    pub(crate) damaged: AtomicU64,
    /// Reads that failed.
    pub(crate) failed_reads: AtomicU64,
    /// Reads for lookups.
    pub(crate) reads: AtomicU64,
    /// Bytes read for lookups and for records that are kept.
    pub(crate) read_bytes: AtomicU64,
    /// Times of reads for single lookups.
    pub(crate) read_clock: ReadClock,
    /// Values that could not be decoded.
    pub(crate) undecoded: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed); // a statistic
}

/// Returns the hash of the key of a part, which is none of the keys of objects.
fn hash_part(seed: u64, key: &[u8]) -> u64 {
    hash_key(seed ^ PART_SEED, key)
}

/// Returns the hash of an encoded key, the same in all versions of Floe.
pub(crate) fn hash_key(seed: u64, key: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, key)
}

/// The order between producers and the writer of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Pace {
    /// The writer works while producers append.
    #[default]
    Free,
    /// A producer waits for the writer after each record. So the same calls of one thread always
    /// have the same results.
    InStep,
    /// A producer does the writer's work after each record: there is no thread. The results are
    /// those of `InStep`, and time is simulated.
    InLine,
}

impl Pace {
    /// Returns whether the same calls have the same results in every process.
    pub(crate) fn is_reproducible(self) -> bool {
        self != Self::Free
    }
}

/// The store of a cache on one drive. `T` is the type of an object on its way from memory to flash.
#[derive(Debug)]
pub(crate) struct Store<T> {
    pub(crate) log: Log,
    pub(crate) index: Index,
    /// The order of changes to keys, shared by the stores of a cache's drives.
    pub(crate) stripes: Arc<Stripes<T>>,
    pub(crate) counters: StoreCounters,
    pub(crate) hash_seed: u64,
    /// While a failed flash is opened again: hashes of the keys removed from the index without a
    /// record in the log.
    pub(crate) unlogged: Mutex<Option<Vec<u64>>>,
    /// Largest share of a segment's bytes that is kept when it is evicted.
    pub(crate) keep_share: f64,
    /// Number of [sweeps](crate::sweep) during which no record is kept, so that none moves.
    pub(crate) sweeps: AtomicUsize,
    /// The admission to flash; `None` admits everything.
    pub(crate) gate: Option<Gate>,
    pub(crate) pace: Pace,
    /// Number of large objects appended, for the identities of their parts.
    pub(crate) large: AtomicU64,
    /// The listener of objects that leave flash.
    pub(crate) left: Left,
}

/// The result of searching a buffer for a key's record.
#[derive(Debug)]
pub(crate) enum Found<R> {
    Value(R),
    /// The object is expired.
    Expired,
    /// The record is damaged or has been overwritten.
    Damaged,
    /// The record of another key.
    Mistaken,
}

impl<T> Store<T> {
    /// Parses the record at a place in a buffer, and returns it if it is that of `key`.
    pub(crate) fn examine<R>(
        bytes: &[u8],
        salt: u32,
        (kind, key): (RecordKind, &[u8]),
        read: impl FnOnce(&Record<'_>) -> R,
    ) -> Found<R> {
        let Some(record) = Record::decode(bytes, salt) else { return Found::Damaged };
        if record.header.kind != kind || record.key != key {
            return Found::Mistaken;
        }
        if record.header.lifetime.is_expired(seconds_now()) {
            return Found::Expired;
        }
        Found::Value(read(&record))
    }

    /// Reads the rest of a saved index. The log must not be written before: its next segments
    /// overwrite it.
    pub(crate) fn load_index(&self) {
        match self.index.load_rest() {
            Ok(failed) => drop(self.counters.failed_reads.fetch_add(failed, Ordering::Relaxed)),
            // The log would lack the removals of the objects that are lost.
            Err(error) => self.log.fail(&error),
        }
    }

    /// Appends an object and points the index to it. The caller holds the key's stripe.
    pub(crate) fn append_object(
        &self,
        hash: u64,
        header: &RecordHeader,
        encoded: &[u8],
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Refused> {
        let (place, _) = self.log.append(hash, header, encoded, (key, value), false)?;
        count(&self.counters.inserted);
        if let Inserted::Replaced(_) = self.index.insert(hash, place) {
            count(&self.counters.collided);
        }
        Ok(())
    }

    /// Returns the place of a key's record and the number of its earlier uses. Counts a use.
    pub(crate) fn look_up(&self, hash: u64) -> Option<(Place, u8)> {
        let found = self.index.look_up(hash);
        if let Some(gate) = &self.gate {
            gate.looked_up(hash, found.map(|(place, uses)| (place.length.bytes() as u64, uses)));
        }
        found
    }

    /// Removes the object of a key and logs the removal, so that no restart brings it back. The
    /// caller holds the key's stripe. Returns whether there was an object.
    pub(crate) fn forget(&self, hash: u64) -> Result<bool, Refused> {
        if self.index.peek(hash).is_none() {
            return Ok(false);
        }
        let appended = self.append_removal(hash);
        // A log that has ended takes no removal, and yet nothing removed may be served.
        if appended != Err(Refused::Full) {
            self.index.remove(hash);
            if let Some(gate) = &self.gate {
                gate.removed(hash);
            }
        }
        if appended == Err(Refused::Ended) {
            let mut unlogged = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
            unlogged.iter_mut().for_each(|unlogged| unlogged.push(hash));
        }
        appended.map(|()| true)
    }

    /// Appends the record of a removal.
    pub(crate) fn append_removal(&self, hash: u64) -> Result<(), Refused> {
        let key = hash.to_le_bytes();
        let header = RecordHeader::new(RecordKind::Removal, &key, &[]);
        self.log.append(hash, &header, &header.encode(&key, &[]), (&key, &[]), false)?;
        Ok(())
    }

    fn count_read(&self, len: usize) {
        count(&self.counters.reads);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed); // a statistic
    }

    /// Reads the pages that hold a record.
    fn read_pages(&self, place: Place) -> io::Result<(Buffer, usize, u32)> {
        let (offset, len, skip) = self.log.pages(place);
        let (at, _) = self.log.geometry.locate(place.address);
        let salt = self.log.segment_in(at).salt();
        let mut buffer = self.log.flash.buffers().take(len);
        self.count_read(len);
        let (began, timed) = (ReadClock::begin(), self.begin_timing(len));
        self.log.flash.read(&mut buffer, offset)?;
        self.counters.read_clock.end(began);
        self.end_timing(timed);
        Ok((buffer, skip, salt))
    }

    /// Looks up the record of an object and reads it, blocking.
    pub(crate) fn read_blocking<R>(
        &self,
        hash: u64,
        place: Place,
        key: &[u8],
        read: impl Fn(&Record<'_>) -> R,
    ) -> io::Result<Option<R>> {
        self.read_kind_blocking(hash, place, (RecordKind::Object, key), read)
    }

    fn read_kind_blocking<R>(
        &self,
        hash: u64,
        place: Place,
        key: (RecordKind, &[u8]),
        read: impl Fn(&Record<'_>) -> R,
    ) -> io::Result<Option<R>> {
        if let Some(found) = self.read_resident_kind(hash, place, key, &read) {
            return Ok(found);
        }
        let (buffer, skip, salt) =
            self.read_pages(place).inspect_err(|_| count(&self.counters.failed_reads))?;
        Ok(self.judge(hash, place, key, Self::examine(&buffer[skip..], salt, key, read)))
    }

    /// Appends a part of a large object, and points the index to it.
    pub(crate) fn append_part(
        &self,
        list: &PartsList,
        number: u32,
        lifetime: Lifetime,
        part: &[u8],
    ) -> Result<(), Refused> {
        let key = list.key(number);
        let hash = hash_part(self.hash_seed, &key);
        let mut header = RecordHeader::new(RecordKind::Part, &key, part);
        header.lifetime = lifetime;
        let head = header.encode(&key, part);
        let _stripe = self.stripes.of(hash);
        let (place, _) = self.log.append(hash, &header, &head, (&key, part), false)?;
        if let Inserted::Replaced(_) = self.index.insert(hash, place) {
            count(&self.counters.collided);
        }
        Ok(())
    }

    /// Returns a list of parts for a stored value of this many bytes. No other list has its
    /// identity.
    pub(crate) fn new_parts(&self, bytes: usize) -> PartsList {
        let (_, session) = self.log.identity();
        let number = self.large.fetch_add(1, Ordering::Relaxed); // unique, without an order
        let id = session << 32 | number & u64::from(u32::MAX);
        PartsList { id, bytes: bytes as u32, part_bytes: self.log.geometry.part_bytes() }
    }

    /// Reads the value of a large object, blocking. `None` if a part is missing or damaged.
    pub(crate) fn read_parts_blocking(&self, list: &PartsList) -> Option<Vec<u8>> {
        let mut value = Vec::with_capacity(list.bytes as usize);
        for number in 0..list.count() {
            let key = list.key(number);
            let hash = hash_part(self.hash_seed, &key);
            let (place, _) = self.index.look_up(hash)?;
            let read = |record: &Record<'_>| record.value.to_vec();
            let key = (RecordKind::Part, &key[..]);
            let part = self.read_kind_blocking(hash, place, key, read).ok()??;
            value.extend_from_slice(&part);
        }
        (value.len() == list.bytes as usize).then_some(value)
    }

    /// Reads the value of a large object, some parts at a time. `None` if a part is missing or
    /// damaged.
    pub(crate) async fn read_parts(&self, list: &PartsList) -> Option<Vec<u8>> {
        let mut value = vec![0; list.bytes as usize];
        let numbers: Vec<u32> = (0..list.count()).collect();
        for numbers in numbers.chunks(PARTS_AT_ONCE) {
            let (mut ranges, mut reads) = (Vec::new(), Vec::new());
            for &number in numbers {
                let key = list.key(number);
                let hash = hash_part(self.hash_seed, &key);
                let (place, _) = self.index.look_up(hash)?;
                let into = &mut value[list.range(number)];
                let part = |record: &Record<'_>| record.value.to_vec();
                let resident = self.read_resident_kind(hash, place, (RecordKind::Part, &key), part);
                match resident {
                    Some(part) => {
                        let part = part.filter(|part| part.len() == into.len())?;
                        into.copy_from_slice(&part);
                    }
                    None => {
                        let key = (RecordKind::Part, key.to_vec());
                        let (range, pending) = self.begin_reading(hash, place, key);
                        ranges.push(range);
                        reads.push((number, pending));
                    }
                }
            }
            let readings = self.log.flash.start_all(&ranges);
            for (reading, (number, pending)) in readings.into_iter().zip(reads) {
                let (_, part) = self.end_shared_read(pending, reading.await).ok()??;
                let into = &mut value[list.range(number)];
                if part.len() != into.len() {
                    return None;
                }
                into.copy_from_slice(&part);
            }
        }
        Some(value)
    }

    /// Looks up a record and reads it without blocking.
    pub(crate) async fn read<R>(
        &self,
        hash: u64,
        place: Place,
        key: Vec<u8>,
        read: impl Fn(&Record<'_>) -> R,
    ) -> io::Result<Option<R>> {
        if let Some(found) = self.read_resident(hash, place, &key, &read) {
            return Ok(found);
        }
        let ((offset, len), pending) = self.begin_read(hash, place, key);
        let began = ReadClock::begin();
        let buffer = self.log.flash.start(offset, len).await;
        self.counters.read_clock.end(began);
        self.end_read(pending, buffer, read)
    }

    /// Reads a record whose segment is in memory; `None` if it is not.
    pub(crate) fn read_resident<R>(
        &self,
        hash: u64,
        place: Place,
        key: &[u8],
        read: impl Fn(&Record<'_>) -> R,
    ) -> Option<Option<R>> {
        self.read_resident_kind(hash, place, (RecordKind::Object, key), read)
    }

    fn read_resident_kind<R>(
        &self,
        hash: u64,
        place: Place,
        key: (RecordKind, &[u8]),
        read: impl Fn(&Record<'_>) -> R,
    ) -> Option<Option<R>> {
        let examine = |bytes: &[u8], salt| Self::examine(bytes, salt, key, &read);
        Some(self.judge(hash, place, key, self.log.read_resident(place, examine)?))
    }

    /// Begins a lookup: returns the range of the file to read, and the state for
    /// [`Store::end_read`].
    pub(crate) fn begin_read(
        &self,
        hash: u64,
        place: Place,
        key: Vec<u8>,
    ) -> ((u64, usize), PendingRead) {
        self.begin_reading(hash, place, (RecordKind::Object, key))
    }

    fn begin_reading(
        &self,
        hash: u64,
        place: Place,
        (kind, key): (RecordKind, Vec<u8>),
    ) -> ((u64, usize), PendingRead) {
        let (offset, len, skip) = self.log.pages(place);
        let (at, _) = self.log.geometry.locate(place.address);
        let salt = self.log.segment_in(at).salt();
        self.count_read(len);
        let timed = self.begin_timing(len);
        ((offset, len), PendingRead { hash, place, kind, key, skip, salt, timed })
    }

    /// Ends a lookup: checks the bytes read and returns the header and
    /// the stored value, which shares their buffer.
    pub(crate) fn end_shared_read(
        &self,
        pending: PendingRead,
        buffer: io::Result<Buffer>,
    ) -> io::Result<Option<(RecordHeader, Bytes)>> {
        let PendingRead { hash, place, kind, key, skip, salt, timed } = pending;
        let buffer = buffer.inspect_err(|_| count(&self.counters.failed_reads))?;
        self.end_timing(timed);
        let found = Self::examine(&buffer[skip..], salt, (kind, &key), |record| record.header);
        let Some(header) = self.judge(hash, place, (kind, &key), found) else { return Ok(None) };
        let start = skip + header.head_bytes() + key.len();
        let value = Bytes::from_owner(buffer).slice(start..start + header.value_bytes);
        Ok(Some((header, value)))
    }

    /// Ends a lookup: checks the bytes read and returns the record.
    pub(crate) fn end_read<R>(
        &self,
        pending: PendingRead,
        buffer: io::Result<Buffer>,
        read: impl Fn(&Record<'_>) -> R,
    ) -> io::Result<Option<R>> {
        let buffer = buffer.inspect_err(|_| count(&self.counters.failed_reads))?;
        self.end_timing(pending.timed);
        Ok(self.check_read(&pending, &buffer, read))
    }

    /// Checks the bytes read, and returns the record.
    pub(crate) fn check_read<R>(
        &self,
        pending: &PendingRead,
        bytes: &[u8],
        read: impl Fn(&Record<'_>) -> R,
    ) -> Option<R> {
        let PendingRead { hash, place, kind, key, skip, salt, .. } = pending;
        let found = Self::examine(&bytes[*skip..], *salt, (*kind, key), read);
        self.judge(*hash, *place, (*kind, key), found)
    }

    /// Begins to measure the latency of a read, if the admission uses it.
    fn begin_timing(&self, bytes: usize) -> Option<Timed> {
        self.gate.as_ref().filter(|gate| gate.times_reads()).map(|_| Timed {
            began: Instant::now(),
            bytes,
            beside_write: self.log.counters.is_writing.load(Ordering::Relaxed),
        })
    }

    fn end_timing(&self, timed: Option<Timed>) {
        if let (Some(gate), Some(timed)) = (&self.gate, timed) {
            gate.read(TimedRead {
                bytes: timed.bytes as u64,
                latency_ns: timed.began.elapsed().as_nanos() as u64,
                beside_write: timed.beside_write,
                written_bytes: self.log.counters.written_bytes.load(Ordering::Relaxed),
            });
        }
    }

    /// Returns whether the admission allows to append a used record again.
    fn may_keep(&self, entry: &FooterEntry, uses: u8) -> bool {
        self.gate.as_ref().is_none_or(|gate| {
            let offer = Offer { hash: entry.hash, bytes: entry.length.bytes() as u64, uses };
            gate.keeps(self.stripes.now(), self.log.counters.spent_bytes(), &offer)
        })
    }

    fn judge<R>(
        &self,
        hash: u64,
        place: Place,
        (kind, key): (RecordKind, &[u8]),
        found: Found<R>,
    ) -> Option<R> {
        match found {
            Found::Value(value) => return Some(value),
            Found::Expired => {
                let was_there = self.index.remove_at(hash, place.address).is_some();
                if was_there && kind == RecordKind::Object {
                    self.left.tell(key, Cause::Expired);
                }
            }
            Found::Mistaken => count(&self.counters.mistaken),
            Found::Damaged => {
                // Not damaged if the segment was evicted since the lookup.
                if self.index.remove_at(hash, place.address).is_some() {
                    count(&self.counters.damaged);
                }
            }
        }
        None
    }

    /// Removes the objects in a place from the index, and counts them as evicted.
    pub(crate) fn forget_place(&self, place: u64) {
        let geometry = self.log.geometry;
        let start = geometry.address(place, 0);
        let units = geometry.segment_bytes / UNIT_BYTES as u64;
        let lost = self.index.remove_range(start..start + units);
        self.counters.evicted.fetch_add(lost, Ordering::Relaxed);
    }

    /// Removes all objects: records in segments older than the one returned become invalid. The
    /// caller holds all stripes.
    pub(crate) fn clear(&self) -> Result<u64, Refused> {
        let first = self.log.turn();
        // A log that has ended notes nothing, and yet nothing removed may be served.
        if first != Err(Refused::Full) {
            self.index.clear();
        }
        first
    }
}

/// A read of a record that is under way.
#[derive(Debug)]
pub(crate) struct PendingRead {
    hash: u64,
    place: Place,
    kind: RecordKind,
    key: Vec<u8>,
    /// Offset of the record in the pages that are read.
    skip: usize,
    salt: u32,
    timed: Option<Timed>,
}

/// A read whose latency is measured.
#[derive(Debug, Clone, Copy)]
struct Timed {
    began: Instant,
    bytes: usize,
    beside_write: bool,
}

/// The writing of the statistics to the file, set once the cache is complete. It is called with
/// true when the session is closed.
pub(crate) type Reporter = Arc<OnceLock<Box<dyn Fn(bool) + Send + Sync>>>;

/// The eviction of segments, called by the log's writer.
pub(crate) struct Evictor<T> {
    pub(crate) store: Arc<Store<T>>,
    pub(crate) reporter: Reporter,
}

/// A record to be kept.
struct Kept {
    entry: FooterEntry,
    address: u64,
    uses: u8,
}

/// Starts the thread that writes the log, after it has read the rest of a saved index.
pub(crate) fn spawn_writer<T: Send + 'static>(
    store: &Arc<Store<T>>,
    reporter: &Reporter,
) -> io::Result<JoinHandle<()>> {
    let mut evictor = Evictor { store: Arc::clone(store), reporter: Arc::clone(reporter) };
    let store = Arc::clone(store);
    std::thread::Builder::new().name("floe-hybrid".to_owned()).spawn(move || {
        let run = AssertUnwindSafe(|| {
            store.load_index();
            store.log.run(&mut evictor);
        });
        if std::panic::catch_unwind(run).is_err() {
            store.log.fail(&io::Error::other("the writer thread has panicked"));
        }
    })
}

impl<T> Evict for Evictor<T> {
    fn evict(&mut self, number: u64) -> io::Result<()> {
        let store = &*self.store;
        let geometry = store.log.geometry;
        let place = number % geometry.segments;
        let id = store.log.segment_in(place);
        if id.number == 0 {
            return Ok(());
        }
        let read = read_entries(&*store.log.flash, (geometry, store.hash_seed), place, id);
        let Ok(entries) = read else {
            // What an unreadable segment held is a miss from now on.
            count(&store.counters.failed_reads);
            store.forget_place(place);
            return Ok(());
        };
        let (mut kept, mut evicted) = (Vec::new(), Vec::new());
        let mut budget = (store.keep_share * geometry.segment_bytes as f64) as usize;
        for entry in entries.into_iter().filter(|entry| entry.kind.is_indexed()) {
            let address = geometry.address(place, entry.offset);
            match store.index.uses_at(entry.hash, address) {
                Some(uses)
                    if uses > 0
                        && entry.length.bytes() <= budget
                        && store.may_keep(&entry, uses) =>
                {
                    budget -= entry.length.bytes();
                    kept.push(Kept { entry, address, uses });
                }
                Some(_) if store.index.remove_at(entry.hash, address).is_some() => {
                    count(&store.counters.evicted);
                    if let Some(gate) = &store.gate {
                        gate.evicted(entry.hash);
                    }
                    evicted.push(entry);
                }
                _ => {} // replaced or removed
            }
        }
        keep(store, place, id, &kept)?;
        if store.left.is_listening() {
            tell_evicted(store, id, &evicted);
        }
        Ok(())
    }

    fn report(&mut self) {
        if let Some(report) = self.reporter.get() {
            report(false);
        }
    }
}

/// Reads the keys of the evicted objects of a segment, and tells the listener of them.
fn tell_evicted<T>(store: &Store<T>, id: SegmentId, entries: &[FooterEntry]) {
    let is_object = |entry: &FooterEntry| entry.kind == RecordKind::Object;
    let entries: Vec<FooterEntry> = entries.iter().copied().filter(is_object).collect();
    let now = seconds_now();
    let read = visit_heads(&*store.log.flash, store.log.geometry, id, &entries, |entry, head| {
        // The hash is a checksum of the key.
        if hash_key(store.hash_seed, head.key) == entry.hash {
            store.left.tell(head.key, head.cause_at(now));
        }
    });
    if read.is_err() {
        count(&store.counters.failed_reads);
    }
}

/// Appends the kept records of an evicted segment to the end of the log.
fn keep<T>(store: &Store<T>, place: u64, id: SegmentId, kept: &[Kept]) -> io::Result<()> {
    let geometry = store.log.geometry;
    let segment_bytes = geometry.segment_bytes as usize;
    let mut rest = kept;
    while let Some(first) = rest.first() {
        // One read for records that are near to each other.
        let from = first.entry.offset / PAGE_BYTES * PAGE_BYTES;
        let end = |kept: &Kept| kept.entry.offset + kept.entry.length.bytes();
        let mut until = end(first);
        let near = rest.iter().take_while(|kept| {
            let joins = kept.entry.offset <= until + READ_GAP
                && (end(kept) <= from + READ_BYTES || kept.address == first.address);
            until = if joins { until.max(end(kept)) } else { until };
            joins
        });
        let (these, others) = rest.split_at(near.count());
        rest = others;
        let until = until.next_multiple_of(PAGE_BYTES).min(segment_bytes);
        let mut buffer = store.log.flash.buffers().take(until - from);
        let start = geometry.segment_start(place) + from as u64;
        let read = store.log.flash.read(&mut buffer, start);
        store.counters.read_bytes.fetch_add((until - from) as u64, Ordering::Relaxed);
        if read.is_err() {
            count(&store.counters.failed_reads);
        }
        for kept in these {
            let record = read
                .is_ok()
                .then(|| Record::decode(&buffer[kept.entry.offset - from..], id.salt()));
            let record = record.flatten();
            if !record.as_ref().is_some_and(|record| keep_record(store, kept, record))
                && store.index.remove_at(kept.entry.hash, kept.address).is_some()
            {
                count(&store.counters.dropped_used);
                if let Some(record) = record.filter(|it| it.header.kind == RecordKind::Object) {
                    let is_expired = record.header.lifetime.is_expired(seconds_now());
                    store.left.tell(record.key, evicted_or_expired(is_expired));
                }
            }
        }
    }
    Ok(())
}

/// Appends a kept record again, unless its key has a newer record. Returns whether the record is
/// dealt with, so that it need not be evicted.
fn keep_record<T>(store: &Store<T>, kept: &Kept, record: &Record<'_>) -> bool {
    if record.header.lifetime.is_expired(seconds_now()) {
        return false;
    }
    let hash = kept.entry.hash;
    let encoded = record.header.encode(record.key, record.value);
    let _stripe = store.stripes.of(hash);
    if store.index.uses_at(hash, kept.address).is_none() {
        return true; // changed meanwhile
    }
    // Relaxed: the lock of the stripe orders it.
    if store.sweeps.load(Ordering::Relaxed) > 0 {
        return false;
    }
    let body = (record.key, record.value);
    let Ok((place, _)) = store.log.append(hash, &record.header, &encoded, body, true) else {
        return false;
    };
    count(&store.counters.kept);
    store.index.relocate(hash, kept.address, place, kept.uses - 1)
}

/// Returns the entries of a segment on flash: from its footer, or from its records if it was not
/// closed.
pub(crate) fn read_entries(
    flash: &dyn Flash,
    (geometry, hash_seed): (Geometry, u64),
    place: u64,
    id: SegmentId,
) -> io::Result<Vec<FooterEntry>> {
    let start = geometry.segment_start(place);
    let size = geometry.segment_bytes as usize;
    let mut page = flash.buffers().take(PAGE_BYTES);
    flash.read(&mut page, start + (size - PAGE_BYTES) as u64)?;
    let trailer = Trailer::decode(&page[PAGE_BYTES - TRAILER_BYTES..], id.cache);
    let Some((trailer, sum)) = trailer.filter(|(trailer, _)| trailer.id == id) else {
        return scan(flash, (geometry, hash_seed), place, id);
    };
    let footer = footer_bytes(trailer.entries).next_multiple_of(PAGE_BYTES).min(size);
    let mut bytes = flash.buffers().take(footer);
    flash.read(&mut bytes, start + (size - footer) as u64)?;
    match decode_footer(&bytes, trailer.entries, sum) {
        Some(entries) => Ok(entries),
        None => scan(flash, (geometry, hash_seed), place, id),
    }
}

/// Returns the entries of the footer at the end of these bytes, if it is intact.
pub(crate) fn decode_footer(bytes: &[u8], entries: usize, sum: u32) -> Option<Vec<FooterEntry>> {
    let end = bytes.len() - TRAILER_BYTES;
    let entries = bytes.get(end.checked_sub(entries * ENTRY_BYTES)?..end)?;
    (crc(entries) == sum).then(|| entries.chunks(ENTRY_BYTES).map(FooterEntry::decode).collect())
}

/// Reads a segment whose footer is missing or damaged, and returns the entries of its records.
fn scan(
    flash: &dyn Flash,
    (geometry, hash_seed): (Geometry, u64),
    place: u64,
    id: SegmentId,
) -> io::Result<Vec<FooterEntry>> {
    let mut bytes = flash.buffers().take(geometry.segment_bytes as usize);
    flash.read(&mut bytes, geometry.segment_start(place))?;
    Ok(scan_records(&bytes, hash_seed, id))
}

/// Returns the entries of a segment's records in order, up to the first incomplete or damaged one.
pub(crate) fn scan_records(bytes: &[u8], hash_seed: u64, id: SegmentId) -> Vec<FooterEntry> {
    let mut entries = Vec::new();
    if SegmentId::decode(bytes) != Some(id) {
        return entries;
    }
    let mut offset = SEGMENT_HEADER_BYTES;
    while let Some(record) = bytes.get(offset..).and_then(|rest| Record::decode(rest, id.salt())) {
        let (header, hash) = (record.header, hash_of(&record, hash_seed));
        let length = LengthCode::of(header.record_bytes());
        entries.push(FooterEntry { hash, offset, length, kind: header.kind });
        offset += header.log_bytes();
    }
    entries
}

/// Returns the hash of a record's key.
pub(crate) fn hash_of(record: &Record<'_>, hash_seed: u64) -> u64 {
    match (record.header.kind, record.key.try_into()) {
        (RecordKind::Removal, Ok(hash)) => u64::from_le_bytes(hash),
        (RecordKind::Part, _) => hash_part(hash_seed, record.key),
        _ => hash_key(hash_seed, record.key),
    }
}
