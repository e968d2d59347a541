//! Hosts of NVMe over TCP that reserve a namespace of a server, through sockets.

use std::collections::VecDeque;
use std::path::Path;

use floe_block::WriteMode;
use floe_nvme::wire::{Status, feature, io};
use floe_server::persistent::StateDir;
use floe_testkit::PATIENCE;
use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, CommandError, HostCommand, HostError, Payload, Range};

use crate::rig::{Rig, Setup};

const NQN: &str = "nqn.2026-11.io.example:floe";
const BLOCK: Range = Range { namespace: 1, first: 0, blocks: 1 };
/// CPTPL of Reservation Register: all survives a restart.
const PERSIST: u32 = 3 << 30;

fn setup(state: Option<&Path>) -> Setup {
    let mut setup = Setup::new(WriteMode::Back);
    setup.config.listen = vec!["nvme-tcp://127.0.0.1:0".parse().unwrap()];
    setup.config.nvme.nqn = Some(NQN.to_owned());
    setup.config.state = state.map(|dir| StateDir::new(dir, true));
    setup
}

/// A host with so many I/O queues.
struct Host {
    admin: Controller,
    queues: Vec<IoQueue>,
}

impl Host {
    fn new(rig: &Rig, host: u8, queues: u16) -> Self {
        let address = rig.nvme[0].strip_prefix("nvme-tcp://").unwrap();
        let access = Access {
            host: format!("nqn.2026-11.io.example:host{host}"),
            host_id: [host; 16],
            timeout: Some(PATIENCE),
            ..Access::new(address, NQN)
        };
        let mut admin = Controller::connect(&access).unwrap();
        admin.set_queues(queues).unwrap();
        let queues = (1..=queues).map(|queue| admin.io_queue(queue, 32).unwrap()).collect();
        Self { admin, queues }
    }

    fn reserve(&mut self, opcode: u8, word: u32, keys: &[u64]) -> Status {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let payload = Payload::ToController(data);
        let command = HostCommand::new("reservation", opcode, 1, payload).dword(10, word);
        status_of(self.queues[0].connection().call(command).map(drop))
    }

    fn register(&mut self, word: u32, key: u64) -> Status {
        self.reserve(io::RESERVATION_REGISTER, word, &[0, key])
    }

    fn acquire(&mut self, kind: u32, key: u64) -> Status {
        self.reserve(io::RESERVATION_ACQUIRE, kind << 8, &[key, 0])
    }

    /// Preempts and aborts.
    fn preempt(&mut self, kind: u32, key: u64, preempted: u64) -> Status {
        self.reserve(io::RESERVATION_ACQUIRE, kind << 8 | 2, &[key, preempted])
    }

    fn report(&mut self) -> Vec<u8> {
        let payload = Payload::FromController(1024);
        let command = HostCommand::new("report", io::RESERVATION_REPORT, 1, payload);
        let command = command.dword(10, 255).dword(11, 1);
        self.queues[0].connection().call(command).unwrap().data
    }

    /// Returns the key of the holder that the report names.
    fn holder(&mut self) -> Option<u64> {
        let report = self.report();
        let held = |entry: &&[u8]| entry[2] & 1 != 0;
        let entry = report[64..].chunks(64).find(held)?;
        Some(u64::from_le_bytes(entry[8..16].try_into().unwrap()))
    }

    /// Writes and reads a block on each queue. Returns what all of them agree on.
    fn rights(&mut self) -> (Status, Status) {
        let mut rights = self.queues.iter_mut().map(|queue| {
            let written = status_of(queue.write(BLOCK, vec![1; 512], false));
            (status_of(queue.read(BLOCK, 512).map(drop)), written)
        });
        let first = rights.next().unwrap();
        assert!(rights.all(|it| it == first));
        first
    }
}

fn status_of(result: Result<(), HostError>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(HostError::Command(CommandError { status, .. })) => Status::of_field(status.0 << 1),
        Err(error) => panic!("{error}"),
    }
}

const DONE: Status = Status::SUCCESS;
const CONFLICT: Status = Status::RESERVATION_CONFLICT.final_();

