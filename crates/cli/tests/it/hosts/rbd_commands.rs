//! Commands other than `serve` with images of Ceph, on a cluster that the test starts.

use floe_server::nbd_client::Client;
use floe_testkit::{Ceph, pattern, wait_until};
use serde_json::Value;

use crate::common::{Server, assert_same, floe, floe_ok, text};

const MIB: usize = 1 << 20;

fn json(arguments: &[&str]) -> Value {
    let said = floe_ok(arguments);
    let line = said.lines().next().expect("a line");
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn a_trace_is_replayed_on_an_image_behind_a_cache_in_another() {
    let Some(ceph) = Ceph::start() else { return };
    let (volume, cache) = (ceph.image("volume", 16 << 20), ceph.image("cache", 8 << 20));
    let trace = "zipf:keys=2000,requests=2000,read=0.7,block=4KiB";
    for (cache, write) in [(&cache[..], "back"), ("memory:8MiB", "through")] {
        let line = ["replay", trace, "--backing", &volume, "--cache", cache, "--write", write];
        let refused = floe(&line);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("--overwrite"), "{said}");
        let outcome = json(&[&line[..], &["--overwrite", "--json"]].concat());
        assert_eq!(outcome["requests"], 2000, "{outcome}");
        assert!(outcome["read_hits"].as_u64() > Some(0), "{outcome}");
    }
}

#[test]
fn images_are_calibrated_and_are_zeros_again() {
    let Some(ceph) = Ceph::start() else { return };
    let (device, below) = (ceph.image("device", 16 << 20), ceph.image("below", 16 << 20));
    let quick = ["--rounds", "1", "--seconds", "0.05", "--writes", "0.3", "--scratch", "4MiB"];
    let line = ["calibrate", &device, "--backing", &below, "--json"];
    let point = json(&[&line[..], &quick].concat());
    assert_eq!(point["device"].as_str(), Some(&below[..]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("exported");
    ceph.rbd(&["export", "--no-progress", "rbd/device", text(&file)]);
    assert_same("the image", &std::fs::read(&file).expect("a file"), &vec![0; 16 * MIB]);
}

#[test]
fn caches_in_images_are_tiers_and_are_checked_and_exported() {
    let Some(ceph) = Ceph::start() else { return };
    let volume = ceph.image("volume", 8 << 20);
    let (upper, lower) = (ceph.image("upper", 16 << 20), ceph.image("lower", 24 << 20));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| text(&folder.path().join(name)).to_owned();
    let socket = format!("nbd+unix:///?socket={}", path("nbd.sock"));
    let (admin, state) = (format!("unix:{}", path("admin.sock")), path("state"));
    let (upper_tier, lower_tier) = (format!("{upper},write=back"), format!("{lower},write=back"));
    let line = ["serve", "--backing", &volume, "--tier", &upper_tier, "--tier", &lower_tier];
    let more = ["--listen", &socket, "--listen", "nbd://127.0.0.1:0", "--admin", &admin];
    let kept = ["--state-dir", &state, "--flush-interval", "1h", "--threads", "1"];
    let server = Server::run(&[&line[..], &more, &kept].concat(), folder.path().join("floe.log"));
    let mut client = Client::connect(&server.unix.parse().expect("an address")).expect("served");
    let mut content = vec![0; 8 * MIB];
    let piece = pattern(3, MIB);
    client.write(2 * MIB as u64, &piece, false).expect("a write");
    content[2 * MIB..3 * MIB].copy_from_slice(&piece);
    client.flush().expect("a flush");
    drop(server);

    for (cache, problems) in [(&upper, 0), (&lower, 0)] {
        let mut checked = Value::Null;
        wait_until("the lock of the killed server is free", || {
            let said = floe(&["check", cache, "--json"]);
            checked = serde_json::from_slice(&said.stdout).unwrap_or_default();
            !checked.is_null()
        });
        assert_eq!(checked["cache"], true, "{checked}");
        assert_eq!(checked["problems"].as_array().map(Vec::len), Some(problems), "{checked}");
    }
    let export = ["export-dirty", &upper, &lower, "--state-dir", &state, "--backing", &volume];
    let mut said = String::new();
    wait_until("the locks of the killed server are free", || {
        let done = floe(&export);
        said = String::from_utf8_lossy(&done.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() || complaint.contains("lock"), "{complaint}");
        done.status.success()
    });
    assert!(said.contains("1MiB written back to volume"), "{said}");
    let file = folder.path().join("exported");
    ceph.rbd(&["export", "--no-progress", "rbd/volume", text(&file)]);
    assert_same("the image", &std::fs::read(&file).expect("a file"), &content);
}
