//! One connection, which carries a submission and a completion queue, as a pure state machine.
//!
//! The output begins with the request for the connection's parameters. Commands may follow once
//! [`Queue::agreed`] has the answer. Write data travels in the command's capsule when it fits.
//! Otherwise the controller requests it, and one PDU is added at a time to keep the output short.

use std::collections::VecDeque;

use super::command as pdu;
use super::command::{
    CAPSULE_RESPONSE, COMMON_BYTES, CONTROLLER_DATA, CONTROLLER_TERMINATES, Common, DATA_DIGEST,
    DIGEST_BYTES, HEADER_BYTES, HEADER_DIGEST, HostCommand, HostError, IC_BYTES, IC_RESPONSE, LAST,
    Payload, READY_TO_TRANSFER, SUCCESS, Status, TERMINATION_MAX_BYTES, admin, broken, checksum,
    u16_at, u32_at, u64_at,
};

/// In-capsule data in bytes that every controller accepts with admin and fabrics commands.
const ADMIN_CAPSULE_BYTES: u32 = 8192;

/// Low bits of a command identifier that index the table of commands. The upper bits count the uses
/// of the entry.
const PLACE_BITS: u32 = 12;

/// The options of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Number of the queue; 0 is the admin queue.
    pub id: u16,
    /// Entries of the submission queue, 2 to 4096. One entry stays empty.
    pub entries: u16,
    /// Protect headers with digests.
    pub header_digest: bool,
    /// Protect data with digests.
    pub data_digest: bool,
    /// Alignment of data from the controller (HPDA): multiples of 4 × (`alignment` + 1) bytes.
    pub alignment: u8,
    /// Maximum number of the controller's open requests for data per command, at least 1.
    pub transfers: u32,
    /// Make the controller report the head of the submission queue.
    pub flow_control: bool,
    /// Maximum data in an I/O command's capsule, in bytes.
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

/// The parameters of a connection that host and controller have negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// Alignment of data to the controller, in bytes.
    pub alignment: usize,
    /// Maximum data in one PDU to the controller, in bytes.
    pub longest_data: u32,
}

/// A finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Identifier that [`Queue::submit`] returned.
    pub id: u16,
    /// Name of the command.
    pub command: &'static str,
    /// Status that the controller returned.
    pub status: Status,
    /// First 8 bytes of the completion queue entry.
    pub result: u64,
    /// Data received from the controller.
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) name: &'static str,
    pub(super) payload: Payload,
    /// Data received so far.
    pub(super) data: Vec<u8>,
    /// Bytes of the payload that the capsule carried or the controller has requested.
    pub(super) asked: u32,
    /// Requests for data that are not yet answered in full.
    pub(super) transfers: u32,
    /// The controller has sent its last data (LAST flag), after which none may follow.
    pub(super) ended: bool,
}

/// Data that the controller has requested.
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

/// The state machine of one connection to a controller.
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
    /// Creates a queue. Its first output is the request for the connection's parameters.
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

    /// Returns the parameters of the connection; `None` before the controller has answered.
    pub fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Returns the number of submitted commands whose completion was not fetched yet.
    pub fn in_flight(&self) -> usize {
        self.places.len() - self.free.len() + self.finished.len()
    }

    /// Sets the maximum data in an I/O command's capsule, as Identify reports it.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.options.in_capsule_bytes = bytes;
    }

    /// Adds a command to the output. Returns the command's identifier.
    ///
    /// # Errors
    /// When the queue is full.
    ///
    /// # Panics
    /// Before the parameters are negotiated.
    pub fn submit(&mut self, command: HostCommand) -> Result<u16, HostError> {
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

    /// Returns the bytes to send. Call [`Queue::sent`] to remove those that were sent.
    pub fn output(&mut self) -> &[u8] {
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
            self.send_data();
        }
        &self.out[self.sent..]
    }

    /// Removes bytes that were sent from the output.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.out.len(), "no more is sent than there was");
    }

    /// Removes and returns the next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Adds the next PDU of the oldest data transfer to the output.
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

    /// Returns the command in flight with this identifier.
    pub(super) fn find(&mut self, id: u16) -> Option<&mut InFlight> {
        let place = self.places.get_mut(usize::from(id & ((1 << PLACE_BITS) - 1)))?;
        if place.uses << PLACE_BITS != id & !((1 << PLACE_BITS) - 1) {
            return None;
        }
        place.command.as_mut()
    }

    /// Completes the command in flight with this identifier and drops its data transfers.
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

/// Minimum of MAXH2CDATA that the specification allows.
const LEAST_DATA_BYTES: u32 = 4096;

/// Header fields of a data PDU in either direction, and of a request for data.
struct DataFields {
    id: u16,
    tag: u16,
    offset: u32,
    bytes: u32,
}

impl DataFields {
    fn parse(header: &[u8]) -> Self {
        Self {
            id: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            bytes: u32_at(header, 16),
        }
    }
}

