//! The request traces of AdaptSize's simulator (Berger et al., NSDI '17): `time, id, bytes`,
//! separated by blanks.
//!
//! The time counts requests in the published trace and seconds in others; it is taken as seconds.

use super::{Spec, fit_lines};
use crate::decode::{Batch, Clock, Line, Lines};
use crate::fields::{Fields, Flaw};
use crate::request::{Kind, Op, Request};

pub(super) static ADAPTSIZE: Spec = Spec {
    name: "adaptsize",
    kind: Kind::Object,
    layout: "text: time, id, bytes",
    origin: "AdaptSize, webcachesim",
    fit: |sample| fit_lines(sample, AdaptSize::new()),
    names: &["webcachesim"],
    decoder: || Box::new(Lines::new(AdaptSize::new())),
    block_decoder: None,
};

struct AdaptSize {
    clock: Clock,
}

impl AdaptSize {
    fn new() -> Self {
        Self { clock: Clock::new(1_000_000_000) }
    }
}

impl Line for AdaptSize {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::blanks(line);
        let time_s = fields.number("a time in s")?;
        let id = fields.number("an id")?;
        let bytes = fields.number("a size in bytes")?;
        fields.end()?;
        let time_ns = self.clock.since_first_ns(time_s);
        batch.push(Request { time_ns, key: id, bytes, volume: 0, op: Op::Read });
        Ok(())
    }
}
