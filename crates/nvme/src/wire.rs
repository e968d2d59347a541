//! Constants and layouts of NVMe over TCP: messages between host and controller, commands, and the
//! data structures that commands transfer.
//!
//! All numbers are little-endian. Sources: NVM Express Base 2.0, NVM Command Set 1.0 and TCP
//! Transport 1.0.

pub mod pdu;

/// The port that IANA assigned to NVMe over TCP.
pub const PORT: u16 = 4420;
/// The port that IANA assigned to discovery over TCP.
pub const DISCOVERY_PORT: u16 = 8009;
/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Maximum length of the qualified name of a host or a subsystem.
pub const NQN_MAX_BYTES: usize = 223;
/// Length of a field that holds a qualified name; the name ends with a zero byte.
pub const NQN_FIELD_BYTES: usize = 256;
/// Bytes of the data of a Connect command. [`connect`] has the offsets of its fields.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Bytes of the data that every Identify command returns.
pub const IDENTIFY_BYTES: usize = 4096;
/// The namespace identifier that means all namespaces.
pub const ALL_NAMESPACES: u32 = u32::MAX;
/// The controller identifier with which a host asks for any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Fields of a Connect command: byte ranges in its data, an attribute and a result.
pub mod connect {
    use std::ops::Range;

    /// Host identifier.
    pub const HOST_ID: Range<usize> = 0..16;
    /// Controller identifier.
    pub const CONTROLLER_ID: Range<usize> = 16..18;
    /// NVMe qualified name of the subsystem.
    pub const SUBSYSTEM_NQN: Range<usize> = 256..512;
    /// NVMe qualified name of the host.
    pub const HOST_NQN: Range<usize> = 512..768;
    /// Attribute: the host does without flow control of the submission queue.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
    /// Result: the host has to authenticate before other commands.
    pub const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
}

/// Offsets of a controller's registers, and their bits.
pub mod property {
    /// Offset of the capabilities register (CAP), 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Offset of the version register (VS), 4 bytes.
    pub const VS: u32 = 0x08;
    /// Offset of the configuration register (CC), 4 bytes.
    pub const CC: u32 = 0x14;
    /// Offset of the status register (CSTS), 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// Configuration bit: enable the controller.
    pub const CC_ENABLE: u32 = 1 << 0;
    /// Configuration bits: the kind of shutdown; zero for none.
    pub const CC_SHUTDOWN: u32 = 3 << 14;
    /// Status bit: the controller is ready.
    pub const CSTS_READY: u32 = 1 << 0;
    /// Status bit: the controller has failed fatally.
    pub const CSTS_FATAL: u32 = 1 << 1;
    /// Status bits: the shutdown is complete.
    pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;
}

/// Types of data descriptors, in the last byte of a descriptor.
pub mod descriptor {
    /// The data is in the capsule, at an offset.
    pub const IN_CAPSULE: u8 = 0x01;
    /// The transport moves the data in separate messages.
    pub const TRANSPORT: u8 = 0x5a;
}

/// Bytes of a command.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_BYTES: usize = 16;

/// Flag of a command: an SGL describes the data. NVMe over Fabrics allows nothing else.
pub const FLAG_SGL: u8 = 1 << 6;

/// An encoded command. The meaning of double words 10 to 15 depends on the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmeCommand(pub [u8; COMMAND_BYTES]);

impl NvmeCommand {
    /// Creates a command with an SGL descriptor and zeros elsewhere.
    pub fn new(opcode: u8, id: u16) -> Self {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = opcode;
        bytes[1] = FLAG_SGL;
        bytes[2..4].copy_from_slice(&id.to_le_bytes());
        Self(bytes)
    }

    /// Returns the opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Returns the flags: fused operation, and the kind of data descriptor.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Returns the host's identifier of the command.
    pub fn id(&self) -> u16 {
        self.u16(2)
    }

    /// Returns the identifier of the namespace that the command addresses.
    pub fn namespace(&self) -> u32 {
        self.u32(4)
    }

