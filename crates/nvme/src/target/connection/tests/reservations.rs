//! Several hosts that reserve a namespace, on connections of their own.

use std::sync::Arc;

use super::hosts::*;
use super::sessions::{ask, identify_of, log_of, status_of};
use crate::target::io::{Namespace, Namespaces};
use crate::target::subsystem::Subsystem;
use crate::wire::{Completion, NvmeCommand, Status, admin, feature, identify, io, log};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.final_();
const EVENT: u64 = 0x0080_0006;

/// A host with an admin queue and an I/O queue.
struct Host {
    admin: Caller,
    queue: Caller,
}

impl Host {
    fn new(subsystem: &Arc<Subsystem>, host: u8) -> Self {
        let mut admin = Caller::new(subsystem);
        for message in
            [initialize(0), of_host(connect(0, 0xffff, NQN), host), enable(true), queues(4)]
        {
            admin.take(&message).unwrap();
        }
        let controller = admin.told().iter().find_map(|said| match said {
            Said::Completed(completion) => Some(completion.result as u16),
            _ => None,
        });
        let mut queue = Caller::new(subsystem);
        queue.take(&of_host(io_queue(1, controller.unwrap()), host)).unwrap();
        assert!(status_of(&queue.told()).is_success());
        Self { admin, queue }
    }

    fn reserve(&mut self, opcode: u8, word: u32, keys: [u64; 2]) -> Status {
        self.begin(opcode, word, keys);
        status_of(&self.queue.told())
    }

    /// Sends a command on namespace 1 whose data is keys.
    fn begin(&mut self, opcode: u8, word: u32, keys: [u64; 2]) {
        let bytes = if opcode == io::RESERVATION_RELEASE { 8 } else { 16 };
        let data = &keys.map(u64::to_le_bytes).concat()[..bytes];
        let command = blocks(opcode, 40, 0, 1).with(40, &word.to_le_bytes());
        self.queue.take(&capsule(&command.with_descriptor(in_capsule(bytes)), data)).unwrap();
    }

    fn register(&mut self, key: u64) {
        let status = self.reserve(io::RESERVATION_REGISTER, 0, [0, key]);
        assert_eq!(status, Status::SUCCESS);
    }

    fn acquire(&mut self, key: u64, kind: u32) -> Status {
        self.reserve(io::RESERVATION_ACQUIRE, kind << 8, [key, 0])
    }

    fn clear(&mut self, key: u64) -> Status {
        self.reserve(io::RESERVATION_RELEASE, 1, [key, 0])
    }

    /// Sends each command that reads or writes. Returns the statuses of those that read and of
    /// those that write.
    fn statuses(&mut self) -> (Vec<Status>, Vec<Status>) {
        let transfers = |opcode| blocks(opcode, 7, 0, 1);
        let sent = |caller: &mut Caller, opcode, data: &[u8]| {
            let command = transfers(opcode).with_descriptor(in_capsule(data.len()));
            caller.take(&capsule(&command, data)).unwrap();
            status_of(&caller.told())
        };
        let block = vec![1; 512];
        let queue = &mut self.queue;
        let reads = vec![
            ask(queue, &transfers(io::READ).with_descriptor(transport(512))).1,
            ask(queue, &transfers(io::VERIFY)).1,
            match sent(queue, io::COMPARE, &block) {
                Status::COMPARE_FAILURE => Status::SUCCESS,
                status if status == Status::COMPARE_FAILURE.final_() => Status::SUCCESS,
                status => status,
            },
        ];
        let ranges = [0_u32.to_le_bytes(), 1_u32.to_le_bytes(), [0; 4], [0; 4]].concat();
        let everywhere = transfers(io::FLUSH).with(4, &[0xff; 4]);
        let list = blocks(io::DATASET_MANAGEMENT, 7, 0, 1)
            .with(40, &[0; 4])
            .with(44, &4_u32.to_le_bytes())
            .with_descriptor(in_capsule(16));
        queue.take(&capsule(&list, &ranges)).unwrap();
        let deallocated = status_of(&queue.told());
        let writes = vec![
            sent(queue, io::WRITE, &block),
            ask(queue, &transfers(io::WRITE_ZEROES)).1,
            deallocated,
            ask(queue, &transfers(io::FLUSH)).1,
            ask(queue, &everywhere).1,
        ];
        (reads, writes)
    }

