//! SRT, the format of Hewlett-Packard's disk traces (Ruemmler & Wilkes, USENIX Winter '93): binary.
//!
//! A text header that ends with a form feed (0x0C), then records of big-endian 32-bit words: record
//! bytes, id, seconds, microseconds, start, stop, bytes, first sector, device, driver type,
//! cylinder, flags (bit 0: read), and more. The device number stands above the lowest 8 bits, which
//! name a partition; sectors count from the device's start and have 512 bytes.

use super::{Fit, Spec};
use crate::decode::{Batch, Clock, Decoded, Record, Records, SECTOR_BYTES, block};
use crate::fields::Flaw;
use crate::request::{Kind, Op};

const MAGIC: &[u8] = b"$$TR_IOREC";
const HEADER_END: u8 = 0x0c;
/// Longer headers, and longer records, are none.
const HEADER_BYTES_MAX: usize = 64 << 10;
const RECORD_BYTES_MAX: usize = 4096;
/// The words up to the flags.
const RECORD_BYTES_MIN: usize = 48;

pub(super) static SRT: Spec = Spec {
    name: "srt",
    kind: Kind::Block,
    layout: "binary: header up to 0x0C, then big-endian words: size, id, s, µs, …, bytes, sector, \
             device, …, flags",
    origin: "HP traces (cello, hplajw, snake)",
    fit: |sample| Fit::sure(100).only_if(sample.bytes.starts_with(MAGIC)),
    names: &[],
    decoder: || {
        Box::new(Records::new(Srt { in_header: true, lost: false, clock: Clock::new(1000) }))
    },
    ..Spec::NONE
};

struct Srt {
    in_header: bool,
    /// Without a record's length there is no telling where the next one starts.
    lost: bool,
    clock: Clock,
}

impl Record for Srt {
    fn record(&mut self, input: &[u8], batch: &mut Batch) -> Decoded {
        if self.lost {
            return Decoded::Skip(input.len());
        }
        if self.in_header {
            return match memchr::memchr(HEADER_END, input) {
                Some(end) => {
                    self.in_header = false;
                    Decoded::Skip(end + 1)
                }
                None if input.len() > HEADER_BYTES_MAX => {
                    self.lost = true;
                    Decoded::Bad(
                        input.len(),
                        Flaw::number("a header of at most 64 KiB", input.len() as u64),
                    )
                }
                None => Decoded::Need,
            };
        }
        let Some(head) = input.first_chunk::<RECORD_BYTES_MIN>() else { return Decoded::Need };
        let (words, _) = head.as_chunks::<4>();
        let word = |index: usize| u32::from_be_bytes(words[index]);
        let record_bytes = word(0) as usize;
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(&record_bytes) {
            self.lost = true;
            let flaw = Flaw::number("a record of 48 to 4096 bytes", u64::from(word(0)));
            return Decoded::Bad(input.len(), flaw);
        }
        if input.len() < record_bytes {
            return Decoded::Need;
        }
        let (seconds, micros, bytes, sector) = (word(2), word(3), word(6), word(7));
        if bytes > i32::MAX as u32 {
            return Decoded::Bad(record_bytes, Flaw::number("a length in bytes", u64::from(bytes)));
        }
        let time_us = u64::from(seconds) * 1_000_000 + u64::from(micros);
        let op = if word(11) & 1 == 1 { Op::Read } else { Op::Write };
        let offset = u64::from(sector) * SECTOR_BYTES;
        let time_ns = self.clock.since_first_ns(time_us);
        batch.push(block(time_ns, op, word(8) >> 8, offset, u64::from(bytes)));
        Decoded::Took(record_bytes)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.clock)
    }
}
