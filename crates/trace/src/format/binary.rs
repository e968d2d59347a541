//! Binary formats: the compact form, keys as integers, oracleGeneral and vSCSI.

use super::{Broken, Fit, Spec, fit_records};
use crate::compact::{Decoder, is_compact};
use crate::decode::Sample;
use crate::decode::{
    Batch, Clock, Decode, Decoded, Record, Records, SECTOR_BYTES, block, key_only,
};
use crate::fields::{Flaw, offset_bytes};
use crate::request::{Op, Request, TraceKind};

macro_rules! keys {
    (
        $spec:ident, $name:literal, $integer:ty, $from:ident, $layout:literal, $origin:literal,
        $names:expr
    ) => {
        pub(super) static $spec: Spec = Spec {
            name: $name,
            kind: TraceKind::Key,
            layout: $layout,
            origin: $origin,
            names: $names,
            decoder: || -> Box<dyn Decode> {
                Box::new(Records::new(Keys(|bytes: &[u8; size_of::<$integer>()]| {
                    u64::from(<$integer>::$from(*bytes))
                })))
            },
            ..Spec::NONE
        };
    };
}

keys!(
    BE32,
    "be32",
    u32,
    from_be_bytes,
    "binary: u32, big-endian",
    "cache2k",
    &["cache2k", "orm-busy", "orm-night", "web07", "web12"]
);
keys!(
    BE64,
    "be64",
    u64,
    from_be_bytes,
    "binary: u64, big-endian",
    "Corda",
    &["corda", "vaultservice"]
);
keys!(LE32, "le32", u32, from_le_bytes, "binary: u32, little-endian", "your own", &[]);
keys!(LE64, "le64", u64, from_le_bytes, "binary: u64, little-endian", "your own", &[]);

/// Keys as binary integers and nothing else: 32 or 64 bits, either byte order.
///
/// A record has `N` bytes, and the function turns it into a key. cache2k's traces are big-endian
/// 32-bit, Corda's big-endian 64-bit. Any bytes could be integers, so only a file's name shows this
/// format.
struct Keys<const N: usize, F>(F)
where
    F: Fn(&[u8; N]) -> u64;

impl<const N: usize, F: Fn(&[u8; N]) -> u64 + Send> Record for Keys<N, F> {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        let Some(bytes) = input.first_chunk() else { return Decoded::Need };
        batch.push(key_only(self.0(bytes)));
        Decoded::Took(N)
    }
}

pub(super) static FLOE: Spec = Spec {
    name: "floe",
    kind: TraceKind::Key,
    layout: "binary: header, then blocks of columns (docs/trace-format.md)",
    origin: "`floe trace convert`",
    fit: |sample| Fit::sure(100).only_if(is_compact(sample.bytes)),
    names: &[],
    decoder: || Box::new(Decoder::default()),
    block_decoder: Some(|| Box::new(Decoder::default())),
    ..Spec::NONE
};

const RECORD_BYTES: usize = 24;

pub(super) static ORACLE_GENERAL: Spec = Spec {
    name: "oracleGeneral",
    kind: TraceKind::Object,
    layout: "binary, little-endian: u32 time (s), u64 object, u32 bytes, i64 next use",
    origin: "libCacheSim's collection",
    fit,
    names: &["oraclegeneral"],
    decoder: || Box::new(Records::new(OracleGeneral { clock: Clock::new(1_000_000_000) })),
    ..Spec::NONE
};

/// libCacheSim's oracleGeneral: packed little-endian records of 24 bytes.
///
/// u32 time in s, u64 object, u32 bytes, i64 number of the request that uses the object next (-1 or
/// the largest number: none). Objects without size are skipped, as in libCacheSim. The next use is
/// ignored.
struct OracleGeneral {
    clock: Clock,
}

/// A record of oracleGeneral.
pub(crate) struct OracleRecord {
    pub(crate) time_s: u32,
    pub(crate) key: u64,
    pub(crate) bytes: u32,
    /// Number of the next request for the object, counted from 1, or [`OracleRecord::NEVER`].
    pub(crate) next: i64,
}

impl OracleRecord {
    /// The object is not requested again.
    pub(crate) const NEVER: i64 = -1;

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..4].copy_from_slice(&self.time_s.to_le_bytes());
        record[4..12].copy_from_slice(&self.key.to_le_bytes());
        record[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        record[16..].copy_from_slice(&self.next.to_le_bytes());
        record
    }

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
        let OracleRecord { time_s, key, bytes, .. } = OracleRecord::of(record);
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

