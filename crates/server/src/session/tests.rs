//! Tests of sessions without sockets: received bytes go in, actions and sends come out.

mod asking;
mod limited;

use floe_block::VolumeId;
use floe_nbd::export::Export;
use floe_nbd::wire::{REQUEST_MAGIC, command};

use super::*;
use crate::limits::{PIECE_BYTES, SEND_TLS_BYTES};
use crate::protocol::Nbd;

fn now() -> Instant {
    Instant::now()
}

/// Returns a session after the handshake that receives the payload of a write of `length` bytes,
/// and the slice that it wants to receive into.
fn session_receiving(length: u32, pool: &Pool) -> (Session, Slice) {
    let exports = Arc::new(Exports::new(vec![Export::new("disk", 1 << 20)]).unwrap());
    let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
    let budget = Rc::new(Budget::new(1 << 20, 1));
    let common = Common {
        pool: pool.clone(),
        budget,
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    let mut session = Session::new(0, socket.into(), &Nbd::default(), &exports, &common, now());
    let mut input = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk".to_vec();
    input.extend(REQUEST_MAGIC.to_be_bytes());
    input.extend([0, 0]);
    input.extend(command::WRITE.to_be_bytes());
    input.extend([0; 16]);
    input.extend(length.to_be_bytes());
    let Ok(Some(Want::Receive { into, whole: false })) = session.next(now()) else {
        panic!("{session:?}")
    };
    into.slice(0..input.len()).copy_from(&input);
    session.received(input.len(), now()).unwrap();
    let Ok(Some(Want::Serve(request))) = session.next(now()) else { panic!("{session:?}") };
    let buffer = pool.allocate(length as usize);
    let payload = buffer.whole();
    session.begin_payload(request, buffer, payload);
    let Ok(Some(Want::Receive { into, whole: true })) = session.next(now()) else {
        panic!("{session:?}")
    };
    (session, into)
}

#[test]
fn a_payload_that_comes_in_pieces_is_received_to_its_end() {
    let pool = Pool::new(0);
    let (mut session, into) = session_receiving(100_000, &pool);
    assert_eq!(into.len(), 100_000);
    session.received(99_999, now()).unwrap();
    let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else { panic!("{session:?}") };
    assert_eq!(into.len(), 1);
    session.received(1, now()).unwrap();
    assert!(matches!(session.next(now()), Ok(Some(Want::ServeWrite(..)))));
}

#[test]
fn a_connection_is_handed_on_when_nothing_of_it_is_under_way() {
    let pool = Pool::new(0);
    let (mut session, _) = session_receiving(8192, &pool);
    assert!(session.leave());
    session.receive_cancelled();
    // The payload that has begun is received, and its write answered.
    let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else { panic!("{session:?}") };
    assert_eq!(into.len(), 8192);
    assert!(!Passed::can_be_of(&session));
    session.received(8192, now()).unwrap();
    let Ok(Some(Want::ServeWrite(write, _))) = session.next(now()) else { panic!("{session:?}") };
    assert!(matches!(session.next(now()), Ok(Some(Want::Pause))), "nothing more is received");
    assert!(!Passed::can_be_of(&session));
    session.reply(&write, Ok(None));
    assert!(!Passed::can_be_of(&session));
    assert!(session.next_send(now()).is_some());
    session.sent(now());
    assert!(Passed::can_be_of(&session));
    // The next server takes requests where the first one stopped.
    let common = session.common.clone();
    let passed = Passed::of(session).expect("a descriptor");
    let exports = Arc::new(Exports::new(vec![Export::new("disk", 1 << 20)]).unwrap());
    let mut adopted = passed.adopted(7, &exports, &common, now());
    let Ok(Some(Want::Receive { into, .. })) = adopted.next(now()) else { panic!("{adopted:?}") };
    let flush = request(command::FLUSH, 0, 0);
    into.slice(0..flush.len()).copy_from(&flush);
    adopted.received(flush.len(), now()).unwrap();
    let Ok(Some(Want::Serve(request))) = adopted.next(now()) else { panic!("{adopted:?}") };
    assert_eq!(request.kind, RequestKind::Flush);
    adopted.reply(&request, Ok(None));
    // One that has ended is not handed on.
    adopted.end();
    assert!(!adopted.leave());
}

#[test]
fn at_the_end_a_complete_write_is_served_and_half_a_one_is_not() {
    let pool = Pool::new(0);
    let (mut session, _) = session_receiving(100_000, &pool);
    session.received(100_000, now()).unwrap();
    session.end();
    assert!(matches!(session.next(now()), Ok(Some(Want::ServeWrite(..)))));

    let (mut session, _) = session_receiving(100_000, &pool);
    session.end();
    session.received(99_999, now()).unwrap();
    assert!(matches!(session.next(now()), Ok(Some(Want::End))));
    assert_eq!((session.serving, session.common.budget.used()), (0, 0));
}

/// Returns a session after the handshake that has received these requests and was offered
/// `exports`.
fn session_with(requests: &[u8], exports: &[Export], budget: &Rc<Budget>, key: u32) -> Session {
    let pool = Pool::new(1 << 20);
    let exports = Arc::new(Exports::new(exports.to_vec()).unwrap());
    let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
    let common = Common {
        pool,
        budget: Rc::clone(budget),
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    let mut session = Session::new(key, socket.into(), &Nbd::default(), &exports, &common, now());
    let input = [b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk", requests].concat();
    let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else { panic!("{session:?}") };
    into.slice(0..input.len()).copy_from(&input);
    session.received(input.len(), now()).unwrap();
    session
}

fn request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
    request.extend([0, 0]);
    request.extend(command.to_be_bytes());
    request.extend([0; 8]);
    request.extend(offset.to_be_bytes());
    request.extend(length.to_be_bytes());
    request
}

fn disk(size_bytes: u64) -> Export {
    Export { volume: 3, ..Export::new("disk", size_bytes) }
}

fn list(exports: &[Export]) -> Arc<Exports> {
    Arc::new(Exports::new(exports.to_vec()).unwrap())
}

#[test]
fn an_export_that_grew_is_served_up_to_its_new_end() {
    let budget = Rc::new(Budget::new(1 << 20, 1));
    let twice = [request(command::READ, 4096, 512), request(command::READ, 4096, 512)].concat();
    let mut session = session_with(&twice[..28], &[disk(4096)], &budget, 0);
    assert!(matches!(session.next(now()), Ok(Some(Want::Receive { .. }))));
    assert_eq!(session.take_refused(), 1);

    let mut session = session_with(&twice[..28], &[disk(4096)], &budget, 0);
    session.exports_changed(&list(&[Export::new("other", 1), disk(8192)]));
    let Ok(Some(Want::Serve(served))) = session.next(now()) else { panic!("{session:?}") };
    assert_eq!((served.offset, session.volume().unwrap()), (4096, VolumeId(3)));
}

#[test]
fn a_session_whose_export_is_gone_ends_once_its_requests_are_answered() {
    let budget = Rc::new(Budget::new(1 << 20, 1));
    for gone in [list(&[]), list(&[Export { volume: 4, ..disk(4096) }])] {
        let two = [request(command::FLUSH, 0, 0), request(command::FLUSH, 0, 0)].concat();
        let mut session = session_with(&two, &[disk(4096)], &budget, 0);
        let Ok(Some(Want::Serve(flush))) = session.next(now()) else { panic!("{session:?}") };
        session.exports_changed(&gone);
        assert!(matches!(session.next(now()), Ok(Some(Want::End))));
        assert!(!session.is_over());
        session.reply(&flush, Ok(None));
        assert!(session.next_send(now()).is_some());
        session.sent(now());
        assert!(session.is_over());
    }
}

#[test]
fn sessions_take_turns_at_the_memory_they_share_and_who_holds_it_and_stalls_is_late() {
    let budget = Rc::new(Budget::new(100_000, 1));
    let read = request(command::READ, 0, 80_000);
    let mut first = session_with(&read, &[disk(1 << 20)], &budget, 1);
    let mut second = session_with(&read, &[disk(1 << 20)], &budget, 2);
    let Ok(Some(Want::Serve(served))) = first.next(now()) else { panic!("{first:?}") };
    let data = Pool::new(0).allocate(80_000).whole();
    first.reply(&served, Ok(Some(data)));
    assert!(first.next_send(now()).is_some());
    let later = now() + Limits::default().stall_time;
    assert_eq!(first.overdue(later), None, "nobody waits for what it holds");

    assert!(matches!(second.next(now()), Ok(Some(Want::Pause))));
    assert_eq!((first.overdue(now()), first.overdue(later)), (None, Some(Overdue::Stalled)));
    assert_eq!((second.overdue(later), budget.next_in_turn()), (None, None));

    first.break_off();
    first.sent(now());
    assert_eq!(budget.next_in_turn(), Some(2));
    second.turn_has_come();
    assert!(matches!(second.next(now()), Ok(Some(Want::Serve(_)))));
    assert_eq!(budget.used(), 81_920, "whole sectors");
}

#[test]
fn a_client_that_takes_its_replies_slowly_does_not_stand_in_line_until_it_has_moved() {
    let budget = Rc::new(Budget::new(1 << 20, 16));
    let small = request(command::READ, 0, 4096);
    let reads =
        [request(command::READ, 0, 64 << 10), request(command::READ, 0, 64 << 10), small].concat();
    let mut slow = session_with(&reads, &[disk(1 << 20)], &budget, 1);
    let begun = now();
    let Ok(Some(Want::Serve(first))) = slow.next(begun) else { panic!("{slow:?}") };
    slow.reply(&first, Ok(Some(Pool::new(0).allocate(64 << 10).whole())));
    assert!(slow.next_send(begun).is_some());
    assert!(matches!(slow.next(begun + SLOW_TIME), Ok(Some(Want::Pause))));
    assert!(!budget.is_waited_for(), "it would fit, and is not asked for");
    slow.sent(begun + SLOW_TIME);
    let Ok(Some(Want::Serve(second))) = slow.next(begun + SLOW_TIME) else { panic!("{slow:?}") };
    let Ok(Some(Want::Serve(third))) = slow.next(begun + SLOW_TIME) else { panic!("{slow:?}") };
    assert_eq!((second.length, third.length, budget.used()), (64 << 10, 4096, 68 << 10));

    // In line already, it leaves.
    let long = [request(command::READ, 0, 4096), request(command::READ, 0, 1 << 20)].concat();
    let mut waiting = session_with(&long, &[disk(1 << 20)], &budget, 2);
    let Ok(Some(Want::Serve(first))) = waiting.next(begun) else { panic!("{waiting:?}") };
    waiting.reply(&first, Ok(Some(Pool::new(0).allocate(4096).whole())));
    assert!(waiting.next_send(begun).is_some());
    assert!(matches!(waiting.next(begun), Ok(Some(Want::Pause))));
    waiting.leave_the_line_if_slow(begun);
    assert!(budget.is_waited_for(), "a moment is not slow");
    waiting.leave_the_line_if_slow(begun + SLOW_TIME);
    assert!(!budget.is_waited_for());
    waiting.end();
    waiting.sent(begun + SLOW_TIME);
    assert_eq!(budget.held(2), 0);
}

#[test]
fn half_a_write_is_late_when_others_wait_and_gives_its_memory_back() {
    let budget = Rc::new(Budget::new(100_000, 1));
    let write = [request(command::WRITE, 0, 80_000), vec![1; 100]].concat();
    let mut first = session_with(&write, &[disk(1 << 20)], &budget, 1);
    let mut second = session_with(&request(command::READ, 0, 80_000), &[disk(1 << 20)], &budget, 2);
    let Ok(Some(Want::Serve(served))) = first.next(now()) else { panic!("{first:?}") };
    let buffer = Pool::new(0).allocate(80_000);
    let into = buffer.whole();
    first.begin_payload(served, buffer, into);
    assert!(matches!(first.next(now()), Ok(Some(Want::Receive { whole: true, .. }))));
    assert!(matches!(second.next(now()), Ok(Some(Want::Pause))));
    assert_eq!(first.overdue(now() + Limits::default().stall_time), Some(Overdue::Stalled));
    first.break_off();
    assert_eq!(budget.next_in_turn(), Some(2));
}

#[test]
fn a_handshake_has_its_time() {
    let pool = Pool::new(1 << 16);
    let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
    let common = Common {
        pool,
        budget: Rc::new(Budget::new(0, 1)),
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    let begun = now();
    let session =
        Session::new(0, socket.into(), &Nbd::default(), &list(&[disk(4096)]), &common, begun);
    let just_before = begun + Limits::default().handshake_time - std::time::Duration::from_nanos(1);
    assert_eq!(session.overdue(just_before), None);
    assert_eq!(session.overdue(begun + Limits::default().handshake_time), Some(Overdue::Handshake));
    let budget = Rc::new(Budget::new(0, 1));
    let mut session = session_with(b"", &[disk(4096)], &budget, 0);
    assert!(session.next(begun).is_ok());
    assert_eq!(
        session.overdue(begun + 2 * Limits::default().handshake_time),
        None,
        "an idle disk is no crime"
    );
}

#[test]
fn an_idle_client_holds_one_page_and_little_more() {
    let budget = Rc::new(Budget::new(0, 1));
    let mut session = session_with(b"", &[disk(4096)], &budget, 0);
    assert!(matches!(session.next(now()), Ok(Some(Want::Receive { .. }))));
    assert_eq!(session.common.pool.stats().arena_used_bytes, 4096);
    assert!(
        size_of::<Session>() + size_of_val(&*session.protocol) + session.input.bytes.capacity()
            < 3000
    );
}

#[test]
fn a_long_reply_leaves_in_pieces_and_counts_until_its_end() {
    let budget = Rc::new(Budget::new(1 << 30, 1));
    let length = 5 << 19;
    let mut session =
        session_with(&request(command::READ, 0, length), &[disk(1 << 30)], &budget, 0);
    let Ok(Some(Want::Serve(served))) = session.next(now()) else { panic!("{session:?}") };
    session.reply(&served, Ok(Some(Pool::new(0).allocate(length as usize).whole())));
    session.output.outbox.answers.clear();
    let mut sizes = Vec::new();
    while let Some(slices) = session.next_send(now()) {
        assert_eq!(budget.used(), length as usize);
        sizes.push(slices.iter().map(Slice::len).sum::<usize>());
        session.sent(now());
    }
    assert_eq!(sizes, [PIECE_BYTES + 16, PIECE_BYTES, PIECE_BYTES / 2]);
    assert_eq!(budget.used(), 0);
}

#[test]
fn who_haggles_and_does_not_read_is_not_listened_to() {
    let many: Vec<_> = (0..50).map(|n| Export::new(format!("{n:0>1000}"), 1)).collect();
    let pool = Pool::new(1 << 20);
    let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
    let common = Common {
        pool,
        budget: Rc::new(Budget::new(0, 1)),
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    let mut session = Session::new(0, socket.into(), &Nbd::default(), &list(&many), &common, now());
    let input = [&b"\0\0\0\x03"[..], &b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(200)].concat();
    let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else { panic!("{session:?}") };
    into.slice(0..input.len()).copy_from(&input);
    session.received(input.len(), now()).unwrap();
    let (mut said, mut pauses) = (0, 0);
    while let Ok(Some(Want::Pause)) = session.next(now()) {
        pauses += 1;
        assert!(session.output.outbox.answers.len() < 64 << 11);
        said += session.next_send(now()).unwrap().iter().map(Slice::len).sum::<usize>();
        session.sent(now());
    }
    said += session.next_send(now()).into_iter().flatten().map(|slice| slice.len()).sum::<usize>();
    assert_eq!((said, pauses), (18 + 200 * (50 * (20 + 4 + 1000) + 20), 100));
}

#[test]
fn who_sends_a_write_byte_by_byte_is_late_all_the_same() {
    let budget = Rc::new(Budget::new(100_000, 1));
    let write = [request(command::WRITE, 0, 80_000), vec![1; 100]].concat();
    let mut first = session_with(&write, &[disk(1 << 20)], &budget, 1);
    let Ok(Some(Want::Serve(served))) = first.next(now()) else { panic!("{first:?}") };
    let buffer = Pool::new(0).allocate(80_000);
    let into = buffer.whole();
    first.begin_payload(served, buffer, into);
    let begun = now();
    assert!(matches!(first.next(begun), Ok(Some(Want::Receive { whole: true, .. }))));
    assert!(!budget.take(2, 80_000));
    let later = begun + Limits::default().stall_time;
    first.received(1, later).unwrap();
    assert!(first.next(later).is_ok());
    assert_eq!(first.overdue(later), Some(Overdue::Stalled));
}

/// A session and its client, connected by TLS.
struct Encrypted {
    session: Session,
    client: rustls::ClientConnection,
    /// Plaintext bytes that the client has received.
    heard: Vec<u8>,
}

impl Encrypted {
    fn new(export: Export) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("server-cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("server-key.pem"), made.signing_key.serialize_pem())
            .unwrap();
        let tls = Some(TlsConfig::load(folder.path(), false, true).unwrap());
        let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
        let budget = Rc::new(Budget::new(1 << 30, 1));
        let common = Common {
            pool: Pool::new(0),
            budget,
            throttle: Rc::default(),
            tls,
            limits: Limits::default(),
        };
        let mut session =
            Session::new(0, socket.into(), &Nbd::default(), &list(&[export]), &common, now());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        client.set_buffer_limit(None);
        let start = b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0";
        assert_eq!(give(&mut session, start).len(), 18 + 20);
        let mut encrypted = Self { session, client, heard: Vec::new() };
        encrypted.say(b"");
        assert!(!encrypted.client.is_handshaking());
        encrypted
    }

    /// Sends the client's pending bytes and `plain`, and exchanges bytes until neither side has any
    /// left.
    fn say(&mut self, plain: &[u8]) {
        std::io::Write::write_all(&mut self.client.writer(), plain).unwrap();
        while self.client.wants_write() {
            let mut bytes = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut bytes).unwrap();
            }
            let answer = give(&mut self.session, &bytes);
            let mut rest = &answer[..];
            while !rest.is_empty() {
                self.client.read_tls(&mut rest).unwrap();
                let ready = self.client.process_new_packets().unwrap().plaintext_bytes_to_read();
                let begun = self.heard.len();
                self.heard.resize(begun + ready, 0);
                std::io::Read::read_exact(&mut self.client.reader(), &mut self.heard[begun..])
                    .unwrap();
            }
        }
    }
}

/// Feeds bytes to a session, and answers all requests at once as a server would. Returns the bytes
/// sent.
fn give(session: &mut Session, mut bytes: &[u8]) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        let want = session.next(now()).unwrap();
        while let Some(slices) = session.next_send(now()) {
            let size: usize = slices.iter().map(Slice::len).sum();
            assert!(size <= SEND_TLS_BYTES + SEND_TLS_BYTES / 8, "{size} bytes at once");
            slices.iter().for_each(|slice| sent.extend(slice.to_vec()));
            session.sent(now());
        }
        match want {
            Some(Want::Serve(request)) if matches!(request.kind, RequestKind::Write { .. }) => {
                let buffer = session.common.pool.allocate(request.length as usize);
                let into = buffer.whole();
                session.begin_payload(request, buffer, into);
            }
            Some(Want::ServeWrite(request, buffer)) => {
                let written = buffer.whole().to_vec();
                assert!(written.iter().enumerate().all(|(at, byte)| *byte == at as u8));
                session.reply(&request, Ok(None));
            }
            Some(Want::Serve(request)) => {
                let data = session.common.pool.allocate(request.length as usize);
                data.whole().fill_zero();
                session.reply(&request, Ok((request.length > 0).then(|| data.whole())));
            }
            Some(Want::Receive { into, .. }) => {
                let here = bytes.len().min(into.len());
                into.slice(0..here).copy_from(&bytes[..here]);
                bytes = &bytes[here..];
                if here == 0 {
                    session.input.receiving = false; // asked again next time
                    return sent;
                }
                session.received(here, now()).unwrap();
                assert!(
                    session.input.bytes.len() <= 32 << 10,
                    "{} bytes decrypted at once",
                    session.input.bytes.len()
                );
            }
            Some(Want::Pause | Want::End) => {
                if session.is_quiet() {
                    return sent;
                }
            }
            None => unreachable!("a receive ends here at once"),
        }
    }
}

