//! The kernel's structures and constants, as in `include/uapi/linux/ublk_cmd.h`.

use std::io;

use floe_device::kernel_release;

/// Returns the number of a command, as `_IOC` encodes it: `access` is 2 for reads, 3 for reads and
/// writes.
const fn command(access: u32, number: u32, bytes: u32) -> u32 {
    access << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

const CONTROL_BYTES: u32 = size_of::<ControlCommand>() as u32;
const IO_BYTES: u32 = size_of::<IoCommand>() as u32;

pub(crate) const ADD_DEV: u32 = command(3, 0x04, CONTROL_BYTES);
pub(crate) const DEL_DEV: u32 = command(3, 0x05, CONTROL_BYTES);
pub(crate) const START_DEV: u32 = command(3, 0x06, CONTROL_BYTES);
pub(crate) const STOP_DEV: u32 = command(3, 0x07, CONTROL_BYTES);
pub(crate) const SET_PARAMS: u32 = command(3, 0x08, CONTROL_BYTES);
pub(crate) const GET_PARAMS: u32 = command(2, 0x09, CONTROL_BYTES);
pub(crate) const START_USER_RECOVERY: u32 = command(3, 0x10, CONTROL_BYTES);
pub(crate) const END_USER_RECOVERY: u32 = command(3, 0x11, CONTROL_BYTES);
pub(crate) const GET_DEV_INFO: u32 = command(2, 0x02, CONTROL_BYTES);
pub(crate) const GET_FEATURES: u32 = command(2, 0x13, CONTROL_BYTES);

pub(crate) const FETCH_REQ: u32 = command(3, 0x20, IO_BYTES);
pub(crate) const COMMIT_AND_FETCH_REQ: u32 = command(3, 0x21, IO_BYTES);

/// Feature: when its server is killed, a device waits for another server.
pub(crate) const F_USER_RECOVERY: u64 = 1 << 3;
/// Feature: requests that a killed server had fetched are issued again.
pub(crate) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Feature: commands are numbered like those of `ioctl`.
pub(crate) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// Feature: the server copies data by reading and writing the character file.
pub(crate) const F_USER_COPY: u64 = 1 << 7;

pub(crate) const ATTR_READ_ONLY: u32 = 1 << 0;
pub(crate) const ATTR_ROTATIONAL: u32 = 1 << 1;
pub(crate) const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub(crate) const ATTR_FUA: u32 = 1 << 3;

pub(crate) const PARAM_BASIC: u32 = 1 << 0;
pub(crate) const PARAM_DISCARD: u32 = 1 << 1;

pub(crate) const OP_READ: u32 = 0;
pub(crate) const OP_WRITE: u32 = 1;
pub(crate) const OP_FLUSH: u32 = 2;
pub(crate) const OP_DISCARD: u32 = 3;
pub(crate) const OP_WRITE_ZEROES: u32 = 5;
pub(crate) const OP_NO_UNMAP: u32 = 1 << 15;

/// Maximum queue depth. It determines the distance between the queues' descriptors in the character
/// file.
pub(crate) const MOST_DEPTH: usize = 4096;

/// Offset in the character file of the data of queue 0, tag 0.
const DATA_START: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = 41;

/// Returns the offset in the character file of a request's data.
pub(crate) const fn data_offset(queue: u16, tag: u16) -> u64 {
    DATA_START + ((queue as u64) << QUEUE_SHIFT | (tag as u64) << TAG_SHIFT)
}

/// The argument of a control command.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ControlCommand {
    pub(crate) device: u32,
    pub(crate) queue: u16,
    pub(crate) bytes: u16,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) path_bytes: u16,
    pub(crate) padding: u16,
    pub(crate) reserved: u32,
}

impl ControlCommand {
    /// Returns the command as the bytes that a submission carries.
    pub(crate) fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// The kernel's description of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceRecord {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) padding: u16,
    pub(crate) most_io_bytes: u32,
    pub(crate) device: u32,
    pub(crate) server: i32,
    pub(crate) padding_2: u32,
    pub(crate) flags: u64,
    /// Number chosen by the server. The kernel only stores it.
    pub(crate) label: u64,
    pub(crate) owner_user: u32,
    pub(crate) owner_group: u32,
    pub(crate) reserved: [u64; 2],
}

