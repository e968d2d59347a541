//! The client's requests in flight, and a parser for the messages that answer them: simple replies
//! and structured chunks, in any order and interleaved.
//!
//! A state machine without a socket. [`Ledger::parse`] receives the bytes of one message and asks
//! for as many more as it needs, never for bytes behind the message. The data of a read follows the
//! message and bypasses the ledger. A request's cookie combines its place in a table with the
//! number of uses of that place. So a reply finds its request without a search, and a stray cookie
//! is detected. Source: proto.md, "Simple reply message", "Structured reply types".
//!
//! Invariant: the server can announce no data outside the range of a read, and no more bytes than
//! the read requested.

use std::collections::VecDeque;

use super::{ClientError, Cookie, Info, Reply, RequestError, Transport};
use crate::wire::{
    CHUNK_HEADER_BYTES, ErrorCode, REQUEST_BYTES, REQUEST_MAGIC, SIMPLE_REPLY_BYTES,
    SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES, STRUCTURED_REPLY_MAGIC, chunk, command, u16_at, u32_at,
    u64_at,
};

/// The requests that a server has not answered completely.
#[derive(Debug, Default)]
pub struct Ledger {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    /// The number of uses and releases of the place: odd while in use. Part of the cookie.
    uses: u32,
    command: u16,
    offset: u64,
    length: u32,
    /// Bytes of a read that content chunks have announced so far.
    told: u32,
    done: bool,
    error: Option<(ErrorCode, String)>,
}

/// The result of parsing a message's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The message has at least this many more bytes.
    More(usize),
    /// The message is complete, except for read data that may follow it.
    Message(Message),
}

/// A message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The request that the message answers.
    pub cookie: Cookie,
    /// The content of the message.
    pub content: Content,
    /// True if this is the last message for the request. Call [`Ledger::take`] once its data has
    /// arrived.
    pub is_last: bool,
}

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// No read data.
    Nothing,
    /// Read data, which follows the message.
    Data {
        /// Offset of the data from the start of the read, in bytes.
        start: u32,
        /// Length of the data in bytes.
        length: u32,
    },
    /// A range of zeros, which are not transmitted.
    Zeros {
        /// Offset of the zeros from the start of the read, in bytes.
        start: u32,
        /// Length of the zeros in bytes.
        length: u32,
    },
}

impl Ledger {
    /// Returns the number of requests that were begun and not [taken](Ledger::take).
    pub fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Registers a new request and returns its cookie.
    pub fn begin(&mut self, command: u16, offset: u64, length: u32) -> Cookie {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let uses = place.uses.wrapping_add(1);
        *place = Place { uses, command, offset, length, ..Place::default() };
        Cookie(u64::from(uses) << 32 | u64::from(index))
    }

    /// Returns the length of a request in bytes.
    pub(super) fn length(&self, cookie: Cookie) -> u32 {
        self.places[cookie.index()].length
    }

    /// Returns whether the last message for a request has arrived.
    pub fn is_finished(&self, cookie: Cookie) -> bool {
        self.places[cookie.index()].done
    }

    /// Removes a finished request and returns its result.
    pub fn take(&mut self, cookie: Cookie) -> Result<(), RequestError> {
        let place = &mut self.places[cookie.index()];
        debug_assert!(place.done, "a request is taken once it is finished");
        place.uses = place.uses.wrapping_add(1);
        self.free.push(cookie.index() as u32);
        match place.error.take() {
            None => Ok(()),
            Some((code, message)) => Err(RequestError {
                command: command_name(place.command),
                offset: place.offset,
                length: place.length,
                code,
                message,
            }),
        }
    }

