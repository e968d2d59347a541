//! Ten thousand clients. Alone in its process, whose memory it measures.

mod alone;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "it/rig.rs"]
mod rig;

use std::io::Write;

use alone::{is_served, resident_bytes};
use floe_block::WriteMode;
use floe_server::limits::Limits;
use rig::{Rig, header, simple_reply};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn ten_thousand_idle_connections_cost_little_and_keep_nobody_waiting() {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
    let connections = 10_000.min((most as usize - 500) / 2); // both ends are in this process
    let rig = Rig::tuned(
        WriteMode::Back,
        |memory| Box::new(memory),
        |config| config.limits = Limits { connections: connections + 1, ..Limits::default() },
    );
    let mut good = rig.client();
    let before = resident_bytes();
    let mut idle = Vec::new();
    for number in 0..connections {
        idle.push(rig.raw());
        if number % 1000 == 0 {
            is_served(&mut good, number as u64 / 1000);
        }
    }
    assert_eq!(rig.status().connections as usize, connections + 1);
    let each = resident_bytes().saturating_sub(before) / connections;
    assert!(each < 10 << 10, "{each} bytes a connection");

    // All of them still work.
    for stream in idle.iter_mut().step_by(97) {
        stream.write_all(&header(3, 7, 0, 0)).unwrap();
        assert_eq!(simple_reply(stream), (0, 7));
    }
    drop(idle);
    rig.wait_for(|status| status.connections == 1);
    is_served(&mut good, 1);
}
