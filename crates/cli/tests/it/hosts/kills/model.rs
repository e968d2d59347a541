//! What each sector of a volume may hold, when its server can be killed at any moment and loses
//! what was not flushed.
//!
//! A write gives a sector a version with a number of its own. What it may hold after a kill is a
//! list: the version that is safe (covered by a flush, or durable by itself) and all that were
//! written later, answered or not. The first read after a restart settles which it is, and what is
//! settled is safe: it stays so at the next read, and after the next kill.

use std::fmt;

pub(crate) const SECTOR: usize = 4096;

/// Bytes that a stamp is repeated in all over a sector.
const STAMP: usize = 16;

/// A content that a sector was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    /// Zeros rather than stamps.
    zero: bool,
}

#[derive(Debug, Clone)]
struct Sector {
    /// What it may hold if the server is killed now, the oldest first.
    may: Vec<Version>,
    /// What a read must give.
    now: Option<Version>,
    /// The last that was answered, by its number; after a kill, the one that is safe.
    answered: u64,
    /// The last that was answered before the kill.
    answered_before: u64,
    /// Numbers given so far.
    last: u64,
    /// Something is under way.
    busy: bool,
    /// What made its first version safe.
    safe_by: Safe,
}

/// How a version becomes safe.
#[derive(Debug, Clone, Copy)]
enum Safe {
    Flushed,
    Durable,
    /// It was found after a kill, or is the first.
    Found,
}

/// The answered versions at some moment, which a flush begun then makes safe.
#[derive(Debug)]
pub(crate) struct Answered(Vec<u64>);

/// A volume's sectors.
#[derive(Debug)]
pub(crate) struct Model {
    sectors: Vec<Sector>,
    /// Sectors that were found, after a kill, with an older version than had been answered.
    pub(crate) set_back: u64,
}

/// A sector that holds what it must not.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Model {
    /// A volume of zeros.
    pub(crate) fn new(sectors: usize) -> Model {
        let first = Version { number: 0, zero: true };
        let sector = Sector {
            may: vec![first],
            now: Some(first),
            answered: 0,
            answered_before: 0,
            last: 0,
            busy: false,
            safe_by: Safe::Found,
        };
        Model { sectors: vec![sector; sectors], set_back: 0 }
    }

    pub(crate) fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// Claims a run of sectors for one request, if nothing is under way there.
    pub(crate) fn claim(&mut self, start: usize, count: usize) -> bool {
        let run = &mut self.sectors[start..start + count];
        if run.iter().any(|sector| sector.busy) {
            return false;
        }
        run.iter_mut().for_each(|sector| sector.busy = true);
        true
    }

    /// Begins to write claimed sectors: the bytes to send.
    pub(crate) fn begin_write(&mut self, start: usize, count: usize, zero: bool) -> Vec<u8> {
        let mut bytes = vec![0; count * SECTOR];
        for (at, bytes) in (start..).zip(bytes.chunks_mut(SECTOR)) {
            let sector = &mut self.sectors[at];
            sector.last += 1;
            sector.may.push(Version { number: sector.last, zero });
            if !zero {
                fill(bytes, at as u64, sector.last);
            }
        }
        bytes
    }

    /// The write of claimed sectors was answered.
    pub(crate) fn end_write(&mut self, start: usize, count: usize, durable: bool) {
        for sector in &mut self.sectors[start..start + count] {
            (sector.busy, sector.answered) = (false, sector.last);
            sector.now = sector.may.last().copied();
            if durable {
                sector.is_safe(sector.last, Safe::Durable);
            }
        }
    }

    pub(crate) fn begin_flush(&self) -> Answered {
        Answered(self.sectors.iter().map(|sector| sector.answered).collect())
    }

    pub(crate) fn end_flush(&mut self, answered: &Answered) {
        for (sector, number) in self.sectors.iter_mut().zip(&answered.0) {
            sector.is_safe(*number, Safe::Flushed);
        }
    }

    /// A read of claimed sectors gave these bytes.
    pub(crate) fn end_read(&mut self, start: usize, bytes: &[u8]) -> Result<(), Wrong> {
        for (at, bytes) in (start..).zip(bytes.chunks(SECTOR)) {
            self.sectors[at].busy = false;
            self.found(at, bytes)?;
        }
        Ok(())
    }

    /// A sector was found to hold these bytes, with nothing under way there.
    pub(crate) fn found(&mut self, at: usize, bytes: &[u8]) -> Result<(), Wrong> {
        let sector = &mut self.sectors[at];
        let expected = sector.now.as_ref().map_or(&sector.may[..], std::slice::from_ref);
        // Of several times zeros the last: nobody can tell.
        let found = expected.iter().rfind(|version| version.is_in(bytes, at as u64)).copied();
        let Some(found) = found else {
            return Err(Wrong(format!(
                "sector {at} holds {}; it may hold {expected:?}: {sector:?}",
                describe(bytes)
            )));
        };
        if sector.now.is_none() {
            self.set_back += u64::from(found.number < sector.answered_before);
            (sector.now, sector.may, sector.answered) = (Some(found), vec![found], found.number);
            sector.safe_by = Safe::Found;
        }
        Ok(())
    }

    /// The server is no more, and with it whatever was under way.
    pub(crate) fn killed(&mut self) {
        for sector in &mut self.sectors {
            (sector.busy, sector.now) = (false, None);
            (sector.answered_before, sector.answered) = (sector.answered, sector.may[0].number);
        }
    }
}

