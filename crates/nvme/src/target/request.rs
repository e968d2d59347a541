//! Requests to namespaces, and the answers to them.

use super::message::Bytes;
use crate::wire::Status;

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read.
    Read,
    /// Read, and send nothing.
    Verify,
    /// Write.
    Write {
        /// Answer once it would survive a power cut.
        durable: bool,
    },
    /// Compare the volume with a payload, and send nothing.
    Compare,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// Discard the content.
    Deallocate,
    /// Make the range read as zeros.
    WriteZeroes {
        /// Answer once it would survive a power cut.
        durable: bool,
        /// The space may be freed.
        deallocate: bool,
    },
}

impl RequestKind {
    /// Returns whether the host sends a payload.
    pub fn has_payload(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Compare)
    }

    /// Returns whether the request changes nothing.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, Self::Read | Self::Verify | Self::Compare)
    }
}

/// A request to a namespace, whose range lies within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The connection's name for it. Parts of one command have the same.
    pub tag: u16,
    /// The namespace's volume.
    pub volume: u16,
    /// The type.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// The payload of the write or the comparison follows at once, without being asked for.
    pub in_capsule: bool,
}

/// The reason for which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A device failed.
    Device,
    /// There is no space for the data.
    NoSpace,
    /// The range is not within the volume any more.
    OutOfRange,
    /// The volume differs from the payload of a [`RequestKind::Compare`].
    Differs,
    /// A device cannot do that.
    Unsupported,
}

/// The answer to a command: bytes, perhaps with the data of a read between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The bytes before the data.
    pub before: Bytes,
    /// The data of the read is to be sent.
    pub payload: bool,
    /// The bytes behind the data.
    pub after: Bytes,
}

/// The state of the data that a command needs from its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// It needs none, or has it in its capsule.
    None,
    /// The host waits to be asked for it.
    Unasked,
    /// The host may still send so many bytes.
    Asked(u32),
}

/// The part of a command that its answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommandState {
    /// The host's name for the command.
    pub(super) id: u16,
    /// The command returns the data of a read.
    pub(super) reads: bool,
    /// The status if a device fails.
    pub(super) fault: Status,
    /// Bytes of its data.
    pub(super) length: u32,
    pub(super) payload: Payload,
    /// Some of its data was damaged on its way.
    pub(super) damaged: bool,
    /// Requests that are not answered, and those still to be made.
    pub(super) pending: u32,
    /// The first failure of a request.
    pub(super) status: Status,
}

impl CommandState {
    pub(super) fn new(id: u16, length: u32) -> Self {
        Self {
            id,
            reads: false,
            fault: Status::WRITE_FAULT,
            length,
            payload: Payload::None,
            damaged: false,
            pending: 1,
            status: Status::SUCCESS,
        }
    }
}

impl CommandState {
    /// The status if a request failed.
    pub(super) fn status_of(&self, failure: Failure) -> Status {
        let status = match failure {
            Failure::Device => self.fault,
            Failure::Differs => Status::COMPARE_FAILURE,
            Failure::NoSpace => Status::CAPACITY_EXCEEDED,
            Failure::OutOfRange => Status::LBA_OUT_OF_RANGE,
            Failure::Unsupported => Status::INVALID_FIELD,
        };
        status.final_()
    }
}

/// No identifier.
const NONE: u32 = u32::MAX;

/// Why a command gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// All are taken.
    Full,
    /// Another command in flight has its identifier.
    SameId,
}

/// All commands in flight.
#[derive(Debug, Default)]
pub(super) struct Commands {
    places: Vec<Option<CommandState>>,
    /// The identifiers of the commands in these places, [`NONE`] where there is none.
    ids: Vec<u32>,
    free: Vec<u16>,
    most: usize,
}

impl Commands {
    /// Makes room for so many commands, as they come.
    pub(super) fn new(most: usize) -> Self {
        Self { places: Vec::new(), ids: Vec::new(), free: Vec::new(), most }
    }

    /// Gives a command a place.
    ///
    /// # Errors
    /// When there is none for it.
    pub(super) fn begin(&mut self, flight: CommandState) -> Result<u16, NoPlace> {
        let id = u32::from(flight.id);
        if self.has(flight.id) {
            return Err(NoPlace::SameId);
        }
        if let Some(tag) = self.free.pop() {
            self.ids[usize::from(tag)] = id;
            self.places[usize::from(tag)] = Some(flight);
            return Ok(tag);
        }
        if self.places.len() >= self.most {
            return Err(NoPlace::Full);
        }
        self.ids.push(id);
        self.places.push(Some(flight));
        Ok((self.places.len() - 1) as u16)
    }

    /// Returns whether a command in flight has this identifier.
    pub(super) fn has(&self, id: u16) -> bool {
        self.ids.contains(&u32::from(id))
    }

    /// Returns the command with this tag.
    pub(super) fn get(&mut self, tag: u16) -> Option<&mut CommandState> {
        self.places.get_mut(usize::from(tag))?.as_mut()
    }

    /// Ends a command.
    pub(super) fn end(&mut self, tag: u16) -> Option<CommandState> {
        let flight = self.places.get_mut(usize::from(tag))?.take()?;
        self.ids[usize::from(tag)] = NONE;
        self.free.push(tag);
        Some(flight)
    }

    /// The number of commands in flight.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
