//! The headers of messages, checked before anything else.

use super::{Connection, Event, Role, State, Violation};
use crate::target::data::{Incoming, Sink};
use crate::target::flight::Payload;
use crate::target::message::{Parameters, digest};
use crate::target::{IN_CAPSULE_MAX_BYTES, MESSAGE_MAX_BYTES};
use crate::wire::command::Command;
use crate::wire::pdu::{
    COMMAND_CAPSULE_BYTES, DATA_BYTES, DIGEST_BYTES, Data, HEADER_BYTES, Header, INITIALIZE_BYTES,
    Initialize, TERMINATE_BYTES, TERMINATE_MAX_BYTES, fatal, flag, kind,
};

/// Offsets of fields in a header.
const FLAGS: u32 = 1;
const HEADER_LENGTH: u32 = 2;
const DATA_OFFSET: u32 = 3;
const TOTAL_LENGTH: u32 = 4;

/// Bytes of a header, with its digest, of which these are the first.
pub(super) fn needed(bytes: &[u8], parameters: &Parameters) -> Result<usize, Violation> {
    let Some(first) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(HEADER_BYTES) };
    let header = Header::of_bytes(first);
    let is_initialized = parameters.data_alignment > 0;
    let expected = match (header.kind, is_initialized) {
        (kind::INITIALIZE_REQUEST, false) => INITIALIZE_BYTES,
        (kind::COMMAND, true) => COMMAND_CAPSULE_BYTES,
        (kind::HOST_DATA, true) => DATA_BYTES,
        (kind::HOST_TERMINATES, _) => TERMINATE_BYTES,
        (kind::INITIALIZE_REQUEST | kind::COMMAND | kind::HOST_DATA, _) => {
            return Err(Violation::Sequence(header.kind));
        }
        _ => return Err(Violation::Field(0)),
    };
    if usize::from(header.header_bytes) != expected {
        return Err(Violation::Field(HEADER_LENGTH));
    }
    let total = header.total_bytes as usize;
    let has_digest = matches!(header.kind, kind::COMMAND | kind::HOST_DATA);
    let whole = if has_digest { parameters.with_digest(expected) } else { expected };
    if has_digest && (header.flags & flag::HEADER_DIGEST != 0) != parameters.header_digest {
        return Err(Violation::Field(FLAGS));
    }
    let is_long_enough = match header.kind {
        kind::INITIALIZE_REQUEST => total == expected,
        kind::HOST_TERMINATES => (TERMINATE_BYTES..=TERMINATE_MAX_BYTES).contains(&total),
        kind::HOST_DATA => total > whole,
        _ => total >= whole,
    };
    if !is_long_enough {
        return Err(Violation::Field(TOTAL_LENGTH));
    }
    Ok(whole)
}

/// The reason and the information that the host is told; `None` when it is not told.
pub(super) fn reason(violation: Violation) -> Option<(u16, u32)> {
    Some(match violation {
        Violation::Field(at) => (fatal::INVALID_FIELD, at),
        Violation::Sequence(_) | Violation::QueueOverrun | Violation::QueueTaken => {
            (fatal::SEQUENCE, 0)
        }
        Violation::HeaderDigest(received) => (fatal::HEADER_DIGEST, received),
        Violation::OutOfRange => (fatal::OUT_OF_RANGE, 0),
        Violation::LimitExceeded => (fatal::LIMIT_EXCEEDED, 0),
        Violation::NotAllowed
        | Violation::NotAuthenticated
        | Violation::Terminated(_)
        | Violation::Truncated => return None,
    })
}

