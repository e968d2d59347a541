//! The messages of the TCP transport, called PDUs. Each message begins with a [`Header`] of eight
//! bytes.

/// Bytes of the common header with which every message begins.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a header digest or data digest.
pub const DIGEST_BYTES: usize = 4;
/// Bytes of an initialization request or response.
pub const INITIALIZE_BYTES: usize = 128;
/// Bytes of the header of a command capsule.
pub const COMMAND_CAPSULE_BYTES: usize = 72;
/// Bytes of a response capsule.
pub const RESPONSE_CAPSULE_BYTES: usize = 24;
/// Bytes of the header of a data message, or of a request for data.
pub const DATA_BYTES: usize = 24;
/// Bytes of the header of a termination request.
pub const TERMINATE_BYTES: usize = 24;
/// Maximum length of a termination request, with the offending header that it quotes.
pub const TERMINATE_MAX_BYTES: usize = 152;

/// Types of messages.
pub mod kind {
    /// Initialization request, to the controller.
    pub const INITIALIZE_REQUEST: u8 = 0x00;
    /// Initialization response, to the host.
    pub const INITIALIZE_RESPONSE: u8 = 0x01;
    /// Termination request, to the controller.
    pub const HOST_TERMINATES: u8 = 0x02;
    /// Termination request, to the host.
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
    /// The message is the last of its data transfer.
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
    /// Data lies outside of the requested range.
    pub const OUT_OF_RANGE: u16 = 0x04;
    /// A message has more data than the receiver accepts at once.
    pub const LIMIT_EXCEEDED: u16 = 0x05;
    /// A parameter is not supported; the information is its offset.
    pub const UNSUPPORTED: u16 = 0x06;
}

/// The common header with which every message begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Type of the message, one of [`kind`].
    pub kind: u8,
    /// Bit mask of [`flag`].
    pub flags: u8,
    /// Length of the header in bytes, without its digest.
    pub header_bytes: u8,
    /// Offset of the data in the message, in bytes; 0 without data.
    pub data_offset: u8,
    /// Length of the whole message in bytes.
    pub total_bytes: u32,
}

impl Header {
    /// Parses the first eight bytes of a message.
    pub fn of_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2],
            data_offset: bytes[3],
            total_bytes: u32::from_le_bytes(bytes[4..].try_into().expect("four bytes")),
        }
    }

    /// Encodes the header.
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
    /// Digests to use: bit 0 for headers, bit 1 for data.
    pub digests: u8,
    /// Limit of the sender. From a host: outstanding requests for data (R2T) of a command, less
    /// one. From a controller: bytes of data in one message.
    pub most: u32,
}

impl Initialize {
    /// Parses an initialization message.
    pub fn of_bytes(bytes: &[u8; INITIALIZE_BYTES]) -> Self {
        Self {
            format: u16::from_le_bytes([bytes[8], bytes[9]]),
            data_alignment: bytes[10],
            digests: bytes[11],
            most: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")),
        }
    }

    /// Encodes the message as a request or a response, depending on `kind`.
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

/// The fields of a data message in either direction, or of a request for data, after the common
/// header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// The host's identifier of the command.
    pub command: u16,
    /// The controller's identifier of the transfer.
    pub tag: u16,
    /// Offset in the command's data, in bytes.
    pub offset: u32,
    /// Bytes of data.
    pub length: u32,
}

impl Data {
    /// Parses the fields from a message's header.
    pub fn of_bytes(bytes: &[u8; DATA_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { command: u16_at(8), tag: u16_at(10), offset: u32_at(12), length: u32_at(16) }
    }

    /// Encodes the fields together with the common header.
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

/// Returns a termination request: a reason, its information, and the header that caused it.
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
