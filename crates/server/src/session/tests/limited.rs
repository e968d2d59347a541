//! Tests of sessions whose volume has a limit: one request a second, and one at once.

use std::time::Duration;

use super::*;
use crate::volume_limit::{RequestLimit, VolumeLimit};

const VOLUME: VolumeId = VolumeId(3);
const SECOND: Duration = Duration::from_secs(1);

/// A session that has received these requests, and the time from which its limit counts.
fn limited_session(requests: &[u8], own_bytes: usize) -> (Session, Instant) {
    let budget = Rc::new(Budget::new(4 * own_bytes, 1));
    let session = session_with(requests, &[disk(1 << 20)], &budget, 7);
    let begun = one_a_second(&session.common.throttle);
    (session, begun)
}

/// Limits the volume to one request a second. Returns the time from which that counts.
pub(super) fn one_a_second(throttle: &Throttle) -> Instant {
    let limit =
        RequestLimit { requests_per_second: Some(1), limit_burst_ms: 1, ..RequestLimit::NONE };
    let (limit, begun) = (VolumeLimit::new(limit), now());
    throttle.set(VOLUME, Some(Arc::new(limit)), begun);
    begun
}

/// A write of two bytes, which takes the memory of a sector, 4 KiB.
fn write(fill: u8) -> Vec<u8> {
    [request(command::WRITE, 511, 2), vec![fill; 2]].concat()
}

/// Has the session receive the payload of the write that it wants to begin.
#[track_caller]
fn receive(session: &mut Session, now: Instant) {
    let Ok(Some(Want::Serve(write))) = session.next(now) else { panic!("{session:?}") };
    assert!(write.payload_follows);
    let buffer = session.common.pool.allocate(1024);
    let payload = buffer.slice(511..513);
    session.begin_payload(write, buffer, payload);
}

/// Serves the write whose payload is complete, which must have these bytes.
#[track_caller]
fn serve(session: &mut Session, fill: u8, now: Instant) {
    let Ok(Some(Want::ServeWrite(write, buffer))) = session.next(now) else {
        panic!("{session:?}")
    };
    assert_eq!(buffer.slice(511..513).to_vec(), [fill; 2]);
    session.reply(&write, Ok(None));
}

#[track_caller]
fn pass(session: &mut Session, at: Instant) {
    assert_eq!(session.common.throttle.next_in_turn(at - SECOND / 10), None);
    assert_eq!(session.common.throttle.next_due(), Some(at));
    assert_eq!(session.common.throttle.next_in_turn(at), Some((7, VOLUME)));
    limit_passed(session, VOLUME, at).expect("a request waits");
}

fn sequence() -> Vec<u8> {
    let (read, flush) = (request(command::READ, 0, 512), request(command::FLUSH, 0, 0));
    [write(1), write(2), read, flush].concat()
}

#[test]
fn writes_wait_with_their_payload_and_what_has_no_limit_overtakes() {
    let (mut session, begun) = limited_session(&sequence(), 16 << 10);
    receive(&mut session, begun);
    serve(&mut session, 1, begun);
    receive(&mut session, begun);
    let Ok(Some(Want::Serve(flush))) = session.next(begun) else { panic!("{session:?}") };
    assert_eq!(flush.kind, RequestKind::Flush);
    session.reply(&flush, Ok(None));
    assert!(matches!(session.next(begun), Ok(Some(Want::Receive { .. }))));
    assert!(session.uses(VOLUME) && !session.is_quiet());
    pass(&mut session, begun + SECOND);
    serve(&mut session, 2, begun);
    pass(&mut session, begun + 2 * SECOND);
    let Ok(Some(Want::Serve(read))) = session.next(begun) else { panic!("{session:?}") };
    session.reply(&read, Ok(None));
    assert_eq!((session.common.throttle.next_due(), session.serving), (None, 0));
    assert!(session.next_send(begun).is_some());
    session.sent(begun);
    assert_eq!(session.common.budget.used(), 0);
}

#[test]
fn beyond_its_own_memory_a_client_is_read_no_more_until_its_turn() {
    let flush = request(command::FLUSH, 0, 0);
    let requests = [(1..=5).flat_map(write).collect(), flush].concat();
    let (mut session, begun) = limited_session(&requests, 16 << 10);
    receive(&mut session, begun);
    serve(&mut session, 1, begun);
    (2..=4).for_each(|_| receive(&mut session, begun));
    assert!(matches!(session.next(begun), Ok(Some(Want::Pause))));
    for fill in 2..=4 {
        pass(&mut session, begun + u32::from(fill - 1) * SECOND);
        serve(&mut session, fill, begun);
        assert!(matches!(session.next(begun), Ok(Some(Want::Pause))));
    }
    pass(&mut session, begun + 4 * SECOND);
    assert!(session.next_send(begun).is_some());
    session.sent(begun);
    receive(&mut session, begun);
    serve(&mut session, 5, begun);
    let Ok(Some(Want::Serve(served))) = session.next(begun) else { panic!("{session:?}") };
    assert_eq!(served.kind, RequestKind::Flush);
}

#[test]
fn a_session_that_ends_leaves_its_line_and_gives_all_memory_back() {
    let (mut session, begun) = limited_session(&sequence(), 16 << 10);
    receive(&mut session, begun);
    serve(&mut session, 1, begun);
    receive(&mut session, begun);
    assert!(matches!(session.next(begun), Ok(Some(Want::Serve(_)))));
    assert!(session.common.throttle.is_waited_for());
    session.end();
    assert!(!session.common.throttle.is_waited_for());
    assert_eq!(session.serving, 1, "the flush");
    assert!(session.next_send(begun).is_some());
    session.sent(begun);
    assert_eq!(session.common.budget.used(), 0);

    // One that leaves properly is served before it ends.
    let disconnect = request(command::DISC, 0, 0);
    let (mut session, begun) =
        limited_session(&[write(1), write(2), disconnect].concat(), 16 << 10);
    receive(&mut session, begun);
    serve(&mut session, 1, begun);
    receive(&mut session, begun);
    assert!(matches!(session.next(begun), Ok(Some(Want::End))) && !session.is_over());
    assert!(!end_if_vanished(&mut session), "it has closed its connection after a disconnect");
    pass(&mut session, begun + SECOND);
    serve(&mut session, 2, begun);
    assert!(session.next_send(begun).is_some());
    session.sent(begun);
    assert!(session.is_over());
}

#[test]
fn a_client_that_closes_its_connection_is_noticed_though_nothing_is_received() {
    let requests: Vec<_> = (1..=5).flat_map(write).collect();
    let (mut session, begun) = limited_session(&requests, 16 << 10);
    receive(&mut session, begun);
    serve(&mut session, 1, begun);
    (2..=4).for_each(|_| receive(&mut session, begun));
    assert!(matches!(session.next(begun), Ok(Some(Want::Pause))));
    assert!(end_if_vanished(&mut session) && !end_if_vanished(&mut session));
    assert!(matches!(session.next(begun), Ok(Some(Want::End))));
    assert!(!session.common.throttle.is_waited_for());
    assert!(session.next_send(begun).is_some(), "the reply to 1");
    session.sent(begun);
    assert!(session.is_over() && session.common.budget.used() == 0);
}
