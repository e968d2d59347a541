//! The ways to a volume that take turns: librbd alone, with its cache, and Floe above it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use floe_testkit::Ceph;

use crate::turn::{Load, Outcome, Turn};

const MIB: u64 = 1 << 20;
/// Bytes of an image, and of the range that is used: of those that are cached, and of the others.
const WARM_IMAGE: u64 = 192 * MIB;
pub(crate) const WARM_RANGE: u64 = 128 * MIB;
pub(crate) const COLD_RANGE: u64 = 256 * MIB;

/// A process that ends with this, and the processor time of its threads when last seen, in
/// nanoseconds: librbd has some that end.
pub(crate) struct Process(Child, RefCell<HashMap<OsString, u64>>);

impl Process {
    fn new(child: Child) -> Self {
        Self(child, RefCell::default())
    }

    /// Processor time of all its threads so far, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        let mut seen = self.1.borrow_mut();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        for task in tasks.expect("the process runs").flatten() {
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let time = text.split(' ').next().and_then(|ns| ns.parse().ok());
            seen.insert(task.file_name(), time.expect("a number"));
        }
        seen.values().sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

/// A server, and its operator's address.
struct Server {
    process: Process,
    admin: String,
}

/// A way to a volume.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Its reads are to miss.
    pub(crate) is_cold: bool,
    lines: Lines<BufReader<ChildStdout>>,
    client: Process,
    /// The servers: of the volume, and of the mirror's half.
    servers: Vec<Server>,
}

/// The outcome of a turn, and what it took.
pub(crate) struct Measured {
    pub(crate) outcome: Outcome,
    /// Processor time of a request, in microseconds: of the processes that librbd or the cache is
    /// in, and of all.
    pub(crate) cpu_us: f64,
    pub(crate) cpu_all_us: f64,
}

impl Subject {
    fn new(
        name: &'static str,
        is_cold: bool,
        kind: &str,
        address: &str,
        servers: Vec<Server>,
    ) -> Self {
        let own = std::env::current_exe().expect("this program has a path");
        let mut client = Command::new(own)
            .args(["--turns", kind, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let lines = BufReader::new(client.stdout.take().expect("it is piped")).lines();
        let mut subject = Self { name, is_cold, lines, client: Process::new(client), servers };
        for _ in 0..if is_cold { 0 } else { 2 } {
            let range = WARM_RANGE;
            let (bytes, depth, seconds, seed) = (64 << 10, 16, 0.0, 0);
            subject.take(Turn { load: Load::Scan, bytes, depth, seconds, range, seed });
        }
        subject
    }

    /// librbd in the client's own process.
    pub(crate) fn librbd(ceph: &Ceph, name: &'static str, is_cached: bool, is_cold: bool) -> Self {
        let kind = if is_cached { "cached-image" } else { "image" };
        Self::new(name, is_cold, kind, &image(ceph, name, is_cold), Vec::new())
    }

    /// Floe with these settings above an image.
    pub(crate) fn floe(
        ceph: &Ceph,
        folder: &Path,
        name: &'static str,
        is_cold: bool,
        settings: &[&str],
    ) -> Self {
        let volume = image(ceph, name, is_cold);
        let mut servers = Vec::new();
        let cache = folder.join(slug(name)).display().to_string();
        let cache = if settings.contains(&"mirror") {
            let peer = format!("file:{cache}-peer,size=401MiB");
            let (address, server) =
                serve(folder, &["--backing", &peer, "--cache", "memory:16MiB", "--write", "pass"]);
            servers.push(server);
            format!("mirror:file:{cache}+{address},size=400MiB")
        } else {
            format!("file:{cache},size={}", if is_cold { "16MiB" } else { "400MiB" })
        };
        let mut line = vec!["--backing", &volume, "--cache", &cache];
        line.extend(settings.iter().filter(|it| **it != "mirror"));
        let (address, server) = serve(folder, &line);
        servers.insert(0, server);
        Self::new(name, is_cold, "export", &address, servers)
    }

    /// Carries out a turn.
    pub(crate) fn take(&mut self, turn: Turn) -> Measured {
        let before = self.cpu_ns();
        let line = serde_json::to_string(&turn).expect("a turn");
        let input = self.client.0.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}").expect("the client reads");
        let line = self.lines.next().expect("the client answers").expect("text");
        let outcome: Outcome = serde_json::from_str(&line).expect("an outcome");
        let after = self.cpu_ns();
        let each = |before, after| (after - before) as f64 / 1e3 / outcome.requests as f64;
        Measured {
            outcome,
            cpu_us: each(before.0, after.0),
            cpu_all_us: each(before.0 + before.1, after.0 + after.1),
        }
    }

    /// Writes to the image what writes have put off.
    pub(crate) fn drain(&mut self) {
        let (bytes, depth, seconds, range, seed) = (0, 1, 0.0, 0, 0);
        self.take(Turn { load: Load::Flush, bytes, depth, seconds, range, seed });
        if let Some(Server { admin, .. }) = self.servers.first() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            let done = command.args(["flush", "--admin", admin]).stdout(Stdio::null()).status();
            assert!(done.expect("floe runs").success(), "the cache is drained");
        }
    }

    /// Processor time of the process that librbd or the cache is in, and of the others.
    fn cpu_ns(&self) -> (u64, u64) {
        let client = self.client.cpu_ns();
        match &self.servers[..] {
            [] => (client, 0),
            [server, others @ ..] => {
                let others = others.iter().map(|it| it.process.cpu_ns()).sum::<u64>();
                (server.process.cpu_ns(), others + client)
            }
        }
    }
}

fn slug(name: &str) -> String {
    name.replace([' ', ',', '+'], "-")
}

/// Makes an image and writes all of it; an unwritten object would be answered without asking.
fn image(ceph: &Ceph, name: &str, is_cold: bool) -> String {
    let bytes = if is_cold { COLD_RANGE } else { WARM_IMAGE };
    let spec = ceph.image(&slug(name), bytes);
    let (image, total) = (format!("rbd/{}", slug(name)), bytes.to_string());
    let fill = ["bench", &image, "--io-type", "write", "--io-pattern", "seq", "--io-size", "4M"];
    ceph.rbd(&[&fill[..], &["--io-threads", "4", "--io-total", &total]].concat());
    spec
}

/// Starts a server on a port of its own; returns its address.
fn serve(folder: &Path, settings: &[&str]) -> (String, Server) {
    let state = tempfile::tempdir_in(folder).expect("a folder").keep();
    let socket = format!("nbd+unix:///?socket={}", state.join("nbd.sock").display());
    let admin = format!("unix:{}", state.join("admin.sock").display());
    let mut server = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["serve", "--threads", "1", "--listen", &socket])
        .args(["--admin", &admin])
        .args(settings)
        .env("STATE_DIRECTORY", state)
        .env("FLOE_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("floe runs");
    let mut lines = BufReader::new(server.stdout.take().expect("it is piped")).lines();
    let address = lines.next().expect("the server starts").expect("text");
    (address, Server { process: Process::new(server), admin })
}
