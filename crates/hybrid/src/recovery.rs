//! Opening and closing a store: superblocks, the saved index, and recovery after a crash.
//!
//! A store that was closed in order has saved its index behind the log's end, and reads it again
//! while it serves.
//! After a crash the index is built from the footers of the segments, and from the records of those
//! that were not closed, in the order of the log. The oldest segments are left out then: they may
//! have been evicted before the crash, and the log need not hold the removals of what they had. So
//! are the segments older than a damaged one, which may have had removals of their objects.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::flash::Flash;
use crate::format::{
    BadSuperblock, DriveSet, FooterEntry, Geometry, NOTE_BYTES, NOTES_START, Note, PAGE_BYTES,
    SEGMENTS_START, SegmentId, Superblock, TRAILER_BYTES, Trailer, UNIT_BYTES, VERSION,
};
use crate::index::{Index, Place};
use crate::left::Left;
use crate::log::{EMPTY_AHEAD, Log, Refused, SEGMENTS_IN_MEMORY};
use crate::order::{Clock, Stripes};
use crate::store::{Pace, Store, StoreCounters, read_entries};

pub(crate) use saved_index::save;

mod saved_index;

/// Number of threads that read footers after a crash.
const READERS: usize = 8;
/// Number of records after which the entries read so far are applied to the index.
const GROUP_ENTRIES: u64 = 500_000;
/// Maximum number of segments whose entries are read before they are applied.
const MOST_GROUPED: usize = 1024;

/// The reason why a store could not be opened.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// A read or write failed.
    Io(io::Error),
    /// The file is not a hybrid cache.
    Foreign,
    /// Both superblocks are damaged.
    Damaged,
    /// A later version of Floe wrote the file.
    Version(u32),
    /// The file is shorter than the cache that it holds.
    Short {
        /// Size of the cache in bytes.
        expected: u64,
        /// Size of the file in bytes.
        actual: u64,
    },
    /// The flash has no room for 8 segments.
    Small,
    /// The file holds another cache than the one that was open.
    OtherCache,
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The state in which a cache was found when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The cache was created.
    New,
    /// The cache had been closed cleanly.
    Clean,
    /// The last process ended without closing the cache; what it had written was recovered.
    Recovered,
}

/// Settings of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreOptions {
    /// Number of objects for which the index has room from the start.
    pub(crate) expected_objects: u64,
    /// Largest segment in bytes.
    pub(crate) max_segment_bytes: u64,
    /// Largest share of a segment that is kept when it is evicted.
    pub(crate) keep_share: f64,
    /// Numbers for a new store: its identity and its hash seed.
    pub(crate) random: (u64, u64),
    /// Order between producers and the writer.
    pub(crate) pace: Pace,
    /// The drives of the cache, and the place of this one.
    pub(crate) set: DriveSet,
}

/// The superblock of an open store.
#[derive(Debug)]
pub(crate) struct SuperblockWriter {
    block: Mutex<Superblock>,
}

impl SuperblockWriter {
    /// Returns the superblock as it was written last.
    pub(crate) fn current(&self) -> Superblock {
        *self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the number of a new session, which is not closed yet. Segments before
    /// `first_segment` become invalid.
    pub(crate) fn begin_session(&self, flash: &dyn Flash, first_segment: u64) -> io::Result<()> {
        let mut was_older = false;
        self.write(flash, |block| {
            was_older = block.version < VERSION;
            block.session += 1;
            block.first_segment = block.first_segment.max(first_segment);
            block.clean = false;
            block.saved_at = 0;
            block.saved_bytes = 0;
        })?;
        // Both copies: an earlier version of Floe must not go by the other one.
        if was_older { self.write(flash, |_| {}) } else { Ok(()) }
    }

    /// Records a new generation of the set of drives. A failed drive learns of it when it is opened
    /// again: the newest generation on any drive counts.
    pub(crate) fn join(&self, flash: &dyn Flash, set: DriveSet) {
        let _ = self.write(flash, |block| block.set = set);
        self.block.lock().unwrap_or_else(PoisonError::into_inner).set = set;
    }

    /// Takes a superblock that was found on flash for the one that was written last.
    pub(crate) fn adopt(&self, block: Superblock) {
        *self.block.lock().unwrap_or_else(PoisonError::into_inner) = block;
    }

    /// Changes the superblock durably.
    pub(crate) fn write(
        &self,
        flash: &dyn Flash,
        change: impl FnOnce(&mut Superblock),
    ) -> io::Result<()> {
        let mut block = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = *block;
        change(&mut next);
        next.generation += 1;
        next.version = VERSION;
        let mut page = flash.buffers().take(PAGE_BYTES);
        next.encode(&mut page);
        flash.write(&page, next.generation % 2 * PAGE_BYTES as u64)?;
        flash.sync()?;
        *block = next;
        Ok(())
    }
}

/// Reads the newer of both superblocks; `None` if both pages are zero.
pub(crate) fn read_superblock(flash: &dyn Flash) -> Result<Option<Superblock>, OpenFailure> {
    if flash.size_bytes() < SEGMENTS_START {
        return Err(OpenFailure::Small);
    }
    let mut pages = flash.buffers().take(2 * PAGE_BYTES);
    flash.read(&mut pages, 0)?;
    let copies = [0, 1].map(|at| Superblock::decode(&pages[at * PAGE_BYTES..][..PAGE_BYTES]));
    if let Some(newest) = copies.iter().flatten().max_by_key(|block| block.generation) {
        return Ok(Some(*newest));
    }
    if pages.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let version = copies.iter().find_map(|copy| match copy {
        Err(BadSuperblock::Version(version)) => Some(OpenFailure::Version(*version)),
        _ => None,
    });
    let damaged = copies.contains(&Err(BadSuperblock::Damaged));
    Err(version.unwrap_or(if damaged { OpenFailure::Damaged } else { OpenFailure::Foreign }))
}

/// A place, and the segment found in it after a crash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceFound {
    pub(crate) place: u64,
    pub(crate) id: SegmentId,
    /// Number of records, as far as the trailer has it.
    entries: u64,
}