    /// Returns whether the host may read and write. All commands must agree.
    fn rights(&mut self) -> (bool, bool) {
        let (reads, writes) = self.statuses();
        let agreed = |statuses: Vec<Status>| {
            assert!(statuses.iter().all(|it| *it == statuses[0]), "{statuses:?}");
            assert!([Status::SUCCESS, CONFLICT].contains(&statuses[0]), "{statuses:?}");
            statuses[0].is_success()
        };
        (agreed(reads), agreed(writes))
    }

    fn report(&mut self) -> Vec<u8> {
        let command = blocks(io::RESERVATION_REPORT, 41, 0, 1)
            .with(40, &255_u32.to_le_bytes())
            .with(44, &1_u32.to_le_bytes())
            .with_descriptor(transport(1024));
        let (data, status) = ask(&mut self.queue, &command);
        assert_eq!(status, Status::SUCCESS);
        data
    }

    /// Lets both connections look at the reservations. Returns results of event requests.
    fn look(&mut self) -> Vec<u64> {
        let mut out = Vec::new();
        self.queue.connection.reservations_changed(&mut out);
        assert_eq!(out, []);
        self.admin.connection.reservations_changed(&mut out);
        let result = |said: &Said| match said {
            Said::Completed(Completion { result, status: Status::SUCCESS, .. }) => *result,
            other => panic!("{other:?}"),
        };
        said(&out).iter().map(result).collect()
    }
}

/// Three hosts: a holder, another registrant, and one that is not registered.
fn three(subsystem: &Arc<Subsystem>) -> [Host; 3] {
    let mut hosts = [1, 2, 3].map(|host| Host::new(subsystem, host));
    hosts[0].register(10);
    hosts[1].register(20);
    hosts
}

/// Sends a command that waits for the other hosts, and lets them look.
fn settled(hosts: &mut [Host; 3], command: impl FnOnce(&mut Host)) -> Status {
    command(&mut hosts[0]);
    for host in hosts.iter_mut() {
        host.look();
    }
    hosts[0].queue.take(&[]).unwrap();
    status_of(&hosts[0].queue.told())
}

#[test]
fn each_type_leaves_others_the_access_of_the_specification() {
    let subsystem = reserving();
    let mut hosts = three(&subsystem);
    let (all, reads, none) = ((true, true), (true, false), (false, false));
    let expected = [
        (1, [all, reads, reads]),
        (2, [all, none, none]),
        (3, [all, all, reads]),
        (4, [all, all, none]),
        (5, [all, all, reads]),
        (6, [all, all, none]),
    ];
    for (kind, rights) in expected {
        let acquired =
            settled(&mut hosts, |it| it.begin(io::RESERVATION_ACQUIRE, kind << 8, [10, 0]));
        assert_eq!(acquired, Status::SUCCESS);
        for (host, rights) in hosts.iter_mut().zip(rights) {
            assert_eq!(host.rights(), rights, "{kind}");
        }
        let wanted = if kind < 5 { CONFLICT } else { Status::SUCCESS };
        let again = settled(&mut hosts, |it| it.begin(io::RESERVATION_ACQUIRE, kind << 8, [10, 0]));
        assert_eq!(again, Status::SUCCESS, "it has it");
        if kind < 5 {
            assert_eq!(hosts[1].acquire(20, kind), wanted);
        }
        assert_eq!(hosts[2].acquire(20, kind), CONFLICT, "it is not registered");
        let report = hosts[2].report();
        assert_eq!((report[4], report[5]), (kind as u8, 2));
        assert_eq!(hosts[0].reserve(io::RESERVATION_RELEASE, kind << 8, [11, 0]), CONFLICT);
        let release =
            |host: &mut Host, kind: u32| host.reserve(io::RESERVATION_RELEASE, kind << 8, [10, 0]);
        assert_eq!(release(&mut hosts[0], 7), Status::INVALID_FIELD.final_());
        assert_eq!(release(&mut hosts[0], kind), Status::SUCCESS);
        assert_eq!(hosts[2].rights(), all);
    }
}

