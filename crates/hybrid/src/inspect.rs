//! Inspection of a cache's file: facts about it, and a check of every record. Nothing is written.
//!
//! [`info`] and [`check`] find the valid segments and the index as the next open does, so what they
//! report is what that open will find.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::flash::{FileFlash, Flash};
use crate::format::{
    DriveSet, PAGE_BYTES, Record, RecordKind, SegmentId, Superblock, TRAILER_BYTES, Trailer,
    seconds_now,
};
use crate::open_error::OpenError;
use crate::recovery::{OpenFailure, Opened, Survey, read_superblock, survey};
use crate::saved_stats::{self, SavedStats};
use crate::store::{decode_footer, hash_of, scan_records};

/// Attempts to read the superblock of a cache that is in use, which may be writing it.
const ATTEMPTS: usize = 5;
/// Damaged places that a check lists; it counts the others.
const LISTED: usize = 1000;

/// Facts about a cache. Those of its content are `None` while a process uses the cache.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Info {
    /// Version of the format.
    pub version: u32,
    /// Random number that identifies the cache.
    pub id: u64,
    /// Number of times the cache was opened.
    pub session: u64,
    /// True if the last session was closed with a saved index.
    pub clean: bool,
    /// True if a process has the cache open.
    pub in_use: bool,
    /// Size of the file or block device in bytes.
    pub file_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments that the file has room for.
    pub segments: u64,
    /// Length of the saved index in bytes; 0 if there is none.
    pub saved_index_bytes: u64,
    /// The place of this drive in a cache of several drives; `None` for a cache on one drive.
    pub drive: Option<DriveInfo>,
    /// Facts about the segments and objects on this drive.
    pub content: Option<ContentInfo>,
}

/// The place of a drive in a cache of several drives.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DriveInfo {
    /// Random number that identifies the cache on all its drives.
    pub cache: u64,
    /// Place of the drive, from 1 on.
    pub place: u64,
    /// Number of drives.
    pub drives: u64,
    /// Part of the keys that belongs to this drive, from 0 to 1.
    pub part: f64,
    /// Number of times that drives of the cache were replaced.
    pub replacements: u64,
}

impl DriveInfo {
    fn of(set: &DriveSet) -> Option<Self> {
        (set.drives > 0).then(|| Self {
            cache: set.id,
            place: u64::from(set.place) + 1,
            drives: set.drives.into(),
            part: set.part(),
            replacements: set.generation,
        })
    }
}

/// Facts about the content of a cache that no process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContentInfo {
    /// Objects that the next open finds, including those that are expired.
    pub objects: u64,
    /// Number of segments with valid records.
    pub used_segments: u64,
    /// Number of the oldest of them; segments are numbered from 1 in the order of writing.
    pub oldest_segment: Option<u64>,
    /// Number of the newest of them.
    pub newest_segment: Option<u64>,
    /// Second since 1970 at which the oldest segment was begun. `None` if an earlier version of
    /// Floe wrote it, or its header cannot be read.
    pub oldest_seconds: Option<u64>,
    /// Second since 1970 at which the newest segment was begun.
    pub newest_seconds: Option<u64>,
    /// Memory of the index after the next open, in bytes.
    pub index_bytes: u64,
    /// The state that the next open reports: [`Opened::Clean`] if it reads the saved index,
    /// [`Opened::Recovered`] if it reads the footers of the segments.
    pub next_open: Opened,
    /// Removals that the next open appends to the log, because a crash interrupted them.
    pub interrupted_removals: u64,
    /// Time that it took to read what the next open reads.
    pub open_time: Duration,
}

