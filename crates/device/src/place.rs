//! The location of a file or block device: the bytes to which a path leads, independent of its
//! name.
//!
//! A hard link, a symbolic link and a bind mount lead to one inode. A loop device is a range of its
//! file, a partition a range of its disk. A file that does not exist yet is a name in a folder.

use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Bytes per sector in the numbers of sysfs.
const SYSFS_SECTOR: u64 = 512;

/// The maximum nesting of loop devices that is followed.
const MOST_LEVELS: usize = 8;

/// The location of the bytes to which a path leads. Paths with overlapping locations share storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    base: Base,
    bytes: Range<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Base {
    /// A file, by its file system number and inode.
    File(u64, u64),
    /// A block device that is not part of another one, by its device number.
    Disk(u64),
    /// A name in a folder where no file exists yet, by the folder's file system number and inode.
    Absent(u64, u64, PathBuf),
}

/// A file or disk that underlies a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) path: PathBuf,
    /// The range of the file or disk that the upper device uses.
    pub(crate) bytes: Range<u64>,
    pub(crate) kind: BelowKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BelowKind {
    /// The backing file of a loop device.
    LoopFile,
    /// The disk that contains a partition.
    Disk,
    /// A member of a device mapper device or a RAID. Other devices may use the same bytes, such as
    /// the volumes of a group.
    Member,
}

impl Below {
    /// Returns the bytes of the underlying file or disk that a range of the upper device maps to.
    pub(crate) fn part(&self, of_device: &Range<u64>) -> Range<u64> {
        let at = |byte: u64| self.bytes.start.saturating_add(byte).min(self.bytes.end);
        at(of_device.start)..at(of_device.end)
    }
}

impl Place {
    /// Returns the location to which a path leads; `None` if not even its folder exists.
    pub fn of(path: &Path) -> Option<Place> {
        Sysfs::here().place_of(path, MOST_LEVELS)
    }

    /// Returns whether both locations have bytes in common.
    pub fn overlaps(&self, other: &Place) -> bool {
        let (one, two) = (&self.bytes, &other.bytes);
        self.base == other.base && one.start < two.end && two.start < one.end
    }
}

/// The sysfs folder with the kernel's information on block devices.
pub(crate) struct Sysfs(PathBuf);

impl Sysfs {
    pub(crate) fn here() -> Sysfs {
        Sysfs("/sys".into())
    }

    fn place_of(&self, path: &Path, levels: usize) -> Option<Place> {
        match std::fs::metadata(path) {
            Ok(data) if data.file_type().is_block_device() => {
                Some(self.of_disk(data.rdev(), levels))
            }
            Ok(data) => Some(of_file(&data)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = std::fs::metadata(folder.unwrap_or(Path::new("."))).ok()?;
                let base = Base::Absent(folder.dev(), folder.ino(), path.file_name()?.into());
                Some(Place { base, bytes: 0..u64::MAX })
            }
            Err(_) => None,
        }
    }

    fn of_disk(&self, number: u64, levels: usize) -> Place {
        let itself = Place { base: Base::Disk(number), bytes: 0..u64::MAX };
        let is_part = |below: &Below| below.kind != BelowKind::Member && levels > 0;
        let Some(below) = self.below(number).into_iter().find(is_part) else { return itself };
        match self.place_of(&below.path, levels - 1) {
            Some(Place { base: Base::Absent(..), .. }) | None => itself,
            Some(Place { base, bytes: of }) => {
                let at = |byte: u64| of.start.saturating_add(byte).min(of.end);
                Place { base, bytes: at(below.bytes.start)..at(below.bytes.end) }
            }
        }
    }