#[test]
fn a_host_that_lost_its_access_writes_nothing_more() {
    let subsystem = reserving();
    let mut hosts = three(&subsystem);
    // A write of the second host for which the data is to come, and a flush under way.
    let write = blocks(io::WRITE, 50, 0, 1).with_descriptor(transport(512));
    hosts[1].queue.take(&capsule(&write, &[])).unwrap();
    let [Said::Ready(ready)] = hosts[1].queue.told()[..] else { panic!("it is not asked for") };
    hosts[1].queue.flushes_wait = true;
    let flush = blocks(io::FLUSH, 51, 0, 1);
    hosts[1].queue.take(&capsule(&flush, &[])).unwrap();
    assert_eq!(hosts[1].queue.told(), []);

    let [first, second, third] = &mut hosts;
    first.begin(io::RESERVATION_ACQUIRE, 1 << 8 | 2, [10, 20]);
    third.look();
    second.look();
    first.queue.take(&[]).unwrap();
    assert_eq!(status_of(&first.queue.told()), Status::SUCCESS, "nobody held it");
    first.begin(io::RESERVATION_ACQUIRE, 1 << 8, [10, 0]);
    let mut told = first.queue.told();
    assert_eq!(told, [], "others have to look first");
    first.look();
    third.look();
    second.look();
    first.queue.take(&[]).unwrap();
    told.extend(first.queue.told());
    assert_eq!(told, [], "a flush that began before is under way");
    let late = host_data(50, ready.tag, 0, &[7; 512], true);
    second.queue.take(&late).unwrap();
    assert_eq!(status_of(&second.queue.told()), CONFLICT);
    assert_eq!(second.queue.volume[..512], [0; 512], "it is not written");
    second.queue.end_flushes();
    assert_eq!(status_of(&second.queue.told()), Status::SUCCESS, "it had begun before");
    first.queue.take(&[]).unwrap();
    assert_eq!(status_of(&first.queue.told()), Status::SUCCESS);
    assert_eq!((first.rights(), third.rights()), ((true, true), (true, false)));
}

#[test]
fn a_command_held_back_delays_no_other_host_and_is_refused_after_its_host_lost_its_access() {
    let subsystem = reserving();
    let [mut first, mut second, mut third] = three(&subsystem);
    second.queue.volume.fill(7);
    second.queue.holds_back = true;
    for (id, opcode) in [(51, io::WRITE_ZEROES), (52, io::WRITE_ZEROES)] {
        second.queue.take(&capsule(&blocks(opcode, id, 0, 1), &[])).unwrap();
    }
    first.begin(io::RESERVATION_ACQUIRE, 1 << 8, [10, 0]);
    for host in [&mut first, &mut second, &mut third] {
        host.look();
    }
    first.queue.take(&[]).unwrap();
    assert_eq!(status_of(&first.queue.told()), Status::SUCCESS, "nothing is under way");
    second.queue.let_through();
    let told = second.queue.told();
    let conflicts = told
        .iter()
        .filter(|it| matches!(it, Said::Completed(completion) if completion.status == CONFLICT));
    assert_eq!((conflicts.count(), told.len()), (2, 2), "{told:?}");
    assert!(second.queue.volume.iter().all(|byte| *byte == 7), "nothing is zeroed");
    // Without a reservation, it is carried out.
    assert_eq!(first.clear(10), Status::SUCCESS);
    second.queue.holds_back = true;
    second.queue.take(&capsule(&blocks(io::WRITE_ZEROES, 53, 0, 1), &[])).unwrap();
    second.queue.let_through();
    assert_eq!(second.queue.volume[..513], [[0; 512].as_slice(), &[7]].concat());
}

#[test]
fn a_host_that_is_gone_holds_nobody_up() {
    let subsystem = reserving();
    let [mut first, mut second, third] = three(&subsystem);
    drop(third);
    second.queue.flushes_wait = true;
    second.queue.take(&capsule(&blocks(io::FLUSH, 51, 0, 1), &[])).unwrap();
    first.begin(io::RESERVATION_ACQUIRE, 2 << 8, [10, 0]);
    second.look();
    first.queue.take(&[]).unwrap();
    assert_eq!(first.queue.told(), []);
    drop(second); // with its command
    first.queue.take(&[]).unwrap();
    assert_eq!(status_of(&first.queue.told()), Status::SUCCESS);
}

