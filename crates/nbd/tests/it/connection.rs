//! A whole connection, fed in pieces of every size, and with bytes no honest client would send.
//!
//! The random tests are seeded and print their seed; the model they compare with is the same stream
//! fed whole.

use std::sync::Arc;

use floe_nbd::connection::{Connection, Event};
use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::Tls;
use floe_nbd::transmission::{DRAIN_MAX_BYTES, NbdCommand, Request};
use floe_nbd::wire::{ErrorCode, NbdError, ProtocolError, Violation};
use floe_testkit::Random;

const SIZE: u64 = 1 << 20;

/// What a driver saw: events in order, each write's payload whole, what was sent, and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    events: Vec<Event>,
    payloads: Vec<Vec<u8>>,
    sent: Vec<u8>,
    error: Option<ProtocolError>,
}

impl Seen {
    /// Takes some of a write's payload; keeps the payload once it is whole.
    fn take(&mut self, connection: &mut Connection, payload: &mut Vec<u8>, bytes: &[u8]) {
        payload.extend_from_slice(bytes);
        connection.payload_received(bytes.len());
        if connection.payload_remaining() == 0 {
            self.payloads.push(std::mem::take(payload));
        }
    }
}

fn exports() -> Arc<Exports> {
    Arc::new(Exports::new(vec![Export::new("disk", SIZE)]).unwrap())
}

/// A driver: feeds the pieces. With `direct`, payload beyond the input is taken as if received
/// straight into place.
fn drive<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, direct: bool) -> Seen {
    let (mut seen, mut out, mut payload) = (Seen::default(), Vec::new(), Vec::new());
    let mut connection = Connection::new(exports(), Tls::Off, &mut out);
    for mut rest in pieces {
        if direct && connection.payload_remaining() > 0 {
            let here = rest.len().min(connection.payload_remaining());
            seen.take(&mut connection, &mut payload, &rest[..here]);
            rest = &rest[here..];
        }
        loop {
            let step = connection.advance(rest, &mut out);
            seen.sent.append(&mut out);
            let (used, event) = match step {
                Ok(step) => step,
                Err(error) => {
                    assert_eq!(
                        connection.advance(b"more", &mut out),
                        Err(error.clone()),
                        "an error is final"
                    );
                    assert_eq!(connection.end_of_input(), Err(error.clone()));
                    seen.error = Some(error);
                    return seen;
                }
            };
            rest = &rest[used..];
            match event {
                Event::NeedMore => {
                    assert!(rest.is_empty(), "wants more but leaves some");
                    break;
                }
                Event::Payload { here, remaining } => {
                    assert!(here > 0 && here <= rest.len() && here <= remaining);
                    assert_eq!((used, remaining), (0, connection.payload_remaining()));
                    seen.take(&mut connection, &mut payload, &rest[..here]);
                    rest = &rest[here..];
                }
                Event::Disconnect => {
                    seen.events.push(event);
                    return seen;
                }
                event => seen.events.push(event),
            }
        }
    }
    seen.error = connection.end_of_input().err();
    seen
}

/// Client flags, structured replies, `GO` to the default export.
fn hello() -> Vec<u8> {
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    hello.extend_from_slice(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    hello
}

fn request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    let cookie = 7u64;
    let mut header = b"\x25\x60\x95\x13\0\0".to_vec();
    header.extend_from_slice(&command.to_be_bytes());
    header.extend_from_slice(&cookie.to_be_bytes());
    header.extend_from_slice(&offset.to_be_bytes());
    header.extend_from_slice(&length.to_be_bytes());
    header
}

fn parsed(command: NbdCommand, offset: u64, length: u32) -> Request {
    Request { cookie: 7, command, flags: 0, offset, length }
}

fn session() -> Vec<u8> {
    [
        hello(),
        request(0, 4096, 512),
        request(1, 8192, 300),
        vec![0xab; 300],
        request(1, SIZE, 100),
        vec![0xcd; 100],
        request(1, 0, 0),
        request(9, 0, 0),
        request(1, 0, 5),
        b"final".to_vec(),
        request(3, 0, 0),
        request(2, 0, 0),
    ]
    .concat()
}

#[test]
fn a_session_is_told_as_events_in_order() {
    let seen = drive([&session()[..]], false);
    let no_space = NbdError::new(ErrorCode::NoSpace, "past the end of the export");
    let unknown = NbdError::new(ErrorCode::Invalid, "unknown command");
    let events = [
        Event::Answered,
        Event::Negotiated,
        Event::Request(parsed(NbdCommand::Read, 4096, 512)),
        Event::Request(parsed(NbdCommand::Write, 8192, 300)),
        Event::Refused { request: parsed(NbdCommand::Write, SIZE, 100), error: no_space },
        Event::Request(parsed(NbdCommand::Write, 0, 0)),
        Event::Refused { request: parsed(NbdCommand::Unknown(9), 0, 0), error: unknown },
        Event::Request(parsed(NbdCommand::Write, 0, 5)),
        Event::Request(parsed(NbdCommand::Flush, 0, 0)),
        Event::Disconnect,
    ];
    assert_eq!(seen.events, events);
    assert_eq!(seen.payloads, [vec![0xab; 300], b"final".to_vec()]);
    assert_eq!(seen.error, None);
    assert!(seen.sent.starts_with(b"NBDMAGICIHAVEOPT\0\x03"));
}

