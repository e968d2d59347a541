//! NVMe/TCP by the byte: messages that no honest host would send.

use std::io::{Read, Write};
use std::net::TcpStream;

use floe_testkit::PATIENCE;
use floe_testkit::nvme_host::{Access, HostCommand, Queue, QueueOptions, Status};

/// Types of messages.
const COMMAND: u8 = 4;
pub(crate) const RESPONSE: u8 = 5;
const HOST_DATA: u8 = 6;
pub(crate) const READY: u8 = 9;
pub(crate) const TERMINATES: u8 = 3;

/// An I/O queue whose every byte the test sends itself.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    queue: Queue,
}

impl Raw {
    /// Connects I/O queue `id` of a controller, by itself.
    pub(crate) fn connect(access: &Access, controller: u16, id: u16, entries: u16) -> Self {
        let stream = TcpStream::connect(&access.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let options = QueueOptions { id, entries, in_capsule_bytes: 0, ..QueueOptions::default() };
        let mut raw = Self { stream, queue: Queue::new(options) };
        raw.flush();
        while raw.queue.agreed().is_none() {
            raw.receive();
        }
        let data = access.connect_data(controller);
        raw.queue.submit(HostCommand::connect(id, entries, true, 0, data)).expect("a place");
        raw.flush();
        let completion = raw.completion();
        assert!(completion.is_success(), "{completion}");
        raw
    }

    pub(crate) fn flush(&mut self) {
        while !self.queue.output().is_empty() {
            let sent = self.stream.write(self.queue.output()).expect("it is taken");
            self.queue.sent(sent);
        }
    }

    pub(crate) fn receive(&mut self) {
        let mut bytes = [0; 4096];
        let received = self.stream.read(&mut bytes).expect("bytes");
        assert!(received > 0, "the server hung up");
        self.queue.receive(&bytes[..received]).expect("the server keeps to the protocol");
    }

    pub(crate) fn completion(&mut self) -> Status {
        loop {
            if let Some(completion) = self.queue.next_completion() {
                return completion.status;
            }
            self.receive();
        }
    }

    /// Sends bytes; the server may have hung up before.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Receives one message with a header of 24 bytes and without data.
    pub(crate) fn message(&mut self) -> [u8; 24] {
        let mut bytes = [0; 24];
        self.stream.read_exact(&mut bytes).expect("a message");
        bytes
    }

    /// Everything until the server hangs up.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        bytes
    }
}

/// A message with these header fields from byte 8 on.
pub(crate) fn message(kind: u8, flags: u8, header: &[u8], data: &[u8]) -> Vec<u8> {
    let header_bytes = 8 + header.len() as u8;
    let length = u32::from(header_bytes) + data.len() as u32;
    let offset = if data.is_empty() { 0 } else { header_bytes };
    let mut bytes = vec![kind, flags, header_bytes, offset];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(data);
    bytes
}

/// A command capsule. The descriptor is the transport's, of `length`.
pub(crate) fn capsule(
    opcode: u8,
    id: u16,
    first: u64,
    blocks: u32,
    length: u32,
    data: &[u8],
) -> Vec<u8> {
    let mut entry = [0; 64];
    entry[..2].copy_from_slice(&[opcode, 0x40]);
    entry[2..4].copy_from_slice(&id.to_le_bytes());
    entry[4] = 1;
    entry[32..36].copy_from_slice(&length.to_le_bytes());
    entry[39] = if data.is_empty() { 0x5A } else { 1 };
    entry[40..48].copy_from_slice(&first.to_le_bytes());
    entry[48..52].copy_from_slice(&(blocks - 1).to_le_bytes());
    message(COMMAND, 0, &entry, data)
}

/// Data for a write.
pub(crate) fn host_data(
    id: u16,
    tag: u16,
    offset: u32,
    told: u32,
    last: bool,
    data: &[u8],
) -> Vec<u8> {
    let mut header = [0; 16];
    header[..2].copy_from_slice(&id.to_le_bytes());
    header[2..4].copy_from_slice(&tag.to_le_bytes());
    header[4..8].copy_from_slice(&offset.to_le_bytes());
    header[8..12].copy_from_slice(&told.to_le_bytes());
    message(HOST_DATA, if last { 4 } else { 0 }, &header, data)
}
