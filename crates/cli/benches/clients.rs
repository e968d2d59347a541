//! One cache for many clients: 1, 16 and 256 hosts, by NBD on a local socket and by NVMe over TCP.
//!
//! One server serves both from its tier in memory. Each client has a connection and a thread of its
//! own, keeps one read of 4 KiB in flight, and reads at random for as long as the run lasts. The
//! table has medians over the rounds: requests a second of all clients, the median and the 99th
//! percentile of latency, the server's processor time a request, and the requests of the client
//! with the fewest as a share of the mean. Clients and server share the machine's cores.
//!
//! `FLOE_CLIENTS_ROUNDS` sets the number of rounds.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floe_nbd::uri::Uri;
use floe_server::nbd_client::Client;
use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, Range};

const REQUEST_BYTES: u32 = 4096;
const READ_BYTES: u64 = 64 << 20;
const CLIENTS: [usize; 3] = [1, 16, 256];
const RUN: Duration = Duration::from_secs(2);

/// A way into the server.
enum Door {
    Nbd(Box<Client>, Vec<u8>),
    /// The controller is open for as long as its queue.
    Nvme(Box<(IoQueue, Controller)>),
}

impl Door {
    fn read(&mut self, offset: u64) {
        match self {
            Self::Nbd(client, data) => client.read(offset, data).expect("a read"),
            Self::Nvme(queue) => {
                let (first, blocks) = (offset / 512, REQUEST_BYTES / 512);
                queue.0.read(Range { namespace: 1, first, blocks }, REQUEST_BYTES).expect("a read");
            }
        }
    }
}

/// A server in a process of its own, killed when dropped.
struct Server {
    process: Child,
    nbd: Uri,
    nvme: Access,
}

impl Server {
    fn start(folder: &std::path::Path) -> Self {
        let socket = format!("nbd+unix:///?socket={}", folder.join("nbd").display());
        let mut process = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--threads", "1", "--backing", "memory:128MiB"])
            .args(["--cache", "memory:192MiB", "--memory", "192MiB", "--listen", &socket])
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
        Self { process, nbd, nvme: Access::new(address, subsystem) }
    }

    fn door(&self, nvme: bool, number: usize) -> Door {
        if !nvme {
            let client = Client::connect(&self.nbd).expect("a connection");
            return Door::Nbd(Box::new(client), vec![0; REQUEST_BYTES as usize]);
        }
        let mut host_id = [0; 16];
        host_id[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let access = Access { host_id, ..self.nvme.clone() };
        let mut controller = Controller::connect(&access).expect("a controller");
        controller.set_queues(1).expect("a queue");
        let queue = controller.io_queue(1, 32).expect("a queue");
        Door::Nvme(Box::new((queue, controller)))
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

/// The figures of a run, in the order of the table.
type Figures = [f64; 5];

fn run(server: &Server, nvme: bool, clients: usize) -> Figures {
    let doors: Vec<_> = (0..clients).map(|number| server.door(nvme, number)).collect();
    let (begin, ended) = (Barrier::new(clients + 1), AtomicBool::new(false));
    let (before, times) = std::thread::scope(|scope| {
        let threads: Vec<_> = doors
            .into_iter()
            .enumerate()
            .map(|(seed, door)| {
                let (begin, ended) = (&begin, &ended);
                scope.spawn(move || {
                    begin.wait();
                    ask(door, seed as u64, ended)
                })
            })
            .collect();
        begin.wait();
        let before = server.cpu_ns();
        std::thread::sleep(RUN);
        ended.store(true, Ordering::Relaxed); // only to be seen soon
        let times: Vec<Vec<f64>> =
            threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect();
        (before, times)
    });
    let used = (server.cpu_ns() - before) as f64 / 1e3;
    let fewest = times.iter().map(Vec::len).min().unwrap_or(0) as f64;
    let mut all = times.concat();
    all.sort_by(f64::total_cmp);
    let requests = all.len() as f64;
    let at = |share: f64| all[(requests * share) as usize];
    let each = requests / clients as f64;
    [requests / RUN.as_secs_f64(), at(0.5), at(0.99), used / requests, fewest / each]
}

/// Reads at random until the end. Returns the latencies in microseconds.
fn ask(mut door: Door, seed: u64, ended: &AtomicBool) -> Vec<f64> {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut times = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let block = (state >> 20) % (READ_BYTES / u64::from(REQUEST_BYTES));
        let begun = Instant::now();
        door.read(block * u64::from(REQUEST_BYTES));
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds: usize = std::env::var("FLOE_CLIENTS_ROUNDS")
        .map_or(7, |text| text.parse().expect("FLOE_CLIENTS_ROUNDS is a number"));
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let mut door = server.door(false, 0);
    for offset in (0..2 * READ_BYTES).step_by(REQUEST_BYTES as usize) {
        door.read(offset % READ_BYTES);
    }
    drop(door);
    let mut runs: Vec<(bool, usize, Vec<Figures>)> = CLIENTS
        .into_iter()
        .flat_map(|clients| [(false, clients, Vec::new()), (true, clients, Vec::new())])
        .collect();
    for round in 0..rounds {
        let turn = round % runs.len(); // none is always first
        runs.rotate_left(turn);
        for (nvme, clients, figures) in &mut runs {
            figures.push(run(&server, *nvme, *clients));
        }
        runs.rotate_right(turn);
    }
    let mut out = std::io::stdout().lock();
    let head = "clients  by                   requests/s  p50, µs  p99, µs  server, µs  least";
    writeln!(out, "{head}").expect("output can be written");
    for (nvme, clients, figures) in &runs {
        let name = if *nvme { "NVMe/TCP" } else { "NBD, local socket" };
        let [rate, half, most, cost, least] =
            [0, 1, 2, 3, 4].map(|at| median(figures.iter().map(|figure| figure[at]).collect()));
        writeln!(
            out,
            "{clients:>7}  {name:<19}  {rate:>10.0}  {half:>7.1}  {most:>7.1}  {cost:>10.2}  \
             {least:>5.2}"
        )
        .expect("output can be written");
    }
}