/// An opened store, before its log runs.
#[derive(Debug)]
pub(crate) struct OpenStore<T> {
    pub(crate) store: Store<T>,
    pub(crate) superblock: SuperblockWriter,
    pub(crate) opened: Opened,
    /// Hashes of keys whose removal the log does not have: the last process was killed before it
    /// had written them. [`log_removals`] appends them once the log runs.
    pub(crate) unlogged: Vec<u64>,
}

/// Opens the store on `flash`, or creates one. The caller runs the log, and then
/// [`log_removals`].
pub(crate) fn open<T>(
    flash: Arc<dyn Flash>,
    options: &StoreOptions,
) -> Result<OpenStore<T>, OpenFailure> {
    let found = read_superblock(&*flash)?;
    let block = match found {
        Some(block) => Superblock { set: options.set, ..block },
        None => {
            let geometry = Geometry::of(flash.size_bytes(), options.max_segment_bytes)
                .ok_or(OpenFailure::Small)?;
            let (id, hash_seed) = options.random;
            Superblock {
                version: VERSION,
                generation: 0,
                id,
                geometry,
                session: 0,
                first_segment: 1,
                hash_seed,
                clean: true,
                saved_at: 0,
                saved_bytes: 0,
                saved_crc: 0,
                set: options.set,
            }
        }
    };
    let geometry = block.geometry;
    let (expected, actual) = (geometry.total_bytes(), flash.size_bytes());
    if expected > actual {
        return Err(OpenFailure::Short { expected, actual });
    }
    let Survey { index, next, next_note, known, unlogged, damaged, opened } = match found {
        // The writer reads the rest of the index before it writes.
        Some(_) => match saved_index::begin_load(&flash, &block) {
            Some((index, known)) => Survey::clean(&block, index, known),
            None => survey(&*flash, &block, options.expected_objects)?,
        },
        None => Survey {
            index: Index::new(units(geometry), options.expected_objects),
            next: 1,
            next_note: 0,
            known: Vec::new(),
            unlogged: Vec::new(),
            damaged: 0,
            opened: Opened::New,
        },
    };
    let superblock = SuperblockWriter { block: Mutex::new(block) };
    let session = block.session + 1;
    if opened != Opened::Recovered {
        superblock.begin_session(&*flash, 0)?;
    }
    let store = Store {
        log: Log::new(flash, geometry, (block.id, session), (next, next_note), &known),
        index,
        stripes: Arc::new(Stripes::new(match options.pace {
            Pace::InLine => Clock::Simulated(AtomicU64::new(0)),
            Pace::Free | Pace::InStep => Clock::system(),
        })),
        counters: StoreCounters::default(),
        hash_seed: block.hash_seed,
        unlogged: Mutex::new(None),
        keep_share: options.keep_share,
        sweeps: AtomicUsize::new(0),
        gate: None,
        pace: options.pace,
        large: AtomicU64::new(0),
        left: Left::default(),
    };
    store.counters.failed_reads.store(damaged, Ordering::Relaxed); // a statistic
    Ok(OpenStore { store, superblock, opened, unlogged })
}

/// The content of a cache's flash, as found without writing anything.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) index: Index,
    /// Number of the segment at which the log continues.
    pub(crate) next: u64,
    /// Number of the next removal note.
    next_note: u64,
    /// Numbers and sessions of the valid segments, by number.
    pub(crate) known: Vec<(u64, u64)>,
    /// Hashes of keys whose removal the log does not have.
    pub(crate) unlogged: Vec<u64>,
    /// Number of segments that could not be read. Objects older than these are lost.
    damaged: u64,
    pub(crate) opened: Opened,
}

