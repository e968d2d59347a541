//! Commands of 64 bytes, and completions of 16.

use super::status::Status;

/// Length of a command.
pub const COMMAND_BYTES: usize = 64;
/// Length of a completion.
pub const COMPLETION_BYTES: usize = 16;

/// Flags: the command describes its data by an SGL. NVMe over Fabrics allows nothing else.
pub const FLAG_SGL: u8 = 1 << 6;

/// A command. Fields that depend on the command are read by their double word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command(pub [u8; COMMAND_BYTES]);

impl Command {
    /// A command with an SGL descriptor, and zeros elsewhere.
    pub fn new(opcode: u8, id: u16) -> Self {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = opcode;
        bytes[1] = FLAG_SGL;
        bytes[2..4].copy_from_slice(&id.to_le_bytes());
        Self(bytes)
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Flags: fused operation, and the kind of data descriptor.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// The host's name for the command.
    pub fn id(&self) -> u16 {
        self.u16(2)
    }

    /// The namespace.
    pub fn namespace(&self) -> u32 {
        self.u32(4)
    }

    /// The type of a command of NVMe over Fabrics.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// The data descriptor.
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

    /// Sets the bytes from `at` on.
    #[must_use]
    pub fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// A double word, by its number (10 to 15 depend on the command).
    pub fn word(&self, number: usize) -> u32 {
        self.u32(4 * number)
    }

    /// The byte at `at`.
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// The number of 16 bits at `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    /// The number of 32 bits at `at`.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// The number of 64 bits at `at`.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// A data descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The offset in the capsule, if the data is there.
    pub address: u64,
    /// Bytes of data.
    pub length: u32,
    /// One of [`super::descriptor`].
    pub kind: u8,
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The result, which depends on the command.
    pub result: u64,
    /// The head of the submission queue, which tells a host of free places.
    pub queue_head: u16,
    /// The host's name for the command.
    pub id: u16,
    /// The status.
    pub status: Status,
}

impl Completion {
    /// The bytes that travel.
    pub fn to_bytes(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        bytes[0..8].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.queue_head.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.id.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.status.to_field().to_le_bytes());
        bytes
    }

    /// Reads the bytes that travel.
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
