//! Twitter's in-memory cache clusters (Yang et al., OSDI '20): comma-separated text, no header.
//!
//! `timestamp (s), anonymized key, key bytes, value bytes, client, operation, TTL (s)`. An object's
//! size is its key's and its value's together. Keys may not contain commas; the published ones do
//! not.

use super::{Spec, fit_lines, starts_with};
use crate::decode::{Batch, Clock, Line, Lines};
use crate::fields::{Fields, Flaw, key_of};
use crate::request::{Kind, Op, Request};

pub(super) static TWITTER: Spec = Spec {
    name: "twitter",
    kind: Kind::Object,
    layout: "csv: time (s), key, key bytes, value bytes, client, operation, TTL (s)",
    origin: "Twitter cache clusters (2020)",
    fit: |sample| fit_lines(sample, Twitter::new()),
    names: &[],
    decoder: || Box::new(Lines::new(Twitter::new())),
    block_decoder: None,
};

struct Twitter {
    clock: Clock,
}

impl Twitter {
    fn new() -> Self {
        Self { clock: Clock::new(1_000_000_000) }
    }
}

impl Line for Twitter {
    fn line(&mut self, line: &[u8], batch: &mut Batch) -> Result<(), Flaw> {
        let mut fields = Fields::commas(line);
        let time_s = fields.number("a time in s")?;
        let key = fields.text();
        let key_bytes = fields.number_u32("the key's size in bytes")?;
        let value_bytes = fields.number_u32("the value's size in bytes")?;
        fields.text();
        let op = match fields.text() {
            b"get" | b"gets" => Op::Read,
            b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
                Op::Write
            }
            b"delete" => Op::Delete,
            other => return Err(fields.flaw("a memcached operation", other)),
        };
        fields.number("a TTL in s")?;
        fields.end()?;
        let time_ns = self.clock.since_first_ns(time_s);
        let bytes = u64::from(key_bytes) + u64::from(value_bytes);
        batch.push(Request { time_ns, key: key_of(key), bytes, volume: 0, op });
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> bool {
        starts_with(line, b"timestamp,")
    }
}
