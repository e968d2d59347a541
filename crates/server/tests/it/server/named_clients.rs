//! Clients that the limits of a volume name, on one thread and on several.

use std::collections::BTreeMap;
use std::time::Instant;

use floe_server::admin::LimitChange;
use floe_server::admin::client as admin;
use floe_server::admin::client::AdminError;
use floe_server::nbd_client::{Client, Cookie};
use floe_server::status::VolumeStatus;
use floe_server::{ClientLimit, ClientName, RequestLimit};
use floe_testkit::nvme_host::Range;
use floe_testkit::nvme_host::tcp::IoQueue;

use super::limits::{limited, named_host, replies, start};
use super::volumes::refused;
use crate::rig::Rig;

/// So few that what comes behind a MiB waits for four minutes.
const HARDLY_ANY: ClientLimit =
    ClientLimit { requests_per_second: None, bytes_per_second: Some(4096), weight: 100 };

fn name(text: &str) -> ClientName {
    text.parse().unwrap()
}

fn weight(weight: u64) -> Option<ClientLimit> {
    Some(ClientLimit { weight, ..ClientLimit::default() })
}

fn with(clients: &[(&str, Option<ClientLimit>)]) -> LimitChange {
    let clients = clients.iter().map(|(text, limit)| (name(text), *limit)).collect();
    LimitChange { clients, ..LimitChange::default() }
}

fn change(rig: &Rig, clients: &[(&str, Option<ClientLimit>)]) -> Result<VolumeStatus, AdminError> {
    admin::limit_volume(&rig.admin, "floe", &with(clients))
}

fn range(first: u64) -> Range {
    Range { namespace: 1, first, blocks: 1 }
}

/// Reads a MiB, which takes a whole burst, and submits a read that waits behind it on another
/// connection. Checks that a flush overtakes it.
fn use_up([first, second]: [&mut Client; 2]) -> Cookie {
    first.read(0, &mut vec![0; 1 << 20]).unwrap();
    waiting_read(second)
}

fn waiting_read(client: &mut Client) -> Cookie {
    let read = client.submit_read(0, 512).unwrap();
    let flush = client.submit_flush().unwrap();
    assert_eq!(client.next_reply().unwrap().unwrap().cookie, flush);
    read
}

/// Does as [`use_up`] does, on two queues of a host.
fn use_up_host(queues: &mut [IoQueue; 2]) -> u16 {
    let read = Range { namespace: 1, first: 0, blocks: 2048 }.read(1 << 20);
    queues[0].connection().submit(read).unwrap();
    queues[0].connection().next_completion().unwrap();
    let read = queues[1].connection().submit(range(0).read(512)).unwrap();
    queues[1].connection().submit(range(0).flush()).unwrap();
    assert_ne!(queues[1].connection().next_completion().unwrap().id, read);
    read
}

#[test]
fn a_name_has_one_limit_for_all_its_connections_and_other_clients_go_on() {
    let host = "nqn.2026-11.io.example:a";
    for threads in 1..=2 {
        let rig = start(threads, RequestLimit::NONE);
        let clients = [(host, Some(HARDLY_ANY)), ("loopback", Some(HARDLY_ANY))];
        let shown = change(&rig, &clients).unwrap().limit;
        assert_eq!(shown.clients.iter().count(), 2, "{shown:?}");
        let hosts = ["a", "b"].map(|name| named_host(&rig, name));
        let mut queues =
            hosts.each_ref().map(|host| [1, 2].map(|id| host.io_queue(id, 16).unwrap()));
        let of_host = use_up_host(&mut queues[0]);
        let [mut unix, mut tcp, mut second] = [0, 1, 1].map(|at| rig.client_on(at));
        use_up([&mut tcp, &mut second]);

        // Other clients have no limit, and one that comes back has not more than before.
        for queue in &mut queues[1] {
            (0..4).for_each(|_| drop(queue.read(range(0), 512).unwrap()));
        }
        (0..4).for_each(|_| unix.read(0, &mut vec![0; 1 << 20]).unwrap());
        drop(second);
        let mut second = rig.client_on(1);
        waiting_read(&mut second);

        // A name of others takes nothing from those that have their own.
        change(&rig, &[("others", Some(HARDLY_ANY))]).unwrap();
        unix.read(0, &mut vec![0; 1 << 20]).unwrap();
        let of_unix = waiting_read(&mut unix);

        // Requests that wait go on without the name.
        let none = change(&rig, &[(host, None), ("loopback", None), ("others", None)]).unwrap();
        assert_eq!(none.limit, RequestLimit::NONE);
        assert_eq!(queues[0][1].connection().next_completion().unwrap().id, of_host);
        assert_eq!(unix.next_reply().unwrap().unwrap().cookie, of_unix);
        second.next_reply().unwrap().unwrap().outcome.unwrap();
        assert!(limited(&rig).delayed_requests >= 3);
        rig.end();
    }
}

