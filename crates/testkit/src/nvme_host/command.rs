//! Submission queue entries, errors and PDU headers of the test host.
//!
//! Source: NVMe Base Specification, "Submission Queue Entry", "Fabrics Command Set"; NVM Command
//! Set Specification for I/O commands.

use std::fmt;
use std::time::Duration;

use crc_fast::CrcAlgorithm;

/// Opcodes of admin commands.
pub mod admin {
    #![allow(missing_docs)]
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0A;
    pub const ASYNC_EVENT: u8 = 0x0C;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const FABRICS: u8 = 0x7F;
}

/// Opcodes of I/O commands.
pub mod io_command {
    #![allow(missing_docs)]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Types of fabrics commands.
pub mod fabrics {
    #![allow(missing_docs)]
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Identifiers of features.
pub mod feature {
    #![allow(missing_docs)]
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const ASYNC_EVENTS: u8 = 0x0B;
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
}

/// Identifiers of log pages.
pub mod log_page {
    #![allow(missing_docs)]
    pub const HEALTH: u8 = 0x02;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const COMMANDS_SUPPORTED: u8 = 0x05;
    pub const DISCOVERY: u8 = 0x70;
}

/// Offsets of a controller's properties (registers).
pub mod attribute {
    #![allow(missing_docs)]
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1C;
}

/// PSDT bits of the flags: an SGL describes the data, and metadata is in a contiguous buffer.
const SGL: u8 = 0x40;

/// The data that a command transfers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No data.
    None,
    /// The controller sends this number of bytes.
    FromController(u32),
    /// The host sends these bytes.
    ToController(Vec<u8>),
}

/// A command without its identifier and SGL, which the queue fills in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCommand {
    entry: [u8; 64],
    /// Data of the command.
    pub payload: Payload,
    /// Name of the command in error messages.
    pub name: &'static str,
}

impl HostCommand {
    /// Creates a command with zeros in all fields but its opcode and namespace.
    pub fn new(name: &'static str, opcode: u8, namespace: u32, payload: Payload) -> Self {
        let mut entry = [0; 64];
        entry[0] = opcode;
        entry[1] = SGL;
        entry[4..8].copy_from_slice(&namespace.to_le_bytes());
        Self { entry, payload, name }
    }

    /// Creates a command of NVMe over Fabrics.
    pub fn fabrics(name: &'static str, kind: u8, payload: Payload) -> Self {
        Self::new(name, admin::FABRICS, kind.into(), payload)
    }

    /// Sets command doubleword `number`, usually 10 to 15.
    #[must_use]
    pub fn dword(self, number: usize, value: u32) -> Self {
        self.bytes(4 * number, &value.to_le_bytes())
    }

    /// Sets doublewords `number` and `number` + 1 to the halves of `value`.
    #[must_use]
    pub fn dwords(self, number: usize, value: u64) -> Self {
        self.bytes(4 * number, &value.to_le_bytes())
    }

