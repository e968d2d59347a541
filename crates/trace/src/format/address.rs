//! Addresses in memory, a line each, as tools that watch programs write them.
//!
//! | tool | a line |
//! |---|---|
//! | UCSD's processor traces | `l 0x1fffff50 1`: load or store, address, and more |
//! | Valgrind's lackey | ` L 04025310,8`: load, store, modify or instruction, address, bytes |
//! | Dinero | `0 7fffed80`: 0 reads, 1 writes, 2 fetches an instruction |
//! | Pin's pinatrace | `0x7f1c: R 0x7ffe10`: instruction, read or write, address |
//!
//! Each address is a key. Lines of Valgrind's own, which begin with `==`, are passed over.

use super::{Fit, Spec, fit_lines};
use crate::decode::{Batch, Line, Lines, key_only};
use crate::fields::{Fields, Flaw, hexadecimal};
use crate::request::{Kind, Op, Request};
use crate::sample::Sample;

pub(super) static ADDRESS: Spec = Spec {
    name: "address",
    kind: Kind::Key,
    layout: "text: l, s, L, S, M, I, R, W, 0, 1 or 2; an address (hexadecimal); more if any",
    origin: "UCSD, Valgrind's lackey, Dinero, Pin",
    fit,
    names: &[],
    decoder: || Box::new(Lines::new(Address)),
    ..Spec::NONE
};

struct Address;

impl Line for Address {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        if line.starts_with(b"==") {
            return Ok(());
        }
        let mut fields = Fields::blanks(line);
        let mut word = fields.text();
        if word.ends_with(b":") {
            word = fields.text();
        }
        let op = match word {
            b"l" | b"L" | b"r" | b"R" | b"i" | b"I" | b"0" | b"2" => Op::Read,
            b"s" | b"S" | b"w" | b"W" | b"m" | b"M" | b"1" => Op::Write,
            _ => return Err(fields.flaw("a load or a store, such as l, s, R or 1", word)),
        };
        let text = fields.text();
        let address = text.split(|&b| b == b',').next().unwrap_or_default();
        let address = address.strip_prefix(b"0x").unwrap_or(address);
        let key = hexadecimal(address, 16)
            .ok_or_else(|| fields.flaw("an address in hexadecimal", text))?;
        batch.push(Request { op, ..key_only(key) });
        Ok(())
    }
}

/// Digits alone may as well be other numbers.
fn fit(sample: &Sample<'_>) -> Fit {
    let is_letter = |line: &[u8]| !line[0].is_ascii_digit();
    let shows = |line: &[u8]| is_letter(line) || line.iter().any(|b| b"abcdef".contains(b));
    fit_lines(sample, Address).only_if(sample.lines().any(|line| shows(line.text)))
}
