//! Tests of sessions whose clients send the payload of a write only when asked, as in NVMe over
//! TCP.
//!
//! A request is a letter, a tag and the KiB of its range: `r` reads, `w` writes, `c` compares. The
//! server asks for the payload with `?` and the tag. A part of the payload is `d`, the tag, its KiB
//! and its bytes. A write `i` is followed by its payload without being asked for it, and so is `b`,
//! whose payload is damaged. A zeroing `z` is refused if a limit has held it back.

use std::net::SocketAddr;

use super::*;
use crate::protocol::ProtocolName;
use crate::volume_limit::{RequestLimit, VolumeLimit};

/// Longest silence that clients of the test protocol promise.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug, Default)]
struct Asking {
    payload_bytes: usize,
    /// Tag of the write whose payload follows.
    follows: Option<u64>,
    /// Tag of the write whose payload is damaged.
    damaged: Option<u64>,
    held_back: Vec<u64>,
}

#[derive(Debug)]
struct AskingFactory;

impl ProtocolFactory for AskingFactory {
    fn begin(
        &self,
        _: Option<SocketAddr>,
        _: &Arc<Exports>,
        _: Option<&TlsConfig>,
        _: &mut Outbox,
    ) -> Box<dyn Protocol> {
        Box::new(Asking::default())
    }
}

impl Protocol for Asking {
    fn advance(&mut self, input: &[u8], _: &mut Outbox) -> Result<(usize, Event), Broken> {
        if let Some(tag) = self.follows.take() {
            return Ok((0, Event::Payload { tag, bytes: self.payload_bytes }));
        }
        assert_eq!(self.payload_bytes, 0, "the session lacks payload");
        if let Some(tag) = self.damaged.take() {
            return Ok((0, Event::Checked { tag, intact: false }));
        }
        let &[kind, tag, kib, ..] = input else { return Ok((0, Event::NeedMore)) };
        let length = u32::from(kib) << 10;
        let compares = kind == b'c';
        let kind = match kind {
            b'r' => RequestKind::Read,
            b'w' => RequestKind::Write { durable: false },
            b'c' => RequestKind::Read,
            b'z' => RequestKind::Zero { durable: false, may_unmap: false, fast: false },
            b'i' | b'b' => {
                self.damaged = (kind == b'b').then_some(tag.into());
                (self.payload_bytes, self.follows) = (length as usize, Some(tag.into()));
                RequestKind::Write { durable: false }
            }
            b'd' => {
                self.payload_bytes = length as usize;
                return Ok((3, Event::Payload { tag: tag.into(), bytes: self.payload_bytes }));
            }
            _ => return Err("neither a request nor data".into()),
        };
        let volume = VolumeId(0);
        let (tag, payload_follows) = (tag.into(), self.follows.is_some());
        let (flags, offset) = (0, 0);
        let request =
            Request { tag, flags, volume, kind, offset, length, compares, payload_follows };
        Ok((3, Event::Request(request)))
    }

    fn ready(&mut self, write: &Request, out: &mut Outbox) {
        if write.payload_follows {
            return;
        }
        out.answers.extend([b'?', write.tag as u8]);
    }

    fn payload_received(&mut self, payload: &Slice) {
        self.payload_bytes -= payload.len();
    }

    fn checks_payload(&self) -> bool {
        self.damaged.is_some()
    }

    fn held_back(&mut self, request: &Request) {
        self.held_back.push(request.tag);
    }

    fn may_start(&mut self, request: &Request) -> bool {
        let zeroes = matches!(request.kind, RequestKind::Zero { .. });
        !zeroes || !self.held_back.contains(&request.tag)
    }

    fn end_of_input(&self) -> Result<(), Broken> {
        Ok(())
    }

    fn reply(&mut self, request: &Request, answer: Result<Answer<'_>, Fault>, out: Reply<'_>) {
        let sign = match answer {
            Ok(Answer::Differs) => b'!',
            Ok(_) => b'.',
            Err(_) => b'x',
        };
        out.send(&[sign, request.tag as u8], None);
    }

    fn exports_changed(&mut self, _: &Arc<Exports>, _: &mut Outbox) -> bool {
        true
    }

    fn is_established(&self) -> bool {
        true
    }