#[test]
fn hosts_are_told_what_others_did_to_their_registrations() {
    let subsystem = reserving();
    let mut hosts = three(&subsystem);
    for host in &mut hosts {
        for id in [30, 31] {
            host.admin.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, id), &[])).unwrap();
        }
        assert_eq!((host.admin.told(), host.look()), (vec![], vec![]));
    }
    let acquired = settled(&mut hosts, |it| it.begin(io::RESERVATION_ACQUIRE, 3 << 8, [10, 0]));
    assert_eq!(acquired, Status::SUCCESS);
    hosts.iter_mut().for_each(|host| assert_eq!(host.look(), []));
    let page = |host: &mut Host, retains: u8| {
        let (page, status) =
            ask(&mut host.admin, &log_of(log::RESERVATIONS, 64).with(41, &[retains << 7]));
        assert_eq!(status, Status::SUCCESS);
        (page[0], page[8], page[9], page[12])
    };
    assert_eq!(page(&mut hosts[1], 0), (0, 0, 0, 0), "nothing has happened");
    let [first, second, third] = &mut hosts;
    assert_eq!(first.reserve(io::RESERVATION_RELEASE, 3 << 8, [10, 0]), Status::SUCCESS);
    assert_eq!(first.clear(10), Status::SUCCESS);
    assert_eq!((first.look(), third.look()), (vec![], vec![]));
    assert_eq!(second.look(), [EVENT]);
    assert_eq!(second.look(), [], "once until it looks");
    assert_eq!(page(second, 1), (1, 2, 1, 1));
    assert_eq!(page(second, 1), (1, 2, 1, 1), "it keeps the entry");
    let command = log_of(log::RESERVATIONS, 64);
    second.admin.take(&capsule(&command, &[])).unwrap();
    let told = second.admin.told();
    let event = told.iter().find_map(|said| match said {
        Said::Completed(Completion { id: 31, result, .. }) => Some(*result),
        _ => None,
    });
    assert_eq!(event, Some(EVENT), "there is one more: {told:?}");
    assert_eq!(page(second, 0), (2, 3, 0, 1));
    assert_eq!(page(second, 0), (0, 0, 0, 0));

    // The feature masks each kind.
    let mask = |opcode, namespace: u32, value: u32| {
        NvmeCommand::new(opcode, 3)
            .with(4, &namespace.to_le_bytes())
            .with(40, &[feature::RESERVATION_MASK])
            .with(44, &value.to_le_bytes())
    };
    assert!(ask(&mut second.admin, &mask(admin::SET_FEATURES, u32::MAX, 1 << 1)).1.is_success());
    second.admin.take(&capsule(&mask(admin::GET_FEATURES, 1, 0), &[])).unwrap();
    let Some(Said::Completed(completion)) = second.admin.told().pop() else { panic!("no answer") };
    assert_eq!(completion.result, 1 << 1);
    let nowhere = ask(&mut second.admin, &mask(admin::GET_FEATURES, 2, 0)).1;
    assert_eq!(nowhere, Status::INVALID_NAMESPACE.final_());
    first.register(10);
    second.register(20);
    first.begin(io::RESERVATION_ACQUIRE, 1 << 8 | 1, [10, 20]);
    third.look();
    assert_eq!(second.look(), []);
    first.queue.take(&[]).unwrap();
    assert_eq!(status_of(&first.queue.told()), Status::SUCCESS);
    second.register(20);
    assert_eq!(first.clear(10), Status::SUCCESS);
    second.admin.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, 32), &[])).unwrap();
    assert_eq!(second.look(), [EVENT]);
    assert_eq!(page(second, 0), (3, 3, 0, 1));
}

#[test]
fn features_say_who_the_host_is_and_what_survives() {
    let subsystem = reserving();
    let mut host = Host::new(&subsystem, 9);
    let get = |id: u8, value: u32| {
        NvmeCommand::new(admin::GET_FEATURES, 3)
            .with(4, &1_u32.to_le_bytes())
            .with(40, &[id])
            .with(44, &value.to_le_bytes())
    };
    let whole = get(feature::HOST_ID, 1).with_descriptor(transport(16));
    assert_eq!(ask(&mut host.admin, &whole), (vec![9; 16], Status::SUCCESS));
    let short = get(feature::HOST_ID, 0).with_descriptor(transport(8));
    assert_eq!(ask(&mut host.admin, &short).1, Status::HOST_ID_FORMAT.final_());
    let set = NvmeCommand::new(admin::SET_FEATURES, 3).with(40, &[feature::HOST_ID]);
    assert_eq!(ask(&mut host.admin, &set).1, Status::SEQUENCE_ERROR.final_());
    let persists = get(feature::RESERVATION_PERSISTENCE, 0);
    assert_eq!(ask(&mut host.admin, &persists).1, Status::SUCCESS);
    let set = |value: u8| persists.with(0, &[admin::SET_FEATURES]).with(44, &[value]);
    assert_eq!(ask(&mut host.admin, &set(0)).1, Status::SUCCESS);
    assert_eq!(
        ask(&mut host.admin, &set(1)).1,
        Status::INVALID_FIELD.final_(),
        "there is no store"
    );
    let (page, _) = ask(&mut host.admin, &identify_of(identify::CONTROLLER, 0));
    assert_eq!(page[520] & 1 << 5, 1 << 5);
    let (page, _) = ask(&mut host.admin, &identify_of(identify::NAMESPACE, 1));
    assert_eq!((page[30] & 1, page[31]), (1, 0xfe));
    let (page, _) = ask(&mut host.admin, &log_of(log::COMMANDS, 4096));
    let effects = |opcode: u8| page[1024 + 4 * usize::from(opcode)];
    assert_eq!(io::RESERVATIONS.map(effects), [1; 4]);
}