#[test]
fn long_requests_pass_through_tls_in_bounded_pieces() {
    let mut encrypted = Encrypted::new(disk(1 << 30));
    encrypted.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
    let begun = encrypted.heard.len();
    let length = 3 << 20;
    let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
    encrypted.say(&[request(command::WRITE, 0, length), payload].concat());
    encrypted.say(&request(command::READ, 0, length));
    assert_eq!(encrypted.heard.len() - begun, 16 + 16 + length as usize);
    encrypted.say(&request(command::DISC, 0, 0));
    assert!(encrypted.session.is_over());
    assert!(encrypted.client.process_new_packets().unwrap().peer_has_closed(), "it says goodbye");
    assert_eq!(encrypted.session.common.budget.used(), 0);
}

#[test]
fn tls_ends_after_the_replies_to_requests_that_wait_for_a_limit() {
    let mut encrypted = Encrypted::new(disk(1 << 20));
    encrypted.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
    let throttle = Rc::clone(&encrypted.session.common.throttle);
    let begun = limited::one_a_second(&throttle);
    let requests =
        [request(command::FLUSH, 0, 0), request(command::TRIM, 0, 512).repeat(2)].concat();
    encrypted.say(&requests[..56]);
    let last = [&requests[56..], &request(command::DISC, 0, 0)].concat();
    std::io::Write::write_all(&mut encrypted.client.writer(), &last).unwrap();
    let mut bytes = Vec::new();
    encrypted.client.write_tls(&mut bytes).unwrap();
    let session = &mut encrypted.session;
    let Ok(Some(Want::Receive { into, .. })) = session.next(begun) else { panic!("{session:?}") };
    into.slice(0..bytes.len()).copy_from(&bytes);
    session.received(bytes.len(), begun).unwrap();
    assert!(matches!(session.next(begun), Ok(Some(Want::End))));
    assert!(session.next_send(begun).is_none(), "a reply is to come");
    let due = throttle.next_due().expect("a request waits");
    assert_eq!(throttle.next_in_turn(due), Some((0, VolumeId(3))));
    limit_passed(session, VolumeId(3), due).unwrap();
    let Ok(Some(Want::Serve(trim))) = session.next(due) else { panic!("{session:?}") };
    session.reply(&trim, Ok(None));
    let mut heard = Vec::new();
    while let Some(slices) = session.next_send(due) {
        slices.iter().for_each(|slice| heard.extend(slice.to_vec()));
        session.sent(due);
    }
    assert!(session.is_over());
    encrypted.client.read_tls(&mut &heard[..]).unwrap();
    let state = encrypted.client.process_new_packets().unwrap();
    assert!(state.plaintext_bytes_to_read() == 16 && state.peer_has_closed());
}

