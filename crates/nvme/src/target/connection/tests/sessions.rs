//! Whole sessions: the answer of each command, and a volume compared with plain bytes.

use std::sync::Arc;

use proptest::prelude::*;

use super::hosts::*;
use crate::target::connection::Violation;
use crate::target::io::{Namespace, Namespaces};
use crate::wire::pdu::{Data, fatal};
use crate::wire::{
    Completion, Descriptor, NvmeCommand, Status, admin, fabrics, feature, identify, io, log,
    property,
};

pub(super) fn status_of(said: &[Said]) -> Status {
    let Some(Said::Completed(Completion { status, .. })) = said.last() else {
        panic!("no completion: {said:?}")
    };
    *status
}

/// Sends a command. Returns its data and status.
pub(super) fn ask(caller: &mut Caller, command: &NvmeCommand) -> (Vec<u8>, Status) {
    caller.take(&capsule(command, &[])).unwrap();
    let said = caller.told();
    let data = said.iter().find_map(|said| match said {
        Said::Data(_, data) => Some(data.clone()),
        _ => None,
    });
    (data.unwrap_or_default(), status_of(&said))
}

pub(super) fn identify_of(structure: u8, namespace: u32) -> NvmeCommand {
    NvmeCommand::new(admin::IDENTIFY, 9)
        .with(4, &namespace.to_le_bytes())
        .with(40, &[structure])
        .with_descriptor(transport(4096))
}

pub(super) fn log_of(page: u8, bytes: usize) -> NvmeCommand {
    NvmeCommand::new(admin::GET_LOG_PAGE, 9)
        .with(40, &[page, 0])
        .with(42, &((bytes / 4 - 1) as u16).to_le_bytes())
        .with_descriptor(transport(bytes))
}

