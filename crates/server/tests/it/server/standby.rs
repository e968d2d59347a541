//! A standby that waits to serve: it answers admin clients, and sends data clients away.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use floe_block::WriteMode;
use floe_server::Bound;
use floe_server::admin::AdminAddress;
use floe_server::pair::Turn;
use floe_testkit::PATIENCE;

use crate::rig::Setup;

fn connect(socket: &Path) -> UnixStream {
    let client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The reply to the rest of a request.
fn reply(mut client: UnixStream, rest: &str) -> String {
    client.write_all(rest.as_bytes()).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

fn ask(admin: &Path, request: &str) -> String {
    reply(connect(admin), &format!("{request} HTTP/1.1\r\n\r\n"))
}

#[test]
fn a_standby_answers_admin_clients_until_it_serves_and_sends_data_clients_away() {
    let setup = Setup::new(WriteMode::Through);
    let AdminAddress::Unix(admin) = setup.config.admin.listen[0].clone() else { unreachable!() };
    let (order, signal) = UnixStream::pair().unwrap();
    let signal = signal.into();
    let turn = Arc::new(Turn::default());
    let bound = Bound::bind(setup.config.clone()).unwrap();
    let desk = bound.attend(&turn, &signal).unwrap();

    let mut client = connect(&admin.with_file_name("socket"));
    let received = client.read(&mut [0; 8]);
    assert!(received.as_ref().map_or(true, |bytes| *bytes == 0), "{received:?}");
    assert!(ask(&admin, "GET /healthz").ends_with("\r\n\r\nstandby\n"));
    assert!(ask(&admin, "GET /status").contains(r#""role":"standby""#));
    for request in ["GET /volumes", "POST /takeover"] {
        let refused = ask(&admin, request);
        assert!(refused.starts_with("HTTP/1.1 409 "), "{refused}");
    }
    let mut slow = connect(&admin);
    slow.write_all(b"GET /healthz HTT").unwrap();
    assert!(!desk.has_ended(std::time::Duration::ZERO));
    assert!(ask(&admin, "POST /stop").ends_with("\r\n\r\nstopped\n"));
    assert!(desk.has_ended(PATIENCE));

    // It accepts no more, and answers the one that it has accepted.
    drop(desk);
    let early = connect(&admin);
    assert!(reply(slow, "P/1.1\r\n\r\n").ends_with("\r\n\r\nstandby\n"));
    let desk = bound.attend(&turn, &signal).unwrap();
    assert!(reply(early, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(order);
    assert!(desk.has_ended(PATIENCE));
}