    fn name(&self) -> ProtocolName {
        ProtocolName::NvmeTcp
    }

    fn volume(&self) -> Option<VolumeId> {
        Some(VolumeId(0))
    }

    fn longest_silence(&self) -> Option<std::time::Duration> {
        Some(SILENCE)
    }
}

fn session(budget: &Rc<Budget>, begun: Instant) -> Session {
    let (socket, _client) = std::os::unix::net::UnixStream::pair().unwrap();
    let budget = Rc::clone(budget);
    let common = Common {
        pool: Pool::new(0),
        budget,
        throttle: Rc::default(),
        tls: None,
        limits: Limits::default(),
    };
    Session::new(0, socket.into(), &AskingFactory, &list(&[]), &common, begun)
}

/// Delivers bytes to the session, into the slices that it wants to receive into.
fn arrive(session: &mut Session, bytes: &[u8]) {
    let Ok(Some(Want::Receive { into, .. })) = session.next(now()) else { panic!("{session:?}") };
    into.slice(0..bytes.len()).copy_from(bytes);
    session.received(bytes.len(), now()).unwrap();
}

/// Takes the session's next request, and gives it a buffer if it has a payload. Returns its tag.
fn serve(session: &mut Session) -> u8 {
    let Ok(Some(Want::Serve(request))) = session.next(now()) else { panic!("{session:?}") };
    if request.has_payload() {
        let buffer = session.common.pool.allocate(request.length as usize);
        let into = buffer.whole();
        session.begin_payload(request, buffer, into);
    }
    request.tag as u8
}

/// Returns the tag and the payload of the next complete write.
fn written(session: &mut Session) -> (u8, Vec<u8>) {
    let Ok(Some(Want::ServeWrite(request, buffer))) = session.next(now()) else {
        panic!("{session:?}")
    };
    session.reply(&request, Ok(None));
    (request.tag as u8, buffer.whole().to_vec())
}

fn sent(session: &mut Session) -> Vec<u8> {
    let slices = session.next_send(now()).unwrap_or_default();
    session.sent(now());
    slices.iter().flat_map(Slice::to_vec).collect()
}

#[test]
fn payload_that_was_asked_for_comes_in_parts_of_several_writes() {
    let budget = Rc::new(Budget::new(1 << 20, 1));
    let mut session = session(&budget, now());
    arrive(&mut session, b"w1\x02w2\x02");
    assert_eq!((serve(&mut session), serve(&mut session)), (b'1', b'2'));
    // The rest of the second part comes straight into the buffer.
    arrive(&mut session, &[&b"d2\x01"[..], &[3; 1024], b"d1\x02", &[4; 1000]].concat());
    assert_eq!(sent(&mut session), b"?1?2");
    arrive(&mut session, &[5; 1048]);
    assert_eq!(written(&mut session), (b'1', [vec![4; 1000], vec![5; 1048]].concat()));
    arrive(&mut session, &[&b"d2\x01"[..], &[6; 1024]].concat());
    assert_eq!(written(&mut session), (b'2', [vec![3; 1024], vec![6; 1024]].concat()));
    assert_eq!(sent(&mut session), b".1.2");
    assert_eq!((session.serving, budget.used()), (0, 0));
}

#[test]
fn a_comparison_takes_memory_for_both_sides_and_receives_one() {
    let budget = Rc::new(Budget::new(1 << 20, 1));
    let mut session = session(&budget, now());
    arrive(&mut session, b"c1\x03");
    assert_eq!(serve(&mut session), b'1');
    assert_eq!((sent(&mut session), budget.held(0)), (b"?1".to_vec(), 2 * 4096));
    arrive(&mut session, &[&b"d1\x03"[..], &[3; 3072]].concat());
    let Ok(Some(Want::ServeWrite(request, buffer))) = session.next(now()) else {
        panic!("{session:?}")
    };
    assert_eq!((request.compares, buffer.whole().to_vec()), (true, vec![3; 3072]));
    session.answer(&request, Ok(Answer::Differs));
    assert_eq!((sent(&mut session), budget.held(0)), (b"!1".to_vec(), 0));
}

