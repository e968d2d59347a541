//! Hosts that speak NVMe over TCP to a server, byte by byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use floe_block::WriteMode;
use floe_nvme::wire::Status;
use floe_nvme::wire::pdu::{self, Data, Header, Initialize, flag, kind};
use floe_nvme::wire::{Completion, Descriptor, NvmeCommand};
use floe_nvme::wire::{admin, fabrics, feature, io};
use floe_nvme::wire::{connect, descriptor, property};
use floe_testkit::PATIENCE;

use crate::rig::{MEMORIES, Rig, Setup};

const HOST: &str = "nqn.2026-11.io.example:host";
const NQN: &str = "nqn.2026-11.io.example:floe";

/// One connection of a host.
struct Host {
    socket: TcpStream,
    last_id: u16,
}

/// A message of the server.
struct Message {
    header: Header,
    bytes: Vec<u8>,
}

impl Message {
    fn completion(&self) -> Completion {
        assert_eq!(self.header.kind, kind::RESPONSE);
        Completion::of_bytes(self.bytes[8..24].try_into().unwrap())
    }
}

impl Host {
    /// Connects a queue. Returns the controller's identifier too.
    fn connect(rig: &Rig, queue: u16, controller: u16) -> (Self, u16) {
        let socket = TcpStream::connect(rig.nvme[0].strip_prefix("nvme-tcp://").unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut host = Self { socket, last_id: 0 };
        let initialize = Initialize { format: 0, data_alignment: 0, digests: 0, most: 0 };
        host.send(&initialize.to_bytes(kind::INITIALIZE_REQUEST));
        assert_eq!(host.receive().header.kind, kind::INITIALIZE_RESPONSE);
        let mut data = vec![0; 1024];
        data[connect::HOST_ID].fill(1);
        data[connect::CONTROLLER_ID].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + NQN.len()].copy_from_slice(NQN.as_bytes());
        data[512..512 + HOST.len()].copy_from_slice(HOST.as_bytes());
        let command = NvmeCommand::new(admin::FABRICS, 0)
            .with(4, &[fabrics::CONNECT])
            .with(42, &queue.to_le_bytes())
            .with(44, &31_u16.to_le_bytes());
        let completion = host.ask(command, &data);
        assert!(completion.status.is_success(), "{completion:?}");
        (host, completion.result as u16)
    }

