//! Volumes that share the rate of the server by weight, on one thread and on several.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_block::WriteMode;
use floe_device::MemoryDevice;
use floe_nbd::wire::command;
use floe_server::admin::client as admin;
use floe_server::admin::{LimitChange, NewVolume, ShareChange, TotalLimitChange};
use floe_server::nbd_client::Client;
use floe_server::{RequestLimit, TotalLimit};

use super::volumes::refused;
use crate::rig::{Rig, Setup, Wrapped, header};

const SIZE: u64 = 1 << 20;

/// So few that what waits behind the first would take longer than any test.
const HARDLY_ANY: TotalLimit = TotalLimit {
    total_requests_per_second: Some(1),
    total_bytes_per_second: None,
    total_burst_ms: 1000,
};

/// A server of `floe` and of volumes with these weights, whose names are their numbers.
fn start(threads: usize, total: TotalLimit, weights: &[u64]) -> Rig {
    let mut setup = Setup::new(WriteMode::Back).threads(threads);
    for (number, weight) in weights.iter().enumerate() {
        let backing = Wrapped::source(MemoryDevice::new(SIZE), |memory| Box::new(memory));
        setup = setup.volume(&number.to_string(), backing);
        setup.volumes.last_mut().unwrap().limit.weight = *weight;
    }
    setup.config.total_limit = total;
    setup.start().unwrap()
}

fn limit(rig: &Rig, requests: Option<u64>) -> TotalLimit {
    let change = TotalLimitChange {
        total_requests_per_second: Some(requests),
        ..TotalLimitChange::default()
    };
    admin::limit_total(&rig.admin, &change).unwrap()
}

fn weigh(rig: &Rig, name: &str, weight: u64) {
    let change = LimitChange { weight: Some(weight), ..LimitChange::default() };
    assert_eq!(admin::limit_volume(&rig.admin, name, &change).unwrap().limit.weight, weight);
}

/// A client that has sent this many reads.
fn asking(rig: &Rig, name: &str, reads: u64) -> Client {
    let mut client = rig.client_of(name).unwrap();
    for at in 0..reads {
        client.submit_read(at % (SIZE / 512) * 512, 512).unwrap();
    }
    client
}

/// Waits for so many replies.
fn replies(client: &mut Client, count: u64) {
    for _ in 0..count {
        client.next_reply().unwrap().unwrap().outcome.unwrap();
    }
}

