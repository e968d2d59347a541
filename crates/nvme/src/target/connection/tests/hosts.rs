//! A host that composes messages, and a caller that serves a connection from bytes in memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::target::access::AccessState;
use crate::target::connection::{Connection, Event, Violation};
use crate::target::digest;
use crate::target::io::{BlockSize, Namespace, Namespaces};
use crate::target::request::{Failure, Request, RequestKind};
use crate::target::subsystem::Subsystem;
use crate::wire::pdu::{self, Data, Header, Initialize, flag, kind};
use crate::wire::{
    Completion, Descriptor, NvmeCommand, admin, connect, descriptor, fabrics, feature, property,
};

pub(super) const NQN: &str = "nqn.2026-11.io.example:a";
pub(super) const HOST: &str = "nqn.2026-11.io.example:h";
pub(super) const ADDRESS: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4420);
/// Logical blocks of the volume.
pub(super) const BLOCKS: u64 = 64;

pub(super) fn subsystem() -> Arc<Subsystem> {
    Arc::new(Subsystem::new(NQN, "1").unwrap())
}

/// Returns a subsystem whose namespaces can be reserved, until it ends.
pub(super) fn reserving() -> Arc<Subsystem> {
    let subsystem = Subsystem::new(NQN, "1").unwrap();
    Arc::new(subsystem.with_reservations(Arc::default()))
}

pub(super) fn namespace(volume: u16) -> Namespace {
    let (name, bytes, access) = (format!("disk{volume}"), BLOCKS * 512, AccessState::Optimized);
    let block_size = BlockSize::Bytes512;
    Namespace { volume, name, bytes, block_size, read_only: false, access }
}

pub(super) fn namespaces() -> Arc<Namespaces> {
    let sealed = Namespace { read_only: true, ..namespace(4) };
    Arc::new(Namespaces::new(vec![namespace(0), sealed]))
}

pub(super) fn initialize(digests: u8) -> Vec<u8> {
    Initialize { format: 0, data_alignment: 0, digests, most: 0 }
        .to_bytes(kind::INITIALIZE_REQUEST)
        .to_vec()
}

/// Returns a command capsule that carries `data`. The command brings its own data descriptor.
pub(super) fn capsule(command: &NvmeCommand, data: &[u8]) -> Vec<u8> {
    let total_bytes = (pdu::COMMAND_CAPSULE_BYTES + data.len()) as u32;
    let data_offset = if data.is_empty() { 0 } else { 72 };
    let header =
        Header { kind: kind::COMMAND, flags: 0, header_bytes: 72, data_offset, total_bytes };
    [&header.to_bytes()[..], &command.0, data].concat()
}

pub(super) fn in_capsule(length: usize) -> Descriptor {
    Descriptor { address: 0, length: length as u32, kind: descriptor::IN_CAPSULE }
}

pub(super) fn transport(length: usize) -> Descriptor {
    Descriptor { address: 0, length: length as u32, kind: descriptor::TRANSPORT }
}

pub(super) fn host_data(command: u16, tag: u16, offset: usize, data: &[u8], last: bool) -> Vec<u8> {
    let total_bytes = (pdu::DATA_BYTES + data.len()) as u32;
    let flags = if last { flag::LAST } else { 0 };
    let header =
        Header { kind: kind::HOST_DATA, flags, header_bytes: 24, data_offset: 24, total_bytes };
    let fields = Data { command, tag, offset: offset as u32, length: data.len() as u32 };
    [&fields.to_bytes(header)[..], data].concat()
}

pub(super) fn connect(queue: u16, controller: u16, subsystem: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[connect::HOST_ID].fill(7);
    data[connect::CONTROLLER_ID].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + HOST.len()].copy_from_slice(HOST.as_bytes());
    let command = NvmeCommand::new(admin::FABRICS, 0)
        .with(4, &[fabrics::CONNECT])
        .with(42, &queue.to_le_bytes())
        .with(44, &31_u16.to_le_bytes())
        .with_descriptor(in_capsule(1024));
    capsule(&command, &data)
}

/// Makes a message of [`connect`] that of another host, with this byte in its identifier.
pub(super) fn of_host(mut message: Vec<u8>, host: u8) -> Vec<u8> {
    let data = message.len() - 1024;
    message[data..][connect::HOST_ID].fill(host);
    message
}