impl Survey {
    /// Creates the result for a cache that was closed, of its saved index and its valid segments.
    fn clean(block: &Superblock, index: Index, mut known: Vec<(u64, u64)>) -> Self {
        known.sort_unstable();
        let (unlogged, opened) = (Vec::new(), Opened::Clean);
        Self { index, next: block.saved_at, next_note: 0, known, unlogged, damaged: 0, opened }
    }
}

/// Reads the saved index, or builds the index from the segments and the removal notes.
pub(crate) fn survey(
    flash: &dyn Flash,
    block: &Superblock,
    expected_objects: u64,
) -> Result<Survey, OpenFailure> {
    let geometry = block.geometry;
    if let Some((index, known)) = saved_index::load(flash, block) {
        return Ok(Survey::clean(block, index, known));
    }
    let (found, newest) = find_segments(flash, block, 0)?;
    let records = records_in(geometry, &found);
    let index = Index::new(units(geometry), expected_objects.max(records));
    let damaged = read_segments(flash, block, &found, &index, |_, _| {})?;
    if expected_objects < records {
        index.shrink();
    }
    let known: Vec<_> = found.iter().map(|found| (found.id.number, found.id.session)).collect();
    let notes = read_notes(flash, block)?;
    let next_note = notes.last().map_or(0, |note| note.number + 1);
    let unlogged = apply_notes(&index, geometry, &known, &notes);
    let (next, opened) = (newest + 1, Opened::Recovered);
    Ok(Survey { index, next, next_note, known, unlogged, damaged, opened })
}

/// Returns the number of addresses of a cache.
pub(crate) fn units(geometry: Geometry) -> u64 {
    geometry.segments * geometry.segment_bytes / UNIT_BYTES as u64
}

/// Appends the removals that the log lacks, and makes them durable. The log runs. Until this has
/// ended the notes of the last session count: the superblock has its number.
pub(crate) fn log_removals<T>(
    store: &Store<T>,
    superblock: &SuperblockWriter,
    unlogged: &[u64],
) -> io::Result<()> {
    for &hash in unlogged {
        while store.append_removal(hash) == Err(Refused::Full) {
            store.log.wait_for_room(NOTE_BYTES);
        }
    }
    store.log.sync_until(store.log.end())?;
    superblock.begin_session(&*store.log.flash, 0)
}

/// Returns the removal notes of the last session, and of one that ended during its opening, in
/// order.
fn read_notes(flash: &dyn Flash, block: &Superblock) -> io::Result<Vec<Note>> {
    let mut bytes = flash.buffers().take((SEGMENTS_START - NOTES_START) as usize);
    flash.read(&mut bytes, NOTES_START)?;
    let mut notes: Vec<Note> = bytes.chunks(NOTE_BYTES).filter_map(Note::decode).collect();
    let sessions = [block.session as u32, block.session as u32 + 1];
    notes.retain(|note| sessions.contains(&note.session));
    notes.sort_by_key(|note| note.number);
    Ok(notes)
}

/// Removes the keys of notes from the index, unless a later record of them was found. Returns the
/// hashes of the keys that were removed.
fn apply_notes(
    index: &Index,
    geometry: Geometry,
    known: &[(u64, u64)],
    notes: &[Note],
) -> Vec<u64> {
    let mut numbers = vec![0; geometry.segments as usize];
    for (number, _) in known {
        numbers[(number % geometry.segments) as usize] = *number;
    }
    let is_older = |note: &&Note| {
        index.peek(note.hash).is_some_and(|place| {
            let (at, offset) = geometry.locate(place.address);
            numbers[at as usize] * geometry.segment_bytes + (offset as u64) < note.position
        })
    };
    let older: Vec<u64> = notes.iter().filter(is_older).map(|note| note.hash).collect();
    for hash in &older {
        index.remove(*hash);
    }
    older
}

/// Returns the valid segments in the order of their numbers, and the newest number. Segments that
/// may have been evicted are left out: the log may have been ahead of its newest segment on flash,
/// or of `newest`.
pub(crate) fn find_segments(
    flash: &dyn Flash,
    block: &Superblock,
    newest: u64,
) -> io::Result<(Vec<PlaceFound>, u64)> {
    let segments = block.geometry.segments;
    let found = in_parallel(segments as usize, |place| look_at_place(flash, block, place as u64))?;
    let mut found: Vec<PlaceFound> = found.into_iter().flatten().collect();
    let on_flash = found.iter().map(|found| found.id.number).max().unwrap_or(0);
    let newest = newest.max(on_flash).max(block.first_segment - 1);
    for unreadable in found.iter_mut().filter(|found| found.id.number == 0) {
        // The log would have this segment here.
        let behind = (newest + segments - unreadable.place) % segments;
        unreadable.id.number = newest.saturating_sub(behind);
    }
    found.sort_by_key(|found| found.id.number);
    let ahead = EMPTY_AHEAD + 1 + SEGMENTS_IN_MEMORY as u64;
    let oldest = (newest + ahead + 1).saturating_sub(segments).max(block.first_segment);
    found.retain(|found| found.id.number >= oldest);
    Ok((found, newest))
}

