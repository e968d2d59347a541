//! Volumes whose connections are limited, beside one without limits.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use floe_nbd::wire::command;
use floe_nvme::auth::Secret;
use floe_nvme::wire::Status;
use floe_server::admin::LimitChange;
use floe_server::admin::client as admin;
use floe_server::nbd_client::Client;
use floe_server::status::{ByProtocol, VolumeStatus};
use floe_server::{NvmeAccess, RequestLimit};
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::nvme_host::{Access, Authentication, HostError, Range};
use floe_testkit::{PATIENCE, Random};

use super::limits::{NQN, limited, setup, start};
use crate::rig::{Rig, drained, header, simple_reply};

/// A host with a name of its own at an address, or the reason why it is refused.
pub(super) fn connect_host(address: &str, name: &str) -> Result<Controller, HostError> {
    let host = format!("nqn.2026-11.io.example:{name}");
    let access =
        Access { timeout: Some(PATIENCE), host, ..Access::new(host_and_port(address), NQN) };
    Controller::connect(&access)
}

/// The part of an address for NVMe hosts that they connect to.
fn host_and_port(address: &str) -> &str {
    let address = address.strip_prefix("nvme-tcp://").unwrap();
    address.split_once('/').map_or(address, |(address, _)| address)
}

fn try_host(rig: &Rig, name: &str) -> Result<Controller, HostError> {
    connect_host(&rig.nvme[0], name)
}

fn limit_connections(rig: &Rig, most: Option<u64>) -> VolumeStatus {
    let change = LimitChange { connections: Some(most), ..LimitChange::default() };
    admin::limit_volume(&rig.admin, "floe", &change).unwrap()
}

pub(super) fn is_busy(result: Result<Controller, HostError>) -> bool {
    match result {
        Err(HostError::Command(error)) => error.status.0 << 1 == Status::CONNECT_BUSY.to_field(),
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

#[test]
fn a_client_beyond_the_limit_of_connections_is_refused_with_the_reason() {
    for threads in 1..=2 {
        let rig = start(threads, RequestLimit { connections: Some(1), ..RequestLimit::NONE });
        let (mut first, mut neighbour) = (rig.client(), rig.client_of("free").unwrap());
        let mut host = try_host(&rig, "a").unwrap();
        let error = rig.client_of("floe").unwrap_err().to_string();
        assert!(error.contains("as many connections as its limit allows"), "{error}");
        assert!(is_busy(try_host(&rig, "b")), "a host uses all volumes");
        let status = limited(&rig);
        assert_eq!(status.refused_connections, 2);
        assert_eq!(status.counted_connections, ByProtocol { nbd: 1, nvme_tcp: 1 });
        // Other volumes have room, and those that are connected go on.
        first.write(0, &[1; 4096], false).unwrap();
        neighbour.write(0, &[1; 4096], false).unwrap();
        rig.client_of("free").unwrap().write(0, &[2; 4096], false).unwrap();
        host.set_queues(2).unwrap();
        let mut queue = host.io_queue(1, 16).unwrap();
        let range = Range { namespace: 1, first: 0, blocks: 1 };
        assert_eq!(queue.read(range, 512).unwrap(), [1; 512]);
        assert!(host.io_queue(2, 16).is_ok(), "queues are no hosts");
        // A client that leaves makes room for the next one.
        drop((queue, host));
        rig.wait_for(|status| status.connections == 2);
        assert!(!is_busy(try_host(&rig, "b")) && rig.client_of("floe").is_err());
        drop(first);
        rig.wait_for(|status| status.connections == 1);
        assert!(rig.client_of("floe").is_ok());
        rig.end();
    }
}

#[test]
fn a_lower_limit_of_connections_disconnects_nobody() {
    let rig = start(2, RequestLimit::NONE);
    let mut clients: Vec<Client> = (0..3).map(|number| rig.client_on(number)).collect();
    let hosts = ["a", "b"].map(|name| try_host(&rig, name).unwrap());
    let lowered = limit_connections(&rig, Some(1));
    assert_eq!((lowered.limit.connections, lowered.connections), (Some(1), 3));
    assert_eq!(lowered.counted_connections, ByProtocol { nbd: 3, nvme_tcp: 2 });
    for client in &mut clients {
        client.write(0, &[1; 4096], false).unwrap();
    }
    assert!(rig.client_of("floe").is_err() && is_busy(try_host(&rig, "c")));
    for left in (0..3).rev() {
        drop(clients.pop());
        rig.wait_for(|status| status.volumes[0].connections == left);
        assert_eq!(rig.client_of("floe").is_ok(), left == 0, "{left} are connected");
        rig.wait_for(|status| status.volumes[0].connections == left);
    }
    limit_connections(&rig, None);
    clients.extend((0..3).map(|number| rig.client_on(number)));
    assert!(try_host(&rig, "c").is_ok());
    assert_eq!(limited(&rig).refused_connections, 4);
    drop(hosts);
    rig.end();
}

#[test]
fn an_old_client_beyond_the_limit_is_disconnected_and_a_removed_volume_limits_no_host() {
    let rig = start(1, RequestLimit { connections: Some(1), ..RequestLimit::NONE });
    let mut client = rig.raw();
    client.write_all(&header(command::READ, 1, 0, 512)).unwrap();
    assert_eq!(simple_reply(&mut client), (0, 1));
    client.read_exact(&mut [0; 512]).unwrap();
    let mut second = rig.stranger();
    second.read_exact(&mut [0; 18]).unwrap();
    second.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04floe").unwrap();
    assert_eq!(drained(&mut second), b"", "the server can only hang up");
    let host = try_host(&rig, "a").unwrap();
    assert!(is_busy(try_host(&rig, "b")));
    admin::remove_volume(&rig.admin, "floe", true).unwrap();
    assert!(try_host(&rig, "b").is_ok());
    drop(host);
    rig.end();
}

/// Random bytes for the host's exponents, which need not be secret here.
fn random(bytes: &mut [u8]) -> bool {
    let mut random = Random(7);
    bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    true
}

#[test]
fn hosts_that_prove_their_names_take_a_place_after_that() {
    let secret = Secret::new(&[7; 32], None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    let name = |number: u8| format!("nqn.2026-11.io.example:{number}");
    let line = |number| format!("{} {}\n", name(number), secret.to_text());
    fs::write(&file, (0..3).map(line).collect::<String>()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut setup = setup(1, RequestLimit { connections: Some(1), ..RequestLimit::NONE });
    setup.config.nvme.access = NvmeAccess::new(Vec::new(), Some(&file)).unwrap();
    let rig = setup.start().unwrap();
    let connect = |number, secret: &Secret| {
        let authentication = Some(Authentication::new(secret.clone(), None, random));
        let host = name(number);
        let timeout = Some(PATIENCE);
        let access = Access {
            timeout,
            host,
            authentication,
            ..Access::new(host_and_port(&rig.nvme[0]), NQN)
        };
        Controller::connect(&access)
    };
    let wrong = Secret::new(&[8; 32], None).unwrap();
    for number in 0..3 {
        assert!(matches!(connect(number, &wrong), Err(HostError::NotAuthenticated(_))));
    }
    let first = connect(0, &secret).unwrap();
    assert!(is_busy(connect(1, &secret)));
    assert!(rig.client_of("floe").is_ok(), "NBD clients are counted apart");
    assert_eq!(limited(&rig).refused_connections, 0, "it has not proved its name");
    drop(first);
    rig.wait_for(|status| status.connections == 0);
    connect(2, &secret).unwrap();
    rig.end();
}
