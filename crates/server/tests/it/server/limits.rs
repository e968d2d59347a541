//! Volumes whose requests are limited, beside one without limits, on one thread and on two.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use floe_block::WriteMode;
use floe_device::MemoryDevice;
use floe_nbd::wire::command;
use floe_server::RequestLimit;
use floe_server::admin::client as admin;
use floe_server::admin::{LimitChange, NewVolume, ShareChange};
use floe_server::nbd_client::Client;
use floe_server::status::VolumeStatus;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, Range};
use floe_testkit::{PATIENCE, pattern};

use super::volumes::refused;
use crate::rig::{Rig, Setup, VOLUME, Wrapped, header, simple_reply};

const SIZE: u64 = 8 << 20;
pub(super) const NQN: &str = "nqn.2026-11.io.example:floe";

/// So few that what waits behind them would take longer than any test.
fn hardly_any() -> RequestLimit {
    RequestLimit { requests_per_second: Some(1), limit_burst_ms: 1000, ..RequestLimit::NONE }
}

/// A server of `floe`, which is limited, and `free`, which is not.
pub(super) fn setup(threads: usize, limit: RequestLimit) -> Setup {
    let free = Wrapped::source(MemoryDevice::new(SIZE), |memory| Box::new(memory));
    let mut setup = Setup::new(WriteMode::Back).threads(threads).volume("free", free);
    setup.config.listen.push("nvme-tcp://127.0.0.1:0".parse().unwrap());
    setup.config.nvme.nqn = Some(NQN.to_owned());
    setup.volumes[0].limit = limit;
    setup
}

pub(super) fn start(threads: usize, limit: RequestLimit) -> Rig {
    setup(threads, limit).start().unwrap()
}

pub(super) fn limited(rig: &Rig) -> VolumeStatus {
    rig.status().volumes.swap_remove(0)
}

fn lift(rig: &Rig) {
    let none = LimitChange { requests_per_second: Some(None), ..LimitChange::default() };
    assert!(!admin::limit_volume(&rig.admin, "floe", &none).unwrap().limit.is_any());
}

/// Waits for all replies, and returns their number.
pub(super) fn replies(client: &mut Client) -> u64 {
    std::iter::from_fn(|| client.next_reply().unwrap().map(|it| it.outcome.unwrap())).count() as u64
}

fn host(rig: &Rig) -> Controller {
    let address = rig.nvme[0].strip_prefix("nvme-tcp://").unwrap();
    let address = address.split_once('/').map_or(address, |(address, _)| address);
    let access = Access { timeout: Some(PATIENCE), ..Access::new(address, NQN) };
    let mut host = Controller::connect(&access).unwrap();
    host.set_queues(1).unwrap();
    host
}

