//! The Storage Performance Council's trace format (revision 1.0.1), as in the UMass repository
//! (Financial, WebSearch).
//!
//! `ASU, LBA (sectors), size (bytes), opcode (R or W, in either case), timestamp (s)`,
//! comma-separated; fields after these are optional and passed over. An application storage unit
//! (ASU) is a volume.

use super::{Spec, fit_lines};
use crate::decode::{Batch, Clock, Line, Lines, SECTOR_BYTES, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static SPC: Spec = Spec {
    name: "spc",
    kind: Kind::Block,
    layout: "csv: ASU, sector, bytes, R or W, time (s, with a fraction)",
    origin: "UMass trace repository (Financial, WebSearch), SPC",
    fit: |sample| fit_lines(sample, Spc::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Spc::new())),
    block_decoder: None,
};

struct Spc {
    clock: Clock,
}

impl Spc {
    fn new() -> Self {
        Self { clock: Clock::new(1) }
    }
}

impl Line for Spc {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let asu = fields.number_u32("an application storage unit")?;
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let length = fields.length(1, "a length of at most 4 GiB")?;
        let op = match fields.text() {
            b"R" | b"r" => Op::Read,
            b"W" | b"w" => Op::Write,
            other => return Err(fields.flaw("R or W", other)),
        };
        let time_ns = fields.decimal(9, "a time in s")?;
        batch.push(block(self.clock.since_first_ns(time_ns), op, asu, offset, length));
        Ok(())
    }
}
