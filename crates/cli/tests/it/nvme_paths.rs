//! Several ways to one server: its addresses, and the access to volumes by each.

use std::collections::BTreeSet;

use floe_server::nbd_client::Client;
use floe_testkit::PATIENCE;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, ControllerData, DiscoveryEntry, HostError, Range};

use crate::common::{Server, Volume, floe_ok};

const BLOCK: Range = Range { namespace: 1, first: 0, blocks: 8 };

/// A server with a volume and two addresses.
fn serve() -> (Volume, Server) {
    let address = ["--listen", "nvme-tcp://127.0.0.1:0"];
    let options = [&["--volume", "first"][..], &address, &address].concat();
    let volume = Volume::new(&vec![0; 1 << 20], "back").on("2").with(&options);
    let server = volume.serve();
    (volume, server)
}

fn access(server: &Server) -> Access {
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    let (timeout, keep_alive_ms) = (Some(PATIENCE), 60_000);
    Access { timeout, keep_alive_ms, ..Access::new(address, name) }
}

/// A controller at each address that the server tells of.
fn controllers(server: &Server) -> [Controller; 2] {
    let access = access(server);
    let mut discovery = Controller::connect_to_discovery(&access).expect("a controller");
    let entries = discovery.discover().expect("a log");
    let controller = |entry: &DiscoveryEntry| {
        assert_eq!(entry.subsystem, access.subsystem);
        let address = format!("{}:{}", entry.address, entry.service);
        Controller::connect(&Access { address, ..access.clone() }).expect("a controller")
    };
    let [one, two] = &entries[..] else { panic!("{entries:?}") };
    assert!(one.service != two.service && one.port_id != two.port_id, "{entries:?}");
    [controller(one), controller(two)]
}

fn set(server: &Server, state: &str) {
    let said = floe_ok(&["volume", "ana", "first", state, "--admin", &server.admin]);
    assert_eq!(said, format!("first is {state} for NVMe hosts\n"));
}

/// The state of the only group in the log of access.
fn state(controller: &mut Controller) -> u8 {
    let log = controller.log_page(0x0c, 0, 52).expect("a log");
    assert_eq!((log[8], log[16], log[48]), (1, 1, 1), "one group, of the first namespace");
    log[32]
}

#[test]
fn a_discovery_connection_that_stays_is_told_of_volumes_that_come_and_go() {
    let (_volume, server) = serve();
    let mut discovery = Controller::connect_to_discovery(&access(&server)).expect("a controller");
    discovery.watch(ControllerData::DISCOVERY_NOTICES).expect("it has such events");
    for change in [&["add", "second", "memory:4MiB"][..], &["remove", "second"]] {
        let generation = discovery.log_page(0x70, 0, 8).expect("a log");
        floe_ok(&[&["volume"][..], change, &["--admin", &server.admin]].concat());
        assert_eq!(discovery.next_event().expect("an event"), 0x0070_f002, "{change:?}");
        assert_ne!(discovery.log_page(0x70, 0, 8).expect("a log"), generation);
        discovery.request_event().expect("it waits again");
        discovery.keep_alive().expect("it stays");
    }
    server.end();
}

#[test]
fn two_addresses_are_two_paths_to_the_same_namespace() {
    let (_volume, server) = serve();
    let mut controllers = controllers(&server);
    let ids: BTreeSet<u16> = controllers.iter().map(Controller::id).collect();
    assert_eq!(ids.len(), 2, "each path has a controller of its own");
    let identifiers = controllers.each_mut().map(|it| it.identifiers(1).expect("identifiers"));
    assert_eq!(identifiers[0], identifiers[1]);
    let mut queues = controllers.each_mut().map(|controller| {
        controller.set_queues(1).expect("queues");
        controller.io_queue(1, 16).expect("an I/O queue")
    });
    queues[0].write(BLOCK, vec![7; 4096], false).expect("a write");
    assert_eq!(queues[1].read(BLOCK, 4096).expect("a read"), [7; 4096]);

    // Hosts are told on both paths that the volume is to be used elsewhere.
    for controller in &mut controllers {
        controller.watch(ControllerData::ANA_NOTICES).expect("it has such events");
        assert_eq!(state(controller), 0x01);
    }
    for (name, number, refused) in [
        ("inaccessible", 0x03, Some(0x02)),
        ("change", 0x0f, Some(0x03)),
        ("optimized", 0x01, None),
    ] {
        set(&server, name);
        for (controller, queue) in controllers.iter_mut().zip(&mut queues) {
            assert_eq!(controller.next_event().expect("an event"), 0x000c_0302);
            assert_eq!(state(controller), number, "{name}");
            controller.request_event().expect("it waits again");
            let result = queue.read(BLOCK, 4096);
            match (refused, result) {
                (None, Ok(data)) => assert_eq!(data, [7; 4096]),
                (Some(code), Err(HostError::Command(error))) => {
                    let status = error.status;
                    assert_eq!((status.kind(), status.code()), (3, code));
                    assert!(!status.do_not_retry(), "another path may take it");
                }
                (_, other) => panic!("{name}: {other:?}"),
            }
        }
        let mut client = Client::connect(&server.unix.parse().expect("a URI")).expect("a client");
        let mut data = vec![0; 4096];
        client.read(0, &mut data).expect("NBD has no such states");
        assert_eq!(data, [7; 4096]);
    }
    server.end();
}
