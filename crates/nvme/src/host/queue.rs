//! One connection: a pair of submission and completion queue, as a pure state machine.
//!
//! Its output begins with the request for the connection's parameters; commands follow once
//! [`Queue::agreed`] has the answer. Data of a write travels in the command's capsule when it fits,
//! and otherwise as the controller asks for it, one PDU at a time, so that the output stays short.

use std::collections::VecDeque;

use super::command::{Command, Payload, admin};
use super::error::{HostError, Status};
use super::pdu;

/// In-capsule data that every controller takes with admin and fabrics commands.
const ADMIN_CAPSULE_BYTES: u32 = 8192;

/// Bits of a command id that are its place in the table; the others count the place's uses.
const PLACE_BITS: u32 = 12;

/// Options of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// The queue's number; 0 is the admin queue.
    pub id: u16,
    /// Entries of the submission queue, 2 to 4096; one stays empty.
    pub entries: u16,
    /// Protect headers by digests.
    pub header_digest: bool,
    /// Protect data by digests.
    pub data_digest: bool,
    /// HPDA: data from the controller begins at multiples of 4 bytes more than 4 times this.
    pub alignment: u8,
    /// Requests for data that the controller may have open for one command, at least 1.
    pub transfers: u32,
    /// Let the controller report the head of the submission queue.
    pub flow_control: bool,
    /// Longest data in an I/O command's capsule.
    pub in_capsule_bytes: u32,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            id: 0,
            entries: 32,
            header_digest: false,
            data_digest: false,
            alignment: 0,
            transfers: 1,
            flow_control: true,
            in_capsule_bytes: 0,
        }
    }
}

/// The parameters that the controller agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// The alignment of data to the controller, in bytes.
    pub alignment: usize,
    /// Longest data in one PDU to the controller.
    pub longest_data: u32,
}

/// A finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The id that [`Queue::submit`] returned.
    pub id: u16,
    /// The command's name.
    pub command: &'static str,
    /// The controller's status.
    pub status: Status,
    /// The first 8 bytes of the entry.
    pub result: u64,
    /// The data from the controller, as much as came.
    pub data: Vec<u8>,
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) name: &'static str,
    pub(super) payload: Payload,
    /// Data that came.
    pub(super) data: Vec<u8>,
    /// Bytes of the payload that the controller has asked for, or that were in the capsule.
    pub(super) asked: u32,
    /// Requests for data that are not answered in full.
    pub(super) transfers: u32,
    /// The controller has ended the data and with it the command.
    pub(super) ended: bool,
}

/// Data that the controller has asked for.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: u16,
    pub(super) tag: u16,
    pub(super) offset: u32,
    pub(super) left: u32,
}

#[derive(Debug, Default)]
struct Place {
    uses: u16,
    command: Option<InFlight>,
}

/// One connection to a controller.
#[derive(Debug)]
pub struct Queue {
    pub(super) options: QueueOptions,
    pub(super) agreed: Option<Agreed>,
    out: Vec<u8>,
    sent: usize,
    pub(super) input: Vec<u8>,
    places: Vec<Place>,
    free: Vec<u16>,
    pub(super) transfers: VecDeque<Transfer>,
    pub(super) finished: VecDeque<Completion>,
}

impl Queue {
    /// A queue whose output is the request for the connection's parameters.
    ///
    /// # Panics
    /// When an option is outside of its range.
    pub fn new(options: QueueOptions) -> Self {
        assert!((2..=1 << PLACE_BITS).contains(&options.entries), "2 to 4096 entries");
        assert!(options.alignment < 32, "the alignment is less than 32");
        let mut header = [0; pdu::IC_BYTES - pdu::COMMON_BYTES];
        header[2] = options.alignment;
        header[3] = u8::from(options.header_digest) | u8::from(options.data_digest) << 1;
        let transfers = options.transfers.checked_sub(1).expect("at least one transfer");
        header[4..8].copy_from_slice(&transfers.to_le_bytes());
        let mut out = Vec::new();
        pdu::put(&mut out, pdu::IC_REQUEST, 0, &header, &[], (false, false), 1);
        Self {
            options,
            agreed: None,
            out,
            sent: 0,
            input: Vec::new(),
            places: (0..options.entries - 1).map(|_| Place::default()).collect(),
            free: (0..options.entries - 1).rev().collect(),
            transfers: VecDeque::new(),
            finished: VecDeque::new(),
        }
    }

