//! The messages of the TCP transport, called PDUs. Each begins with a [`Header`] of eight bytes.

/// Bytes of the part that all messages begin with.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Bytes of an initialization request or response.
pub const INITIALIZE_BYTES: usize = 128;
/// Bytes of the header of a command capsule.
pub const COMMAND_CAPSULE_BYTES: usize = 72;
/// Bytes of a response capsule.
pub const RESPONSE_CAPSULE_BYTES: usize = 24;
/// Bytes of the header of data, and of a request for it.
pub const DATA_BYTES: usize = 24;
/// Bytes of the header of a request to terminate.
pub const TERMINATE_BYTES: usize = 24;
/// Longest request to terminate, with the header that it complains of.
pub const TERMINATE_MAX_BYTES: usize = 152;

/// Types of messages.
pub mod kind {
    /// Initialization request, to the controller.
    pub const INITIALIZE_REQUEST: u8 = 0x00;
    /// Initialization response, to the host.
    pub const INITIALIZE_RESPONSE: u8 = 0x01;
    /// Request to terminate, to the controller.
    pub const HOST_TERMINATES: u8 = 0x02;
    /// Request to terminate, to the host.
    pub const CONTROLLER_TERMINATES: u8 = 0x03;
    /// A command, to the controller.
    pub const COMMAND: u8 = 0x04;
    /// A completion, to the host.
    pub const RESPONSE: u8 = 0x05;
    /// Data, to the controller.
    pub const HOST_DATA: u8 = 0x06;
    /// Data, to the host.
    pub const CONTROLLER_DATA: u8 = 0x07;
    /// Request for data, to the host.
    pub const READY_TO_TRANSFER: u8 = 0x09;
}

/// Flags of messages.
pub mod flag {
    /// A digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// A digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// The data is the last of its transfer.
    pub const LAST: u8 = 1 << 2;
    /// The command has succeeded, and no completion follows the data.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Reasons to terminate a connection.
pub mod fatal {
    /// A field of a header has a wrong value; the information is its offset.
    pub const INVALID_FIELD: u16 = 0x01;
    /// The message does not fit the state of the connection.
    pub const SEQUENCE: u16 = 0x02;
    /// The digest of a header is wrong; the information is the digest received.
    pub const HEADER_DIGEST: u16 = 0x03;
    /// Data is outside of what was asked for.
    pub const OUT_OF_RANGE: u16 = 0x04;
    /// A message has more data than the controller takes at once.
    pub const LIMIT_EXCEEDED: u16 = 0x05;
    /// A parameter is not supported; the information is its offset.
    pub const UNSUPPORTED: u16 = 0x06;
}

/// The part that all messages begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u8,
    /// Some of [`flag`].
    pub flags: u8,
    /// Length of the header, without its digest.
    pub header_bytes: u8,
    /// Offset of the data; 0 without data.
    pub data_offset: u8,
    /// Length of the message.
    pub total_bytes: u32,
}

impl Header {
    /// Reads the first eight bytes of a message.
    pub fn of_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2],
            data_offset: bytes[3],
            total_bytes: u32::from_le_bytes(bytes[4..].try_into().expect("four bytes")),
        }
    }

    /// The bytes that travel.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let [a, b, c, d] = self.total_bytes.to_le_bytes();
        [self.kind, self.flags, self.header_bytes, self.data_offset, a, b, c, d]
    }
}

/// The content of an initialization request or response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initialize {
    /// Version of the message format; 0.
    pub format: u16,
    /// Alignment of data that the sender wants to receive, in double words, less one.
    pub data_alignment: u8,
    /// Bit 0 for digests of headers, bit 1 for digests of data.
    pub digests: u8,
    /// Of a host: requests for data that it takes for one command, less one. Of a controller: bytes
    /// of data that it takes in one message.
    pub most: u32,
}

impl Initialize {
    /// Reads a message.
    pub fn of_bytes(bytes: &[u8; INITIALIZE_BYTES]) -> Self {
        Self {
            format: u16::from_le_bytes([bytes[8], bytes[9]]),
            data_alignment: bytes[10],
            digests: bytes[11],
            most: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")),
        }
    }

    /// The message of this kind.
    pub fn to_bytes(&self, kind: u8) -> [u8; INITIALIZE_BYTES] {
        let total_bytes = INITIALIZE_BYTES as u32;
        let header = Header { kind, flags: 0, header_bytes: 128, data_offset: 0, total_bytes };
        let mut bytes = [0; INITIALIZE_BYTES];
        bytes[..8].copy_from_slice(&header.to_bytes());
        bytes[8..10].copy_from_slice(&self.format.to_le_bytes());
        bytes[10] = self.data_alignment;
        bytes[11] = self.digests;
        bytes[12..16].copy_from_slice(&self.most.to_le_bytes());
        bytes
    }
}

/// The fields of data in either direction, and of a request for data, behind the common part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// The host's name for the command.
    pub command: u16,
    /// The controller's name for the transfer.
    pub tag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes of data.
    pub length: u32,
}

impl Data {
    /// Reads the fields of a message's header.
    pub fn of_bytes(bytes: &[u8; DATA_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { command: u16_at(8), tag: u16_at(10), offset: u32_at(12), length: u32_at(16) }
    }

    /// The message's header.
    pub fn to_bytes(&self, header: Header) -> [u8; DATA_BYTES] {
        let mut bytes = [0; DATA_BYTES];
        bytes[..8].copy_from_slice(&header.to_bytes());
        bytes[8..10].copy_from_slice(&self.command.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.tag.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

/// Makes a request to terminate: a reason, its information, and the header that caused it.
pub fn terminate(kind: u8, reason: u16, information: u32, cause: &[u8]) -> Vec<u8> {
    let cause = &cause[..cause.len().min(TERMINATE_MAX_BYTES - TERMINATE_BYTES)];
    let total_bytes = (TERMINATE_BYTES + cause.len()) as u32;
    let header = Header { kind, flags: 0, header_bytes: 24, data_offset: 0, total_bytes };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(&reason.to_le_bytes());
    bytes.extend_from_slice(&information.to_le_bytes());
    bytes.resize(TERMINATE_BYTES, 0);
    bytes.extend_from_slice(cause);
    bytes
}
