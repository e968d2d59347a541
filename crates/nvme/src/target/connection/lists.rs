//! Lists of ranges that do not come in their command's capsule.
//!
//! The host is asked for one list at a time, so that a queue full of them takes the memory of one.

use super::{Connection, Event, State, Violation};
use crate::target::IN_CAPSULE_MAX_BYTES;
use crate::target::data::Sink;
use crate::target::flight::{Flight, Payload};
use crate::target::io;
use crate::wire::command::Command;
use crate::wire::status::Status;

/// A command that needs its list.
#[derive(Debug)]
pub(super) struct List {
    tag: u16,
    command: Command,
    /// The bytes that have come.
    data: Vec<u8>,
}

impl Connection {
    /// Begins a command whose list is to be asked for.
    pub(super) fn ask_for_list(
        &mut self,
        command: &Command,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let id = command.id();
        if bytes > IN_CAPSULE_MAX_BYTES {
            return Ok(Some(self.refuse(id, 0, Status::SGL_LENGTH_INVALID.final_(), out)));
        }
        let flight = Flight { payload: Payload::Unasked, ..Flight::new(id, bytes as u32) };
        let tag = match self.flights.begin(flight) {
            Ok(tag) => tag,
            Err(why) => return self.no_place(id, why, out).map(Some),
        };
        self.lists.push_back(List { tag, command: *command, data: Vec::new() });
        if self.lists.len() == 1 {
            self.ready(tag, out);
        }
        Ok(None)
    }

    /// The sink of data with this tag, if that is part of a list.
    pub(super) fn list_sink(&mut self, tag: u16) -> Option<Sink> {
        let list = self.lists.front_mut().filter(|list| list.tag == tag)?;
        Some(Sink::List(std::mem::take(&mut list.data)))
    }

    /// A message has brought the list up to this.
    pub(super) fn list_part(
        &mut self,
        data: Vec<u8>,
        is_intact: Option<bool>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let list = self.lists.front_mut().expect("data came for it");
        let flight = self.flights.get(list.tag).expect("it waits for its list");
        flight.damaged |= is_intact == Some(false);
        if flight.payload != Payload::None {
            list.data = data;
            return Ok(None);
        }
        let (tag, command, is_damaged) = (list.tag, list.command, flight.damaged);
        self.lists.pop_front();
        if let Some(next) = self.lists.front() {
            self.ready(next.tag, out);
        }
        let pieces = match is_damaged {
            true => Err(Status::TRANSIENT_TRANSPORT_ERROR), // the host may send it again
            false => io::ranges(&command, &data, &self.namespaces),
        };
        match pieces {
            Ok(pieces) => {
                self.state = State::Issue(tag, pieces);
                Ok(None)
            }
            Err(status) => {
                let flight = self.flights.end(tag).expect("it was there");
                Ok(Some(self.refuse(flight.id, 0, status, out)))
            }
        }
    }
}
