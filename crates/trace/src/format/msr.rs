//! MSR Cambridge block traces (Narayanan et al., FAST '08): comma-separated text.
//!
//! `Timestamp, Hostname, DiskNumber, Type, Offset, Size, ResponseTime`: times are Windows file
//! times (100 ns since 1601), offset and size bytes. A volume is a host's disk, numbered in order
//! of appearance.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, Volumes, block};
use crate::fields::{Fields, Flaw, hash};
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

struct Msr {
    clock: Clock,
    /// By hash of the host, and disk number.
    volumes: Volumes,
}

impl Msr {
    fn new() -> Self {
        Self { clock: Clock::new(100), volumes: Volumes::default() }
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
        let offset = fields.offset(1, "an offset in bytes")?;
        let length = fields.length(1, "a length of at most 4 GiB")?;
        fields.number("a response time in units of 100 ns")?;
        fields.end()?;
        let volume = self.volumes.number(hash(host), disk);
        batch.push(block(self.clock.since_first_ns(time), op, volume, offset, length));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"Timestamp,")
    }
}
