//! Messages to a host, as the connection's parameters shape them.

use crate::wire::pdu::{
    DATA_BYTES, DIGEST_BYTES, Data, HEADER_BYTES, Header, RESPONSE_CAPSULE_BYTES, flag, kind,
};
use crate::wire::{Command, Completion};

/// Most bytes of [`Bytes`]: a header of data with its digest, aligned as coarsely as a host may ask
/// for, or two short messages.
const MOST: usize = 128;

/// A few bytes in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; MOST],
    len: u8,
}

impl Bytes {
    pub(super) const EMPTY: Self = Self { bytes: [0; MOST], len: 0 };

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    fn pad_to(&mut self, len: usize) {
        self.len = self.len.max(len as u8); // the rest is zero
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

/// The parameters agreed on when the connection was initialized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// A digest follows each header.
    pub(super) header_digest: bool,
    /// A digest follows all data.
    pub(super) data_digest: bool,
    /// Alignment of data that the host wants, in bytes; 0 before the initialization.
    pub(super) data_alignment: usize,
}

impl Parameters {
    /// Bytes of a header with its digest.
    pub(super) fn with_digest(&self, header_bytes: usize) -> usize {
        header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    /// Bytes behind all data.
    pub(super) fn data_digest_bytes(&self) -> usize {
        if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    fn header(&self, kind: u8, flags: u8, header_bytes: usize) -> Header {
        let digest = if self.header_digest { flag::HEADER_DIGEST } else { 0 };
        Header {
            kind,
            flags: flags | digest,
            header_bytes: header_bytes as u8,
            data_offset: 0,
            total_bytes: self.with_digest(header_bytes) as u32,
        }
    }

    fn put(&self, out: &mut Bytes, header: &[u8]) {
        out.push(header);
        if self.header_digest {
            out.push(&digest(header).to_le_bytes());
        }
    }

    /// Adds a response capsule.
    pub(super) fn response(&self, out: &mut Bytes, completion: &Completion) {
        let header = self.header(kind::RESPONSE, 0, RESPONSE_CAPSULE_BYTES);
        let mut bytes = [0; RESPONSE_CAPSULE_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&completion.to_bytes());
        self.put(out, &bytes);
    }

    /// Makes the header of all data of a command. `last` says that no completion follows.
    pub(super) fn data(&self, command: u16, length: u32, last: bool) -> Bytes {
        let mut flags = flag::LAST;
        if last {
            flags |= flag::SUCCESS;
        }
        if self.data_digest {
            flags |= flag::DATA_DIGEST;
        }
        let plain = self.header(kind::CONTROLLER_DATA, flags, DATA_BYTES);
        let offset = self.with_digest(DATA_BYTES).next_multiple_of(self.data_alignment.max(1));
        let total_bytes = offset as u32 + length + self.data_digest_bytes() as u32;
        let header = Header { data_offset: offset as u8, total_bytes, ..plain };
        let mut out = Bytes::EMPTY;
        self.put(&mut out, &Data { command, tag: 0, offset: 0, length }.to_bytes(header));
        out.pad_to(offset);
        out
    }

    /// Makes a request for all data of a command.
    pub(super) fn ready(&self, command: u16, tag: u16, length: u32) -> Bytes {
        let header = self.header(kind::READY_TO_TRANSFER, 0, DATA_BYTES);
        let mut out = Bytes::EMPTY;
        self.put(&mut out, &Data { command, tag, offset: 0, length }.to_bytes(header));
        out
    }
}

/// Returns the digest of bytes: CRC-32C.
pub fn digest(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The digest of bytes that come in parts.
#[derive(Debug, Clone)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

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
