//! Numbers and layouts of NVMe over TCP: messages between host and controller, commands, and what
//! commands transfer.
//!
//! All numbers travel in little-endian order. Sources: NVM Express Base 2.0, NVM Command Set 1.0
//! and TCP Transport 1.0.

pub mod code;
pub mod command;
pub mod pdu;
pub mod status;

/// The port IANA assigned to NVMe over TCP.
pub const PORT: u16 = 4420;
/// The port IANA assigned to discovery over TCP.
pub const DISCOVERY_PORT: u16 = 8009;
/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest name of a host or a subsystem.
pub const NQN_MAX_BYTES: usize = 223;
/// Length of the field that holds a name; the name ends with a zero.
pub const NQN_FIELD_BYTES: usize = 256;
/// Data of a Connect command: [`connect`] has its places.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Data of every Identify command.
pub const IDENTIFY_BYTES: usize = 4096;
/// The namespace identifier that means all namespaces.
pub const ALL_NAMESPACES: u32 = u32::MAX;
/// The controller identifier with which a host asks for any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Places in the data of a Connect command.
pub mod connect {
    use std::ops::Range;

    /// Identifier of the host.
    pub const HOST_ID: Range<usize> = 0..16;
    /// Identifier of the controller.
    pub const CONTROLLER_ID: Range<usize> = 16..18;
    /// Name of the subsystem.
    pub const SUBSYSTEM_NQN: Range<usize> = 256..512;
    /// Name of the host.
    pub const HOST_NQN: Range<usize> = 512..768;
    /// Attribute: the host keeps no count of the submission queue's free places.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
    /// Result: the host has to authenticate before other commands.
    pub const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
}

/// Registers of a controller, by their offsets.
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// Configuration: enable.
    pub const CC_ENABLE: u32 = 1 << 0;
    /// Configuration: the kind of shutdown; zero for none.
    pub const CC_SHUTDOWN: u32 = 3 << 14;
    /// Status: ready.
    pub const CSTS_READY: u32 = 1 << 0;
    /// Status: fatal.
    pub const CSTS_FATAL: u32 = 1 << 1;
    /// Status: the shutdown is complete.
    pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;
}

/// Types of descriptors of data, in the last byte of a command's descriptor.
pub mod descriptor {
    /// Data in the capsule, at an offset.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Data that the transport carries.
    pub const TRANSPORT: u8 = 0x5a;
}