/// Returns the number of records in segments, as far as their trailers have it. Records of keys
/// that were replaced count, too.
pub(crate) fn records_in(geometry: Geometry, found: &[PlaceFound]) -> u64 {
    let most = geometry.segment_bytes / UNIT_BYTES as u64;
    found.iter().map(|found| found.entries.min(most)).sum()
}

/// Applies the records of segments to the index, in the order of the segments, and passes the
/// entries of each segment to `with`. Footers are read side by side, some at a time.
///
/// A damaged segment may have had removals of any object before it. So older objects are left out.
/// Returns the number of damaged segments.
pub(crate) fn read_segments(
    flash: &dyn Flash,
    block: &Superblock,
    found: &[PlaceFound],
    index: &Index,
    mut with: impl FnMut(&PlaceFound, &[FooterEntry]),
) -> io::Result<u64> {
    let (geometry, seed) = (block.geometry, block.hash_seed);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
    let (mut rest, mut damaged) = (found, 0);
    while !rest.is_empty() {
        let mut sum = 0;
        let until = rest.iter().position(|found| {
            sum += found.entries;
            sum >= GROUP_ENTRIES
        });
        let (group, later) = rest.split_at(until.unwrap_or(rest.len()).clamp(1, MOST_GROUPED));
        rest = later;
        let read = |at: usize| {
            let PlaceFound { place, id, .. } = group[at];
            Ok(read_entries(flash, (geometry, seed), place, id).ok())
        };
        let entries = in_parallel(group.len(), read)?;
        let mut changes = Vec::new();
        for (entries, found) in entries.iter().zip(group) {
            let known = entries.as_deref().unwrap_or_default();
            if entries.is_none() || (known.len() as u64) < found.entries {
                damaged += 1;
                changes.clear();
                index.clear();
            }
            changes.extend(known.iter().map(|entry| change_of(geometry, found.place, entry)));
        }
        index.apply(&changes, threads);
        for (entries, found) in entries.iter().zip(group) {
            with(found, entries.as_deref().unwrap_or_default());
        }
    }
    Ok(damaged)
}

/// Returns a record's key and its place; `None` instead of the place for a removal.
fn change_of(geometry: Geometry, place: u64, entry: &FooterEntry) -> (u64, Option<Place>) {
    let address = geometry.address(place, entry.offset);
    (entry.hash, entry.kind.is_indexed().then_some(Place { address, length: entry.length }))
}

/// Returns the newest segment of this cache in a place: its header may be newer than its trailer.
/// A place whose header and trailer are unreadable has segment 0.
fn look_at_place(
    flash: &dyn Flash,
    block: &Superblock,
    place: u64,
) -> io::Result<Option<PlaceFound>> {
    let geometry = block.geometry;
    let start = geometry.segment_start(place);
    let mut page = flash.buffers().take(PAGE_BYTES);
    let is_here = |id: &SegmentId| {
        id.cache == block.id && id.number % geometry.segments == place && id.number > 0
    };
    let mut read = |offset: u64| flash.read(&mut page, offset).map(|()| page.to_vec()).ok();
    let first = read(start);
    let last = read(start + geometry.segment_bytes - PAGE_BYTES as u64);
    if first.is_none() && last.is_none() {
        let id = SegmentId { cache: block.id, number: 0, session: 0 };
        return Ok(Some(PlaceFound { place, id, entries: 0 }));
    }
    let header = first.and_then(|page| SegmentId::decode(&page)).filter(is_here);
    let trailer =
        last.and_then(|page| Trailer::decode(&page[PAGE_BYTES - TRAILER_BYTES..], block.id));
    let trailer = trailer.map(|(trailer, _)| trailer).filter(|trailer| is_here(&trailer.id));
    let closed = trailer.map(|trailer| (trailer.id, trailer.entries as u64));
    let ids = header.map(|id| (id, 0)).into_iter().chain(closed);
    let newest = ids.max_by_key(|(id, entries)| (id.number, id.session, *entries));
    Ok(newest.map(|(id, entries)| PlaceFound { place, id, entries }))
}

/// Runs `work` for the numbers below `count` on several threads. Returns the results in order.
fn in_parallel<R: Send>(
    count: usize,
    work: impl Fn(usize) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..READERS.min(count) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed); // the scope orders the rest
                    if at >= count {
                        return;
                    }
                    let result = work(at);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
