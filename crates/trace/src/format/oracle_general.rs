//! libCacheSim's oracleGeneral: packed little-endian records of 24 bytes.
//!
//! u32 time in s, u64 object, u32 bytes, i64 number of the request that uses the object next (-1 or
//! the largest number: none). Objects without size are passed over, as libCacheSim does. The next
//! use is not passed on yet.

use super::{Broken, Fit, Spec};
use crate::decode::{Batch, Clock, Decoded, Record, Records};
use crate::fields::Flaw;
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
    ..Spec::NONE
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

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

/// Nothing in a record marks it, but the next use of each lies ahead, and most objects have a size.
/// The bound on the next use keeps integers of 32 bits out, the size those of 64. Times may step
/// back now and then.
fn fit(sample: &Sample<'_>) -> Fit {
    let (records, rest) = sample.bytes.as_chunks::<RECORD_BYTES>();
    if sample.is_text()
        || records.is_empty()
        || sample.whole && !rest.is_empty() && records.len() < 2
    {
        return Fit::NONE;
    }
    let fields = || records.iter().map(Fields::of);
    let is_next = |(Fields { next, .. }, index): &(Fields, i64)| {
        (*next > *index && *next < 1 << 32) || matches!(*next, -1 | i64::MAX)
    };
    let broken = fields().zip(0..).find(|record| !is_next(record)).map(|(fields, index)| Broken {
        unit: "record",
        record: index as u64 + 1,
        at: index as usize * RECORD_BYTES,
        flaw: Flaw::number("a next use ahead, or none (-1)", fields.next as u64),
    });
    let steps_back = fields().zip(fields().skip(1)).filter(|(a, b)| b.time_s < a.time_s).count();
    let sized = fields().filter(|fields| fields.bytes > 0).count();
    let plausible =
        broken.is_none() && steps_back * 2 <= records.len() && sized * 2 >= records.len();
    let good = broken.as_ref().map_or(records.len(), |broken| broken.record as usize - 1);
    Fit { score: if plausible { 95 } else { 0 }, good, broken }
}
