//! Samples: checksums of some sectors of a backing device, which distinguish it from others by
//! content.
//!
//! They are valid after a crash as well as after a clean end. So before a session changes one of
//! these sectors for the first time, its checksum is durably marked as invalid. The choice of
//! sectors follows from the volume's size.

use std::collections::BTreeSet;

use crate::geometry::SECTOR_BYTES;

/// Most sectors of a volume that are sampled.
pub const MOST_SAMPLES: usize = 24;

/// Places where disks of one size differ, in sectors from the beginning: partition tables and the
/// beginnings of file systems; LVM and RAID; btrfs; and the copies that ext4 keeps of its
/// superblock in groups 1, 3 and 5.
const NEAR_THE_BEGINNING: [u64; 6] = [0, 1, 16, 32_768, 98_304, 163_840];

/// Places in sectors from the end: the copy of a partition table, and RAID.
const NEAR_THE_END: [u64; 3] = [1, 2, 16];

/// Number of equal parts of a disk whose starts are sampled: XFS begins its allocation groups
/// there.
const QUARTERS: u64 = 4;

/// Checksums of some sectors of a volume on its backing device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Samples {
    /// The size of the volume, which determines the sectors.
    pub of_bytes: u64,
    /// The checksums of its first [`sampled_sectors`], in their order; 0 where none is known.
    pub sums: Vec<u32>,
}

impl Samples {
    /// Returns the sectors with known checksums, and the checksums.
    pub fn known(&self) -> impl Iterator<Item = (u64, u32)> {
        let known = sampled_sectors(self.of_bytes).into_iter().zip(self.sums.iter().copied());
        known.filter(|(_, sum)| *sum != 0)
    }

    /// Forgets the checksums of these sectors. Returns whether there were any.
    pub fn forget(&mut self, sectors: &[u64]) -> bool {
        let mut forgot = false;
        for (sector, sum) in sampled_sectors(self.of_bytes).into_iter().zip(&mut self.sums) {
            if *sum != 0 && sectors.contains(&sector) {
                (*sum, forgot) = (0, true);
            }
        }
        forgot
    }
}

/// Returns the sampled sectors of a volume of so many bytes, the most distinctive first:
/// [`MOST_SAMPLES`], or all of a smaller volume. Caches are compared with them, so the choice never
/// changes.
pub fn sampled_sectors(bytes: u64) -> Vec<u64> {
    let sectors = bytes.div_ceil(SECTOR_BYTES);
    let near_the_end = NEAR_THE_END.into_iter().filter_map(|before| sectors.checked_sub(before));
    let quarters = (1..QUARTERS)
        .map(|part| (u128::from(sectors) * u128::from(part) / u128::from(QUARTERS)) as u64);
    // Multiples of the golden ratio, as fractions of the whole, are spread evenly for any number of
    // them.
    let spread = (1..=4 * MOST_SAMPLES as u64).map(|n| {
        let part = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(part) * u128::from(sectors)) >> 64) as u64
    });
    let mut seen = BTreeSet::new();
    let all = NEAR_THE_BEGINNING[..2].iter().copied().chain(near_the_end).chain(quarters);
    let all = all
        .chain(NEAR_THE_BEGINNING[2..].iter().copied())
        .chain(spread)
        .chain(0..MOST_SAMPLES as u64);
    all.filter(|sector| *sector < sectors && seen.insert(*sector)).take(MOST_SAMPLES).collect()
}

/// Returns the checksum of a sampled sector; never 0.
pub fn sample_sum(sector: &[u8]) -> u32 {
    let sum = crc_fast::crc64_nvme(sector);
    ((sum >> 32) as u32 ^ sum as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_sectors_are_within_the_volume_and_spread_over_it() {
        for bytes in [512, 4096, 5000 * 512, 4 << 20, 10 << 30, 100 << 40] {
            let (found, sectors) = (sampled_sectors(bytes), u64::div_ceil(bytes, 4096));
            let distinct: BTreeSet<_> = found.iter().collect();
            assert_eq!(distinct.len(), found.len());
            assert_eq!(found.len() as u64, sectors.min(MOST_SAMPLES as u64), "{bytes} bytes");
            assert!(found.iter().all(|sector| *sector < sectors));
            assert!(found.contains(&0) && found.contains(&(sectors - 1)), "both ends");
            if sectors > 1000 {
                let eighth = |part: u64| sectors * part / 8..sectors * (part + 1) / 8;
                for part in 0..8 {
                    assert!(
                        found.iter().any(|sector| eighth(part).contains(sector)),
                        "{bytes}: part {part}"
                    );
                }
            }
        }
        assert_eq!(sampled_sectors(0), []);
    }

    #[test]
    fn sampled_sectors_never_change() {
        let found = sampled_sectors(10 << 30);
        let first = [
            0, 1, 2_621_439, 2_621_438, 2_621_424, 655_360, 1_310_720, 1_966_080, 16, 32_768,
            98_304, 163_840,
        ];
        assert_eq!(found[..12], first);
        assert_eq!(found[12..15], [1_620_139, 618_838, 2_238_977]);
    }

    #[test]
    fn what_is_forgotten_is_known_no_more() {
        let sums = (1..=24).collect();
        let mut samples = Samples { of_bytes: 4 << 20, sums };
        assert_eq!(samples.known().count(), 24);
        assert!(samples.forget(&[0, 7, 1023]));
        assert!(!samples.forget(&[0, 1023]));
        assert!(samples.known().all(|(sector, _)| sector != 0 && sector != 1023));
    }
}
