//! The fast way to read dense keys: blocks of `u32`, ready to index with.

use std::path::Path;

use super::section::{Block, Section};
use super::section::{END, NEXT_ACCESSES, REQUESTS};
use super::{HEADER_BYTES, Header};
use crate::dense::{DenseKeys, NEVER};
use crate::error::{Error, ErrorKind};
use crate::fields::{Flaw, Found};
use crate::trace::open_window;
use crate::window::{WINDOW_BYTES, Window};

/// A compact trace of keys or objects, read as dense keys.
///
/// ```no_run
/// let mut trace = floe_trace::CompactTrace::open("orm-busy.floe")?;
/// let mut touches = vec![0u32; trace.header().distinct as usize];
/// while let Some(keys) = trace.next_keys()? {
///     keys.iter().for_each(|&key| touches[key as usize] += 1);
/// }
/// # Ok::<(), floe_trace::Error>(())
/// ```
pub struct CompactTrace {
    name: String,
    window: Window,
    header: Header,
    keys: Vec<u32>,
    requests: u64,
    sections: u64,
    ended: bool,
}

impl CompactTrace {
    /// Opens a compact trace, compressed or not.
    ///
    /// # Errors
    /// When the file cannot be read, is not in the compact form, or is a block trace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let (name, mut window) = open_window(path.as_ref())?;
        let refuse = |problem| ErrorKind::NotCompact { path: name.clone(), problem };
        window.fill(HEADER_BYTES).map_err(|source| ErrorKind::Read {
            path: name.clone(),
            offset_bytes: 0,
            source,
        })?;
        let Some(bytes) = window.bytes().first_chunk() else {
            return Err(refuse("is too short for a trace in the compact form").into());
        };
        let header = Header::decode(bytes).map_err(|flaw| malformed(&name, 1, 0, &flaw))?;
        if !header.dense {
            return Err(refuse("has places on a disk, not dense keys").into());
        }
        window.consume(HEADER_BYTES);
        Ok(Self { name, window, header, keys: Vec::new(), requests: 0, sections: 1, ended: false })
    }

    /// Returns the header, which is read first.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next keys, some thousand at a time, each below the header's `distinct`; `None` at the
    /// end.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged or ends early.
    pub fn next_keys(&mut self) -> Result<Option<&[u32]>, Error> {
        self.keys.clear();
        while self.keys.is_empty() {
            if !self.section(&mut None)? {
                return Ok(None);
            }
        }
        Ok(Some(&self.keys))
    }

    /// All keys.
    ///
    /// # Errors
    /// As [`CompactTrace::next_keys`].
    pub fn into_dense(self) -> Result<DenseKeys, Error> {
        Ok(self.into_parts(false)?.0)
    }

    /// All keys, and for each the index of its next access, [`NEVER`] if there is none: stored
    /// ones, or computed.
    ///
    /// # Errors
    /// As [`CompactTrace::next_keys`]; and when there are 2³² − 1 requests or more.
    pub fn into_dense_with_next(self) -> Result<(DenseKeys, Vec<u32>), Error> {
        let (stored, path) = (self.header.next_accesses, self.name.clone());
        let (dense, mut next) = self.into_parts(stored)?;
        if next.len() != dense.keys.len() {
            next = dense.next_accesses().ok_or(ErrorKind::TooManyKeys { path })?;
        }
        Ok((dense, next))
    }

    fn into_parts(mut self, want_next: bool) -> Result<(DenseKeys, Vec<u32>), Error> {
        // Not more than a file of this size could hold is trusted to a header: growth takes care of
        // the rest.
        let mut all = Vec::with_capacity(self.header.requests.min(1 << 24) as usize);
        let mut next = want_next.then(Vec::new);
        loop {
            self.keys.clear();
            let more = self.section(&mut next)?;
            all.extend_from_slice(&self.keys);
            if !more {
                break;
            }
        }
        Ok((
            DenseKeys { keys: all, distinct: self.header.distinct as u32 },
            next.unwrap_or_default(),
        ))
    }

    /// Reads one section. False at the end.
    fn section(&mut self, next: &mut Option<Vec<u32>>) -> Result<bool, Error> {
        if self.ended {
            return Ok(false);
        }
        loop {
            let used = match Section::parse(self.window.bytes()) {
                Ok(Some((section, used))) => {
                    match take(&section, &self.header, self.requests, &mut self.keys, next) {
                        Ok(ended) => self.ended = ended,
                        Err(flaw) => return Err(self.malformed(&flaw)),
                    }
                    self.requests += if section.tag == REQUESTS { section.count as u64 } else { 0 };
                    used
                }
                Ok(None) if self.window.ended() => {
                    let found = Found::Bytes(self.window.bytes().len());
                    let expected = "a whole section, and more until the end";
                    return Err(self.malformed(&Flaw { expected, column: 0, found }));
                }
                Ok(None) => {
                    let offset_bytes =
                        self.window.offset_bytes() + self.window.bytes().len() as u64;
                    self.window.fill(WINDOW_BYTES).map_err(|source| {
                        Error::from(ErrorKind::Read {
                            path: self.name.clone(),
                            offset_bytes,
                            source,
                        })
                    })?;
                    continue;
                }
                Err(flaw) => return Err(self.malformed(&flaw)),
            };
            self.window.consume(used);
            self.sections += 1;
            return Ok(!self.ended);
        }
    }

    fn malformed(&self, flaw: &Flaw) -> Error {
        malformed(&self.name, self.sections + 1, self.window.offset_bytes(), flaw)
    }
}

/// Takes in a section; whether it was the end.
fn take(
    section: &Section<'_>,
    header: &Header,
    requests: u64,
    keys: &mut Vec<u32>,
    next: &mut Option<Vec<u32>>,
) -> Result<bool, Flaw> {
    match section.tag {
        REQUESTS => {
            Block::parse(section)?.keys.extend(section.count, keys);
            let largest = keys.iter().copied().max().map_or(0, u64::from);
            if largest >= header.distinct && section.count > 0 {
                return Err(Flaw::number("numbers below the count of keys", largest));
            }
        }
        NEXT_ACCESSES => {
            if let Some(next) = next {
                let first = next.len();
                section.distances()?.extend(section.count, next);
                for (place, index) in next[first..].iter_mut().zip(first as u64..) {
                    let at = index + u64::from(*place);
                    *place = if *place == 0 { NEVER } else { u32::try_from(at).unwrap_or(NEVER) };
                    if at >= header.requests {
                        return Err(Flaw::number("next accesses within the trace", at));
                    }
                }
            }
        }
        END if requests == header.requests => return Ok(true),
        _ => return Err(Flaw::number("as many requests as the header says", requests)),
    }
    Ok(false)
}

fn malformed(path: &str, record: u64, offset_bytes: u64, flaw: &Flaw) -> Error {
    Error::from(ErrorKind::Malformed {
        path: path.to_owned(),
        unit: "section",
        record,
        offset_bytes,
        expected: flaw.expected(),
        found: flaw.found(),
    })
}

impl std::fmt::Debug for CompactTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactTrace")
            .field("name", &self.name)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}
