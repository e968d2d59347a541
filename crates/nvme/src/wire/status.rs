//! The status of a command, as its completion carries it.

/// The result of a command: a type, a code, and a flag against repeating it.
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
    /// The controller does not have the command.
    INVALID_OPCODE = 0, 0x01;
    /// A field has a value that the controller does not support.
    INVALID_FIELD = 0, 0x02;
    /// Another command in flight has the same identifier.
    ID_CONFLICT = 0, 0x03;
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04;
    /// The controller failed.
    INTERNAL_ERROR = 0, 0x06;
    /// The namespace is not there, or its format does not fit.
    INVALID_NAMESPACE = 0, 0x0b;
    /// The command does not fit the state of the queue or of the controller.
    SEQUENCE_ERROR = 0, 0x0c;
    /// The length of the data descriptor does not fit the command.
    SGL_LENGTH_INVALID = 0, 0x0f;
    /// The type of the data descriptor is not supported.
    SGL_TYPE_INVALID = 0, 0x11;
    /// The offset of the data descriptor is outside of the capsule.
    SGL_OFFSET_INVALID = 0, 0x16;
    /// The namespace is write protected.
    WRITE_PROTECTED = 0, 0x20;
    /// Data was damaged on its way. The command may be repeated.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22;
    /// The range is not within the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80;
    /// No space is left for the data.
    CAPACITY_EXCEEDED = 0, 0x81;
    /// The queue is not there.
    INVALID_QUEUE = 1, 0x01;
    /// More events are asked for than the controller remembers.
    ASYNC_EVENT_LIMIT = 1, 0x05;
    /// The log page is not there.
    INVALID_LOG_PAGE = 1, 0x09;
    /// The feature has one value only.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e;
    /// The format of a Connect command is not supported.
    CONNECT_FORMAT = 1, 0x80;
    /// The controller is in use or cannot serve more hosts.
    CONNECT_BUSY = 1, 0x81;
    /// A parameter of a Connect command is wrong; the result says which.
    CONNECT_PARAMETERS = 1, 0x82;
    /// The host may not connect.
    CONNECT_HOST = 1, 0x84;
    /// Authentication comes first.
    AUTHENTICATION_REQUIRED = 1, 0x91;
    /// The namespace is not to be used on this path.
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

/// Do Not Retry.
const DNR: u16 = 1 << 14;

impl Status {
    /// The status with the advice not to repeat the command.
    #[must_use]
    pub const fn final_(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the host is advised not to repeat the command.
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// The status without the advice.
    #[must_use]
    pub const fn without_advice(self) -> Self {
        Self(self.0 & !DNR)
    }

    /// The last two bytes of a completion.
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Reads the last two bytes of a completion.
    pub const fn of_field(field: u16) -> Self {
        Self(field >> 1)
    }
}