#[test]
fn payload_is_received_while_requests_before_it_wait_for_memory() {
    let budget = Rc::new(Budget::new(40_000, 1));
    let mut session = session(&budget, now());
    assert!(budget.take(1, 30_000), "another client has the memory");
    arrive(&mut session, b"w1\x08r2\x03w3\x00");
    assert_eq!(serve(&mut session), b'1');
    let payload = [&b"d1\x08"[..], &[7; 1000]].concat();
    arrive(&mut session, &payload);
    // The turn of the next request comes while the rest is received.
    assert!(matches!(session.next(now()), Ok(Some(Want::Receive { whole: true, .. }))));
    budget.give_back(1, 30_000);
    assert_eq!(budget.next_in_turn(), Some(0));
    session.turn_has_come();
    assert_eq!((serve(&mut session), serve(&mut session)), (b'2', b'3'));
    assert_eq!(written(&mut session), (b'3', vec![]), "there is nothing to ask for");
    assert!(matches!(session.next(now()), Ok(None)), "the receive goes on");
    session.received(7192, now()).unwrap();
    assert_eq!(written(&mut session).0, b'1');
}

#[test]
fn a_write_in_front_of_awaited_payload_waits_for_no_memory() {
    let budget = Rc::new(Budget::new(40_000, 1));
    let mut session = session(&budget, now());
    assert!(budget.take(1, 30_000), "another client has the memory");
    arrive(&mut session, b"w1\x08r2\x03");
    assert_eq!(serve(&mut session), b'1');
    arrive(&mut session, &[&b"i3\x03"[..], &[3; 3072], b"d1\x08", &[1; 92]].concat());
    assert_eq!(serve(&mut session), b'3', "the payload of 1 is behind it");
    assert_eq!(written(&mut session), (b'3', vec![3; 3072]));
    arrive(&mut session, &[1; 8100]);
    assert_eq!(written(&mut session), (b'1', vec![1; 8192]));
    assert!(session.uses(VolumeId(0)), "a read waits");
    budget.give_back(1, 30_000);
    assert_eq!(budget.next_in_turn(), Some(0));
    session.turn_has_come();
    assert_eq!(serve(&mut session), b'2');
    assert!(!session.uses(VolumeId(1)));
}

#[test]
fn requests_that_wait_at_the_end_are_forgotten() {
    let budget = Rc::new(Budget::new(40_000, 1));
    let mut session = session(&budget, now());
    assert!(budget.take(1, 30_000), "another client has the memory");
    arrive(&mut session, b"w1\x08r2\x03w3\x00");
    assert_eq!(serve(&mut session), b'1');
    assert!(matches!(session.next(now()), Ok(Some(Want::Receive { .. }))));
    session.received(0, now()).unwrap();
    assert!(matches!(session.next(now()), Ok(Some(Want::End))));
    assert!(!budget.is_waited_for());
    assert_eq!(budget.held(0), 0);
    assert_eq!(sent(&mut session), b"?1");
    assert!(session.is_over());
}

#[test]
fn a_client_that_breaks_its_promise_to_send_something_is_late() {
    let begun = now();
    let mut session = session(&Rc::new(Budget::new(1 << 20, 1)), begun);
    assert!(session.is_watched());
    let just_before = begun + SILENCE - std::time::Duration::from_nanos(1);
    assert_eq!(session.overdue(just_before), None);
    assert_eq!(session.overdue(begun + SILENCE), Some(Overdue::Silent));
    assert!(matches!(session.next(begun), Ok(Some(Want::Receive { .. }))));
    session.received(1, just_before).unwrap();
    assert_eq!(session.overdue(begun + SILENCE), None);
}

/// Limits the volume to one request a second. Clients have 4 KiB of their own.
fn limited_session(budget: &Rc<Budget>, begun: Instant) -> Session {
    let session = session(budget, begun);
    let limit = RequestLimit { requests_per_second: Some(1), ..RequestLimit::default() };
    let limit = Arc::new(VolumeLimit::new(RequestLimit { limit_burst_ms: 1, ..limit }));
    session.common.throttle.set(VolumeId(0), Some(limit), begun);
    session
}

/// Lets the next request through that waits for the limit.
#[track_caller]
fn pass(session: &mut Session) {
    let at = session.common.throttle.next_due().expect("a request waits");
    assert_eq!(session.common.throttle.next_in_turn(at), Some((0, VolumeId(0))));
    limit_passed(session, VolumeId(0), at).unwrap();
}

