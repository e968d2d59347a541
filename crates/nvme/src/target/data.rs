//! The data part of a message that is being received.

use super::message::Digest;
use crate::wire::command::Command;
use crate::wire::pdu::DIGEST_BYTES;

/// The receiver of data.
#[derive(Debug)]
pub(super) enum Sink {
    /// Nobody: the command was answered.
    Nothing,
    /// The buffer of the request with this tag.
    Payload(u16),
    /// The command itself, which is carried out when it has all of it.
    Command(Box<Command>, Vec<u8>),
    /// The list of ranges that the host was asked for, which has these bytes so far.
    List(Vec<u8>),
}

/// The bytes of a message behind its header.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Bytes to skip first.
    before: usize,
    /// Bytes for the sink.
    bytes: usize,
    /// Bytes to skip last.
    after: usize,
    pub(super) sink: Sink,
    check: Option<Box<Check>>,
}

/// The digest of the data, and the one behind the data.
#[derive(Debug, Default)]
struct Check {
    digest: Digest,
    told: [u8; DIGEST_BYTES],
    filled: usize,
}

impl Incoming {
    /// Skips so many bytes. A digest follows them if they are to be checked.
    pub(super) fn skip(bytes: usize, has_digest: bool) -> Self {
        let check = has_digest.then(Box::default);
        Self { before: bytes, bytes: 0, after: 0, sink: Sink::Nothing, check }
    }

    /// Gives a part of the bytes that would be skipped to a sink.
    pub(super) fn part(self, before: usize, bytes: usize, sink: Sink) -> Self {
        let after = self.before - before - bytes;
        Self { before, bytes, after, sink, check: self.check }
    }

    /// Bytes of payload that come next, and their request.
    pub(super) fn payload(&self) -> Option<(u16, usize)> {
        match self.sink {
            Sink::Payload(tag) if self.before == 0 && self.bytes > 0 => Some((tag, self.bytes)),
            _ => None,
        }
    }

    /// Payload came past this.
    ///
    /// # Panics
    /// When it is more than was due.
    pub(super) fn payload_received(&mut self, bytes: usize) {
        self.bytes = self.bytes.checked_sub(bytes).expect("no more than is due");
    }

    /// Counts payload into the digest.
    pub(super) fn digest(&mut self, bytes: &[u8]) {
        if let Some(check) = &mut self.check {
            check.digest.update(bytes);
        }
    }

    /// Takes bytes that are not payload. Returns how many.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let mut used = input.len().min(self.before);
        self.before -= used;
        self.digest(&input[..used]);
        if self.before == 0 && self.bytes > 0 {
            let here = &input[used..][..(input.len() - used).min(self.bytes)];
            match &mut self.sink {
                Sink::Payload(_) => return used,
                Sink::Nothing => {}
                Sink::Command(_, data) | Sink::List(data) => data.extend_from_slice(here),
            }
            self.digest(here);
            self.bytes -= here.len();
            used += here.len();
        }
        if self.before == 0 && self.bytes == 0 {
            let here = &input[used..][..(input.len() - used).min(self.after)];
            self.digest(here);
            self.after -= here.len();
            used += here.len();
        }
        if self.before + self.bytes + self.after == 0
            && let Some(check) = &mut self.check
        {
            let here = (input.len() - used).min(DIGEST_BYTES - check.filled);
            check.told[check.filled..][..here].copy_from_slice(&input[used..used + here]);
            check.filled += here;
            used += here;
        }
        used
    }

    /// Returns whether everything has come.
    pub(super) fn is_complete(&self) -> bool {
        let is_checked = self.check.as_ref().is_none_or(|check| check.filled == DIGEST_BYTES);
        self.before + self.bytes + self.after == 0 && is_checked
    }

    /// Returns whether complete data is what the host has sent; `None` without a digest.
    pub(super) fn is_intact(&self) -> Option<bool> {
        let check = self.check.as_ref()?;
        Some(check.digest.value().to_le_bytes() == check.told)
    }
}
