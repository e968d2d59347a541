//! The host against the target, in memory: who may connect, and who has to prove it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use floe_nvme::auth::{Group, Hash, Secret};
use floe_nvme::target::access::{AccessRules, HostSecrets};
use floe_nvme::target::connection::{Connection as Target, Event, Violation};
use floe_nvme::target::subsystem::Subsystem;
use floe_testkit::nvme_host::{
    Access, Authentication, Connection, Controller, DISCOVERY_NQN, HostCommand, HostError, Payload,
    QueueOptions, Transport, fabrics,
};

const NQN: &str = "nqn.2026-11.io.example:floe";
const HOST: &str = "nqn.2026-11.io.example:host";

thread_local! {
    /// The subsystem that hosts of this thread reach, and the most bytes that travel at once.
    static SERVED: RefCell<(Option<Arc<Subsystem>>, usize)> = const { RefCell::new((None, 0)) };
    /// The ends of connections that the target closed.
    static ENDS: RefCell<Vec<Violation>> = const { RefCell::new(Vec::new()) };
}

/// A connection whose other end is a target.
#[derive(Debug)]
struct Wire {
    target: Target,
    input: Vec<u8>,
    to_host: VecDeque<u8>,
    ended: bool,
    most: usize,
}

impl Transport for Wire {
    fn connect(_: &str, _: Option<Duration>) -> Result<Self, HostError> {
        let (subsystem, most) = SERVED.with_borrow(|(it, most)| (it.clone(), *most));
        let mut target = Target::new(subsystem.expect("it is served"), Arc::default(), None);
        // Every second one leaves its calculations to this test.
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        if CONNECTIONS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            target.defer_work();
        }
        let (input, to_host) = (Vec::new(), VecDeque::new());
        Ok(Self { target, input, to_host, ended: false, most })
    }

    fn send_some(&mut self, bytes: &[u8]) -> Result<usize, HostError> {
        if self.ended {
            return Err(HostError::HungUp);
        }
        let taken = bytes.len().min(self.most);
        self.input.extend_from_slice(&bytes[..taken]);
        let mut out = Vec::new();
        loop {
            match self.target.advance(&self.input, &mut out) {
                Ok((used, event)) => {
                    self.input.drain(..used);
                    match event {
                        Event::NeedMore => match self.target.deferred() {
                            Some(calculation) => calculation.run(),
                            None => break,
                        },
                        Event::Nothing | Event::Refused => {}
                        other => panic!("{other:?}"),
                    }
                }
                Err(violation) => {
                    ENDS.with_borrow_mut(|ends| ends.push(violation));
                    self.ended = true;
                    break;
                }
            }
        }
        self.to_host.extend(out);
        Ok(taken)
    }

    fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, HostError> {
        let taken = bytes.len().min(self.most).min(self.to_host.len());
        for byte in &mut bytes[..taken] {
            *byte = self.to_host.pop_front().expect("it was counted");
        }
        if taken == 0 { Err(HostError::HungUp) } else { Ok(taken) }
    }

    fn wait_to_send_or_receive(&mut self) -> Result<bool, HostError> {
        Ok(!self.to_host.is_empty())
    }
}

