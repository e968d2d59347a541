//! The client against a server in a thread, and well-known clients against that same server.
//!
//! The server is as small as the state machines allow: one thread a connection, one `Vec<u8>` for a
//! disk.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floe_nbd::connection::{Connection, Event};
use floe_nbd::export::{Export, Exports};
use floe_nbd::handshake::Tls;
use floe_nbd::transmission::{Extent, NbdCommand, ReplyHeader, Request, encode_extents};
use floe_nbd::uri::{Address, Uri};
use floe_nbd::wire::ErrorCode;
use floe_server::nbd_client::{Client, ClientError, Options, Reply};
use floe_testkit::{PATIENCE, is_installed, run};

const SIZE: usize = 8 << 20;

type Disk = Arc<Mutex<Vec<u8>>>;

/// Serves a writable and a read-only export of one disk until the test ends.
fn serve() -> (Uri, Disk) {
    let mut disk = Export::new("disk", SIZE as u64);
    disk.description = "a test disk".into();
    let mut sealed = Export::new("sealed disk", SIZE as u64);
    sealed.read_only = true;
    let exports = Arc::new(Exports::new(vec![disk, sealed]).unwrap());
    let disk = Arc::new(Mutex::new(vec![0; SIZE]));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let shared = Arc::clone(&disk);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (exports, disk) = (Arc::clone(&exports), Arc::clone(&shared));
            std::thread::spawn(move || serve_one(stream, exports, &disk));
        }
    });
    (
        Uri {
            address: Address::Tcp { host: "127.0.0.1".into(), port },
            export: "disk".into(),
            tls: false,
        },
        disk,
    )
}