pub(super) fn enable(on: bool) -> Vec<u8> {
    let value: u64 = if on { 0x0046_0001 } else { 0x0046_0000 };
    let command = NvmeCommand::new(admin::FABRICS, 1)
        .with(4, &[fabrics::PROPERTY_SET])
        .with(44, &property::CC.to_le_bytes())
        .with(48, &value.to_le_bytes());
    capsule(&command, &[])
}

pub(super) fn queues(count: u16) -> Vec<u8> {
    let value = u32::from(count - 1) | u32::from(count - 1) << 16;
    let command = NvmeCommand::new(admin::SET_FEATURES, 2)
        .with(40, &[feature::QUEUES])
        .with(44, &value.to_le_bytes());
    capsule(&command, &[])
}

/// Returns a command on a range of blocks, such as a read or a write.
pub(super) fn blocks(opcode: u8, id: u16, first: u64, count: u16) -> NvmeCommand {
    NvmeCommand::new(opcode, id)
        .with(4, &1_u32.to_le_bytes())
        .with(40, &first.to_le_bytes())
        .with(48, &(count - 1).to_le_bytes())
}

/// A parsed message to the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Initialized(Initialize),
    Completed(Completion),
    Data(Data, Vec<u8>),
    Ready(Data),
    Terminate(u16, u32),
}

/// Parses all messages sent to the host. The messages have no digests.
pub(super) fn said(mut bytes: &[u8]) -> Vec<Said> {
    let mut all = Vec::new();
    while let Some(first) = bytes.first_chunk() {
        let header = Header::of_bytes(first);
        let (message, rest) = bytes.split_at(header.total_bytes as usize);
        let fields = || Data::of_bytes(message.first_chunk().unwrap());
        all.push(match header.kind {
            kind::INITIALIZE_RESPONSE => {
                Said::Initialized(Initialize::of_bytes(message.try_into().unwrap()))
            }
            kind::RESPONSE => {
                Said::Completed(Completion::of_bytes(message[8..24].try_into().unwrap()))
            }
            kind::CONTROLLER_DATA => {
                Said::Data(fields(), message[usize::from(header.data_offset)..].to_vec())
            }
            kind::READY_TO_TRANSFER => Said::Ready(fields()),
            kind::CONTROLLER_TERMINATES => Said::Terminate(
                u16::from_le_bytes([message[8], message[9]]),
                u32::from_le_bytes(message[10..14].try_into().unwrap()),
            ),
            other => panic!("a message of type {other}"),
        });
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a message is incomplete");
    all
}

/// Serves a connection from a volume in memory.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) connection: Connection,
    pub(super) volume: Vec<u8>,
    pub(super) out: Vec<u8>,
    input: Vec<u8>,
    writes: BTreeMap<u16, (Request, Vec<u8>)>,
    /// Flushes stay unanswered until [`Caller::end_flushes`].
    pub(super) flushes_wait: bool,
    /// Requests to zero are held back until [`Caller::let_through`].
    pub(super) holds_back: bool,
    /// Volumes of the flush requests received so far.
    pub(super) flushed: Vec<u16>,
    waiting: Vec<Request>,
    /// Number of writes whose payload was damaged.
    pub(super) damaged: usize,
}

impl Caller {
    pub(super) fn new(subsystem: &Arc<Subsystem>) -> Self {
        Self {
            connection: Connection::new(Arc::clone(subsystem), namespaces(), Some(ADDRESS)),
            volume: vec![0; (BLOCKS * 512) as usize],
            out: Vec::new(),
            input: Vec::new(),
            writes: BTreeMap::new(),
            flushes_wait: false,
            holds_back: false,
            flushed: Vec::new(),
            waiting: Vec::new(),
            damaged: 0,
        }
    }

