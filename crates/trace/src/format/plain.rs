//! One key per line, as in the traces of the LIRS paper (Jiang & Zhang, SIGMETRICS '02).
//!
//! Numbers are taken as they are, anything else is hashed. Blank lines, and `*`, which separates
//! phases, are no requests.

use super::{Fit, Spec, fit_lines};
use crate::decode::{Batch, Line, Lines, key_only};
use crate::fields::{Flaw, key_of};
use crate::request::Kind;
use crate::sample::Sample;

pub(super) static PLAIN: Spec = Spec {
    name: "plain",
    kind: Kind::Key,
    layout: "text: a key a line; `*` and blank lines do not count",
    origin: "LIRS, and the simplest format to write",
    fit,
    names: &[],
    decoder: || Box::new(Lines::new(Plain)),
    ..Spec::NONE
};

pub(super) struct Plain;

impl Line for Plain {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        // A sharp sign starts a comment in every format, but may be part of a key elsewhere.
        if line != b"*" && line[0] != b'#' {
            batch.push(key_only(key_of(line)));
        }
        Ok(())
    }
}

/// Any line is a key when asked for, but unasked only single words are taken for keys, so that a
/// table of an unknown format is not.
fn fit(sample: &Sample<'_>) -> Fit {
    let single =
        |line: &[u8]| !line.iter().any(|&b| matches!(b, b' ' | b'\t' | b',' | b';' | b'|'));
    fit_lines(sample, Plain).only_if(sample.lines().all(|line| single(line.text)))
}