fn serve_one(
    mut stream: impl Read + Write,
    exports: Arc<Exports>,
    disk: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    let (mut out, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let mut connection = Connection::new(exports, Tls::Off, &mut out);
    loop {
        stream.write_all(&out)?;
        out.clear();
        let received = stream.read(&mut buffer)?;
        if received == 0 {
            return connection.end_of_input().map_err(std::io::Error::other);
        }
        let mut input = &buffer[..received];
        loop {
            let (used, event) =
                connection.advance(input, &mut out).map_err(std::io::Error::other)?;
            input = &input[used..];
            let structured =
                connection.negotiated().is_some_and(|agreed| agreed.structured_replies);
            match event {
                Event::NeedMore => break,
                Event::Answered | Event::Negotiated => {}
                Event::StartTls => unreachable!("TLS is off"),
                Event::Refused { request, error } => {
                    out.extend_from_slice(
                        ReplyHeader::failure(&request, &error, structured).as_bytes(),
                    );
                }
                Event::Request(request) => {
                    // The payload: first what is here, then the rest straight from the socket.
                    let mut payload = vec![0; connection.payload_remaining()];
                    let here = payload.len().min(input.len());
                    payload[..here].copy_from_slice(&input[..here]);
                    input = &input[here..];
                    stream.read_exact(&mut payload[here..])?;
                    connection.payload_received(payload.len());
                    carry_out(&request, &payload, &mut disk.lock().unwrap(), structured, &mut out);
                }
                Event::Payload { .. } => unreachable!("taken with its request"),
                Event::Disconnect => return stream.write_all(&out),
            }
        }
    }
}

fn carry_out(
    request: &Request,
    payload: &[u8],
    disk: &mut [u8],
    structured: bool,
    out: &mut Vec<u8>,
) {
    if request.command == NbdCommand::BlockStatus {
        // What is zero counts as a hole.
        let blocks = disk[request.offset as usize..].chunks(4096);
        let extents = blocks.map(|block| {
            let empty = block.iter().all(|byte| *byte == 0);
            Extent { bytes: block.len() as u64, hole: empty, zero: empty }
        });
        let extents: Vec<_> = extents.collect();
        let payload = encode_extents(request, &extents);
        out.extend_from_slice(ReplyHeader::block_status(request, payload.len()).as_bytes());
        return out.extend(payload);
    }
    let header = ReplyHeader::success(request, structured);
    out.extend_from_slice(header.as_bytes());
    let start = request.offset as usize;
    let range = start..start + request.length as usize;
    match request.command {
        NbdCommand::Read => out.extend_from_slice(&disk[range]),
        NbdCommand::Write => disk[range].copy_from_slice(payload),
        NbdCommand::Trim | NbdCommand::WriteZeroes => disk[range].fill(0),
        _ => {}
    }
}

fn code(result: Result<(), ClientError>) -> ErrorCode {
    match result {
        Err(ClientError::Request(error)) => error.code,
        other => panic!("expected the server to refuse the request, got {other:?}"),
    }
}

#[test]
fn what_is_written_is_read_with_and_without_structured_replies() {
    let (uri, disk) = serve();
    for structured_replies in [true, false] {
        let options = Options { structured_replies, timeout: Some(PATIENCE) };
        let mut client = Client::connect_with(&uri, &options).unwrap();
        assert_eq!(client.info().size_bytes, SIZE as u64);
        assert_eq!(client.info().structured_replies, structured_replies);
        assert_eq!(client.info().maximum_block_bytes, 32 << 20);

        let pattern: Vec<u8> = (0..300_000u32).map(|i| (i * 7 / 3) as u8).collect();
        let mut read = vec![0; pattern.len()];
        client.write(12_345, &pattern, true).unwrap();
        client.read(12_345, &mut read).unwrap();
        assert!(read == pattern);
        assert!(disk.lock().unwrap()[12_345..][..pattern.len()] == pattern);
        client.flush().unwrap();
        client.write_zeroes(12_345, 100, false).unwrap();
        client.trim(12_445, 100).unwrap();
        client.read(12_345, &mut read[..300]).unwrap();
        assert!(read[..200].iter().all(|byte| *byte == 0) && read[200..300] == pattern[200..300]);
        client.read(0, &mut []).unwrap();
        client.disconnect().unwrap();
    }
}

#[test]
fn refusals_name_the_request_and_leave_the_connection_up() {
    let (mut uri, _) = serve();
    let mut client = Client::connect(&uri).unwrap();
    let mut data = [0; 10];
    let error = client.read(SIZE as u64 - 1, &mut data).unwrap_err().to_string();
    let line =
        "server failed a read of 10 bytes at offset 8388607: EINVAL: past the end of the export";
    assert_eq!(error, line);
    assert_eq!(code(client.write(SIZE as u64, &data, false)), ErrorCode::NoSpace);
    assert_eq!(code(client.trim(SIZE as u64, 1)), ErrorCode::Invalid);
    client.read(0, &mut data).unwrap();

    uri.export = "sealed disk".into();
    let mut sealed = Client::connect(&uri).unwrap();
    assert!(sealed.info().read_only());
    assert_eq!(code(sealed.write(0, &data, false)), ErrorCode::Perm);
    assert_eq!(code(sealed.write_zeroes(0, 1, true)), ErrorCode::Perm);
    sealed.read(0, &mut data).unwrap();

    uri.export = "missing".into();
    let error = Client::connect(&uri).unwrap_err().to_string();
    assert_eq!(error, r#"server refused export "missing": no such export (no such export)"#);
}

#[test]
fn many_requests_in_flight_come_back_each_with_its_own_data() {
    let (uri, _) = serve();
    let mut client = Client::connect(&uri).unwrap();
    let mut expected = std::collections::HashMap::new();
    for block in 0..64u8 {
        client.submit_write(u64::from(block) * 4096, &[block; 4096], false).unwrap();
    }
    while let Some(Reply { outcome, .. }) = client.next_reply().unwrap() {
        outcome.unwrap();
    }
    for block in 0..64u8 {
        expected.insert(client.submit_read(u64::from(block) * 4096, 4096).unwrap(), block);
    }
    let past = client.submit_read(SIZE as u64, 1).unwrap();
    assert_eq!(client.in_flight(), 65);
    // A call that waits for its own answer keeps the others.
    let mut one = [0; 4096];
    client.read(63 * 4096, &mut one).unwrap();
    assert_eq!((one, client.in_flight()), ([63; 4096], 65));
    while let Some(reply) = client.next_reply().unwrap() {
        match expected.remove(&reply.cookie) {
            Some(block) => {
                assert_eq!((reply.outcome, &reply.data[..]), (Ok(()), &[block; 4096][..]))
            }
            None => {
                assert_eq!((reply.cookie, reply.data.len()), (past, 0));
                assert_eq!(reply.outcome.unwrap_err().code, ErrorCode::Invalid);
            }
        }
        client.recycle(reply.data);
    }
    assert!(expected.is_empty());
}

#[test]
fn a_flood_in_both_directions_does_not_deadlock() {
    let (uri, _) = serve();
    let options = Options { timeout: Some(PATIENCE), ..Options::default() };
    let mut client = Client::connect_with(&uri, &options).unwrap();
    let megabyte = vec![5; 1 << 20];
    for turn in 0..40 {
        client.submit_read((turn % 8) << 20, 1 << 20).unwrap();
        client.submit_write((turn % 8) << 20, &megabyte, false).unwrap();
    }
    let mut replies = 0;
    while let Some(reply) = client.next_reply().unwrap() {
        reply.outcome.unwrap();
        replies += 1;
    }
    assert_eq!(replies, 80);
}

#[test]
fn a_silent_server_times_out_and_a_strange_one_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let uri: Uri = format!("nbd://127.0.0.1:{port}/").parse().unwrap();
    let hasty = Options { timeout: Some(Duration::from_millis(50)), ..Options::default() };
    assert!(matches!(Client::connect_with(&uri, &hasty), Err(ClientError::Timeout)));

    let options = Options { timeout: Some(PATIENCE), ..Options::default() };
    let server = std::thread::spawn(move || {
        listener.accept().unwrap(); // the one that timed out
        listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian")
    });
    let error = Client::connect_with(&uri, &options).unwrap_err().to_string();
    assert_eq!(error, "server broke the NBD protocol: it does not greet as an NBD server");
    server.join().unwrap().unwrap();
}

#[test]
fn unix_sockets_work_by_path_and_by_abstract_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let name = format!("\0floe-nbd-test-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            &name[1..],
        )
        .unwrap();
    let listeners = [
        (path.clone(), std::os::unix::net::UnixListener::bind(&path).unwrap()),
        (PathBuf::from(&name), std::os::unix::net::UnixListener::bind_addr(&address).unwrap()),
    ];
    for (path, listener) in listeners {
        let exports = Arc::new(Exports::new(vec![Export::new("", 4096)]).unwrap());
        let server = std::thread::spawn(move || {
            serve_one(listener.accept().unwrap().0, exports, &Mutex::new(vec![9; 4096]))
        });
        let uri = Uri { address: Address::Unix(path), export: String::new(), tls: false };
        let mut client = Client::connect(&uri.to_string().parse().unwrap()).unwrap();
        let mut data = [0; 16];
        client.read(4080, &mut data).unwrap();
        assert_eq!(data, [9; 16]);
        client.disconnect().unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    if !is_installed(&["nbdinfo"]) {
        return;
    }
    let (uri, _) = serve();
    let json = run("nbdinfo", &["--json", &uri.to_string()]);
    for wanted in [
        r#""export-name": "disk""#,
        r#""description": "a test disk""#,
        r#""structured": true"#,
        r#""export-size": 8388608"#,
        r#""is_read_only": false"#,
        r#""is_rotational": false"#,
        r#""can_df": true"#,
        r#""can_flush": true"#,
        r#""can_fua": true"#,
        r#""can_multi_conn": true"#,
        r#""can_trim": true"#,
        r#""can_zero": true"#,
        r#""block_size_minimum": 1,"#,
        r#""block_size_preferred": 4096,"#,
        r#""block_size_maximum": 33554432"#,
    ] {
        assert!(json.contains(wanted), "{wanted} is missing in {json}");
    }
    let server = Uri { export: String::new(), ..uri };
    let list = run("nbdinfo", &["--list", &server.to_string()]);
    assert!(
        list.contains(r#"export="disk""#) && list.contains(r#"export="sealed disk""#),
        "{list}"
    );
    assert!(list.contains("is_read_only: true"), "{list}");
}

#[test]
fn qemu_io_writes_zeroes_discards_and_reads_back() {
    if !is_installed(&["qemu-io"]) {
        return;
    }
    let (uri, disk) = serve();
    let commands = [
        "write -P 3 4k 8k",
        "read -P 3 4k 8k",
        "write -f -P 9 100 77",
        "write -z 8k 4k",
        "discard 1M 1M",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    let text = uri.to_string();
    arguments.push(&text);
    let output = run("qemu-io", &arguments);
    assert!(!output.contains("failed") && !output.contains("error"), "{output}");
    let disk = disk.lock().unwrap();
    assert!(
        disk[4096..8192].iter().all(|byte| *byte == 3)
            && disk[8192..12288].iter().all(|byte| *byte == 0)
    );
    assert!(disk[100..177].iter().all(|byte| *byte == 9) && disk[177] == 0);
}

#[test]
fn nbdcopy_brings_a_file_in_and_out_unchanged() {
    if !is_installed(&["nbdcopy"]) {
        return;
    }
    let (uri, disk) = serve();
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("in"), folder.path().join("out"));
    let mut content: Vec<u8> =
        (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    content[1 << 20..3 << 20].fill(0);
    std::fs::write(&source, &content).unwrap();
    let text = uri.to_string();
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &text]);
    assert!(*disk.lock().unwrap() == content);
    run("nbdcopy", &[&text, target.to_str().unwrap()]);
    assert!(std::fs::read(&target).unwrap() == content);
}

#[test]
fn nbdinfo_shows_which_parts_are_allocated() {
    if !is_installed(&["nbdinfo"]) {
        return;
    }
    let (uri, disk) = serve();
    disk.lock().unwrap()[4096..12288].fill(7);
    let map = run("nbdinfo", &["--map", &uri.to_string()]);
    let fields: Vec<Vec<&str>> =
        map.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let rest = (SIZE - 12288).to_string();
    assert_eq!(fields, [["0", "4096", "3"], ["4096", "8192", "0"], ["12288", &rest, "3"]]);
    let contexts = run("nbdinfo", &["--list", &uri.to_string()]);
    assert!(contexts.matches("base:allocation").count() == 2, "one for each export: {contexts}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !is_installed(&["fio"]) {
        return;
    }
    let (uri, _) = serve();
    let target = format!("--uri={uri}");
    let job = [
        "--name=verify",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_state_save=0",
    ];
    let size = format!("--size={SIZE}");
    run("fio", &[&job[..], &[&target[..], &size[..]]].concat());
}
