//! Submission queue entries.
//!
//! Source: NVMe Base Specification, "Submission Queue Entry", "Fabrics Command Set"; NVM Command
//! Set Specification for I/O commands.

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

/// Features.
pub mod feature {
    #![allow(missing_docs)]
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const ASYNC_EVENTS: u8 = 0x0B;
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
}

/// Log pages.
pub mod log_page {
    #![allow(missing_docs)]
    pub const HEALTH: u8 = 0x02;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const COMMANDS_SUPPORTED: u8 = 0x05;
    pub const DISCOVERY: u8 = 0x70;
}

/// Offsets of a controller's properties.
pub mod attribute {
    #![allow(missing_docs)]
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1C;
}

/// PSDT: an SGL for data, a contiguous buffer for metadata.
const SGL: u8 = 0x40;

/// The data that a command moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// No data.
    None,
    /// Bytes from the controller.
    FromController(u32),
    /// Bytes to the controller.
    ToController(Vec<u8>),
}

/// A command without its id and its SGL, which the queue fills in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    entry: [u8; 64],
    /// The command's data.
    pub payload: Payload,
    /// The command's name in errors.
    pub name: &'static str,
}

impl Command {
    /// A command with zeroes in all fields but its opcode and namespace.
    pub fn new(name: &'static str, opcode: u8, namespace: u32, payload: Payload) -> Self {
        let mut entry = [0; 64];
        entry[0] = opcode;
        entry[1] = SGL;
        entry[4..8].copy_from_slice(&namespace.to_le_bytes());
        Self { entry, payload, name }
    }

    /// A fabrics command.
    pub fn fabrics(name: &'static str, kind: u8, payload: Payload) -> Self {
        Self::new(name, admin::FABRICS, kind.into(), payload)
    }

    /// Sets command doubleword `number`, 10 to 15 as a rule.
    #[must_use]
    pub fn dword(self, number: usize, value: u32) -> Self {
        self.bytes(4 * number, &value.to_le_bytes())
    }

    /// Sets two command doublewords.
    #[must_use]
    pub fn dwords(self, number: usize, value: u64) -> Self {
        self.bytes(4 * number, &value.to_le_bytes())
    }

    /// Sets bytes of the entry, for whatever has no name.
    #[must_use]
    pub fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.entry[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Connect for queue `queue` of `entries` entries.
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

    /// Property Get of 4 bytes, or of 8.
    pub fn property_get(offset: u32, wide: bool) -> Self {
        Self::fabrics("Property Get", fabrics::PROPERTY_GET, Payload::None)
            .bytes(40, &[wide.into()])
            .dword(11, offset)
    }

    /// Property Set of 4 bytes.
    pub fn property_set(offset: u32, value: u32) -> Self {
        Self::fabrics("Property Set", fabrics::PROPERTY_SET, Payload::None)
            .dword(11, offset)
            .dwords(12, value.into())
    }

    /// Identify: the structure of `cns`, of the namespace or from the namespace id on.
    pub fn identify(cns: u8, namespace: u32) -> Self {
        Self::new("Identify", admin::IDENTIFY, namespace, Payload::FromController(4096))
            .dword(10, cns.into())
    }

    /// Set Features.
    pub fn set_features(feature: u8, value: u32) -> Self {
        Self::new("Set Features", admin::SET_FEATURES, 0, Payload::None)
            .dword(10, feature.into())
            .dword(11, value)
    }

    /// Get Log Page: `bytes`, a multiple of 4, from `offset` on.
    pub fn get_log_page(page: u8, namespace: u32, offset: u64, bytes: u32) -> Self {
        let last = bytes / 4 - 1;
        let payload = Payload::FromController(bytes);
        Self::new("Get Log Page", admin::GET_LOG_PAGE, namespace, payload)
            .dword(10, u32::from(page) | last << 16)
            .dword(11, last >> 16)
            .dwords(12, offset)
    }

    /// The entry as it is sent: with an id, and an SGL that places data at the beginning of the
    /// capsule or lets the transport carry it.
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