#[test]
fn malformed_commands_change_nothing() {
    let subsystem = reserving();
    let mut host = Host::new(&subsystem, 1);
    host.register(10);
    let before = host.report();
    let invalid = Status::INVALID_FIELD.final_();
    let (register, acquire, release) =
        (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE, io::RESERVATION_RELEASE);
    for (opcode, word, keys, status) in [
        (register, 3, [10, 11], invalid),
        (register, 7, [10, 11], invalid),
        (register, 1 << 30, [10, 10], invalid),
        (register, 3 << 30, [10, 10], invalid),
        (register, 0, [10, 0], invalid),
        (register, 0, [10, 11], CONFLICT),
        (register, 1, [11, 0], CONFLICT),
        (register, 2, [11, 12], CONFLICT),
        (acquire, 1 << 8 | 3, [10, 0], invalid),
        (acquire, 0, [10, 0], invalid),
        (acquire, 7 << 8, [10, 0], invalid),
        (acquire, 1 << 8 | 1 << 3, [10, 0], invalid),
        (acquire, 1 << 8 | 1, [10, 77], CONFLICT),
        (acquire, 1 << 8, [11, 0], CONFLICT),
        (release, 2, [10, 0], invalid),
        (release, 1 | 1 << 3, [10, 0], invalid),
        (release, 1, [11, 0], CONFLICT),
    ] {
        assert_eq!(host.reserve(opcode, word, keys), status, "{opcode} {word:#x} {keys:?}");
    }
    for (opcode, length) in [(register, 8), (acquire, 0), (release, 4)] {
        let command = blocks(opcode, 40, 0, 1).with(40, &[0; 4]);
        let command = command.with_descriptor(in_capsule(length));
        host.queue.take(&capsule(&command, &vec![0; length])).unwrap();
        assert_eq!(status_of(&host.queue.told()), Status::SGL_LENGTH_INVALID.final_());
    }
    let beyond = blocks(release, 40, 0, 1).with_descriptor(in_capsule(8)).with(24, &[1]);
    host.queue.take(&capsule(&beyond, &[0; 8])).unwrap();
    assert_eq!(status_of(&host.queue.told()), Status::SGL_OFFSET_INVALID.final_());
    let nowhere = blocks(release, 40, 0, 1).with(4, &[0xff; 4]).with_descriptor(in_capsule(8));
    host.queue.take(&capsule(&nowhere, &[0; 8])).unwrap();
    assert_eq!(status_of(&host.queue.told()), Status::INVALID_NAMESPACE.final_());
    let report = |word: u32, extended: u32, bytes: usize| {
        blocks(io::RESERVATION_REPORT, 41, 0, 1)
            .with(40, &word.to_le_bytes())
            .with(44, &extended.to_le_bytes())
            .with_descriptor(transport(bytes))
    };
    for (command, status) in [
        (report(255, 0, 1024), Status::HOST_ID_FORMAT.final_()),
        (report(u32::MAX, 1, 4096), invalid),
        (report(255, 1, 1020), Status::SGL_LENGTH_INVALID.final_()),
    ] {
        assert_eq!(ask(&mut host.queue, &command).1, status);
    }
    assert_eq!(ask(&mut host.queue, &report(1, 1, 8)), (before[..8].to_vec(), Status::SUCCESS));
    assert_eq!(host.report(), before);
    // A host may send the data later.
    let command = blocks(register, 40, 0, 1).with(40, &2_u32.to_le_bytes());
    host.queue.take(&capsule(&command.with_descriptor(transport(16)), &[])).unwrap();
    let [Said::Ready(ready)] = host.queue.told()[..] else { panic!("it is not asked for") };
    let keys = [10_u64, 12].map(u64::to_le_bytes).concat();
    host.queue.take(&host_data(40, ready.tag, 0, &keys, true)).unwrap();
    assert_eq!(status_of(&host.queue.told()), Status::SUCCESS);
    assert_eq!(host.report()[72..80], 12_u64.to_le_bytes());
}

