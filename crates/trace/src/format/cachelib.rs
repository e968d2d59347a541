//! The traces published with CacheLib: key-value, CDN and Tectonic block caches; comma-separated
//! text whose header names the columns.
//!
//! | trace | time (s) | key | bytes | operation |
//! |---|---|---|---|---|
//! | kv | `op_time`, or none in 202206 | `key` | `size` of the value, plus `key_size` | `op` |
//! | cdn | `timestamp` | `cacheKey` | `objectSize`, or where it is -1 `responseSize` | reads |
//! | tectonic | `op_time` | `block_id` | `io_size` | `op_name` |
//!
//! A line of a kv trace is as many requests as its `op_count`, which sums up repetitions within a
//! second. A read whose value has size 0 missed, and tells no size.

use super::{Fit, Spec, fit_lines, operation};
use crate::decode::{Batch, Clock, Line, Lines};
use crate::fields::{Fields, Flaw, integer, key_of};
use crate::request::{Kind, Op, Request};
use crate::sample::Sample;

pub(super) static CACHELIB: Spec = Spec {
    name: "cachelib",
    kind: Kind::Object,
    layout: "csv with a header: kv (key, op, size, op_count, key_size, …), cdn (timestamp, \
             cacheKey, …) or tectonic (op_time, block_id, …)",
    origin: "CacheLib (Meta)",
    fit,
    names: &[],
    decoder: || Box::new(Lines::new(CacheLib::new())),
    ..Spec::NONE
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
    time: Option<usize>,
    key: usize,
    bytes: usize,
    /// Stands in for a size of -1.
    else_bytes: Option<usize>,
    key_bytes: Option<usize>,
    op: Option<usize>,
    /// The number of requests that a line stands for.
    repeats: Option<usize>,
    count: usize,
}

impl Columns {
    fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<&[u8]> = header.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let find = |name: &str| names.iter().position(|&column| column == name.as_bytes());
        let count = Some(names.len()).filter(|&count| count <= COLUMNS_MAX)?;
        let columns = |time: &str, key: &str, bytes: &str, op: &str| {
            let (key, bytes) = (find(key)?, find(bytes)?);
            let (time, op) = (find(time), find(op));
            let (else_bytes, key_bytes, repeats) = (find("responseSize"), None, None);
            Some(Self { time, key, bytes, else_bytes, key_bytes, op, repeats, count })
        };
        let kv = || {
            let (key_bytes, repeats) = (Some(find("key_size")?), Some(find("op_count")?));
            Some(Self { key_bytes, repeats, ..columns("op_time", "key", "size", "op")? })
        };
        kv().or_else(|| columns("timestamp", "cacheKey", "objectSize", ""))
            .or_else(|| columns("op_time", "block_id", "io_size", "op_name"))
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
        let at = match columns.else_bytes {
            Some(other) if texts[columns.bytes] == b"-1" => other,
            _ => columns.bytes,
        };
        let time_s = columns.time.map_or(Ok(0), |at| number(at, "a time in s"))?;
        let mut bytes = number(at, "a size in bytes")?;
        let op = match columns.op.map(|at| (at, texts[at])) {
            None => Some(Op::Read),
            Some((at, text)) => {
                operation(text).ok_or_else(|| Flaw::text("an operation", at as u32 + 1, text))?
            }
        };
        if let Some(at) = columns.key_bytes {
            let key_bytes = number(at, "the key's size in bytes")?;
            let is_known = bytes > 0 || op != Some(Op::Read);
            bytes = bytes.saturating_add(if is_known { key_bytes } else { 0 });
        }
        let repeats = columns.repeats.map_or(Ok(1), |at| number(at, "a number of requests"))?;
        let time_ns = self.clock.since_first_ns(time_s);
        if let Some(op) = op.filter(|_| repeats > 0) {
            let key = key_of(texts[columns.key]);
            batch.push_repeated(Request { time_ns, key, bytes, volume: 0, op }, repeats);
        }
        Ok(())
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }

    fn header(&mut self, line: &[u8]) -> bool {
        let columns = Columns::of(line);
        self.columns = columns.or(self.columns);
        columns.is_some()
    }
}

/// The header says it all.
fn fit(sample: &Sample<'_>) -> Fit {
    let known = sample.lines().next().is_some_and(|line| Columns::of(line.text).is_some());
    fit_lines(sample, CacheLib::new()).only_if(known)
}
