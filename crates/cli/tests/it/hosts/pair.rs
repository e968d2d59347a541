//! Two servers of one image of Ceph, of which one serves and the other takes over.

mod campaign;
mod linux;
mod mirror;
mod paths;
mod reserved;
mod rig;

use std::time::Instant;

use floe_server::pair::{LOST_TURN, Role};
use floe_testkit::{Ceph, pattern, wait_until};
use rustix::process::Signal;

use crate::common::{assert_same, floe, floe_ok};
use rig::{MIB, Pair};

#[test]
fn a_standby_takes_over_from_a_server_that_was_killed() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    wait_until("the standby sees the active server", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the lease of")
    });
    assert_eq!(pair.role(1), Some(Role::Standby));
    assert!(pair.connect(1).is_none(), "a standby serves nobody");
    let healthy = floe(&["flush", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&healthy.stderr);
    assert!(said.contains("this server stands by and serves nothing; ask"), "{said}");
    let piece = pattern(1, MIB);
    let mut client = pair.connect(0).expect("it serves");
    client.write(0, &piece, false).expect("a write");
    client.flush().expect("a flush");
    pair.kill(0);
    pair.wait_for_role(1, Role::Active);
    let mut found = vec![0; MIB];
    pair.connect(1).expect("it serves").read(0, &mut found).expect("a read");
    assert_same("what was flushed", &found, &piece);
    assert!(pair.log(1).contains("the lease ran out of"), "{}", pair.log(1));
    // The killed one comes back as the standby, and takes over when the other ends in good order.
    pair.begin(0);
    assert_eq!(pair.role(0), Some(Role::Standby));
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0));
    pair.wait_for_role(0, Role::Active);
    pair.signal(0, Signal::TERM);
    assert_eq!(pair.ended(0), Some(0));
}

#[test]
fn a_server_that_is_started_again_after_a_crash_does_not_wait_for_its_own_lease() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "1h");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    let piece = pattern(1, MIB);
    pair.connect(0).expect("it serves").write(0, &piece, false).expect("a write");
    pair.begin(1);
    pair.kill(0);
    pair.begin(0);
    let (_, mut client) = pair.follow(); // the other server may be faster
    let said = "the server that ran here before has died";
    assert!(pair.log(0).contains(said), "{}", pair.log(0));
    let mut found = vec![0; MIB];
    client.read(0, &mut found).expect("a read");
    assert_same("what was written", &found, &piece);
}

#[test]
fn a_server_that_was_paused_for_longer_than_its_lease_answers_nothing_more() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    let mut client = pair.connect(0).expect("it serves");
    client.write(0, &pattern(1, MIB), false).expect("a write");
    pair.begin(1);
    pair.signal(0, Signal::STOP);
    pair.wait_for_role(1, Role::Active);
    let newer = pattern(2, MIB);
    let mut other = pair.connect(1).expect("it serves");
    other.write(0, &newer, false).expect("a write");
    // Late writers: the one that was paused has requests of a client before it when it wakes.
    let reader = std::thread::spawn(move || {
        let mut found = vec![0; MIB];
        (client.read(0, &mut found).is_ok(), client.write(0, &pattern(3, MIB), false).is_ok())
    });
    pair.signal(0, Signal::CONT);
    assert_eq!(pair.ended(0), Some(i32::from(LOST_TURN)), "{}", pair.log(0));
    assert_eq!(reader.join().expect("no panic"), (false, false), "an answer after its turn");
    assert!(pair.log(0).contains("another server may have taken over"), "{}", pair.log(0));
    let mut found = vec![0; MIB];
    other.read(0, &mut found).expect("a read");
    assert_same("the volume", &found, &newer);
    assert_same("the image", &pair.exported()[..MIB], &newer);
}

