//! A connection by itself: any cut of the same bytes means the same.

use floe_nbd::connection::{Connection, Event};
use floe_nbd::handshake::Tls;
use floe_nbd::wire::{ProtocolError, Violation};

use super::cut::Cut;
use super::exports;

/// The events, payload and answers that a connection makes of some input.
#[derive(Debug, PartialEq)]
pub(super) struct Meaning {
    events: Vec<Event>,
    payload: Vec<u8>,
    said: Vec<u8>,
    end: Result<(), ProtocolError>,
}

/// Parses some input. With `direct`, payload bypasses the connection, as from a socket into its
/// buffer.
pub(super) fn meaning(sent: &[u8], tls: Tls, cut: &mut Cut, direct: bool) -> Meaning {
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
