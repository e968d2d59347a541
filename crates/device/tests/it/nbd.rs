//! Exports of NBD servers: of others, and of a small one that fails as told.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use floe_device::{Action, Device, Operation, Pool, Ring, Role, Source, Spec};
use floe_testkit::{is_installed, wait_until};
use proptest::test_runner::{Config, TestRunner};

pub(crate) mod relay;

use self::relay::Relay;
use crate::common::{SECTOR, finish, read, run, slice, thread, write};
use crate::devices::{SIZE, check, steps};

const WRITER: Role = Role::Backing { read_only: false };
const READER: Role = Role::Backing { read_only: true };

/// A server on a Unix socket, ended with the test.
pub(crate) struct Server(Child);

impl Server {
    /// Starts it and waits until it listens, which is later than its socket is there; `None`, with
    /// a line saying so, when it is not installed.
    fn start(program: &str, arguments: &[&str], socket: &Path) -> Option<Self> {
        if !is_installed(&[program]) {
            return None;
        }
        let _ = std::fs::remove_file(socket);
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = Self(child.expect("it is installed"));
        wait_until(program, || UnixStream::connect(socket).is_ok());
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a disk, and the address of a server of it.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn text(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path("socket"))
    }

    /// Starts qemu-nbd on a disk of so many bytes, with more arguments.
    pub(crate) fn qemu(&self, size: u64, more: &[&str]) -> Option<Server> {
        let (socket, disk) = (self.path("socket"), self.path("disk"));
        let file = std::fs::File::options().create(true).append(true).open(&disk).unwrap();
        file.set_len(size).unwrap();
        let arguments = ["--persistent", "--format=raw", "--socket", &socket, &disk];
        let arguments = [&arguments[..], more].concat();
        Server::start("qemu-nbd", &arguments, Path::new(&socket))
    }

    /// Starts nbdkit with a plugin and its arguments.
    fn nbdkit(&self, plugin: &[&str]) -> Option<Server> {
        let socket = self.path("socket");
        let arguments = ["--foreground", "--unix", &socket];
        Server::start("nbdkit", &[&arguments[..], plugin].concat(), Path::new(&socket))
    }
}

fn prepare(text: &str, role: Role) -> Result<Source, String> {
    text.parse::<Spec>().expect(text).prepare(role).map_err(|error| error.to_string())
}

fn open(text: &str, ring: &Ring, pool: &Pool) -> Box<dyn Device> {
    prepare(text, WRITER).unwrap().open(ring, pool).unwrap()
}