    /// Parses the first bytes of a message. `structured` is true if structured replies were
    /// negotiated. Call it with no bytes first, and then with all the bytes that it has asked for.
    ///
    /// # Errors
    /// When the server violates the protocol.
    pub fn parse(&mut self, bytes: &[u8], structured: bool) -> Result<Parsed, ClientError> {
        if bytes.len() < SIMPLE_REPLY_BYTES {
            return Ok(Parsed::More(SIMPLE_REPLY_BYTES - bytes.len()));
        }
        let cookie = Cookie(u64_at(bytes, 8));
        let place = self.places.get_mut(cookie.index()).ok_or_else(unknown_cookie)?;
        if place.uses % 2 == 0 || u64::from(place.uses) != cookie.0 >> 32 || place.done {
            return Err(unknown_cookie());
        }
        let (content, is_last) = match u32_at(bytes, 0) {
            SIMPLE_REPLY_MAGIC => (place.simple(u32_at(bytes, 4), structured)?, true),
            STRUCTURED_REPLY_MAGIC if structured => match place.chunk(bytes)? {
                Ok(content) => (content, u16_at(bytes, 4) & chunk::FLAG_DONE != 0),
                Err(more) => return Ok(Parsed::More(more)),
            },
            magic => return Err(broken(&format!("bad reply magic {magic:#010x}"))),
        };
        if is_last {
            let is_whole = place.command != command::READ || place.told == place.length;
            if place.error.is_none() && !is_whole {
                return Err(broken("a read's reply lacks data"));
            }
            place.done = true;
        }
        Ok(Parsed::Message(Message { cookie, content, is_last }))
    }
}

impl Place {
    fn simple(&mut self, error: u32, structured: bool) -> Result<Content, ClientError> {
        if error != 0 {
            self.error = Some((ErrorCode::from_number(error), String::new()));
            return Ok(Content::Nothing);
        }
        if self.command != command::READ {
            return Ok(Content::Nothing);
        }
        if structured {
            return Err(broken(
                "a simple reply to a read, though structured replies were agreed on",
            ));
        }
        let (start, length) = self.within(self.offset, self.length)?;
        Ok(Content::Data { start, length })
    }

    /// Parses a chunk, or returns the number of bytes that are missing.
    fn chunk(&mut self, bytes: &[u8]) -> Result<Result<Content, usize>, ClientError> {
        const HEADER: usize = CHUNK_HEADER_BYTES;
        if bytes.len() < HEADER {
            return Ok(Err(HEADER - bytes.len()));
        }
        let (kind, length) = (u16_at(bytes, 6), u32_at(bytes, 16));
        let needed = match (kind, length) {
            (chunk::NONE, 0) => 0,
            (chunk::OFFSET_DATA, 9..) => 8,
            (chunk::OFFSET_HOLE, 12) => 12,
            (kind, 6..)
                if kind & chunk::ERROR_BIT != 0 && length as usize <= STRING_MAX_BYTES + 64 =>
            {
                length as usize
            }
            _ => return Err(broken(&format!("a chunk of type {kind} with {length} bytes"))),
        };
        if bytes.len() < HEADER + needed {
            return Ok(Err(HEADER + needed - bytes.len()));
        }
        let fields = &bytes[HEADER..];
        Ok(Ok(match kind {
            chunk::NONE => Content::Nothing,
            chunk::OFFSET_DATA => {
                let (start, length) = self.within(u64_at(fields, 0), length - 8)?;
                Content::Data { start, length }
            }
            chunk::OFFSET_HOLE => {
                let (start, length) = self.within(u64_at(fields, 0), u32_at(fields, 8))?;
                Content::Zeros { start, length }
            }
            _ => {
                let message = fields[6..].get(..usize::from(u16_at(fields, 4)));
                let message =
                    message.ok_or_else(|| broken("an error message is longer than its chunk"))?;
                let text = String::from_utf8_lossy(message).into_owned();
                self.error.get_or_insert((ErrorCode::from_number(u32_at(fields, 0)), text));
                Content::Nothing
            }
        }))
    }

    /// Returns the offset of read data within the request and its length, after checking that both
    /// lie inside it.
    fn within(&mut self, offset: u64, length: u32) -> Result<(u32, u32), ClientError> {
        let outside = || broken("data outside of what was asked for");
        let start = offset.checked_sub(self.offset).ok_or_else(outside)?;
        let left = self.length.checked_sub(self.told).ok_or_else(outside)?;
        if self.command != command::READ || length > left || start > u64::from(self.length - length)
        {
            return Err(outside());
        }
        self.told += length;
        Ok((start as u32, length))
    }
}

