//! Numbers of commands, and of what they name.

/// Commands of an admin queue.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// A command of NVMe over Fabrics, named by its [`super::fabrics`] type.
    pub const FABRICS: u8 = 0x7f;
}

/// Types of commands of NVMe over Fabrics.
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Commands of an I/O queue.
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
}

/// Structures of an Identify command.
pub mod identify {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// The list of active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// The identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, as its command set describes it.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// The controller, as a command set describes it.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
}

/// Types of identifiers of a namespace.
pub mod identifier {
    /// A globally unique identifier of 16 bytes.
    pub const NGUID: u8 = 2;
    /// A UUID.
    pub const UUID: u8 = 3;
    /// The number of the command set.
    pub const COMMAND_SET: u8 = 4;
}

/// Features.
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER: u8 = 0x02;
    /// Volatile Write Cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Write Atomicity.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Asynchronous events: namespaces have come, gone or changed. Also a bit of Identify's OAES.
    pub const NAMESPACE_NOTICES: u32 = 1 << 8;
    /// Asynchronous events: the access to namespaces has changed. Also a bit of Identify's OAES.
    pub const ANA_NOTICES: u32 = 1 << 11;
    /// Asynchronous events: the discovery log has changed. Also a bit of Identify's OAES.
    pub const DISCOVERY_NOTICES: u32 = 1 << 31;
}

/// Log pages.
pub mod log {
    /// Errors.
    pub const ERROR: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands that are supported, and their effects.
    pub const COMMANDS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}
