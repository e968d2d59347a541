//! The bytes from the server: messages that [`Work`] understands, and data that goes where it
//! belongs.

use floe_nbd::client::ledger::{Content, Message, Parsed};
use floe_nbd::client::{ClientError, Cookie};

use super::work::Work;
use crate::buffer::{Pool, Slice};

/// Bytes received at a time, but for data that goes where it belongs.
const BUFFER_BYTES: usize = 64 << 10;
/// Data that is received where it belongs, if there is so much.
const DIRECT_BYTES: usize = 16 << 10;

/// The bytes from the server.
pub(super) struct Incoming {
    buffer: Slice,
    /// Those in the buffer that were not looked at: `start..end`.
    start: usize,
    end: usize,
    /// The message that is being received.
    message: Vec<u8>,
    /// The data that belongs to a message, and where the rest of it goes.
    data: Option<(Message, Slice)>,
}

/// The next thing to do with the bytes from the server.
pub(super) enum Next {
    /// The answer to a request is complete.
    Ended(Cookie),
    /// More has to be received.
    Receive { into: Slice, whole: bool },
}

impl Incoming {
    pub(super) fn new(pool: &Pool) -> Self {
        let buffer = pool.allocate(BUFFER_BYTES).whole();
        Self { buffer, start: 0, end: 0, message: Vec::new(), data: None }
    }

    /// Forgets what came by a connection that has ended.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.data) = (0, 0, None);
        self.message.clear();
    }

    /// So many bytes arrived where [`Next::Receive`] said.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), ClientError> {
        match &mut self.data {
            _ if bytes == 0 => return Err(ClientError::HungUp),
            Some((_, rest)) if rest.len() >= DIRECT_BYTES => {
                *rest = rest.slice(bytes..rest.len());
            }
            _ => (self.start, self.end) = (0, bytes),
        }
        Ok(())
    }

    /// Looks at what has arrived, up to where an answer ends or more is needed.
    pub(super) fn next(&mut self, work: &mut Work) -> Result<Next, ClientError> {
        loop {
            let here = self.end - self.start;
            match &mut self.data {
                Some((message, rest)) if rest.is_empty() => {
                    let Message { cookie, is_last, .. } = *message;
                    self.data = None;
                    if is_last {
                        return Ok(Next::Ended(cookie));
                    }
                }
                Some((_, rest)) if here > 0 => {
                    let bytes = here.min(rest.len());
                    let from = self.buffer.slice(self.start..self.start + bytes);
                    Slice::copy(&from, &rest.slice(0..bytes));
                    *rest = rest.slice(bytes..rest.len());
                    self.start += bytes;
                }
                Some((_, rest)) if rest.len() >= DIRECT_BYTES => {
                    return Ok(Next::Receive { into: rest.clone(), whole: true });
                }
                Some(_) => return Ok(Next::Receive { into: self.buffer.clone(), whole: false }),
                None => match work.parse(&self.message)? {
                    Parsed::More(_) if here == 0 => {
                        return Ok(Next::Receive { into: self.buffer.clone(), whole: false });
                    }
                    Parsed::More(bytes) => {
                        let bytes = bytes.min(here);
                        let from = self.buffer.slice(self.start..self.start + bytes);
                        self.message.extend(from.to_vec());
                        self.start += bytes;
                    }
                    Parsed::Message(message) => {
                        self.message.clear();
                        let rest = match message.content {
                            Content::Data { start, length } => {
                                work.target(message.cookie, start, length)
                            }
                            Content::Zeros { start, length } => {
                                let zeros = work.target(message.cookie, start, length);
                                zeros.fill_zero();
                                zeros.slice(0..0)
                            }
                            Content::Nothing => self.buffer.slice(0..0),
                        };
                        self.data = Some((message, rest));
                    }
                },
            }
        }
    }
}
