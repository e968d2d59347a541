//! Tencent Cloud Block Storage (Zhang et al., ATC '20): comma-separated text, no header.
//!
//! `Timestamp (s), Offset (sectors), Size (sectors), IOType (0 read, 1 write), VolumeID`.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, SECTOR_BYTES, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static TENCENT: Spec = Spec {
    name: "tencent",
    kind: Kind::Block,
    layout: "csv: time (s), sector, sectors, 0 for a read or 1 for a write, volume",
    origin: "Tencent CBS (SNIA IOTTA)",
    fit: |sample| fit_lines(sample, Tencent::new()),
    names: &["cbs"],
    decoder: || Box::new(Lines::new(Tencent::new())),
    block_decoder: None,
};

struct Tencent {
    clock: Clock,
}

impl Tencent {
    fn new() -> Self {
        Self { clock: Clock::new(1_000_000_000) }
    }
}

impl Line for Tencent {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let time_s = fields.number("a time in s")?;
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let length = fields.length(SECTOR_BYTES, "a number of sectors of at most 4 GiB")?;
        let op = match fields.text() {
            b"0" => Op::Read,
            b"1" => Op::Write,
            other => return Err(fields.flaw("0 for a read or 1 for a write", other)),
        };
        let volume = fields.number_u32("a volume number")?;
        fields.end()?;
        batch.push(block(self.clock.since_first_ns(time_s), op, volume, offset, length));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"Timestamp,")
    }
}
