//! Crowds of NVMe hosts: ten thousand connections that say nothing, and a hundred hosts that do
//! nothing. Alone in its process, whose memory and threads it measures.

mod alone;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/rig.rs"]
mod rig;

use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use alone::{is_served, resident_bytes};
use floe_block::WriteMode;
use floe_server::limits::Limits;
use floe_testkit::nvme_host::Access;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::{PATIENCE, patiently};
use rig::{Rig, Setup, drained};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const NQN: &str = "nqn.2026-11.io.example:floe";
const HOSTS: usize = 100;

/// One test at a time: each measures the process.
static ALONE: Mutex<()> = Mutex::new(());

fn serve(limits: Limits) -> Rig {
    let mut setup = Setup::new(WriteMode::Back);
    setup.config.listen.push("nvme-tcp://127.0.0.1:0".parse().unwrap());
    setup.config.nvme.nqn = Some(NQN.to_owned());
    setup.config.limits = limits;
    setup.start().unwrap()
}

fn address(rig: &Rig) -> &str {
    rig.nvme[0].strip_prefix("nvme-tcp://").unwrap()
}

#[test]
fn ten_thousand_connections_that_say_nothing_cost_little_and_are_sent_away() {
    let _alone = ALONE.lock().unwrap();
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
    let connections = 10_000.min((most as usize - 500) / 2); // both ends are in this process
    // None is sent away before all are there, however slow the machine is.
    let handshake_time = Duration::from_secs(20);
    let rig = serve(Limits { connections: connections + 1, handshake_time, ..Limits::default() });
    let mut good = rig.client();
    let before = resident_bytes();
    let mut silent = Vec::new();
    for number in 0..connections {
        silent.push(TcpStream::connect(address(&rig)).unwrap());
        if number % 1000 == 0 {
            is_served(&mut good, number as u64 / 1000);
        }
    }
    let each = resident_bytes().saturating_sub(before) / connections;
    assert!(each < 10 << 10, "{each} bytes a connection");
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(drained(stream), b"");
    }
    is_served(&mut good, 1);
    drop(silent);
    rig.wait_for(|status| status.connections == 1);
    rig.end();
}

/// How often the threads of the process have waited, the caller's not counted.
fn waits() -> u64 {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let others = threads.filter(|thread| thread.file_name() != own.as_str());
    let waits = others.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    waits.sum()
}

/// The waits of so many seconds.
fn waits_in(seconds: u64) -> u64 {
    let before = waits();
    let until = Instant::now() + Duration::from_secs(seconds);
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
    waits() - before
}

#[test]
fn a_hundred_idle_hosts_wake_the_server_as_often_as_none() {
    let _alone = ALONE.lock().unwrap();
    let rig = serve(Limits { connections: 4 * HOSTS, ..Limits::default() });
    let access = Access { timeout: Some(PATIENCE), ..Access::new(address(&rig), NQN) };
    let hosts: Vec<_> = (0..HOSTS)
        .map(|number| {
            let mut host_id = [0; 16];
            host_id[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
            let mut controller =
                Controller::connect(&Access { host_id, ..access.clone() }).unwrap();
            controller.set_queues(1).unwrap();
            let queue = controller.io_queue(1, 32).unwrap();
            (controller, queue)
        })
        .collect();
    patiently(|| (rig.status().connections as usize == 2 * HOSTS).then_some(()));
    // The admin interface may still end connections in the first seconds.
    let fewest = (0..5).map(|_| waits_in(2)).min().unwrap();
    drop(hosts);
    rig.wait_for(|status| status.connections == 0);
    let without = (0..5).map(|_| waits_in(2)).min().unwrap();
    // Each thread may look for late hosts once a second, whatever their number.
    assert!(
        fewest <= without + 2 * 2 * rig::THREADS as u64,
        "{fewest} waits in 2 s with {HOSTS} hosts, {without} without"
    );
    rig.end();
}
