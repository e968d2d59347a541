//! The properties of a device that the kernel's users see.

use crate::abi::{
    ATTR_FUA, ATTR_READ_ONLY, ATTR_ROTATIONAL, ATTR_VOLATILE_CACHE, PARAM_BASIC, PARAM_DISCARD,
    ParameterRecord,
};

/// The unit in which the kernel counts sectors.
const UNIT_SHIFT: u32 = 9;

/// The properties of a device. It has a volatile cache and takes writes with FUA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Its size, a multiple of 512.
    pub bytes: u64,
    /// Refuse writes.
    pub read_only: bool,
    /// The medium rotates.
    pub rotational: bool,
    /// The unit in which it stores data best, and in which it discards: a power of two.
    pub physical_bytes: u32,
    /// The largest read or write.
    pub most_io_bytes: u32,
    /// The largest discard, and the largest request to write zeroes.
    pub most_discard_bytes: u32,
}

impl Parameters {
    pub(crate) fn to_record(self) -> ParameterRecord {
        let shift = self.physical_bytes.trailing_zeros() as u8;
        let attribute = |is_set: bool, attribute: u32| if is_set { attribute } else { 0 };
        ParameterRecord {
            bytes: size_of::<ParameterRecord>() as u32,
            types: PARAM_BASIC | PARAM_DISCARD,
            attributes: ATTR_VOLATILE_CACHE
                | ATTR_FUA
                | attribute(self.read_only, ATTR_READ_ONLY)
                | attribute(self.rotational, ATTR_ROTATIONAL),
            logical_shift: UNIT_SHIFT as u8,
            physical_shift: shift,
            optimal_shift: shift,
            least_shift: shift,
            most_sectors: self.most_io_bytes >> UNIT_SHIFT,
            sectors: self.bytes >> UNIT_SHIFT,
            discard_granularity: self.physical_bytes,
            most_discard_sectors: self.most_discard_bytes >> UNIT_SHIFT,
            most_zero_sectors: self.most_discard_bytes >> UNIT_SHIFT,
            most_discard_segments: 1,
            ..ParameterRecord::default()
        }
    }

    pub(crate) fn of(record: &ParameterRecord) -> Self {
        Self {
            bytes: record.sectors << UNIT_SHIFT,
            read_only: record.attributes & ATTR_READ_ONLY != 0,
            rotational: record.attributes & ATTR_ROTATIONAL != 0,
            physical_bytes: 1 << record.physical_shift,
            most_io_bytes: record.most_sectors << UNIT_SHIFT,
            most_discard_bytes: record.most_discard_sectors << UNIT_SHIFT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_the_kernels_form() {
        for (read_only, rotational) in [(false, true), (true, false)] {
            let given = Parameters {
                bytes: 5 << 30 | 512,
                read_only,
                rotational,
                physical_bytes: 4096,
                most_io_bytes: 1 << 19,
                most_discard_bytes: 1 << 30,
            };
            assert_eq!(Parameters::of(&given.to_record()), given);
        }
    }
}
