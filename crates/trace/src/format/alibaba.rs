//! Alibaba Cloud block storage (Li et al., IISWC '20): comma-separated text, no header.
//!
//! `device_id, opcode (R or W), offset (bytes), length (bytes), timestamp (µs)`.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static ALIBABA: Spec = Spec {
    name: "alibaba",
    kind: Kind::Block,
    layout: "csv: device, R or W, offset, bytes, time (µs)",
    origin: "Alibaba Cloud block traces (2020)",
    fit: |sample| fit_lines(sample, Alibaba::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Alibaba::new())),
    block_decoder: None,
};

struct Alibaba {
    clock: Clock,
}

impl Alibaba {
    fn new() -> Self {
        Self { clock: Clock::new(1000) }
    }
}

impl Line for Alibaba {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let device = fields.number_u32("a device number")?;
        let op = match fields.text() {
            b"R" => Op::Read,
            b"W" => Op::Write,
            other => return Err(fields.flaw("R or W", other)),
        };
        let offset = fields.offset(1, "an offset in bytes")?;
        let length = fields.length(1, "a length of at most 4 GiB")?;
        let time_us = fields.number("a time in µs")?;
        fields.end()?;
        batch.push(block(self.clock.since_first_ns(time_us), op, device, offset, length));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"device_id,")
    }
}
