//! Runs arbitrary client input through all code that parses it, for the fuzzer and for the tests.
//!
//! The first bytes of an input decide how it is cut and when the server answers; the rest is the
//! client's input. Three things must hold for any input: other cuts of the same bytes mean the
//! same; a session's memory stays within its bounds; at the end the budget has everything back.
//! `scripts/fuzz` runs it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use floe_device::{Buffer, Pool, Slice};
use floe_nbd::connection::{Connection, Event};
use floe_nbd::error::{ProtocolError, Violation};
use floe_nbd::export::{Export, Exports};
use floe_nbd::extent::Extent;
use floe_nbd::handshake::Tls;
use floe_nbd::transmission::{Command, Request};

use crate::limits::{Limits, MOST_REQUESTS, RECEIVE_BUSY_BYTES};
use crate::session::{Budget, Common, Session, Want};

/// Longest read or write. Short inputs must be able to reach the memory bounds.
const LONGEST_BYTES: u32 = 64 << 10;

/// Bytes of an input before the client's own.
const PREFIX_BYTES: usize = 9;

/// Runs one input and checks the three properties.
///
/// # Panics
/// When a property does not hold.
pub fn run(input: &[u8]) {
    let Some((prefix, sent)) = input.split_at_checked(PREFIX_BYTES) else { return };
    let seed = u64::from_le_bytes(prefix[1..].try_into().expect("eight bytes"));
    let tls = [Tls::Off, Tls::Offered, Tls::Required][usize::from(prefix[0] % 3)];
    let whole = meaning(sent, tls, &mut Cut { left: usize::MAX, random: Random(0) }, false);
    let cut = meaning(sent, tls, &mut Cut { left: 0, random: Random(seed) }, true);
    assert_eq!(whole, cut, "cut into pieces it means something else");
    if tls == Tls::Off {
        let (at_once, broken) =
            answers(sent, &mut Cut { left: usize::MAX, random: Random(0) }, None);
        let (cut, cut_broken) = answers(sent, &mut Cut { left: 0, random: Random(seed) }, None);
        assert_eq!(broken, cut_broken);
        // A client that breaks the protocol may lose the last answers.
        let same = if broken { at_once.len().min(cut.len()) } else { at_once.len().max(cut.len()) };
        assert_eq!(
            at_once.get(..same),
            cut.get(..same),
            "cut into pieces it is answered otherwise"
        );
        answers(sent, &mut Cut { left: 0, random: Random(seed) }, Some(Random(!seed)));
    }
}

/// Returns inputs to begin with: typical conversations, and some that break off.
pub fn seeds() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let request = |flags: u16, command: u16, offset: u64, length: u32| {
        let fields =
            [&flags.to_be_bytes()[..], &command.to_be_bytes(), b"cookie!!", &offset.to_be_bytes()]
                .concat();
        [&0x2560_9513u32.to_be_bytes()[..], &fields, &length.to_be_bytes()].concat()
    };
    let go = option(7, b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03");
    let contexts = option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
    let hello = vec![0, 0, 0, 3];
    let structured = option(8, b"");
    let requests: Vec<Vec<u8>> = [
        (0, 0, 0, 512),
        (4, 0, 4096, 70_000),
        (0, 1, 8192, 300),
        (1, 3, 0, 0),
        (0, 4, 0, 4096),
        (0, 5, 0, 1 << 20),
        (18, 6, 0, 4096),
        (8, 7, 0, 1 << 20),
        (0, 9, 0, 0),
    ]
    .into_iter()
    .map(|(flags, command, offset, length)| {
        let payload = if command == 1 { vec![7; length as usize] } else { Vec::new() };
        [request(flags, command, offset, length), payload].concat()
    })
    .collect();
    let negotiated = [hello.clone(), structured.clone(), contexts.clone(), go.clone()].concat();
    let mut sent = vec![
        [hello.clone(), option(1, b"disk"), requests.concat(), request(0, 2, 0, 0)].concat(),
        [vec![0; 4], option(1, b""), requests.concat()].concat(),
        [
            hello.clone(),
            option(3, b""),
            option(9, &contexts[16..]),
            option(6, &go[16..]),
            option(2, b""),
        ]
        .concat(),
        [hello.clone(), option(5, b""), option(99, b"?"), option(6, b"\0\0\0\x04nope\0\0")]
            .concat(),
        [negotiated.clone(), requests.concat(), request(0, 2, 0, 0)].concat(),
        [negotiated.clone(), request(0, 1, 0, u32::MAX)].concat(),
        [
            negotiated.clone(),
            request(0, 1, 1 << 20, 5),
            vec![1; 5],
            request(0, 0, 0, 65536).repeat(40),
        ]
        .concat(),
    ];
    sent.extend(requests.iter().map(|request| [&negotiated[..], request].concat()));
    (0..3)
        .flat_map(|tls| {
            sent.iter().map(move |sent| [&[tls, 1, 2, 3, 4, 5, 6, 7, 8][..], sent].concat())
        })
        .collect()
}

