//! The kernel of a stock Linux as a client: Debian's, booted in QEMU, with `nbd.ko` and ext4 on the
//! volume.
//!
//! A file system is made and filled, a program is compiled on it and run from it, and everything is
//! compared: in the guest, with what the host packed; on the host, in the backing device, once the
//! server is gone. The scripts that run in the guest are in `guest/`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Server, Volume, text};
use floe_testkit::{certificates, is_installed, run, wait_until};
use tempfile::TempDir;

const VOLUME_BYTES: usize = 96 << 20;

/// Packages a C compiler consists of that is small enough to run in an emulation.
const COMPILER: [&str; 3] = ["tcc", "libc6-dev", "linux-libc-dev"];

/// Whether a guest can run here.
pub(crate) fn guests_run() -> bool {
    let linux = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    linux
        && is_installed(&[
            "qemu-system-x86_64",
            "busybox",
            "nbd-client",
            "nvme",
            "mke2fs",
            "mkfs.xfs",
            "modprobe",
            "cpio",
            "dpkg",
            "tcc",
        ])
}

/// The file tree that is unpacked in the guest, in a folder that also holds certificates for TLS.
struct Tree {
    folder: TempDir,
}

/// What nbd-client is told to make four connections.
const FOUR: &str = "-C 4";

/// What nbd-client is told to encrypt.
const ENCRYPTED: &str = "-x -A /files/ca-cert.pem -H localhost";

impl Tree {
    /// Packs the compiler as the system has it, with the sums of its files.
    fn pack() -> Self {
        let tree = Self { folder: certificates() };
        let listed = run("dpkg", &[&["-L"], &COMPILER[..]].concat());
        let there = |path: &&str| {
            std::fs::symlink_metadata(path).is_ok_and(|file| !file.is_dir())
                && !path.starts_with("/usr/share")
        };
        let names: Vec<&str> = listed.lines().filter(there).map(|path| &path[1..]).collect();
        let list = tree.path("list");
        std::fs::write(&list, names.join("\n")).expect("a list");
        run("tar", &["-C", "/", "-cf", text(&tree.path("tree.tar")), "-T", text(&list)]);
        let unpacked = tree.path("unpacked");
        std::fs::create_dir(&unpacked).expect("a folder");
        run("tar", &["-C", text(&unpacked), "-xf", text(&tree.path("tree.tar"))]);
        let sums = "find . -type f -exec sha256sum {} + >../tree.sums && test $(wc -l \
                    <../tree.sums) -gt 1000";
        run("sh", &["-c", &format!("cd '{}' && {sums}", unpacked.display())]);
        run("cc", &["-o", text(&tree.path("exercise")), text(&scripts().join("exercise.c"))]);
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compares what is on a file system, without mounting it, with the tree and with the exercises
    /// of these seeds.
    fn is_in(&self, image: &Path, seeds: &[u32]) {
        let found = tempfile::tempdir().expect("a folder");
        let command = format!("rdump /tree {}", found.path().display());
        run("/sbin/debugfs", &["-R", &command, text(image)]);
        let tree = found.path().join("tree");
        let sums = self.path("tree.sums");
        run(
            "sh",
            &[
                "-c",
                &format!("cd '{}' && sha256sum -c --quiet '{}'", tree.display(), sums.display()),
            ],
        );
        for seed in seeds {
            let file = tree.join(format!("random{seed}"));
            run(text(&self.path("exercise")), &["check", text(&file), &seed.to_string()]);
        }
    }
}

/// Where the guests' scripts are.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest")
}

/// Begins to run one of the scripts in a guest that has the tree, against a server.
fn begin(script: &str, server: &Server, how: &str, tree: &Tree) -> Child {
    let files = ["tree.tar", "tree.sums", "ca-cert.pem"].map(|name| tree.path(name)).into_iter();
    let files: Vec<_> =
        files.chain([scripts().join("exercise.c"), "/usr/bin/tcc".into()]).collect();
    begin_with(script, server, how, &tree.path(""), &files)
}

/// Begins to run one of the scripts in a guest that has these files, against a server; the folder
/// is for what that takes.
fn begin_with(script: &str, server: &Server, how: &str, folder: &Path, files: &[PathBuf]) -> Child {
    let port = server.tcp.trim_end_matches("/floe").rsplit(':').next().expect("a port");
    let read = |name: &str| std::fs::read_to_string(scripts().join(name)).expect("a script");
    let whole = folder.join(format!("{script}-{port}"));
    let lines = [format!("PORT={port} HOW='{how}'"), read("begin.sh"), read(script)];
    std::fs::write(&whole, lines.join("\n")).expect("a script");
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/linux-guest"))
        .arg(&whole)
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the guest's script runs")
}

/// Runs one of the scripts, which must succeed.
#[track_caller]
fn guest(script: &str, server: &Server, how: &str, tree: &Tree) {
    let output = begin(script, server, how, tree).wait_with_output().expect("it can be waited for");
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(
        output.status.success(),
        "{script} in the guest: {}\n{said}\n{}",
        output.status,
        server.log()
    );
}

/// The file system in a backing device must need no repair.
#[track_caller]
fn is_clean(image: &Path) {
    run("/sbin/e2fsck", &["-fn", text(image)]);
}

