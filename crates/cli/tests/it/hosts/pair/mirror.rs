//! A pair that writes back through a mirror of a disk on each machine.

use floe_server::pair::{LOST_TURN, Role};
use floe_testkit::{Ceph, pattern, wait_until};
use rustix::process::Signal;

use super::rig::{MIB, Pair};
use crate::common::{assert_same, floe_ok, http};

/// Writes a MiB and flushes it.
fn write(pair: &Pair, machine: usize, piece: usize, seed: u64) -> Vec<u8> {
    let content = pattern(seed, MIB);
    let mut client = pair.connect(machine).expect("it serves");
    client.write((piece * MIB) as u64, &content, false).expect("a write");
    client.flush().expect("a flush");
    content
}

fn read(pair: &Pair, machine: usize, piece: usize) -> Vec<u8> {
    let mut found = vec![0; MIB];
    let mut client = pair.connect(machine).expect("it serves");
    client.read((piece * MIB) as u64, &mut found).expect("a read");
    found
}

fn wait_for_service(pair: &Pair, machine: usize) {
    wait_until("it serves", || pair.connect(machine).is_some());
}

#[test]
fn flushed_data_that_ceph_lacks_is_on_the_other_machine_when_one_dies() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::mirrored(ceph, "5s");
    pair.begin(0);
    // A mirror is made of both halves.
    wait_until("it says what it lacks", || {
        floe_ok(&["status", "--admin", &pair.admin(0)]).contains("serves nothing yet: ")
    });
    let admin = pair.admin(0);
    let (head, body) = http(&admin, "GET /healthz HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 503 ") && body.contains("half of the mirror"), "{body}");
    pair.begin(1);
    wait_for_service(&pair, 0);
    pair.wait_for_sync(0);
    let first = write(&pair, 0, 0, 1);
    assert!(pair.exported()[..MIB].iter().all(|byte| *byte == 0), "it is written back later");
    pair.kill(0);
    wait_for_service(&pair, 1);
    assert_same("what was flushed", &read(&pair, 1, 0), &first);
    let second = write(&pair, 1, 1, 2); // without the other half
    assert!(pair.status(1).expect("it serves").degraded);
    // It comes back as the standby, and its half gets what it lacks.
    pair.begin(0);
    assert_eq!(pair.role(0), Some(Role::Standby));
    pair.wait_for_sync(1);
    pair.kill(1);
    wait_for_service(&pair, 0);
    assert_same("what was flushed first", &read(&pair, 0, 0), &first);
    assert_same("what the half got later", &read(&pair, 0, 1), &second);
    // Without the other half in sync its server must not serve.
    let third = write(&pair, 0, 0, 3);
    pair.kill(0);
    pair.begin(1);
    pair.wait_for_role(1, Role::Active);
    wait_until("it says what it lacks", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the mirror is at")
    });
    assert!(pair.connect(1).is_none(), "a stale half is served");
    pair.begin(0);
    wait_for_service(&pair, 1);
    assert_same("what the stale half lacked", &read(&pair, 1, 0), &third);
    pair.wait_for_sync(1);
    // In good order, nothing is written back either, and nothing is missing.
    floe_ok(&["handover", "--admin", &pair.admin(1)]);
    assert_eq!(pair.ended(1), Some(0), "{}", pair.log(1));
    wait_for_service(&pair, 0);
    assert_same("what was handed over", &read(&pair, 0, 0), &third);
    assert_same("what was handed over", &read(&pair, 0, 1), &second);
    pair.begin(1);
    pair.wait_for_sync(0);
    floe_ok(&["flush", "--admin", &pair.admin(0)]);
    let exported = pair.exported();
    assert_same("the image", &exported[..MIB], &third);
    assert_same("the image", &exported[MIB..2 * MIB], &second);
    // A server that waits for a half ends in good order.
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0));
}

#[test]
fn a_server_that_lacks_its_own_half_ends_when_it_cannot_reach_the_other() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::mirrored(ceph, "5s");
    pair.resync = "4KiB"; // a day
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    wait_for_service(&pair, 0);
    pair.wait_for_sync(0);
    pair.kill(1);
    let first = write(&pair, 0, 0, 1);
    pair.kill(0);
    pair.begin(1);
    wait_until("it says what it lacks", || pair.lacks_half(1));
    pair.begin(0);
    wait_for_service(&pair, 1);
    let mut client = pair.connect(1).expect("it serves");
    let second = write(&pair, 1, 1, 2);
    pair.kill(0);
    // A cache on a disk that fails is retired, and requests go past it. The other server would not
    // know that.
    let refused = client.write(0, &pattern(3, MIB), false).and_then(|()| client.flush());
    assert!(refused.is_err(), "no half has it");
    assert_eq!(pair.ended(1), Some(i32::from(LOST_TURN)), "{}", pair.log(1));
    pair.begin(0);
    wait_for_service(&pair, 0);
    assert_same("what was flushed first", &read(&pair, 0, 0)[..], &first);
    assert_same("what was flushed to the far half", &read(&pair, 0, 1), &second);
}
