//! Where a file has holes.
//!
//! `lseek` finds the next hole or data after a place (SEEK_HOLE, SEEK_DATA). File systems may call
//! a hole data, never data a hole; those that know nothing, and block devices, call everything
//! data.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::{Extent, SECTOR_BYTES};

/// One look finds no more extents than this, so that a file in a million pieces stops no thread.
const EXTENTS_MAX: usize = 64;

/// Appends the extents of a range of `file`, as [`Device::allocation`](crate::Device::allocation)
/// has it. They begin and end at whole sectors, or where the range does.
pub(super) fn find(file: &File, range: Range<u64>, extents: &mut Vec<Extent>) {
    let (mut at, end) = (range.start, range.end);
    for _ in 0..EXTENTS_MAX / 2 {
        if at >= end {
            return;
        }
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end, // no data any more
            Err(_) => return extents.push(Extent::data(end - at)),
        };
        // A sector that is part hole, part data is data.
        let data = if data == end { end } else { (data / SECTOR_BYTES * SECTOR_BYTES).max(at) };
        if data > at {
            extents.push(Extent::hole(data - at));
            at = data;
        }
        if at < end {
            // The data may have become a hole meanwhile: it is called data all the same, for one
            // sector.
            let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(end).max(at + 1);
            let hole = hole.next_multiple_of(SECTOR_BYTES).min(end);
            extents.push(Extent::data(hole - at));
            at = hole;
        }
    }
}