/// Compares a device with an array of bytes.
fn conforms(text: &str) {
    let (ring, pool) = thread();
    let device = std::cell::RefCell::new(open(text, &ring, &pool));
    let mut runner = TestRunner::new(Config::with_cases(24));
    let result = runner.run(&steps(), |steps| {
        let mut device = device.borrow_mut();
        let all = Action::Zero { len: SIZE, may_unmap: true, fast: false };
        run(&ring, &mut **device, 0, all).unwrap();
        check(&ring, &pool, &mut **device, &steps);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn an_export_of_qemu_is_an_array_of_bytes() {
    let place = Place::new();
    let Some(_server) = place.qemu(SIZE, &[]) else { return };
    conforms(&place.text());
}

#[test]
fn an_export_of_nbdkit_is_an_array_of_bytes_whatever_it_can() {
    let size = SIZE.to_string();
    let filters: [&[&str]; 5] = [
        &["memory", &size],
        &["--no-sr", "memory", &size],
        &["--filter=nozero", "memory", &size],
        &["--filter=fua", "memory", &size],
        &[
            "--filter=blocksize-policy",
            "memory",
            &size,
            "blocksize-minimum=512",
            "blocksize-preferred=4096",
            "blocksize-maximum=8192",
            "blocksize-error-policy=error",
        ],
    ];
    for plugin in filters {
        let place = Place::new();
        let Some(_server) = place.nbdkit(plugin) else { return };
        conforms(&place.text());
    }
}

#[test]
fn an_export_over_tcp_is_an_array_of_bytes() {
    let place = Place::new();
    let Some(_server) = place.qemu(SIZE, &[]) else { return };
    let relay = Relay::start(place.path("socket"));
    conforms(&relay.text());
}

#[test]
fn a_stripe_of_exports_is_an_array_of_bytes() {
    let places = [Place::new(), Place::new()];
    let member = SIZE.next_multiple_of(64 << 10);
    let servers = places.iter().map(|place| place.qemu(member, &[]));
    let Some(_servers) = servers.collect::<Option<Vec<_>>>() else { return };
    let texts = [places[0].text(), places[1].text()];
    let text = format!("stripe:{},chunk=12KiB,timeout=1m", texts.join("+"));
    let spec: Spec = text.parse().unwrap();
    assert_eq!((spec.to_string(), spec.members()), (text.clone(), 2));
    let (ring, pool) = thread();
    let mut device = open(&text, &ring, &pool);
    let bytes: Vec<u8> = (0..SIZE / 4096 * 4096).map(|at| (at / 512) as u8).collect();
    write(&ring, &pool, &mut *device, 0, &bytes).unwrap();
    run(&ring, &mut *device, 0, Action::Flush).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 0, bytes.len()).unwrap(), bytes);
    drop(device);
    let mut second = open(&places[1].text(), &ring, &pool);
    assert!(read(&ring, &pool, &mut *second, 0, 12 << 10).unwrap() == bytes[12 << 10..24 << 10]);
}

#[test]
fn an_export_is_a_cache_of_its_own_size() {
    let place = Place::new();
    let Some(_server) = place.qemu(1 << 20, &[]) else { return };
    let text = place.text();
    assert_eq!(text.parse::<Spec>().unwrap().size_found(), Some(1 << 20));
    let refused = prepare(&text, Role::Cache { size: 2 << 20 }).unwrap_err();
    assert!(
        refused.contains("has 1048576 bytes, not the 2097152 asked for; without a size"),
        "{refused}"
    );
    let (ring, pool) = thread();
    let source = prepare(&text, Role::Cache { size: 1 << 20 }).unwrap();
    let mut device = source.open(&ring, &pool).unwrap();
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
}

#[test]
fn many_operations_of_two_threads_are_under_way_at_once() {
    let place = Place::new();
    const EACH: u64 = 300;
    let Some(_server) = place.qemu(2 * EACH * SECTOR as u64, &[]) else { return };
    let source = prepare(&place.text(), WRITER).unwrap();
    let work = |number: u64| {
        let (ring, pool) = thread();
        let mut device = source.open(&ring, &pool).unwrap();
        let sectors = || (0..EACH).map(|at| (2 * at + number) * SECTOR as u64);
        for offset in sectors() {
            let from = slice(&pool, &[(offset / SECTOR as u64) as u8; SECTOR]);
            let action = Action::Write { from, durable: true };
            device.submit(Operation { token: offset, offset, action });
        }
        let done = finish(&ring, &mut *device, EACH as usize);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        let targets: Vec<_> = sectors().map(|_| pool.allocate(SECTOR).whole()).collect();
        for (offset, into) in sectors().zip(&targets) {
            let action = Action::Read(into.clone());
            device.submit(Operation { token: offset, offset, action });
        }
        let done = finish(&ring, &mut *device, EACH as usize);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        for (offset, into) in sectors().zip(&targets) {
            assert_eq!(into.to_vec(), [(offset / SECTOR as u64) as u8; SECTOR]);
        }
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| scope.spawn(move || work(number)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn operations_outlast_a_server_that_is_killed() {
    let place = Place::new();
    let Some(server) = place.qemu(1 << 20, &[]) else { return };
    let (ring, pool) = thread();
    let mut device = open(&place.text(), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; 3 * SECTOR]).unwrap();
    drop(server);
    let from = slice(&pool, &[2; SECTOR]);
    device.submit(Operation { token: 1, offset: 0, action: Action::Write { from, durable: true } });
    let into = pool.allocate(SECTOR).whole();
    let action = Action::Read(into.clone());
    device.submit(Operation { token: 2, offset: SECTOR as u64, action });
    device.submit(Operation { token: 3, offset: 0, action: Action::Flush });
    ring.wait(Some(Duration::from_millis(100))).unwrap();
    let mut done = Vec::new();
    device.poll(&mut done);
    assert!(done.is_empty(), "{done:?}");
    let _server = place.qemu(1 << 20, &[]).unwrap();
    let done = finish(&ring, &mut *device, 3);
    assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
    assert_eq!(into.to_vec(), [1; SECTOR]);
    let all = read(&ring, &pool, &mut *device, 0, 2 * SECTOR).unwrap();
    assert_eq!(all, [[2; SECTOR], [1; SECTOR]].concat());
}

#[test]
fn what_a_crashed_server_had_answered_and_not_flushed_is_written_again() {
    let place = Place::new();
    let plugin = ["memory", "8M"];
    let Some(server) = place.nbdkit(&plugin) else { return };
    let (ring, pool) = thread();
    let mut device = open(&place.text(), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; 4 * SECTOR]).unwrap();
    run(&ring, &mut *device, 0, Action::Flush).unwrap();
    write(&ring, &pool, &mut *device, SECTOR as u64, &[2; 2 * SECTOR]).unwrap();
    write(&ring, &pool, &mut *device, SECTOR as u64, &[3; SECTOR]).unwrap();
    let from = slice(&pool, &[4; SECTOR]);
    run(&ring, &mut *device, 2 * SECTOR as u64, Action::Write { from, durable: true }).unwrap();
    drop(server); // and all that its memory held
    let _server = place.nbdkit(&plugin).unwrap();
    let all = read(&ring, &pool, &mut *device, 0, 4 * SECTOR).unwrap();
    assert_eq!(all, [[0; SECTOR], [3; SECTOR], [4; SECTOR], [0; SECTOR]].concat());
}

#[test]
fn writes_without_flushes_do_not_fill_the_memory() {
    let place = Place::new();
    let Some(_server) = place.nbdkit(&["memory", "160M"]) else { return };
    let (ring, pool) = thread();
    let mut device = open(&place.text(), &ring, &pool);
    const BYTES: usize = 1 << 20;
    for round in 0..5 {
        for at in 0..32 {
            let from = slice(&pool, &[at as u8; BYTES]);
            let offset = (round * 32 + at) * BYTES as u64;
            let action = Action::Write { from, durable: false };
            device.submit(Operation { token: at, offset, action });
        }
        let done = finish(&ring, &mut *device, 32);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
    }
    let bytes = read(&ring, &pool, &mut *device, 31 * BYTES as u64, BYTES).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 31));
}