/// Counts of the records in the valid segments of a cache, and the damage in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Number of valid segments.
    pub segments: u64,
    /// Segments without a footer: the last one, and those that a crash interrupted.
    pub open_segments: u64,
    /// Segments that could not be read.
    pub unreadable_segments: u64,
    /// Records of objects, including objects replaced or removed later.
    pub objects: u64,
    /// Objects that the next open finds and whose records are intact.
    pub live_objects: u64,
    /// Parts of large objects that the next open finds and whose records are intact.
    pub live_parts: u64,
    /// Objects that the next open finds and whose records are damaged or unreadable. Lookups of
    /// them will be misses.
    pub lost_objects: u64,
    /// Records of parts of large objects.
    pub parts: u64,
    /// Records of objects that are expired.
    pub expired: u64,
    /// Records of removals.
    pub removals: u64,
    /// Bytes of keys and values.
    pub object_bytes: u64,
    /// Records that are damaged.
    pub damaged: u64,
    /// The damage, in the order of the file; the first thousand places.
    pub damage: Vec<Damage>,
    /// Number of damaged places, including those that `damage` does not list.
    pub damaged_places: u64,
}

/// A damaged place of a cache's file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The damaged part.
    pub kind: DamageKind,
    /// Number of its segment, if it is in one.
    pub segment: Option<u64>,
    /// Offset in the file in bytes.
    pub offset: u64,
}

/// The damaged part of a cache's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// One copy of the superblock; the other is intact.
    Superblock,
    /// The saved index. The next open reads the footers instead.
    SavedIndex,
    /// A segment that cannot be read.
    Unreadable,
    /// A footer. The next open reads the records instead, up to the first damaged one.
    Footer,
    /// The header of a segment.
    Header,
    /// A record.
    Record,
}

impl DamageKind {
    /// Returns the name of the kind: `superblock`, `saved_index`, `unreadable`, `footer`,
    /// `header` or `record`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::SavedIndex => "saved_index",
            Self::Unreadable => "unreadable",
            Self::Footer => "footer",
            Self::Header => "header",
            Self::Record => "record",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DamageKind::Superblock => "a copy of the superblock is damaged; the other is intact",
            DamageKind::SavedIndex => "the saved index is damaged; the next open reads the footers",
            DamageKind::Unreadable => "the segment cannot be read",
            DamageKind::Footer => "the footer is damaged",
            DamageKind::Header => "the header is damaged",
            DamageKind::Record => "a record is damaged",
        };
        if let Some(segment) = self.segment {
            write!(f, "segment {segment}, ")?;
        }
        write!(f, "offset {}: {what}", self.offset)
    }
}

/// Reads and checks the superblock. That of a cache in use may be overwritten meanwhile.
fn superblock(flash: &FileFlash, path: &Path, in_use: bool) -> Result<Superblock, OpenError> {
    let mut attempts = if in_use { ATTEMPTS } else { 1 };
    let block = loop {
        attempts -= 1;
        match read_superblock(flash) {
            Err(OpenFailure::Damaged) if attempts > 0 => {}
            result => break result.map_err(|failure| failure.at(path))?,
        }
    };
    let block = block.ok_or_else(|| OpenFailure::Foreign.at(path))?;
    let (expected, actual) = (block.geometry.total_bytes(), flash.size_bytes());
    match expected > actual {
        true => Err(OpenFailure::Short { expected, actual }.at(path)),
        false => Ok(block),
    }
}

/// Returns the files in a folder that hold a cache, or a drive of one, by name. Other files are
/// left out, and so are those in folders below.
///
/// # Errors
/// When the folder or a file in it cannot be read.
pub fn caches_in(folder: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
    let mut caches = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            let mut start = Vec::new();
            File::open(&path)?.take(2 * PAGE_BYTES as u64).read_to_end(&mut start)?;
            if start.chunks_exact(PAGE_BYTES).any(Superblock::is_of_a_cache) {
                caches.push(path);
            }
        }
    }
    caches.sort();
    Ok(caches)
}

