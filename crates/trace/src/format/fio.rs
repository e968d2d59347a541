//! The logs of fio's `write_iolog`, versions 2 and 3; see "Trace file format" in fio(1).
//!
//! The first line says the version. Others are `[time] file action [offset bytes]`, separated by
//! blanks; version 3 has times in µs, and in version 2 `wait` lets time pass. Files are volumes,
//! numbered in order of appearance. Actions that move no data are passed over.

use super::{Spec, fit_lines, operation};
use crate::decode::{Batch, Clock, Line, Lines, Volumes, block};
use crate::fields::{Fields, Flaw, hash};
use crate::request::Kind;

pub(super) static FIO: Spec = Spec {
    name: "fio",
    kind: Kind::Block,
    layout: "text: fio version 2 or 3 iolog; time (µs, version 3), file, action, offset, bytes",
    origin: "fio's write_iolog",
    fit: |sample| fit_lines(sample, Fio::new()),
    names: &["iolog"],
    decoder: || Box::new(Lines::new(Fio::new())),
    ..Spec::NONE
};

struct Fio {
    version: Option<u8>,
    /// The time that passed by waiting.
    waited_us: u64,
    clock: Clock,
    volumes: Volumes,
}

impl Fio {
    fn new() -> Self {
        let (clock, volumes) = (Clock::new(1000), Volumes::default());
        Self { version: None, waited_us: 0, clock, volumes }
    }
}

impl Line for Fio {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let Some(version) = self.version else {
            let is_header = self.header(line);
            return if is_header { Ok(()) } else { Err(Flaw::text(HEADER, 0, line)) };
        };
        let mut fields = Fields::blanks(line);
        let time_us = match version {
            2 => self.waited_us,
            _ => fields.number("a time in µs")?,
        };
        let file = hash(fields.text());
        let action = fields.text();
        if matches!(action, b"add" | b"open" | b"close") {
            return Ok(());
        }
        if action == b"wait" {
            self.waited_us = self.waited_us.saturating_add(fields.number("a time in µs")?);
            return Ok(());
        }
        let expected = "an action such as read, write, trim or sync";
        let Some(op) = operation(action).ok_or_else(|| fields.flaw(expected, action))? else {
            return Ok(());
        };
        let offset = fields.offset(1, "an offset in bytes")?;
        let bytes = fields.length(1, "a length of at most 4 GiB")?;
        fields.end()?;
        let volume = self.volumes.number(file, 0);
        batch.push(block(self.clock.since_first_ns(time_us), op, volume, offset, bytes));
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let version = match line {
            b"fio version 2 iolog" => 2,
            b"fio version 3 iolog" => 3,
            _ => return false,
        };
        self.version = Some(version);
        true
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

const HEADER: &str = "`fio version 2 iolog` or 3";