#[test]
fn a_connection_that_ends_or_makes_no_sense_is_made_again() {
    let place = Place::new();
    let Some(_server) = place.qemu(1 << 20, &["--shared=9"]) else { return };
    let relay = Relay::start(place.path("socket"));
    let (ring, pool) = thread();
    let mut device = open(&relay.text(), &ring, &pool);
    for round in 0..20u8 {
        match round % 3 {
            0 => relay.babble(),
            _ => relay.cut(false),
        }
        write(&ring, &pool, &mut *device, 0, &[round; 65536]).unwrap();
        assert!(read(&ring, &pool, &mut *device, 0, 65536).unwrap() == [round; 65536]);
    }
}

#[test]
fn operations_fail_when_the_server_has_not_answered_for_long() {
    let place = Place::new();
    let Some(_server) = place.qemu(1 << 20, &["--shared=9"]) else { return };
    let relay = Relay::start(place.path("socket"));
    let (ring, pool) = thread();
    let mut device = open(&format!("{},timeout=200ms", relay.text()), &ring, &pool);
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    relay.hang(true);
    let late = write(&ring, &pool, &mut *device, 0, &[2; SECTOR]).unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
    assert!(late.to_string().contains("has not answered for 200ms"), "{late}");
    assert!(read(&ring, &pool, &mut *device, SECTOR as u64, SECTOR).is_err());
    relay.hang(false);
    wait_until("a write arrives", || write(&ring, &pool, &mut *device, 0, &[3; SECTOR]).is_ok());
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [3; SECTOR]);
    relay.cut(true);
    let gone = read(&ring, &pool, &mut *device, 0, SECTOR).unwrap_err().to_string();
    assert!(gone.contains("has not answered for 200ms: "), "{gone}");
}

#[test]
fn a_server_that_is_gone_does_not_keep_a_device_from_ending() {
    let place = Place::new();
    let Some(server) = place.qemu(1 << 20, &[]) else { return };
    let (ring, pool) = thread();
    let mut device = open(&place.text(), &ring, &pool);
    drop(server);
    let action = Action::Write { from: slice(&pool, &[2; SECTOR]), durable: false };
    device.submit(Operation { token: 1, offset: 0, action });
    drop(device);
}

#[test]
fn a_timeout_holds_for_operations_under_way_and_later_ones() {
    let place = Place::new();
    let Some(_server) = place.qemu(1 << 20, &["--shared=9"]) else { return };
    let relay = Relay::start(place.path("socket"));
    let (ring, pool) = thread();
    let mut device = open(&relay.text(), &ring, &pool);
    relay.hang(true);
    let action = Action::Write { from: slice(&pool, &[2; SECTOR]), durable: false };
    device.submit(Operation { token: 1, offset: 0, action });
    device.set_timeout(Duration::from_millis(200));
    device.set_timeout(Duration::from_secs(3600)); // it is no shorter
    let done = finish(&ring, &mut *device, 1);
    let late = done[0].result.as_ref().unwrap_err();
    assert!(late.to_string().contains("has not answered for 200ms"), "{late}");
    assert!(read(&ring, &pool, &mut *device, 0, SECTOR).is_err());
}

