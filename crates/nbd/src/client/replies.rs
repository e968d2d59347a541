//! Requests in flight and the replies to them: simple ones and structured chunks, in any order and
//! interleaved.
//!
//! A request's cookie is its place in a table and the number of times that place was used, so a
//! reply finds its request without a search and a stray cookie is noticed. Source: proto.md,
//! "Simple reply message", "Structured reply types". Invariant: a server can make the client keep
//! no more than the reads the client asked for, and one message.

use std::collections::VecDeque;

use super::{ClientError, Cookie, Info, Reply, RequestError, Transport};
use crate::error::ErrorCode;
use crate::wire::{self, STRING_MAX_BYTES, chunk, command, u16_at, u32_at, u64_at};

/// Buffers kept for later reads.
const SPARE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Requests {
    places: Vec<Place>,
    free: Vec<u32>,
    finished: VecDeque<Cookie>,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Place {
    /// Odd while in use; part of the cookie.
    uses: u32,
    command: u16,
    offset: u64,
    length: u32,
    /// Bytes of a read that content chunks told so far.
    told: u32,
    done: bool,
    error: Option<(ErrorCode, String)>,
    data: Vec<u8>,
}

/// The destination of a read's data, unless that is the reply's own buffer.
type Direct<'a> = Option<(Cookie, &'a mut [u8])>;

impl Requests {
    pub(super) fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Notes a new request.
    pub(super) fn begin(&mut self, command: u16, offset: u64, length: u32) -> Cookie {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        let uses = place.uses.wrapping_add(1);
        *place = Place { uses, command, offset, length, ..Place::default() };
        Cookie(u64::from(uses) << 32 | u64::from(index))
    }

    pub(super) fn finished(&self, cookie: Cookie) -> bool {
        self.places[index(cookie)].done
    }

    /// The request that finished first and was not taken.
    pub(super) fn next_finished(&mut self) -> Option<Reply> {
        let cookie = *self.finished.front()?;
        Some(self.take(cookie))
    }