    /// An admin queue whose controller is ready, and so many I/O queues.
    fn connect_all(rig: &Rig, queues: u16) -> (Self, Vec<Self>) {
        let (mut host, controller) = Self::connect(rig, 0, 0xffff);
        let enable = NvmeCommand::new(admin::FABRICS, 0)
            .with(4, &[fabrics::PROPERTY_SET])
            .with(44, &property::CC.to_le_bytes())
            .with(48, &0x0046_0001_u64.to_le_bytes());
        assert!(host.ask(enable, &[]).status.is_success());
        let wanted = u32::from(queues - 1) * 0x0001_0001;
        let grant = NvmeCommand::new(admin::SET_FEATURES, 0)
            .with(40, &[feature::QUEUES])
            .with(44, &wanted.to_le_bytes());
        assert!(host.ask(grant, &[]).status.is_success());
        let queues = (1..=queues).map(|queue| Self::connect(rig, queue, controller).0).collect();
        (host, queues)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn receive(&mut self) -> Message {
        let mut bytes = vec![0; 8];
        self.socket.read_exact(&mut bytes).unwrap();
        let header = Header::of_bytes(bytes.first_chunk().unwrap());
        bytes.resize(header.total_bytes as usize, 0);
        self.socket.read_exact(&mut bytes[8..]).unwrap();
        Message { header, bytes }
    }

    /// Sends a command with its data in the capsule.
    fn begin(&mut self, command: NvmeCommand, data: &[u8]) -> u16 {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = command.with(2, &id.to_le_bytes());
        if !data.is_empty() {
            let (length, kind) = (data.len() as u32, descriptor::IN_CAPSULE);
            command = command.with_descriptor(Descriptor { address: 0, length, kind });
        }
        let header = Header {
            kind: kind::COMMAND,
            flags: 0,
            header_bytes: 72,
            data_offset: if data.is_empty() { 0 } else { 72 },
            total_bytes: (72 + data.len()) as u32,
        };
        self.send(&[&header.to_bytes()[..], &command.0, data].concat());
        id
    }

    fn ask(&mut self, command: NvmeCommand, data: &[u8]) -> Completion {
        let id = self.begin(command, data);
        let completion = self.receive().completion();
        assert_eq!(completion.id, id);
        completion
    }

    fn begin_blocks(&mut self, opcode: u8, first: u64, bytes: usize, data: &[u8]) -> u16 {
        let (length, kind) = (bytes as u32, descriptor::TRANSPORT);
        let command = NvmeCommand::new(opcode, 0)
            .with(4, &1_u32.to_le_bytes())
            .with(40, &first.to_le_bytes())
            .with(48, &((bytes / 512 - 1) as u16).to_le_bytes())
            .with_descriptor(Descriptor { address: 0, length, kind });
        self.begin(command, data)
    }

    /// Asks to write, and waits until the server asks for the data.
    fn begin_write(&mut self, first: u64, bytes: usize) -> Data {
        self.begin_asked(io::WRITE, first, bytes)
    }

    fn begin_asked(&mut self, opcode: u8, first: u64, bytes: usize) -> Data {
        self.begin_blocks(opcode, first, bytes, &[]);
        let asked = self.receive();
        assert_eq!(asked.header.kind, kind::READY_TO_TRANSFER);
        Data::of_bytes(asked.bytes.first_chunk().unwrap())
    }

    /// Sends all data that was asked for, in two messages.
    fn give(&mut self, asked: Data, data: &[u8]) {
        let (one, two) = data.split_at(data.len() / 2);
        for (offset, part, flags) in [(0, one, 0), (one.len(), two, flag::LAST)] {
            let total_bytes = (pdu::DATA_BYTES + part.len()) as u32;
            let kind = kind::HOST_DATA;
            let header = Header { kind, flags, header_bytes: 24, data_offset: 24, total_bytes };
            let (offset, length) = (offset as u32, part.len() as u32);
            let fields = Data { offset, length, ..asked };
            self.send(&[&fields.to_bytes(header)[..], part].concat());
        }
    }

    fn read(&mut self, first: u64, bytes: usize) -> Vec<u8> {
        self.begin_blocks(io::READ, first, bytes, &[]);
        let data = self.receive();
        assert_eq!(data.header.kind, kind::CONTROLLER_DATA);
        assert!(self.receive().completion().status.is_success());
        data.bytes[usize::from(data.header.data_offset)..].to_vec()
    }

    /// Writes or compares, with the data in the capsule if that is short.
    fn with_data(&mut self, opcode: u8, first: u64, data: &[u8]) -> Status {
        if data.len() > 8 << 10 {
            let asked = self.begin_asked(opcode, first, data.len());
            self.give(asked, data);
        } else {
            self.begin_blocks(opcode, first, data.len(), data);
        }
        self.receive().completion().status
    }

    /// Waits for the server's end of the connection. Returns the last bytes.
    fn last_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let ended = self.socket.read_to_end(&mut bytes).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
        bytes
    }
}

fn setup() -> Setup {
    let mut setup = Setup::new(WriteMode::Back);
    setup.config.listen.push("nvme-tcp://127.0.0.1:0".parse().unwrap());
    setup.config.nvme.nqn = Some(NQN.to_owned());
    setup
}

#[test]
fn one_queue_reads_what_another_has_written() {
    let rig = setup().start().unwrap();
    let (_admin, mut queues) = Host::connect_all(&rig, 3);
    let data: Vec<u8> = (0..64 << 10).map(|at: u32| (at % 251) as u8).collect();
    let asked = queues[0].begin_write(8, data.len());
    assert_eq!(asked.length as usize, data.len());
    queues[0].give(asked, &data);
    assert!(queues[0].receive().completion().status.is_success());
    assert_eq!(queues[1].read(8, data.len()), data);
    let short = vec![9; 4096];
    let write = NvmeCommand::new(io::WRITE, 0)
        .with(4, &1_u32.to_le_bytes())
        .with(40, &16_u64.to_le_bytes())
        .with(48, &7_u16.to_le_bytes());
    assert!(queues[2].ask(write, &short).status.is_success());
    assert_eq!(queues[0].read(16, 4096), short);
    let flush = NvmeCommand::new(io::FLUSH, 0).with(4, &u32::MAX.to_le_bytes());
    assert!(queues[1].ask(flush, &[]).status.is_success());
    rig.end();
}