    /// The parameters of the connection, once the controller has agreed to them.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// The number of commands that are submitted and whose completion is not fetched yet.
    pub fn in_flight(&self) -> usize {
        self.places.len() - self.free.len() + self.finished.len()
    }

    /// Sets the longest data in an I/O command's capsule, which Identify tells.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.options.in_capsule_bytes = bytes;
    }

    /// Adds a command to the output. Returns its id.
    ///
    /// # Errors
    /// When the queue is full.
    ///
    /// # Panics
    /// Before the parameters are agreed on.
    pub fn submit(&mut self, command: Command) -> Result<u16, HostError> {
        let agreed = self.agreed.expect("commands follow the agreement");
        let place = self.free.pop().ok_or(HostError::QueueFull(self.places.len()))?;
        let Place { uses, command: here } = &mut self.places[usize::from(place)];
        *uses = uses.wrapping_add(1);
        let id = *uses << PLACE_BITS | place;

        let capsule = if self.options.id == 0 || command.encode(0, false)[0] == admin::FABRICS {
            ADMIN_CAPSULE_BYTES
        } else {
            self.options.in_capsule_bytes
        };
        let data = match &command.payload {
            Payload::ToController(data) if data.len() <= capsule as usize => &data[..],
            _ => &[],
        };
        let entry = command.encode(id, !data.is_empty());
        let digests = (agreed.header_digest, agreed.data_digest);
        pdu::put(&mut self.out, pdu::CAPSULE_COMMAND, 0, &entry, data, digests, agreed.alignment);
        let asked = data.len() as u32;
        *here = Some(InFlight {
            name: command.name,
            payload: command.payload,
            data: Vec::new(),
            asked,
            transfers: 0,
            ended: false,
        });
        Ok(id)
    }

    /// Bytes to send. [`Queue::sent`] takes them away.
    pub fn output(&mut self) -> &[u8] {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            self.send_data();
        }
        &self.out[self.sent..]
    }

    /// Takes sent bytes away.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.out.len(), "no more is sent than there was");
    }

    /// The next finished command.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Adds the next PDU of the first transfer to the output.
    fn send_data(&mut self) {
        let Some(transfer) = self.transfers.front_mut() else { return };
        let agreed = self.agreed.expect("transfers follow the agreement");
        let place = &mut self.places[usize::from(transfer.id & ((1 << PLACE_BITS) - 1))];
        let command = place.command.as_mut().expect("a transfer ends before its command");
        let Payload::ToController(data) = &command.payload else {
            unreachable!("only data to the controller is asked for")
        };
        let length = transfer.left.min(agreed.longest_data);
        let mut header = [0; pdu::HEADER_BYTES - pdu::COMMON_BYTES];
        header[..2].copy_from_slice(&transfer.id.to_le_bytes());
        header[2..4].copy_from_slice(&transfer.tag.to_le_bytes());
        header[4..8].copy_from_slice(&transfer.offset.to_le_bytes());
        header[8..12].copy_from_slice(&length.to_le_bytes());
        let range = transfer.offset as usize..(transfer.offset + length) as usize;
        let last = length == transfer.left;
        pdu::put(
            &mut self.out,
            pdu::HOST_DATA,
            if last { pdu::LAST } else { 0 },
            &header,
            &data[range],
            (agreed.header_digest, agreed.data_digest),
            agreed.alignment,
        );
        transfer.offset += length;
        transfer.left -= length;
        if last {
            command.transfers -= 1;
            self.transfers.pop_front();
        }
    }

    /// The command in flight with an id.
    pub(super) fn find(&mut self, id: u16) -> Option<&mut InFlight> {
        let place = self.places.get_mut(usize::from(id & ((1 << PLACE_BITS) - 1)))?;
        if place.uses << PLACE_BITS != id & !((1 << PLACE_BITS) - 1) {
            return None;
        }
        place.command.as_mut()
    }

    /// Ends a command that [`Queue::find`] finds. Its transfers end with it.
    pub(super) fn finish(&mut self, id: u16, status: Status, result: u64) {
        let place = id & ((1 << PLACE_BITS) - 1);
        let command = self.places[usize::from(place)].command.take();
        let command = command.expect("only a command in flight finishes");
        self.free.push(place);
        self.transfers.retain(|transfer| transfer.id != id);
        self.finished.push_back(Completion {
            id,
            command: command.name,
            status,
            result,
            data: command.data,
        });
    }
}
