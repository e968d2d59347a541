//! The server's state machine for one client connection, from the first byte to the last.
//!
//! The driver sends the bytes that [`Connection::new`] put into `out`. It then feeds received bytes
//! to [`Connection::advance`], in pieces of any size, until the connection needs more:
//!
//! ```text
//! bytes ──> advance ──> Answered            send `out`, continue with the rest of the input
//!                       StartTls            send `out` in the clear, then feed decrypted bytes
//!                       Negotiated          send `out`; requests follow
//!                       Request(r)          carry it out; ReplyHeader::success or ::failure
//!                       Payload{..}         the next bytes belong to the write returned before
//!                       Refused{r, error}   answer with ReplyHeader::failure
//!                       Disconnect          finish what is in flight, send `out`, hang up
//!                       NeedMore            receive more
//! ```
//!
//! A write is returned before its payload has arrived, so that the payload can be received directly
//! into the request's own buffer. The driver copies the part that is in the input, receives
//! [`Connection::payload_remaining`] more bytes into their destination, and reports both with
//! [`Connection::payload_received`]. A driver that prefers one buffer for all calls `advance` and
//! gets a `Payload` for each piece. Returned requests have passed [`check`]. The payload of a
//! refused write is skipped here, and the refusal follows it.
//!
//! No byte may follow a request for TLS before it is granted: an attacker on the network may have
//! inserted plaintext there, so it ends the connection. All state negotiated in plaintext is
//! discarded.
//!
//! Invariants: no allocation after the handshake; at most one header (28 bytes) is kept between
//! calls; after an error every further call gives the same error. Source: proto.md, "Transmission",
//! "Terminating the transmission phase", "TLS support".

use std::sync::Arc;

use super::export::{Export, Exports};
use super::handshake::{Admission, Handshake, Negotiated, Place, Progress, Tls};
use super::transmission::{DRAIN_MAX_BYTES, NbdCommand, Request, check, parse};
use super::wire::REQUEST_BYTES;
use crate::wire::{NbdError, ProtocolError, Violation};

/// The event that a part of the input causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The input is consumed; receive more.
    NeedMore,
    /// `out` contains an answer of the handshake; send it before continuing.
    Answered,
    /// `out` contains the last bytes in the clear: send them, then start TLS. The handshake
    /// continues with the decrypted bytes.
    StartTls,
    /// The handshake is over; `out` contains its last answer. Requests follow.
    Negotiated,
    /// A valid request. The payload of a [`NbdCommand::Write`] follows.
    Request(Request),
    /// Payload of the write returned last. None of it counts as consumed: report it with
    /// [`Connection::payload_received`].
    Payload {
        /// The number of payload bytes in the input, starting where `advance` stopped. Never zero.
        here: usize,
        /// The number of payload bytes still to come, including those in the input.
        remaining: usize,
    },
    /// A request that cannot be served; its payload, if any, has been skipped.
    Refused {
        /// The request to answer.
        request: Request,
        /// The error to answer with.
        error: NbdError,
    },
    /// The client disconnects: answer the requests in flight, send `out`, hang up.
    Disconnect,
}

/// The state of one client connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
    consumed_bytes: u64,
    /// Position in the input stream where the current message began.
    message_at: u64,
    /// The result of the handshake; `None` until it ends.
    negotiated: Option<Negotiated>,
    /// The client's place at its export; kept for its `Drop`.
    _place: Option<Place>,
}

#[derive(Debug)]
enum State {
    Handshake(Handshake),
    Header { bytes: [u8; REQUEST_BYTES], filled: usize },
    Payload { remaining: usize },
    Drain { remaining: usize, request: Request, error: NbdError },
    Disconnected,
    Failed(ProtocolError),
}

const NEXT_HEADER: State = State::Header { bytes: [0; REQUEST_BYTES], filled: 0 };