    /// Passes bytes from the host to the connection and serves everything in them.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.input.extend_from_slice(bytes);
        loop {
            let (used, event) = self.connection.advance(&self.input, &mut self.out)?;
            self.input.drain(..used);
            match event {
                Event::NeedMore => {
                    assert!(self.input.is_empty(), "all input is used");
                    return Ok(());
                }
                Event::Nothing | Event::Refused => {}
                Event::Request(request) => self.serve(request),
                Event::Payload { tag, bytes } => {
                    let here = bytes.min(self.input.len());
                    if here == 0 {
                        return Ok(());
                    }
                    self.connection.digest_payload(&self.input[..here]);
                    self.connection.payload_received(here);
                    let (request, data) = self.writes.get_mut(&tag).expect("it was requested");
                    data.extend(self.input.drain(..here));
                    assert!(data.len() <= request.length as usize);
                    let is_complete = data.len() == request.length as usize;
                    if is_complete && !self.connection.has_data_digest() {
                        self.write(tag);
                    }
                }
                Event::Checked { tag, intact: true } => self.write(tag),
                Event::Checked { tag, intact: false } => {
                    self.damaged += 1;
                    let (request, data) = self.writes.remove(&tag).unwrap();
                    assert_eq!(data.len(), request.length as usize);
                    self.reply(&request, Err(Failure::Device));
                }
            }
        }
    }

    /// Executes a write or a comparison whose payload is complete.
    fn write(&mut self, tag: u16) {
        let (request, data) = self.writes.remove(&tag).unwrap();
        if !self.connection.may_start(tag) {
            return self.reply(&request, Err(Failure::Device));
        }
        let place = &mut self.volume[range_of(&request)];
        if request.kind == RequestKind::Compare {
            let is_same = *place == *data;
            return self.reply(&request, if is_same { Ok(()) } else { Err(Failure::Differs) });
        }
        place.copy_from_slice(&data);
        self.reply(&request, Ok(()));
    }

    fn serve(&mut self, request: Request) {
        match request.kind {
            RequestKind::Write { .. } | RequestKind::Compare => {
                self.writes.insert(request.tag, (request, Vec::new()));
                if !request.in_capsule {
                    self.connection.ready(request.tag, &mut self.out);
                }
                return;
            }
            RequestKind::WriteZeroes { .. } | RequestKind::Deallocate if self.holds_back => {
                self.connection.hold_back(request.tag);
                self.waiting.push(request);
                return;
            }
            RequestKind::WriteZeroes { .. } | RequestKind::Deallocate => {
                self.volume[range_of(&request)].fill(0);
            }
            RequestKind::Flush => {
                self.flushed.push(request.volume);
                if self.flushes_wait {
                    self.waiting.push(request);
                    return;
                }
            }
            RequestKind::Read | RequestKind::Verify => {}
        }
        self.reply(&request, Ok(()));
    }

    fn reply(&mut self, request: &Request, result: Result<(), Failure>) {
        let digest = || digest(&self.volume[range_of(request)]);
        let Some(answer) = self.connection.reply(request.tag, result, digest) else { return };
        self.out.extend_from_slice(answer.before.as_slice());
        if answer.payload {
            self.out.extend_from_slice(&self.volume[range_of(request)]);
        }
        self.out.extend_from_slice(answer.after.as_slice());
    }

    /// Answers all outstanding flushes.
    pub(super) fn end_flushes(&mut self) {
        for request in std::mem::take(&mut self.waiting) {
            self.reply(&request, Ok(()));
        }
    }

    /// Carries out all requests that were held back.
    pub(super) fn let_through(&mut self) {
        self.holds_back = false;
        for request in std::mem::take(&mut self.waiting) {
            match self.connection.may_start(request.tag) {
                true => self.serve(request),
                false => self.reply(&request, Err(Failure::Device)),
            }
        }
    }

    /// Takes the messages that were sent to the host since the last call.
    pub(super) fn told(&mut self) -> Vec<Said> {
        said(&std::mem::take(&mut self.out))
    }
}

fn range_of(request: &Request) -> std::ops::Range<usize> {
    let offset = request.offset as usize;
    offset..offset + request.length as usize
}

/// Returns an enabled admin queue with I/O queues granted.
pub(super) fn admin_queue(subsystem: &Arc<Subsystem>) -> Caller {
    let mut caller = Caller::new(subsystem);
    for message in [initialize(0), connect(0, 0xffff, NQN), enable(true), queues(4)] {
        caller.take(&message).unwrap();
    }
    let told = caller.told();
    let statuses = told.iter().filter_map(|said| match said {
        Said::Completed(completion) => Some(completion.status.is_success()),
        _ => None,
    });
    assert_eq!(statuses.collect::<Vec<_>>(), [true; 3], "{told:?}");
    caller
}

/// Returns the first bytes that a host sends on an I/O queue.
pub(super) fn io_queue(queue: u16, controller: u16) -> Vec<u8> {
    [initialize(0), connect(queue, controller, NQN)].concat()
}
