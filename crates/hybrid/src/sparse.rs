//! A simulated drive that keeps no zeros, for simulations of caches that are larger than memory.
//!
//! The values in a simulation are zeros. So the drive keeps headers, keys and footers: about 50
//! bytes an object, whatever its size.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::flash::{Buffers, Flash};
use crate::format::UNIT_BYTES;

/// Bytes of a block, which has as many units as a [`u16`] counts.
const BLOCK_BYTES: usize = UNIT_BYTES << 16;
/// Bytes that are compared with zeros at a time.
const PIECE_BYTES: usize = 256;
/// Bytes of buffers that are kept for reuse.
const KEPT_BYTES: usize = 64 << 20;

/// A block of the drive: the units that are not zero, in order.
#[derive(Debug, Default)]
struct Block {
    /// Numbers of the units in the block.
    numbers: Vec<u16>,
    units: Vec<[u8; UNIT_BYTES]>,
}

impl Block {
    /// Returns the range of the kept units in a range of bytes.
    fn range(&self, offset: usize, len: usize) -> std::ops::Range<usize> {
        let at = |bytes: usize| {
            self.numbers.partition_point(|number| usize::from(*number) < bytes / UNIT_BYTES)
        };
        at(offset)..at(offset + len)
    }

    fn write(&mut self, from: &[u8], offset: usize) {
        let (mut numbers, mut units) = (Vec::new(), Vec::new());
        for (piece, bytes) in from.chunks(PIECE_BYTES).enumerate() {
            if bytes == &[0; PIECE_BYTES][..bytes.len()] {
                continue;
            }
            let first = (offset + piece * PIECE_BYTES) / UNIT_BYTES;
            let (whole, _) = bytes.as_chunks::<UNIT_BYTES>();
            let others = whole.iter().enumerate().filter(|(_, unit)| **unit != [0; UNIT_BYTES]);
            for (at, unit) in others {
                numbers.push((first + at) as u16);
                units.push(*unit);
            }
        }
        let range = self.range(offset, from.len());
        let more = numbers.len().saturating_sub(range.len());
        self.numbers.reserve_exact(more);
        self.units.reserve_exact(more);
        self.numbers.splice(range.clone(), numbers);
        self.units.splice(range, units);
    }

    fn read(&self, into: &mut [u8], offset: usize) {
        for at in self.range(offset, into.len()) {
            let start = usize::from(self.numbers[at]) * UNIT_BYTES - offset;
            into[start..start + UNIT_BYTES].copy_from_slice(&self.units[at]);
        }
    }
}

/// A drive in memory that keeps no zeros. Offsets and lengths are multiples of [`UNIT_BYTES`].
#[derive(Debug)]
pub(crate) struct SparseFlash {
    size_bytes: u64,
    blocks: Mutex<HashMap<u64, Block>>,
    buffers: Buffers,
}

impl SparseFlash {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self { size_bytes, blocks: Mutex::default(), buffers: Buffers::new(KEPT_BYTES) }
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<u64, Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a range of the drive, and divides it into blocks: the number of each, the offset in
    /// it, and the range of the caller's bytes.
    fn parts(
        &self,
        len: usize,
        offset: u64,
    ) -> io::Result<impl Iterator<Item = (u64, usize, std::ops::Range<usize>)>> {
        if offset + len as u64 > self.size_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        debug_assert!(len.is_multiple_of(UNIT_BYTES) && offset.is_multiple_of(UNIT_BYTES as u64));
        let mut done = 0;
        Ok(std::iter::from_fn(move || {
            let at = offset + done as u64;
            let within = (at % BLOCK_BYTES as u64) as usize;
            let part = done..len.min(done + BLOCK_BYTES - within);
            done = part.end;
            (!part.is_empty()).then_some((at / BLOCK_BYTES as u64, within, part))
        }))
    }
}

impl Flash for SparseFlash {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        into.fill(0);
        let blocks = self.blocks();
        for (number, within, part) in self.parts(into.len(), offset)? {
            if let Some(block) = blocks.get(&number) {
                block.read(&mut into[part], within);
            }
        }
        Ok(())
    }

    fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let mut blocks = self.blocks();
        for (number, within, part) in self.parts(from.len(), offset)? {
            blocks.entry(number).or_default().write(&from[part], within);
        }
        Ok(())
    }

    fn write_cached(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.write(from, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn it_reads_what_was_written() {
        const BYTES: usize = 3 * BLOCK_BYTES;
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        println!("seed {seed}");
        let random = &mut SmallRng::seed_from_u64(seed);
        let (flash, mut model) = (SparseFlash::new(BYTES as u64), vec![0; BYTES]);
        for _ in 0..200 {
            let start = random.random_range(0..BYTES / UNIT_BYTES) * UNIT_BYTES;
            let units = random.random_range(1..=BLOCK_BYTES * 3 / 2 / UNIT_BYTES);
            let end = BYTES.min(start + units * UNIT_BYTES);
            let mut bytes = vec![0; end - start];
            for _ in 0..random.random_range(0..200) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            flash.write(&bytes, start as u64).unwrap();
            model[start..end].copy_from_slice(&bytes);
            let start = random.random_range(0..start / UNIT_BYTES + 1) * UNIT_BYTES;
            let mut found = vec![1; end - start];
            flash.read(&mut found, start as u64).unwrap();
            assert!(found == model[start..end], "{start}..{end}");
        }
        assert!(flash.write(&[0; UNIT_BYTES], BYTES as u64).is_err());
    }
}
