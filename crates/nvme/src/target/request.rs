//! Requests to namespaces, and their answers.

use super::message::Bytes;
use crate::wire::Status;

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read the range and send its data.
    Read,
    /// Read the range, but send nothing.
    Verify,
    /// Write the payload to the range.
    Write {
        /// Answer only once the write would survive a power cut.
        durable: bool,
    },
    /// Compare the range with a payload. No data is sent.
    Compare,
    /// Make all writes answered so far survive a power cut.
    Flush,
    /// Discard the content of the range.
    Deallocate,
    /// Make the range read as zeros.
    WriteZeroes {
        /// Answer only once the zeros would survive a power cut.
        durable: bool,
        /// The range's space may be freed.
        deallocate: bool,
    },
}

impl RequestKind {
    /// Returns whether the host sends a payload with the request.
    pub fn has_payload(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Compare)
    }

    /// Returns whether the request leaves the volume unchanged.
    pub(super) fn only_reads(self) -> bool {
        matches!(self, Self::Read | Self::Verify | Self::Compare)
    }
}

/// A request to a namespace. Its range lies within the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number by which the connection identifies the command. All requests of a command have the
    /// same tag.
    pub tag: u16,
    /// Index of the namespace's volume.
    pub volume: u16,
    /// Operation to perform.
    pub kind: RequestKind,
    /// Offset of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
    /// The payload follows the request immediately in the input, because the capsule carries it.
    pub in_capsule: bool,
}

/// The reason for which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A device failed.
    Device,
    /// There is no space for the data.
    NoSpace,
    /// The range exceeds the volume, which has shrunk since the check.
    OutOfRange,
    /// The volume differs from the payload of a [`RequestKind::Compare`].
    Differs,
    /// The device does not support the operation.
    Unsupported,
}

/// The answer to a command: bytes to send, with the data of a read between them if there is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Bytes to send before the data.
    pub before: Bytes,
    /// The data of the read follows `before`.
    pub payload: bool,
    /// Bytes to send after the data.
    pub after: Bytes,
}

/// The state of the payload that a command needs from its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload {
    /// The command needs no payload from the transport, or has all of it.
    None,
    /// The host waits for the controller to request the payload.
    Unasked,
    /// The payload was requested. The host may still send this number of bytes.
    Asked(u32),
}

/// The state of a command in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommandState {
    /// The host's identifier of the command.
    pub(super) id: u16,
    /// The command returns the data of a read.
    pub(super) reads: bool,
    /// Status of the command if a device fails.
    pub(super) fault: Status,
    /// Bytes of data that the command transfers.
    pub(super) length: u32,
    pub(super) payload: Payload,
    /// A part of the payload was damaged in transit.
    pub(super) damaged: bool,
    /// Identifier of the namespace that the command addresses.
    pub(super) namespace: u32,
    /// The command needs the right to write.
    pub(super) writes: bool,
    /// The caller has the command's requests with their payload, so that it may be carried out.
    pub(super) started: bool,
    /// A reservation has forbidden the command since it was started.
    pub(super) is_straggler: bool,
    /// Number of requests that are not yet answered or not yet issued.
    pub(super) pending: u32,
    /// Status of the command: that of its first request that failed.
    pub(super) status: Status,
}

impl CommandState {
    /// Creates the state of a command that writes and has started.
    pub(super) fn new(id: u16, namespace: u32, length: u32) -> Self {
        Self {
            id,
            namespace,
            writes: true,
            started: true,
            is_straggler: false,
            reads: false,
            fault: Status::WRITE_FAULT,
            length,
            payload: Payload::None,
            damaged: false,
            pending: 1,
            status: Status::SUCCESS,
        }
    }

    /// Returns the status of the command when a request fails for this reason.
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

/// Marks an entry without a command.
const NONE: u32 = u32::MAX;

/// Reason why a command cannot be put in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The queue is full.
    Full,
    /// Another command in flight has its identifier.
    SameId,
}

/// The table of a queue's commands in flight.
#[derive(Debug, Default)]
pub(super) struct Commands {
    places: Vec<Option<CommandState>>,
    /// Identifier of the command in each entry, or [`NONE`].
    ids: Vec<u32>,
    free: Vec<u16>,
    most: usize,
}

impl Commands {
    /// Creates a table for at most `most` commands. Memory grows on demand.
    pub(super) fn new(most: usize) -> Self {
        Self { places: Vec::new(), ids: Vec::new(), free: Vec::new(), most }
    }

    /// Adds a command and returns its tag.
    ///
    /// # Errors
    /// When the table is full or has a command with the same identifier.
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

    pub(super) fn get(&mut self, tag: u16) -> Option<&mut CommandState> {
        self.places.get_mut(usize::from(tag))?.as_mut()
    }

    /// Iterates over all commands.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CommandState> {
        self.places.iter_mut().flatten()
    }

    /// Removes a command from the table.
    pub(super) fn end(&mut self, tag: u16) -> Option<CommandState> {
        let flight = self.places.get_mut(usize::from(tag))?.take()?;
        self.ids[usize::from(tag)] = NONE;
        self.free.push(tag);
        Some(flight)
    }
}
