//! Facts about a file or block device, found in the system. One that cannot be found out is left
//! out.
//!
//! Of block devices sysfs and the database of udev are read; neither needs more rights than opening
//! the device. A loop device is the file behind it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{fstatfs, major, minor};

use super::{Fact, FactKind, Identity};

/// Magic numbers of file systems whose number in `statfs` is made from their UUID: ext2 to 4,
/// btrfs, f2fs, ZFS. Others make it from the number of a device, which changes.
const NUMBERED_BY_UUID: [u64; 4] = [0xEF53, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1];

/// A loop device may stand on a file that is on another one; not for ever.
const MOST_LOOPS: usize = 8;

/// Where the system says what it knows of block devices.
struct Places {
    sysfs: PathBuf,
    udev: PathBuf,
}

/// Collects all facts about an open file or block device.
pub(crate) fn identify(file: &File, is_block_device: bool) -> Identity {
    let places = Places { sysfs: "/sys".into(), udev: "/run/udev/data".into() };
    let Ok(data) = file.metadata() else { return Identity::default() };
    Identity::of(match is_block_device {
        true => places.of_block_device(data.rdev(), MOST_LOOPS),
        false => places.of_file(&data, file),
    })
}

impl Places {
    fn of_file(&self, data: &Metadata, file: &File) -> Vec<Fact> {
        let mut facts = vec![Fact::number(FactKind::Inode, data.ino())];
        if let Some(birth) = data.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()) {
            facts.push(Fact::number(FactKind::Birth, birth.as_nanos() as u64));
        }
        if let Some(uuid) = self.of_udev(data.dev()).value("ID_FS_UUID") {
            facts.push(Fact::text(FactKind::FileSystem, uuid));
        }
        if let Ok(system) = fstatfs(file)
            && NUMBERED_BY_UUID.contains(&(system.f_type as u64))
        {
            // The type has no accessors; it prints its two numbers.
            facts.push(Fact::text(FactKind::FileSystemNumber, &format!("{:?}", system.f_fsid)));
        }
        facts
    }

    fn of_block_device(&self, number: u64, loops: usize) -> Vec<Fact> {
        let (major, minor) = (major(number), minor(number));
        let link = self.sysfs.join(format!("dev/block/{major}:{minor}"));
        let Ok(device) = link.canonicalize() else { return Vec::new() };
        if let Some(path) = read(&device.join("loop/backing_file")) {
            let offset = read(&device.join("loop/offset")).and_then(|text| text.parse().ok());
            return self.behind_loop(Path::new(&path), offset.unwrap_or(0), loops);
        }
        let udev = self.of_udev(number);
        let mut facts = Vec::new();
        let mut note =
            |kind, text: Option<String>| facts.extend(text.map(|text| Fact::text(kind, &text)));
        note(FactKind::Mapping, read(&device.join("dm/uuid")).or_else(|| udev.owned("DM_UUID")));
        note(FactKind::Raid, read(&device.join("md/uuid")).or_else(|| udev.owned("MD_UUID")));
        // A partition is a part of its disk, whose folder its own is in.
        let start = read(&device.join("start")).filter(|_| device.join("partition").exists());
        let disk = if start.is_some() { device.parent().unwrap_or(&device) } else { &device };
        let part = |text: String| match &start {
            Some(start) => format!("{text}:{start}"),
            None => text,
        };
        let names = ["wwid", "device/wwid", "nguid", "eui", "uuid"];
        let name =
            names.iter().find_map(|name| read(&disk.join(name)).filter(|name| is_telling(name)));
        note(
            FactKind::WorldWideName,
            name.or_else(|| udev.owned("ID_WWN_WITH_EXTENSION")).map(part),
        );
        let serials = ["serial", "device/serial", "device/cid"];
        let serial = serials.iter().find_map(|name| read(&disk.join(name)));
        note(FactKind::Serial, serial.or_else(|| udev.owned("ID_SERIAL")).map(part));
        note(FactKind::Partition, udev.owned("ID_PART_ENTRY_UUID").filter(|_| start.is_some()));
        facts
    }

    fn behind_loop(&self, path: &Path, offset: u64, loops: usize) -> Vec<Fact> {
        // Without the file's own content being needed: a path that is gone or another's is nothing
        // to go by.
        let (Ok(file), true) = (File::open(path), loops > 0) else { return Vec::new() };
        let Ok(data) = file.metadata() else { return Vec::new() };
        let mut facts = match data.is_file() {
            true => self.of_file(&data, &file),
            false => self.of_block_device(data.rdev(), loops - 1),
        };
        facts.extend((offset != 0).then(|| Fact::number(FactKind::Offset, offset)));
        facts
    }

    /// Reads udev's record of a block device.
    fn of_udev(&self, number: u64) -> Udev {
        let file = self.udev.join(format!("b{}:{}", major(number), minor(number)));
        Udev(std::fs::read_to_string(file).unwrap_or_default())
    }
}

/// A device's entry in the database of udev.
struct Udev(String);

impl Udev {
    fn value(&self, name: &str) -> Option<&str> {
        let properties = self.0.lines().filter_map(|line| line.strip_prefix("E:")?.split_once('='));
        let mut found = properties.filter(|(of, value)| *of == name && !value.is_empty());
        found.next().map(|(_, value)| value)
    }