/// Returns a session with a write 1, which is asked for its payload, and a write 2, which is
/// followed by it, beyond the client's own memory. Both wait for the limit.
fn session_with_two_limited(budget: &Rc<Budget>, begun: Instant) -> Session {
    let mut session = limited_session(budget, begun);
    arrive(&mut session, &[&b"r0\x00w1\x10i2\x08"[..], &[2; 3000]].concat());
    let Ok(Some(Want::Serve(read))) = session.next(begun) else { panic!("{session:?}") };
    session.reply(&read, Ok(None));
    assert!(matches!(session.next(begun), Ok(Some(Want::Pause))), "there is no room for 2");
    session
}

#[test]
fn a_limited_write_does_not_wait_behind_one_that_is_asked_for_its_payload_later() {
    let (budget, begun) = (Rc::new(Budget::new(400_000, 100)), now());
    let mut session = session_with_two_limited(&budget, begun);
    budget.take_at_once(1, 400_000); // another client has the memory
    pass(&mut session);
    assert_eq!(serve(&mut session), b'2', "it waits for no memory");
    pass(&mut session);
    budget.give_back(1, 400_000);
    assert_eq!(budget.next_in_turn(), Some(0));
    session.turn_has_come();
    assert_eq!(serve(&mut session), b'1');
    arrive(&mut session, &[2; 5192]);
    assert_eq!(written(&mut session), (b'2', vec![2; 8192]));
    arrive(&mut session, &[&b"d1\x10"[..], &[1; 4093]].concat());
    arrive(&mut session, &[1; 12_291]);
    assert_eq!(written(&mut session), (b'1', vec![1; 16 << 10]));
}

#[test]
fn a_limited_write_holds_up_no_payload_that_the_client_was_asked_for() {
    let (budget, begun) = (Rc::new(Budget::new(400_000, 100)), now());
    let mut session = session_with_two_limited(&budget, begun);
    pass(&mut session);
    assert_eq!((serve(&mut session), serve(&mut session)), (b'1', b'2'));
    arrive(&mut session, &[2; 5192]);
    assert_eq!(sent(&mut session), b"?1.0");
    arrive(&mut session, &[&b"d1\x10"[..], &[1; 4093]].concat());
    arrive(&mut session, &[1; 12_291]);
    assert_eq!(written(&mut session), (b'1', vec![1; 16 << 10]));
    pass(&mut session);
    assert_eq!(written(&mut session), (b'2', vec![2; 8192]));
    assert_eq!(sent(&mut session), b".1.2");
    assert_eq!((session.serving, budget.used()), (0, 0));
}

#[test]
fn a_damaged_payload_leaves_no_place_in_line() {
    let begun = now();
    let mut session = limited_session(&Rc::new(Budget::new(1 << 20, 1)), begun);
    arrive(&mut session, &[&b"r0\x00b1\x01"[..], &[1; 1024], b"r2\x01"].concat());
    let Ok(Some(Want::Serve(read))) = session.next(begun) else { panic!("{session:?}") };
    session.reply(&read, Ok(None));
    assert_eq!(serve(&mut session), b'1');
    let due = session.common.throttle.next_due();
    assert!(matches!(session.next(begun), Ok(Some(Want::Receive { .. }))));
    assert_eq!(sent(&mut session), b".0x1");
    assert_eq!(session.common.throttle.next_due(), due, "2 has the place of 1");
    pass(&mut session);
    assert!(!session.common.throttle.is_waited_for());
    assert_eq!(serve(&mut session), b'2');
}

#[test]
fn what_has_become_forbidden_while_it_waited_is_refused() {
    let (budget, begun) = (Rc::new(Budget::new(1 << 20, 1)), now());
    let mut session = limited_session(&budget, begun);
    arrive(&mut session, b"z0\x01z1\x01");
    let Ok(Some(Want::Serve(first))) = session.next(begun) else { panic!("{session:?}") };
    session.reply(&first, Ok(None));
    assert!(matches!(session.next(begun), Ok(Some(Want::Receive { .. }))));
    pass(&mut session);
    assert!(matches!(session.next(begun), Ok(None)), "nothing is served");
    assert_eq!(sent(&mut session), b".0x1");
    assert_eq!((session.serving, budget.used()), (0, 0));
}