/// The parameters of a device, as the kernel expects them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ParameterRecord {
    pub(crate) bytes: u32,
    pub(crate) types: u32,
    pub(crate) attributes: u32,
    pub(crate) logical_shift: u8,
    pub(crate) physical_shift: u8,
    pub(crate) optimal_shift: u8,
    pub(crate) least_shift: u8,
    pub(crate) most_sectors: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) boundary_mask: u64,
    pub(crate) discard_alignment: u32,
    pub(crate) discard_granularity: u32,
    pub(crate) most_discard_sectors: u32,
    pub(crate) most_zero_sectors: u32,
    pub(crate) most_discard_segments: u16,
    pub(crate) reserved: u16,
    pub(crate) padding: u32,
}

/// The argument of a command on a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) address: u64,
}

impl IoCommand {
    /// Returns the command as the bytes that a submission carries.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

/// The kernel's description of a request, in memory that the kernel shares with the server.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Descriptor {
    pub(crate) operation: u32,
    pub(crate) sectors: u32,
    pub(crate) first_sector: u64,
    pub(crate) address: u64,
}

const _: () = {
    assert!(size_of::<ControlCommand>() == 32);
    assert!(size_of::<DeviceRecord>() == 64);
    assert!(size_of::<ParameterRecord>() == 64);
    assert!(std::mem::offset_of!(ParameterRecord, sectors) == 24);
    assert!(std::mem::offset_of!(ParameterRecord, discard_alignment) == 40);
    assert!(size_of::<IoCommand>() == 16);
    assert!(size_of::<Descriptor>() == 24);
};

/// Advice in the error for a system without the driver.
const LOAD: &str = "load it with `modprobe ublk_drv` (Linux 6.5 or newer with CONFIG_BLK_DEV_UBLK)";

/// An error of a ublk device or its driver.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not loaded.
    #[error("the kernel has no ublk driver: {LOAD}; this is Linux {}", kernel_release())]
    NoDriver,
    /// This process may not use the driver.
    #[error("/dev/ublk-control cannot be opened: {0}; only root may attach devices")]
    Forbidden(io::Error),
    /// The driver lacks a feature that Floe needs. The text names the feature.
    #[error(
        "the kernel's ublk driver lacks {0}: Linux 6.5 or newer is needed, and this is {running}",
        running = kernel_release()
    )]
    Missing(&'static str),
    /// The kernel provides no io_uring for commands.
    #[error("cannot set up an io_uring for commands to the ublk driver: {0}")]
    Ring(io::Error),
    /// The kernel rejected a command.
    #[error("the ublk driver cannot {what} device {device}: {source}")]
    Command {
        /// Name of the command, as a verb.
        what: &'static str,
        /// Number of the device.
        device: u32,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The device's character file cannot be used.
    #[error("/dev/ublkc{device} cannot be {what}: {source}")]
    Character {
        /// Failed action, as a participle.
        what: &'static str,
        /// Number of the device.
        device: u32,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl UblkError {
    /// Returns the system's error number, if the error has one.
    pub fn number(&self) -> Option<i32> {
        match self {
            Self::Forbidden(source) | Self::Ring(source) => source.raw_os_error(),
            Self::Command { source, .. } | Self::Character { source, .. } => source.raw_os_error(),
            Self::NoDriver | Self::Missing(_) => None,
        }
    }
}

/// Base-2 logarithm of the size of the kernel's sectors, 512 bytes.
const UNIT_SHIFT: u32 = 9;

/// The properties of a device. Every device has a volatile cache and supports writes with FUA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Size of the device in bytes, a multiple of 512.
    pub bytes: u64,
    /// The device rejects writes.
    pub read_only: bool,
    /// The device is a rotating disk.
    pub rotational: bool,
    /// Preferred unit of I/O and unit of discards in bytes, a power of two.
    pub physical_bytes: u32,
    /// Maximum bytes of a read or write.
    pub most_io_bytes: u32,
    /// Maximum bytes of a discard, or of a request to write zeros.
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
    fn commands_have_the_numbers_of_the_kernels_header() {
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn data_of_each_request_has_a_place_of_its_own() {
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(0, 1), 0x8200_0000);
        assert_eq!(data_offset(1, 0), 0x8000_0000 + (1 << 41));
    }
}

#[cfg(test)]
mod parameters_tests {
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
