//! The server's processor time for a request, by the door it comes through: NVMe/TCP beside NBD.
//!
//! One server serves both over TCP, from its tier in memory. One client program asks through both
//! in turn, in the same way: each connection keeps as many reads of 4 KiB in flight as the table
//! says. The table has medians over the rounds, and medians of the rounds' ratios.
//!
//! `FLOE_DOORS_ROUNDS` sets the number of rounds.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use floe_nbd::uri::Uri;
use floe_server::nbd_client::Client;
use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, QueueOptions, Range};

/// Bytes of a request.
const REQUEST_BYTES: u32 = 4096;
/// Bytes of the volume, and of the part that is read.
const VOLUME_BYTES: u64 = 128 << 20;
const READ_BYTES: u64 = 64 << 20;
/// Requests that all connections together send in a run.
const REQUESTS: u64 = 20_000;
/// Requests in flight on a connection, and connections. A queue of 128 entries holds 127.
const CELLS: [(usize, u16); 6] = [(1, 1), (1, 4), (32, 1), (32, 4), (127, 1), (127, 4)];

/// A way into the server.
trait Door: Send {
    /// Sends a read of [`REQUEST_BYTES`].
    fn submit(&mut self, offset: u64);
    /// Receives the next reply.
    fn receive(&mut self);
}

impl Door for Client {
    fn submit(&mut self, offset: u64) {
        self.submit_read(offset, REQUEST_BYTES).expect("a read is sent");
    }

    fn receive(&mut self) {
        let reply = self.next_reply().expect("a reply").expect("a read is in flight");
        reply.outcome.expect("the read succeeds");
        self.recycle(reply.data);
    }
}

impl Door for IoQueue {
    fn submit(&mut self, offset: u64) {
        let (first, blocks) = (offset / 512, REQUEST_BYTES / 512);
        let range = Range { namespace: 1, first, blocks };
        self.connection().submit(range.read(REQUEST_BYTES)).expect("a read is sent");
    }

    fn receive(&mut self) {
        let completion = self.connection().next_completion().expect("a completion");
        assert!(completion.status.is_success(), "{}", completion.status);
    }
}

/// A server in a process of its own, killed when dropped.
struct Server {
    process: Child,
    nbd: Uri,
    nvme: Access,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let volume = format!("memory:{}MiB", VOLUME_BYTES >> 20);
        let mut process = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--threads", "1", "--backing", &volume, "--cache", "memory:192MiB"])
            .args(["--memory", "192MiB", "--listen", "nbd://127.0.0.1:0"])
            .args(["--listen", "nvme-tcp://127.0.0.1:0"])
            .env("STATE_DIRECTORY", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("floe runs");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let nbd = line().parse().expect("the address of the volume");
        let nvme = line();
        let (address, subsystem) = nvme
            .strip_prefix("nvme-tcp://")
            .and_then(|rest| rest.split_once('/'))
            .expect("the address of the subsystem");
        let options = QueueOptions { entries: 128, ..QueueOptions::default() };
        let nvme = Access { options, ..Access::new(address, subsystem) };
        Self { process, nbd, nvme }
    }

    /// Processor time of all threads so far, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id()));
        let times = tasks.expect("the server runs").map(|task| {
            let path = task.expect("a thread").path().join("schedstat");
            let text = std::fs::read_to_string(path).expect("the kernel counts times");
            text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("a number")
        });
        times.sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// The doors of a run, and what has to stay open for them.
fn open(server: &Server, nvme: bool, connections: u16) -> (Vec<Box<dyn Door>>, Option<Controller>) {
    if !nvme {
        let client = |_| Client::connect(&server.nbd).expect("a connection");
        return (
            (0..connections).map(client).map(|it| Box::new(it) as Box<dyn Door>).collect(),
            None,
        );
    }
    let mut controller = Controller::connect(&server.nvme).expect("a controller");
    let granted = controller.set_queues(connections).expect("queues");
    assert_eq!(granted, connections);
    let queue = |id| controller.io_queue(id, 128).expect("an I/O queue");
    let queues = (1..=connections).map(queue).map(|it| Box::new(it) as Box<dyn Door>).collect();
    (queues, Some(controller))
}

/// Runs a load; returns the server's processor time for a request, in microseconds.
fn run(server: &Server, nvme: bool, depth: usize, connections: u16, requests: u64) -> f64 {
    let (doors, controller) = open(server, nvme, connections);
    let each = requests / u64::from(connections);
    let before = server.cpu_ns();
    let doors: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = doors
            .into_iter()
            .enumerate()
            .map(|(seed, door)| scope.spawn(move || ask(door, depth, each, seed as u64)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
    });
    let used = server.cpu_ns() - before;
    drop((doors, controller));
    used as f64 / 1e3 / (each * u64::from(connections)) as f64
}

/// A closed loop over random blocks.
fn ask(mut door: Box<dyn Door>, depth: usize, requests: u64, seed: u64) -> Box<dyn Door> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut offset = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) % (READ_BYTES / u64::from(REQUEST_BYTES)) * u64::from(REQUEST_BYTES)
    };
    for at in 0..requests + depth as u64 {
        if at >= depth as u64 {
            door.receive();
        }
        if at < requests {
            door.submit(offset());
        }
    }
    door
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() {
    let rounds: usize = std::env::var("FLOE_DOORS_ROUNDS")
        .map_or(15, |text| text.parse().expect("FLOE_DOORS_ROUNDS is a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let mut client = Client::connect(&server.nbd).expect("a connection");
    let mut data = vec![0; 1 << 20];
    for at in (0..2 * READ_BYTES).step_by(data.len()) {
        client.read(at % READ_BYTES, &mut data).expect("a read");
    }
    drop(client);

    let mut runs = vec![(Vec::new(), Vec::new()); CELLS.len()];
    for round in 0..rounds {
        for ((depth, connections), (nbd, nvme)) in CELLS.into_iter().zip(&mut runs) {
            let mut go = |through_nvme| {
                let cost = run(&server, through_nvme, depth, connections, REQUESTS);
                if through_nvme { nvme.push(cost) } else { nbd.push(cost) }
            };
            go(round % 2 == 0);
            go(round % 2 == 1);
        }
    }

    let mut out = std::io::stdout().lock();
    let head = "in flight  connections  NBD, µs  NVMe/TCP, µs  NVMe/TCP / NBD";
    writeln!(out, "{head}").expect("output can be written");
    for ((depth, connections), (nbd, nvme)) in CELLS.into_iter().zip(&runs) {
        let ratios: Vec<f64> = nvme.iter().zip(nbd).map(|(nvme, nbd)| nvme / nbd).collect();
        writeln!(
            out,
            "{depth:>9}  {connections:>11}  {:>7.2}  {:>12.2}  {:>14.2}",
            median(nbd),
            median(nvme),
            median(&ratios)
        )
        .expect("output can be written");
    }
}