#[test]
fn linux_sends_more_than_a_release_needs_and_unregisters_by_a_key_of_zero() {
    let subsystem = reserving();
    let mut host = Host::new(&subsystem, 1);
    host.register(10);
    let clear = blocks(io::RESERVATION_RELEASE, 40, 0, 1).with(40, &1_u32.to_le_bytes());
    let keys = [10_u64, 0].map(u64::to_le_bytes).concat();
    host.queue.take(&capsule(&clear.with_descriptor(in_capsule(16)), &keys)).unwrap();
    assert_eq!(status_of(&host.queue.told()), Status::SUCCESS);
    assert_eq!(host.reserve(io::RESERVATION_REGISTER, 2, [10, 0]), CONFLICT, "it is cleared");
    host.register(11);
    assert_eq!(host.reserve(io::RESERVATION_REGISTER, 2, [12, 0]), CONFLICT);
    assert_eq!(host.reserve(io::RESERVATION_REGISTER, 2, [11, 0]), Status::SUCCESS);
    assert_eq!(host.reserve(io::RESERVATION_ACQUIRE, 1 << 8, [11, 0]), CONFLICT);
}

#[test]
fn where_nothing_can_be_reserved_hosts_see_nothing_of_it() {
    let subsystem = subsystem();
    let mut host = Host::new(&subsystem, 1);
    let (page, _) = ask(&mut host.admin, &identify_of(identify::CONTROLLER, 0));
    assert_eq!(page[520] & 1 << 5, 0);
    let (page, _) = ask(&mut host.admin, &identify_of(identify::NAMESPACE, 1));
    assert_eq!(page[31], 0);
    let invalid = Status::INVALID_OPCODE.final_();
    assert_eq!(host.reserve(io::RESERVATION_REGISTER, 0, [0, 1]), invalid);
    let (_, status) = ask(&mut host.admin, &log_of(log::RESERVATIONS, 64));
    assert_eq!(status, Status::INVALID_LOG_PAGE.final_());
    // One volume of several.
    let subsystem = reserving();
    subsystem.reservations().unwrap().exclude(["disk0".to_owned()]);
    let mut host = Host::new(&subsystem, 1);
    assert_eq!(host.reserve(io::RESERVATION_REGISTER, 0, [0, 1]), invalid);
    let (page, _) = ask(&mut host.admin, &identify_of(identify::NAMESPACE, 5));
    assert_eq!(page[31], 0xfe, "a read-only one can be reserved");
}

#[test]
fn a_reservation_stays_with_its_volume_when_namespaces_change() {
    let subsystem = reserving();
    let mut hosts = three(&subsystem);
    let status = settled(&mut hosts, |it| it.begin(io::RESERVATION_ACQUIRE, 2 << 8, [10, 0]));
    assert_eq!(status, Status::SUCCESS);
    // The volume has another index, and another is in its place.
    let moved = Namespace { name: "disk0".to_owned(), ..namespace(3) };
    let new = Namespace { name: "other".to_owned(), ..namespace(0) };
    let all = Arc::new(Namespaces::new(vec![new, moved]));
    hosts[1].queue.connection.namespaces_changed(&all, &mut Vec::new());
    let read = |id: u8| {
        let command = blocks(io::READ, 7, 0, 1).with(4, &[id, 0, 0, 0]);
        command.with_descriptor(transport(512))
    };
    assert_eq!(ask(&mut hosts[1].queue, &read(1)).1, Status::SUCCESS);
    assert_eq!(ask(&mut hosts[1].queue, &read(4)).1, CONFLICT);
    subsystem.reservations().unwrap().forget("disk0").unwrap();
    assert_eq!(ask(&mut hosts[1].queue, &read(4)).1, Status::SUCCESS);
}
