//! When TLS is granted, and what is refused without it.

use std::sync::Arc;

use floe_nbd::connection::{Connection, Event};
use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::Tls;
use floe_nbd::wire::Violation;

const STARTTLS: u32 = 5;
const TLS_REQUIRED: u32 = 0x8000_0005;

fn connection(tls: Tls) -> Connection {
    let exports = Arc::new(Exports::new(vec![Export::new("disk", 4096)]).unwrap());
    let mut connection = Connection::new(exports, tls, &mut Vec::new());
    assert_eq!(connection.advance(&[0, 0, 0, 3], &mut Vec::new()), Ok((4, Event::NeedMore)));
    connection
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What one option comes to, and the kind of its answer.
fn say(connection: &mut Connection, option: &[u8]) -> (Event, u32) {
    let mut out = Vec::new();
    let (used, event) = connection.advance(option, &mut out).unwrap();
    assert_eq!(used, option.len());
    (event, u32::from_be_bytes(out[12..16].try_into().unwrap()))
}

#[test]
fn where_tls_is_required_nothing_else_is_answered_before() {
    let mut connection = connection(Tls::Required);
    for number in [3, 6, 7, 8, 9, 10, 11, 99] {
        let (event, kind) = say(&mut connection, &option(number, b"\0\0\0\x04disk\0\0"));
        assert_eq!((event, kind), (Event::Answered, TLS_REQUIRED), "option {number}");
    }
    assert_eq!(say(&mut connection, &option(STARTTLS, b"x")).1, 0x8000_0003);
    assert_eq!(say(&mut connection, &option(STARTTLS, b"")), (Event::StartTls, 1));
    assert_eq!(say(&mut connection, &option(STARTTLS, b"")), (Event::Answered, 0x8000_0003));
    let (event, _) = say(&mut connection, &option(7, b"\0\0\0\x04disk\0\0"));
    assert_eq!(event, Event::Negotiated);
}

#[test]
fn a_client_may_leave_without_tls() {
    assert_eq!(say(&mut connection(Tls::Required), &option(2, b"")), (Event::Disconnect, 1));
}

#[test]
fn export_name_in_the_clear_ends_the_session_where_tls_is_required() {
    let error =
        connection(Tls::Required).advance(&option(1, b"disk"), &mut Vec::new()).unwrap_err();
    assert_eq!(error.violation, Violation::TlsRequired);
}

#[test]
fn where_tls_is_offered_a_client_may_do_without() {
    let mut connection = connection(Tls::Offered);
    assert_eq!(say(&mut connection, &option(8, b"")).1, 1);
    assert_eq!(say(&mut connection, &option(7, b"\0\0\0\x04disk\0\0")).0, Event::Negotiated);
}

#[test]
fn what_was_agreed_in_the_clear_is_forgotten() {
    let mut connection = connection(Tls::Offered);
    assert_eq!(say(&mut connection, &option(8, b"")).1, 1);
    assert_eq!(say(&mut connection, &option(STARTTLS, b"")), (Event::StartTls, 1));
    assert_eq!(say(&mut connection, &option(7, b"\0\0\0\x04disk\0\0")).0, Event::Negotiated);
    assert!(!connection.negotiated().unwrap().structured_replies);
}

#[test]
fn bytes_put_in_behind_the_request_for_tls_end_the_session() {
    let input = [option(STARTTLS, b""), option(8, b"")].concat();
    let error = connection(Tls::Offered).advance(&input, &mut Vec::new()).unwrap_err();
    assert_eq!((error.at, error.violation), (20, Violation::ClearBehindStartTls(16)));
}
