//! Failures of commands and of connections.

use std::fmt;

/// The status field of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Bit that forbids a repetition of the command.
    const DO_NOT_RETRY: u16 = 1 << 14;

    /// Returns whether the command succeeded.
    pub fn is_success(self) -> bool {
        self.0 & 0x7FF == 0
    }

    /// The status code, meaningful within its type.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// The status code type: 0 generic, 1 specific to the command, 2 media, 3 path.
    pub fn kind(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Returns whether the same command would fail again.
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

/// The controller's refusal of one command; the connection goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("controller failed {command}: {status}")]
pub struct CommandError {
    /// The command's name.
    pub command: &'static str,
    /// The controller's status.
    pub status: Status,
    /// The completion's first 8 bytes.
    pub result: u64,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The controller's address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The controller broke the protocol.
    #[error("controller broke the NVMe/TCP protocol: {0}")]
    Protocol(String),
    /// The controller ended the connection with a reason.
    #[error("controller ended the connection: fatal error status {status:#06x}, info {info:#010x}")]
    Terminated {
        /// The field FES.
        status: u16,
        /// The field FEI.
        info: u32,
    },
    /// Reading from or writing to the socket failed.
    #[error("connection to the controller failed: {0}")]
    Io(#[from] std::io::Error),
    /// The controller hung up.
    #[error("the controller hung up")]
    HungUp,
    /// No byte moved for as long as the transport waits.
    #[error("the controller did not answer in time")]
    Timeout,
    /// The connection had failed before.
    #[error("the connection to the controller had failed before")]
    Failed,
    /// As many commands are in flight as the queue holds.
    #[error("{0} commands are in flight, and the queue holds no more")]
    QueueFull(usize),
    /// The controller asks for a proof, and there is no secret.
    #[error("the controller wants the host to authenticate, and there is no secret")]
    NoSecret,
    /// The controller does not accept the proof.
    #[error("the controller refused the authentication: explanation {0:#04x}")]
    NotAuthenticated(u8),
    /// The controller did not prove its name.
    #[error("the controller did not prove that it has its secret")]
    WrongController,
    /// The controller failed one command; the connection goes on.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// A breach of the protocol, from its description.
pub(super) fn broken(reason: impl Into<String>) -> HostError {
    HostError::Protocol(reason.into())
}