    /// Returns the type of a command of NVMe over Fabrics.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Returns the data descriptor.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor { address: self.u64(24), length: self.u32(32), kind: self.0[39] }
    }

    /// Sets the data descriptor.
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: Descriptor) -> Self {
        self.0[24..32].copy_from_slice(&descriptor.address.to_le_bytes());
        self.0[32..36].copy_from_slice(&descriptor.length.to_le_bytes());
        self.0[39] = descriptor.kind;
        self
    }

    /// Replaces the bytes from offset `at` on.
    #[must_use]
    pub fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Returns a double word by its number. Double words 10 to 15 depend on the command.
    pub fn word(&self, number: usize) -> u32 {
        self.u32(4 * number)
    }

    /// Returns the byte at offset `at`.
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// Returns the 16-bit number at offset `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    /// Returns the 32-bit number at offset `at`.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// Returns the 64-bit number at offset `at`.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// A descriptor of the data that a command transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Offset in the capsule, if the capsule carries the data.
    pub address: u64,
    /// Length of the data in bytes.
    pub length: u32,
    /// Type of the descriptor, one of [`descriptor`].
    pub kind: u8,
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Result of the command. Its meaning depends on the command.
    pub result: u64,
    /// Head of the submission queue, from which the host derives the number of free entries.
    pub queue_head: u16,
    /// The host's identifier of the command.
    pub id: u16,
    /// Status of the command.
    pub status: Status,
}

impl Completion {
    /// Encodes the completion.
    pub fn to_bytes(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        bytes[0..8].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.queue_head.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.id.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.status.to_field().to_le_bytes());
        bytes
    }

    /// Parses a completion.
    pub fn of_bytes(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            result: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
            queue_head: u16_at(8),
            id: u16_at(12),
            status: Status::of_field(u16_at(14)),
        }
    }
}

/// The status of a command: a type, a code, and a flag against repeating the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $code:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($kind << 8 | $code);)*
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0, 0x00;
    /// The controller does not support the command.
    INVALID_OPCODE = 0, 0x01;
    /// A field has a value that the controller does not support.
    INVALID_FIELD = 0, 0x02;
    /// Another command in flight has the same identifier.
    ID_CONFLICT = 0, 0x03;
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04;
    /// The controller failed.
    INTERNAL_ERROR = 0, 0x06;
    /// The namespace does not exist, or its format does not fit.
    INVALID_NAMESPACE = 0, 0x0b;
    /// The command does not fit the state of the queue or of the controller.
    SEQUENCE_ERROR = 0, 0x0c;
    /// The length of the data descriptor does not fit the command.
    SGL_LENGTH_INVALID = 0, 0x0f;
    /// The type of the data descriptor is not supported.
    SGL_TYPE_INVALID = 0, 0x11;
    /// The offset of the data descriptor is outside of the capsule.
    SGL_OFFSET_INVALID = 0, 0x16;
    /// The size of the host identifier does not fit the controller.
    HOST_ID_FORMAT = 0, 0x18;
    /// The namespace is write protected.
    WRITE_PROTECTED = 0, 0x20;
    /// Data was damaged on its way. The command may be repeated.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22;
    /// The range is not within the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80;
    /// No space is left for the data.
    CAPACITY_EXCEEDED = 0, 0x81;
    /// A reservation of another host does not allow the command.
    RESERVATION_CONFLICT = 0, 0x83;
    /// The queue does not exist.
    INVALID_QUEUE = 1, 0x01;
    /// The host has more event requests outstanding than the controller supports.
    ASYNC_EVENT_LIMIT = 1, 0x05;
    /// The log page does not exist.
    INVALID_LOG_PAGE = 1, 0x09;
    /// The value of the feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e;
    /// The format of a Connect command is not supported.
    CONNECT_FORMAT = 1, 0x80;
    /// The controller is in use, or cannot serve more hosts.
    CONNECT_BUSY = 1, 0x81;
    /// A parameter of a Connect command is wrong; the completion's result says which.
    CONNECT_PARAMETERS = 1, 0x82;
    /// The host may not connect.
    CONNECT_HOST = 1, 0x84;
    /// The host must authenticate first.
    AUTHENTICATION_REQUIRED = 1, 0x91;
    /// The namespace is not accessible on this path.
    ANA_INACCESSIBLE = 3, 0x02;
    /// The access to the namespace on this path is about to change.
    ANA_TRANSITION = 3, 0x03;
    /// Data could not be written.
    WRITE_FAULT = 2, 0x80;
    /// Data could not be read.
    UNRECOVERED_READ = 2, 0x81;
    /// The data of a Compare differs from the namespace's.
    COMPARE_FAILURE = 2, 0x85;
}

/// The Do Not Retry bit: the host is advised not to repeat the command.
const DNR: u16 = 1 << 14;

