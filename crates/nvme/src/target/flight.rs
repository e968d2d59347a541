//! Commands in flight on a connection.
//!
//! A command has a place in a list, and its number is the tag of the requests made from it. A host
//! that has more commands in flight than its queue has places breaks the protocol. A command with
//! the identifier of one in flight is refused.

use super::request::Failure;
use crate::wire::status::Status;

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
pub(super) struct Flight {
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

impl Flight {
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

impl Flight {
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
pub(super) struct Flights {
    places: Vec<Option<Flight>>,
    /// The identifiers of the commands in these places, [`NONE`] where there is none.
    ids: Vec<u32>,
    free: Vec<u16>,
    most: usize,
}

impl Flights {
    /// Makes room for so many commands, as they come.
    pub(super) fn new(most: usize) -> Self {
        Self { places: Vec::new(), ids: Vec::new(), free: Vec::new(), most }
    }

    /// Gives a command a place.
    ///
    /// # Errors
    /// When there is none for it.
    pub(super) fn begin(&mut self, flight: Flight) -> Result<u16, NoPlace> {
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
    pub(super) fn get(&mut self, tag: u16) -> Option<&mut Flight> {
        self.places.get_mut(usize::from(tag))?.as_mut()
    }

    /// Ends a command.
    pub(super) fn end(&mut self, tag: u16) -> Option<Flight> {
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
