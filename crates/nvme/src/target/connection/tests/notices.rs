//! Notices of changes to the discovery log and to the access to namespaces.

use std::sync::Arc;

use super::hosts::*;
use super::sessions::{ask, identify_of, log_of, status_of};
use crate::target::access::{AccessState, Port};
use crate::target::io::{Namespace, Namespaces};
use crate::target::subsystem::Subsystem;
use crate::wire::{
    Completion, DISCOVERY_NQN, NvmeCommand, Status, admin, feature, identify, io, log,
};

const DISCOVERY_CHANGED: u64 = 0x0070_f002;
const ACCESS_CHANGED: u64 = 0x000c_0302;

/// Returns the admin queue of a discovery controller.
fn discovering(subsystem: &Arc<Subsystem>) -> Caller {
    let mut caller = Caller::new(subsystem);
    for message in [initialize(0), connect(0, 0xffff, DISCOVERY_NQN), enable(true)] {
        caller.take(&message).unwrap();
    }
    caller.told();
    caller
}

/// Subscribes to these events and sends event requests with these identifiers.
fn wait_for(caller: &mut Caller, events: u32, ids: &[u16]) {
    let wanted = NvmeCommand::new(admin::SET_FEATURES, 3)
        .with(40, &[feature::ASYNC_EVENTS])
        .with(44, &events.to_le_bytes());
    assert!(ask(caller, &wanted).1.is_success());
    for id in ids {
        caller.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, *id), &[])).unwrap();
    }
    assert_eq!(caller.told(), []);
}

/// Tells the connection of changed namespaces. Returns the events that the host receives:
/// identifier and result.
fn change(caller: &mut Caller, namespaces: &Arc<Namespaces>) -> Vec<(u16, u64)> {
    let mut out = Vec::new();
    caller.connection.namespaces_changed(namespaces, &mut out);
    let event = |said: &Said| match said {
        Said::Completed(Completion { id, result, status: Status::SUCCESS, .. }) => (*id, *result),
        other => panic!("{other:?}"),
    };
    said(&out).iter().map(event).collect()
}

/// Parses a discovery log page into port identifier, address and port of each entry.
fn entries(page: &[u8]) -> Vec<(u16, String, String)> {
    let count = u64::from_le_bytes(page[8..16].try_into().unwrap()) as usize;
    let entry = |page: &[u8]| {
        assert_eq!(page[..4], [3, 1, 2, 2]);
        let text = |at: usize| {
            let end = page[at..].iter().position(|byte| b" \0".contains(byte)).unwrap();
            std::str::from_utf8(&page[at..at + end]).unwrap().to_owned()
        };
        assert_eq!(text(256), NQN);
        (u16::from_le_bytes([page[4], page[5]]), text(512), text(32))
    };
    page[1024..].chunks(1024).take(count).map(entry).collect()
}

#[test]
fn a_host_discovers_the_subsystem_at_the_address_it_has_called() {
    let mut caller = discovering(&subsystem());
    assert!(caller.connection.keep_alive_ms().is_some(), "it does not stay for ever");
    let (page, status) = ask(&mut caller, &log_of(log::DISCOVERY, 2048));
    assert!(status.is_success());
    assert_eq!(entries(&page), [(0, "192.0.2.1".to_owned(), "4420".to_owned())]);
    let (_, status) = ask(&mut caller, &identify_of(identify::ACTIVE_NAMESPACES, 0));
    assert_eq!(status, Status::INVALID_FIELD.final_());
    let mut other = admin_queue(&subsystem());
    let (_, status) = ask(&mut other, &log_of(log::DISCOVERY, 1024));
    assert_eq!(status, Status::INVALID_LOG_PAGE.final_(), "that is for discovery");
}

