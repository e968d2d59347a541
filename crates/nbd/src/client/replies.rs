//! Finished requests of a blocking client, and the data of its reads.
//!
//! Invariant: a server can make the client keep no more than the reads the client asked for, and
//! one message.

use std::collections::VecDeque;

use super::ledger::{Content, Ledger, Message, Parsed};
use super::{ClientError, Cookie, Info, Reply, Transport};

/// Buffers kept for later reads.
const SPARE_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Requests {
    ledger: Ledger,
    /// The data of the reads, by their cookies' places.
    data: Vec<Vec<u8>>,
    finished: VecDeque<Cookie>,
    spare: Vec<Vec<u8>>,
    /// The bytes of the message that is being received.
    message: Vec<u8>,
}

/// The destination of a read's data, unless that is the reply's own buffer.
type Direct<'a> = Option<(Cookie, &'a mut [u8])>;

impl Requests {
    pub(super) fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }

    /// Notes a new request.
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

    /// Receives one message. Data of the request named in `direct` goes there, all other data into
    /// buffers.
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

    /// Returns the destination of a read's content.
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