/// Has four clients of each volume ask all the time, from a rate of 500 requests per second on,
/// until the last volume has had `most` replies. Returns the replies of each volume by then.
fn race(rig: &Rig, volumes: usize, most: u64) -> Vec<u64> {
    limit(rig, Some(1)); // none gets ahead of the others meanwhile
    let counts: Vec<AtomicU64> = (0..volumes).map(|_| AtomicU64::new(0)).collect();
    let last = &counts[volumes - 1];
    let mut clients: Vec<(usize, Client)> = (0..volumes * 4)
        .map(|number| (number % volumes, asking(rig, &(number % volumes).to_string(), 1000)))
        .collect();
    limit(rig, Some(500));
    std::thread::scope(|scope| {
        for (volume, client) in &mut clients {
            let counts = &counts;
            scope.spawn(move || {
                while last.load(Ordering::Relaxed) < most {
                    client.next_reply().unwrap().unwrap().outcome.unwrap();
                    counts[*volume].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn busy_volumes_get_their_parts_by_weight_on_any_number_of_threads() {
    for threads in 1..=3 {
        let rig = start(threads, TotalLimit::NONE, &[100, 300, 600]);
        let counts = race(&rig, 3, 600);
        assert!((50..=200).contains(&counts[0]), "{counts:?}, {threads} threads");
        assert!((200..=450).contains(&counts[1]), "{counts:?}, {threads} threads");
        let status = rig.status();
        assert_eq!(status.total_limit.total_requests_per_second, Some(500));
        assert!(status.volumes.iter().skip(1).all(|it| it.delayed_requests > 0), "{status:?}");

        // Other weights hold.
        weigh(&rig, "0", 600);
        weigh(&rig, "2", 100);
        let counts = race(&rig, 3, 100);
        assert!(counts[0] > 2 * counts[2], "{counts:?}, {threads} threads");
        rig.end();
    }
}

#[test]
fn a_lone_volume_has_the_whole_rate_among_two_hundred() {
    let total = TotalLimit { total_requests_per_second: Some(2000), ..TotalLimit::NONE };
    let rig = start(2, total, &[1; 200]);
    let begun = std::time::Instant::now();
    let reads = 1000;
    let mut client = asking(&rig, "77", reads);
    replies(&mut client, reads);
    // With its part of 1/200 it would have taken 80 s more.
    let time = begun.elapsed().as_secs_f64();
    assert!(time < 60.0, "{time} s");
    assert!(reads as f64 <= 2000.0 * (time + 0.1) + 2.0, "{time} s");
    rig.end();
}

#[test]
fn a_lifted_rate_wakes_all_that_wait_and_another_holds_at_once() {
    for threads in 1..=2 {
        let rig = start(threads, HARDLY_ANY, &[1, 1000]);
        let mut clients = ["0", "1", "0", "1"].map(|name| asking(&rig, name, 100));
        let mut flushing = rig.client_of("0").unwrap();
        flushing.flush().unwrap(); // what needs no turn goes on
        assert_eq!(limit(&rig, Some(100_000)).total_requests_per_second, Some(100_000));
        for client in &mut clients {
            replies(client, 50);
        }
        assert!(!limit(&rig, None).is_any());
        for client in &mut clients {
            replies(client, 50);
        }
        // One that is set while the server serves holds as well.
        assert_eq!(limit(&rig, Some(1)).total_burst_ms, 1000);
        let mut client = rig.client_of("0").unwrap();
        client.read(0, &mut [0; 512]).unwrap();
        client.submit_read(0, 512).unwrap();
        let flush = client.submit_flush().unwrap();
        assert_eq!(client.next_reply().unwrap().unwrap().cookie, flush);
        rig.end();
    }
}

#[test]
fn volumes_are_removed_clients_leave_and_a_server_ends_whatever_waits() {
    for threads in 1..=2 {
        let rig = start(threads, HARDLY_ANY, &[100, 100]);
        let waiting = ["0", "0", "1", "1"].map(|name| asking(&rig, name, 100));
        let mut stream = rig.raw();
        stream.write_all(&header(command::READ, 1, 0, 512)).unwrap();
        drop(stream);
        admin::remove_volume(&rig.admin, "0", true).unwrap();
        let [first, ..] = waiting;
        drop(first);
        let volume = NewVolume {
            name: "late".into(),
            backing: "memory:4MiB".into(),
            read_only: false,
            holds_cache: false,
            nvme_block_bytes: None,
            description: String::new(),
            limit: LimitChange { weight: Some(7), ..LimitChange::default() },
            share: ShareChange::default(),
        };
        assert_eq!(admin::add_volume(&rig.admin, &volume).unwrap().limit.weight, 7);
        let _late = asking(&rig, "late", 10);
        rig.end();
    }
}

#[test]
fn limits_of_volumes_and_clients_hold_besides() {
    let rig = start(2, TotalLimit::NONE, &[1000, 1]);
    let change = LimitChange {
        requests_per_second: Some(Some(100)),
        client_requests_per_second: Some(Some(50)),
        limit_burst_ms: Some(50),
        ..LimitChange::default()
    };
    admin::limit_volume(&rig.admin, "0", &change).unwrap();
    let begun = std::time::Instant::now();
    let counts = race(&rig, 2, 300);
    let time = begun.elapsed().as_secs_f64();
    // The burst, one of each late thread, and one of each connection.
    let most = 50.0 * time + 2.5 + 2.0 + 4.0;
    assert!(counts[0] as f64 <= most, "{counts:?} in {time} s");
    rig.end();
}

#[test]
fn wrong_limits_and_weights_change_nothing() {
    let rig = start(1, HARDLY_ANY, &[100]);
    let change = |requests, bytes, total_burst_ms| {
        let change = TotalLimitChange {
            total_requests_per_second: requests,
            total_bytes_per_second: bytes,
            total_burst_ms,
        };
        admin::limit_total(&rig.admin, &change)
    };
    refused(change(Some(Some(0)), None, None), "total-requests-per-second = 0");
    refused(change(None, Some(Some(10)), None), "total-bytes-per-second = 10 is less than 4KiB");
    refused(change(None, None, Some(0)), "total-burst = 0ms");
    refused(change(Some(None), None, Some(5)), "total-burst needs");
    for weight in [0, 1001] {
        let change = LimitChange { weight: Some(weight), ..LimitChange::default() };
        let result = admin::limit_volume(&rig.admin, "0", &change);
        refused(result, &format!("weight = {weight} is not between 1 and 1000"));
    }
    let status = rig.status();
    assert_eq!(status.total_limit, HARDLY_ANY);
    assert_eq!(status.volumes[1].limit, RequestLimit::NONE);
    rig.end();
}