#[test]
fn another_disk_in_the_place_of_the_first_is_refused() {
    let place = Place::new();
    let Some(server) = place.nbdkit(&["memory", "2M"]) else { return };
    let (ring, pool) = thread();
    let mut device = open(&place.text(), &ring, &pool);
    drop(server);
    let server = place.nbdkit(&["memory", "1M"]).unwrap();
    let refused = read(&ring, &pool, &mut *device, 0, SECTOR).unwrap_err().to_string();
    assert!(refused.contains("it has 1048576 bytes now, not 2097152"), "{refused}");
    drop(server);
    let _server = place.nbdkit(&["memory", "2M"]).unwrap();
    read(&ring, &pool, &mut *device, 0, SECTOR).unwrap();
}

#[test]
fn a_new_size_is_found_by_a_new_connection() {
    let place = Place::new();
    let disk = place.path("disk");
    std::fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let Some(_server) = place.nbdkit(&["file", &disk]) else { return };
    let source = prepare(&place.text(), WRITER).unwrap();
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap();
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(2 << 20).unwrap();
    assert_eq!(source.refresh().unwrap(), 2 << 20);
    assert!(write(&ring, &pool, &mut *device, 1 << 20, &[3; SECTOR]).is_err());
    device.set_size(2 << 20).unwrap();
    write(&ring, &pool, &mut *device, 1 << 20, &[3; SECTOR]).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 1 << 20, SECTOR).unwrap(), [3; SECTOR]);
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [1; SECTOR]);
}

#[test]
fn errors_of_the_server_arrive_by_their_numbers() {
    let fails = |error: &str| {
        let place = Place::new();
        let error = format!("error-pwrite={error}");
        let plugin = ["--filter=error", "memory", "1M", &error, "error-pwrite-rate=100%"];
        let _server = place.nbdkit(&plugin)?;
        let (ring, pool) = thread();
        let mut device = open(&place.text(), &ring, &pool);
        let result = write(&ring, &pool, &mut *device, 0, &[1; SECTOR]);
        read(&ring, &pool, &mut *device, 0, SECTOR).unwrap();
        Some(result.unwrap_err().kind())
    };
    let Some(full) = fails("ENOSPC") else { return };
    assert_eq!(full, std::io::ErrorKind::StorageFull);
    assert_eq!(fails("EPERM"), Some(std::io::ErrorKind::PermissionDenied));
}

#[test]
fn an_export_that_is_only_read_refuses_writers() {
    let place = Place::new();
    let Some(_server) = place.qemu(1 << 20, &["--read-only", "--shared=9"]) else { return };
    let refused = prepare(&place.text(), WRITER).unwrap_err();
    assert!(refused.contains("is read-only; serve it read-only"), "{refused}");
    let source = prepare(&place.text(), READER).unwrap();
    let (ring, pool) = thread();
    let mut device = source.open(&ring, &pool).unwrap();
    assert_eq!(read(&ring, &pool, &mut *device, 0, SECTOR).unwrap(), [0; SECTOR]);
    let refused = write(&ring, &pool, &mut *device, 0, &[1; SECTOR]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn mistakes_are_named() {
    let place = Place::new();
    let refused = prepare(&place.text(), WRITER).unwrap_err();
    assert!(refused.contains("cannot connect to nbd+unix:///?socket="), "{refused}");
    let blocks = |minimum: &str, size: &str| {
        let place = Place::new();
        let minimum = format!("blocksize-minimum={minimum}");
        let plugin = ["--filter=blocksize-policy", "memory", size, &minimum];
        let _server = place.nbdkit(&[&plugin[..], &["blocksize-preferred=64K"]].concat())?;
        Some(prepare(&place.text(), WRITER).map(drop))
    };
    let Some(fits) = blocks("4096", "1M") else { return };
    fits.unwrap();
    let refused = blocks("8192", "1M").unwrap().unwrap_err();
    assert!(refused.contains("in units of 8192 bytes only"), "{refused}");
    assert!(blocks("4096", "4608").unwrap().is_err());
    let _server = place.nbdkit(&["memory", "1000"]).unwrap();
    let refused = prepare(&place.text(), WRITER).unwrap_err();
    assert!(refused.contains("has 1000 bytes, which is not a positive multiple of 512"));
}

#[test]
fn a_server_of_another_protocol_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!("nbd://{}/x", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"SSH-2.0-OpenSSH_9.2p1 and more").unwrap();
        std::io::copy(&mut client, &mut std::io::sink()).ok();
    });
    let refused = prepare(&text, WRITER).unwrap_err();
    assert!(refused.contains("it does not greet as an NBD server"), "{refused}");
    server.join().unwrap();
}
