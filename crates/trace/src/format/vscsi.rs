//! vSCSI traces, as CloudPhysics published them (Waldspurger et al., FAST '15): little-endian
//! binary.
//!
//! Version 1, 32 bytes: u32 serial number, u32 bytes, u32 scatter-gather entries, u16 command, u16
//! version, u64 first sector, u64 time in µs. Version 2, 40 bytes: u16 command, u16 version, u32
//! serial number, u32 bytes, u32 scatter-gather entries, u64 first sector, u64 time in µs, u64
//! response time. The version's upper byte is 1 or 2. Commands that neither read nor write are
//! passed over.

use super::{Spec, fit_records};
use crate::decode::{Batch, Clock, Decoded, Record, Records, SECTOR_BYTES, block};
use crate::fields::{Flaw, offset_bytes};
use crate::request::{Kind, Op};

pub(super) static VSCSI: Spec = Spec {
    name: "vscsi",
    kind: Kind::Block,
    layout: "binary: version 1 of 32 bytes, version 2 of 40 bytes",
    origin: "CloudPhysics, libCacheSim",
    fit: |sample| fit_records(sample, Vscsi::new()),
    names: &[],
    decoder: || Box::new(Records::new(Vscsi::new())),
    ..Spec::NONE
};

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

    /// Where the command stands; the version follows it, and the rest is in the same order.
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
