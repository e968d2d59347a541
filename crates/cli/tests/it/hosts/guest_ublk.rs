//! A volume as a block device of the machine that serves it: in a guest with a kernel that has
//! ublk, for a server is killed there and the device waits.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::common::{floe, text};
use floe_testkit::{BucketServer, certificates, is_installed, run};
use tempfile::TempDir;

const VOLUME_BYTES: u64 = 96 << 20;
const CACHE_BYTES: u64 = 48 << 20;

/// The least that mkfs.xfs takes, and some.
const XFS_BYTES: u64 = 320 << 20;

/// A volume that is swap, and the memory that a program has: more than the guest's 768 MiB.
const SWAP_BYTES: u64 = 768 << 20;
const HOG_MIB: u64 = 700;

/// Seconds for a script in the guest, on a machine with much else to do, and more for each kill.
const GUEST_SECONDS: u64 = 900;
const KILL_SECONDS: u64 = 60;

/// Whether a guest with a newer kernel can run here.
fn guests_run() -> bool {
    let linux = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    linux
        && is_installed(&[
            "qemu-system-x86_64",
            "busybox",
            "mke2fs",
            "mkfs.xfs",
            "modprobe",
            "cpio",
            "dpkg",
            "xz",
            "strip",
        ])
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest")
}

/// A guest's disks, and the programs that go into it.
struct Guest {
    folder: TempDir,
    disks: Vec<PathBuf>,
}

