//! Rights of admin clients, and clients that only occupy the admin interface.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use floe_block::WriteMode;
use floe_server::admin::client::{self as admin, Endpoint};
use floe_server::admin::{AdminAddress, Token};
use floe_server::limits::Limits;
use floe_testkit::patiently;

use super::volumes::{in_file, refused};
use crate::rig::{Gate, Rig, drained};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn token(folder: &Path, name: &str, secret: &str) -> Token {
    let file = folder.join(name);
    std::fs::write(&file, secret).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    Token::read(&file).unwrap()
}

fn over_tcp(rig: &Rig, token: Option<Token>) -> Endpoint {
    Endpoint { address: AdminAddress::Tcp(rig.admin_tcp.clone()), token }
}

/// The code of an answer.
fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[test]
fn only_the_servers_user_can_open_its_socket() {
    let rig = Rig::start(WriteMode::Through);
    let AdminAddress::Unix(path) = &rig.admin.address else { panic!("{:?}", rig.admin) };
    assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    let path = path.clone();
    admin::flush(&rig.admin).unwrap();
    rig.end();
    assert!(!path.exists());
}

#[test]
fn over_tcp_a_server_tells_and_changes_nothing() {
    let rig = Rig::start(WriteMode::Back);
    let remote = over_tcp(&rig, None);
    assert_eq!(admin::health(&remote).unwrap(), "ok");
    assert_eq!(admin::status(&remote).unwrap().volumes.len(), 1);
    assert!(admin::metrics(&remote).unwrap().contains("floe_build_info"));
    assert_eq!(admin::tiers(&remote).unwrap().len(), 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made");
    refused(admin::add_volume(&remote, &in_file("made", &path, Some(1 << 20))), "over TCP");
    assert!(!path.exists());
    refused(admin::flush(&remote), "admin-token-file");
    refused(admin::restore(&remote), "over TCP");
    refused(admin::remove_volume(&remote, "floe", true), "over TCP");
    refused(admin::remove_tier(&remote, 1), "over TCP");
    refused(admin::stop(&remote), "over TCP");
    assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
    rig.end();
}

#[test]
fn with_the_token_changes_are_made_over_tcp_too() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) =
        (token(folder.path(), "right", SECRET), token(folder.path(), "wrong", &SECRET[1..]));
    let rig = Rig::tuned(
        WriteMode::Back,
        |memory| Box::new(memory),
        |config| {
            config.admin.token = Some(right.clone());
            config.admin.own_folders = vec![folder.path().to_owned()];
        },
    );
    refused(admin::flush(&over_tcp(&rig, None)), "needs the admin token");
    refused(admin::flush(&over_tcp(&rig, Some(wrong))), "wrong admin token");
    let remote = over_tcp(&rig, Some(right.clone()));
    admin::flush(&remote).unwrap();
    admin::add_volume(&remote, &in_file("in", &folder.path().join("new"), Some(1 << 20))).unwrap();
    // A token is no leave to have any file made.
    let elsewhere = tempfile::tempdir().unwrap();
    let outside = elsewhere.path().join("new");
    refused(admin::add_volume(&remote, &in_file("out", &outside, Some(1 << 20))), "admin-paths");
    assert!(!outside.exists());
    admin::add_volume(&rig.admin, &in_file("out", &outside, Some(1 << 20))).unwrap();
    // Another token counts as soon as it is read.
    std::fs::write(folder.path().join("right"), "another token, ").unwrap();
    right.reload().unwrap_err();
    admin::flush(&remote).unwrap();
    let new = token(folder.path(), "new-token", "fedcba9876543210");
    std::fs::copy(folder.path().join("new-token"), folder.path().join("right")).unwrap();
    let old = token(folder.path(), "old", SECRET);
    right.reload().unwrap();
    refused(admin::flush(&over_tcp(&rig, Some(old))), "wrong admin token");
    admin::flush(&over_tcp(&rig, Some(new))).unwrap();
    rig.end();
}

#[test]
fn a_browser_changes_nothing_through_a_forwarded_socket() {
    let rig = Rig::start(WriteMode::Back);
    let ask = |headers: &str| {
        let mut stream = rig.admin_stranger();
        let request = format!("POST /flush HTTP/1.1\r\nHost: localhost:1\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        code(&answer).to_owned()
    };
    assert_eq!(ask("Origin: http://evil.example\r\n"), "403");
    assert_eq!(ask("Origin: http://localhost:1\r\n"), "403", "there is no admin-write");
    assert_eq!(ask(""), "200", "a program");
    rig.end();
}

#[test]
fn pages_of_others_are_refused_over_tcp() {
    let rig = Rig::tuned(
        WriteMode::Through,
        |memory| Box::new(memory),
        |config| config.admin.hosts = vec!["storage1".into()],
    );
    let get = |headers: &str| {
        let answer = rig.over_tcp(&format!("GET /status HTTP/1.1\r\n{headers}\r\n"));
        code(&answer).to_owned()
    };
    let own = &rig.admin_tcp;
    for good in [
        String::new(),
        format!("Host: {own}\r\n"),
        "Host: localhost\r\n".into(),
        "Host: Storage1:10810\r\n".into(),
        format!("Host: {own}\r\nOrigin: http://{own}\r\n"),
    ] {
        assert_eq!(get(&good), "200", "{good}");
    }
    for foreign in [
        "Host: evil.example\r\n".into(),
        format!("Host: {own}\r\nOrigin: http://evil.example\r\n"),
        format!("Host: {own}\r\nOrigin: null\r\n"),
        format!("Host: {own}\r\nOrigin: http://localhost:1\r\n"),
        format!("Host: {own}\r\nHost: evil.example\r\n"),
    ] {
        assert_eq!(get(&foreign), "403", "{foreign}");
    }
    let mut stream = rig.admin_stranger();
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: whatever\r\n\r\n").unwrap();
    let answer = String::from_utf8(drained(&mut stream)).unwrap();
    assert_eq!(code(&answer), "200", "a socket has its permissions");
    rig.end();
}

#[test]
fn what_is_in_none_of_the_allowed_folders_is_refused_also_behind_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("in")).unwrap();
    std::fs::write(path("secret"), vec![7; 1 << 20]).unwrap();
    symlink(path("secret"), path("in/link")).unwrap();
    symlink(folder.path(), path("in/up")).unwrap();
    let rig = Rig::tuned(
        WriteMode::Through,
        |memory| Box::new(memory),
        |config| config.admin.paths = Some(vec![path("in")]),
    );
    let add = |name: &str, size| admin::add_volume(&rig.admin, &in_file("new", &path(name), size));
    refused(add("secret", None), "admin-paths");
    refused(add("in/link", None), "admin-paths");
    refused(add("in/up/secret", None), "admin-paths");
    refused(add("in/../secret", None), "admin-paths");
    for new in ["made", "in/../made", "in/up/made"] {
        refused(add(new, Some(1 << 20)), "admin-paths");
    }
    assert!(!path("made").exists());
    assert_eq!(admin::volumes(&rig.admin).unwrap().len(), 1);
    add("in/made", Some(1 << 20)).unwrap();
    rig.end();
}

