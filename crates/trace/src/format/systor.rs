//! Enterprise storage of the SYSTOR '17 paper (Lee et al.): comma-separated text with a header.
//!
//! `Timestamp (s), Response (s), IOType (R, W or empty), LUN, Offset (bytes), Size (bytes)`. Lines
//! without an I/O type are commands that move no data, and passed over.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static SYSTOR: Spec = Spec {
    name: "systor",
    kind: Kind::Block,
    layout: "csv: time (s, with a fraction), response (s), R or W, LUN, offset, bytes",
    origin: "SYSTOR '17 (SNIA IOTTA)",
    fit: |sample| fit_lines(sample, Systor::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Systor::new())),
    block_decoder: None,
};

const COMMAS: usize = 5;

struct Systor {
    clock: Clock,
}

impl Systor {
    fn new() -> Self {
        Self { clock: Clock::new(1) }
    }
}

impl Line for Systor {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let time_ns = fields.decimal(9, "a time in s")?;
        let response = fields.text();
        if !response.is_empty() && crate::fields::decimal(response, 9).is_none() {
            return Err(fields.flaw("a response time in s", response));
        }
        let op = match fields.text() {
            b"R" => Op::Read,
            b"W" => Op::Write,
            b"" if line.iter().filter(|&&b| b == b',').count() == COMMAS => return Ok(()),
            other => return Err(fields.flaw("R, W or nothing", other)),
        };
        let lun = fields.number_u32("a LUN")?;
        let offset = fields.offset(1, "an offset in bytes")?;
        let length = fields.length(1, "a length of at most 4 GiB")?;
        fields.end()?;
        batch.push(block(self.clock.since_first_ns(time_ns), op, lun, offset, length));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"Timestamp,")
    }
}
