//! The kernel of a stock Linux as an NVMe host: Debian's, booted in QEMU, with `nvme-tcp.ko` and
//! the program `nvme`.
//!
//! The scripts that run in the guest are in `guest/`; all begin with `nvme_begin.sh`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use floe_testkit::nvme_host::Access;
use floe_testkit::nvme_host::tcp::Controller;
use floe_testkit::run;

use crate::common::{Server, Volume, floe, floe_ok, text};
use crate::hosts::guest::{guests_run, scripts};

const VOLUME_MIB: usize = 64;
const NAME: &str = "nqn.2026-11.com.example:floe";

/// A volume that is served over NVMe as well, at a port.
fn volume(mode: &str, port: u16) -> Volume {
    let address = format!("nvme-tcp://127.0.0.1:{port}");
    Volume::new(&vec![0; VOLUME_MIB << 20], mode)
        .on("2")
        .with(&["--listen", &address, "--nqn", NAME])
}

/// Where a guest finds its disk: a port of this machine, a subsystem, and the disk's size.
pub(crate) struct Target<'a> {
    pub(crate) port: &'a str,
    pub(crate) name: &'a str,
    pub(crate) mib: usize,
}

/// A guest that runs one of the scripts against a server.
pub(crate) struct Guest {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    log: PathBuf, // what the kernel said, if the script ended badly
}

impl Guest {
    fn start(script: &str, server: &Server, folder: &Path) -> Self {
        Self::start_with(script, server, folder, &[], "")
    }

    /// The same on another machine, with more variables.
    fn start_with(
        script: &str,
        server: &Server,
        folder: &Path,
        machine: &[&str],
        variables: &str,
    ) -> Self {
        let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
        let (address, name) = address.split_once('/').expect("a name");
        let (_, port) = address.rsplit_once(':').expect("a port");
        let target = Target { port, name, mib: VOLUME_MIB };
        Self::start_at(script, &target, folder, machine, variables)
    }

