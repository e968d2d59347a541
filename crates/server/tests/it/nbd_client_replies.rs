//! The client against servers that follow a script: old ones, fragmenting ones, and ones that lie.

use std::io::{Read, Write};
use std::net::TcpListener;

use floe_nbd::uri::Uri;
use floe_nbd::wire::ErrorCode;
use floe_server::nbd_client::{Client, ClientError, Options};

const OLD_GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\0";
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const READ: usize = 28;

/// One turn of a server: send this, after receiving so many bytes.
type Turn<'a> = (usize, &'a [u8]);

/// Plays the turns on one connection, then hangs up; gives what the client sent.
fn play(turns: &[Turn<'_>]) -> (Uri, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri =
        format!("nbd://127.0.0.1:{}/e", listener.local_addr().unwrap().port()).parse().unwrap();
    let turns: Vec<(usize, Vec<u8>)> =
        turns.iter().map(|(after, bytes)| (*after, bytes.to_vec())).collect();
    let server = std::thread::spawn(move || {
        let (mut stream, mut received) = (listener.accept().unwrap().0, Vec::new());
        for (after, bytes) in turns {
            let start = received.len();
            received.resize(start + after, 0);
            stream.read_exact(&mut received[start..]).unwrap();
            stream.write_all(&bytes).unwrap();
        }
        received
    });
    (uri, server)
}

fn reply(option: u8, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u8;
    [
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0",
        &[option][..],
        &kind.to_be_bytes(),
        &[0, 0, 0, length],
        data,
    ]
    .concat()
}

fn chunk(flags: u8, kind: u16, data: &[u8]) -> Vec<u8> {
    let cookie = 1u64 << 32; // the first use of the first place
    let length = (data.len() as u32).to_be_bytes();
    [b"\x66\x8e\x33\xef\0", &[flags][..], &kind.to_be_bytes(), &cookie.to_be_bytes(), &length, data]
        .concat()
}

fn at(offset: u64, rest: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], rest].concat()
}

/// Connects to a server with structured replies that answers a read of 8 bytes at 100 so; gives
/// what came of it.
fn read_answered_with(answer: &[u8]) -> (Result<(), ClientError>, [u8; 8]) {
    let acknowledge = reply(8, 1, b"");
    let go = [reply(7, 3, b"\0\0\0\0\0\0\0\0\x10\0\0\x01"), reply(7, 1, b"")].concat();
    let (uri, server) =
        play(&[(0, GREETING), (4 + 16, &acknowledge), (16 + 9, &go), (READ, answer)]);
    let mut client = Client::connect(&uri).unwrap();
    let mut data = [0xee; 8];
    let outcome = client.read(100, &mut data);
    if !matches!(outcome, Ok(()) | Err(ClientError::Request(_))) {
        assert!(
            matches!(client.flush(), Err(ClientError::Failed)),
            "a broken connection stays broken"
        );
    }
    server.join().unwrap();
    (outcome, data)
}

#[test]
fn an_old_server_is_asked_by_export_name() {
    let answer = [b"\0\0\0\0\0\0\x10\0\0\x03", &[0; 124][..]].concat();
    let (uri, server) = play(&[(0, OLD_GREETING), (4 + 17, &answer)]);
    let client = Client::connect(&uri).unwrap();
    assert_eq!(client.info().size_bytes, 4096);
    assert!(client.info().read_only() && !client.info().structured_replies);
    assert_eq!(server.join().unwrap(), b"\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\x01e");
}

#[test]
fn a_server_without_go_is_asked_by_export_name_too() {
    let unsupported = [reply(8, 0x8000_0001, b"no"), reply(7, 0x8000_0001, b"")];
    let (uri, server) = play(&[
        (0, GREETING),
        (4 + 16, &unsupported[0]),
        (16 + 9, &unsupported[1]),
        (17, b"\0\0\0\0\0\0\x10\0\0\x01"),
    ]);
    let client = Client::connect(&uri).unwrap();
    assert_eq!((client.info().size_bytes, client.info().structured_replies), (4096, false));
    let sent =
        b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x01e\0\x01\0\x03\
                 IHAVEOPT\0\0\0\x01\0\0\0\x01e";
    assert_eq!(server.join().unwrap(), sent);
}

#[test]
fn a_refusal_by_hanging_up_is_told_as_one() {
    let (uri, _server) = play(&[(0, OLD_GREETING), (4 + 17, b"")]);
    let error = Client::connect(&uri).unwrap_err().to_string();
    assert_eq!(error, r#"server refused export "e": it hung up"#);
}

#[test]
fn a_server_that_insists_on_tls_is_told_as_one() {
    let refusal = reply(7, 0x8000_0005, b"");
    let (uri, _server) = play(&[(0, GREETING), (4 + 16 + 9, &refusal)]);
    let options = Options { structured_replies: false, timeout: None };
    let error = Client::connect_with(&uri, &options).unwrap_err().to_string();
    assert_eq!(error, r#"server refused export "e": it insists on TLS"#);
}

#[test]
fn fragments_and_holes_are_put_together() {
    let tail = chunk(0, 1, &at(105, b"xyz"));
    let hole = chunk(0, 2, &at(102, &[0, 0, 0, 3]));
    let head = chunk(0, 1, &at(100, b"ab"));
    let (outcome, data) = read_answered_with(&[tail, hole, head, chunk(1, 0, b"")].concat());
    outcome.unwrap();
    assert_eq!(&data, b"ab\0\0\0xyz");
}

#[test]
fn an_error_chunk_fails_the_read_but_not_the_connection() {
    let head = chunk(0, 1, &at(100, b"abcdefgh"));
    let error = chunk(1, 0x8002, b"\0\0\0\x05\0\x04dead\0\0\0\0\0\0\0\x66");
    let (outcome, _) = read_answered_with(&[head, error].concat());
    let Err(ClientError::Request(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Io, "dead"));
}

#[test]
fn lies_end_the_connection() {
    let stray = chunk(1, 0, b"")[..8].to_vec();
    for (answer, complaint) in [
        (chunk(1, 1, &at(99, b"x")), "data outside of what was asked for"),
        (chunk(1, 1, &at(101, b"12345678")), "data outside of what was asked for"),
        (chunk(1, 1, &at(u64::MAX, b"x")), "data outside of what was asked for"),
        (chunk(1, 2, &at(100, &[0xff; 4])), "data outside of what was asked for"),
        (chunk(1, 1, &at(100, b"1234567")), "a read's reply lacks data"),
        (chunk(1, 0, b""), "a read's reply lacks data"),
        (chunk(1, 5, &[0; 12]), "a chunk of type 5 with 12 bytes"),
        (chunk(1, 0x8001, b"\0\0\0\x05\0\x09long"), "an error message is longer than its chunk"),
        ([&stray[..], &[9; 12]].concat(), "a reply to a request that is not in flight"),
        ([b"\x66\x8e\x33\xee", &chunk(1, 0, b"")[4..]].concat(), "bad reply magic 0x668e33ee"),
        (
            b"\x67\x44\x66\x98\0\0\0\0\0\0\0\x01\0\0\0\0".to_vec(),
            "a simple reply to a read, though structured replies were agreed on",
        ),
    ] {
        let error = read_answered_with(&answer).0.unwrap_err().to_string();
        assert_eq!(error, format!("server broke the NBD protocol: {complaint}"));
    }
    assert!(matches!(read_answered_with(b"\x66\x8e").0, Err(ClientError::HungUp)));
}