#[test]
fn names_have_limits_instead_of_that_of_each_client() {
    let each = RequestLimit { client_bytes_per_second: Some(4096), ..RequestLimit::NONE };
    let rig = start(2, each);
    let user = ClientName::User(rustix::process::getuid().as_raw()).to_string();
    change(&rig, &[(&user, weight(100))]).unwrap();
    let [mut unix, mut tcp, mut second] = [0, 1, 1].map(|at| rig.client_on(at));
    let read = use_up([&mut tcp, &mut second]);
    (0..4).for_each(|_| unix.read(0, &mut vec![0; 1 << 20]).unwrap());
    // A name that is added while its client waits lets it go on, and so does a higher limit.
    let fast = ClientLimit { bytes_per_second: Some(1 << 40), ..HARDLY_ANY };
    change(&rig, &[("loopback", Some(fast))]).unwrap();
    assert_eq!(second.next_reply().unwrap().unwrap().cookie, read);
    let slow = ClientLimit { bytes_per_second: Some(4096), ..HARDLY_ANY };
    change(&rig, &[("loopback", Some(slow))]).unwrap();
    let read = use_up([&mut tcp, &mut second]);
    change(&rig, &[("loopback", Some(fast))]).unwrap();
    assert_eq!(second.next_reply().unwrap().unwrap().cookie, read);
    rig.end();
}

#[test]
fn requests_bytes_and_waits_are_counted_by_name() {
    for threads in 1..=2 {
        let rig = start(threads, RequestLimit::NONE);
        let slow = ClientLimit { requests_per_second: Some(1), ..ClientLimit::default() };
        let names = [("loopback", Some(slow)), ("others", weight(5)), ("10.0.0.0/8", weight(7))];
        change(&rig, &names).unwrap();
        let [mut unix, mut tcp] = [0, 1].map(|at| rig.client_on(at));
        (0..4).for_each(|_| unix.read(0, &mut [0; 4096]).unwrap());
        unix.flush().unwrap();
        for _ in 0..3 {
            tcp.submit_read(0, 512).unwrap();
        }
        (0..3).for_each(|_| drop(tcp.next_reply().unwrap().unwrap()));

        let counted = limited(&rig).client_use;
        let of = |text: &str| counted[&name(text)];
        let [others, loopback, absent] = ["others", "loopback", "10.0.0.0/8"].map(of);
        assert_eq!(counted.len(), 3);
        assert_eq!((others.requests, others.bytes, others.delayed_requests), (4, 16384, 0));
        assert_eq!((loopback.requests, loopback.bytes, absent.requests), (3, 1536, 0));
        assert!((1..=2).contains(&loopback.delayed_requests), "{loopback:?}");
        assert!(loopback.delayed_seconds > 0.0, "{loopback:?}");

        // A name that comes back begins anew; others go on.
        change(&rig, &[("loopback", None)]).unwrap();
        let left = change(&rig, &[("loopback", Some(slow))]).unwrap().client_use;
        assert_eq!((left[&name("loopback")].requests, left[&name("others")].requests), (0, 4));
        rig.end();
    }
}

