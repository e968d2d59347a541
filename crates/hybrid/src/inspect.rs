//! Inspection of a cache's file while no process uses it.

use std::path::Path;

use crate::builder::OpenError;
use crate::flash::{FileFlash, Flash, FlashOptions};
use crate::format::{
    Record, RecordKind, SEGMENT_HEADER_BYTES, SegmentId, Superblock, TRAILER_BYTES, Trailer,
};
use crate::recovery::{OpenFailure, read_superblock};
use crate::store::{decode_footer, seconds_now};

/// Facts about a cache from its superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Random number that identifies the cache.
    pub id: u64,
    /// Number of times the cache was opened.
    pub session: u64,
    /// True if the last session was closed.
    pub clean: bool,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Length of the saved index in bytes; 0 if there is none.
    pub saved_index_bytes: u64,
}

/// Counts of the records in the segments of a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Number of segments of the log.
    pub segments: u64,
    /// Segments without a footer, left at the end of the log or by a crash.
    pub open_segments: u64,
    /// Segments that could not be read.
    pub unreadable_segments: u64,
    /// Records of objects, including objects replaced or removed later.
    pub objects: u64,
    /// Records of objects that are expired.
    pub expired: u64,
    /// Records of removals.
    pub removals: u64,
    /// Bytes of keys and values.
    pub object_bytes: u64,
    /// Records named by a footer that are damaged.
    pub damaged: u64,
}

fn open(path: &Path) -> Result<FileFlash, OpenError> {
    Ok(FileFlash::open(path, &FlashOptions::default())?)
}

fn superblock(flash: &FileFlash, path: &Path) -> Result<Superblock, OpenError> {
    let block = read_superblock(flash).map_err(|failure| failure.at(path))?;
    let block = block.ok_or_else(|| OpenFailure::Foreign.at(path))?;
    let (expected, actual) = (block.geometry.total_bytes(), flash.size_bytes());
    match expected > actual {
        true => Err(OpenFailure::Short { expected, actual }.at(path)),
        false => Ok(block),
    }
}

/// Returns the facts in the superblock of a cache. No process may be using the cache.
///
/// # Errors
/// When the file cannot be read, is in use, or holds something else.
pub fn info(path: impl AsRef<Path>) -> Result<Info, OpenError> {
    let path = path.as_ref();
    let block = superblock(&open(path)?, path)?;
    Ok(Info {
        id: block.id,
        session: block.session,
        clean: block.clean,
        segment_bytes: block.geometry.segment_bytes,
        segments: block.geometry.segments,
        saved_index_bytes: block.saved_bytes,
    })
}

/// Reads all segments of a cache and checks every record. `progress` gets the number of segments
/// read and the number of all segments. No process may be using the cache.
///
/// # Errors
/// When the file cannot be opened, is in use, or holds something else. Damage is no error: it is
/// counted.
pub fn check(
    path: impl AsRef<Path>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Contents, OpenError> {
    let path = path.as_ref();
    let flash = open(path)?;
    let block = superblock(&flash, path)?;
    let geometry = block.geometry;
    let mut contents = Contents::default();
    let mut bytes = flash.buffers().take(geometry.segment_bytes as usize);
    for place in 0..geometry.segments {
        progress(place, geometry.segments);
        if flash.read(&mut bytes, geometry.segment_start(place)).is_err() {
            contents.unreadable_segments += 1;
            continue;
        }
        let is_here = |id: &SegmentId| {
            id.cache == block.id
                && id.number % geometry.segments == place
                && id.number >= block.first_segment
        };
        let trailer = Trailer::decode(&bytes[bytes.len() - TRAILER_BYTES..], block.id);
        let header = SegmentId::decode(&bytes).filter(is_here);
        let trailer = trailer.filter(|(trailer, _)| is_here(&trailer.id));
        // A header without its trailer is newer, or the segment is open.
        let closed = trailer.filter(|(trailer, _)| header.is_none_or(|id| id == trailer.id));
        let Some(id) = header.or(closed.map(|(trailer, _)| trailer.id)) else { continue };
        contents.segments += 1;
        contents.open_segments += u64::from(closed.is_none());
        let footer = closed.and_then(|(trailer, sum)| decode_footer(&bytes, trailer.entries, sum));
        match footer {
            Some(entries) => {
                for entry in entries {
                    let record = bytes.get(entry.offset..);
                    match record.and_then(|record| Record::decode(record, id.salt())) {
                        Some(record) => contents.count(&record),
                        None => contents.damaged += 1,
                    }
                }
            }
            None => {
                let mut offset = SEGMENT_HEADER_BYTES;
                let at = |offset: usize| Record::decode(bytes.get(offset..)?, id.salt());
                while let Some(record) = at(offset) {
                    contents.count(&record);
                    offset += record.header.log_bytes();
                }
            }
        }
    }
    progress(geometry.segments, geometry.segments);
    Ok(contents)
}

impl Contents {
    fn count(&mut self, record: &Record<'_>) {
        let header = record.header;
        if header.kind == RecordKind::Removal {
            self.removals += 1;
            return;
        }
        self.objects += 1;
        self.object_bytes += (header.key_bytes + header.value_bytes) as u64;
        let expires = u64::from(header.expires);
        self.expired += u64::from(expires != 0 && expires <= seconds_now());
    }
}