#[test]
fn where_the_bytes_are_cut_makes_no_difference() {
    let session = session();
    let whole = drive([&session[..]], false);
    for direct in [false, true] {
        assert_eq!(drive(session.chunks(1), direct), whole);
        for at in 0..session.len() {
            let (first, second) = session.split_at(at);
            assert_eq!(drive([first, second], direct), whole, "cut at {at}");
        }
        for seed in 0..500 {
            let mut random = Random(seed);
            let (mut rest, mut pieces) = (&session[..], Vec::new());
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at(rest.len().min(random.below(90)));
                pieces.push(piece);
                rest = tail;
            }
            assert_eq!(drive(pieces, direct), whole, "seed {seed}");
        }
    }
}

#[test]
fn garbage_never_panics_and_means_the_same_in_pieces() {
    for seed in 0..3000 {
        let mut random = Random(seed);
        let mut bytes = session();
        // Spoil a few bytes, or put noise in place of a tail, so that damage reaches every state.
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        if random.below(3) == 0 {
            bytes.truncate(random.below(bytes.len()));
            let noise = random.below(2000);
            bytes.extend((0..noise).map(|_| random.below(256) as u8));
        }
        let whole = drive([&bytes[..]], false);
        assert_eq!(drive(bytes.chunks(1), true), whole, "seed {seed}");
        assert_eq!(drive(bytes.chunks(1 + random.below(100)), true), whole, "seed {seed}");
        assert!(
            whole.sent.len() < 64 << 10,
            "seed {seed}: a short input made {} bytes",
            whole.sent.len()
        );
    }
}

#[test]
fn a_bad_request_magic_ends_the_session_and_says_where() {
    let good = request(0, 0, 1);
    let input = [hello(), good.clone(), vec![b'x'; 28]].concat();
    let at = (hello().len() + good.len()) as u64;
    let error = drive([&input[..]], false).error.unwrap();
    assert_eq!(error, ProtocolError { at, violation: Violation::RequestMagic(0x7878_7878) });
    let line = format!("bad request magic 0x78787878, in the message at byte {at} from the client");
    assert_eq!(error.to_string(), line);
}

#[test]
fn a_refused_write_is_drained_up_to_a_limit() {
    let max = DRAIN_MAX_BYTES;
    let mut out = Vec::new();
    let mut connection = Connection::new(exports(), Tls::Off, &mut out);
    let input = [hello(), request(1, 0, max)].concat();
    let mut rest = &input[..];
    while !rest.is_empty() {
        rest = &rest[connection.advance(rest, &mut out).unwrap().0..];
    }
    let zeroes = vec![0; 1 << 20];
    for _ in 0..(max >> 20) - 1 {
        assert_eq!(connection.advance(&zeroes, &mut out), Ok((zeroes.len(), Event::NeedMore)));
    }
    let (used, event) = connection.advance(&zeroes, &mut out).unwrap();
    let error = NbdError::new(ErrorCode::Invalid, "longer than the maximum block size");
    assert_eq!(used, zeroes.len());
    assert_eq!(event, Event::Refused { request: parsed(NbdCommand::Write, 0, max), error });

    let violation = Violation::WriteTooLong { length: max + 1, max };
    let error = drive([&[hello(), request(1, 0, max + 1)].concat()[..]], false).error.unwrap();
    assert_eq!(error.violation, violation);
}

#[test]
fn hanging_up_is_fine_between_messages_only() {
    let ends = |input: &[u8]| drive([input], false).error.map(|error| error.to_string());
    let start = hello().len();
    let partial = [hello(), request(0, 0, 1)[..5].to_vec()].concat();
    let unpaid = [hello(), request(1, 0, 10), vec![1; 3]].concat();
    let at = |what: &str, at: usize| {
        Some(format!(
            "the client hung up inside {what}, in the message at byte {at} from the client"
        ))
    };
    assert_eq!(ends(b""), None);
    assert_eq!(ends(&hello()), None);
    assert_eq!(ends(&hello()[..7]), at("an option", 4));
    assert_eq!(ends(&partial), at("a request", start));
    assert_eq!(ends(&unpaid), at("a write's payload", start));
}

#[test]
fn nothing_counts_after_a_disconnect() {
    let mut out = Vec::new();
    let mut connection = Connection::new(exports(), Tls::Off, &mut out);
    let input = [hello(), request(2, 0, 0)].concat();
    let mut rest = &input[..];
    while !rest.is_empty() {
        rest = &rest[connection.advance(rest, &mut out).unwrap().0..];
    }
    assert_eq!(connection.advance(b"whatever", &mut out), Ok((8, Event::Disconnect)));
    assert_eq!(connection.end_of_input(), Ok(()));
    assert_eq!(connection.export().map(|export| &export.name[..]), Some("disk"));
}

#[test]
#[should_panic(expected = "no more than the payload's remaining bytes")]
fn a_driver_that_takes_more_than_the_payload_is_stopped() {
    let mut connection = Connection::new(exports(), Tls::Off, &mut Vec::new());
    connection.payload_received(1);
}