/// The length of the next piece.
struct Cut {
    left: usize,
    random: Random,
}

impl Cut {
    /// Takes the next piece, of at most `most` bytes, off `rest`.
    fn next<'a>(&mut self, rest: &mut &'a [u8], most: usize) -> &'a [u8] {
        if self.left == 0 {
            // Mostly short, now and then long.
            let bits = self.random.next() % 16;
            self.left = 1 + (self.random.next() % (1 << bits)) as usize;
        }
        let bytes = self.left.min(most).min(rest.len());
        if self.left != usize::MAX {
            self.left -= bytes;
        }
        let (piece, after) = rest.split_at(bytes);
        *rest = after;
        piece
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn exports() -> Arc<Exports> {
    let disk = Export { maximum_block_bytes: LONGEST_BYTES, ..Export::new("disk", 1 << 20) };
    let sealed = Export { read_only: true, minimum_block_bytes: 512, ..disk.clone() };
    Arc::new(
        Exports::new(vec![disk, Export { volume: 1, name: "sealed".into(), ..sealed }])
            .expect("good exports"),
    )
}

/// The events, payload and answers that a connection makes of some input.
#[derive(Debug, PartialEq)]
struct Meaning {
    events: Vec<Event>,
    payload: Vec<u8>,
    said: Vec<u8>,
    end: Result<(), ProtocolError>,
}

/// Parses some input. With `direct`, payload bypasses the connection, as from a socket into its
/// buffer.
fn meaning(sent: &[u8], tls: Tls, cut: &mut Cut, direct: bool) -> Meaning {
    let mut found =
        Meaning { events: Vec::new(), payload: Vec::new(), said: Vec::new(), end: Ok(()) };
    let mut connection = Connection::new(exports(), tls, &mut found.said);
    let mut rest = sent;
    'pieces: while !rest.is_empty() {
        let mut piece = cut.next(&mut rest, usize::MAX);
        loop {
            if direct {
                let here = piece.len().min(connection.payload_remaining());
                take_payload(&mut connection, &mut piece, here, &mut found.payload);
            }
            match connection.advance(piece, &mut found.said) {
                Ok((used, event)) => {
                    piece = &piece[used..];
                    match event {
                        Event::NeedMore => {
                            assert!(piece.is_empty(), "it wants more and leaves some");
                            break;
                        }
                        Event::Payload { here, .. } => {
                            take_payload(&mut connection, &mut piece, here, &mut found.payload);
                        }
                        // The following bytes belong to TLS.
                        Event::StartTls => {
                            found.events.push(event);
                            break 'pieces;
                        }
                        Event::Disconnect => {
                            found.events.push(event);
                            return found;
                        }
                        _ => found.events.push(event),
                    }
                }
                Err(ProtocolError { violation: Violation::ClearBehindStartTls(_), .. }) => {
                    found.events.push(Event::StartTls);
                    break 'pieces;
                }
                Err(error) => {
                    found.end = Err(error);
                    return found;
                }
            }
        }
    }
    if found.events.last() != Some(&Event::StartTls) {
        found.end = connection.end_of_input();
    }
    found
}

fn take_payload(
    connection: &mut Connection,
    piece: &mut &[u8],
    bytes: usize,
    payload: &mut Vec<u8>,
) {
    payload.extend_from_slice(&piece[..bytes]);
    *piece = &piece[bytes..];
    connection.payload_received(bytes);
}

/// A server of one client, on a disk whose bytes encode their position.
struct Host {
    session: Session,
    pool: Pool,
    budget: Rc<Budget>,
    said: Vec<u8>,
    /// Unanswered requests and an unfinished send, where answers are delayed.
    open: Vec<(Request, Option<Buffer>)>,
    sending: bool,
}