#[test]
fn an_operator_moves_the_volumes_by_handover_and_by_takeover() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    pair.begin(0);
    pair.wait_for_role(0, Role::Active);
    pair.begin(1);
    wait_until("the standby sees the active server", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains("the lease of")
    });
    let refused = floe(&["takeover", "--admin", &pair.admin(0)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("this server serves already"), "{said}");
    floe_ok(&["takeover", "--admin", &pair.admin(1)]);
    // The old one learns from its cluster or from its lease that its turn is over.
    assert_eq!(pair.ended(0), Some(i32::from(LOST_TURN)), "{}", pair.log(0));
    pair.wait_for_role(1, Role::Active);
    let said = floe_ok(&["status", "--admin", &pair.admin(1)]);
    assert!(said.contains("an operator took over from"), "{said}");
    let refused = floe(&["handover", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no standby has been seen lately"), "{said}");
    pair.begin(0);
    wait_until("the active server sees the standby", || {
        floe_ok(&["status", "--admin", &pair.admin(1)]).contains(" stands by")
    });
    let begun = Instant::now();
    floe_ok(&["handover", "--admin", &pair.admin(1)]);
    assert_eq!(pair.ended(1), Some(0));
    wait_until("the other one serves", || pair.connect(0).is_some());
    println!("served again {:.2} s after the handover began", begun.elapsed().as_secs_f64());
    pair.wait_for_role(0, Role::Active);
}

#[test]
fn a_lock_that_no_lease_stands_behind_is_left_alone() {
    let Some(ceph) = Ceph::start() else { return };
    let mut pair = Pair::new(ceph, "5s");
    let socket = format!("nbd+unix:///?socket={}", pair.path(0, "alone.sock").display());
    let tcp = "nbd://127.0.0.1:0";
    let admin = format!("unix:{}", pair.path(0, "alone.admin").display());
    let image = pair.image.clone();
    let line = ["serve", "--backing", &image, "--cache", "memory:16MiB", "--write", "through"];
    let more = ["--listen", &socket, "--listen", tcp, "--admin", &admin];
    let alone = crate::common::Server::run(&[&line[..], &more].concat(), pair.path(0, "alone.log"));
    let refused = floe(&["handover", "--admin", &admin]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no standby has been seen lately"), "{said}");
    pair.begin(1);
    wait_until("the standby has seen the lock", || pair.log(1).contains("keeps no lease"));
    let refused = floe(&["takeover", "--admin", &pair.admin(1)]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no active server is known that keeps a lease"), "{said}");
    assert_eq!(pair.role(1), Some(Role::Standby));
    alone.end();
    pair.wait_for_role(1, Role::Active);
    pair.signal(1, Signal::TERM);
    assert_eq!(pair.ended(1), Some(0));
    // One that dies without a lease is missed by the cluster after half a minute, and fenced.
    let alone = crate::common::Server::run(&[&line[..], &more].concat(), pair.path(0, "alone.log"));
    pair.begin(1);
    drop(alone); // by SIGKILL
    pair.wait_for_role(1, Role::Active);
    assert!(pair.log(1).contains("which kept no lease, has died"), "{}", pair.log(1));
    // A standby that is told to end does so in good order.
    pair.begin(0);
    pair.signal(0, Signal::TERM);
    assert_eq!(pair.ended(0), Some(0));
}

#[test]
fn what_a_standby_could_not_have_is_refused_in_a_line() {
    let image = "rbd:rbd/none";
    let (listen, named) = ("nbd+unix:///?socket=none", "nbd+unix:///half?socket=none");
    let mirror = "mirror:./none+nbd+unix:///half?socket=other,size=16MiB";
    let alone = "mirror:./none+./other,size=16MiB";
    for (more, wanted) in [
        (&["--backing", image, "--write", "back", "--volatile"][..], "write-back would leave"),
        (
            &["--backing", "memory:4MiB", "--write", "through"],
            "standby needs volumes on writable images of Ceph",
        ),
        (&["--backing", image, "--write", "through", "--lease", "10ms"], "lease needs standby"),
        (&["--backing", image, "--half-listen", listen], "needs a cache on a mirror"),
        (&["--backing", image, "--cache", mirror, "--write", "back"], "give half-listen"),
        (&["--backing", image, "--cache", alone, "--write", "back"], "outlives the server"),
        (&["--backing", image, "--cache", mirror, "--half-listen", named], "names an export"),
        (&["--backing", image, "--read-only", "--write", "through"], "writable images"),
    ] {
        let mut line = vec!["serve", "--standby"];
        line.extend(more);
        if !more.contains(&"--cache") {
            line.extend(["--cache", "memory:16MiB"]);
        }
        let refused = floe(&line);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.lines().count() == 1 && said.contains(wanted), "{said}");
    }
}