impl Connection {
    /// Acts on a complete header.
    pub(super) fn message(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Violation> {
        let header = Header::of_bytes(bytes.first_chunk().expect("a header has these"));
        let plain = usize::from(header.header_bytes);
        if let Some(received) = bytes[plain..].first_chunk::<DIGEST_BYTES>() {
            let received = u32::from_le_bytes(*received);
            if digest(&bytes[..plain]) != received {
                return Err(Violation::HeaderDigest(received));
            }
        }
        match header.kind {
            kind::INITIALIZE_REQUEST => {
                self.initialize(bytes.first_chunk().expect("its length was checked"), out)?;
                Ok(Some(Event::Nothing))
            }
            kind::COMMAND => {
                let data = self.data_bytes(&header, bytes.len())?;
                if data > IN_CAPSULE_MAX_BYTES {
                    return Err(Violation::LimitExceeded);
                }
                let command = bytes[HEADER_BYTES..COMMAND_CAPSULE_BYTES].try_into();
                let command = Command(command.expect("its length was checked"));
                self.command(&command, data, out)
            }
            kind::HOST_DATA => {
                let data = self.data_bytes(&header, bytes.len())?;
                let fields = Data::of_bytes(bytes.first_chunk().expect("its length was checked"));
                self.host_data(&header, &fields, data)?;
                Ok(None)
            }
            _ => {
                let reason = u16::from_le_bytes([bytes[8], bytes[9]]);
                Err(Violation::Terminated(reason))
            }
        }
    }

    /// Returns the bytes of data in a message, whose header ends at `end`.
    fn data_bytes(&self, header: &Header, end: usize) -> Result<usize, Violation> {
        let total = header.total_bytes as usize;
        if total == end {
            return Ok(0);
        }
        let digest_bytes = self.parameters.data_digest_bytes();
        if (header.flags & flag::DATA_DIGEST != 0) != (digest_bytes > 0) {
            return Err(Violation::Field(FLAGS));
        }
        // Data needs no padding, because all headers end at a double word.
        if usize::from(header.data_offset) != end {
            return Err(Violation::Field(DATA_OFFSET));
        }
        match total.checked_sub(end + digest_bytes) {
            Some(0) | None => Err(Violation::Field(TOTAL_LENGTH)),
            Some(data) => Ok(data),
        }
    }

    fn initialize(
        &mut self,
        bytes: &[u8; INITIALIZE_BYTES],
        out: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let asked = Initialize::of_bytes(bytes);
        if asked.format != 0 {
            return Err(Violation::Field(8));
        }
        if asked.data_alignment > 31 {
            return Err(Violation::Field(10));
        }
        self.parameters = Parameters {
            header_digest: asked.digests & 1 != 0,
            data_digest: asked.digests & 2 != 0,
            data_alignment: 4 * (usize::from(asked.data_alignment) + 1),
        };
        let digests = asked.digests & 3;
        let most = MESSAGE_MAX_BYTES;
        let granted = Initialize { format: 0, data_alignment: 0, digests, most };
        out.extend_from_slice(&granted.to_bytes(kind::INITIALIZE_RESPONSE));
        Ok(())
    }

    /// Data that was asked for.
    fn host_data(&mut self, header: &Header, fields: &Data, data: usize) -> Result<(), Violation> {
        if !matches!(self.role, Role::Io(_)) {
            return Err(Violation::Sequence(header.kind));
        }
        if fields.length as usize != data {
            return Err(Violation::Field(16));
        }
        if fields.length > MESSAGE_MAX_BYTES {
            return Err(Violation::LimitExceeded);
        }
        let Some(flight) = self.flights.get(fields.tag) else { return Err(Violation::Field(10)) };
        let Payload::Asked(missing) = flight.payload else { return Err(Violation::Field(10)) };
        if flight.id != fields.command {
            return Err(Violation::Field(8));
        }
        if fields.offset != flight.length - missing || fields.length > missing {
            return Err(Violation::OutOfRange);
        }
        let missing = missing - fields.length;
        if (header.flags & flag::LAST != 0) != (missing == 0) {
            return Err(Violation::Field(FLAGS));
        }
        flight.payload = if missing == 0 { Payload::None } else { Payload::Asked(missing) };
        let sink = self.list_sink(fields.tag).unwrap_or(Sink::Payload(fields.tag));
        let incoming = Incoming::skip(data, self.parameters.data_digest);
        self.state = State::Data(incoming.part(0, data, sink));
        Ok(())
    }
}
