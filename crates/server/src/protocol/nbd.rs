//! Adapts the NBD [`Connection`] to [`Protocol`] and to the types of the cache.

use std::net::SocketAddr;
use std::sync::Arc;

use floe_block::{Fault, RequestKind, VolumeId};
use floe_device::{Extent, Slice};
use floe_nbd::connection::{Connection, Event as NbdEvent};
use floe_nbd::export::Exports;
use floe_nbd::handshake::Tls;
use floe_nbd::transmission::{
    Extent as NbdExtent, NbdCommand, ReplyHeader, Request as NbdRequest, encode_extents,
};
use floe_nbd::wire::{ErrorCode, NbdError, Violation};

use super::{
    Answer, Broken, Event, NoPlace, Outbox, Protocol, ProtocolFactory, ProtocolName, Reply, Request,
};
use crate::tls::TlsConfig;
use crate::volume_clients::VolumeClients;

/// The state of one NBD connection.
#[derive(Debug)]
struct NbdClient {
    connection: Connection,
    /// Tag of the last request that was returned. If that is a write, its payload comes next.
    last_tag: u64,
}

/// Creates the protocol state of NBD clients.
#[derive(Debug, Default)]
pub(crate) struct Nbd(Arc<VolumeClients>);

impl Nbd {
    /// Creates the protocol of clients that count as clients of their volumes.
    pub(crate) fn new(clients: &VolumeClients) -> Self {
        Self(Arc::new(clients.clone()))
    }
}

impl ProtocolFactory for Nbd {
    fn begin(
        &self,
        _: Option<SocketAddr>,
        exports: &Arc<Exports>,
        tls: Option<&TlsConfig>,
        out: &mut Outbox,
    ) -> Box<dyn Protocol> {
        let tls = match tls {
            None => Tls::Off,
            Some(config) if config.required() => Tls::Required,
            Some(_) => Tls::Offered,
        };
        let mut connection = Connection::new(Arc::clone(exports), tls, &mut out.answers);
        let clients = Arc::clone(&self.0);
        connection.admit_by(clients);
        Box::new(NbdClient { connection, last_tag: 0 })
    }
}

impl Protocol for NbdClient {
    fn advance(&mut self, input: &[u8], out: &mut Outbox) -> Result<(usize, Event), Broken> {
        // Payload may bypass the input.
        let bytes = self.connection.payload_remaining();
        if bytes > 0 {
            return Ok((0, Event::Payload { tag: self.last_tag, bytes }));
        }
        let advanced = self.connection.advance(input, &mut out.answers);
        let (used, event) = advanced.map_err(|error| match &error.violation {
            Violation::NoPlace(_) => Broken::from(NoPlace(error.violation.to_string())),
            _ => error.into(),
        })?;
        let event = match event {
            NbdEvent::NeedMore => Event::NeedMore,
            NbdEvent::Answered | NbdEvent::Negotiated => Event::Nothing,
            NbdEvent::StartTls => Event::StartTls,
            NbdEvent::Request(request) => {
                self.last_tag = request.cookie;
                Event::Request(self.of_nbd(&request))
            }
            NbdEvent::Refused { request, error } => {
                let header = ReplyHeader::failure(&request, &error, self.structured());
                out.push(header.as_bytes(), None, 0);
                Event::Refused
            }
            NbdEvent::Payload { .. } => unreachable!("payload is told before the input is read"),
            NbdEvent::Disconnect => Event::Disconnect,
        };
        Ok((used, event))
    }

    fn ready(&mut self, _: &Request, _: &mut Outbox) {} // the payload is on its way

    fn payload_received(&mut self, payload: &Slice) {
        self.connection.payload_received(payload.len());
    }

    fn end_of_input(&self) -> Result<(), Broken> {
        Ok(self.connection.end_of_input()?)
    }