/// Returns facts about a cache. Of a cache that is in use, only those of its superblock. Otherwise
/// the index is read or built as by an open, which takes its memory.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn info(path: impl AsRef<Path>) -> Result<Info, OpenError> {
    let path = path.as_ref();
    let (flash, in_use) = FileFlash::inspect(path, false)?;
    let block = superblock(&flash, path, in_use)?;
    let content = match in_use {
        true => None,
        false => Some(content_info(&flash, &block).map_err(|failure| failure.at(path))?),
    };
    Ok(Info {
        version: block.version,
        id: block.id,
        session: block.session,
        clean: block.clean,
        in_use,
        file_bytes: flash.size_bytes(),
        segment_bytes: block.geometry.segment_bytes,
        segments: block.geometry.segments,
        saved_index_bytes: block.saved_bytes,
        drive: DriveInfo::of(&block.set),
        content,
    })
}

fn content_info(flash: &FileFlash, block: &Superblock) -> Result<ContentInfo, OpenFailure> {
    let begun = Instant::now();
    let Survey { index, known, unlogged, opened, .. } = survey(flash, block, 0)?;
    let open_time = begun.elapsed();
    let (oldest, newest) = (known.first().copied(), known.last().copied());
    let seconds = |id: Option<(u64, u64)>| {
        let (number, session) = id?;
        let mut page = flash.buffers().take(PAGE_BYTES);
        flash.read(&mut page, block.geometry.segment_start(number)).ok()?;
        let id = SegmentId { cache: block.id, number, session };
        if SegmentId::decode(&page) == Some(id) { SegmentId::begun(&page) } else { None }
    };
    Ok(ContentInfo {
        objects: index.len(),
        used_segments: known.len() as u64,
        oldest_segment: oldest.map(|(number, _)| number),
        newest_segment: newest.map(|(number, _)| number),
        oldest_seconds: seconds(oldest),
        newest_seconds: seconds(newest),
        index_bytes: index.memory_bytes(),
        next_open: opened,
        interrupted_removals: unlogged.len() as u64,
        open_time,
    })
}

/// Returns the figures of a cache's running session, or of its last one. A running cache writes
/// them every ten seconds if they have changed. `None` if the file has none: an earlier version of
/// Floe used the cache, or the file ends at the last segment.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn saved_stats(path: impl AsRef<Path>) -> Result<Option<SavedStats>, OpenError> {
    let path = path.as_ref();
    let (flash, in_use) = FileFlash::inspect(path, false)?;
    let block = superblock(&flash, path, in_use)?;
    saved_stats::read(&flash, &block, in_use).map_err(|error| OpenFailure::Io(error).at(path))
}

