//! Volumes as local block devices, by the kernel's ublk driver.
//!
//! A `LocalDevice` is one block device through its life: created or taken over, started, stopped,
//! deleted. A `LocalQueue` is the session of one of its hardware queues, which a worker serves: it
//! turns the kernel's requests into requests of the cache. [`uses()`] finds the users of a block
//! device.

mod device;
mod local_queue;

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use floe_ublk::block_path;

pub use floe_ublk::{UblkError, protect_memory};

pub use device::{Found, check_driver, delete, find};

pub(crate) use device::{Ending, LocalDevice, LocalDevices, LocalVolume};
pub(crate) use local_queue::{LocalQueue, LocalRequest, QueueOrder};

/// Gives local block devices stable names: `/dev/floe/NAME` links to the block device of volume
/// NAME.
///
/// The server creates the link itself, so that the link exists without udev too, and before the
/// server reports that it is ready. systemd waits for a device of /etc/fstab until udev reports its
/// links. So before the block device appears, the server also writes a note for the rule in
/// packaging/65-floe.rules, `/run/floe/ublkb0.udev`, from which udev creates the same link.
///
/// Invariants: a device has at most one name. The link to an existing device is never replaced; one
/// to a deleted device may be.
#[derive(Debug)]
pub(crate) struct Names {
    links: PathBuf,
    notes: PathBuf,
}

/// The reason why a device gets no name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    #[error("links are named with letters, digits and +-.:=@_ only")]
    Characters,
    #[error("{} is {} already; give volumes of different servers different names", link.display(),
        device.display())]
    Taken { link: PathBuf, device: PathBuf },
    #[error("{}: {source}", path.display())]
    System { path: PathBuf, source: io::Error },
}

impl Names {
    /// Returns the folders of a running system: `/dev/floe` for links, `/run/floe` for notes.
    pub(crate) fn of_system() -> Self {
        Self { links: "/dev/floe".into(), notes: "/run/floe".into() }
    }

    /// Writes the note from which udev names a device, which exists or is about to appear. Other
    /// names of the device are removed.
    ///
    /// # Errors
    /// When the volume's name cannot be a link, or another device has it.
    pub(crate) fn announce(&self, device: u32, volume: &str) -> Result<(), NameError> {
        self.forget_but(device, Some(volume));
        if !is_usable(volume) {
            return Err(NameError::Characters);
        }
        let link = self.links.join(volume);
        if let Ok(target) = fs::read_link(&link)
            && target != target_of(device)
        {
            let device = Path::new("/dev").join(target.file_name().unwrap_or_default());
            return Err(NameError::Taken { link, device });
        }
        let note = self.note(device);
        let written = fs::create_dir_all(&self.notes)
            .and_then(|()| fs::write(&note, format!("FLOE_VOLUME={volume}\n")));
        written.map_err(|source| NameError::System { path: note, source })
    }

    /// Creates the link to an existing device that was announced.
    ///
    /// # Errors
    /// When the link cannot be created.
    pub(crate) fn link(&self, device: u32, volume: &str) -> Result<(), NameError> {
        let link = self.links.join(volume);
        let made = self.folder().and_then(|()| match symlink(target_of(device), &link) {
            // udev was first, or an earlier server of this device.
            Err(_) if fs::read_link(&link).is_ok_and(|target| target == target_of(device)) => {
                Ok(())
            }
            made => made,
        });
        made.map_err(|source| NameError::System { path: link, source })
    }

    /// Removes the name of a deleted device, and all links to devices that no longer exist.
    pub(crate) fn forget(&self, device: u32) {
        self.forget_but(device, None);
    }

    fn forget_but(&self, device: u32, kept: Option<&str>) {
        let _ = fs::remove_file(self.note(device)); // there may be none
        for entry in fs::read_dir(&self.links).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(target) = fs::read_link(&path) else { continue };
            let is_ours = target == target_of(device);
            let is_device = target.to_string_lossy().starts_with("../ublkb");
            let is_gone = is_device && !is_ours && !path.exists();
            if is_gone || is_ours && kept.is_none_or(|kept| name != kept) {
                let _ = fs::remove_file(path); // udev may be faster
            }
        }
    }

    /// Creates the folder of links, readable for everyone.
    fn folder(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o755).create(&self.links) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // The process may have a mask of its own.
            made => {
                made.and_then(|()| fs::set_permissions(&self.links, Permissions::from_mode(0o755)))
            }
        }
    }

    fn note(&self, device: u32) -> PathBuf {
        let name = block_path(device);
        self.notes.join(name.file_name().unwrap_or_default()).with_extension("udev")
    }
}

/// Returns the target of a device's link, in the form that udev writes.
fn target_of(device: u32) -> PathBuf {
    Path::new("..").join(block_path(device).file_name().unwrap_or_default())
}

/// Returns whether a volume's name can be that of a link. udev replaces other characters.
fn is_usable(volume: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-.:=@_".contains(c);
    (1..=255).contains(&volume.len()) && !volume.starts_with('.') && volume.chars().all(is_plain)
}

/// Returns the uses of a block device and of its partitions, each as a phrase such as "mounted at
/// /srv". `device` is its name in `/dev`.
///
/// Sources: `proc_pid_mountinfo(5)`, `proc_swaps(5)`, and the kernel's
/// `Documentation/ABI/stable/sysfs-block` for `holders`.
pub fn uses(device: &str) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let folder = Path::new("/sys/block").join(device);
    let mut names = vec![device.to_owned()];
    names.extend(entries(&folder).into_iter().filter(|name| name.starts_with(device)));
    let number =
        |name: &String| read(&format!("/sys/class/block/{name}/dev")).trim_end().to_owned();
    let numbers: Vec<String> =
        names.iter().map(number).filter(|number| !number.is_empty()).collect();
    let mut found = mounts(&read("/proc/self/mountinfo"), &numbers);
    found.extend(swaps(&read("/proc/swaps"), &names));
    for name in names {
        let holders = entries(&Path::new("/sys/class/block").join(&name).join("holders"));
        found.extend(holders.into_iter().map(|holder| format!("a part of {holder}")));
    }
    found
}

