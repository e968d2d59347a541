//! One load on an NVMe/TCP target that runs already, Floe's or another's; `rivals/spdk` compares.
//!
//! The program is one turn: it connects, keeps as many requests of 4 KiB in flight on each
//! connection as it is told, and prints a JSON object with the processor time that the target used
//! meanwhile. Requests that become possible together are sent together, so that one core of load
//! keeps one core of target busy. The load `fill` writes the range that the others use, reads it
//! twice and compares it: caches are warm afterwards.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use floe_testkit::nvme_host::tcp::{Controller, IoQueue};
use floe_testkit::nvme_host::{Access, QueueOptions, Range};

/// Bytes of a request, and of a block.
const REQUEST_BYTES: u32 = 4096;
const BLOCK_BYTES: u64 = 512;
/// Requests in flight while the range is filled.
const FILL_DEPTH: usize = 32;

/// The arguments; a mix has 30 % writes.
const USAGE: &str = "usage: targets fill|read|write|mix HOST:PORT/NQN PID RANGE_BYTES DEPTH \
                     CONNECTIONS REQUESTS";

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Fill,
    Read,
    Write,
    Mix,
}

/// A turn, as the arguments say.
struct Turn {
    load: Load,
    access: Access,
    pid: u32,
    range_bytes: u64,
    depth: usize,
    connections: u16,
    requests: u64,
}

impl Turn {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [load, target, pid, range_bytes, depth, connections, requests] = arguments else {
            return None;
        };
        let load = match &load[..] {
            "fill" => Load::Fill,
            "read" => Load::Read,
            "write" => Load::Write,
            "mix" => Load::Mix,
            _ => return None,
        };
        let (address, subsystem) = target.split_once('/')?;
        let options = QueueOptions { entries: 128, flow_control: false, ..QueueOptions::default() };
        Some(Self {
            load,
            access: Access { options, ..Access::new(address, subsystem) },
            pid: pid.parse().ok()?,
            range_bytes: range_bytes.parse().ok()?,
            depth: depth.parse().ok()?,
            connections: connections.parse().ok()?,
            requests: requests.parse().ok()?,
        })
    }
}

/// Processor time of all threads of a process so far, in nanoseconds.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the target runs");
    let times = tasks.map(|task| {
        let path = task.expect("a thread").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("the kernel counts times");
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("a number")
    });
    times.sum()
}

/// The bytes of the request at an offset.
fn content(offset: u64) -> Vec<u8> {
    let mut data = vec![0; REQUEST_BYTES as usize];
    for (at, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(offset + 8 * at as u64).wrapping_mul(0x9E37_79B9).to_le_bytes());
    }
    data
}

fn range(offset: u64) -> Range {
    let blocks = (u64::from(REQUEST_BYTES) / BLOCK_BYTES) as u32;
    Range { namespace: 1, first: offset / BLOCK_BYTES, blocks }
}

/// Waits for the next completion. Returns its data.
fn receive(queue: &mut IoQueue) -> Vec<u8> {
    let completion = queue.connection().next_completion().expect("a completion");
    assert!(completion.status.is_success(), "{}", completion.status);
    completion.data
}

/// Writes the range, and compares it when it is read, twice.
fn fill(queue: &mut IoQueue, range_bytes: u64) {
    let offsets = || (0..range_bytes).step_by(REQUEST_BYTES as usize);
    for (at, offset) in offsets().enumerate() {
        if at >= FILL_DEPTH {
            receive(queue);
        }
        let command = range(offset).write(content(offset), false);
        queue.connection().enqueue(command).expect("a place in the queue");
    }
    (0..FILL_DEPTH).for_each(|_| drop(receive(queue)));
    for offset in offsets().chain(offsets()) {
        let data = queue.read(range(offset), REQUEST_BYTES).expect("a read");
        assert!(data == content(offset), "the target returns other bytes at {offset}");
    }
}

/// A closed loop over random requests.
fn ask(mut queue: IoQueue, turn: &Turn, requests: u64, seed: u64) -> IoQueue {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let offset = (state >> 20) % (turn.range_bytes / u64::from(REQUEST_BYTES));
        let write = match turn.load {
            Load::Write => true,
            Load::Mix => state % 10 < 3,
            Load::Read | Load::Fill => false,
        };
        (range(offset * u64::from(REQUEST_BYTES)), write)
    };
    let data = content(0);
    for at in 0..requests + turn.depth as u64 {
        if at >= turn.depth as u64 {
            receive(&mut queue);
        }
        if at < requests {
            let (range, write) = next();
            let command =
                if write { range.write(data.clone(), false) } else { range.read(REQUEST_BYTES) };
            queue.connection().enqueue(command).expect("a place in the queue");
        }
    }
    queue
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    if arguments.is_empty() {
        eprintln!("SKIPPED: no target was named; rivals/spdk names some");
        return ExitCode::SUCCESS;
    }
    let Some(turn) = Turn::parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut controller = Controller::connect(&turn.access).expect("a controller");
    let granted = controller.set_queues(turn.connections).expect("queues");
    assert_eq!(granted, turn.connections);
    let queue = |id| controller.io_queue(id, 128).expect("an I/O queue");
    let mut queues: Vec<IoQueue> = (1..=turn.connections).map(queue).collect();
    if turn.load == Load::Fill {
        fill(&mut queues[0], turn.range_bytes);
        return ExitCode::SUCCESS;
    }

    let each = turn.requests / u64::from(turn.connections);
    let (before, started) = (cpu_ns(turn.pid), Instant::now());
    let queues: Vec<_> = std::thread::scope(|scope| {
        let turn = &turn;
        let running: Vec<_> = queues
            .into_iter()
            .enumerate()
            .map(|(seed, queue)| scope.spawn(move || ask(queue, turn, each, seed as u64)))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
    });
    let (used, took) = (cpu_ns(turn.pid) - before, started.elapsed().as_nanos());
    drop((queues, controller));
    let requests = each * u64::from(turn.connections);
    writeln!(
        std::io::stdout(),
        r#"{{"requests": {requests}, "target_ns": {used}, "elapsed_ns": {took}}}"#
    )
    .expect("output can be written");
    ExitCode::SUCCESS
}