    /// Replaces bytes of the entry from offset `at` on.
    #[must_use]
    pub fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.entry[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Creates a Connect command for queue `queue` of `entries` entries.
    pub fn connect(
        queue: u16,
        entries: u16,
        flow_control: bool,
        keep_alive_ms: u32,
        data: Vec<u8>,
    ) -> Self {
        Self::fabrics("Connect", fabrics::CONNECT, Payload::ToController(data))
            .bytes(42, &queue.to_le_bytes())
            .bytes(44, &(entries - 1).to_le_bytes())
            .bytes(46, &[if flow_control { 0 } else { 4 }])
            .bytes(48, &keep_alive_ms.to_le_bytes())
    }

    /// Creates a Property Get command that reads 8 bytes if `wide`, else 4.
    pub fn property_get(offset: u32, wide: bool) -> Self {
        Self::fabrics("Property Get", fabrics::PROPERTY_GET, Payload::None)
            .bytes(40, &[wide.into()])
            .dword(11, offset)
    }

    /// Creates a Property Set command that writes 4 bytes.
    pub fn property_set(offset: u32, value: u32) -> Self {
        Self::fabrics("Property Set", fabrics::PROPERTY_SET, Payload::None)
            .dword(11, offset)
            .dwords(12, value.into())
    }

    /// Creates an Identify command for the structure with number `cns`. `namespace` selects the
    /// namespace, or the start of a list.
    pub fn identify(cns: u8, namespace: u32) -> Self {
        Self::new("Identify", admin::IDENTIFY, namespace, Payload::FromController(4096))
            .dword(10, cns.into())
    }

    /// Creates a Set Features command.
    pub fn set_features(feature: u8, value: u32) -> Self {
        Self::new("Set Features", admin::SET_FEATURES, 0, Payload::None)
            .dword(10, feature.into())
            .dword(11, value)
    }

    /// Creates a Get Log Page command for `bytes` bytes, a multiple of 4, from `offset` on.
    pub fn get_log_page(page: u8, namespace: u32, offset: u64, bytes: u32) -> Self {
        let last = bytes / 4 - 1;
        let payload = Payload::FromController(bytes);
        Self::new("Get Log Page", admin::GET_LOG_PAGE, namespace, payload)
            .dword(10, u32::from(page) | last << 16)
            .dword(11, last >> 16)
            .dwords(12, offset)
    }

    /// Encodes the entry with an identifier and an SGL. The data is at the beginning of the capsule
    /// if `in_capsule`, else the transport carries it.
    pub(super) fn encode(&self, id: u16, in_capsule: bool) -> [u8; 64] {
        let mut entry = self.entry;
        let length = match &self.payload {
            Payload::None => 0,
            Payload::FromController(bytes) => *bytes,
            Payload::ToController(data) => data.len() as u32,
        };
        entry[2..4].copy_from_slice(&id.to_le_bytes());
        entry[32..36].copy_from_slice(&length.to_le_bytes());
        // A data block at an offset in the capsule, or one that the transport defines.
        entry[39] = if in_capsule { 0x01 } else { 0x5A };
        entry
    }
}

/// The status field of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// The DNR bit: the host must not repeat the command.
    const DO_NOT_RETRY: u16 = 1 << 14;

    /// Returns whether the command succeeded.
    pub fn is_success(self) -> bool {
        self.0 & 0x7FF == 0
    }

    /// Returns the status code, whose meaning depends on the type.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// Returns the status code type: 0 generic, 1 specific to the command, 2 media, 3 path.
    pub fn kind(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Returns whether the same command would fail again (DNR).
    pub fn do_not_retry(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.kind(), self.code()) {
            (0, 0x00) => "success",
            (0, 0x01) => "invalid opcode",
            (0, 0x02) => "invalid field in command",
            (0, 0x03) => "command id conflict",
            (0, 0x04) => "data transfer error",
            (0, 0x06) => "internal error",
            (0, 0x07) => "command aborted",
            (0, 0x0B) => "invalid namespace or format",
            (0, 0x0C) => "command sequence error",
            (0, 0x0F) => "data SGL length invalid",
            (0, 0x18) => "host identifier inconsistent format",
            (0, 0x19) => "keep alive timer expired",
            (0, 0x20) => "namespace is write protected",
            (0, 0x22) => "transient transport error",
            (0, 0x80) => "LBA out of range",
            (1, 0x80) => "connect incompatible format",
            (1, 0x81) => "connect controller busy",
            (1, 0x82) => "connect invalid parameters",
            (1, 0x84) => "connect invalid host",
            (1, 0x91) => "authentication required",
            (1, 0x05) => "asynchronous event request limit exceeded",
            (2, 0x80) => "write fault",
            (2, 0x81) => "unrecovered read error",
            (2, 0x85) => "compare failure",
            (2, 0x86) => "access denied",
            (3, 0x02) => "asymmetric access inaccessible",
            (3, 0x03) => "asymmetric access transition",
            _ => "status",
        };
        write!(formatter, "{name} (type {}, code {:#04x}", self.kind(), self.code())?;
        formatter.write_str(if self.do_not_retry() { ", do not retry)" } else { ")" })
    }
}