fn entries(folder: &Path) -> Vec<String> {
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns where devices with these numbers are mounted.
fn mounts(mountinfo: &str, numbers: &[String]) -> Vec<String> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let number = words.next()?;
        let place = words.nth(1)?;
        let is_one = numbers.iter().any(|one| one == number);
        is_one.then(|| format!("mounted at {}", place.replace("\\040", " ")))
    };
    mountinfo.lines().filter_map(place).collect()
}

/// Returns which devices with these names are used as swap.
fn swaps(table: &str, names: &[String]) -> Vec<String> {
    let used = |line: &str| {
        let name = line.split_whitespace().next()?.strip_prefix("/dev/")?;
        names.iter().any(|one| one == name).then(|| format!("swap on /dev/{name}"))
    };
    table.lines().skip(1).filter_map(used).collect()
}

#[cfg(test)]
mod names_tests {
    use super::*;

    struct System {
        folder: tempfile::TempDir,
        names: Names,
    }

    impl System {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let names =
                Names { links: folder.path().join("floe"), notes: folder.path().join("run") };
            Self { folder, names }
        }

        fn appears(&self, device: u32) {
            fs::write(self.folder.path().join(format!("ublkb{device}")), []).expect("a file");
        }

        fn goes(&self, device: u32) {
            fs::remove_file(self.folder.path().join(format!("ublkb{device}"))).expect("a file");
        }

        fn attaches(&self, device: u32, volume: &str) -> Result<(), NameError> {
            self.names.announce(device, volume)?;
            self.appears(device);
            self.names.link(device, volume)
        }

        fn target(&self, volume: &str) -> Option<String> {
            let target = fs::read_link(self.names.links.join(volume)).ok()?;
            Some(target.display().to_string())
        }

        fn note(&self, device: u32) -> Option<String> {
            fs::read_to_string(self.names.note(device)).ok()
        }
    }

    #[test]
    fn a_device_has_a_link_and_a_note_until_it_is_forgotten() {
        let system = System::new();
        system.attaches(3, "pictures").expect("a name");
        assert_eq!(system.target("pictures").as_deref(), Some("../ublkb3"));
        assert_eq!(system.note(3).as_deref(), Some("FLOE_VOLUME=pictures\n"));
        system.attaches(3, "pictures").expect("the next server has the same");
        let mode = system.names.links.metadata().expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        system.goes(3);
        system.names.forget(3);
        assert_eq!((system.target("pictures"), system.note(3)), (None, None));
    }

    #[test]
    fn a_living_device_keeps_its_name() {
        let system = System::new();
        system.attaches(0, "floe").expect("a name");
        let refused = system.attaches(1, "floe").expect_err("it is taken").to_string();
        assert!(refused.contains("floe is /dev/ublkb0 already"), "{refused}");
        assert_eq!((system.target("floe").as_deref(), system.note(1)), (Some("../ublkb0"), None));
        // One whose server and machine's driver are gone does not.
        system.goes(0);
        system.attaches(1, "floe").expect("a name");
        assert_eq!(system.target("floe").as_deref(), Some("../ublkb1"));
    }

    #[test]
    fn another_volume_with_the_number_of_an_old_device_has_its_own_name_only() {
        let system = System::new();
        system.attaches(0, "old").expect("a name");
        system.attaches(0, "new").expect("a name");
        assert_eq!((system.target("old"), system.target("new")), (None, Some("../ublkb0".into())));
        // Also where it can have none.
        system.names.announce(0, "two words").expect_err("no such link");
        assert_eq!((system.target("new"), system.note(0)), (None, None));
    }

    #[test]
    fn links_of_others_stay() {
        let system = System::new();
        system.attaches(0, "a").expect("a name");
        symlink("elsewhere", system.names.links.join("other")).expect("a link");
        system.names.forget(5);
        assert_eq!(system.target("a").as_deref(), Some("../ublkb0"));
        assert!(system.target("other").is_some());
    }

    #[test]
    fn names_that_udev_would_change_are_refused() {
        for name in ["a/b", "..", ".a", "two words", "é", "a$b", "a%k", ""] {
            assert!(!is_usable(name), "{name:?}");
        }
        for name in ["pictures", "a-b_c.d", "1", "x@y:z=+"] {
            assert!(is_usable(name), "{name:?}");
        }
    }
}

#[cfg(test)]
mod uses_tests {
    use super::*;

    #[test]
    fn mounts_and_swap_are_found_by_number_and_name() {
        let info = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    30 22 259:0 / /my\\040disk rw,noatime shared:1 - ext4 /dev/ublkb0 rw\n\
                    31 22 259:1 /sub /bound rw - ext4 /dev/ublkb0p1 rw\n";
        let numbers = ["259:0".to_owned(), "259:1".to_owned()];
        assert_eq!(mounts(info, &numbers), ["mounted at /my disk", "mounted at /bound"]);
        assert!(mounts(info, &["8:10".to_owned()]).is_empty());
        let table = "Filename\tType\tSize\tUsed\tPriority\n/dev/ublkb0  partition 1 0 -2\n";
        assert_eq!(swaps(table, &["ublkb0".to_owned()]), ["swap on /dev/ublkb0"]);
        assert!(swaps(table, &["ublkb1".to_owned()]).is_empty());
    }

    #[test]
    fn an_absent_device_has_no_users() {
        assert!(uses("no-such-device").is_empty());
    }
}