/// Returns a session's answers to some input, and whether the input broke the protocol. With
/// `delays`, the server answers late and in any order.
fn answers(sent: &[u8], cut: &mut Cut, mut delays: Option<Random>) -> (Vec<u8>, bool) {
    let now = Instant::now();
    let pool = Pool::new(0);
    let budget = Rc::new(Budget::new(2 * LONGEST_BYTES as usize, 1));
    let common = Common {
        pool: pool.clone(),
        budget: Rc::clone(&budget),
        tls: None,
        limits: Limits::default(),
    };
    let nowhere = OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null is there"));
    let session = Session::new(0, nowhere, &exports(), &common, now);
    let mut host =
        Host { session, pool, budget, said: Vec::new(), open: Vec::new(), sending: false };
    let mut rest = sent;
    let mut place: Option<Slice> = None;
    let mut broken = false;
    loop {
        let wanted = if place.is_none() { host.session.next(now) } else { Ok(None) };
        match wanted {
            Ok(Some(Want::Serve(request))) => host.serve(request),
            Ok(Some(Want::ServeWrite(request, buffer))) => host.open.push((request, Some(buffer))),
            Ok(Some(Want::Receive { into, .. })) => place = Some(into),
            Ok(Some(Want::Pause | Want::End) | None) => {}
            Err(_) => {
                broken = true;
                host.session.break_off();
                host.open.drain(..).for_each(|(request, _)| host.session.reply(&request, Ok(None)));
                host.session.sent(now);
                break;
            }
        }
        if host.budget.next_in_turn().is_some() {
            host.session.turn_has_come();
        }
        if let Some(delays) = &mut delays {
            host.interfere(delays);
        }
        let moved = host.answer(delays.as_mut(), now);
        host.check_bounds();
        let idle = delays.as_mut().is_none_or(|delays| delays.next().is_multiple_of(3));
        if let Some(into) = place.take_if(|_| idle) {
            let piece = cut.next(&mut rest, into.len());
            into.slice(0..piece.len()).copy_from(piece);
            let hung_up = host.session.received(piece.len(), now).is_err();
            if hung_up || piece.is_empty() {
                host.session.end();
            }
        } else if !moved && host.session.is_over() {
            break;
        }
    }
    assert_eq!(host.budget.used(), 0, "something taken is not given back");
    (host.said, broken)
}

impl Host {
    fn serve(&mut self, request: Request) {
        if request.command == Command::Write {
            let buffer = self.pool.allocate(request.length as usize);
            let into = buffer.whole();
            self.session.begin_payload(request, buffer, into);
        } else {
            self.open.push((request, None));
        }
    }

    /// Rarely changes the server's list of exports, or ends the session.
    fn interfere(&mut self, random: &mut Random) {
        let sizes =
            |bytes| Export { maximum_block_bytes: LONGEST_BYTES, ..Export::new("disk", bytes) };
        let changed = match random.next() % 256 {
            0 => vec![sizes(1 << 30)],
            1 => vec![sizes(4096)],
            2 => vec![],
            3 => return self.session.break_off(),
            4 => return self.session.end(),
            _ => return,
        };
        self.session.exports_changed(&Arc::new(Exports::new(changed).expect("good exports")));
    }

    /// Answers requests and sends replies that are due. Returns whether there was anything to wait
    /// for.
    fn answer(&mut self, delays: Option<&mut Random>, now: Instant) -> bool {
        let mut next = match delays {
            None => 0,
            Some(delays) => delays.next(),
        };
        let waiting = !self.open.is_empty() || self.sending;
        if !self.open.is_empty() && next.is_multiple_of(2) {
            next /= 2;
            let (request, _) = self.open.remove(next as usize % self.open.len());
            match request.command {
                Command::BlockStatus => self.session.reply_extents(&request, &[Extent::data(4096)]),
                Command::Read => {
                    let data = self
                        .pool
                        .allocate(request.length as usize)
                        .slice(0..request.length as usize);
                    data.fill_zero();
                    self.session.reply(&request, Ok(Some(data)));
                }
                _ => self.session.reply(&request, Ok(None)),
            }
        }
        if self.sending && next.is_multiple_of(2) {
            self.sending = false;
            self.session.sent(now);
        }
        if let Some(slices) = self.session.next_send(now) {
            slices.iter().for_each(|slice| self.said.extend(slice.to_vec()));
            self.sending = true;
        }
        waiting || self.sending
    }

    fn check_bounds(&self) {
        assert!(self.budget.used() <= 3 * LONGEST_BYTES as usize);
        assert!(self.open.len() <= MOST_REQUESTS);
        // Of each request its buffer and a page for its header or extents, and what is received and
        // sent at once.
        let most = 3 * LONGEST_BYTES as usize + (MOST_REQUESTS + 8) * 4096 + RECEIVE_BUSY_BYTES;
        assert!(self.pool.stats().fallback_bytes <= most, "{:?}", self.pool.stats());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_mean_the_same_however_they_are_cut() {
        for input in seeds() {
            for seed in 0..20 {
                let mut input = input.clone();
                input[1] = seed;
                run(&input);
            }
        }
    }

    #[test]
    fn conversations_broken_off_or_damaged_anywhere_break_nothing() {
        let mut random = Random(1);
        for input in seeds() {
            for _ in 0..100 {
                let mut input = input.clone();
                input.truncate(1 + random.next() as usize % input.len());
                let at = random.next() as usize % input.len();
                input[at] = random.next() as u8;
                run(&input);
            }
        }
    }
}