impl Guest {
    /// A guest with a disk for a volume, one for the cache, and others of these sizes.
    fn new(volume_bytes: u64, others: &[u64]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut guest = Self { folder, disks: Vec::new() };
        for (number, &bytes) in [&[volume_bytes, CACHE_BYTES], others].concat().iter().enumerate() {
            let path = guest.path(&format!("disk{number}.img"));
            let file = std::fs::File::create(&path).expect("an image");
            file.set_len(bytes).expect("an image");
            guest.disks.push(path);
        }
        // Its debugging information would take longer to load than the test takes.
        let floe = env!("CARGO_BIN_EXE_floe");
        run("strip", &["-o", text(&guest.path("floe")), floe]);
        for program in ["exercise", "load", "hog"] {
            let source = scripts().join(program).with_extension("c");
            run("cc", &["-O1", "-o", text(&guest.path(program)), text(&source)]);
        }
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs one of the scripts, which must succeed. Returns whether it did: false where the guest's
    /// kernel failed, and not the program. Linux 6.12 sometimes fails while it frees the io_uring
    /// of a killed server.
    #[track_caller]
    fn runs(&self, script: &str, variables: &str, seconds: u64) -> bool {
        let (status, said) = self.run(seconds, script, variables);
        let kernel_failed = said.contains("kernel BUG at") || said.contains("io_req_caches_free");
        assert!(status.success() || kernel_failed, "{script} in the guest: {status}\n{said}");
        status.success()
    }

    /// Checks that a volume holds all that `ublk.sh` left, as it does once the cache is flushed.
    #[track_caller]
    fn left_all_on(&self, volume: &Path) {
        run("/sbin/e2fsck", &["-fn", text(volume)]);
        let file = self.path("random1");
        run("/sbin/debugfs", &["-R", &format!("dump /random1 {}", text(&file)), text(volume)]);
        run(text(&self.path("exercise")), &["check", text(&file), "1"]);
    }

    /// Runs one of the scripts. Returns how it ended and what it and the kernel said.
    fn run(&self, seconds: u64, script: &str, variables: &str) -> (ExitStatus, String) {
        let read = |name: &str| std::fs::read_to_string(scripts().join(name)).expect("a script");
        let lines = [variables.to_owned(), read("ublk-begin.sh"), read(script)];
        std::fs::write(self.path(script), lines.join("\n")).expect("a script");
        let output = Command::new(scripts().join("../../../../scripts/linux-guest"))
            .arg("--newer")
            .args(self.disks.iter().flat_map(|disk| ["--disk", text(disk)]))
            .args([self.path(script), self.path("floe")])
            .args([self.path("exercise"), self.path("load"), self.path("hog")])
            .env("GUEST_SECONDS", seconds.to_string())
            .stdin(Stdio::null())
            .output()
            .expect("the guest's script runs");
        let said = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        println!("{said}");
        (output.status, said)
    }
}

/// Tries it in up to three guests, for it returns false where the guest's kernel failed.
#[track_caller]
fn in_a_guest(mut succeeds: impl FnMut() -> bool) {
    assert!((0..3).any(|_| succeeds()), "the kernels of three guests failed");
}

#[test]
fn a_volume_is_a_disk_of_the_machine_that_serves_it() {
    if !guests_run() {
        return;
    }
    in_a_guest(|| {
        let guest = Guest::new(VOLUME_BYTES, &[]);
        let ran = guest.runs("ublk.sh", "", GUEST_SECONDS);
        if ran {
            guest.left_all_on(&guest.disks[0]);
        }
        ran
    });
}

#[test]
fn a_volume_in_a_bucket_is_a_disk_of_the_machine_that_serves_it() {
    if !guests_run() {
        return;
    }
    in_a_guest(|| {
        let guest = Guest::new(VOLUME_BYTES, &[]);
        let Some(store) = BucketServer::start(&guest.path("store")) else { return true };
        let ran = guest.runs("ublk.sh", &variables_of(&store), GUEST_SECONDS);
        if ran {
            let volume = guest.path("volume.img");
            let content = store.content("vm", 256 << 10, VOLUME_BYTES as usize);
            std::fs::write(&volume, content).expect("an image");
            guest.left_all_on(&volume);
        }
        ran
    });
}

/// What a script in a guest needs to know of the store.
fn variables_of(store: &BucketServer) -> String {
    // The guest has this machine's loopback under another address.
    let spec = store.spec("vm").replace("127.0.0.1", "10.0.2.2");
    // The client of the store wants certificates of authorities, which the guest has none of.
    let certificates = certificates();
    let authority = std::fs::read_to_string(certificates.path().join("ca-cert.pem"));
    let authority = authority.expect("a certificate");
    let mut variables = format!(
        "BACKING='{spec},size=96MiB,object=256KiB'\n\
         cat >/tmp/ca.pem <<'END'\n{authority}\nEND\nexport SSL_CERT_FILE=/tmp/ca.pem\n"
    );
    for (name, value) in store.environment() {
        variables += &format!("export {name}={value}\n");
    }
    variables
}

#[test]
fn a_disk_of_a_killed_server_waits_and_loses_nothing() {
    if !guests_run() {
        return;
    }
    let kills = std::env::var("FLOE_GUEST_KILLS").map_or(4, |kills| kills.parse().expect("kills"));
    let seconds = GUEST_SECONDS + kills * KILL_SECONDS;
    let variables = format!("KILLS={kills}");
    in_a_guest(|| Guest::new(VOLUME_BYTES, &[]).runs("ublk-kill.sh", &variables, seconds));
}

#[test]
fn a_server_has_its_program_replaced_while_its_disk_is_in_use() {
    if !guests_run() {
        return;
    }
    in_a_guest(|| Guest::new(VOLUME_BYTES, &[]).runs("ublk-upgrade.sh", "", GUEST_SECONDS));
}

#[test]
fn a_disk_is_swap_while_memory_is_short() {
    if !guests_run() {
        return;
    }
    let variables = format!("MIB={HOG_MIB}");
    let seconds = 3 * GUEST_SECONDS;
    in_a_guest(|| Guest::new(SWAP_BYTES, &[]).runs("ublk-swap.sh", &variables, seconds));
}

#[test]
fn several_volumes_of_a_server_are_disks_each_as_its_settings_say() {
    if !guests_run() {
        return;
    }
    let others = [8 << 20, XFS_BYTES];
    in_a_guest(|| Guest::new(VOLUME_BYTES, &others).runs("ublk-volumes.sh", "", GUEST_SECONDS));
}

#[test]
fn a_server_told_to_end_while_it_begins_a_device_does_so() {
    if !guests_run() {
        return;
    }
    in_a_guest(|| Guest::new(VOLUME_BYTES, &[]).runs("ublk-early-end.sh", "", GUEST_SECONDS));
}

#[test]
fn a_kernel_without_the_driver_is_told_in_one_line_and_nothing_is_made() {
    if Path::new("/dev/ublk-control").exists() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let backing = folder.path().join("volume.img");
    let output = floe(&[
        "attach",
        "--cache",
        "memory:8MiB",
        "--backing",
        &format!("file:{},size=1MiB", backing.display()),
        "--state-dir",
        text(folder.path()),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("modprobe ublk_drv"), "{line}");
    assert!(!backing.exists());
}
