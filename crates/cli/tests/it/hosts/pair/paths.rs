//! Hosts of NVMe, which have a path to each server of a pair.

use std::net::TcpListener;

use floe_server::pair::Role;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, ControllerData, HostError, Range};
use floe_testkit::{Ceph, PATIENCE, wait_until};

use super::rig::Pair;

pub(super) const NAME: &str =
    "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-4333-8444-555555555555";
const BLOCK: Range = Range { namespace: 1, first: 0, blocks: 8 };

/// The states of the log of access.
const OPTIMIZED: u8 = 0x01;
const INACCESSIBLE: u8 = 0x03;

/// A pair that is to serve hosts, and its addresses.
pub(super) fn pair_of(mut pair: Pair) -> (Pair, [String; 2]) {
    // Both are held until both are known, so that they differ.
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addresses = free.map(|it| it.local_addr().expect("an address").to_string());
    for (options, address) in pair.options.iter_mut().zip(&addresses) {
        let listen = format!("nvme-tcp://{address}");
        options.extend(["--listen", &listen, "--nqn", NAME].map(str::to_owned));
    }
    (pair, addresses)
}

fn connect(address: &str) -> Option<Controller> {
    let access = Access { timeout: Some(PATIENCE), ..Access::new(address, NAME) };
    Controller::connect(&access).ok()
}

/// Waits for a controller that says so of the only volume.
fn await_state(address: &str, wanted: u8) -> Controller {
    let mut found = None;
    wait_until("the path has its state", || {
        found = connect(address);
        let log = found.as_mut().and_then(|it| it.log_page(0x0c, 0, 52).ok());
        log.is_some_and(|log| log[32] == wanted)
    });
    found.expect("it was found")
}

#[test]
fn hosts_see_the_standby_as_a_path_that_cannot_be_used_until_it_takes_over() {
    let Some(ceph) = Ceph::start() else { return };
    let (mut pair, addresses) = pair_of(Pair::new(ceph, "5s"));
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    let mut active = await_state(&addresses[0], OPTIMIZED);
    let mut standby = await_state(&addresses[1], INACCESSIBLE);
    let same = |one: &mut Controller, other: &mut Controller| {
        let identifiers = [&mut *one, other].map(|it| it.identifiers(1).expect("identifiers"));
        assert_eq!(identifiers[0], identifiers[1], "they are one disk");
    };
    same(&mut active, &mut standby);
    let is_upper = [&active, &standby].map(|it| it.id() > 0xffef / 2);
    assert_ne!(is_upper[0], is_upper[1], "hosts refuse two controllers of one identifier");
    let queue = |controller: &mut Controller| {
        controller.set_queues(1).expect("queues");
        controller.io_queue(1, 16).expect("an I/O queue")
    };
    queue(&mut active).write(BLOCK, vec![7; 4096], true).expect("a write");
    let Err(HostError::Command(error)) = queue(&mut standby).read(BLOCK, 4096) else {
        panic!("a standby answers a read");
    };
    assert_eq!((error.status.kind(), error.status.code()), (3, 2));
    assert!(!error.status.do_not_retry(), "the other path takes it");
    // The host keeps the connections of its path, and is told that the access has changed.
    let mut path = queue(&mut standby);
    standby.watch(ControllerData::ANA_NOTICES).expect("events of the access");
    pair.kill(0);
    let event = standby.next_event().expect("an event on the same connection");
    assert_eq!(event, 0x000c_0302, "a notice of the log of access");
    let log = standby.log_page(0x0c, 0, 52).expect("the log");
    assert_eq!(log[32], OPTIMIZED);
    assert_eq!(path.read(BLOCK, 4096).expect("a read"), [7; 4096]);
    drop(path);
    let mut active = await_state(&addresses[1], OPTIMIZED);
    assert_eq!(queue(&mut active).read(BLOCK, 4096).expect("a read"), [7; 4096]);
    // The other one is the path that cannot be used now.
    pair.begin(0);
    let mut standby = await_state(&addresses[0], INACCESSIBLE);
    same(&mut active, &mut standby);
    let is_upper = [&active, &standby].map(|it| it.id() > 0xffef / 2);
    assert_ne!(is_upper[0], is_upper[1], "the restarted one has the half that is left");
}