#[test]
fn a_limit_holds_over_all_clients_threads_and_protocols() {
    let limit =
        RequestLimit { requests_per_second: Some(200), limit_burst_ms: 50, ..RequestLimit::NONE };
    for threads in 1..=2 {
        let rig = start(threads, limit.clone());
        let begun = Instant::now();
        let answered: u64 = std::thread::scope(|scope| {
            let clients = (0..3).map(|number| {
                let mut client = rig.client_on(number);
                scope.spawn(move || {
                    for at in 0..40 {
                        client.submit_read(at * 4096, 4096).unwrap();
                        client.submit_write(at * 4096, &[7; 512], false).unwrap();
                    }
                    replies(&mut client)
                })
            });
            let host = host(&rig);
            let nvme = scope.spawn(move || {
                let mut queue = host.io_queue(1, 16).unwrap();
                for at in 0..20 {
                    let range = Range { namespace: 1, first: at, blocks: 1 };
                    queue.write(range, vec![9; 512], false).unwrap();
                    queue.read(range, 512).unwrap();
                }
                40
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|it| it.join().unwrap()).sum::<u64>() + nvme.join().unwrap()
        });
        let time = begun.elapsed().as_secs_f64();
        assert_eq!(answered, 3 * 80 + 40);
        assert!(
            answered as f64 <= 200.0 * time + 10.0,
            "{answered} in {time} s, {threads} threads"
        );
        let status = limited(&rig);
        assert!(status.delayed_requests > 0 && status.delayed_seconds > 0.0, "{status:?}");
        assert_eq!(status.limit, limit);
        rig.end();
    }
}

#[test]
fn bytes_are_limited_whatever_moves_them_and_a_trim_moves_none() {
    let rate = 4 << 20;
    let limit = RequestLimit { bytes_per_second: Some(rate), ..RequestLimit::NONE };
    let rig = start(2, limit);
    let mut client = rig.client();
    let begun = Instant::now();
    let data = pattern(3, 64 << 10);
    for at in 0..12 {
        client.submit_write(at << 16, &data, false).unwrap();
        client.submit_write_zeroes((12 + at) << 16, 64 << 10, true).unwrap();
        client.submit_read((24 + at) << 16, 64 << 10).unwrap();
        client.submit_trim((36 + at) << 16, 4 << 20).unwrap();
    }
    assert_eq!(replies(&mut client), 48);
    let (time, moved) = (begun.elapsed().as_secs_f64(), (36_u64 << 16) as f64);
    assert!(moved <= rate as f64 * (time + 0.1), "{moved} bytes in {time} s");
    // One larger than the burst goes alone.
    client.read(0, &mut vec![0; 1 << 20]).unwrap();
    let mut found = vec![0; 64 << 10];
    client.read(0, &mut found).unwrap();
    assert!(found == data);
    rig.end();
}

#[test]
fn neighbours_and_flushes_go_on_and_a_lifted_limit_wakes_all_that_wait() {
    for threads in 1..=2 {
        let rig = start(threads, hardly_any());
        let begun = Instant::now();
        let mut clients: Vec<Client> = (0..3).map(|number| rig.client_on(number)).collect();
        for client in &mut clients {
            for at in 0..200 {
                client.submit_read(at * 4096, 4096).unwrap();
            }
        }
        let flush = clients[0].submit_flush().unwrap();
        let mut before = 0;
        while clients[0].next_reply().unwrap().unwrap().cookie != flush {
            before += 1;
        }
        assert!(f64::from(before) <= begun.elapsed().as_secs_f64() + 1.0, "{before} overtook it");

        let mut neighbour = rig.client_of("free").unwrap();
        let data = pattern(5, 1 << 20);
        neighbour.write(0, &data, false).unwrap();
        let mut found = vec![0; 1 << 20];
        neighbour.read(0, &mut found).unwrap();
        assert!(found == data);

        // Another limit holds at once, and wakes those that wait.
        let more = LimitChange { requests_per_second: Some(Some(100)), ..LimitChange::default() };
        let changed = admin::limit_volume(&rig.admin, "floe", &more).unwrap();
        assert_eq!(changed.limit.requests_per_second, Some(100));
        (0..20).for_each(|_| drop(clients[1].next_reply().unwrap().unwrap()));
        lift(&rig);
        let answered: u64 = clients.iter_mut().map(replies).sum();
        assert_eq!(answered + 20 + before as u64, 600);
        assert_eq!(limited(&rig).requests, 601);
        rig.end();
    }
}

#[test]
fn one_volume_of_a_host_does_not_hold_up_another_on_the_same_queue() {
    let rig = start(1, hardly_any());
    let host = host(&rig);
    let mut queue = host.io_queue(1, 128).unwrap();
    let range = |namespace, first| Range { namespace, first, blocks: 1 };
    let (connection, begun) = (queue.connection(), Instant::now());
    for at in 0..40 {
        connection.submit(range(1, at).read(512)).unwrap();
        if at < 10 {
            connection.submit(range(1, at).write(vec![3; 512], false)).unwrap();
        }
    }
    let last = connection.submit(range(2, 0).write(vec![4; 512], false)).unwrap();
    let mut before = 0;
    while connection.next_completion().unwrap().id != last {
        before += 1;
    }
    assert!(f64::from(before) <= begun.elapsed().as_secs_f64() + 1.0, "{before} overtook it");
    lift(&rig);
    for _ in before..50 {
        connection.next_completion().unwrap();
    }
    rig.end();
}

#[test]
fn a_thousand_throttled_writes_hold_none_of_the_others_memory() {
    let mut setup = setup(1, hardly_any());
    setup.config.limits.budget_bytes = 8 << 20;
    let rig = setup.start().unwrap();
    let mut crowd: Vec<_> = (0..100).map(|_| rig.raw()).collect();
    for (number, stream) in crowd.iter_mut().enumerate() {
        for cookie in 0..10 {
            // One whose payload is to come, behind reads of as much.
            let kind = if cookie < 9 { command::READ } else { command::WRITE };
            let offset = (number as u64 % 8) << 20;
            stream.write_all(&header(kind, cookie, offset, 1 << 20)).unwrap();
        }
    }
    let mut neighbour = rig.client_of("free").unwrap();
    for at in 0..50 {
        let data = pattern(at, 1 << 20);
        let offset = (at % 8) << 20;
        neighbour.write(offset, &data, false).unwrap();
        let mut found = vec![0; 1 << 20];
        neighbour.read(offset, &mut found).unwrap();
        assert!(found == data);
    }
    drop(crowd);
    lift(&rig); // a client that has gone is noticed when its turn comes
    rig.wait_for(|status| status.volumes[0].connections == 0);
    rig.end();
}

#[test]
fn writes_of_a_client_that_has_gone_do_not_start_when_their_turn_comes() {
    let bytes_per_second = Some(4096);
    let limit = RequestLimit { bytes_per_second, limit_burst_ms: 1000, ..RequestLimit::NONE };
    let rig = start(1, limit);
    let mut client = rig.raw();
    // What comes behind this waits for four minutes.
    client.write_all(&header(command::READ, 0, 0, 1 << 20)).unwrap();
    assert_eq!(simple_reply(&mut client), (0, 0));
    let mut before = vec![0; 1 << 20];
    client.read_exact(&mut before).unwrap();
    // A write that waits with its payload, and one for which there is no room.
    let write = [header(command::WRITE, 1, 0, 512), vec![!before[0]; 512]].concat();
    let (flush, large) =
        (header(command::FLUSH, 2, 0, 0), header(command::WRITE, 3, 4096, 1 << 20));
    client.write_all(&[write, flush, large].concat()).unwrap();
    assert_eq!(simple_reply(&mut client), (0, 2));
    drop(client);
    let none = LimitChange { bytes_per_second: Some(None), ..LimitChange::default() };
    admin::limit_volume(&rig.admin, "floe", &none).unwrap();
    rig.wait_for(|status| status.volumes[0].connections == 0);
    let mut after = vec![0; 1 << 20];
    rig.client().read(0, &mut after).unwrap();
    assert!(after == before);
    rig.end();
}

#[test]
fn what_waits_delays_neither_a_removal_nor_the_end() {
    for threads in 1..=2 {
        let rig = start(threads, hardly_any());
        let host = host(&rig);
        let mut queue = host.io_queue(1, 128).unwrap();
        for at in 0..50 {
            let range = Range { namespace: 1, first: at, blocks: 1 };
            queue.connection().submit(range.read(512)).unwrap();
        }
        let mut client = rig.client();
        for at in 0..200 {
            client.submit_write(at * 4096, &[1; 512], false).unwrap();
        }
        let begun = Instant::now();
        if threads == 2 {
            admin::remove_volume(&rig.admin, "floe", true).unwrap();
            let mut neighbour = rig.client_of("free").unwrap();
            neighbour.write(0, &[1; 4096], true).unwrap();
        }
        assert_eq!(rig.end().len(), VOLUME);
        assert!(begun.elapsed() < PATIENCE, "{threads} threads");
    }
}

#[test]
fn a_volume_that_is_added_is_limited_from_its_first_request_on() {
    let rig = start(2, RequestLimit::default());
    let bytes_per_second = Some(Some(4096));
    let volume = NewVolume {
        name: "late".into(),
        backing: "memory:4MiB".into(),
        read_only: false,
        holds_cache: false,
        nvme_block_bytes: None,
        description: String::new(),
        limit: LimitChange { bytes_per_second, ..LimitChange::default() },
        share: ShareChange::default(),
    };
    admin::add_volume(&rig.admin, &volume).unwrap();
    let mut client = rig.client_of("late").unwrap();
    client.read(0, &mut vec![0; 1 << 20]).unwrap();
    let read = client.submit_read(0, 512).unwrap(); // it waits for four minutes
    let flush = client.submit_flush().unwrap();
    assert_eq!(client.next_reply().unwrap().unwrap().cookie, flush);
    let none = LimitChange { bytes_per_second: Some(None), ..LimitChange::default() };
    admin::limit_volume(&rig.admin, "late", &none).unwrap();
    assert_eq!(client.next_reply().unwrap().unwrap().cookie, read);
    rig.end();
}

#[test]
fn what_cannot_be_a_limit_changes_nothing() {
    let rig = start(1, hardly_any());
    let change = |requests, bytes, limit_burst_ms| {
        let change = LimitChange {
            requests_per_second: requests,
            bytes_per_second: bytes,
            limit_burst_ms,
            ..LimitChange::default()
        };
        admin::limit_volume(&rig.admin, "floe", &change)
    };
    refused(change(Some(Some(0)), None, None), "requests-per-second = 0");
    refused(change(None, Some(Some(10)), None), "bytes-per-second = 10 is less than 4KiB");
    refused(change(None, None, Some(0)), "limit-burst");
    refused(change(Some(None), None, Some(5)), "limit-burst needs");
    refused(admin::limit_volume(&rig.admin, "nothing", &LimitChange::default()), "no volume");
    assert_eq!(limited(&rig).limit, hardly_any());
    let both = change(None, Some(Some(1 << 20)), Some(250)).unwrap().limit;
    let expected = RequestLimit {
        requests_per_second: Some(1),
        bytes_per_second: Some(1 << 20),
        limit_burst_ms: 250,
        ..RequestLimit::NONE
    };
    assert_eq!(both, expected);
    assert!(Duration::from_millis(both.limit_burst_ms) < PATIENCE);
    rig.end();
}

/// Has each client at most this many bytes per second: what comes behind a MiB waits for four
/// minutes.
fn hardly_any_each() -> RequestLimit {
    RequestLimit { client_bytes_per_second: Some(4096), limit_burst_ms: 1000, ..RequestLimit::NONE }
}

fn lift_each(rig: &Rig) {
    let none = LimitChange { client_bytes_per_second: Some(None), ..LimitChange::default() };
    assert!(!admin::limit_volume(&rig.admin, "floe", &none).unwrap().limit.is_any());
}

/// A host with two queues and a name of its own.
pub(super) fn named_host(rig: &Rig, name: &str) -> Controller {
    let address = rig.nvme[0].strip_prefix("nvme-tcp://").unwrap();
    let address = address.split_once('/').map_or(address, |(address, _)| address);
    let host = format!("nqn.2026-11.io.example:{name}");
    let access = Access { timeout: Some(PATIENCE), host, ..Access::new(address, NQN) };
    let mut host = Controller::connect(&access).unwrap();
    host.set_queues(2).unwrap();
    host
}

#[test]
fn a_client_that_has_used_up_its_limit_waits_on_all_connections_and_others_do_not() {
    // Submits a read that waits, and checks that a flush overtakes it.
    let waiting_read = |client: &mut Client| {
        let read = client.submit_read(0, 512).unwrap();
        let flush = client.submit_flush().unwrap();
        assert_eq!(client.next_reply().unwrap().unwrap().cookie, flush);
        read
    };
    for threads in 1..=2 {
        let rig = start(threads, hardly_any_each());
        // Clients on the Unix socket are one client, and those on TCP from here another.
        let [mut unix, mut tcp, mut second, mut third] = [0, 1, 1, 1].map(|at| rig.client_on(at));
        tcp.read(0, &mut vec![0; 1 << 20]).unwrap();
        let reads = [waiting_read(&mut second), waiting_read(&mut third)];
        unix.read(0, &mut [0; 4096]).unwrap();

        let hosts = ["a", "b"].map(|name| named_host(&rig, name));
        let range = |first| Range { namespace: 1, first, blocks: 1 };
        let mut queues = [0, 1].map(|at: usize| {
            let [one, two] = [1, 2].map(|id| hosts[at].io_queue(id, 16).unwrap());
            (one, two)
        });
        for number in 0..9 {
            let read = Range { namespace: 1, first: number, blocks: 2048 }.read(1 << 20);
            queues[0].0.connection().submit(read).unwrap();
        }
        queues[0].0.connection().next_completion().unwrap();
        let read = queues[0].1.connection().submit(range(0).read(512)).unwrap();
        queues[0].1.connection().submit(range(0).flush()).unwrap();
        assert_ne!(queues[0].1.connection().next_completion().unwrap().id, read);
        for queue in [&mut queues[1].0, &mut queues[1].1] {
            queue.write(range(0), vec![9; 512], false).unwrap();
            assert_eq!(queue.read(range(0), 512).unwrap(), [9; 512]);
        }

        // A client that comes back has not more than before, nor has any after another change.
        drop(second);
        let mut second = rig.client_on(1);
        let reads = [waiting_read(&mut second), reads[1]];
        for connections in [Some(100), None] {
            let change = LimitChange { connections: Some(connections), ..LimitChange::default() };
            admin::limit_volume(&rig.admin, "floe", &change).unwrap();
            for client in [&mut second, &mut third] {
                let flush = client.submit_flush().unwrap();
                assert_eq!(client.next_reply().unwrap().unwrap().cookie, flush);
            }
        }
        lift_each(&rig);
        for (client, read) in [second, third].iter_mut().zip(reads) {
            assert_eq!(client.next_reply().unwrap().unwrap().cookie, read);
        }
        assert_eq!(queues[0].1.connection().next_completion().unwrap().id, read);
        (0..8).for_each(|_| drop(queues[0].0.connection().next_completion().unwrap()));
        rig.end();
    }
}

#[test]
fn the_limit_of_the_volume_and_that_of_each_client_hold_together() {
    let limit = RequestLimit {
        requests_per_second: Some(80),
        client_requests_per_second: Some(30),
        limit_burst_ms: 50,
        ..RequestLimit::NONE
    };
    for threads in 1..=2 {
        let rig = start(threads, limit.clone());
        let begun = Instant::now();
        let hosts = ["a", "b"].map(|name| named_host(&rig, name));
        let counts: Vec<(f64, f64)> = std::thread::scope(|scope| {
            // One client has four connections, and asks for four times as much as the others.
            let nbd = [(0, 4), (1, 1)].map(|(which, connections)| {
                let mut clients: Vec<_> = (0..connections).map(|_| rig.client_on(which)).collect();
                scope.spawn(move || {
                    for client in &mut clients {
                        for at in 0..30 {
                            client.submit_read(at * 4096, 4096).unwrap();
                        }
                    }
                    let answered: u64 = clients.iter_mut().map(replies).sum();
                    (answered as f64, begun.elapsed().as_secs_f64())
                })
            });
            let hosts = hosts.each_ref().map(|host| {
                let mut queues = [1, 2].map(|id| host.io_queue(id, 64).unwrap());
                scope.spawn(move || {
                    for at in 0..15 {
                        for queue in &mut queues {
                            let read = Range { namespace: 1, first: at, blocks: 1 }.read(512);
                            queue.connection().submit(read).unwrap();
                        }
                    }
                    for queue in &mut queues {
                        (0..15).for_each(|_| drop(queue.connection().next_completion().unwrap()));
                    }
                    (30.0, begun.elapsed().as_secs_f64())
                })
            });
            nbd.into_iter().chain(hosts).map(|it| it.join().unwrap()).collect()
        });
        // The burst, one of each late thread, and one of each connection that waits for the volume.
        let slack = 1.5 + 2.0 + 4.0;
        for (count, time) in &counts {
            assert!(*count <= 30.0 * time + slack, "{count} in {time} s, {threads} threads");
        }
        // The others end first, and have shared the volume's limit with the greedy one.
        let others = counts[1..].iter().map(|(_, time)| *time).fold(0.0, f64::max);
        assert!(90.0 <= 80.0 * others + 4.0 + 2.0, "{others} s, {threads} threads");
        let time = counts.iter().map(|(_, time)| *time).fold(0.0, f64::max);
        let answered: f64 = counts.iter().map(|(count, _)| count).sum();
        assert_eq!(answered, 210.0);
        assert!(answered <= 80.0 * time + 4.0 + 2.0, "{time} s, {threads} threads");
        let status = limited(&rig);
        assert!(status.delayed_requests > 0 && status.limit == limit, "{status:?}");
        rig.end();
    }
}