    fn reply(&mut self, request: &Request, result: Result<Answer<'_>, Fault>, out: Reply<'_>) {
        let asked = to_nbd(request);
        match result {
            Ok(Answer::Extents(extents)) => {
                let extents: Vec<_> = extents.iter().map(extent_to_nbd).collect();
                let payload = encode_extents(&asked, &extents);
                let header = ReplyHeader::block_status(&asked, payload.len());
                out.send_copy(header.as_bytes(), &payload);
            }
            Ok(answer) => {
                let header = ReplyHeader::success(&asked, self.structured());
                let payload = match answer {
                    Answer::Data(payload) => Some(payload),
                    _ => None,
                };
                out.send(header.as_bytes(), payload);
            }
            Err(fault) => {
                let header = ReplyHeader::failure(&asked, &error_of(fault), self.structured());
                out.send(header.as_bytes(), None);
            }
        }
    }

    fn exports_changed(&mut self, exports: &Arc<Exports>, _: &mut Outbox) -> bool {
        self.connection.exports_changed(exports)
    }

    fn is_established(&self) -> bool {
        self.connection.negotiated().is_some()
    }

    fn name(&self) -> ProtocolName {
        ProtocolName::Nbd
    }

    fn volume(&self) -> Option<VolumeId> {
        self.connection.export().map(|export| VolumeId(export.volume))
    }
}

impl NbdClient {
    fn structured(&self) -> bool {
        self.connection.negotiated().is_some_and(|negotiated| negotiated.structured_replies)
    }

    fn of_nbd(&self, request: &NbdRequest) -> Request {
        let kind = match request.command {
            NbdCommand::Read => RequestKind::Read,
            NbdCommand::Write => RequestKind::Write { durable: request.fua() },
            NbdCommand::Flush => RequestKind::Flush,
            NbdCommand::Trim => RequestKind::Trim,
            NbdCommand::WriteZeroes => RequestKind::Zero {
                durable: request.fua(),
                may_unmap: request.may_unmap(),
                fast: request.only_if_fast(),
            },
            NbdCommand::Cache => RequestKind::Prefetch,
            NbdCommand::BlockStatus => RequestKind::DirtyMap,
            NbdCommand::Disconnect | NbdCommand::Unknown(_) => {
                unreachable!("the connection keeps these to itself")
            }
        };
        Request {
            tag: request.cookie,
            flags: request.flags,
            volume: self.volume().expect("requests follow the handshake"),
            kind,
            offset: request.offset,
            length: request.length,
            compares: false,
            payload_follows: request.command == NbdCommand::Write,
        }
    }
}

/// Converts a request back to NBD, as the inverse of [`NbdClient::of_nbd`].
fn to_nbd(request: &Request) -> NbdRequest {
    let command = match request.kind {
        RequestKind::Read => NbdCommand::Read,
        RequestKind::Write { .. } => NbdCommand::Write,
        RequestKind::Flush => NbdCommand::Flush,
        RequestKind::Trim => NbdCommand::Trim,
        RequestKind::Zero { .. } => NbdCommand::WriteZeroes,
        RequestKind::Prefetch => NbdCommand::Cache,
        RequestKind::DirtyMap => NbdCommand::BlockStatus,
        RequestKind::Drain | RequestKind::Warm | RequestKind::Evict => {
            unreachable!("clients cannot ask for it")
        }
    };
    NbdRequest {
        cookie: request.tag,
        command,
        flags: request.flags,
        offset: request.offset,
        length: request.length,
    }
}

fn extent_to_nbd(extent: &Extent) -> NbdExtent {
    NbdExtent { bytes: extent.bytes, hole: !extent.allocated, zero: extent.zero }
}

fn error_of(fault: Fault) -> NbdError {
    match fault {
        Fault::Io => NbdError::new(ErrorCode::Io, "a device under the cache failed"),
        Fault::NoSpace => NbdError::new(ErrorCode::NoSpace, "no space left on the backing device"),
        Fault::OutOfRange => {
            NbdError::new(ErrorCode::Invalid, "the range is not within the volume")
        }
        Fault::Unsupported => {
            NbdError::new(ErrorCode::NotSupported, "the backing device cannot do that")
        }
    }
}
