//! A standby that waits to serve: it answers admin clients, and sends data clients away.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use floe_block::{BlockCache, Config, WriteMode};
use floe_device::MemoryDevice;
use floe_nvme::target::io::BlockSize;
use floe_server::admin::AdminAddress;
use floe_server::pair::Turn;
use floe_server::persistent::Parts;
use floe_server::{Away, Bound, RequestLimit, Tier};
use floe_testkit::PATIENCE;

use super::connections::{connect_host, is_busy};
use super::limits::NQN;
use crate::rig::{Setup, Wrapped};

fn connect(socket: &Path) -> UnixStream {
    let client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The reply to the rest of a request.
fn reply(mut client: UnixStream, rest: &str) -> String {
    client.write_all(rest.as_bytes()).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

fn ask(admin: &Path, request: &str) -> String {
    reply(connect(admin), &format!("{request} HTTP/1.1\r\n\r\n"))
}

#[test]
fn a_standby_answers_admin_clients_until_it_serves_and_sends_data_clients_away() {
    let setup = Setup::new(WriteMode::Through);
    let AdminAddress::Unix(admin) = setup.config.admin.listen[0].clone() else { unreachable!() };
    let (order, signal) = UnixStream::pair().unwrap();
    let signal = signal.into();
    let turn = Arc::new(Turn::default());
    let bound = Bound::bind(setup.config.clone()).unwrap();
    let desk = bound.attend(&turn, &signal).unwrap();

    let mut client = connect(&admin.with_file_name("socket"));
    let received = client.read(&mut [0; 8]);
    assert!(received.as_ref().map_or(true, |bytes| *bytes == 0), "{received:?}");
    assert!(ask(&admin, "GET /healthz").ends_with("\r\n\r\nstandby\n"));
    assert!(ask(&admin, "GET /status").contains(r#""role":"standby""#));
    for request in ["GET /volumes", "POST /takeover"] {
        let refused = ask(&admin, request);
        assert!(refused.starts_with("HTTP/1.1 409 "), "{refused}");
    }
    let mut slow = connect(&admin);
    slow.write_all(b"GET /healthz HTT").unwrap();
    assert!(!desk.has_ended(std::time::Duration::ZERO));
    assert!(ask(&admin, "POST /stop").ends_with("\r\n\r\nstopped\n"));
    assert!(desk.has_ended(PATIENCE));

    // It accepts no more, and answers the one that it has accepted.
    drop(desk);
    let early = connect(&admin);
    assert!(reply(slow, "P/1.1\r\n\r\n").ends_with("\r\n\r\nstandby\n"));
    let desk = bound.attend(&turn, &signal).unwrap();
    assert!(reply(early, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(order);
    assert!(desk.has_ended(PATIENCE));
}

#[test]
fn a_standby_refuses_hosts_by_the_limits_of_its_volumes() {
    let mut setup = Setup::new(WriteMode::Pass);
    setup.config.listen.push("nvme-tcp://127.0.0.1:0".parse().unwrap());
    setup.config.nvme.nqn = Some(NQN.to_owned());
    let bound = Bound::bind(setup.config.clone()).unwrap();
    let away = Away::of(&bound).unwrap().expect("it has an address for hosts");
    let (order, signal) = UnixStream::pair().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let cache_bytes = 1 << 20;
        let config = Config {
            sizes: "4KiB".parse().unwrap(),
            mode: WriteMode::Pass,
            shards: Some(1),
            kept: false,
            cache_bytes,
            ..Config::default()
        };
        let cache = Parts::volatile(BlockCache::parts(config, 1).unwrap());
        let source = Wrapped::source(MemoryDevice::new(cache_bytes), |memory| Box::new(memory));
        let tier = Tier::new(String::new(), cache, source, cache_bytes);
        let limit = RequestLimit { connections: Some(1), ..RequestLimit::NONE };
        let volume = ("floe".to_owned(), 1 << 20, BlockSize::default(), limit);
        let server = away.serve(vec![tier], vec![volume], signal.into()).unwrap();
        tell.send(server.nvme_addresses().next().unwrap().to_string()).unwrap();
        server.run().map(drop)
    });
    let address = told.recv_timeout(PATIENCE).unwrap();
    let host = connect_host(&address, "a").unwrap();
    assert!(is_busy(connect_host(&address, "b")));
    drop(host);
    (&order).write_all(&[1]).unwrap();
    let _ = thread.join().unwrap(); // the device of a volume that is elsewhere fails each flush
}
