//! The traces published with CacheLib: key-value, CDN and Tectonic block caches; comma-separated
//! text whose header names the columns.
//!
//! | trace | time (s) | key | bytes | operation |
//! |---|---|---|---|---|
//! | kv | `op_time` | `key` | `size` of the value, plus `key_size` | `op` |
//! | cdn | `timestamp` | `cacheKey` | `objectSize`, or where it is -1 `responseSize` | reads |
//! | tectonic | `op_time` | `block_id` | `io_size` | `op_name` |
//!
//! Every line is one request: `op_count`, which sums up repetitions within a second, is not
//! expanded.

use super::{Spec, fit_lines, operation};
use crate::decode::{Batch, Clock, Line, Lines};
use crate::fields::{Fields, Flaw, integer, key_of};
use crate::request::{Kind, Op, Request};
use crate::sample::Sample;

pub(super) static CACHELIB: Spec = Spec {
    name: "cachelib",
    kind: Kind::Object,
    layout: "csv with a header: kv (op_time, key, …), cdn (timestamp, cacheKey, …) or tectonic \
             (op_time, block_id, …)",
    origin: "CacheLib (Meta)",
    fit,
    names: &[],
    decoder: || Box::new(Lines::new(CacheLib::new())),
    block_decoder: None,
};

const COLUMNS_MAX: usize = 32;
const HEADER: &str = "a header with the columns of a kv, cdn or tectonic trace";

struct CacheLib {
    clock: Clock,
    columns: Option<Columns>,
}

/// Where the columns stand, from 0.
#[derive(Clone, Copy)]
struct Columns {
    time: usize,
    key: usize,
    bytes: usize,
    /// Stands in for a size of -1.
    else_bytes: Option<usize>,
    key_bytes: Option<usize>,
    op: Option<usize>,
    count: usize,
}

impl Columns {
    fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<&[u8]> = header.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let find = |name: &str| names.iter().position(|&column| column == name.as_bytes());
        let count = Some(names.len()).filter(|&count| count <= COLUMNS_MAX)?;
        let columns = |time: &str, key: &str, bytes: &str, key_bytes: &str, op: &str| {
            Some(Self {
                time: find(time)?,
                key: find(key)?,
                bytes: find(bytes)?,
                else_bytes: find("responseSize"),
                key_bytes: find(key_bytes),
                op: find(op),
                count,
            })
        };
        columns("op_time", "key", "size", "key_size", "op")
            .or_else(|| columns("timestamp", "cacheKey", "objectSize", "", ""))
            .or_else(|| columns("op_time", "block_id", "io_size", "", "op_name"))
    }
}

impl CacheLib {
    fn new() -> Self {
        Self { clock: Clock::new(1_000_000_000), columns: None }
    }
}

impl Line for CacheLib {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let Some(columns) = self.columns else { return Err(Flaw::text(HEADER, 0, line)) };
        let mut texts = [&b""[..]; COLUMNS_MAX];
        let mut fields = Fields::commas(line);
        for text in &mut texts[..columns.count] {
            *text = fields.text();
        }
        fields.end()?;
        let number = |at: usize, expected| {
            integer(texts[at]).ok_or_else(|| Flaw::text(expected, at as u32 + 1, texts[at]))
        };
        let time_s = number(columns.time, "a time in s")?;
        let at = match columns.else_bytes {
            Some(other) if texts[columns.bytes] == b"-1" => other,
            _ => columns.bytes,
        };
        let mut bytes = number(at, "a size in bytes")?;
        if let Some(at) = columns.key_bytes {
            bytes = bytes.saturating_add(number(at, "the key's size in bytes")?);
        }
        let op = match columns.op.map(|at| (at, texts[at])) {
            None => Op::Read,
            Some((at, text)) => {
                operation(text).ok_or_else(|| Flaw::text("an operation", at as u32 + 1, text))?
            }
        };
        let time_ns = self.clock.since_first_ns(time_s);
        batch.push(Request { time_ns, key: key_of(texts[columns.key]), bytes, volume: 0, op });
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let columns = Columns::of(line);
        self.columns = columns.or(self.columns);
        columns.is_some()
    }
}

/// The header says it all.
fn fit(sample: &Sample<'_>) -> u8 {
    let known = sample.lines().next().is_some_and(|line| Columns::of(line).is_some());
    if known { fit_lines(sample, CacheLib::new()) } else { 0 }
}
