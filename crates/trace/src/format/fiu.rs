//! Block traces of Florida International University: I/O Deduplication (Koller & Rangaswami, FAST
//! '10) and SRCMap (Verma et al., FAST '10).
//!
//! `time (ns) pid process sector sectors W|R major minor [MD5]`, separated by blanks, sectors being
//! 512 bytes: the layout that the readme of these traces in the SNIA IOTTA repository gives. The
//! digests of the data, and anything else at the end, are passed over. A disk is a volume, numbered
//! in order of appearance.

use super::{Spec, fit_lines};
use crate::decode::{Batch, Clock, Line, Lines, SECTOR_BYTES, Volumes, block};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static FIU: Spec = Spec {
    name: "fiu",
    kind: Kind::Block,
    layout: "text: time (ns), pid, process, sector, sectors, R or W, major, minor, MD5 if any",
    origin: "FIU: I/O Deduplication, SRCMap (SNIA IOTTA)",
    fit: |sample| fit_lines(sample, Fiu::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Fiu::new())),
    block_decoder: None,
};

struct Fiu {
    clock: Clock,
    volumes: Volumes,
}

impl Fiu {
    fn new() -> Self {
        Self { clock: Clock::new(1), volumes: Volumes::default() }
    }
}

impl Line for Fiu {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::blanks(line);
        let time_ns = fields.number("a time in ns")?;
        fields.number("a process id")?;
        fields.text();
        let offset = fields.offset(SECTOR_BYTES, "the first sector")?;
        let length = fields.length(SECTOR_BYTES, "a number of sectors of at most 4 GiB")?;
        let op = match fields.text() {
            b"R" => Op::Read,
            b"W" => Op::Write,
            other => return Err(fields.flaw("R or W", other)),
        };
        let major = fields.number("a major device number")?;
        let minor = fields.number_u32("a minor device number")?;
        let volume = self.volumes.number(major, minor);
        batch.push(block(self.clock.since_first_ns(time_ns), op, volume, offset, length));
        Ok(())
    }
}
