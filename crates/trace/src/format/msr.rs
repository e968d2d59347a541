//! MSR Cambridge block traces (Narayanan et al., FAST '08): comma-separated text.
//!
//! `Timestamp, Hostname, DiskNumber, Type, Offset, Size, ResponseTime`: times are Windows file times (100 ns since
//! 1601), offset and size bytes. A volume is a host's disk, numbered in order of appearance.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, block, range};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static MSR: Spec = Spec {
    name: "msr",
    kind: Kind::Block,
    layout: "csv: time (100 ns), host, disk, Read or Write, offset, bytes, response time",
    origin: "MSR Cambridge (SNIA IOTTA)",
    fit: |sample| fit_lines(sample, Msr::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Msr::new())),
    block_decoder: None,
};

/// Disks are told apart by a linear search, most recent first hit; the traces have at most a few dozen.
struct Msr {
    clock: Clock,
    disks: Vec<(Vec<u8>, u32)>,
    last: usize,
}

impl Msr {
    fn new() -> Self {
        Self { clock: Clock::new(100), disks: Vec::new(), last: 0 }
    }

    fn volume(&mut self, host: &[u8], disk: u32) -> u32 {
        let is = |known: &(Vec<u8>, u32)| known.1 == disk && known.0 == host;
        if !self.disks.get(self.last).is_some_and(is) {
            self.last = self.disks.iter().position(is).unwrap_or(self.disks.len());
            if self.last == self.disks.len() {
                self.disks.push((host.to_owned(), disk));
            }
        }
        self.last as u32
    }
}

impl Line for Msr {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let time = fields.number("a time in units of 100 ns")?;
        let host = fields.text();
        let disk = fields.number_u32("a disk number")?;
        let op = match fields.text() {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            other => return Err(fields.flaw("Read or Write", other)),
        };
        let offset = fields.number("an offset in bytes")?;
        let length = fields.number("a size in bytes")?;
        let extent = range(offset, length, 1)
            .ok_or_else(|| fields.flaw("a range of at most 4 GiB", length.to_string().as_bytes()))?;
        fields.number("a response time in units of 100 ns")?;
        fields.end()?;
        let volume = self.volume(host, disk);
        batch.push(block(self.clock.since_first_ns(time), op, volume, extent));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"Timestamp,")
    }
}