    /// Takes a finished request out.
    pub(super) fn take(&mut self, cookie: Cookie) -> Reply {
        if self.finished.front() == Some(&cookie) {
            self.finished.pop_front();
        } else {
            self.finished.retain(|other| *other != cookie);
        }
        let place = &mut self.places[index(cookie)];
        place.uses = place.uses.wrapping_add(1);
        self.free.push(index(cookie) as u32);
        let mut data = std::mem::take(&mut place.data);
        let outcome = match place.error.take() {
            None => Ok(()),
            Some((code, message)) => Err(RequestError {
                command: command_name(place.command),
                offset: place.offset,
                length: place.length,
                code,
                message,
            }),
        };
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

    /// Receives one message. Data of the request named in `direct` goes there, all other data into
    /// buffers.
    pub(super) fn receive(
        &mut self,
        transport: &mut impl Transport,
        info: &Info,
        direct: Direct<'_>,
    ) -> Result<(), ClientError> {
        let header: [u8; wire::SIMPLE_REPLY_BYTES] = transport.receive_array()?;
        let cookie = Cookie(u64_at(&header, 8));
        let place = self.places.get(index(cookie)).ok_or_else(unknown_cookie)?;
        if place.uses % 2 == 0 || u64::from(place.uses) != cookie.0 >> 32 || place.done {
            return Err(unknown_cookie());
        }
        match u32_at(&header, 0) {
            wire::SIMPLE_REPLY_MAGIC => {
                self.simple(transport, info, cookie, u32_at(&header, 4), direct)
            }
            wire::STRUCTURED_REPLY_MAGIC if info.structured_replies => {
                let length = u32::from_be_bytes(transport.receive_array()?);
                self.chunk(transport, cookie, u16_at(&header, 6), length, direct)?;
                if u16_at(&header, 4) & chunk::FLAG_DONE != 0 {
                    self.finish(cookie)
                } else {
                    Ok(())
                }
            }
            magic => Err(broken(&format!("bad reply magic {magic:#010x}"))),
        }
    }

    fn simple(
        &mut self,
        transport: &mut impl Transport,
        info: &Info,
        cookie: Cookie,
        error: u32,
        direct: Direct<'_>,
    ) -> Result<(), ClientError> {
        let place = &mut self.places[index(cookie)];
        if error != 0 {
            place.error = Some((ErrorCode::from_number(error), String::new()));
        } else if place.command == command::READ {
            if info.structured_replies {
                return Err(broken(
                    "a simple reply to a read, though structured replies were agreed on",
                ));
            }
            let (offset, length) = (place.offset, place.length);
            let target = self.target(cookie, offset, length, direct)?;
            transport.receive_exact(target)?;
        }
        self.finish(cookie)
    }

    fn chunk(
        &mut self,
        transport: &mut impl Transport,
        cookie: Cookie,
        kind: u16,
        length: u32,
        direct: Direct<'_>,
    ) -> Result<(), ClientError> {
        match (kind, length) {
            (chunk::NONE, 0) => {}
            (chunk::OFFSET_DATA, 9..) => {
                let offset = u64::from_be_bytes(transport.receive_array()?);
                let target = self.target(cookie, offset, length - 8, direct)?;
                transport.receive_exact(target)?;
            }
            (chunk::OFFSET_HOLE, 12) => {
                let fields: [u8; 12] = transport.receive_array()?;
                self.target(cookie, u64_at(&fields, 0), u32_at(&fields, 8), direct)?.fill(0);
            }
            (kind, 6..)
                if kind & chunk::ERROR_BIT != 0 && length as usize <= STRING_MAX_BYTES + 64 =>
            {
                let mut payload = vec![0; length as usize];
                transport.receive_exact(&mut payload)?;
                let message = payload[6..].get(..usize::from(u16_at(&payload, 4)));
                let message =
                    message.ok_or_else(|| broken("an error message is longer than its chunk"))?;
                let error = (
                    ErrorCode::from_number(u32_at(&payload, 0)),
                    String::from_utf8_lossy(message).into_owned(),
                );
                self.places[index(cookie)].error.get_or_insert(error);
            }
            _ => return Err(broken(&format!("a chunk of type {kind} with {length} bytes"))),
        }
        Ok(())
    }

    /// Returns the destination of a read's content chunk, checked to lie inside the request.
    fn target<'a>(
        &'a mut self,
        cookie: Cookie,
        offset: u64,
        length: u32,
        direct: Direct<'a>,
    ) -> Result<&'a mut [u8], ClientError> {
        let place = &mut self.places[index(cookie)];
        let outside = || broken("data outside of what was asked for");
        let start = offset.checked_sub(place.offset).ok_or_else(outside)?;
        let left = place.length.checked_sub(place.told).ok_or_else(outside)?;
        if place.command != command::READ
            || length > left
            || start > u64::from(place.length - length)
        {
            return Err(outside());
        }
        place.told += length;
        let range = start as usize..start as usize + length as usize;
        if let Some((wanted, data)) = direct
            && wanted == cookie
        {
            return Ok(&mut data[range]);
        }
        if place.data.len() < place.length as usize {
            let mut data = self.spare.pop().unwrap_or_default();
            data.resize(place.length as usize, 0);
            place.data = data;
        }
        Ok(&mut place.data[range])
    }

    fn finish(&mut self, cookie: Cookie) -> Result<(), ClientError> {
        let place = &mut self.places[index(cookie)];
        let whole = place.command != command::READ || place.told == place.length;
        if place.error.is_none() && !whole {
            return Err(broken("a read's reply lacks data"));
        }
        place.done = true;
        self.finished.push_back(cookie);
        Ok(())
    }
}

fn index(cookie: Cookie) -> usize {
    (cookie.0 & u64::from(u32::MAX)) as usize
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