    /// The same with another server.
    pub(crate) fn start_at(
        script: &str,
        &Target { port, name, mib }: &Target<'_>,
        folder: &Path,
        machine: &[&str],
        variables: &str,
    ) -> Self {
        let programs = ["blocks", "forward"].map(|name| {
            let program = folder.join(name);
            let source = scripts().join(format!("{name}.c"));
            run("cc", &["-O1", "-o", text(&program), text(&source)]);
            program
        });
        let read = |name: &str| std::fs::read_to_string(scripts().join(name)).expect("a script");
        let whole = folder.join(script);
        let head = format!("PORT={port} NAME={name} SIZE_MIB={mib} {variables}");
        std::fs::write(&whole, [head, read("nvme_begin.sh"), read(script)].join("\n"))
            .expect("a script");
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/linux-guest");
        let log = folder.join("kernel.log");
        let mut process = Command::new(program)
            .args(machine)
            .arg(&whole)
            .args(&programs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("the guest's script runs");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Self { process, lines, log }
    }

    /// Waits until the script prints a line.
    #[track_caller]
    pub(crate) fn says(&mut self, wanted: &str) {
        let mut said = Vec::new();
        for line in &mut self.lines {
            let line = line.expect("text");
            if line.trim() == wanted {
                return;
            }
            said.push(line);
        }
        let status = self.process.wait().expect("it can be waited for");
        let log = std::fs::read_to_string(&self.log).expect("a log");
        panic!("{status} without {wanted:?}: {said:#?}\n{log}");
    }

    /// Waits until the script has ended, well.
    #[track_caller]
    pub(crate) fn ends_well(mut self) {
        let said: Vec<_> = self.lines.by_ref().map_while(Result::ok).collect();
        let status = self.process.wait().expect("it can be waited for");
        let log = std::fs::read_to_string(&self.log).expect("a log");
        assert!(status.success(), "{status}: {said:#?}\n{log}");
    }
}

#[test]
fn linux_keeps_data_and_a_file_system_on_a_namespace() {
    if !guests_run() {
        return;
    }
    let (volume, folder) = (volume("back", 0), tempfile::tempdir().expect("a folder"));
    let server = volume.serve();
    let mut guest = Guest::start("nvme.sh", &server, folder.path());
    guest.says("all is as it was written");
    guest.ends_well();
    let status = server.status();
    assert_eq!(status.cache.requests.errors, 0, "{status:?}");
    assert!(status.cache.requests.flushes > 0, "{status:?}");
    server.end();
    volume.serve().drain_and_end(); // what the cache has kept
}

#[test]
fn linux_goes_on_when_a_killed_server_is_back() {
    if !guests_run() {
        return;
    }
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    // What was written must be there without a flush: nobody knows which request was the last.
    let volume = volume("through", free.expect("a free port").port());
    let folder = tempfile::tempdir().expect("a folder");
    let server = volume.serve();
    let mut guest = Guest::start("nvme_crash.sh", &server, folder.path());
    guest.says("attached");
    guest.says("round");
    server.kill(&volume);
    guest.says("lost");
    let server = volume.serve();
    guest.says("back");
    guest.says("all is as it was written");
    guest.ends_well();
    server.end();
}

#[test]
fn linux_sees_namespaces_come_grow_and_go() {
    if !guests_run() {
        return;
    }
    let (volume, folder) = (volume("back", 0), tempfile::tempdir().expect("a folder"));
    let server = volume.serve();
    let second = volume.path("second.img");
    std::fs::write(&second, vec![0; 4 << 20]).expect("a volume");
    let spec = format!("file:{}", text(&second));
    let mut guest = Guest::start("nvme_changes.sh", &server, folder.path());
    guest.says("attached");
    floe_ok(&["volume", "add", "second", &spec, "--admin", &server.admin]);
    guest.says("added");
    let file = std::fs::OpenOptions::new().write(true).open(&second).expect("a volume");
    file.set_len(8 << 20).expect("it grows");
    floe_ok(&["volume", "resize", "second", "--admin", &server.admin]);
    guest.says("grown");
    let remove = ["volume", "remove", "second", "--admin", &server.admin];
    let refused = String::from_utf8(floe(&remove).stderr).expect("text");
    assert!(refused.contains("1 client uses volume \"second\" (1 nvme-tcp)"), "{refused}");
    floe_ok(&[&remove[..], &["--force"]].concat());
    guest.says("all is as it was written");
    guest.ends_well();
    server.end();
}

#[test]
fn linux_is_told_that_the_discovery_log_has_changed() {
    if !guests_run() {
        return;
    }
    let (volume, folder) = (volume("back", 0), tempfile::tempdir().expect("a folder"));
    let server = volume.serve();
    let mut guest = Guest::start("nvme_discovery.sh", &server, folder.path());
    guest.says("attached");
    floe_ok(&["volume", "add", "second", "memory:4MiB", "--admin", &server.admin]);
    guest.says("all is as it was written");
    guest.ends_well();
    server.end();
}

#[test]
fn linux_goes_on_by_another_address_when_one_is_cut_off() {
    if !guests_run() {
        return;
    }
    let volume = volume("back", 0).with(&["--listen", "nvme-tcp://127.0.0.1:0"]);
    let (server, folder) = (volume.serve(), tempfile::tempdir().expect("a folder"));
    let address = server.nvme.strip_prefix("nvme-tcp://").expect("an address");
    let (address, name) = address.split_once('/').expect("a name");
    let mut discovery =
        Controller::connect_to_discovery(&Access::new(address, name)).expect("a controller");
    let entries = discovery.discover().expect("a log");
    let variables = format!("SECOND={}", entries[1].service);
    drop(discovery);
    let machine = ["--newer"];
    let mut guest =
        Guest::start_with("nvme_failover.sh", &server, folder.path(), &machine, &variables);
    for step in ["both", "silent", "cut", "other"] {
        guest.says(step);
    }
    let status = server.status();
    assert_eq!(status.cache.requests.errors, 0, "{}", server.log());
    // Requests under way are refused by this path from here on, and the host keeps them.
    let set = |state| floe_ok(&["volume", "ana", "floe", state, "--admin", &server.admin]);
    set("inaccessible");
    guest.says("waits");
    set("optimized");
    guest.says("all is as it was written");
    guest.ends_well();
    server.end();
}

/// The kernel is the newer one: Debian's 6.1 for virtual machines has no authentication
/// (CONFIG_NVME_AUTH).
#[test]
fn linux_proves_its_name_and_asks_the_server_for_its_own() {
    if !guests_run() {
        return;
    }
    // In the form of `nvme gen-dhchap-key`; the second is transformed.
    let secret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let server_secret = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let volume = volume("back", 0);
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
    let secrets = volume.path("secrets");
    std::fs::write(&secrets, format!("{host} {secret} {server_secret}\n")).expect("a file");
    std::fs::set_permissions(&secrets, PermissionsExt::from_mode(0o600)).expect("its owner may");
    let volume = volume.with(&["--nvme-secrets-file", text(&secrets)]);
    let wrong = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let variables = format!("SECRET={secret} SERVER_SECRET={server_secret} WRONG={wrong}");
    let (server, folder) = (volume.serve(), tempfile::tempdir().expect("a folder"));
    let machine = ["--newer"];
    let mut guest =
        Guest::start_with("nvme_secret.sh", &server, folder.path(), &machine, &variables);
    guest.says("all is as it was written");
    guest.ends_well();
    server.end();
}

/// Served to NVMe hosts only, because others would not be bound by a reservation. The kernel is the
/// newer one, in which native multipath can be turned off: then two hosts of one kernel have a disk
/// each.
#[test]
fn linux_reserves_a_disk_for_one_of_two_hosts() {
    if !guests_run() {
        return;
    }
    let volume = Volume::new(&vec![0; VOLUME_MIB << 20], "through");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = format!("nvme-tcp://127.0.0.1:{}", free.expect("a free port").port());
    let [backing, cache, admin] = ["backing.img", "cache.img", "admin.sock"].map(|name| {
        let path = volume.path(name);
        text(&path).to_owned()
    });
    let (backing, cache) = (format!("file:{backing}"), format!("file:{cache}"));
    let admin = format!("unix:{admin}");
    let line = ["serve", "--backing", &backing, "--cache", &cache, "--cache-size", "4MiB"];
    let rest = ["--listen", &address, "--nqn", NAME, "--admin", &admin, "--threads", "2"];
    let line = [&line[..], &rest].concat();
    let serve = || Server::run(&line, volume.path("floe.log"));
    let (server, folder) = (serve(), tempfile::tempdir().expect("a folder"));
    let machine = ["--newer"];
    let mut guest = Guest::start_with("nvme_reserve.sh", &server, folder.path(), &machine, "");
    guest.says("reserved");
    drop(server); // killed
    guest.says("lost");
    let server = serve();
    guest.says("all is as it was written");
    guest.ends_well();
    let kept = std::fs::read_dir(volume.path("state")).expect("a folder");
    let is_kept = |name: &str| name.starts_with("reservations-");
    let names: Vec<String> =
        kept.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().any(|name| is_kept(name)), "{names:?}");
    server.end();
}