/// Rates a sample of oracleGeneral. Records have no signature, but the next use of each lies ahead,
/// and most objects have a size. The check of the next use excludes integers of 32 bits, that of
/// the size those of 64. Times may step back occasionally.
fn fit(sample: &Sample<'_>) -> Fit {
    let (records, rest) = sample.bytes.as_chunks::<RECORD_BYTES>();
    if sample.is_text()
        || records.is_empty()
        || sample.whole && !rest.is_empty() && records.len() < 2
    {
        return Fit::NONE;
    }
    let fields = || records.iter().map(OracleRecord::of);
    let is_next = |(OracleRecord { next, .. }, index): &(OracleRecord, i64)| {
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

pub(super) static VSCSI: Spec = Spec {
    name: "vscsi",
    kind: TraceKind::Block,
    layout: "binary: version 1 of 32 bytes, version 2 of 40 bytes",
    origin: "CloudPhysics, libCacheSim",
    fit: |sample| fit_records(sample, Vscsi::new()),
    names: &[],
    decoder: || Box::new(Records::new(Vscsi::new())),
    ..Spec::NONE
};

/// vSCSI traces, as CloudPhysics published them (Waldspurger et al., FAST '15): little-endian
/// binary.
///
/// Version 1, 32 bytes: u32 serial number, u32 bytes, u32 scatter-gather entries, u16 command, u16
/// version, u64 first sector, u64 time in µs. Version 2, 40 bytes: u16 command, u16 version, u32
/// serial number, u32 bytes, u32 scatter-gather entries, u64 first sector, u64 time in µs, u64
/// response time. The version's upper byte is 1 or 2. Commands that neither read nor write are
/// skipped.
struct Vscsi {
    version: Option<Version>,
    clock: Clock,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn bytes(self) -> usize {
        match self {
            Self::V1 => 32,
            Self::V2 => 40,
        }
    }

    /// Returns the offset of the command in a record; the version follows it.
    fn command_at(self) -> usize {
        match self {
            Self::V1 => 12,
            Self::V2 => 0,
        }
    }

    fn is_of(self, record: &[u8; 32]) -> bool {
        let at = self.command_at();
        let upper = if self == Self::V1 { 1 } else { 2 };
        record[at + 3] == upper && record[at + 1] == 0
    }
}

impl Vscsi {
    fn new() -> Self {
        Self { version: None, clock: Clock::new(1000) }
    }
}

impl Record for Vscsi {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        let Some(head) = input.first_chunk::<32>() else { return Decoded::Need };
        let version = match self.version {
            Some(version) => version,
            None if Version::V2.is_of(head) => Version::V2,
            None => Version::V1,
        };
        let record_bytes = version.bytes();
        let Some(record) = input.get(..record_bytes) else { return Decoded::Need };
        if !version.is_of(head) {
            let found = u16::from_le_bytes([head[14], head[15]]);
            let flaw = match version {
                Version::V1 => {
                    Flaw::number("a command with version 0x100 (vSCSI 1)", u64::from(found))
                }
                Version::V2 => {
                    let found = u16::from_le_bytes([head[2], head[3]]);
                    Flaw::number("a command with version 0x200 (vSCSI 2)", u64::from(found))
                }
            };
            return Decoded::Bad(record_bytes, flaw);
        }
        self.version = Some(version);
        let (length_at, sector_at) = if version == Version::V1 { (4, 16) } else { (8, 16) };
        let bytes = u32_at(record, length_at);
        let (sector, time_us) = (u64_at(record, sector_at), u64_at(record, sector_at + 8));
        let op = match record[version.command_at()] {
            0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
            0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Op::Write,
            _ => return Decoded::Took(record_bytes),
        };
        let Some(offset) = offset_bytes(sector, SECTOR_BYTES) else {
            return Decoded::Bad(
                record_bytes,
                Flaw::number("a sector on a disk of less than 8 EiB", sector),
            );
        };
        batch.push(block(self.clock.since_first_ns(time_us), op, 0, offset, u64::from(bytes)));
        Decoded::Took(record_bytes)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the record"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("within the record"))
}