/// Returns the bytes of a request header, which a write's payload follows. A [`command::DISC`] is
/// never answered, so any cookie will do.
pub fn request_header(
    command: u16,
    flags: u16,
    cookie: Cookie,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.0.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&length.to_be_bytes());
    header
}

fn command_name(command: u16) -> &'static str {
    match command {
        command::READ => "a read",
        command::WRITE => "a write",
        command::FLUSH => "a flush",
        command::TRIM => "a trim",
        command::WRITE_ZEROES => "a write of zeroes",
        _ => "a request",
    }
}

fn broken(what: &str) -> ClientError {
    ClientError::Protocol(what.to_owned())
}

fn unknown_cookie() -> ClientError {
    broken("a reply to a request that is not in flight")
}

/// Maximum number of buffers kept for reuse by later reads.
const SPARE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Requests {
    ledger: Ledger,
    /// The data of reads, indexed by the places of their cookies.
    data: Vec<Vec<u8>>,
    finished: VecDeque<Cookie>,
    spare: Vec<Vec<u8>>,
    /// The bytes of the incomplete message.
    message: Vec<u8>,
}

/// A read whose data is received directly into this memory instead of the reply's buffer.
type Direct<'a> = Option<(Cookie, &'a mut [u8])>;

impl Requests {
    pub(super) fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    /// Registers a new request and returns its cookie.
    pub(super) fn begin(&mut self, command: u16, offset: u64, length: u32) -> Cookie {
        let cookie = self.ledger.begin(command, offset, length);
        if self.data.len() <= cookie.index() {
            self.data.resize_with(cookie.index() + 1, Vec::new);
        }
        cookie
    }

    pub(super) fn finished(&self, cookie: Cookie) -> bool {
        self.ledger.is_finished(cookie)
    }

    /// Removes and returns the request that finished first.
    pub(super) fn next_finished(&mut self) -> Option<Reply> {
        let cookie = *self.finished.front()?;
        Some(self.take(cookie))
    }

    /// Removes a finished request and returns its reply.
    pub(super) fn take(&mut self, cookie: Cookie) -> Reply {
        if self.finished.front() == Some(&cookie) {
            self.finished.pop_front();
        } else {
            self.finished.retain(|other| *other != cookie);
        }
        let mut data = std::mem::take(&mut self.data[cookie.index()]);
        let outcome = self.ledger.take(cookie);
        if outcome.is_err() {
            self.recycle(std::mem::take(&mut data));
        }
        Reply { cookie, outcome, data }
    }

    pub(super) fn recycle(&mut self, data: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && data.capacity() > 0 {
            self.spare.push(data);
        }
    }

    /// Receives one message. Data for the request in `direct` goes to its memory, all other data
    /// into buffers.
    pub(super) fn receive(
        &mut self,
        transport: &mut impl Transport,
        info: &Info,
        direct: Direct<'_>,
    ) -> Result<(), ClientError> {
        self.message.clear();
        let Message { cookie, content, is_last } = loop {
            match self.ledger.parse(&self.message, info.structured_replies)? {
                Parsed::Message(message) => break message,
                Parsed::More(bytes) => {
                    let had = self.message.len();
                    self.message.resize(had + bytes, 0);
                    transport.receive_exact(&mut self.message[had..])?;
                }
            }
        };
        match content {
            Content::Nothing => {}
            Content::Data { start, length } => {
                transport.receive_exact(self.target(cookie, start, length, direct))?;
            }
            Content::Zeros { start, length } => self.target(cookie, start, length, direct).fill(0),
        }
        if is_last {
            self.finished.push_back(cookie);
        }
        Ok(())
    }

    /// Returns the memory into which read data is received.
    fn target<'a>(
        &'a mut self,
        cookie: Cookie,
        start: u32,
        length: u32,
        direct: Direct<'a>,
    ) -> &'a mut [u8] {
        let range = start as usize..start as usize + length as usize;
        if let Some((wanted, data)) = direct
            && wanted == cookie
        {
            return &mut data[range];
        }
        let whole = self.ledger.length(cookie) as usize;
        let data = &mut self.data[cookie.index()];
        if data.len() < whole {
            *data = self.spare.pop().unwrap_or_default();
            data.resize(whole, 0);
        }
        &mut data[range]
    }
}
