//! A client in a process of its own: of an image, through librbd, or of an export of Floe.
//!
//! It reads turns from its input, a line each, carries them out, and prints a line with the
//! outcome. It keeps a number of requests in flight, at random places of a range. The clients of
//! both kinds differ only in where they send a request.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use floe_device::{Action, Device, Operation, Pool, RbdSource, Ring, Slice, Spec};
use floe_server::nbd_client::Client;
use serde::{Deserialize, Serialize};

/// The largest request, and the most in flight.
const MOST_BYTES: usize = 64 << 10;
const MOST_DEPTH: usize = 16;

/// The requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// Reads at random.
    Read,
    /// Writes at random.
    Write,
    /// Reads of the whole range, in order, once.
    Scan,
    /// A flush.
    Flush,
}

/// A turn.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) load: Load,
    /// Bytes of a request.
    pub(crate) bytes: u64,
    /// Requests in flight.
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    /// The range of bytes, from the beginning of the volume.
    pub(crate) range: u64,
    pub(crate) seed: u64,
}

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) mean_us: f64,
}

/// A place to send requests to.
trait Door {
    /// Sends a request; returns its number among those in flight. `free` is one that is not used.
    fn submit(&mut self, load: Load, offset: u64, bytes: u64, free: usize) -> usize;
    /// Waits for at least one request; adds the numbers of those that have ended.
    fn receive(&mut self, ended: &mut Vec<usize>);
}

/// An image, by the device that Floe uses.
struct Image {
    device: Box<dyn Device>,
    ring: Ring,
    slices: Vec<Slice>,
}

impl Image {
    fn open(text: &str, is_cached: bool) -> Self {
        let spec: Spec = text.parse().expect("an image");
        let name = spec.image().expect("an image");
        let source = if is_cached {
            RbdSource::prepare_cached(name)
        } else {
            RbdSource::prepare(name, false)
        };
        let (ring, pool) = (Ring::new(64).expect("a ring"), Pool::new(MOST_DEPTH * MOST_BYTES));
        let slices = (0..MOST_DEPTH).map(|_| pool.allocate(MOST_BYTES).whole()).collect();
        let device = floe_device::RbdDevice::new(&ring, &source.expect("the image opens"));
        Self { device: Box::new(device.expect("a device")), ring, slices }
    }
}

impl Door for Image {
    fn submit(&mut self, load: Load, offset: u64, bytes: u64, free: usize) -> usize {
        let slice = || self.slices[free].slice(0..bytes as usize);
        let action = match load {
            Load::Read | Load::Scan => Action::Read(slice()),
            Load::Write => Action::Write { from: slice(), durable: false },
            Load::Flush => Action::Flush,
        };
        self.device.submit(Operation { token: free as u64, offset, action });
        free
    }

    fn receive(&mut self, ended: &mut Vec<usize>) {
        let mut done = Vec::new();
        loop {
            self.device.poll(&mut done);
            if !done.is_empty() {
                break;
            }
            self.ring.wait_until(self.device.next_due()).expect("the ring waits");
        }
        ended.extend(done.into_iter().map(|completion| {
            completion.result.expect("the request succeeds");
            completion.token as usize
        }));
    }
}

/// An export, and what is written to it.
struct Export(Client, Vec<u8>);

impl Door for Export {
    fn submit(&mut self, load: Load, offset: u64, bytes: u64, _: usize) -> usize {
        let Self(client, data) = self;
        let sent = match load {
            Load::Read | Load::Scan => client.submit_read(offset, bytes as u32),
            Load::Write => client.submit_write(offset, &data[..bytes as usize], false),
            Load::Flush => client.submit_flush(),
        };
        sent.expect("a request is sent").index()
    }

    fn receive(&mut self, ended: &mut Vec<usize>) {
        let reply = self.0.next_reply().expect("a reply").expect("a request is in flight");
        reply.outcome.expect("the request succeeds");
        ended.push(reply.cookie.index());
        self.0.recycle(reply.data);
    }
}

/// Carries out the turns of the input.
pub(crate) fn serve_turns(kind: &str, address: &str) {
    let mut door: Box<dyn Door> = match kind {
        "image" | "cached-image" => Box::new(Image::open(address, kind == "cached-image")),
        _ => {
            let client = Client::connect(&address.parse().expect("an address"));
            Box::new(Export(client.expect("a connection"), vec![7; MOST_BYTES]))
        }
    };
    for line in std::io::stdin().lock().lines() {
        let turn = serde_json::from_str(&line.expect("a line")).expect("a turn");
        let outcome = serde_json::to_string(&carry_out(&mut *door, turn)).expect("an outcome");
        writeln!(std::io::stdout().lock(), "{outcome}").expect("output can be written");
    }
}

fn carry_out(door: &mut dyn Door, turn: Turn) -> Outcome {
    let Turn { load, bytes, depth, range, .. } = turn;
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(turn.seconds);
    let blocks = range / bytes.max(1);
    let (mut state, mut count) = ((turn.seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15), 0);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        count += 1;
        match load {
            Load::Flush => (count == 1).then_some(0),
            Load::Scan => (count <= blocks).then_some((count - 1) * bytes),
            Load::Read | Load::Write => {
                (Instant::now() < end).then_some((state >> 20) % blocks * bytes)
            }
        }
    };
    let (mut sent, mut free) = ([begun; MOST_DEPTH], (0..depth).collect::<Vec<_>>());
    let (mut in_flight, mut ended, mut times) = (0, Vec::new(), Vec::new());
    loop {
        while let Some(slot) = free.pop() {
            let Some(offset) = next() else { break };
            let now = Instant::now();
            sent[door.submit(load, offset, bytes, slot)] = now;
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        door.receive(&mut ended);
        let now = Instant::now();
        for slot in ended.drain(..) {
            times.push((now - sent[slot]).as_secs_f64() * 1e6);
            in_flight -= 1;
            free.push(slot);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let requests = times.len();
    Outcome {
        requests: requests as u64,
        seconds,
        p50_us: times[requests / 2],
        p99_us: times[requests * 99 / 100],
        mean_us: times.iter().sum::<f64>() / requests as f64,
    }
}
