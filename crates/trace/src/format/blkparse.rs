//! The default text output of `blkparse`, which prints what Linux's `blktrace` recorded; see
//! blkparse(1).
//!
//! `major,minor cpu sequence time (s) pid action RWBS sector + sectors [process]`, separated by
//! blanks. One request passes through many actions, so one of them counts: `blkparse` takes those
//! queued (`Q`), what a cache above the disk would see; a recording without them reads as
//! `blkparse-issued`, which takes those issued to the driver (`D`). Other actions, the summary at
//! the end, and requests without data (a flush, a command of the driver's own) are passed over. In
//! RWBS, `R` reads, `W` writes and `D` discards, which is a deletion; the flags around them do
//! not matter. A disk is a volume, numbered in order of appearance.

use super::{Spec, fit_lines, flags, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, SECTOR_BYTES, Volumes, block};
use crate::fields::{Fields, Flaw, integer};
use crate::request::Kind;
use crate::sample::{Sample, SampleLine};

const LAYOUT: &str =
    "text: major,minor, cpu, sequence, time (s), pid, action, RWBS, sector + sectors, [process]";

pub(super) static QUEUED: Spec = Spec {
    name: "blkparse",
    kind: Kind::Block,
    layout: LAYOUT,
    origin: "blktrace's blkparse; requests as queued (Q)",
    fit: |sample| {
        let queued = has(sample, b"Q") || !has(sample, b"D");
        fit_lines(sample, Blkparse::new(b'Q')).only_if(queued)
    },
    names: &[],
    decoder: || Box::new(Lines::new(Blkparse::new(b'Q'))),
    ..Spec::NONE
};

pub(super) static ISSUED: Spec = Spec {
    name: "blkparse-issued",
    kind: Kind::Block,
    layout: LAYOUT,
    origin: "blktrace's blkparse; requests as issued to the driver (D)",
    fit: |sample| {
        let issued = has(sample, b"D") && !has(sample, b"Q");
        fit_lines(sample, Blkparse::new(b'D')).only_if(issued)
    },
    names: &[],
    decoder: || Box::new(Lines::new(Blkparse::new(b'D'))),
    ..Spec::NONE
};

/// The first words of the lines of the summary.
const SUMMARY: [&str; 9] = [
    "CPU",
    "Reads ",
    "Read ",
    "PC Read",
    "IO unplugs",
    "Timer unplugs",
    "Total (",
    "Throughput (",
    "Events (",
];

struct Blkparse {
    /// The action that counts.
    action: u8,
    clock: Clock,
    volumes: Volumes,
}

impl Blkparse {
    fn new(action: u8) -> Self {
        Self { action, clock: Clock::new(1), volumes: Volumes::default() }
    }
}

impl Line for Blkparse {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::blanks(line);
        let device = fields.text();
        let (major, minor) =
            device_numbers(device).ok_or_else(|| fields.flaw("a device as major,minor", device))?;
        fields.number("a CPU")?;
        fields.number("a sequence number")?;
        let time_ns = fields.decimal(9, "a time in s")?;
        fields.number("a process id")?;
        let action = fields.text();
        if action.is_empty() || action.len() > 2 || !action.iter().all(u8::is_ascii_alphabetic) {
            return Err(fields.flaw("an action of one or two letters", action));
        }
        if action != [self.action] {
            return Ok(());
        }
        let rwbs = fields.text();
        let op = flags(rwbs).ok_or_else(|| fields.flaw("R, W, D or N with flags", rwbs))?;
        let mut rest = fields.clone();
        let first = rest.text();
        // A request without a place has its process here; a command of the driver's own, the bytes
        // of the command.
        let nowhere = first.is_empty() || first[0] == b'[' || rest.text().first() == Some(&b'(');
        let Some(op) = op.filter(|_| !nowhere) else { return Ok(()) };
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let plus = fields.text();
        if plus != b"+" {
            return Err(fields.flaw("a plus sign", plus));
        }
        let length = fields.length(SECTOR_BYTES, "a number of sectors of at most 4 GiB")?;
        if length > 0 {
            let volume = self.volumes.number(u64::from(major), minor);
            batch.push(block(self.clock.since_first_ns(time_ns), op, volume, offset, length));
        }
        Ok(())
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn header(&mut self, line: &[u8]) -> bool {
        SUMMARY
            .iter()
            .chain(&["Skips:", "Input file "])
            .any(|start| starts_with(line, start.as_bytes()))
    }
}

fn device_numbers(text: &[u8]) -> Option<(u32, u32)> {
    let comma = text.iter().position(|&b| b == b',')?;
    let number = |text| integer(text)?.try_into().ok();
    Some((number(&text[..comma])?, number(&text[comma + 1..])?))
}

/// Returns whether a line of the sample has this action.
fn has(sample: &Sample<'_>, action: &[u8]) -> bool {
    fn action_of<'a>(line: &SampleLine<'a>) -> &'a [u8] {
        let mut fields = Fields::blanks(line.text);
        for _ in 0..5 {
            fields.text();
        }
        fields.text()
    }
    sample.lines().any(|line| action_of(&line) == action)
}
