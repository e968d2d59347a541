//! Bytes that tell where and when they were written.
//!
//! Each aligned word of eight bytes is a straight line through its address, with a start that is
//! hashed from volume and version: so the same address under another version, or another address
//! under the same, holds other bytes, and making and checking them costs little more than touching
//! the memory.

use floe_policy::mix;

/// The difference of the words at two neighbouring addresses; odd, so that no two addresses of a
/// volume share a word.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

const WORD_BYTES: u64 = 8;

/// The bytes of a volume under a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern(u64);

impl Pattern {
    pub(super) fn new(volume: usize, version: u64) -> Self {
        Self(mix(mix(version) ^ volume as u64))
    }

    fn word(self, address: u64) -> [u8; 8] {
        (address / WORD_BYTES).wrapping_mul(STEP).wrapping_add(self.0).to_le_bytes()
    }

    /// Stores the bytes of `address` and what follows.
    pub(super) fn fill(self, address: u64, bytes: &mut [u8]) {
        let (head, words) = bytes.split_at_mut(Self::head(address, bytes.len()));
        if !head.is_empty() {
            let skew = (address % WORD_BYTES) as usize;
            head.copy_from_slice(&self.word(address)[skew..skew + head.len()]);
        }
        let mut at = address + head.len() as u64;
        let mut words = words.chunks_exact_mut(WORD_BYTES as usize);
        for word in &mut words {
            word.copy_from_slice(&self.word(at));
            at += WORD_BYTES;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(at)[..tail.len()]);
    }

    /// Where the first byte is that should not be there.
    pub(super) fn mismatch(self, address: u64, bytes: &[u8]) -> Option<usize> {
        let (head, words) = bytes.split_at(Self::head(address, bytes.len()));
        let skew = (address % WORD_BYTES) as usize;
        let mut at = address;
        let whole = std::iter::once(head).filter(|head| !head.is_empty());
        for part in whole.chain(words.chunks(WORD_BYTES as usize)) {
            let skew = if at == address { skew } else { 0 };
            let wanted = &self.word(at)[skew..skew + part.len()];
            if part != wanted {
                let inside = part.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(0);
                return Some((at - address) as usize + inside);
            }
            at += part.len() as u64;
        }
        None
    }

    /// Bytes up to the first word that begins within the range.
    fn head(address: u64, len: usize) -> usize {
        ((WORD_BYTES - address % WORD_BYTES) % WORD_BYTES).min(len as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_the_bytes_is_recognised_and_any_change_is_found() {
        let pattern = Pattern::new(3, 7);
        let mut whole = [0; 64];
        pattern.fill(40, &mut whole);
        for start in 0..20 {
            for end in start..64 {
                let mut part = vec![0; end - start];
                pattern.fill(40 + start as u64, &mut part);
                assert_eq!(part, whole[start..end]);
                assert_eq!(pattern.mismatch(40 + start as u64, &part), None);
                if let Some(byte) = part.last_mut() {
                    *byte ^= 1;
                    assert_eq!(pattern.mismatch(40 + start as u64, &part), Some(part.len() - 1));
                }
            }
        }
    }

    #[test]
    fn another_version_volume_or_address_has_other_bytes() {
        let mut bytes = [0; 4096];
        Pattern::new(0, 1).fill(8192, &mut bytes);
        assert!(Pattern::new(0, 2).mismatch(8192, &bytes).is_some());
        assert!(Pattern::new(1, 1).mismatch(8192, &bytes).is_some());
        assert!(Pattern::new(0, 1).mismatch(4096, &bytes).is_some());
    }
}