impl Queue {
    /// Processes received bytes.
    ///
    /// # Errors
    /// When the controller violates the protocol or ends the connection. The queue cannot be used
    /// any more then.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(length) = self.whole(rest)? {
            let (one, more) = rest.split_at(length);
            self.take(one)?;
            rest = more;
        }
        let taken = input.len() - rest.len();
        self.input = input;
        self.input.drain(..taken);
        Ok(())
    }

    /// Checks as much of the header at the beginning of `bytes` as is there. Returns the PDU's
    /// length once the whole PDU is there.
    fn whole(&mut self, bytes: &[u8]) -> Result<Option<usize>, HostError> {
        if bytes.len() < COMMON_BYTES {
            return Ok(None);
        }
        let common = Common::parse(bytes);
        let Some(agreed) = self.agreed else {
            if ![IC_RESPONSE, CONTROLLER_TERMINATES].contains(&common.kind) {
                return Err(broken(format!("PDU type {:#04x} comes before ICResp", common.kind)));
            }
            return Self::bounded(bytes, common);
        };
        let digest = if agreed.header_digest { HEADER_DIGEST } else { 0 };
        let header_bytes = HEADER_BYTES + digest_bytes(agreed.header_digest);
        let known = match common.kind {
            CONTROLLER_TERMINATES => return Self::bounded(bytes, common),
            CAPSULE_RESPONSE | READY_TO_TRANSFER => digest,
            CONTROLLER_DATA => {
                let data = if agreed.data_digest { DATA_DIGEST } else { 0 };
                digest | data | common.flags & (LAST | SUCCESS)
            }
            kind => return Err(broken(format!("PDU type {kind:#04x} is not a controller's"))),
        };
        if common.flags != known {
            let kind = common.kind;
            return Err(broken(format!("FLAGS {:#04x} of PDU type {kind:#04x}", common.flags)));
        }
        if common.header_bytes != HEADER_BYTES {
            return Err(broken(format!("HLEN {}, not {HEADER_BYTES}", common.header_bytes)));
        }
        if common.kind != CONTROLLER_DATA && common.bytes != header_bytes {
            return Err(broken(format!("PLEN {} of PDU type {}", common.bytes, common.kind)));
        }
        if bytes.len() < header_bytes {
            return Ok(None);
        }
        if agreed.header_digest {
            let (told, is) = (u32_at(bytes, HEADER_BYTES), checksum(&bytes[..HEADER_BYTES]));
            if told != is {
                return Err(broken(format!("header digest {told:#010x}, not {is:#010x}")));
            }
        }
        if common.kind == CONTROLLER_DATA {
            self.check_data(bytes, common, agreed)?;
        }
        Ok((bytes.len() >= common.bytes).then_some(common.bytes))
    }

    /// Checks the lengths of a PDU that carries no digests. Returns the length once the whole PDU
    /// is there.
    fn bounded(bytes: &[u8], common: Common) -> Result<Option<usize>, HostError> {
        let lengths = match common.kind {
            IC_RESPONSE => IC_BYTES..=IC_BYTES,
            _ => HEADER_BYTES..=TERMINATION_MAX_BYTES,
        };
        if !lengths.contains(&common.bytes) {
            return Err(broken(format!("PLEN {} of PDU type {}", common.bytes, common.kind)));
        }
        if common.header_bytes != *lengths.start() {
            return Err(broken(format!("HLEN {}, not {}", common.header_bytes, lengths.start())));
        }
        Ok((bytes.len() >= common.bytes).then_some(common.bytes))
    }

    /// Checks that a data PDU continues a command's data without gap or overlap.
    fn check_data(
        &mut self,
        header: &[u8],
        common: Common,
        agreed: Agreed,
    ) -> Result<(), HostError> {
        let fields = DataFields::parse(header);
        let digests = (digest_bytes(agreed.header_digest), digest_bytes(agreed.data_digest));
        let alignment = 4 * (usize::from(self.options.alignment) + 1);
        let flow_control = self.options.flow_control;
        let command = self.find(fields.id).ok_or_else(|| {
            broken(format!("C2HData has CCCID {:#06x}, which is not in flight", fields.id))
        })?;
        let Payload::FromController(wanted) = command.payload else {
            let name = command.name;
            return Err(broken(format!("C2HData for {name}, which takes no data")));
        };
        let DataFields { offset, bytes, .. } = fields;
        let here = command.data.len() as u32;
        if offset != here {
            return Err(broken(format!("C2HData has DATAO {offset}, not {here}")));
        }
        if bytes == 0 || bytes > wanted - here {
            return Err(broken(format!("C2HData has DATAL {bytes} of {} to come", wanted - here)));
        }
        if common.data_offset < HEADER_BYTES + digests.0
            || !common.data_offset.is_multiple_of(alignment)
        {
            return Err(broken(format!("C2HData has PDO {}", common.data_offset)));
        }
        if common.bytes != common.data_offset + bytes as usize + digests.1 {
            return Err(broken(format!("C2HData has PLEN {}", common.bytes)));
        }
        let (last, success) = (common.flags & LAST != 0, common.flags & SUCCESS != 0);
        if command.ended || success && (!last || flow_control) || success && here + bytes < wanted {
            return Err(broken(format!("C2HData has FLAGS {:#04x}", common.flags)));
        }
        Ok(())
    }

    /// Processes a PDU whose header and digests were checked.
    fn take(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let common = Common::parse(bytes);
        match common.kind {
            IC_RESPONSE => self.take_agreement(bytes),
            CONTROLLER_TERMINATES => {
                Err(HostError::Terminated { status: u16_at(bytes, 8), info: u32_at(bytes, 10) })
            }
            CAPSULE_RESPONSE => self.take_response(bytes),
            READY_TO_TRANSFER => self.take_request(bytes),
            _ => self.take_data(bytes, common),
        }
    }

    fn take_agreement(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        if self.agreed.is_some() {
            return Err(broken("a second ICResp"));
        }
        let (version, alignment, digests) = (u16_at(bytes, 8), bytes[10], bytes[11]);
        let longest = u32_at(bytes, 12);
        let (header, data) = (digests & 1 != 0, digests & 2 != 0);
        if version != 0 {
            return Err(broken(format!("ICResp has PFV {version}")));
        }
        if alignment > 31 {
            return Err(broken(format!("ICResp has CPDA {alignment}")));
        }
        if (header, data) != (self.options.header_digest, self.options.data_digest) || digests > 3 {
            return Err(broken(format!("ICResp has DGST {digests}, which was not asked for")));
        }
        if longest < LEAST_DATA_BYTES || !longest.is_multiple_of(4) {
            return Err(broken(format!("ICResp has MAXH2CDATA {longest}")));
        }
        self.agreed = Some(Agreed {
            header_digest: header,
            data_digest: data,
            alignment: 4 * (usize::from(alignment) + 1),
            longest_data: longest,
        });
        Ok(())
    }

    fn take_response(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let entry = &bytes[COMMON_BYTES..];
        let (head, id) = (u16_at(entry, 8), u16_at(entry, 12));
        let status = Status(u16_at(entry, 14) >> 1);
        if self.options.flow_control && head >= self.options.entries {
            return Err(broken(format!("SQHD {head} of {} entries", self.options.entries)));
        }
        let command = self.find(id).ok_or_else(|| {
            broken(format!("CapsuleResp has CID {id:#06x}, which is not in flight"))
        })?;
        let (moved, whole) = match &command.payload {
            Payload::None => (0, 0),
            Payload::FromController(whole) => (command.data.len(), *whole as usize),
            Payload::ToController(data) => (command.asked as usize, data.len()),
        };
        let open = match &command.payload {
            Payload::FromController(_) => !command.ended,
            _ => command.transfers > 0,
        };
        if status.is_success() && (moved != whole || open) {
            let name = command.name;
            return Err(broken(format!("{name} succeeded with {moved} of {whole} bytes")));
        }
        self.finish(id, status, u64_at(entry, 0));
        Ok(())
    }

    fn take_request(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let most = self.options.transfers;
        let DataFields { id, tag, offset, bytes } = DataFields::parse(bytes);
        let command = self
            .find(id)
            .ok_or_else(|| broken(format!("R2T has CCCID {id:#06x}, which is not in flight")))?;
        let Payload::ToController(data) = &command.payload else {
            return Err(broken(format!("R2T for {}, which has no data", command.name)));
        };
        if offset != command.asked {
            return Err(broken(format!("R2T has R2TO {offset}, not {}", command.asked)));
        }
        let left = data.len() as u32 - offset;
        if bytes == 0 || bytes > left {
            return Err(broken(format!("R2T has R2TL {bytes} of {left} to come")));
        }
        if command.transfers >= most {
            return Err(broken(format!("{most} R2Ts are open, and another comes")));
        }
        command.asked += bytes;
        command.transfers += 1;
        self.transfers.push_back(Transfer { id, tag, offset, left: bytes });
        Ok(())
    }

    fn take_data(&mut self, bytes: &[u8], common: Common) -> Result<(), HostError> {
        let fields = DataFields::parse(bytes);
        let (from, length) = (common.data_offset, fields.bytes as usize);
        let data = &bytes[from..from + length];
        if common.flags & DATA_DIGEST != 0 {
            let (told, is) = (u32_at(bytes, from + length), checksum(data));
            if told != is {
                return Err(broken(format!("data digest {told:#010x}, not {is:#010x}")));
            }
        }
        let command = self.find(fields.id).expect("its header was checked");
        command.data.extend_from_slice(data);
        command.ended = common.flags & LAST != 0;
        if common.flags & SUCCESS != 0 {
            self.finish(fields.id, Status(0), 0);
        }
        Ok(())
    }
}

/// Returns the number of bytes that a digest adds; 0 without one.
fn digest_bytes(digest: bool) -> usize {
    if digest { DIGEST_BYTES } else { 0 }
}