#[test]
fn what_is_neither_file_nor_disk_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let rig = Rig::start(WriteMode::Through);
    refused(admin::add_volume(&rig.admin, &in_file("fifo", &path, None)), "neither a regular file");
    refused(
        admin::add_volume(&rig.admin, &in_file("folder", folder.path(), None)),
        "neither a regular file",
    );
    rig.end();
}

/// Nobody has to have patience with those that say nothing: only others that come can make room.
fn crowded() -> Rig {
    let limits = Limits { admin_time: Duration::from_secs(100_000), ..Limits::default() };
    Rig::tuned(WriteMode::Through, |memory| Box::new(memory), |config| config.limits = limits)
}

#[test]
fn five_hundred_idle_connections_keep_nobody_from_the_admin_interface() {
    let rig = crowded();
    let mut client = rig.client();
    let crowd: Vec<_> = (0..500)
        .map(|number| {
            let mut stream = TcpStream::connect(&rig.admin_tcp).unwrap();
            if number % 3 == 0 {
                // it may be gone already
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ");
            }
            stream
        })
        .collect();
    let remote = over_tcp(&rig, None);
    // One that asks at once is the last to have come: it is hung up on only if 32 more come before
    // its request.
    assert_eq!(admin::health(&remote).unwrap(), "ok");
    admin::metrics(&remote).unwrap();
    admin::flush(&rig.admin).unwrap();
    client.read(0, &mut [0; 4096]).unwrap();
    drop(crowd);
    let crowd: Vec<_> = (0..500).map(|_| rig.admin_stranger()).collect();
    assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
    admin::flush(&rig.admin).unwrap();
    client.write(0, &[1; 4096], false).unwrap();
    drop(crowd);
    rig.end();
}

#[test]
fn health_is_told_while_as_many_requests_wait_as_may() {
    let gate = Gate::default();
    let rig = Rig::on(WriteMode::Back, {
        let gate = gate.clone();
        move |memory| gate.before(memory)
    });
    rig.client().write(0, &[8; 50_000], false).unwrap();
    gate.shut();
    let ask = || {
        let mut stream = rig.admin_stranger();
        stream.write_all(b"POST /flush HTTP/1.1\r\n\r\n").unwrap();
        stream
    };
    let mut waiting: Vec<_> = (0..24).map(|_| ask()).collect();
    gate.wait_for(1);
    // Those beyond are told so; the first ones may not have been heard when the first of these
    // asks.
    patiently(|| {
        let mut stream = rig.admin_stranger();
        stream.write_all(b"GET /status HTTP/1.1\r\n\r\n").unwrap();
        let answer = String::from_utf8(drained(&mut stream)).unwrap();
        (code(&answer) == "503" && answer.contains("too many requests")).then_some(())
    });
    for _ in 0..40 {
        assert_eq!(admin::health(&rig.admin).unwrap(), "ok");
    }
    admin::metrics(&over_tcp(&rig, None)).unwrap();
    // Also the end can be asked for.
    let mut stop = rig.admin_stranger();
    stop.write_all(b"POST /stop HTTP/1.1\r\n\r\n").unwrap();
    patiently(|| admin::health(&rig.admin).is_err().then_some(()));
    gate.open();
    let answers: Vec<_> =
        waiting.iter_mut().map(|stream| String::from_utf8(drained(stream)).unwrap()).collect();
    let flushed = answers.iter().filter(|answer| code(answer) == "200").count();
    // A question after the status may have had the place of one of them for a moment.
    assert!(
        flushed >= 23 && answers.iter().all(|answer| ["200", "503"].contains(&code(answer))),
        "{answers:?}"
    );
    assert_eq!(code(&String::from_utf8(drained(&mut stop)).unwrap()), "200");
    rig.join().0.unwrap();
}

#[test]
fn a_second_server_does_not_take_the_socket_of_the_first() {
    let rig = Rig::start(WriteMode::Through);
    let address = rig.admin.address.clone();
    let second = crate::rig::Setup::new(WriteMode::Through);
    let error = {
        let mut second = second;
        second.config.admin.listen[0] = address;
        second.start().err().expect("it is taken").to_string()
    };
    assert!(error.contains("another program serves"), "{error}");
    admin::flush(&rig.admin).unwrap();
    rig.end();
}