    /// Returns the devices that underlie a block device, as far as the system reports them: the
    /// file of a loop device, the disk of a partition, the members of a device mapper device or a
    /// RAID.
    pub(crate) fn below(&self, number: u64) -> Vec<Below> {
        let link = self.0.join(format!("dev/block/{}:{}", major(number), minor(number)));
        let Ok(device) = link.canonicalize() else { return Vec::new() };
        let bytes_in =
            |name: &str| Some(read(&device.join(name))?.parse::<u64>().ok()? * SYSFS_SECTOR);
        let size = bytes_in("size").unwrap_or(u64::MAX);
        if let Some(path) = read(&device.join("loop/backing_file")) {
            let offset = read(&device.join("loop/offset")).and_then(|text| text.parse().ok());
            let start: u64 = offset.unwrap_or(0);
            let bytes = start..start.saturating_add(size);
            return vec![Below { path: path.into(), bytes, kind: BelowKind::LoopFile }];
        }
        if let (true, Some(start)) = (device.join("partition").exists(), bytes_in("start")) {
            let disk = device.parent().and_then(name_of);
            let bytes = start..start.saturating_add(size);
            return disk
                .map(|path| Below { path, bytes, kind: BelowKind::Disk })
                .into_iter()
                .collect();
        }
        let members = std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
        let members = members.filter_map(|member| name_of(&member.path()));
        let bytes = 0..u64::MAX; // that of a member which the device has is not told
        let below = |path| Below { path, bytes: bytes.clone(), kind: BelowKind::Member };
        members.map(below).collect()
    }
}

fn of_file(data: &Metadata) -> Place {
    Place { base: Base::File(data.dev(), data.ino()), bytes: 0..u64::MAX }
}

/// Returns the device file for a folder in sysfs. Sysfs has `!` where the name has `/`.
fn name_of(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?.replace('!', "/");
    Some(Path::new("/dev").join(name))
}

/// Returns the text of a file in sysfs, if there is any.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    /// Creates a sysfs folder with loop devices over a file: `(minor, offset, bytes)`.
    fn loops(file: &Path, devices: &[(u32, u64, u64)]) -> (tempfile::TempDir, Sysfs) {
        let folder = tempfile::tempdir().unwrap();
        let links = folder.path().join("dev/block");
        std::fs::create_dir_all(&links).unwrap();
        for (minor, offset, bytes) in devices {
            let device = folder.path().join(format!("devices/virtual/block/loop{minor}"));
            std::fs::create_dir_all(device.join("loop")).unwrap();
            let write = |name: &str, text: String| {
                std::fs::write(device.join(name), text + "\n").unwrap();
            };
            write("loop/backing_file", file.display().to_string());
            write("loop/offset", offset.to_string());
            write("size", (bytes / SYSFS_SECTOR).to_string());
            symlink(&device, links.join(format!("7:{minor}"))).unwrap();
        }
        let sysfs = Sysfs(folder.path().to_owned());
        (folder, sysfs)
    }

    #[test]
    fn every_name_of_a_file_leads_to_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), [0; 512]).unwrap();
        std::fs::write(path("b"), [0; 512]).unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        symlink("a", path("soft")).unwrap();
        std::fs::create_dir(path("in")).unwrap();
        let of = |name: &str| Place::of(&path(name)).unwrap();
        for name in ["a", "hard", "soft", "in/../a", "./a"] {
            assert!(of("a").overlaps(&of(name)), "{name}");
        }
        assert!(!of("a").overlaps(&of("b")));
        // Files that are to be made.
        assert!(of("new").overlaps(&of("in/../new")));
        assert!(!of("new").overlaps(&of("newer")) && !of("new").overlaps(&of("in/new")));
        assert_eq!(Place::of(&path("none/new")), None);
    }

    #[test]
    fn a_loop_device_is_a_range_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        std::fs::write(&file, [0; 512]).unwrap();
        let halves = [(0, 0, 1 << 20), (1, 1 << 20, 1 << 20), (2, 0, 2 << 20)];
        let (_system, sysfs) = loops(&file, &halves);
        let of = |minor| sysfs.of_disk(makedev(7, minor), MOST_LEVELS);
        let whole = Place::of(&file).unwrap();
        assert!((0..3).all(|minor| whole.overlaps(&of(minor))));
        assert!(!of(0).overlaps(&of(1)) && of(0).overlaps(&of(2)) && of(1).overlaps(&of(2)));
        // One that the system says nothing of is itself.
        assert!(of(9).overlaps(&of(9)) && !of(9).overlaps(&whole));
        std::fs::remove_file(&file).unwrap();
        assert!(!of(0).overlaps(&of(1)) && of(0).overlaps(&of(0)), "its file is gone");
    }
}
