//! Encoding of messages to a host, and decoding of the data it sends.

use crate::wire::pdu::{
    DATA_BYTES, DIGEST_BYTES, Data, HEADER_BYTES, Header, RESPONSE_CAPSULE_BYTES, flag, kind,
};
use crate::wire::{Completion, NvmeCommand};

/// Capacity of [`Bytes`]: a data header with its digest at the coarsest alignment that a host may
/// ask for, or two short messages.
const MOST: usize = 128;

/// A short byte string without heap allocation.
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

    /// Returns the bytes as a slice.
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
    /// A digest follows each message's header.
    pub(super) header_digest: bool,
    /// A digest follows each message's data.
    pub(super) data_digest: bool,
    /// Alignment in bytes of the data that the host receives; 0 before the initialization.
    pub(super) data_alignment: usize,
}

impl Parameters {
    /// Returns the length of a header together with its digest.
    pub(super) fn with_digest(&self, header_bytes: usize) -> usize {
        header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    /// Returns the length of the digest behind the data; 0 without data digests.
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

    /// Appends a response capsule.
    pub(super) fn response(&self, out: &mut Bytes, completion: &Completion) {
        let header = self.header(kind::RESPONSE, 0, RESPONSE_CAPSULE_BYTES);
        let mut bytes = [0; RESPONSE_CAPSULE_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&completion.to_bytes());
        self.put(out, &bytes);
    }

    /// Returns the header of a message that carries all data of a command. `last` says that no
    /// completion follows.
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

    /// Returns a request for all data of a command (R2T).
    pub(super) fn ready(&self, command: u16, tag: u16, length: u32) -> Bytes {
        let header = self.header(kind::READY_TO_TRANSFER, 0, DATA_BYTES);
        let mut out = Bytes::EMPTY;
        self.put(&mut out, &Data { command, tag, offset: 0, length }.to_bytes(header));
        out
    }
}

/// Returns the CRC-32C digest of some bytes.
pub fn digest(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// An incremental CRC-32C digest.
#[derive(Debug, Clone)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Digest {
    /// Adds bytes to the digest.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The destination of received data.
#[derive(Debug)]
pub(super) enum Sink {
    /// The data is discarded, because its command has already been answered.
    Nothing,
    /// The data is payload for the request with this tag.
    Payload(u16),
    /// The command needs the data itself and runs once all of it has arrived.
    NvmeCommand(Box<NvmeCommand>, Vec<u8>),
    /// A list of ranges requested from the host. The vector has the bytes received so far.
    List(Vec<u8>),
}

/// The state of a message's data while it is received.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Bytes to skip before the wanted part.
    before: usize,
    /// Bytes that go to the sink.
    bytes: usize,
    /// Bytes to skip after the wanted part.
    after: usize,
    pub(super) sink: Sink,
    check: Option<Box<Check>>,
}

/// The digest computed from the data, and the one received.
#[derive(Debug, Default)]
struct Check {
    digest: Digest,
    told: [u8; DIGEST_BYTES],
    filled: usize,
}

impl Incoming {
    /// Creates a receiver that skips `bytes` bytes. A digest follows and is checked if
    /// `has_digest`.
    pub(super) fn skip(bytes: usize, has_digest: bool) -> Self {
        let check = has_digest.then(Box::default);
        Self { before: bytes, bytes: 0, after: 0, sink: Sink::Nothing, check }
    }

    /// Directs a part of the skipped bytes to a sink.
    pub(super) fn part(self, before: usize, bytes: usize, sink: Sink) -> Self {
        let after = self.before - before - bytes;
        Self { before, bytes, after, sink, check: self.check }
    }

    /// Returns the tag of the request whose payload comes next, and the number of its bytes.
    pub(super) fn payload(&self) -> Option<(u16, usize)> {
        match self.sink {
            Sink::Payload(tag) if self.before == 0 && self.bytes > 0 => Some((tag, self.bytes)),
            _ => None,
        }
    }

    /// Records that payload was received directly by the caller.
    ///
    /// # Panics
    /// When it is more than was expected.
    pub(super) fn payload_received(&mut self, bytes: usize) {
        self.bytes = self.bytes.checked_sub(bytes).expect("no more than is due");
    }

    /// Adds payload to the digest.
    pub(super) fn digest(&mut self, bytes: &[u8]) {
        if let Some(check) = &mut self.check {
            check.digest.update(bytes);
        }
    }

    /// Consumes bytes that are not payload. Returns their number.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let mut used = input.len().min(self.before);
        self.before -= used;
        self.digest(&input[..used]);
        if self.before == 0 && self.bytes > 0 {
            let here = &input[used..][..(input.len() - used).min(self.bytes)];
            match &mut self.sink {
                Sink::Payload(_) => return used,
                Sink::Nothing => {}
                Sink::NvmeCommand(_, data) | Sink::List(data) => data.extend_from_slice(here),
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

    /// Returns whether all bytes of the message were received.
    pub(super) fn is_complete(&self) -> bool {
        let is_checked = self.check.as_ref().is_none_or(|check| check.filled == DIGEST_BYTES);
        self.before + self.bytes + self.after == 0 && is_checked
    }

    /// Returns whether the complete data matches its digest; `None` without a digest.
    pub(super) fn is_intact(&self) -> Option<bool> {
        let check = self.check.as_ref()?;
        Some(check.digest.value().to_le_bytes() == check.told)
    }
}
