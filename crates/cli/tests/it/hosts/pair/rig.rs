//! A pair of servers.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use floe_server::nbd_client::Client;
use floe_server::pair::{LOST_TURN, Role, StandbyStatus};
use floe_server::status::Status;
use floe_testkit::{Ceph, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{floe, wait_for};

pub(super) const MIB: usize = 1 << 20;
pub(super) const SIZE: usize = 4 * MIB;

/// Bytes of a half: 16 MiB of data.
const HALF: usize = 17 * MIB;

/// Two machines, each with a socket for clients and one for its operator.
pub(super) struct Pair {
    pub(super) ceph: Ceph,
    pub(super) image: String,
    folder: TempDir,
    pub(super) servers: [Option<Child>; 2],
    lease: &'static str,
    /// The servers have a write-back cache on a mirror of a file of each.
    pub(super) is_mirrored: bool,
    /// Bytes a second for a half that returns.
    pub(super) resync: &'static str,
    /// The servers have NBD clients.
    pub(super) has_nbd: bool,
    /// More options of each server.
    pub(super) options: [Vec<String>; 2],
}

impl Pair {
    pub(super) fn new(ceph: Ceph, lease: &'static str) -> Self {
        Self::of_size(ceph, lease, SIZE)
    }

    /// A pair of an image of so many bytes.
    pub(super) fn of_size(ceph: Ceph, lease: &'static str, size: usize) -> Self {
        let image = ceph.image("pair", size as u64);
        let folder = tempfile::tempdir().expect("a folder");
        let (servers, options) = ([None, None], Default::default());
        // A half that returns has much to catch up with when the next thing happens.
        let (is_mirrored, resync) = (false, "8MiB");
        let has_nbd = true;
        Self { ceph, image, folder, servers, lease, is_mirrored, resync, has_nbd, options }
    }

    /// A pair that writes back, through a mirror of a file on each machine.
    pub(super) fn mirrored(ceph: Ceph, lease: &'static str) -> Self {
        let mut pair = Self::new(ceph, lease);
        pair.is_mirrored = true;
        for machine in 0..2 {
            let half = File::create(pair.path(machine, "half.img")).expect("a file");
            half.set_len(HALF as u64).expect("room");
        }
        pair
    }

    /// The settings of the cache.
    fn cache(&self, machine: usize) -> Vec<String> {
        if !self.is_mirrored {
            return ["--cache", "memory:16MiB", "--write", "through"].map(str::to_owned).into();
        }
        let half = |machine, export: &str| {
            format!("nbd+unix:///{export}?socket={}", self.path(machine, "half.sock").display())
        };
        let (near, far) = (self.path(machine, "half.img"), half(1 - machine, "half"));
        let cache = format!("mirror:{}+{far},resync={}", near.display(), self.resync);
        let cache = ["--cache", &cache, "--cache-size", "16MiB", "--write", "back"];
        let more = ["--flush-interval", "1h", "--half-listen", &half(machine, "")];
        cache.into_iter().chain(more).map(str::to_owned).collect()
    }

    pub(super) fn path(&self, machine: usize, name: &str) -> PathBuf {
        self.folder.path().join(format!("{machine}-{name}"))
    }

    pub(super) fn admin(&self, machine: usize) -> String {
        format!("unix:{}", self.path(machine, "admin.sock").display())
    }

    /// Begins a server; returns when it answers its operator.
    pub(super) fn begin(&mut self, machine: usize) {
        assert!(self.servers[machine].is_none());
        let listen = format!("nbd+unix:///?socket={}", self.path(machine, "nbd.sock").display());
        let nbd = ["--listen", &listen];
        let child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--standby", "--lease", self.lease, "--backing", &self.image])
            .args(self.cache(machine))
            .args(["--threads", "2"])
            .args(&self.options[machine])
            .args(&nbd[..if self.has_nbd { 2 } else { 0 }])
            .args(["--admin", &self.admin(machine)])
            .env_remove("FLOE_LOG")
            .env("STATE_DIRECTORY", self.path(machine, "state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().create(true).append(true).open(self.log_file(machine)).unwrap())
            .spawn()
            .expect("floe runs");
        self.servers[machine] = Some(child);
        wait_until("it answers its operator", || self.role(machine).is_some());
    }

    pub(super) fn log_file(&self, machine: usize) -> PathBuf {
        self.path(machine, "floe.log")
    }

    pub(super) fn log(&self, machine: usize) -> String {
        std::fs::read_to_string(self.log_file(machine)).unwrap_or_default() // it never ran
    }

    /// The part that it says it has; `None` while it does not answer.
    pub(super) fn role(&self, machine: usize) -> Option<Role> {
        let said = floe(&["status", "--json", "--admin", &self.admin(machine)]);
        let text = said.status.success().then_some(said.stdout)?;
        let serving = serde_json::from_slice::<Status>(&text).ok().map(|it| it.pair);
        let pair = match serving {
            Some(pair) => pair.expect("it is one of two"),
            None => serde_json::from_slice::<StandbyStatus>(&text).expect("a status").pair,
        };
        Some(pair.role)
    }

    pub(super) fn wait_for_role(&self, machine: usize, role: Role) {
        wait_until("the server has its part", || self.role(machine) == Some(role));
    }

    pub(super) fn signal(&self, machine: usize, signal: Signal) {
        let child = self.servers[machine].as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it is there");
    }

    pub(super) fn kill(&mut self, machine: usize) {
        self.signal(machine, Signal::KILL);
        wait_for(&mut self.servers[machine].take().expect("it runs"));
    }

    /// Waits for the end of a server; its exit code.
    pub(super) fn ended(&mut self, machine: usize) -> Option<i32> {
        wait_for(&mut self.servers[machine].take().expect("it runs")).code()
    }

    pub(super) fn connect(&self, machine: usize) -> Option<Client> {
        let socket = self.path(machine, "nbd.sock");
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        Client::connect(&uri.parse().expect("an address")).ok()
    }

    /// Begins a server again that has ended: in good order, because its turn was over, or killed.
    pub(super) fn revive(&mut self, machine: usize) {
        if let Some(server) = &mut self.servers[machine] {
            let Some(status) = server.try_wait().expect("it can be asked") else { return };
            let code = status.code();
            assert!([Some(0), Some(i32::from(LOST_TURN))].contains(&code), "{code:?}");
            self.servers[machine] = None;
        }
        self.begin(machine);
    }

    /// The status of a server that serves; `None` of one that does not.
    pub(super) fn status(&self, machine: usize) -> Option<Status> {
        let said = floe(&["status", "--json", "--admin", &self.admin(machine)]);
        serde_json::from_slice(&said.stdout).ok().filter(|_| said.status.success())
    }

    /// Returns whether it has the images, and waits for a half that is newer than its own.
    pub(super) fn lacks_half(&self, machine: usize) -> bool {
        let said = floe(&["status", "--admin", &self.admin(machine)]);
        String::from_utf8_lossy(&said.stdout).contains("serves nothing yet: ")
    }

    /// Waits until both halves of the mirror are in sync.
    pub(super) fn wait_for_sync(&self, machine: usize) {
        wait_until("both halves are in sync", || {
            let status = self.status(machine);
            let mirror = status.as_ref().and_then(|it| it.tiers[0].mirror.as_ref());
            mirror.is_some_and(|it| it.halves.iter().all(|half| half.state == "in-sync"))
        });
    }

    /// Waits for a server that serves, with both running.
    pub(super) fn follow(&mut self) -> (usize, Client) {
        let mut found = None;
        wait_until("one of them serves", || {
            (0..2).for_each(|machine| self.revive(machine));
            found = (0..2).find_map(|machine| Some((machine, self.connect(machine)?)));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// What the image has, read by another program.
    pub(super) fn exported(&self) -> Vec<u8> {
        let file = self.folder.path().join("exported");
        let _ = std::fs::remove_file(&file); // of an earlier call
        let name = file.to_str().expect("a path of UTF-8");
        self.ceph.rbd(&["export", "--no-progress", "rbd/pair", name]);
        std::fs::read(&file).expect("it has been exported")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (0..2).for_each(|machine| println!("server {machine}:\n{}", self.log(machine)));
        }
        for server in self.servers.iter_mut().flatten() {
            let _ = server.kill(); // it may have ended
            let _ = server.wait();
        }
    }
}