#[test]
fn a_reservation_binds_each_queue_of_other_hosts_and_survives_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let rig = setup(Some(state.path())).start().unwrap();
    let (mut one, mut two) = (Host::new(&rig, 1, 3), Host::new(&rig, 2, 4));
    two.admin.request_event().unwrap();
    assert_eq!(one.register(PERSIST, 11), DONE);
    assert_eq!(two.register(0, 22), DONE);
    assert_eq!(one.acquire(1, 11), DONE);
    assert_eq!((one.rights(), two.rights()), ((DONE, DONE), (DONE, CONFLICT)));
    assert_eq!(one.preempt(2, 11, 22), DONE);
    assert_eq!(two.admin.next_event().unwrap(), 0x0080_0006, "its registration is gone");
    let page = two.admin.log_page(0x80, 0, 64).unwrap();
    assert_eq!((page[0], page[8], page[12]), (1, 1, 1));
    assert_eq!(one.preempt(2, 11, 11), DONE, "it changes the type of its own");
    assert_eq!((one.rights(), two.rights()), ((DONE, DONE), (CONFLICT, CONFLICT)));
    let report = one.report();
    rig.end();

    let rig = setup(Some(state.path())).start().unwrap();
    let (mut one, mut two) = (Host::new(&rig, 1, 2), Host::new(&rig, 2, 2));
    assert_eq!(one.report(), report);
    assert_eq!((one.rights(), two.rights()), ((DONE, DONE), (CONFLICT, CONFLICT)));
    assert_eq!(one.register(PERSIST, 11), DONE, "a host that got no answer asks again");
    assert_eq!(one.register(0, 12), CONFLICT, "another key is no answer to that");
    let ignores_key = 1 << 3;
    assert_eq!(one.reserve(io::RESERVATION_REGISTER, 2 | ignores_key, &[0, 12]), DONE);
    assert_eq!(one.acquire(2, 11), CONFLICT);
    assert_eq!(one.acquire(2, 12), DONE, "it has it still");
    // Without persistence the next restart ends it.
    let persistence = HostCommand::set_features(feature::RESERVATION_PERSISTENCE, 0);
    one.admin.call(persistence.bytes(4, &1_u32.to_le_bytes())).unwrap();
    rig.end();
    let rig = setup(Some(state.path())).start().unwrap();
    let mut two = Host::new(&rig, 2, 2);
    assert_eq!(two.rights(), (DONE, DONE));
    assert_eq!(two.report()[..64], [0; 64]);
    rig.end();
}

#[test]
fn hosts_that_take_the_disk_from_each_other_never_write_after_they_lost_it() {
    const HOSTS: u8 = 3;
    const ROUNDS: usize = 60;
    let rig = setup(None).start().unwrap();
    std::thread::scope(|scope| {
        for host in 1..=HOSTS {
            let rig = &rig;
            scope.spawn(move || {
                let mut me = Host::new(rig, host, 2);
                let key = u64::from(host);
                let stamp = vec![host; 512];
                let mut held = 0;
                for round in 0..ROUNDS {
                    assert_eq!(me.register(0, key), DONE);
                    let taken = match me.holder() {
                        Some(holder) if holder != key => me.preempt(2, key, holder),
                        _ => me.acquire(2, key),
                    };
                    assert!([DONE, CONFLICT].contains(&taken), "{taken:?}");
                    // Writes under way when another host takes the disk.
                    let [one, other] = &mut me.queues[..] else { panic!("two queues") };
                    let mut writes = VecDeque::new();
                    for _ in 0..8 {
                        let write = BLOCK.write(stamp.clone(), false);
                        writes.push_back(other.connection().submit(write).unwrap());
                    }
                    if taken == DONE && status_of(one.write(BLOCK, stamp.clone(), false)) == DONE {
                        match one.read(BLOCK, 512) {
                            Ok(found) => {
                                assert_eq!(found, stamp, "round {round} of host {host}");
                                held += 1;
                            }
                            Err(error) => assert_eq!(status_of(Err(error)), CONFLICT),
                        }
                    }
                    for _ in writes {
                        let status = other.connection().next_completion().unwrap().status;
                        let status = Status::of_field(status.0 << 1);
                        assert!([DONE, CONFLICT].contains(&status), "{status:?}");
                    }
                }
                assert!(held > 0, "host {host} had it once");
            });
        }
    });
    rig.end();
}

#[test]
fn a_reservation_that_cannot_be_saved_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let rig = setup(Some(&state)).start().unwrap();
    std::fs::write(&state, "a file is no folder").unwrap();
    let mut host = Host::new(&rig, 1, 1);
    assert_eq!(host.register(PERSIST, 11), Status::INTERNAL_ERROR.final_());
    assert_eq!(host.report()[..64], [0; 64]);
    assert_eq!(host.register(0, 11), DONE, "it need not survive");
    std::fs::remove_file(&state).unwrap();
    assert_eq!(host.register(PERSIST, 11), DONE);
    rig.end();
    let mut files = std::fs::read_dir(&state).unwrap().map(|file| file.unwrap().path());
    let file = files.find(|file| file.extension().is_some_and(|it| it == "json")).unwrap();
    let mut text = std::fs::read(&file).unwrap();
    text[20] ^= 1;
    std::fs::write(&file, text).unwrap();
    let refused = setup(Some(&state)).start().err().expect("it is damaged").to_string();
    let named = file.display().to_string();
    assert!(refused.contains(&named) && refused.contains("restore them"), "{refused}");
}

#[test]
fn volumes_that_others_use_cannot_be_reserved() {
    let mut beside = setup(None);
    beside.config.listen.push("nbd://127.0.0.1:0".parse().unwrap());
    let rig = beside.start().unwrap();
    let mut host = Host::new(&rig, 1, 1);
    assert_eq!(host.register(0, 11), Status::INVALID_OPCODE.final_());
    let identified = host.admin.call(HostCommand::identify(0, 1)).unwrap().data;
    assert_eq!(identified[31], 0);
    rig.end();
}