/// Failure of one command. The connection stays usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("controller failed {command}: {status}")]
pub struct CommandError {
    /// Name of the command.
    pub command: &'static str,
    /// Status that the controller returned.
    pub status: Status,
    /// First 8 bytes of the completion.
    pub result: u64,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The connection could not be established.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Address of the controller.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The controller violated the protocol, as the text describes.
    #[error("controller broke the NVMe/TCP protocol: {0}")]
    Protocol(String),
    /// The controller ended the connection with a reason.
    #[error("controller ended the connection: fatal error status {status:#06x}, info {info:#010x}")]
    Terminated {
        /// Fatal error status (FES).
        status: u16,
        /// Fatal error information (FEI).
        info: u32,
    },
    /// Reading from or writing to the socket failed.
    #[error("connection to the controller failed: {0}")]
    Io(#[from] std::io::Error),
    /// The controller closed the connection.
    #[error("the controller hung up")]
    HungUp,
    /// The transport's timeout passed without a byte sent or received.
    #[error("the controller did not answer in time")]
    Timeout,
    /// The connection had failed before.
    #[error("the connection to the controller had failed before")]
    Failed,
    /// The queue is full. The number is its capacity.
    #[error("{0} commands are in flight, and the queue holds no more")]
    QueueFull(usize),
    /// The controller asks for authentication, but the host has no secret.
    #[error("the controller wants the host to authenticate, and there is no secret")]
    NoSecret,
    /// The authentication failed, with this reason code.
    #[error("the controller refused the authentication: explanation {0:#04x}")]
    NotAuthenticated(u8),
    /// The controller did not prove its name.
    #[error("the controller did not prove that it has its secret")]
    WrongController,
    /// The controller failed one command. The connection stays usable.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Returns the error of a protocol violation with this description.
pub(super) fn broken(reason: impl Into<String>) -> HostError {
    HostError::Protocol(reason.into())
}

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
/// Flag of data: this is the last PDU of a transfer.
pub(super) const LAST: u8 = 4;
/// Flag of the controller's data: the command succeeded, and no response follows.
pub(super) const SUCCESS: u8 = 8;

pub(super) const COMMON_BYTES: usize = 8;
pub(super) const IC_BYTES: usize = 128;
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const DIGEST_BYTES: usize = 4;
/// Maximum length of a PDU that terminates the connection.
pub(super) const TERMINATION_MAX_BYTES: usize = 152;

/// Returns the CRC-32C of some bytes, as header and data digests use it.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The common header with which every PDU begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Length of the header in bytes (HLEN).
    pub(super) header_bytes: usize,
    /// Offset of the data in the PDU, in bytes (PDO).
    pub(super) data_offset: usize,
    /// Length of the PDU in bytes (PLEN).
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

/// Appends a PDU, given its header from byte 8 on and its data.
///
/// `alignment` applies to the data, relative to the beginning of the PDU.
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

/// Returns the text of a field that is padded with spaces or zeros.
pub(super) fn text_at(bytes: &[u8], at: usize, length: usize) -> String {
    let field = &bytes[at..at + length];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(length);
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}

/// A byte stream from a host to a controller and back.
///
/// Receiving blocks. Sending does not, so a host with much in flight can receive while the
/// controller accepts nothing.
pub trait Transport: Sized {
    /// Connects to an address of the form HOST:PORT. `timeout` limits connecting, and each later
    /// wait without progress.
    ///
    /// # Errors
    /// When the controller cannot be reached.
    fn connect(address: &str, timeout: Option<Duration>) -> Result<Self, HostError>;

    /// Sends a part of `bytes` without blocking. Returns the number of bytes sent, 0 when none can
    /// be sent now.
    ///
    /// # Errors
    /// When the connection has failed.
    fn send_some(&mut self, bytes: &[u8]) -> Result<usize, HostError>;

    /// Waits for at least one byte. Returns the number of bytes received.
    ///
    /// # Errors
    /// When the connection has failed.
    fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, HostError>;

    /// Waits until more can be sent or something has arrived. Returns whether something has
    /// arrived.
    ///
    /// # Errors
    /// When the connection has failed.
    fn wait_to_send_or_receive(&mut self) -> Result<bool, HostError>;
}
