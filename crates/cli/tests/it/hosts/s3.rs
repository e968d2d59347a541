//! A volume in a bucket of an S3 server that the test starts.

use std::process::{Command, Output};

use floe_server::nbd_client::Client;
use floe_testkit::{BucketServer, is_installed, pattern, run, wait_until};
use tempfile::TempDir;

use crate::common::{Server, assert_same};

const MIB: usize = 1 << 20;
const SIZE: usize = 12 * MIB;
const OBJECT: usize = 256 << 10;

/// An S3 server, a volume in it, and a folder for a server of the volume.
struct Bucket {
    store: BucketServer,
    folder: TempDir,
    spec: String,
    content: Vec<u8>,
}

impl Bucket {
    fn start(settings: &str) -> Option<Bucket> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = BucketServer::start(&folder.path().join("store"))?;
        let spec = format!("{},size=12MiB,object=256KiB{settings}", store.spec("team/vm"));
        Some(Bucket { store, folder, spec, content: vec![0; SIZE] })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn serve(&self, more: &[&str]) -> Server {
        let socket = format!("nbd+unix:///?socket={}", self.path("nbd.sock"));
        let (admin, cache) = (format!("unix:{}", self.path("admin.sock")), self.path("cache.img"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args([
            "serve",
            "--backing",
            &self.spec,
            "--cache",
            &cache,
            "--cache-size",
            "16MiB",
        ]);
        command.args(["--listen", &socket, "--admin", &admin, "--listen", "nbd://127.0.0.1:0"]);
        command.args(["--threads", "2"]).args(more).envs(self.store.environment());
        Server::spawn(&mut command, self.folder.path().join("floe.log"))
    }

    fn floe(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(arguments).envs(self.store.environment()).current_dir(&self.folder);
        command.env("STATE_DIRECTORY", self.path("state")).output().expect("floe runs")
    }

    fn write(&mut self, client: &mut Client, offset: usize, seed: u64) {
        let piece = pattern(seed, 64 << 10);
        client.write(offset as u64, &piece, false).expect("a write");
        self.content[offset..][..piece.len()].copy_from_slice(&piece);
    }

    #[track_caller]
    fn check(&self, client: &mut Client) {
        let mut found = vec![0; SIZE];
        client.read(0, &mut found).expect("a read");
        assert_same("the volume", &found, &self.content);
    }

    /// What the bucket has.
    fn stored(&self) -> Vec<u8> {
        self.store.content("team/vm", OBJECT, SIZE)
    }
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.unix.parse().expect("an address")).expect("it is served")
}

#[test]
fn flushed_data_of_a_bucket_behind_a_cache_survives_a_kill() {
    let Some(mut bucket) = Bucket::start("") else { return };
    let server = bucket.serve(&["--write", "back", "--flush-interval", "1h"]);
    let mut client = connect(&server);
    bucket.check(&mut client);
    for number in 0..16 {
        bucket.write(&mut client, number * MIB / 2 + 4096, 100 + number as u64);
    }
    client.flush().expect("a flush");
    assert!(bucket.stored().iter().all(|byte| *byte == 0), "nothing was written back");
    drop(server);
    // The lease of a process that has died on this machine is taken over at once.
    let server = bucket.serve(&["--write", "back"]);
    bucket.check(&mut connect(&server));
    server.drain_and_end();
    assert_same("the bucket", &bucket.stored(), &bucket.content);

    // The same volume without its size, and without the cache.
    bucket.spec = bucket.store.spec("team/vm");
    std::fs::remove_file(bucket.path("cache.img")).expect("it is there");
    let server = bucket.serve(&["--write", "through"]);
    let mut client = connect(&server);
    bucket.check(&mut client);
    client.trim(MIB as u64, 4 * MIB as u32).expect("a trim");
    bucket.content[MIB..5 * MIB].fill(0);
    bucket.write(&mut client, 2 * MIB, 9);
    assert_same("the bucket", &bucket.stored(), &bucket.content);

    let refused = bucket.floe(&["serve", "--backing", &bucket.spec, "--cache", "memory:16MiB"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("s3://bucket/team/vm is in use by another server"), "{said}");
    assert!(said.contains(&format!("process {}", server.pid())), "{said}");
    server.end();
}

#[test]
fn clients_of_a_bucket_read_what_they_wrote() {
    if !is_installed(&["qemu-io", "nbdcopy"]) {
        return;
    }
    let Some(bucket) = Bucket::start("") else { return };
    let file = bucket.path("content");
    let content = pattern(3, SIZE);
    std::fs::write(&file, &content).expect("a file");
    for write in ["through", "back"] {
        let server = bucket.serve(&["--write", write]);
        run("nbdcopy", &[&file, &server.tcp]);
        let words = ["-f", "raw", &server.tcp, "-c", "write -P 7 1M 8k", "-c", "write -z 3M 1M"];
        let more = ["-c", "flush", "-c", "read -P 7 1M 8k", "-c", "read -P 0 3M 1M"];
        let said = run("qemu-io", &[&words[..], &more].concat());
        assert!(!said.contains("failed"), "{said}");
        server.drain_and_end();
        let mut wanted = content.clone();
        wanted[MIB..MIB + 8192].fill(7);
        wanted[3 * MIB..4 * MIB].fill(0);
        assert_same(write, &bucket.stored(), &wanted);
    }
}

#[test]
fn a_store_that_is_away_is_named_and_returns() {
    let Some(mut bucket) = Bucket::start(",timeout=2s") else { return };
    let server = bucket.serve(&["--write", "through"]);
    let mut client = connect(&server);
    bucket.write(&mut client, 0, 1);
    bucket.store.pause();
    let failed = client.write(MIB as u64, &[1; 4096], false);
    assert!(failed.is_err(), "the store does not answer");
    bucket.store.go_on();
    wait_until("the store answers", || client.write(MIB as u64, &[1; 4096], false).is_ok());
    bucket.content[MIB..][..4096].fill(1);
    bucket.check(&mut client);
    server.end();
    assert_same("the bucket", &bucket.stored(), &bucket.content);
}

#[test]
fn traces_are_replayed_on_a_bucket() {
    let Some(bucket) = Bucket::start("") else { return };
    let trace = "zipf:keys=500,requests=500,read=0.7,block=4KiB";
    let line = ["replay", trace, "--backing", &bucket.spec, "--cache", "memory:8MiB"];
    let done = bucket.floe(&[&line[..], &["--write", "back", "--overwrite", "--json"]].concat());
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let outcome: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(outcome["requests"], 500, "{outcome}");

    let missing = bucket.store.spec("none");
    let listen = format!("nbd+unix:///?socket={}", bucket.path("nbd.sock"));
    let line = ["serve", "--backing", &missing, "--cache", "memory:8MiB", "--listen", &listen];
    let refused = bucket.floe(&[&line[..], &["--admin", "none"]].concat());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("there is no volume at s3://bucket/none; give the size"), "{said}");
    assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}
