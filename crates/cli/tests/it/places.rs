//! One file by several names: links, bind mounts and loop devices do not let two users have it.

use std::path::Path;
use std::process::Command;

use crate::common::{Volume, floe, text};
use floe_testkit::{is_installed, pattern, skipped};

const MIB: usize = 1 << 20;

/// A loop device on a file, which goes with this.
struct Loop(String);

impl Loop {
    /// `None` where this machine gives none.
    fn on(file: &Path) -> Option<Self> {
        if !is_installed(&["losetup"]) {
            return None;
        }
        let made = Command::new("losetup").args(["--find", "--show", text(file)]).output();
        let made = made.expect("losetup runs");
        let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if !made.status.success() || std::fs::File::open(&name).is_err() {
            skipped("this machine gives no loop device");
            return None;
        }
        Some(Self(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// What a second server of a volume complains of, with these changes of its command line.
#[track_caller]
fn refused(volume: &Volume, changes: &[(&str, &str)], words: &[&str]) {
    let mut line = volume.command_line();
    for (from, to) in changes {
        line.iter_mut().for_each(|word| *word = word.replace(from, to));
    }
    let output = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
}

#[test]
fn a_loop_device_over_a_file_is_that_file() {
    let volume = Volume::new(&pattern(1, 5 * MIB), "back");
    volume.serve().end(); // it makes the cache
    let Some(device) = Loop::on(&volume.path("cache.img")) else { return };
    let cache = format!("file:{}", volume.path("cache.img").display());
    let through = format!("file:{}", device.0);
    // Another volume's server would use the cache by the loop device.
    std::fs::copy(volume.path("backing.img"), volume.path("b.img")).expect("a copy");
    let elsewhere = [("nbd.sock", "b.sock"), ("admin.sock", "b.admin"), ("backing.img", "b.img")];
    let by_loop = [&elsewhere[..], &[(cache.as_str(), through.as_str())]].concat();
    let server = volume.serve();
    refused(&volume, &by_loop, &[&device.0, "in use by another process"]);
    server.end();
    // The other way round, the file is in use.
    let mut line = volume.command_line();
    line.iter_mut().for_each(|word| *word = word.replace(&cache, &through));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let server = crate::common::Server::run(&line, volume.path("floe.log"));
    refused(&volume, &elsewhere, &["cache.img", "in use by another process"]);
    server.end();
    // In one server the two names are told to be one file.
    let backing = format!("file:{}", volume.path("backing.img").display());
    let as_both = [(backing.as_str(), through.as_str())];
    refused(&volume, &as_both, &["same file", &device.0, "cache.img"]);
}

#[test]
fn a_bind_mount_of_a_file_is_that_file() {
    let volume = Volume::new(&pattern(2, 4 * MIB), "through");
    let other = volume.path("other.img");
    std::fs::write(&other, "").expect("a file");
    let mount = |words: &[&str]| {
        Command::new("mount").args(words).status().is_ok_and(|status| status.success())
    };
    let backing = volume.path("backing.img");
    if !is_installed(&["mount", "umount"]) || !mount(&["--bind", text(&backing), text(&other)]) {
        return skipped("this machine makes no bind mount");
    }
    let checked = std::panic::catch_unwind(|| {
        refused(&volume, &[("cache.img", "other.img")], &["same file", "other.img", "backing.img"]);
    });
    let _ = Command::new("umount").arg(&other).status();
    if let Err(panic) = checked {
        std::panic::resume_unwind(panic);
    }
}