#[test]
fn clients_that_share_a_limit_by_weight_do_not_exceed_it_and_none_starves() {
    let limit =
        RequestLimit { requests_per_second: Some(300), limit_burst_ms: 50, ..RequestLimit::NONE };
    for threads in 1..=3 {
        let rig = start(threads, limit.clone());
        let host = "nqn.2026-11.io.example:a";
        change(&rig, &[(host, weight(1000)), ("loopback", weight(1))]).unwrap();
        let begun = Instant::now();
        let hosts = ["a", "b"].map(|name| named_host(&rig, name));
        let answered: u64 = std::thread::scope(|scope| {
            let nbd = [0, 1, 1, 1].map(|which| {
                let mut client = rig.client_on(which);
                scope.spawn(move || {
                    for at in 0..20 {
                        client.submit_read(at * 4096, 4096).unwrap();
                    }
                    replies(&mut client)
                })
            });
            let hosts = hosts.each_ref().map(|host| {
                let mut queues = [1, 2].map(|id| host.io_queue(id, 64).unwrap());
                scope.spawn(move || {
                    for queue in &mut queues {
                        for at in 0..20 {
                            queue.connection().submit(range(at).read(512)).unwrap();
                        }
                    }
                    for queue in &mut queues {
                        (0..20).for_each(|_| drop(queue.connection().next_completion().unwrap()));
                    }
                    40
                })
            });
            // Weights, names and the limit change while requests wait.
            change(&rig, &[("loopback", weight(1000)), (host, weight(1))]).unwrap();
            change(&rig, &[("others", weight(300))]).unwrap();
            change(&rig, &[(host, None)]).unwrap();
            let answered = nbd.into_iter().chain(hosts).map(|it| it.join().unwrap());
            answered.sum()
        });
        let time = begun.elapsed().as_secs_f64();
        assert_eq!(answered, 160);
        // A burst, and one of each late thread, after each of the two changes of names as well.
        let most = 300.0 * time + 3.0 * (15.0 + threads as f64);
        assert!(answered as f64 <= most, "{time} s, {threads} threads");
        let status = limited(&rig);
        assert!(status.delayed_requests > 0, "{status:?}");
        rig.end();
    }
}

#[test]
fn a_volume_that_is_removed_and_a_server_that_ends_wait_for_no_client() {
    for threads in 1..=2 {
        let rig = start(threads, RequestLimit::NONE);
        let limit = LimitChange {
            requests_per_second: Some(Some(1)),
            limit_burst_ms: Some(1000),
            ..with(&[("loopback", weight(1))])
        };
        for volume in ["floe", "free"] {
            admin::limit_volume(&rig.admin, volume, &limit).unwrap();
        }
        let asking = |mut client: Client| {
            for at in 0..10 {
                client.submit_read(at * 512, 512).unwrap();
            }
            client
        };
        let mut clients = [0, 1, 1].map(|at| asking(rig.client_on(at)));
        let of_free = [(); 2].map(|()| asking(rig.client_of("free").unwrap()));
        admin::remove_volume(&rig.admin, "free", true).unwrap();
        drop(of_free);
        // One leaves while its requests wait, and others come.
        clients[2] = asking(rig.client_on(1));
        rig.end();
    }
}

#[test]
fn wrong_clients_change_nothing() {
    let each = RequestLimit { client_requests_per_second: Some(50), ..RequestLimit::NONE };
    let rig = start(1, each.clone());
    for wrong in [0, 1001] {
        let problem = format!("10.0.0.5: weight = {wrong} is not between 1 and 1000");
        refused(change(&rig, &[("10.0.0.5", weight(wrong))]), &problem);
    }
    let slow = ClientLimit { bytes_per_second: Some(1), ..ClientLimit::default() };
    refused(change(&rig, &[("loopback", Some(slow))]), "loopback: bytes-per-second = 1 is less");
    refused(change(&rig, &[("others", Some(HARDLY_ANY))]), "leave out others");
    let many = (0..257).map(|user| (ClientName::User(user), weight(5)));
    let many = LimitChange { clients: many.collect::<BTreeMap<_, _>>(), ..LimitChange::default() };
    refused(admin::limit_volume(&rig.admin, "floe", &many), "at most 256");
    assert_eq!(limited(&rig).limit, each);
    rig.end();
}