    fn owned(&self, name: &str) -> Option<String> {
        self.value(name).map(str::to_owned)
    }
}

/// The text in a file of sysfs, if there is any.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim().trim_matches('\0').trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// True if the name identifies a disk: disks without a name give zeros.
fn is_telling(name: &str) -> bool {
    name.chars().any(|letter| letter.is_ascii_alphanumeric() && letter != '0')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::super::Likeness;
    use super::*;

    /// A system with these files below `sys` and `udev`.
    fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, Places) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let places = Places { sysfs: folder.path().join("sys"), udev: folder.path().join("udev") };
        (folder, places)
    }

    /// A device with these files in sysfs, as the kernel numbers it at one boot.
    fn disk(number: &str, files: &[(&str, &str)], udev: &str) -> Identity {
        let (folder, places) = system(&[(&format!("udev/b{number}"), udev)]);
        for (path, text) in files {
            let path = folder.path().join("sys/devices/pci/block/sda").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let links = folder.path().join("sys/dev/block");
        std::fs::create_dir_all(&links).unwrap();
        let target = folder.path().join("sys/devices/pci/block/sda");
        let part = target.join("sda1");
        symlink(if part.exists() { part } else { target }, links.join(number)).unwrap();
        let (major, minor) = number.split_once(':').unwrap();
        let number = makedev(major.parse().unwrap(), minor.parse().unwrap());
        Identity::of(places.of_block_device(number, MOST_LOOPS))
    }

    #[test]
    fn a_disk_is_the_same_under_another_number_and_another_disk_is_not() {
        let scsi = |number, wwid| disk(number, &[("device/wwid", wwid), ("size", "100")], "");
        let known = scsi("8:0", "naa.5000c500a1b2c3d4\n");
        assert_eq!(known.compare(&scsi("8:16", "naa.5000c500a1b2c3d4\n")), Likeness::Same);
        let other = Likeness::Other(FactKind::WorldWideName);
        assert_eq!(known.compare(&scsi("8:0", "naa.5000c500a1b2c3d5\n")), other);
        // virtio, whose disks have nothing but a serial number
        let virtio = |number, serial| disk(number, &[("serial", serial)], "");
        assert_eq!(virtio("254:0", "a").compare(&virtio("254:16", "a")), Likeness::Same);
        let other = Likeness::Other(FactKind::Serial);
        assert_eq!(virtio("254:0", "a").compare(&virtio("254:0", "b")), other);
        assert_eq!(disk("254:0", &[("size", "100")], ""), Identity::default());
        // udev knows what this kernel's sysfs does not
        let udev = "S:disk/by-id/ata-X\nE:ID_SERIAL=X_1\nE:ID_WWN_WITH_EXTENSION=0x5000\n";
        assert_eq!(disk("8:0", &[("size", "100")], udev).words().len(), 2);
    }

    #[test]
    fn a_partition_is_a_place_on_its_disk() {
        let part = |start, uuid: &str| {
            let files = [("device/wwid", "naa.5"), ("sda1/partition", "1"), ("sda1/start", start)];
            disk("8:1", &files, &format!("E:ID_PART_ENTRY_UUID={uuid}\nE:ID_SERIAL=1\n"))
        };
        let known = part("2048", "u1");
        assert_eq!(known.words().len(), 3);
        assert_eq!(known.compare(&part("2048", "u1")), Likeness::Same);
        let (elsewhere, anew) = (part("4096", "u1"), part("2048", "u2"));
        assert_eq!(known.compare(&elsewhere), Likeness::Other(FactKind::WorldWideName));
        assert_eq!(known.compare(&anew), Likeness::Other(FactKind::Partition));
    }

    #[test]
    fn a_logical_volume_has_the_uuid_of_the_device_mapper() {
        let volume = |number, uuid| disk(number, &[("dm/uuid", uuid), ("dm/name", "vg-lv")], "");
        assert_eq!(volume("253:0", "LVM-a").compare(&volume("253:4", "LVM-a")), Likeness::Same);
        let other = Likeness::Other(FactKind::Mapping);
        assert_eq!(volume("253:0", "LVM-a").compare(&volume("253:0", "LVM-b")), other);
    }

    #[test]
    fn a_loop_device_is_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        std::fs::write(&file, [0; 512]).unwrap();
        let backing = file.to_str().unwrap();
        let device = |number, offset| {
            disk(number, &[("loop/backing_file", backing), ("loop/offset", offset)], "")
        };
        let itself = identify(&File::open(&file).unwrap(), false);
        assert_eq!(device("7:0", "0").compare(&device("7:3", "0")), Likeness::Same);
        assert_eq!(itself.compare(&device("7:0", "0")), Likeness::Same);
        let elsewhere = Likeness::Other(FactKind::Offset);
        assert_eq!(itself.compare(&device("7:0", "4096")), elsewhere);
    }

    #[test]
    fn a_file_keeps_its_identity_when_renamed_and_a_copy_has_another() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, [0; 512]).unwrap();
        let of = |path: &Path| identify(&File::open(path).unwrap(), false);
        let known = of(&a);
        std::fs::copy(&a, &b).unwrap();
        assert_eq!(known.compare(&of(&b)), Likeness::Other(FactKind::Inode));
        std::fs::rename(&a, &b).unwrap();
        assert_eq!(known.compare(&of(&b)), Likeness::Same);
    }
}
