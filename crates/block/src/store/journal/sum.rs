//! Checksums: CRC-64/NVME over everything on the cache device.

/// Returns the checksum of a structure of the journal: of all its bytes but the first eight, which
/// hold it.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// Returns the checksum that the journal stores for a sector's data; never 0, which stands for
/// unknown.
pub fn sum_of(sector_bytes: &[u8]) -> u64 {
    checksum(sector_bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_the_nvme_specification_names() {
        // The check value of the catalogue of CRCs, and that of 4 KiB of zeros in the NVM command
        // set specification.
        assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(sum_of(&[0; 4096]), 0x6482_d367_eb22_b64e);
    }
}
