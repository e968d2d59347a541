//! Hosts of NVMe that reserve the disk of a pair, whichever server they ask.

use floe_nvme::wire::{Status, admin, feature, io};
use floe_server::pair::Role;
use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, CommandError, HostCommand, HostError, Payload, Range};
use floe_testkit::{Ceph, PATIENCE, wait_until};
use rustix::process::Signal;

use super::paths::{NAME, pair_of};
use super::rig::Pair;
use crate::common::floe_ok;

const BLOCK: Range = Range { namespace: 1, first: 0, blocks: 8 };
/// CPTPL of Reservation Register: all survives a loss of power.
const PERSIST: u32 = 3 << 30;
const WRITE_EXCLUSIVE: u32 = 1 << 8;
const PREEMPT: u32 = 1;

const DONE: Status = Status::SUCCESS;
const CONFLICT: Status = Status::RESERVATION_CONFLICT.final_();

/// A host's path to one of the servers.
struct Path {
    queue: IoQueue,
    admin: Controller,
}

impl Path {
    /// Connects a host, given by number, to a server.
    fn connect(address: &str, host: u8) -> Option<Self> {
        let access = Access {
            host: format!("nqn.2026-11.io.example:host{host}"),
            host_id: [host; 16],
            timeout: Some(PATIENCE),
            ..Access::new(address, NAME)
        };
        let mut admin = Controller::connect(&access).ok()?;
        admin.set_queues(1).ok()?;
        let queue = admin.io_queue(1, 16).ok()?;
        Some(Self { queue, admin })
    }

    /// Waits for a path of this host on which the disk is read.
    #[track_caller]
    fn serving(address: &str, host: u8) -> Self {
        let mut found = None;
        wait_until("the path serves", || {
            found = Self::connect(address, host);
            found.as_mut().is_some_and(|path| path.queue.read(BLOCK, 4096).is_ok())
        });
        found.expect("it was found")
    }

    fn reserve(&mut self, opcode: u8, word: u32, keys: [u64; 2]) -> Status {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let command = HostCommand::new("reservation", opcode, 1, Payload::ToController(data));
        status_of(self.queue.connection().call(command.dword(10, word)).map(drop))
    }

    fn register(&mut self, key: u64) -> Status {
        self.reserve(io::RESERVATION_REGISTER, PERSIST, [0, key])
    }

    fn acquire(&mut self, key: u64) -> Status {
        self.reserve(io::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [key, 0])
    }

    /// Returns the key of the host that holds the reservation, as the server reports it.
    fn holder(&mut self) -> Option<u64> {
        let payload = Payload::FromController(1024);
        let command = HostCommand::new("report", io::RESERVATION_REPORT, 1, payload);
        let command = command.dword(10, 255).dword(11, 1);
        let report = self.queue.connection().call(command).expect("a report").data;
        let entry = report[64..].chunks(64).find(|entry| entry[2] & 1 != 0)?;
        Some(u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes")))
    }

    /// Sets the feature Reservation Persistence of the disk.
    fn ask_to_persist(&mut self) -> Status {
        let (set_features, persistence) = (admin::SET_FEATURES, feature::RESERVATION_PERSISTENCE);
        let command = HostCommand::new("set features", set_features, 1, Payload::None);
        let command = command.dword(10, persistence.into()).dword(11, 1);
        status_of(self.admin.connection().call(command).map(drop))
    }

    fn write(&mut self) -> Status {
        status_of(self.queue.write(BLOCK, vec![1; 4096], false))
    }
}

fn status_of(result: Result<(), HostError>) -> Status {
    match result {
        Ok(()) => DONE,
        Err(HostError::Command(CommandError { status, .. })) => Status::of_field(status.0 << 1),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_reservation_binds_hosts_whichever_server_of_a_pair_serves() {
    let Some(ceph) = Ceph::start() else { return };
    let (mut pair, addresses) = pair_of(Pair::new(ceph, "5s"));
    pair.has_nbd = false;
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    let mut one = Path::serving(&addresses[0], 1);
    let mut two = Path::serving(&addresses[0], 2);
    assert_eq!(one.register(10), DONE, "{}", pair.log(0));
    assert_eq!(one.acquire(10), DONE);
    assert_eq!((one.write(), two.write()), (DONE, CONFLICT));
    let mut standby = None;
    wait_until("hosts have paths to the standby", || {
        standby = Path::connect(&addresses[1], 2);
        standby.is_some()
    });
    let mut standby = standby.expect("it was found");
    assert_eq!(standby.register(20), Status::ANA_INACCESSIBLE, "another path takes it");
    assert_eq!(standby.ask_to_persist(), Status::ANA_INACCESSIBLE, "another path takes it");

    pair.kill(0);
    pair.wait_for_role(1, Role::Active);
    wait_until("the path of before serves", || standby.queue.read(BLOCK, 4096).is_ok());
    assert_eq!((standby.holder(), standby.write()), (Some(10), CONFLICT));
    let mut one = Path::serving(&addresses[1], 1);
    assert_eq!(one.write(), DONE);
    // The second host fences the first one, on the second server.
    assert_eq!(standby.register(20), DONE);
    let preempted = standby.reserve(io::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE | PREEMPT, [20, 10]);
    assert_eq!((preempted, standby.write(), one.write()), (DONE, DONE, CONFLICT));

    pair.begin(0);
    wait_until("the active server sees the standby", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains(" stands by")
    });
    floe_ok(&["handover", "--admin", &pair.admin(1)]);
    assert_eq!(pair.ended(1), Some(0), "{}", pair.log(1));
    let mut two = Path::serving(&addresses[0], 2);
    let mut one = Path::serving(&addresses[0], 1);
    assert_eq!((one.holder(), one.write(), two.write()), (Some(20), CONFLICT, DONE));

    // Both have been off.
    pair.signal(0, Signal::TERM);
    assert_eq!(pair.ended(0), Some(0), "{}", pair.log(0));
    pair.begin(1);
    let mut one = Path::serving(&addresses[1], 1);
    assert_eq!((one.holder(), one.write()), (Some(20), CONFLICT));

    // A server that also has NBD clients, who would not be bound, says so.
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0), "{}", pair.log(1));
    pair.has_nbd = true;
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    let said = "kept reservations of NVMe hosts are not enforced: the server has NBD clients too";
    assert!(pair.log(0).contains(said), "{}", pair.log(0));
}