#[test]
fn several_writes_wait_for_their_data_and_get_it_in_any_order() {
    let rig = setup().start().unwrap();
    let (_admin, mut queues) = Host::connect_all(&rig, 1);
    let queue = &mut queues[0];
    let asked: Vec<Data> = (0..8).map(|at| queue.begin_write(at * 256, 128 << 10)).collect();
    for (at, asked) in asked.into_iter().enumerate().rev() {
        queue.give(asked, &vec![at as u8 + 1; 128 << 10]);
    }
    for _ in 0..8 {
        assert!(queue.receive().completion().status.is_success());
    }
    for at in 0..8 {
        assert_eq!(queue.read(at * 256, 128 << 10), vec![at as u8 + 1; 128 << 10]);
    }
    rig.end();
}

#[test]
fn a_comparison_sees_what_was_written_before() {
    for memory in MEMORIES {
        let rig = setup().memory(memory).start().unwrap();
        let (_admin, mut queues) = Host::connect_all(&rig, 3);
        for round in 1..=40_usize {
            // On boundaries of blocks and beside them, over the places of earlier rounds.
            let (first, blocks) = ((round * 7 % 60) as u64, [1, 8, 16, 17, 300][round % 5]);
            let mut data: Vec<u8> = (0..blocks * 512).map(|at| (at * round % 251) as u8).collect();
            let status = queues[round % 3].with_data(io::WRITE, first, &data);
            assert!(status.is_success(), "{status:?}");
            let queue = &mut queues[(round + 1) % 3];
            assert_eq!(queue.with_data(io::COMPARE, first, &data), Status::SUCCESS);
            let at = round * 4999 % data.len();
            data[at] ^= 0x80;
            let status = queue.with_data(io::COMPARE, first, &data);
            assert_eq!(status, Status::COMPARE_FAILURE.final_(), "at {at} of {}", data.len());
            data[at] ^= 0x80;
            assert_eq!(queue.read(first, data.len()), data, "a comparison changes nothing");
        }
        rig.end();
    }
}

#[test]
fn a_shutdown_flushes() {
    let rig = setup().start().unwrap();
    let (mut admin, _queues) = Host::connect_all(&rig, 1);
    let shut_down = NvmeCommand::new(admin::FABRICS, 0)
        .with(4, &[fabrics::PROPERTY_SET])
        .with(44, &property::CC.to_le_bytes())
        .with(48, &0x0046_4001_u64.to_le_bytes());
    assert_eq!(rig.status().cache.requests.flushes, 0);
    assert!(admin.ask(shut_down, &[]).status.is_success());
    assert_eq!(rig.status().cache.requests.flushes, 1);
    rig.end();
}

#[test]
fn queues_end_when_their_controller_does() {
    let rig = setup().start().unwrap();
    let (admin, mut queues) = Host::connect_all(&rig, 2);
    admin.socket.shutdown(Shutdown::Both).unwrap();
    for queue in &mut queues {
        assert_eq!(queue.last_bytes(), Vec::<u8>::new());
    }
    rig.end();
}

#[test]
fn a_host_that_breaks_the_rules_is_told_the_field() {
    let rig = setup().start().unwrap();
    let (mut admin, _) = Host::connect_all(&rig, 1);
    let wrong =
        Header { kind: kind::COMMAND, flags: 0, header_bytes: 64, data_offset: 0, total_bytes: 72 };
    admin.send(&wrong.to_bytes());
    let told = admin.last_bytes();
    assert_eq!(told.first(), Some(&kind::CONTROLLER_TERMINATES));
    assert_eq!(told[8..14], [1, 0, 2, 0, 0, 0], "the length of the header");
    rig.end();
}