impl Status {
    /// Returns the status with the advice not to repeat the command.
    #[must_use]
    pub const fn final_(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Returns the status without the advice not to repeat the command.
    #[must_use]
    pub const fn without_advice(self) -> Self {
        Self(self.0 & !DNR)
    }

    /// Returns the status as the last two bytes of a completion.
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Parses the last two bytes of a completion.
    pub const fn of_field(field: u16) -> Self {
        Self(field >> 1)
    }
}

/// Opcodes of an admin queue.
pub mod admin {
    /// Opcode of Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Opcode of Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Opcode of Abort.
    pub const ABORT: u8 = 0x08;
    /// Opcode of Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Opcode of Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Opcode of Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Opcode of Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Opcode of NVMe over Fabrics. `fabrics` has the types of its commands.
    pub const FABRICS: u8 = 0x7f;
}

/// Types of commands of NVMe over Fabrics.
pub mod fabrics {
    /// Property Set: write a register of the controller.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect: create a queue.
    pub const CONNECT: u8 = 0x01;
    /// Property Get: read a register of the controller.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send: a message to the controller.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive: a message to the host.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect: delete an I/O queue.
    pub const DISCONNECT: u8 = 0x08;
}

/// Opcodes of an I/O queue.
pub mod io {
    /// Opcode of Flush.
    pub const FLUSH: u8 = 0x00;
    /// Opcode of Write.
    pub const WRITE: u8 = 0x01;
    /// Opcode of Read.
    pub const READ: u8 = 0x02;
    /// Opcode of Compare.
    pub const COMPARE: u8 = 0x05;
    /// Opcode of Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Opcode of Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Opcode of Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Opcode of Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Opcode of Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Opcode of Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Opcode of Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Opcodes of all commands on reservations.
    pub const RESERVATIONS: [u8; 4] =
        [RESERVATION_REGISTER, RESERVATION_REPORT, RESERVATION_ACQUIRE, RESERVATION_RELEASE];
}

/// Types of data structures that an Identify command returns.
pub mod identify {
    /// The Identify Namespace structure.
    pub const NAMESPACE: u8 = 0x00;
    /// The Identify Controller structure.
    pub const CONTROLLER: u8 = 0x01;
    /// The list of active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// The list of a namespace's identifiers.
    pub const DESCRIPTORS: u8 = 0x03;
    /// The part of Identify Namespace that is specific to a command set.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// The part of Identify Controller that is specific to a command set.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
}

/// Types of namespace identifiers, in the list that Identify returns.
pub mod identifier {
    /// A globally unique identifier of 16 bytes.
    pub const NGUID: u8 = 2;
    /// A UUID.
    pub const UUID: u8 = 3;
    /// The number of the command set that the namespace uses.
    pub const COMMAND_SET: u8 = 4;
}

/// Identifiers of features, for Get Features and Set Features.
pub mod feature {
    /// Identifier of the feature Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Identifier of the feature Power Management.
    pub const POWER: u8 = 0x02;
    /// Identifier of the feature Volatile Write Cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Identifier of the feature Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Identifier of the feature Write Atomicity.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Identifier of the feature Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Identifier of the feature Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Identifier of the feature Host Identifier.
    pub const HOST_ID: u8 = 0x81;
    /// Identifier of the feature Reservation Notification Mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Identifier of the feature Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Event bit for notices that namespaces were added, removed or changed. Also a bit of OAES in
    /// Identify Controller.
    pub const NAMESPACE_NOTICES: u32 = 1 << 8;
    /// Event bit for notices that the access to namespaces has changed. Also a bit of OAES in
    /// Identify Controller.
    pub const ANA_NOTICES: u32 = 1 << 11;
    /// Event bit for notices that the discovery log has changed. Also a bit of OAES in Identify
    /// Controller.
    pub const DISCOVERY_NOTICES: u32 = 1 << 31;
}

/// Identifiers of log pages, for Get Log Page.
pub mod log {
    /// The log of command errors.
    pub const ERROR: u8 = 0x01;
    /// The log of SMART and health information.
    pub const HEALTH: u8 = 0x02;
    /// The log of firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// The list of namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// The log of supported commands and their effects.
    pub const COMMANDS: u8 = 0x05;
    /// The log of asymmetric namespace access (ANA).
    pub const ANA: u8 = 0x0c;
    /// The discovery log: the subsystems and ports that a host may connect to.
    pub const DISCOVERY: u8 = 0x70;
    /// The log of reservation notifications.
    pub const RESERVATIONS: u8 = 0x80;
}
