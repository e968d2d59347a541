//! A log that nobody reads: standard error is a pipe whose reader stalls. Clients are served, admin
//! commands answered and the server ends, all the same; what the log lost is counted and told.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::common::{floe_ok, wait_for};
use floe_server::admin::AdminAddress;
use floe_server::admin::client as admin;
use floe_server::nbd_client::Client;
use floe_testkit::{pattern, wait_until};
use serde_json::Value;

/// A server with a log of which nothing has been read.
struct Unread {
    child: Child,
    stderr: Option<ChildStderr>,
    admin: String,
    endpoint: admin::Endpoint,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Unread {
    /// Serves; every connection of a client is worth two lines in its log.
    fn serve(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("nbd.sock");
        let admin = format!("unix:{}", folder.path().join("admin.sock").display());
        let listen = format!("nbd+unix:///?socket={}", socket.display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--backing", "memory:4MiB", "--cache", "memory:4MiB", "--threads", "2"])
            .args(["--listen", &listen, "--admin", &admin])
            .args(settings)
            .env("FLOE_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("floe runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("an address");
        let stderr = child.stderr.take();
        let endpoint = admin.parse::<AdminAddress>().expect("an address").into();
        Self { child, stderr, admin, endpoint, socket, _folder: folder }
    }

    fn client(&self) -> Client {
        Client::connect(
            &format!("nbd+unix:///?socket={}", self.socket.display()).parse().expect("a URI"),
        )
        .expect("a connection")
    }

    /// Lines that were dropped, by the metrics.
    fn dropped(&self) -> u64 {
        let metrics = admin::metrics(&self.endpoint).expect("metrics");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("floe_log_lines_dropped_total "));
        line.expect("the metric is there").parse().expect("a number")
    }

    /// Has rude clients come and go until the log drops lines.
    fn overflow(&self) {
        wait_until("a log that is full", || {
            for number in 0..500 {
                let mut stream = UnixStream::connect(&self.socket).expect("a connection");
                if number % 10 == 0 {
                    stream
                        .write_all(b"GET / HTTP/1.1\r\nHost: this is no NBD\r\n\r\n")
                        .expect("a socket's room");
                    let _ = stream.read_to_end(&mut Vec::new()); // it hangs up, by whatever means
                }
            }
            self.dropped() > 0
        });
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_stops_neither_clients_nor_commands_nor_the_end() {
    let mut server = Unread::serve(&[]);
    server.overflow();
    let (mut client, data) = (server.client(), pattern(1, 100_000));
    let mut read = vec![0; data.len()];
    client.write(4096, &data, false).expect("a write");
    client.flush().expect("a flush");
    client.read(4096, &mut read).expect("a read");
    assert!(read == data);
    assert_eq!(admin::health(&server.endpoint).expect("it is asked").trim(), "ok");
    assert!(!floe_ok(&["status", "--admin", &server.admin]).is_empty());
    floe_ok(&["flush", "--admin", &server.admin]);
    floe_ok(&["stop", "--admin", &server.admin]);
    assert!(wait_for(&mut server.child).success());
    // Of what the pipe took each line is whole but perhaps the last.
    let mut log = String::new();
    server.stderr.take().expect("it is piped").read_to_string(&mut log).expect("text");
    assert!(log.starts_with("20") && log.contains("client broke the protocol"), "{log}");
    let warnings = log.lines().filter(|line| line.contains(" WARN ")).count();
    assert!(
        (1..=2 * 2 * 10).contains(&warnings),
        "{warnings} warnings, of two kinds on two threads"
    );
}

#[test]
fn a_log_that_is_read_again_says_how_much_of_it_is_missing() {
    let mut server = Unread::serve(&["--log-format", "json"]);
    server.overflow();
    let stderr = server.stderr.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map(|line| line.expect("text"));
        let values =
            lines.map(|line| serde_json::from_str::<Value>(&line).expect("a line is an object"));
        let dropped =
            |value: &Value| value["message"].as_str().is_some_and(|it| it.contains("were dropped"));
        values.filter(dropped).map(|value| value["lines"].as_u64().expect("a number")).sum::<u64>()
    });
    // What is read makes room for what comes next; from then on nothing is lost but what is told.
    wait_until("a log that keeps up", || {
        let before = server.dropped();
        drop(server.client());
        server.dropped() == before
    });
    let dropped = server.dropped();
    floe_ok(&["stop", "--admin", &server.admin]);
    assert!(wait_for(&mut server.child).success());
    assert_eq!(reader.join().expect("each line is whole"), dropped);
}
