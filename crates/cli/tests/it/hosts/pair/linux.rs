//! The kernel of a stock Linux as the host of a pair, over NVMe: its file system stays mounted
//! while either server dies, hands over or is paused.

use std::time::Instant;

use floe_server::pair::{LOST_TURN, Role};
use floe_testkit::{Ceph, wait_until};
use rustix::process::Signal;

use super::paths::{NAME, pair_of};
use super::rig::{MIB, Pair};
use crate::common::floe_ok;
use crate::hosts::guest::guests_run;
use crate::hosts::guest_nvme::{Guest, Target};

const SIZE: usize = 24 * MIB;

#[test]
fn linux_keeps_a_file_system_mounted_whichever_server_of_a_pair_serves() {
    if !guests_run() {
        return;
    }
    let Some(ceph) = Ceph::start() else { return };
    let (mut pair, addresses) = pair_of(Pair::of_size(ceph, "5s", SIZE));
    let ports = addresses.map(|address| address.rsplit_once(':').expect("a port").1.to_owned());
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target { port: &ports[0], name: NAME, mib: SIZE / MIB };
    let variables = format!("SECOND={}", ports[1]);
    let script = "nvme_pair.sh";
    let mut guest = Guest::start_at(script, &target, folder.path(), &["--newer"], &variables);
    guest.says("by path 0");

    let begun = Instant::now();
    pair.kill(0);
    pair.wait_for_role(1, Role::Active);
    println!("another server serves {:.1} s after a kill", begun.elapsed().as_secs_f64());
    guest.says("by path 1");

    pair.begin(0);
    wait_until("the active server sees the standby", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains(" stands by")
    });
    floe_ok(&["handover", "--admin", &pair.admin(1)]);
    assert_eq!(pair.ended(1), Some(0), "{}", pair.log(1));
    guest.says("by path 0");

    pair.begin(1);
    wait_until("the standby sees the active server", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the lease of")
    });
    pair.signal(0, Signal::STOP);
    pair.wait_for_role(1, Role::Active);
    pair.signal(0, Signal::CONT);
    assert_eq!(pair.ended(0), Some(i32::from(LOST_TURN)), "{}", pair.log(0));
    guest.says("by path 1");
    guest.says("all is as it was written");
    guest.ends_well();
}
