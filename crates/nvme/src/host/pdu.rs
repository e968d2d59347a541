//! The PDUs of NVMe/TCP: numbers, headers and digests.
//!
//! Source: NVMe/TCP Transport Specification, "PDU definitions". All fields are little-endian.

use crc_fast::CrcAlgorithm;

pub(super) const IC_REQUEST: u8 = 0x00;
pub(super) const IC_RESPONSE: u8 = 0x01;
pub(super) const CONTROLLER_TERMINATES: u8 = 0x03;
pub(super) const CAPSULE_COMMAND: u8 = 0x04;
pub(super) const CAPSULE_RESPONSE: u8 = 0x05;
pub(super) const HOST_DATA: u8 = 0x06;
pub(super) const CONTROLLER_DATA: u8 = 0x07;
pub(super) const READY_TO_TRANSFER: u8 = 0x09;

/// Flag: a header digest follows the header.
pub(super) const HEADER_DIGEST: u8 = 1;
/// Flag: a data digest follows the data.
pub(super) const DATA_DIGEST: u8 = 2;
/// Flag of data: the last PDU of a transfer.
pub(super) const LAST: u8 = 4;
/// Flag of the controller's data: the command succeeded, and no response follows.
pub(super) const SUCCESS: u8 = 8;

pub(super) const COMMON_BYTES: usize = 8;
pub(super) const IC_BYTES: usize = 128;
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const DIGEST_BYTES: usize = 4;
/// Longest PDU that ends a connection.
pub(super) const TERMINATION_MAX_BYTES: usize = 152;

/// The CRC-32C of both digests.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The header that every PDU begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// HLEN.
    pub(super) header_bytes: usize,
    /// PDO.
    pub(super) data_offset: usize,
    /// PLEN.
    pub(super) bytes: usize,
}

impl Common {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2].into(),
            data_offset: bytes[3].into(),
            bytes: u32_at(bytes, 4) as usize,
        }
    }
}

/// Appends a PDU: its header from byte 8 on, and its data.
///
/// `alignment` is that of the data from the beginning of the PDU.
pub(super) fn put(
    out: &mut Vec<u8>,
    kind: u8,
    flags: u8,
    header: &[u8],
    data: &[u8],
    digests: (bool, bool),
    alignment: usize,
) {
    let start = out.len();
    let header_bytes = COMMON_BYTES + header.len();
    let after = header_bytes + if digests.0 { DIGEST_BYTES } else { 0 };
    let offset = if data.is_empty() { 0 } else { after.next_multiple_of(alignment) };
    let with_data_digest = digests.1 && !data.is_empty();
    let bytes = offset.max(after) + data.len() + if with_data_digest { DIGEST_BYTES } else { 0 };
    let digest_flags =
        if digests.0 { HEADER_DIGEST } else { 0 } | if with_data_digest { DATA_DIGEST } else { 0 };
    out.extend_from_slice(&[kind, flags | digest_flags, header_bytes as u8, offset as u8]);
    out.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.extend_from_slice(header);
    if digests.0 {
        let digest = checksum(&out[start..]);
        out.extend_from_slice(&digest.to_le_bytes());
    }
    if !data.is_empty() {
        out.resize(start + offset, 0);
        out.extend_from_slice(data);
    }
    if with_data_digest {
        out.extend_from_slice(&checksum(data).to_le_bytes());
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Text padded with spaces or zeroes.
pub(super) fn text_at(bytes: &[u8], at: usize, length: usize) -> String {
    let field = &bytes[at..at + length];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}
