//! The receiving side of a session. Bytes go into the session's buffer, through TLS, or straight
//! into a request's buffer.

use std::time::Instant;

use floe_device::{Buffer, Slice};

use super::{Input, Payloads, Session, SessionError, Want};
use crate::limits::{PIECE_BYTES, RECEIVE_BUSY_BYTES, RECEIVE_IDLE_BYTES};
use crate::protocol::{Protocol, Request};

/// A write or comparison whose payload is being received.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) request: Request,
    pub(super) buffer: Buffer,
    pub(super) into: Slice,
    pub(super) received: usize,
    /// End of the current piece, in bytes of the payload. Progress is measured in pieces of
    /// [`PIECE_BYTES`].
    piece_end: usize,
    /// Time from which the client could have sent the current piece.
    pub(super) since: Option<Instant>,
}

/// The part of a payload that comes next: the index of its request in `incoming`, and the missing
/// bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling {
    write: usize,
    bytes: usize,
}

impl Incoming {
    /// Removes the request with this tag, whose payload is complete and was checked.
    pub(super) fn remove(all: &mut Vec<Self>, tag: u64) -> Self {
        let write = all.iter().position(|incoming| incoming.request.tag == tag);
        let write = all.swap_remove(write.expect("it waits for the check"));
        debug_assert_eq!(write.received, write.into.len());
        write
    }

    fn advance(&mut self, bytes: usize, now: Instant) {
        self.received += bytes;
        if self.received >= self.piece_end {
            self.piece_end = self.received + PIECE_BYTES;
            self.since = Some(now);
        }
    }
}

impl Session {
    /// Returns the next receive. Unencrypted payload goes straight into its request's buffer.
    pub(super) fn receive(&mut self, now: Instant) -> Want {
        self.input.receiving = true;
        for incoming in &mut self.payloads.incoming {
            incoming.since.get_or_insert(now);
        }
        if let (Some(filling), None) = (self.payloads.filling, &self.channel) {
            let incoming = &self.payloads.incoming[filling.write];
            let end = (incoming.received + filling.bytes).min(incoming.piece_end);
            return Want::Receive {
                into: incoming.into.slice(incoming.received..end),
                whole: true,
            };
        }
        if self.input.size == RECEIVE_IDLE_BYTES && self.input.used == self.input.bytes.len() {
            self.input.bytes.clear();
            self.input.bytes.shrink_to(RECEIVE_IDLE_BYTES);
            self.input.used = 0;
            self.output.outbox.shrink();
        }
        let buffer = match self.input.buffer.take() {
            Some(buffer) if buffer.len() == self.input.size => buffer,
            _ => self.common.pool.allocate(self.input.size),
        };
        let into = buffer.whole();
        self.input.buffer = Some(buffer);
        Want::Receive { into, whole: false }
    }

    /// Handles the bytes of the last [`Want::Receive`]. No bytes mean that the client has closed
    /// the connection.
    ///
    /// # Errors
    /// When the client stopped in the middle of a message.
    pub(crate) fn received(&mut self, bytes: usize, now: Instant) -> Result<(), SessionError> {
        self.input.receiving = false;
        self.input.heard = now;
        if self.end.ended {
            // Late bytes are ignored, also the payload of a write that `end` has dropped.
        } else if bytes == 0 {
            self.end();
            self.protocol.end_of_input()?;
        } else if self.payloads.filling.is_some() && self.channel.is_none() {
            // Less than all of it is no end yet: kernels before 5.19 may give up waiting for the
            // rest.
            self.payloads.filled_by(bytes, &mut *self.protocol, now);
        } else {
            let buffer = self.input.buffer.as_ref().expect("what was received is somewhere");
            self.input.size = match bytes {
                _ if bytes == buffer.len() => RECEIVE_BUSY_BYTES,
                ..RECEIVE_IDLE_BYTES => RECEIVE_IDLE_BYTES,
                _ => self.input.size,
            };
            let from = buffer.slice(0..bytes);
            match &mut self.channel {
                Some(channel) => channel.received(bytes, |into| from.copy_to(into)),
                None => {
                    self.input.used = 0;
                    self.input.bytes.resize(bytes, 0);
                    from.copy_to(&mut self.input.bytes);
                }
            }
        }
        Ok(())
    }

    /// Decrypts received bytes once all earlier ones are parsed. Returns whether that gave any.
    ///
    /// # Errors
    /// When the client violated TLS, or stopped in the middle of a message.
    pub(super) fn decrypt(&mut self) -> Result<bool, SessionError> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        debug_assert_eq!(self.input.used, self.input.bytes.len());
        self.input.used = 0;
        self.input.bytes.clear();
        match channel.read(&mut self.input.bytes) {
            Ok(()) => Ok(!self.input.bytes.is_empty()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.end();
                self.protocol.end_of_input()?;
                Ok(false)
            }
            Err(error) => {
                // An alert in the channel may still tell the client the reason.
                self.drop_replies();
                self.end.closed = true;
                Err(SessionError::Tls(error))
            }
        }
    }

    /// Prepares to receive the payload of a write into `into`, a range of `buffer`.
    pub(crate) fn begin_payload(&mut self, request: Request, buffer: Buffer, into: Slice) {
        let is_empty = into.is_empty();
        let write =
            Incoming { request, buffer, into, received: 0, piece_end: PIECE_BYTES, since: None };
        if is_empty {
            self.payloads.complete(write); // part of a sector at most, and no byte to wait for
            return;
        }
        self.protocol.ready(&request, &mut self.output.outbox);
        self.payloads.incoming.push(write);
    }
}

impl Payloads {
    /// Records that the next `bytes` bytes are payload of the request with this tag.
    pub(super) fn fill(&mut self, tag: u64, bytes: usize) {
        let write = self.incoming.iter().position(|incoming| incoming.request.tag == tag);
        let write = write.expect("payload comes for a write that is ready");
        debug_assert!(bytes <= self.incoming[write].into.len() - self.incoming[write].received);
        self.filling = Some(Filling { write, bytes });
    }

    /// Copies payload from the input into its request's buffer. Returns whether there was any.
    pub(super) fn take(
        &mut self,
        input: &mut Input,
        protocol: &mut dyn Protocol,
        now: Instant,
    ) -> bool {
        let Some(filling) = self.filling else { return false };
        let incoming = &self.incoming[filling.write];
        let here = (input.bytes.len() - input.used).min(filling.bytes);
        let place = incoming.into.slice(incoming.received..incoming.received + here);
        place.copy_from(&input.bytes[input.used..input.used + here]);
        input.used += here;
        if here > 0 {
            self.filled_by(here, protocol, now);
        }
        here > 0
    }

    /// Records that this many bytes of the current payload part are in the request's buffer.
    pub(super) fn filled_by(&mut self, bytes: usize, protocol: &mut dyn Protocol, now: Instant) {
        let Some(mut filling) = self.filling else { return };
        let incoming = &mut self.incoming[filling.write];
        let payload = incoming.into.slice(incoming.received..incoming.received + bytes);
        protocol.payload_received(&payload);
        incoming.advance(bytes, now);
        filling.bytes -= bytes;
        let complete = incoming.received == incoming.into.len();
        self.filling = (filling.bytes > 0).then_some(filling);
        if complete && !protocol.checks_payload() {
            let write = self.incoming.swap_remove(filling.write);
            self.complete(write);
        }
    }
}