/// Reads all valid segments of a cache and checks every record. `progress` gets the number of
/// segments read and the number of all valid ones. No process can open the cache meanwhile. Takes
/// the memory of the index.
///
/// # Errors
/// When the file cannot be opened, is in use, or holds something else. Damage is no error: it is
/// counted and listed.
pub fn check(
    path: impl AsRef<Path>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Contents, OpenError> {
    let path = path.as_ref();
    let (flash, in_use) = FileFlash::inspect(path, true)?;
    if in_use {
        return Err(crate::flash::OpenError::InUse { path: path.to_owned() }.into());
    }
    let block = superblock(&flash, path, false)?;
    let survey = survey(&flash, &block, 0).map_err(|failure| failure.at(path))?;
    let mut contents = Contents::default();
    contents.check_superblocks(&flash);
    if block.clean && survey.opened != Opened::Clean {
        let offset = block.geometry.segment_start(block.saved_at);
        contents.add_damage(DamageKind::SavedIndex, None, offset);
    }
    let (known, all) = (&survey.known, survey.known.len() as u64);
    let mut bytes = flash.buffers().take(block.geometry.segment_bytes as usize);
    for (at, &(number, session)) in known.iter().enumerate() {
        progress(at as u64, all);
        let start = block.geometry.segment_start(number);
        contents.segments += 1;
        if flash.read(&mut bytes, start).is_err() {
            contents.unreadable_segments += 1;
            contents.add_damage(DamageKind::Unreadable, Some(number), start);
            continue;
        }
        let id = SegmentId { cache: block.id, number, session };
        // The session went on to the next segment, and so had written this one's footer.
        let goes_on = known.get(at + 1).is_some_and(|next| *next == (number + 1, session));
        contents.check_segment(&bytes, id, &block, &survey, goes_on);
    }
    progress(all, all);
    let intact = contents.live_objects + contents.live_parts;
    contents.lost_objects = survey.index.len().saturating_sub(intact);
    contents.damage.sort_by_key(|damage| damage.offset);
    Ok(contents)
}

impl Contents {
    fn add_damage(&mut self, kind: DamageKind, segment: Option<u64>, offset: u64) {
        self.damaged_places += 1;
        if self.damage.len() < LISTED {
            self.damage.push(Damage { kind, segment, offset });
        }
    }

    /// Checks both copies of the superblock. A copy of zeros was not written yet.
    fn check_superblocks(&mut self, flash: &FileFlash) {
        let mut page = flash.buffers().take(PAGE_BYTES);
        for offset in [0, PAGE_BYTES as u64] {
            let is_intact = flash.read(&mut page, offset).is_ok()
                && (page.iter().all(|byte| *byte == 0) || Superblock::decode(&page).is_ok());
            if !is_intact {
                self.add_damage(DamageKind::Superblock, None, offset);
            }
        }
    }

    /// Checks the records of a segment, by its footer or else one after the other.
    fn check_segment(
        &mut self,
        bytes: &[u8],
        id: SegmentId,
        block: &Superblock,
        survey: &Survey,
        goes_on: bool,
    ) {
        let (geometry, seed) = (block.geometry, block.hash_seed);
        let start = geometry.segment_start(id.number);
        let trailer = Trailer::decode(&bytes[bytes.len() - TRAILER_BYTES..], id.cache);
        let closed = trailer.filter(|(trailer, _)| trailer.id == id);
        let footer = closed.and_then(|(trailer, sum)| decode_footer(bytes, trailer.entries, sum));
        if footer.is_none() {
            self.open_segments += u64::from(closed.is_none());
            if goes_on || closed.is_some() {
                let offset = start + (bytes.len() - TRAILER_BYTES) as u64;
                self.add_damage(DamageKind::Footer, Some(id.number), offset);
            }
        }
        if SegmentId::decode(bytes) != Some(id) {
            self.add_damage(DamageKind::Header, Some(id.number), start);
        }
        let entries = footer.unwrap_or_else(|| scan_records(bytes, seed, id));
        for entry in entries {
            let record = bytes.get(entry.offset..);
            let record = record.and_then(|record| Record::decode(record, id.salt()));
            let intact = record.filter(|record| {
                record.header.kind == entry.kind && hash_of(record, seed) == entry.hash
            });
            let Some(record) = intact else {
                self.damaged += 1;
                self.add_damage(DamageKind::Record, Some(id.number), start + entry.offset as u64);
                continue;
            };
            self.count(&record);
            let address = geometry.address(id.number, entry.offset);
            let place = survey.index.peek(entry.hash);
            let is_live = place.is_some_and(|place| place.address == address);
            match entry.kind {
                RecordKind::Object => self.live_objects += u64::from(is_live),
                RecordKind::Part => self.live_parts += u64::from(is_live),
                RecordKind::Removal => {}
            }
        }
    }

    fn count(&mut self, record: &Record<'_>) {
        let header = record.header;
        match header.kind {
            RecordKind::Removal => {
                self.removals += 1;
                return;
            }
            RecordKind::Part => {
                self.parts += 1;
                self.object_bytes += header.value_bytes as u64;
                return;
            }
            RecordKind::Object => self.objects += 1,
        }
        let value_bytes = if header.in_parts { 0 } else { header.value_bytes };
        self.object_bytes += (header.key_bytes + value_bytes) as u64;
        self.expired += u64::from(header.lifetime.is_expired(seconds_now()));
    }
}