#[test]
fn a_host_finds_its_namespaces() {
    let mut caller = admin_queue(&subsystem());
    let (list, status) = ask(&mut caller, &identify_of(identify::ACTIVE_NAMESPACES, 0));
    assert!(status.is_success());
    assert_eq!(list[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    let (list, _) = ask(&mut caller, &identify_of(identify::ACTIVE_NAMESPACES, 1));
    assert_eq!(list[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
    let (one, _) = ask(&mut caller, &identify_of(identify::NAMESPACE, 1));
    assert_eq!((&one[..8], one[99]), (&BLOCKS.to_le_bytes()[..], 0));
    let (sealed, _) = ask(&mut caller, &identify_of(identify::NAMESPACE, 5));
    assert_eq!(sealed[99], 1);
    let (none, status) = ask(&mut caller, &identify_of(identify::NAMESPACE, 2));
    assert_eq!((none, status), (vec![0; 4096], Status::SUCCESS));
    let (ids, _) = ask(&mut caller, &identify_of(identify::DESCRIPTORS, 1));
    assert_eq!(ids[4..20], one[104..120], "one identifier everywhere");
    assert_ne!(one[104..120], sealed[104..120]);
    let (_, status) = ask(&mut caller, &identify_of(identify::DESCRIPTORS, 2));
    assert_eq!(status, Status::INVALID_NAMESPACE.final_());
}

#[test]
fn a_shutdown_is_answered_after_a_flush_of_all_volumes() {
    let mut caller = admin_queue(&subsystem());
    let set = |value: u64| {
        let command = NvmeCommand::new(admin::FABRICS, 5)
            .with(4, &[fabrics::PROPERTY_SET])
            .with(44, &property::CC.to_le_bytes())
            .with(48, &value.to_le_bytes());
        capsule(&command, &[])
    };
    caller.flushes_wait = true;
    caller.take(&set(0x0046_4001)).unwrap();
    assert_eq!(caller.told(), [], "the flush is under way");
    assert_eq!(caller.flushed, [4, 0]);
    let keep_alive = NvmeCommand::new(admin::KEEP_ALIVE, 6);
    assert_eq!(ask(&mut caller, &keep_alive).1, Status::SUCCESS, "others are answered meanwhile");
    caller.end_flushes();
    assert_eq!(status_of(&caller.told()), Status::SUCCESS);
    let get = NvmeCommand::new(admin::FABRICS, 7)
        .with(4, &[fabrics::PROPERTY_GET])
        .with(44, &property::CSTS.to_le_bytes());
    caller.take(&capsule(&get, &[])).unwrap();
    let Some(Said::Completed(completion)) = caller.told().pop() else { panic!("no answer") };
    assert_eq!(completion.result, 9, "ready, and the shutdown is complete");
    caller.take(&set(0x0046_4001)).unwrap();
    assert_eq!(status_of(&caller.told()), Status::SUCCESS);
    assert_eq!(caller.flushed, [4, 0], "once is enough");
}

#[test]
fn commands_that_are_not_supported_are_answered() {
    let mut caller = admin_queue(&subsystem());
    let (_, status) = ask(&mut caller, &NvmeCommand::new(0xc0, 3));
    assert_eq!(status, Status::INVALID_OPCODE.final_());
    let (_, status) = ask(&mut caller, &identify_of(0x77, 0));
    assert_eq!(status, Status::INVALID_FIELD.final_());
    let (_, status) = ask(&mut caller, &log_of(0x99, 512));
    assert_eq!(status, Status::INVALID_LOG_PAGE.final_());
    let (_, status) = ask(&mut caller, &NvmeCommand::new(admin::SET_FEATURES, 3).with(40, &[0x77]));
    assert_eq!(status, Status::INVALID_FIELD.final_());
    let mut queue = Caller::new(&subsystem());
    queue.take(&initialize(0)).unwrap();
    queue.told();
    let (_, status) = ask(&mut queue, &identify_of(identify::CONTROLLER, 0));
    assert_eq!(status, Status::SEQUENCE_ERROR.final_(), "a queue is connected first");
}

#[test]
fn a_host_that_waits_for_changes_is_told_once_until_it_looks() {
    let mut caller = admin_queue(&subsystem());
    let events = NvmeCommand::new(admin::SET_FEATURES, 3)
        .with(40, &[feature::ASYNC_EVENTS])
        .with(44, &feature::NAMESPACE_NOTICES.to_le_bytes());
    assert!(ask(&mut caller, &events).1.is_success());
    caller.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, 30), &[])).unwrap();
    caller.take(&capsule(&NvmeCommand::new(admin::ASYNC_EVENT, 31), &[])).unwrap();
    assert_eq!(caller.told(), []);

    let grown = |bytes| Arc::new(Namespaces::new(vec![Namespace { bytes, ..namespace(0) }]));
    let mut out = Vec::new();
    caller.connection.namespaces_changed(&grown(1 << 20), &mut out);
    let told = said(&out);
    let [Said::Completed(Completion { id: 30, result: 0x0004_0002, .. })] = told[..] else {
        panic!("{told:?}")
    };
    out.clear();
    caller.connection.namespaces_changed(&grown(2 << 20), &mut out);
    assert_eq!(said(&out), [], "it has not looked yet");
    let (list, _) = ask(&mut caller, &log_of(log::CHANGED_NAMESPACES, 4096));
    assert_eq!(list[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    caller.connection.namespaces_changed(&grown(3 << 20), &mut out);
    assert_eq!(said(&out).len(), 1, "it has looked");
}

#[test]
fn only_the_host_of_a_controller_connects_queues_to_it() {
    let subsystem = subsystem();
    let mut admin = admin_queue(&subsystem);
    let refused = |bytes: &[u8]| {
        let mut queue = Caller::new(&subsystem);
        queue.take(&initialize(0)).unwrap();
        queue.told();
        queue.take(bytes).unwrap();
        assert!(!queue.connection.is_connected());
        let said = queue.told();
        let Some(Said::Completed(Completion { status, result, .. })) = said.last() else {
            panic!("{said:?}")
        };
        (status.without_advice(), *result)
    };
    let data_at = |at: u64| (Status::CONNECT_PARAMETERS, at | 1 << 16);
    assert_eq!(refused(&connect(0, 0xffff, "nqn.2026-11.io.example:b")), data_at(256));
    assert_eq!(refused(&connect(0, 7, NQN)), data_at(16));
    assert_eq!(refused(&connect(1, 7, NQN)), data_at(16));
    assert_eq!(refused(&connect(5, 1, NQN)), (Status::INVALID_QUEUE, 0));
    let mut other = connect(1, 1, NQN);
    other[72] = 8; // another host's identifier
    assert_eq!(refused(&other), data_at(512));

    let mut queue = Caller::new(&subsystem);
    queue.take(&io_queue(1, 1)).unwrap();
    assert_eq!(queue.connection.has_controller(), Some(true));
    assert_eq!(refused(&connect(1, 1, NQN)), (Status::SEQUENCE_ERROR, 0));
    admin.take(&enable(false)).unwrap();
    assert_eq!(queue.connection.has_controller(), Some(false));
}

#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    let subsystem = subsystem();
    let _admin = admin_queue(&subsystem);
    let ask_for = |messages: &[Vec<u8>]| {
        let mut queue = Caller::new(&subsystem);
        queue.take(&io_queue(1, 1)).unwrap();
        let write = blocks(io::WRITE, 5, 0, 2).with_descriptor(transport(1024));
        queue.take(&capsule(&write, &[])).unwrap();
        let Some(Said::Ready(Data { command: 5, tag, offset: 0, length: 1024 })) =
            queue.told().pop()
        else {
            panic!("no request for data")
        };
        assert_eq!(tag, 0);
        let failed = messages.iter().try_for_each(|message| queue.take(message));
        (failed, queue.told().pop())
    };
    let data = |offset, bytes: usize, last| host_data(5, 0, offset, &vec![1; bytes], last);
    let terminated = |reason, at| Some(Said::Terminate(reason, at));
    let field = |at| (Err(Violation::Field(at)), terminated(fatal::INVALID_FIELD, at));
    assert_eq!(ask_for(&[data(512, 512, true)]).0, Err(Violation::OutOfRange));
    assert_eq!(ask_for(&[data(0, 1536, true)]).1, terminated(fatal::OUT_OF_RANGE, 0));
    assert_eq!(ask_for(&[data(0, 1024, false)]), field(1));
    assert_eq!(ask_for(&[host_data(5, 1, 0, &[1; 1024], true)]), field(10));
    assert_eq!(ask_for(&[host_data(6, 0, 0, &[1; 1024], true)]), field(8));
    assert_eq!(ask_for(&[data(0, 1024, true), data(0, 512, true)]), field(10));
    let (good, said) = ask_for(&[data(0, 512, false), data(512, 512, true)]);
    assert_eq!(good, Ok(()));
    assert!(matches!(said, Some(Said::Completed(Completion { id: 5, .. }))), "{said:?}");
}

#[test]
fn a_second_command_with_an_identifier_in_flight_is_refused() {
    let subsystem = subsystem();
    let _admin = admin_queue(&subsystem);
    let mut queue = Caller::new(&subsystem);
    queue.take(&io_queue(1, 1)).unwrap();
    let write = blocks(io::WRITE, 5, 0, 2).with_descriptor(transport(1024));
    queue.take(&capsule(&write, &[])).unwrap();
    assert!(matches!(queue.told().pop(), Some(Said::Ready(Data { command: 5, tag: 0, .. }))));
    let ranges = [0; 16];
    for again in [
        capsule(&blocks(io::READ, 5, 0, 2).with_descriptor(transport(1024)), &[]),
        capsule(&blocks(io::FLUSH, 5, 0, 1), &[]),
        capsule(&blocks(io::WRITE, 5, 0, 1).with_descriptor(in_capsule(512)), &[1; 512]),
        capsule(&blocks(io::DATASET_MANAGEMENT, 5, 0, 1).with_descriptor(in_capsule(16)), &ranges),
    ] {
        queue.take(&again).unwrap();
        assert_eq!(status_of(&queue.told()), Status::ID_CONFLICT.final_());
    }
    let (_, status) = ask(&mut queue, &blocks(io::READ, 6, 0, 2).with_descriptor(transport(1024)));
    assert_eq!(status, Status::SUCCESS, "others go on");
    queue.take(&host_data(5, 0, 0, &[1; 1024], true)).unwrap();
    assert_eq!(status_of(&queue.told()), Status::SUCCESS, "so does the first");
    let (_, status) = ask(&mut queue, &blocks(io::READ, 5, 0, 2).with_descriptor(transport(1024)));
    assert_eq!(status, Status::SUCCESS, "its identifier is free");
}

#[test]
fn an_admin_queue_refuses_identifiers_in_flight_too() {
    let mut caller = admin_queue(&subsystem());
    let event = |id| capsule(&NvmeCommand::new(admin::ASYNC_EVENT, id), &[]);
    caller.take(&event(30)).unwrap();
    assert_eq!(caller.told(), []);
    let conflict = Status::ID_CONFLICT.final_();
    for again in [event(30), capsule(&NvmeCommand::new(admin::KEEP_ALIVE, 30), &[])] {
        caller.take(&again).unwrap();
        assert_eq!(status_of(&caller.told()), conflict);
    }
    let set_as = |id: u16, value: u64| {
        let command = NvmeCommand::new(admin::FABRICS, id)
            .with(4, &[fabrics::PROPERTY_SET])
            .with(44, &property::CC.to_le_bytes())
            .with(48, &value.to_le_bytes());
        capsule(&command, &[])
    };
    caller.flushes_wait = true;
    caller.take(&set_as(31, 0x0046_4001)).unwrap();
    assert_eq!(caller.told(), [], "the shutdown flushes");
    assert_eq!(ask(&mut caller, &NvmeCommand::new(admin::KEEP_ALIVE, 31)).1, conflict);
    caller.end_flushes();
    assert_eq!(status_of(&caller.told()), Status::SUCCESS);
    assert_eq!(ask(&mut caller, &NvmeCommand::new(admin::KEEP_ALIVE, 31)).1, Status::SUCCESS);
    // A reset ends the commands that wait.
    for value in [0x0046_0000, 0x0046_0001] {
        caller.take(&set_as(32, value)).unwrap();
        assert_eq!(status_of(&caller.told()), Status::SUCCESS);
    }
    caller.take(&event(30)).unwrap();
    assert_eq!(caller.told(), []);
}

#[test]
fn lists_of_ranges_are_asked_for_one_after_another() {
    let subsystem = subsystem();
    let _admin = admin_queue(&subsystem);
    let mut queue = Caller::new(&subsystem);
    queue.take(&io_queue(1, 1)).unwrap();
    queue.told();
    queue.volume.fill(7);
    let range =
        |first: u64| [&[0; 4][..], &1_u32.to_le_bytes(), &first.to_le_bytes(), &[0; 4080]].concat();
    for id in [5, 6, 7] {
        let command = deallocate(id, 1).with_descriptor(transport(4096));
        queue.take(&capsule(&command, &[])).unwrap();
    }
    let ready = |command, tag| Said::Ready(Data { command, tag, offset: 0, length: 4096 });
    assert_eq!(queue.told(), [ready(5, 0)], "the others wait");
    assert!(queue.take(&host_data(6, 1, 0, &range(1), true)).is_err(), "it was not asked for");

    let mut queue = Caller::new(&subsystem);
    queue.take(&io_queue(2, 1)).unwrap();
    queue.told();
    queue.volume.fill(7);
    for id in [5, 6] {
        let command = deallocate(id, 1).with_descriptor(transport(4096));
        queue.take(&capsule(&command, &[])).unwrap();
    }
    let again = capsule(&deallocate(5, 1).with_descriptor(transport(4096)), &[]);
    queue.take(&again).unwrap();
    assert_eq!(status_of(&queue.told()), Status::ID_CONFLICT.final_());
    queue.take(&host_data(5, 0, 0, &range(3), true)).unwrap();
    let said = queue.told();
    let [Said::Ready(next), Said::Completed(first)] = &said[..] else { panic!("{said:?}") };
    assert_eq!((next.command, first.id, first.status), (6, 5, Status::SUCCESS));
    queue.take(&host_data(6, 1, 0, &range(BLOCKS), true)).unwrap();
    assert_eq!(status_of(&queue.told()), Status::LBA_OUT_OF_RANGE.final_());
    let long = deallocate(8, 1).with_descriptor(transport(8196));
    assert_eq!(ask(&mut queue, &long).1, Status::SGL_LENGTH_INVALID.final_());
    let zeroed = queue.volume.chunks(512).map(|block| block == [0; 512]);
    assert_eq!(zeroed.filter(|it| *it).count(), 1);
    assert_eq!(
        (&queue.volume[3 * 512..4 * 512], queue.connection.flights.iter_mut().count()),
        (&[0; 512][..], 0)
    );
}

/// A command of a random session.
#[derive(Debug, Clone)]
enum Op {
    Read { first: u64, count: u16 },
    Write { first: u64, count: u16, in_capsule: bool, skip: usize, fill: u8 },
    Compare { write: Box<Op>, is_same: bool },
    Zero { first: u64, count: u16 },
    Deallocate { ranges: Vec<(u64, u32)>, in_capsule: bool, more: usize },
    Flush { namespace: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..BLOCKS + 4, 1..20_u16);
    let write = || {
        (range(), any::<bool>(), 0..16_usize, any::<u8>()).prop_map(
            |((first, count), in_capsule, skip, fill)| Op::Write {
                first,
                count: count.min(15),
                in_capsule,
                skip: 4 * skip,
                fill,
            },
        )
    };
    prop_oneof![
        range().prop_map(|(first, count)| Op::Read { first, count }),
        write(),
        (write(), any::<bool>())
            .prop_map(|(write, is_same)| Op::Compare { write: Box::new(write), is_same }),
        range().prop_map(|(first, count)| Op::Zero { first, count }),
        (prop::collection::vec((0..BLOCKS + 1, 0..9_u32), 1..5), any::<bool>(), 0..40_usize)
            .prop_map(|(ranges, in_capsule, more)| Op::Deallocate { ranges, in_capsule, more }),
        prop_oneof![Just(1_u32), Just(u32::MAX), Just(2)]
            .prop_map(|namespace| Op::Flush { namespace }),
    ]
}

/// Returns the messages of a command, and its expected outcome on a model of the volume: the
/// status, and the data of a read.
fn play(op: &Op, id: u16, model: &mut [u8]) -> (Vec<u8>, Status, Option<Vec<u8>>) {
    let fits = |first: u64, count: u64| first + count <= BLOCKS;
    let bytes = |first: u64, count: u64| (first * 512) as usize..((first + count) * 512) as usize;
    let out_of_range = Status::LBA_OUT_OF_RANGE.final_();
    match *op {
        Op::Read { first, count } => {
            let length = usize::from(count) * 512;
            let command = blocks(io::READ, id, first, count).with_descriptor(transport(length));
            let is_good = fits(first, count.into());
            let data = is_good.then(|| model[bytes(first, count.into())].to_vec());
            let status = if is_good { Status::SUCCESS } else { out_of_range };
            (capsule(&command, &[]), status, data)
        }
        Op::Write { first, count, in_capsule: inside, skip, fill } => {
            let data = vec![fill; usize::from(count) * 512];
            let is_good = fits(first, count.into());
            if is_good {
                model[bytes(first, count.into())].fill(fill);
            }
            let status = if is_good { Status::SUCCESS } else { out_of_range };
            (with_data(io::WRITE, id, first, &data, inside.then_some(skip), is_good), status, None)
        }
        Op::Compare { ref write, is_same } => {
            let Op::Write { first, count, in_capsule: inside, skip, fill } = **write else {
                unreachable!("a comparison is made from a write")
            };
            let is_good = fits(first, count.into());
            let mut data = vec![fill; usize::from(count) * 512];
            let mut status = out_of_range;
            if is_good {
                data.copy_from_slice(&model[bytes(first, count.into())]);
                status = Status::SUCCESS;
            }
            if !is_same {
                let at = usize::from(fill) * 3 % data.len();
                data[at] ^= 1 << (fill % 8);
                status = if is_good { Status::COMPARE_FAILURE.final_() } else { out_of_range };
            }
            let skip = inside.then_some(skip);
            (with_data(io::COMPARE, id, first, &data, skip, is_good), status, None)
        }
        Op::Zero { first, count } => {
            let is_good = fits(first, count.into());
            if is_good {
                model[bytes(first, count.into())].fill(0);
            }
            let status = if is_good { Status::SUCCESS } else { out_of_range };
            (capsule(&blocks(io::WRITE_ZEROES, id, first, count), &[]), status, None)
        }
        Op::Deallocate { ref ranges, in_capsule: inside, more } => {
            let is_good = ranges.iter().all(|&(first, count)| fits(first, count.into()));
            let mut list = Vec::new();
            for &(first, count) in ranges {
                list.extend([0; 4]);
                list.extend(count.to_le_bytes());
                list.extend(first.to_le_bytes());
                if is_good {
                    model[bytes(first, count.into())].fill(0);
                }
            }
            list.resize(list.len() + 4 * more, 0xee); // hosts may send more than they name
            let command = deallocate(id, ranges.len());
            let message = placed(command, &list, inside.then_some(0), true);
            (message, if is_good { Status::SUCCESS } else { out_of_range }, None)
        }
        Op::Flush { namespace } => {
            let command = NvmeCommand::new(io::FLUSH, id).with(4, &namespace.to_le_bytes());
            let status = match namespace {
                2 => Status::INVALID_NAMESPACE.final_(),
                _ => Status::SUCCESS,
            };
            (capsule(&command, &[]), status, None)
        }
    }
}

/// Returns a command with data, either `inside` the capsule or, if `is_asked`, in two messages that
/// the controller asks for.
fn with_data(
    opcode: u8,
    id: u16,
    first: u64,
    data: &[u8],
    inside: Option<usize>,
    is_asked: bool,
) -> Vec<u8> {
    placed(blocks(opcode, id, first, (data.len() / 512) as u16), data, inside, is_asked)
}

/// Returns a Dataset Management command that deallocates `ranges` ranges.
fn deallocate(id: u16, ranges: usize) -> NvmeCommand {
    NvmeCommand::new(io::DATASET_MANAGEMENT, id)
        .with(4, &1_u32.to_le_bytes())
        .with(40, &[(ranges - 1) as u8])
        .with(44, &[1 << 2])
}

/// Returns a command and its data, placed as [`with_data`] does.
fn placed(command: NvmeCommand, data: &[u8], inside: Option<usize>, is_asked: bool) -> Vec<u8> {
    let id = command.id();
    if let Some(skip) = inside {
        let place = Descriptor { address: skip as u64, ..in_capsule(data.len()) };
        return capsule(&command.with_descriptor(place), &[&vec![0xee; skip], data].concat());
    }
    let mut message = capsule(&command.with_descriptor(transport(data.len())), &[]);
    if is_asked {
        // The tag is 0, because one command is in flight.
        let (one, two) = data.split_at(data.len() / 2);
        message.extend(host_data(id, 0, 0, one, false));
        message.extend(host_data(id, 0, one.len(), two, true));
    }
    message
}

proptest! {
    /// A volume behind a connection behaves like plain bytes, however the input is split.
    #[test]
    fn a_session_reads_what_it_wrote(
        ops in prop::collection::vec(op(), 1..30),
        cuts in prop::collection::vec(1..700_usize, 1..40),
    ) {
        let subsystem = subsystem();
        let _admin = admin_queue(&subsystem);
        let mut queue = Caller::new(&subsystem);
        queue.take(&io_queue(2, 1)).unwrap();
        queue.told();
        let mut model = vec![0; (BLOCKS * 512) as usize];
        let mut cuts = cuts.iter().cycle();
        for (id, op) in ops.iter().enumerate() {
            let (message, status, data) = play(op, id as u16, &mut model);
            let mut rest = &message[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                queue.take(now).unwrap();
                rest = later;
            }
            let said = queue.told();
            prop_assert_eq!(status_of(&said), status, "{:?}", op);
            let read = said.into_iter().find_map(|said| match said {
                Said::Data(_, data) => Some(data),
                _ => None,
            });
            prop_assert_eq!(read, data);
        }
        prop_assert_eq!(&queue.volume, &model);
        prop_assert_eq!(queue.connection.flights.iter_mut().count(), 0);
        prop_assert_eq!(queue.connection.end_of_input(), Ok(()));
    }

    /// Answers do not depend on where the input is split.
    #[test]
    fn cuts_change_nothing(
        ops in prop::collection::vec(op(), 1..12),
        cuts in prop::collection::vec(1..300_usize, 1..20),
    ) {
        let play_all = |cuts: &[usize]| {
            let subsystem = subsystem();
            let _admin = admin_queue(&subsystem);
            let mut queue = Caller::new(&subsystem);
            let mut model = vec![0; (BLOCKS * 512) as usize];
            let ops = ops.iter().enumerate();
            let messages = ops.map(|(id, op)| play(op, id as u16, &mut model).0);
            let all = io_queue(1, 1).into_iter().chain(messages.flatten()).collect::<Vec<_>>();
            let mut rest = &all[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                queue.take(now).unwrap();
                rest = later;
            }
            (queue.out, queue.volume)
        };
        prop_assert_eq!(play_all(&cuts), play_all(&[usize::MAX]));
    }
}
