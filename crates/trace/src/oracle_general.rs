//! Writes traces in libCacheSim's format oracleGeneral.
//!
//! The format knows requests for objects only, each with a time in seconds, a size, and the number
//! of the object's next request. Reads and writes are both requests; deletions are left out. A
//! request for disk I/O becomes a request for each block of 4 KiB that it touches. Blocks are
//! numbered in order of first appearance.

use std::io::{self, Write};
use std::path::Path;

use crate::compact::{WATCH_EVERY, write_whole};
use crate::dense::{Numbering, touches};
use crate::error::{Error, ErrorKind};
use crate::format::OracleRecord;
use crate::request::{Request, TraceKind};
use crate::stats::BLOCK_BYTES;
use crate::trace::Trace;

/// Counts of a trace that was written in the format oracleGeneral.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OracleSummary {
    /// Number of requests.
    pub requests: u64,
    /// Number of distinct objects.
    pub objects: u64,
}

/// The records so far, with the index of each object's last one.
#[derive(Default)]
struct Records {
    records: Vec<OracleRecord>,
    numbering: Numbering,
    /// Index of the last record of each object, by its number.
    last: Vec<usize>,
}

impl Records {
    /// Adds a request for an object.
    fn push(&mut self, mut record: OracleRecord, volume: u32, key: u64) -> io::Result<()> {
        let refuse = |problem| io::Error::new(io::ErrorKind::InvalidInput, problem);
        let number = self
            .numbering
            .number(volume, key)
            .ok_or_else(|| refuse("more than 4294967294 distinct keys"))?;
        let index = self.records.len();
        match self.last.get_mut(number as usize) {
            // Requests are counted from 1.
            Some(last) => {
                let before = std::mem::replace(last, index);
                self.records[before].next = index as i64 + 1;
            }
            None => self.last.push(index),
        }
        record.next = OracleRecord::NEVER;
        self.records.push(record);
        Ok(())
    }

    fn summary(&self) -> OracleSummary {
        OracleSummary {
            requests: self.records.len() as u64,
            objects: u64::from(self.numbering.distinct()),
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.records.iter().try_for_each(|record| out.write_all(&record.encode()))
    }
}

/// Returns the record of a request, without its object's next request.
fn record(kind: TraceKind, request: &Request, key: u64) -> io::Result<OracleRecord> {
    let fits = |value: u64, what| {
        u32::try_from(value).map_err(|_| {
            let problem = format!("{what} of {value} does not fit into oracleGeneral");
            io::Error::new(io::ErrorKind::InvalidInput, problem)
        })
    };
    let bytes = match kind {
        TraceKind::Block => BLOCK_BYTES,
        // libCacheSim passes over objects without a size.
        TraceKind::Object | TraceKind::Key => request.bytes.max(1),
    };
    Ok(OracleRecord {
        time_s: fits(request.time_ns / 1_000_000_000, "a time in seconds")?,
        key,
        bytes: fits(bytes, "a size")?,
        next: OracleRecord::NEVER,
    })
}

/// Writes a trace to `path` in the format oracleGeneral, compressed with zstd if a level is given.
/// The file appears only when it is complete. `watch` is called at intervals, for a progress bar.
/// Takes 24 bytes of memory a request, and 25 to 45 a distinct object.
///
/// # Errors
/// The first error of the trace, a size or time that does not fit into 32 bits, and when the file
/// cannot be written.
pub fn convert_to_oracle_general(
    trace: &mut Trace,
    path: &Path,
    zstd_level: Option<i32>,
    mut watch: impl FnMut(),
) -> Result<OracleSummary, Error> {
    let failed = |source: io::Error| ErrorKind::Write { path: path.display().to_string(), source };
    let kind = trace.kind();
    let mut records = Records::default();
    for (request, count) in trace.by_ref().zip(1u64..) {
        let request = request?;
        for (volume, key) in touches(kind, &request) {
            let object = match kind {
                TraceKind::Block => {
                    let known = records.numbering.find(volume, key);
                    u64::from(known.unwrap_or(records.numbering.distinct()))
                }
                TraceKind::Object | TraceKind::Key => key,
            };
            let record = record(kind, &request, object).map_err(failed)?;
            records.push(record, volume, key).map_err(failed)?;
        }
        if count.is_multiple_of(WATCH_EVERY) {
            watch();
        }
    }
    write_whole(path, |out| {
        match zstd_level {
            None => records.write(out).map_err(failed)?,
            Some(level) => {
                let mut encoder = zstd::stream::write::Encoder::new(out, level).map_err(failed)?;
                records.write(&mut encoder).map_err(failed)?;
                encoder.finish().map_err(failed)?;
            }
        }
        Ok(records.summary())
    })
}
