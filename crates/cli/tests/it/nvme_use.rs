//! Hosts that use volumes over NVMe, as the status and the administration of a server know them.

use floe_server::nbd_client::Client;
use floe_testkit::nvme_host::Access;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::{PATIENCE, wait_until};

use crate::common::{Server, Volume, floe, floe_ok};

fn serve() -> (Volume, Server) {
    let volume = Volume::new(&vec![0; 1 << 20], "back").on("2").with(&[
        "--volume",
        "first",
        "--listen",
        "nvme-tcp://127.0.0.1:0",
    ]);
    let server = volume.serve();
    floe_ok(&["volume", "add", "second", "memory:4MiB", "--admin", &server.admin]);
    (volume, server)
}

fn access(server: &Server) -> Access {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    Access { timeout: Some(PATIENCE), ..Access::new(address, name) }
}

/// The clients of both volumes, and all connections, by protocol: NBD and NVMe over TCP.
fn clients(server: &Server) -> [(u64, u64); 3] {
    let status = server.status();
    let [first, second] = &status.volumes[..] else { panic!("{:?}", status.volumes) };
    for volume in [first, second] {
        assert_eq!(volume.connections, volume.connections_by_protocol.total());
    }
    assert_eq!(status.connections, status.connections_by_protocol.total());
    [first.connections_by_protocol, second.connections_by_protocol, status.connections_by_protocol]
        .map(|it| (it.nbd, it.nvme_tcp))
}

#[track_caller]
fn stays(server: &Server, reason: &str) {
    let output = floe(&["volume", "remove", "second", "--admin", &server.admin]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success() && said.contains(reason), "{said}");
}

#[test]
fn a_host_counts_once_for_each_volume_as_long_as_it_has_io_queues() {
    let (_volume, server) = serve();
    let mut controller = Controller::connect(&access(&server)).expect("a controller");
    assert_eq!(clients(&server), [(0, 0), (0, 0), (0, 1)], "an admin queue uses no volume");
    controller.set_queues(3).expect("queues");
    let queues = [1, 2, 3].map(|id| controller.io_queue(id, 16).expect("an I/O queue"));
    assert_eq!(clients(&server), [(0, 1), (0, 1), (0, 4)]);
    let client = Client::connect(&server.unix.parse().expect("a URI")).expect("a client");
    let other = Controller::connect(&access(&server)).expect("a controller");
    assert_eq!(clients(&server), [(1, 1), (0, 1), (1, 5)]);
    let table = floe_ok(&["status", "--admin", &server.admin]);
    for text in [", 6 clients (1 nbd, 5 nvme-tcp), ", "  1 nbd, 1 nvme-tcp ", "  1 nvme-tcp "] {
        assert!(table.contains(text), "{text:?} is not in:\n{table}");
    }
    drop((queues, other));
    wait_until("the end of the queues", || clients(&server) == [(1, 0), (0, 0), (1, 1)]);
    drop((controller, client));
    wait_until("the end of all", || clients(&server) == [(0, 0), (0, 0), (0, 0)]);
    server.end();
}

#[test]
fn a_volume_that_a_host_uses_is_removed_by_force_only() {
    let (_volume, server) = serve();
    let mut controller = Controller::connect(&access(&server)).expect("a controller");
    controller.set_queues(1).expect("queues");
    let queue = controller.io_queue(1, 16).expect("an I/O queue");
    stays(&server, "1 client uses volume \"second\" (1 nvme-tcp); --force");
    assert_eq!(controller.namespaces().expect("namespaces"), [1, 2]);
    floe_ok(&["volume", "remove", "second", "--force", "--admin", &server.admin]);
    assert_eq!(controller.namespaces().expect("namespaces"), [1]);

    floe_ok(&["volume", "add", "second", "memory:4MiB", "--admin", &server.admin]);
    stays(&server, "1 client uses volume \"second\" (1 nvme-tcp); --force");
    drop(queue);
    wait_until("the end of the queue", || server.status().volumes[1].connections == 0);
    floe_ok(&["volume", "remove", "second", "--admin", &server.admin]);
    server.end();
}