impl Connection {
    /// Creates a connection that offers these exports, and appends the greeting to `out`.
    pub fn new(exports: Arc<Exports>, tls: Tls, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&Handshake::greeting());
        let state = State::Handshake(Handshake::new(exports, tls));
        Self { state, consumed_bytes: 0, message_at: 0, negotiated: None, _place: None }
    }

    /// Limits the clients of each export by this admission. Without it there is no limit.
    pub fn admit_by(&mut self, admission: Arc<dyn Admission>) {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.admit_by(admission);
        }
    }

    /// Updates the list of exports. Returns false if the connection's export is gone, so that the
    /// connection must end. From now on requests are checked against the export's new size and
    /// permissions. A client sees these when it connects again.
    pub fn exports_changed(&mut self, exports: &Arc<Exports>) -> bool {
        if let State::Handshake(handshake) = &mut self.state {
            handshake.exports_changed(exports);
        }
        let Some(negotiated) = &mut self.negotiated else { return true };
        match exports.same(&negotiated.export) {
            Some(export) => negotiated.export = Arc::clone(export),
            None => return false,
        }
        true
    }

    /// Consumes received bytes up to the next event. Returns the number of bytes consumed and the
    /// event.
    ///
    /// # Errors
    /// When the client violated the protocol irrecoverably; drop the connection.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event), ProtocolError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (taken, event) = self.step(rest, out).inspect_err(|error| {
                self.state = State::Failed(error.clone());
            })?;
            used += taken;
            self.consumed_bytes += taken as u64;
            if matches!(self.state, State::Header { filled: 0, .. }) {
                self.message_at = self.consumed_bytes;
            }
            if let Some(event) = event {
                return Ok((used, event));
            }
        }
    }

    /// Returns the number of payload bytes of the current write that are still to come.
    #[inline]
    pub fn payload_remaining(&self) -> usize {
        match self.state {
            State::Payload { remaining } => remaining,
            _ => 0,
        }
    }

    /// Records that the driver took this many bytes of the current write's payload, from the input
    /// or directly from the socket.
    ///
    /// # Panics
    /// When that is more than [`Connection::payload_remaining`], since the driver would have
    /// consumed part of the next request.
    #[inline]
    pub fn payload_received(&mut self, bytes: usize) {
        let left = self
            .payload_remaining()
            .checked_sub(bytes)
            .expect("no more than the payload's remaining bytes");
        self.consumed_bytes += bytes as u64;
        if left > 0 {
            self.state = State::Payload { remaining: left };
        } else if bytes > 0 {
            self.state = NEXT_HEADER;
            self.message_at = self.consumed_bytes;
        }
    }

    /// Handles the end of the input. A client may close the connection between messages, even
    /// without sending `DISC`.
    ///
    /// # Errors
    /// When it was closed inside a message, or the connection had failed before.
    pub fn end_of_input(&self) -> Result<(), ProtocolError> {
        let truncated = |at, what| Err(ProtocolError { at, violation: Violation::Truncated(what) });
        match &self.state {
            State::Handshake(handshake) => match handshake.message_in_progress() {
                (at, true) => truncated(at, "an option"),
                _ => Ok(()),
            },
            State::Header { filled: 0, .. } | State::Disconnected => Ok(()),
            State::Header { .. } => truncated(self.message_at, "a request"),
            State::Payload { .. } | State::Drain { .. } => {
                truncated(self.message_at, "a write's payload")
            }
            State::Failed(error) => Err(error.clone()),
        }
    }

    /// Returns the result of the handshake; `None` until it ends.
    #[inline]
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// Returns the export that the client chose; `None` until the handshake ends.
    #[inline]
    pub fn export(&self) -> Option<&Export> {
        self.negotiated().map(|negotiated| &*negotiated.export)
    }

    /// Performs the next step; `None` if the step causes no event.
    fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Event>), ProtocolError> {
        match &mut self.state {
            State::Handshake(handshake) => {
                let (taken, progress) = handshake.receive(input, out)?;
                let event = match progress {
                    Progress::NeedMore => Event::NeedMore,
                    Progress::Answered => Event::Answered,
                    Progress::StartTls if taken < input.len() => {
                        let violation = Violation::ClearBehindStartTls(input.len() - taken);
                        return Err(ProtocolError {
                            at: self.consumed_bytes + taken as u64,
                            violation,
                        });
                    }
                    Progress::StartTls => Event::StartTls,
                    Progress::Transmission(negotiated) => {
                        self._place = handshake.take_place();
                        self.negotiated = Some(negotiated);
                        self.state = NEXT_HEADER;
                        Event::Negotiated
                    }
                    Progress::Closed => {
                        self.state = State::Disconnected;
                        Event::Disconnect
                    }
                };
                Ok((taken, Some(event)))
            }
            State::Header { filled: 0, .. } if input.len() >= REQUEST_BYTES => {
                let mut header = [0; REQUEST_BYTES];
                header.copy_from_slice(&input[..REQUEST_BYTES]);
                Ok((REQUEST_BYTES, self.request(&header)?))
            }
            State::Header { bytes, filled } => {
                let taken = input.len().min(REQUEST_BYTES - *filled);
                bytes[*filled..*filled + taken].copy_from_slice(&input[..taken]);
                *filled += taken;
                if *filled < REQUEST_BYTES {
                    return Ok((taken, Some(Event::NeedMore)));
                }
                let header = *bytes;
                Ok((taken, self.request(&header)?))
            }
            State::Payload { .. } if input.is_empty() => Ok((0, Some(Event::NeedMore))),
            State::Payload { remaining } => {
                let (here, remaining) = (input.len().min(*remaining), *remaining);
                Ok((0, Some(Event::Payload { here, remaining })))
            }
            State::Drain { remaining, request, error } => {
                let taken = input.len().min(*remaining);
                *remaining -= taken;
                if *remaining > 0 {
                    return Ok((taken, Some(Event::NeedMore)));
                }
                let event = Event::Refused { request: *request, error: *error };
                self.state = NEXT_HEADER;
                Ok((taken, Some(event)))
            }
            State::Disconnected => Ok((input.len(), Some(Event::Disconnect))),
            State::Failed(error) => Err(error.clone()),
        }
    }

    /// Handles a complete request header; `None` if a payload must be skipped first.
    fn request(&mut self, header: &[u8; REQUEST_BYTES]) -> Result<Option<Event>, ProtocolError> {
        let fail = |violation| ProtocolError { at: self.message_at, violation };
        let request = parse(header).map_err(fail)?;
        if request.command == NbdCommand::Disconnect {
            self.state = State::Disconnected;
            return Ok(Some(Event::Disconnect));
        }
        let agreed = self.negotiated.as_ref().expect("requests follow the handshake");
        let remaining = request.payload_bytes() as usize;
        match check(&request, agreed) {
            Ok(()) => {
                self.state =
                    if remaining == 0 { NEXT_HEADER } else { State::Payload { remaining } };
                Ok(Some(Event::Request(request)))
            }
            Err(_) if request.payload_bytes() > DRAIN_MAX_BYTES => {
                Err(fail(Violation::WriteTooLong { length: request.length, max: DRAIN_MAX_BYTES }))
            }
            Err(error) => {
                self.state = State::Drain { remaining, request, error };
                Ok(None)
            }
        }
    }
}