#[test]
fn a_host_that_discovers_is_told_of_new_ports_and_of_volumes_that_come_and_go() {
    let subsystem = subsystem();
    let mut caller = discovering(&subsystem);
    let (page, _) = ask(&mut caller, &identify_of(identify::CONTROLLER, 0));
    assert_eq!(page[92..96], feature::DISCOVERY_NOTICES.to_le_bytes());
    wait_for(&mut caller, u32::MAX, &[30, 31]);
    let generation =
        |caller: &mut Caller| ask(caller, &log_of(log::DISCOVERY, 3072)).0[..8].to_vec();
    let first = generation(&mut caller);

    let port = |id, text: &str| Port { id, address: text.parse().unwrap() };
    let ports = vec![port(1, "192.0.2.1:4420"), port(7, "198.51.100.1:4421")];
    subsystem.paths().set_ports(ports.clone());
    assert_eq!(change(&mut caller, &namespaces()), [(30, DISCOVERY_CHANGED)]);
    let one = Arc::new(namespaces().followed_by(vec![namespace(0)], 0));
    assert_eq!(change(&mut caller, &one), [], "it has not looked yet");
    let (page, _) = ask(&mut caller, &log_of(log::DISCOVERY, 3072));
    assert_ne!(page[..8], first);
    let text = |text: &str| text.to_owned();
    let told = [(1, text("192.0.2.1"), text("4420")), (7, text("198.51.100.1"), text("4421"))];
    assert_eq!(entries(&page), told);
    let before = generation(&mut caller);

    // A volume grows, or the access to it changes: neither is a matter of discovery.
    let grown = Namespace { bytes: 1 << 20, access: AccessState::Change, ..namespace(0) };
    let two = Arc::new(one.followed_by(vec![grown], 1));
    assert_eq!(change(&mut caller, &two), []);
    assert_eq!(generation(&mut caller), before);
    let three = Arc::new(two.followed_by(vec![namespace(0), namespace(1)], 1));
    assert_eq!(change(&mut caller, &three), [(31, DISCOVERY_CHANGED)]);
    assert_ne!(generation(&mut caller), before);
    subsystem.paths().set_ports(ports);
    assert_eq!(change(&mut caller, &three), [], "the ports are the same");
}

#[test]
fn a_host_is_told_of_access_that_changes_and_its_commands_go_elsewhere() {
    let subsystem = subsystem();
    let mut caller = admin_queue(&subsystem);
    let mut queue = Caller::new(&subsystem);
    queue.take(&io_queue(1, 1)).unwrap();
    queue.told();
    let (page, _) = ask(&mut caller, &identify_of(identify::CONTROLLER, 0));
    let announced = feature::NAMESPACE_NOTICES | feature::ANA_NOTICES;
    assert_eq!(page[92..96], announced.to_le_bytes());
    let groups = u32::from_le_bytes(page[348..352].try_into().unwrap());
    let most = u32::from_le_bytes(page[540..544].try_into().unwrap());
    // Linux asks for so much at once.
    let whole = log_of(log::ANA, (16 + 32 * groups + 4 * most) as usize);
    let states = |page: &[u8]| {
        let group = |at: usize| {
            let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
            assert_eq!((word(at), word(at + 4), word(at + 32)), (word(at + 32), 1, word(at)));
            (word(at), page[at + 16])
        };
        assert_eq!(page[8], 2);
        (page[0], [group(16), group(52)])
    };
    let (page, status) = ask(&mut caller, &whole);
    assert_eq!((status, states(&page)), (Status::SUCCESS, (0, [(1, 1), (5, 1)])));
    wait_for(&mut caller, announced, &[30, 31]);

    let list = |access| vec![Namespace { access, ..namespace(0) }, namespace(4)];
    let lists = [AccessState::Inaccessible, AccessState::Change, AccessState::Optimized];
    let mut now = namespaces();
    // Only the access to the first is to differ.
    now = Arc::new(now.followed_by(vec![namespace(0), namespace(4)], 0));
    change(&mut caller, &now);
    ask(&mut caller, &log_of(log::CHANGED_NAMESPACES, 4096));
    caller.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, 32), &[])).unwrap();
    let refused = [Some(Status::ANA_INACCESSIBLE), Some(Status::ANA_TRANSITION), None];
    for ((access, refused), at) in lists.into_iter().zip(refused).zip(1..) {
        now = Arc::new(now.followed_by(list(access), at));
        assert_eq!(change(&mut caller, &now), [(30 + at as u16, ACCESS_CHANGED)]);
        caller.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, 32 + at as u16), &[])).unwrap();
        assert_eq!(change(&mut caller, &now), [], "nothing is new");
        assert_eq!(change(&mut queue, &now), []);
        let (page, _) = ask(&mut caller, &whole);
        let state = [3, 0x0f, 1][at as usize - 1];
        assert_eq!(states(&page), (at as u8, [(1, state), (5, 1)]));
        let wanted = refused.unwrap_or(Status::SUCCESS);
        let one = |namespace: u8, opcode| blocks(opcode, 7, 0, 1).with(4, &[namespace, 0, 0, 0]);
        for opcode in [io::READ, io::WRITE] {
            let data = if opcode == io::WRITE { &[1; 512][..] } else { &[] };
            let place = if opcode == io::WRITE { in_capsule(512) } else { transport(512) };
            queue.take(&capsule(&one(1, opcode).with_descriptor(place), data)).unwrap();
            assert_eq!(status_of(&queue.told()), wanted);
        }
        assert_eq!(ask(&mut queue, &one(1, io::FLUSH)).1, wanted);
        let all = one(1, io::FLUSH).with(4, &[0xff; 4]);
        assert_eq!(ask(&mut queue, &all).1, wanted);
        assert_eq!(ask(&mut queue, &one(5, io::FLUSH)).1, Status::SUCCESS);
    }
}