#[test]
fn a_client_that_ends_tls_ends_the_session() {
    let mut encrypted = Encrypted::new(disk(4096));
    encrypted.client.send_close_notify();
    encrypted.say(b"");
    assert!(encrypted.session.is_over());
}

#[test]
fn a_damaged_record_ends_the_session_with_an_alert() {
    for at in [0, 1, 3, 5, 20, 60] {
        let mut encrypted = Encrypted::new(disk(1 << 20));
        encrypted.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
        let requests = [request(command::FLUSH, 0, 0), request(command::WRITE, 0, 512)].concat();
        std::io::Write::write_all(&mut encrypted.client.writer(), &requests).unwrap();
        let mut bytes = Vec::new();
        encrypted.client.write_tls(&mut bytes).unwrap();
        bytes[at] ^= 0x40;
        let session = &mut encrypted.session;
        let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else {
            panic!("{session:?}")
        };
        into.slice(0..bytes.len()).copy_from(&bytes);
        session.received(bytes.len(), now()).unwrap();
        match session.next(now()) {
            Err(SessionError::Tls(_)) => {
                let alert = session.next_send(now()).expect("the client learns why");
                assert!(alert.iter().map(Slice::len).sum::<usize>() < 100);
                session.sent(now());
                assert!(session.is_over() && session.common.budget.used() == 0);
            }
            // A record that claims to be longer is waited for.
            Ok(Some(Want::Receive { .. })) => assert_eq!(at, 3),
            other => panic!("{other:?}"),
        }
    }
}
