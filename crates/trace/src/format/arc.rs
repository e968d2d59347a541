//! The traces of the ARC paper (Megiddo & Modha, FAST '03): text, four integers a line.
//!
//! `first page, count, ignored, request number`. A line stands for `count` consecutive pages of 512
//! bytes: by default that many requests for keys, as the paper counts them; opened `as_blocks`, one
//! read of `count` sectors.

use super::{Spec, fit_lines};
use crate::decode::{Batch, Line, Lines, SECTOR_BYTES, block, key_only};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op};

pub(super) static ARC: Spec = Spec {
    name: "arc",
    kind: Kind::Key,
    layout: "text: first page, count, ignored, request number",
    origin: "ARC paper (OLTP, P1–P14, DS1, S1–S3)",
    fit: |sample| fit_lines(sample, Arc::<false>),
    names: &["lis"],
    decoder: || Box::new(Lines::new(Arc::<false>)),
    block_decoder: Some(|| Box::new(Lines::new(Arc::<true>))),
    ..Spec::NONE
};

struct Arc<const AS_BLOCKS: bool>;

impl<const AS_BLOCKS: bool> Line for Arc<AS_BLOCKS> {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        const COUNT: &str = "a page count from 1 to 8388608";
        let mut fields = Fields::blanks(line);
        let offset = fields.offset(SECTOR_BYTES, "the first page")?;
        let length = fields.length(SECTOR_BYTES, COUNT)?;
        if length == 0 {
            return Err(fields.flaw(COUNT, b"0"));
        }
        fields.number("a number")?;
        fields.number("the request number")?;
        fields.end()?;
        if AS_BLOCKS {
            batch.push(block(0, Op::Read, 0, offset, length));
        } else {
            batch.push_run(key_only(offset / SECTOR_BYTES), length / SECTOR_BYTES);
        }
        Ok(())
    }
}