/// Runs one of the scripts in a guest as the client of a server that is ended then; the backing
/// device must hold it all.
#[track_caller]
fn session(script: &str, volume: &Volume, how: &str, tree: &Tree, seeds: &[u32]) {
    let server = volume.serve();
    guest(script, &server, how, tree);
    wait_until("the end of the guest's connections", || server.status().connections == 0);
    let status = server.status();
    assert_eq!(status.cache.requests.errors, 0, "{status:?}");
    assert!(status.cache.requests.flushes > 0, "{status:?}");
    server.end();
    volume.serve().drain_and_end(); // what the cache has kept
    is_clean(&volume.path("backing.img"));
    tree.is_in(&volume.path("backing.img"), seeds);
}

#[test]
fn linux_keeps_a_file_system_on_the_volume_over_tls() {
    if !guests_run() {
        return;
    }
    let tree = Tree::pack();
    let certificates = tree.path("");
    let volume = Volume::new(&vec![0; VOLUME_BYTES], "through").on("1");
    let volume = volume.with(&["--tls", "require", "--tls-certificates", text(&certificates)]);
    session("encrypted.sh", &volume, ENCRYPTED, &tree, &[]);
}

#[test]
fn linux_finds_what_it_wrote_when_the_server_is_back() {
    if !guests_run() {
        return;
    }
    let tree = Tree::pack();
    let volume = Volume::new(&vec![0; VOLUME_BYTES], "back").on("2");
    session("build.sh", &volume, FOUR, &tree, &[1, 2]);
    session("check.sh", &volume, FOUR, &tree, &[1, 2, 3]);
}

#[test]
fn what_linux_has_synced_outlives_the_server() {
    if !guests_run() {
        return;
    }
    let tree = Tree::pack();
    let volume =
        Volume::new(&vec![0; VOLUME_BYTES], "back").on("2").with(&["--flush-interval", "1h"]);
    let server = volume.serve();
    let mut guest = begin("crash.sh", &server, FOUR, &tree);
    let mut said = BufReader::new(guest.stdout.take().expect("it is piped")).lines();
    let first = said.next().expect("a line").expect("text");
    assert_eq!(first.trim(), "synced", "{}", server.log());
    server.kill(&volume);
    assert!(guest.wait().expect("it can be waited for").success());
    volume.serve().drain_and_end(); // what the cache has kept
    // The file system's journal makes good what was under way; what was synced must need no more
    // than that.
    run(
        "sh",
        &[
            "-c",
            &format!("/sbin/e2fsck -fp '{}' || test $? = 1", volume.path("backing.img").display()),
        ],
    );
    is_clean(&volume.path("backing.img"));
    tree.is_in(&volume.path("backing.img"), &[1]);
}

/// How often the server is killed under a guest.
fn kills() -> u64 {
    std::env::var("FLOE_GUEST_KILLS")
        .map_or(2, |text| text.parse().expect("FLOE_GUEST_KILLS is a number"))
}

#[test]
fn what_linux_has_fsynced_survives_a_killed_server_whose_devices_lose_what_was_not_flushed() {
    if !guests_run() || !is_installed(&["nbdcopy"]) {
        return;
    }
    let volume = Volume::new(&vec![0; VOLUME_BYTES], "back").on("2").losing_unflushed();
    let volume = volume.with(&["--flush-interval", "1h"]);
    // By file, the sum of what it holds since it was last synced; none while it is being written.
    let mut safe: HashMap<String, String> = HashMap::new();
    for kill in 0..kills() {
        let server = volume.serve();
        let mut guest = begin_with("fsync.sh", &server, FOUR, volume.path("").as_path(), &[]);
        let mut said = BufReader::new(guest.stdout.take().expect("it is piped")).lines();
        let mut take_in = |line: std::io::Result<String>| {
            let line = line.expect("text");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["begin", name] => drop(safe.remove(name)),
                ["safe", name, sum, "-"] => drop(safe.insert(name.to_owned(), sum.to_owned())),
                _ => panic!("the guest said {line:?}"),
            }
        };
        // Each time after another while, at whatever the guest and the server are doing.
        (0..40 + 23 * (kill % 10)).for_each(|_| take_in(said.next().expect("a line")));
        drop(server); // kills it
        said.for_each(take_in);
        assert!(guest.wait().expect("it can be waited for").success());

        let server = volume.serve();
        let copy = volume.path("copy.img");
        run("nbdcopy", &[&server.tcp, text(&copy)]);
        drop(server); // kills it again, with what it recovered
        // The file system's journal makes good what was under way; what was synced must need no
        // more than that.
        run("sh", &["-c", &format!("/sbin/e2fsck -fp '{}' || test $? = 1", copy.display())]);
        is_clean(&copy);
        have_sums(&copy, &safe);
        let _ = writeln!(
            std::io::stdout(),
            "kill {}: {} files are as they were synced",
            kill + 1,
            safe.len()
        );
    }
}

/// Compares files on a file system, without mounting it, with their sums.
#[track_caller]
fn have_sums(image: &Path, sums: &HashMap<String, String>) {
    let found = tempfile::tempdir().expect("a folder");
    run("/sbin/debugfs", &["-R", &format!("rdump / {}", found.path().display()), text(image)]);
    let list: String = sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    std::fs::write(found.path().join("sums"), list).expect("a list");
    run("sh", &["-c", &format!("cd '{}' && sha256sum -c --quiet sums", found.path().display())]);
}
