//! libCacheSim's oracleGeneral: packed little-endian records of 24 bytes.
//!
//! u32 time in s, u64 object, u32 bytes, i64 number of the request that uses the object next (-1 or
//! the largest number: none). Objects without size are passed over, as libCacheSim does. The next
//! use is not passed on yet.

use super::Spec;
use crate::decode::{Batch, Clock, Record, Records, Decoded};
use crate::request::{Kind, Op, Request};
use crate::sample::Sample;

const RECORD_BYTES: usize = 24;

pub(super) static ORACLE_GENERAL: Spec = Spec {
    name: "oracleGeneral",
    kind: Kind::Object,
    layout: "binary, little-endian: u32 time (s), u64 object, u32 bytes, i64 next use",
    origin: "libCacheSim's collection",
    fit,
    names: &["oraclegeneral"],
    decoder: || Box::new(Records::new(OracleGeneral { clock: Clock::new(1_000_000_000) })),
    block_decoder: None,
};

struct OracleGeneral {
    clock: Clock,
}

struct Fields {
    time_s: u32,
    key: u64,
    bytes: u32,
    next: i64,
}

impl Fields {
    fn of(record: &[u8; RECORD_BYTES]) -> Self {
        let [t0, t1, t2, t3, key @ .., b0, b1, b2, b3, n0, n1, n2, n3, n4, n5, n6, n7] = *record;
        Self {
            time_s: u32::from_le_bytes([t0, t1, t2, t3]),
            key: u64::from_le_bytes(key),
            bytes: u32::from_le_bytes([b0, b1, b2, b3]),
            next: i64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
        }
    }
}

impl Record for OracleGeneral {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        let Some(record) = input.first_chunk() else { return Decoded::Need };
        let Fields { time_s, key, bytes, .. } = Fields::of(record);
        let time_ns = self.clock.since_first_ns(u64::from(time_s));
        if bytes > 0 {
            let bytes = u64::from(bytes);
            batch.push(Request { time_ns, key, bytes, volume: 0, op: Op::Read });
        }
        Decoded::Took(RECORD_BYTES)
    }
}

/// Nothing in a record marks it, but in a whole sample time never runs back and the next use lies
/// ahead. The bound on it keeps pairs of 32-bit keys out.
fn fit(sample: &Sample<'_>) -> u8 {
    let (records, rest) = sample.bytes.as_chunks::<RECORD_BYTES>();
    if sample.is_text()
        || records.is_empty()
        || sample.whole && !rest.is_empty() && records.len() < 2
    {
        return 0;
    }
    let mut before_s = 0;
    let plausible = records.iter().map(Fields::of).zip(0i64..).all(|(fields, index)| {
        let ahead = fields.next > index && fields.next < 1 << 32;
        let last = fields.next == -1 || fields.next == i64::MAX;
        let in_order = fields.time_s >= before_s;
        before_s = fields.time_s;
        in_order && (ahead || last)
    });
    if plausible { 95 } else { 0 }
}