/// Numbers that differ from call to call, and are the same in each run.
fn random(bytes: &mut [u8]) -> bool {
    static LAST: AtomicU64 = AtomicU64::new(1);
    for byte in bytes {
        // Relaxed: the numbers need only differ.
        let last = LAST.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        *byte = (last ^ last >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_be_bytes()[0];
    }
    true
}

fn secret(seed: u8, transformation: Option<Hash>) -> Secret {
    Secret::new(&[seed; 48], transformation).expect("a good length")
}

/// Serves under these rules, with messages cut into pieces of so many bytes.
fn serve(rules: AccessRules, most: usize) -> Arc<Subsystem> {
    let subsystem = Subsystem::new(NQN, "1").expect("a good name");
    let subsystem = Arc::new(subsystem.with_access(Arc::new(RwLock::new(rules))));
    SERVED.set((Some(Arc::clone(&subsystem)), most));
    ENDS.take();
    subsystem
}

fn with_secrets(host: Secret, controller: Option<Secret>) -> AccessRules {
    let secrets = BTreeMap::from([(HOST.to_owned(), HostSecrets { host, controller })]);
    AccessRules::default().with_secrets(secrets, random)
}

fn access() -> Access {
    Access { host: HOST.to_owned(), ..Access::new("nowhere", NQN) }
}

fn with_secret(secret: Secret, controller: Option<Secret>) -> Access {
    Access { authentication: Some(Authentication::new(secret, controller, random)), ..access() }
}

/// Connects an admin queue and two I/O queues.
fn connect(access: &Access) -> Result<(), HostError> {
    let mut controller = Controller::<Wire>::connect(access)?;
    controller.set_queues(2)?;
    let _queues = (controller.io_queue(1, 16)?, controller.io_queue(2, 16)?);
    controller.keep_alive()
}

#[track_caller]
fn status(result: Result<(), HostError>) -> (u8, u8) {
    match result {
        Err(HostError::Command(error)) => (error.status.kind(), error.status.code()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_hosts_on_the_list_connect() {
    serve(AccessRules::default().only([HOST.to_owned()]), 4096);
    connect(&access()).expect("it is on the list");
    let other = Access { host: format!("{HOST}-2"), ..access() };
    assert_eq!(status(connect(&other)), (1, 0x84));
    assert_eq!(ENDS.take(), [Violation::NotAllowed]);
    let discovery = Access { subsystem: DISCOVERY_NQN.to_owned(), ..other };
    assert_eq!(status(Controller::<Wire>::connect(&discovery).map(drop)), (1, 0x84));
    let discovery = Access { subsystem: DISCOVERY_NQN.to_owned(), ..access() };
    Controller::<Wire>::connect(&discovery).expect("it is on the list").discover().expect("a log");
}

#[test]
fn every_hash_and_group_proves_the_names_of_both_sides() {
    let hashes = [Hash::Sha256, Hash::Sha384, Hash::Sha512];
    let groups = [
        None,
        Some(Group::Ffdhe2048),
        Some(Group::Ffdhe3072),
        Some(Group::Ffdhe4096),
        Some(Group::Ffdhe6144),
        Some(Group::Ffdhe8192),
    ];
    let transformations = [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)];
    for (at, group) in groups.into_iter().enumerate() {
        // Powers of the larger groups take long without optimization.
        let hashes = if at < 2 { &hashes[..] } else { &hashes[at % 3..][..1] };
        for &hash in hashes {
            let transformation = transformations[(at + hash.bytes() / 16) % 4];
            let secrets = [secret(1, transformation), secret(2, transformations[at % 4])];
            let [host, controller] = secrets;
            serve(with_secrets(host.clone(), Some(controller.clone())), [1, 7, 100_000][at % 3]);
            let both = Authentication::new(host.clone(), Some(controller), random);
            let one = Authentication::new(host, None, random);
            for proof in [one, both] {
                let proof = Authentication { hashes: vec![hash], groups: vec![group], ..proof };
                let access = Access { authentication: Some(proof), ..access() };
                connect(&access).unwrap_or_else(|error| panic!("{hash:?}, {group:?}: {error}"));
            }
            assert_eq!(ENDS.take(), []);
        }
    }
}

#[test]
fn a_wrong_secret_of_either_side_ends_the_connection() {
    let rules = || with_secrets(secret(1, None), Some(secret(2, Some(Hash::Sha512))));
    let groups: [&[Option<Group>]; 2] = [&[None], &[Some(Group::Ffdhe2048)]];
    for groups in groups {
        let offering = |access: Access| {
            let proof = access.authentication.clone().expect("a secret");
            let proof = Authentication { groups: groups.to_vec(), ..proof };
            Access { authentication: Some(proof), ..access }
        };
        serve(rules(), 4096);
        let wrong = connect(&offering(with_secret(secret(3, None), None)));
        assert!(matches!(wrong, Err(HostError::NotAuthenticated(1))), "{wrong:?}");
        assert_eq!(ENDS.take(), [Violation::NotAuthenticated]);
        // The same bytes, transformed: another key.
        let wrong = connect(&offering(with_secret(secret(1, Some(Hash::Sha384)), None)));
        assert!(matches!(wrong, Err(HostError::NotAuthenticated(1))), "{wrong:?}");
        ENDS.take();
        let wrong = offering(with_secret(secret(1, None), Some(secret(3, Some(Hash::Sha512)))));
        let wrong = connect(&wrong);
        assert!(matches!(wrong, Err(HostError::WrongController)), "{wrong:?}");
        assert_eq!(ENDS.take(), [Violation::NotAuthenticated], "the host says so");
        connect(&offering(with_secret(secret(1, None), Some(secret(2, Some(Hash::Sha512))))))
            .expect("both are right");
    }
    serve(with_secrets(secret(1, None), None), 4096);
    let asked = connect(&with_secret(secret(1, None), Some(secret(2, None))));
    assert!(matches!(asked, Err(HostError::NotAuthenticated(1))), "the server has none: {asked:?}");
}

#[test]
fn hosts_without_a_secret_connect_to_the_log_only() {
    serve(with_secrets(secret(1, None), None), 4096);
    assert!(matches!(connect(&access()), Err(HostError::NoSecret)));
    let other = Access { host: format!("{HOST}-2"), ..with_secret(secret(1, None), None) };
    assert_eq!(status(connect(&other)), (1, 0x84));
    let discovery = Access { subsystem: DISCOVERY_NQN.to_owned(), ..access() };
    Controller::<Wire>::connect(&discovery).expect("no volume").discover().expect("a log");
}

/// An admin queue whose Connect asked for a proof.
fn begun() -> Connection<Wire> {
    let mut connection = Connection::open("", None, QueueOptions::default()).expect("a target");
    let data = access().connect_data(0xFFFF);
    let connected = connection.call(HostCommand::connect(0, 32, true, 0, data)).expect("a queue");
    assert_eq!(connected.result >> 16, 2, "a proof is required");
    connection
}

#[test]
fn a_queue_without_a_proof_keeps_its_number_from_nobody() {
    serve(with_secrets(secret(1, None), None), 4096);
    let access = with_secret(secret(1, None), None);
    let mut controller = Controller::<Wire>::connect(&access).expect("it has the secret");
    controller.set_queues(2).expect("there are two");
    let mut squatter =
        Connection::<Wire>::open("", None, QueueOptions::default()).expect("a target");
    let connect = || HostCommand::connect(1, 16, true, 0, access.connect_data(1));
    let connected = squatter.call(connect()).expect("it may try");
    assert_eq!(connected.result >> 16, 2, "a proof is required");
    let _queue = controller.io_queue(1, 16).expect("nobody has proved that it is its queue");
    send(&mut squatter, &negotiate(1, 0)).expect("it goes on trying");
    let refused = controller.io_queue(1, 16).map(drop);
    assert!(refused.is_err(), "now it is taken");
    assert_eq!(ENDS.take(), [Violation::QueueTaken]);
    controller.keep_alive().expect("the controller goes on");
}

fn send(connection: &mut Connection<Wire>, message: &[u8]) -> Result<(), HostError> {
    let payload = Payload::ToController(message.to_vec());
    let command = HostCommand::fabrics("Send", fabrics::AUTHENTICATION_SEND, payload)
        .bytes(41, &[1, 1, 0xE9])
        .dword(11, message.len() as u32);
    connection.call(command).map(drop)
}

fn receive(connection: &mut Connection<Wire>, bytes: u32) -> Result<Vec<u8>, HostError> {
    let payload = Payload::FromController(bytes);
    let command = HostCommand::fabrics("Receive", fabrics::AUTHENTICATION_RECEIVE, payload)
        .bytes(41, &[1, 1, 0xE9])
        .dword(11, bytes);
    Ok(connection.call(command)?.data)
}

/// Offers one hash and one group.
fn negotiate(hash: u8, group: u8) -> Vec<u8> {
    let mut message = vec![0; 72];
    message[4..8].copy_from_slice(&[5, 0, 0, 1]);
    message[8..13].copy_from_slice(&[1, 0, 1, 1, hash]);
    message[42] = group;
    message
}

#[test]
fn nothing_but_the_proof_is_answered_before_it() {
    serve(with_secrets(secret(1, None), None), 4096);
    let mut connection = begun();
    for command in [
        HostCommand::property_get(0, true),
        HostCommand::property_set(0x14, 0x46_0001),
        HostCommand::identify(1, 0),
        HostCommand::get_log_page(2, 0, 0, 512),
        HostCommand::set_features(7, 0),
        HostCommand::new("Keep Alive", 0x18, 0, Payload::None),
    ] {
        assert_eq!(status(connection.call(command).map(drop)), (1, 0x91));
    }
    send(&mut connection, &negotiate(1, 0)).expect("a good offer");
    assert_eq!(status(receive(&mut connection, 32).map(drop)), (0, 0x02), "it is longer");
    let challenge = receive(&mut connection, 4096).expect("a challenge");
    assert_eq!(challenge[..12], [1, 1, 0, 0, 5, 0, 32, 0, 1, 0, 0, 0]);
    assert!(challenge[12..48] != [0; 36] && challenge[48..] == [0; 4048]);
    assert_eq!(status(connection.call(HostCommand::identify(1, 0)).map(drop)), (1, 0x91));
}

#[test]
fn messages_that_do_not_belong_are_refused_with_the_reason() {
    let (hash, group, payload, message, channel, protocol) = (4, 5, 6, 7, 3, 2);
    let with = |at: usize, byte: u8| {
        let mut offer = negotiate(1, 0);
        offer[at] = byte;
        offer
    };
    let reply = |length: usize| {
        let mut reply = vec![1, 2, 0, 0, 5, 0, 32, 0];
        reply.resize(length, 0);
        reply
    };
    let cases: [(&str, Vec<Vec<u8>>, u8); 15] = [
        ("no offer", vec![], message),
        ("an unknown hash", vec![negotiate(9, 0)], hash),
        ("an unknown group", vec![negotiate(1, 9)], group),
        ("a secure channel", vec![with(6, 1)], channel),
        ("another protocol", vec![with(8, 2)], protocol),
        ("too many hashes", vec![with(10, 31)], payload),
        ("more protocols than there are", vec![with(7, 2)], payload),
        ("a short offer", vec![negotiate(1, 0)[..40].to_vec()], payload),
        ("a few bytes", vec![vec![0; 5]], payload),
        ("an unknown message", vec![vec![1, 9, 0, 0, 5, 0]], message),
        ("a reply first", vec![reply(80)], message),
        ("a second offer", vec![negotiate(1, 0), negotiate(1, 0)], message),
        ("a reply before the challenge", vec![negotiate(1, 0), reply(80)], message),
        ("a confirmation of nothing", vec![negotiate(1, 0), vec![1, 4, 0, 0, 5, 0]], message),
        ("an offer without lists", vec![vec![0; 8]], protocol),
    ];
    for (case, messages, wanted) in cases {
        serve(with_secrets(secret(1, None), None), 4096);
        let mut connection = begun();
        for message in messages {
            send(&mut connection, &message).expect(case);
        }
        let failure = receive(&mut connection, 64).expect(case);
        assert_eq!((&failure[..2], failure[6], failure[7]), (&[0, 0xF1][..], 1, wanted), "{case}");
        assert_eq!(ENDS.take(), [Violation::NotAuthenticated], "{case}");
    }
    // After a challenge.
    for (case, made, wanted) in [
        ("a short reply", reply(20), payload),
        (
            "another length",
            {
                let mut it = reply(80);
                it[6] = 48;
                it
            },
            payload,
        ),
        (
            "a value without a group",
            {
                let mut it = reply(80);
                it[10] = 8;
                it
            },
            payload,
        ),
        (
            "another transaction",
            {
                let mut it = reply(80);
                it[4] = 6;
                it
            },
            message,
        ),
        ("zeros", reply(80), 1),
    ] {
        serve(with_secrets(secret(1, None), None), 4096);
        let mut connection = begun();
        send(&mut connection, &negotiate(1, 0)).expect(case);
        receive(&mut connection, 4096).expect(case);
        send(&mut connection, &made).expect(case);
        let failure = receive(&mut connection, 64).expect(case);
        assert_eq!((&failure[..2], failure[7]), (&[0, 0xF1][..], wanted), "{case}");
    }
}

#[test]
fn commands_that_carry_no_message_are_refused() {
    serve(with_secrets(secret(1, None), None), 4096);
    let mut connection = begun();
    let data = || Payload::ToController(vec![0; 64]);
    for (kind, payload, protocol, length) in [
        (fabrics::AUTHENTICATION_SEND, data(), [1, 1, 0xE8], 64),
        (fabrics::AUTHENTICATION_SEND, data(), [0, 1, 0xE9], 64),
        (fabrics::AUTHENTICATION_SEND, data(), [1, 1, 0xE9], 0),
        (fabrics::AUTHENTICATION_RECEIVE, Payload::FromController(1 << 20), [1, 1, 0xE9], 1 << 20),
    ] {
        let command =
            HostCommand::fabrics("A message", kind, payload).bytes(41, &protocol).dword(11, length);
        assert_eq!(status(connection.call(command).map(drop)), (0, 0x02));
    }
    let command = HostCommand::fabrics("Send", fabrics::AUTHENTICATION_SEND, data());
    let command = command.bytes(41, &[1, 1, 0xE9]).dword(11, 32);
    assert_eq!(status(connection.call(command).map(drop)), (0, 0x0F));
    // Where nobody has to prove anything, there is no such command.
    serve(AccessRules::default(), 4096);
    let mut connection = Connection::<Wire>::open("", None, QueueOptions::default()).expect("one");
    let data = access().connect_data(0xFFFF);
    let connected = connection.call(HostCommand::connect(0, 32, true, 0, data)).expect("a queue");
    assert_eq!(connected.result >> 16, 0);
    assert_eq!(status(send(&mut connection, &negotiate(1, 0))), (0, 0x01));
}
