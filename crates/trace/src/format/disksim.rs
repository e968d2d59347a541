//! The ASCII traces of DiskSim, and of SSDsim and MQSim, which differ in the unit of time.
//!
//! `time, device, first sector, sectors, flags`, separated by blanks. DiskSim's time is in
//! milliseconds with a fraction and its flags are hexadecimal, bit 0 set for a read; the other two
//! count whole nanoseconds, and 1 is a read.

use super::{Spec, fit_lines};
use crate::decode::{Batch, Clock, Line, Lines, SECTOR_BYTES, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};
use crate::sample::Sample;

pub(super) static DISKSIM: Spec = Spec {
    name: "disksim",
    kind: Kind::Block,
    layout: "text: time (ms, with a fraction), device, sector, sectors, flags (hexadecimal, bit \
             0: read)",
    origin: "DiskSim and its SSD extension",
    fit: |sample| {
        if times_have_a_point(sample) { fit_lines(sample, Ascii::<DISKSIM_MS>::new()) } else { 0 }
    },
    names: &[],
    decoder: || Box::new(Lines::new(Ascii::<DISKSIM_MS>::new())),
    block_decoder: None,
};

pub(super) static SSDSIM: Spec = Spec {
    name: "ssdsim",
    kind: Kind::Block,
    layout: "text: time (ns), device, sector, sectors, 1 for a read or 0 for a write",
    origin: "SSDsim, MQSim",
    fit: |sample| fit_lines(sample, Ascii::<SSDSIM_NS>::new()),
    names: &["mqsim"],
    decoder: || Box::new(Lines::new(Ascii::<SSDSIM_NS>::new())),
    block_decoder: None,
};

const DISKSIM_MS: bool = true;
const SSDSIM_NS: bool = false;

struct Ascii<const MS: bool> {
    clock: Clock,
}

impl<const MS: bool> Ascii<MS> {
    fn new() -> Self {
        Self { clock: Clock::new(1) }
    }
}

impl<const MS: bool> Line for Ascii<MS> {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::blanks(line);
        let time =
            if MS { fields.decimal(6, "a time in ms") } else { fields.number("a time in ns") }?;
        let device = fields.number_u32("a device number")?;
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let length = fields.length(SECTOR_BYTES, "a number of sectors of at most 4 GiB")?;
        let flags = fields.text();
        let read = match flags {
            b"0" => false,
            b"1" => true,
            _ if MS => {
                hexadecimal(flags).ok_or_else(|| fields.flaw("hexadecimal flags", flags))? & 1 == 1
            }
            _ => return Err(fields.flaw("1 for a read or 0 for a write", flags)),
        };
        fields.end()?;
        let op = if read { Op::Read } else { Op::Write };
        batch.push(block(self.clock.since_first_ns(time), op, device, offset, length));
        Ok(())
    }
}

fn hexadecimal(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    digits.iter().try_fold(0u32, |value, &digit| Some(value << 4 | (digit as char).to_digit(16)?))
}

fn times_have_a_point(sample: &Sample<'_>) -> bool {
    sample.lines().any(|line| Fields::blanks(line).text().contains(&b'.'))
}