impl Sector {
    /// What is older than this version is gone for good.
    fn is_safe(&mut self, number: u64, by: Safe) {
        if self.may[0].number < number {
            self.safe_by = by;
        }
        self.may.retain(|version| version.number >= number);
        assert!(!self.may.is_empty(), "version {number} was written");
    }
}

impl Version {
    fn is_in(self, bytes: &[u8], at: u64) -> bool {
        let mut wanted = vec![0; bytes.len()];
        if !self.zero {
            fill(&mut wanted, at, self.number);
        }
        bytes == wanted
    }
}

fn fill(bytes: &mut [u8], sector: u64, number: u64) {
    for stamp in bytes.chunks_mut(STAMP) {
        stamp[..8].copy_from_slice(&sector.to_le_bytes());
        stamp[8..].copy_from_slice(&number.to_le_bytes());
    }
}

/// In words, what is in a sector.
fn describe(bytes: &[u8]) -> String {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (sector, number) = (word(0), word(8));
    let mut same = vec![0; bytes.len()];
    fill(&mut same, sector, number);
    if bytes.iter().all(|byte| *byte == 0) {
        "zeros".to_owned()
    } else if bytes == same {
        format!("version {number} of sector {sector}")
    } else {
        format!("a mixture, first version {number} of sector {sector}")
    }
}

#[test]
fn a_sector_may_hold_what_is_safe_or_newer_and_stays_what_it_was_found_to_be() {
    let stamped = |number| {
        let mut bytes = vec![0; SECTOR];
        fill(&mut bytes, 0, number);
        bytes
    };
    let write = |model: &mut Model, durable| {
        assert!(model.claim(0, 1) && !model.claim(0, 1));
        assert_eq!(model.begin_write(0, 1, false), stamped(model.sectors[0].last));
        model.end_write(0, 1, durable);
    };
    let mut model = Model::new(1);
    write(&mut model, false);
    assert!(model.found(0, &stamped(0)).is_err(), "a write that was answered is read");
    let answered = model.begin_flush();
    write(&mut model, false);
    model.end_flush(&answered);
    write(&mut model, false);
    model.killed();
    assert!(model.found(0, &[0; SECTOR]).is_err(), "what was flushed is there");
    assert!(model.found(0, &stamped(2)).is_ok());
    assert_eq!(model.set_back, 1);
    model.killed();
    assert!(model.found(0, &stamped(3)).is_err() && model.found(0, &stamped(2)).is_ok());
    write(&mut model, true);
    model.killed();
    assert!(model.found(0, &stamped(2)).is_err() && model.found(0, &stamped(4)).is_ok());
}
