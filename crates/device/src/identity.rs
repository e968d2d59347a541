//! The identity of a device: facts that stay constant over a restart of the program or the machine,
//! and the rule that compares them.
//!
//! Each [`Fact`] has a kind, and only facts of one kind are compared: a serial number with a serial
//! number, an inode with an inode. The rule, [`Identity::compare`], is a pure function over facts;
//! `collect` finds them in the system. Facts are stored as words of 64 bits, the kind in the upper
//! eight. Numbers that the kernel assigns at boot, such as major and minor, are no facts.
//!
//! A file system's UUID does not identify the device below it, since a client that formats the
//! volume changes the UUID. It is used for files only, to identify the file system that contains
//! the file.

use std::fmt;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{fstatfs, major, minor};

/// Bits of a fact's word that hold its value.
const VALUE_BITS: u32 = 56;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// A kind of fact. The numbers are part of the cache format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FactKind {
    /// The inode number of a file.
    Inode = 1,
    /// The time at which a file was created.
    Birth = 2,
    /// The UUID of the file system that contains a file.
    FileSystem = 3,
    /// The file system number from `statfs`, used where the file system derives it from its UUID.
    FileSystemNumber = 4,
    /// The offset of a loop device in its backing file; absent if zero.
    Offset = 5,
    /// The UUID that the device mapper gives a device (LVM, encryption, multipath).
    Mapping = 16,
    /// The UUID of a Linux software RAID.
    Raid = 17,
    /// The world-wide name of a disk, combined with the start of a partition on it.
    WorldWideName = 18,
    /// The serial number of a disk, combined with the start of a partition on it.
    Serial = 19,
    /// The UUID of a partition in the partition table.
    Partition = 20,
    /// A Ceph image: its cluster, pool, image id and snapshot, if any.
    Image = 21,
    /// An NBD export: the server's address and the export's name.
    Export = 22,
    /// A mirror, by the id in the headers of its halves.
    Mirror = 23,
    /// A volume in a bucket, by the id in its description.
    Bucket = 24,
}

/// Kinds of fact that only files have, in the order of [`GROUPS`].
const OF_FILES: [FactKind; 5] = [
    FactKind::Inode,
    FactKind::Birth,
    FactKind::FileSystem,
    FactKind::FileSystemNumber,
    FactKind::Offset,
];

/// Groups of kinds. In each group, the first kind that both identities have decides; all groups
/// must agree.
const GROUPS: [&[FactKind]; 11] = [
    &[FactKind::Mirror],
    &[FactKind::Bucket],
    &[FactKind::Image],
    &[FactKind::Export],
    &[FactKind::Mapping],
    &[FactKind::Raid],
    &[FactKind::WorldWideName, FactKind::Serial],
    &[FactKind::Partition],
    &[FactKind::FileSystem, FactKind::FileSystemNumber],
    &[FactKind::Inode],
    &[FactKind::Birth],
];

impl fmt::Display for FactKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inode => "inode",
            Self::Birth => "time of creation",
            Self::FileSystem | Self::FileSystemNumber => "file system",
            Self::Offset => "offset in its file",
            Self::Mapping => "device mapper UUID",
            Self::Raid => "RAID UUID",
            Self::WorldWideName => "world-wide name",
            Self::Serial => "serial number",
            Self::Partition => "partition UUID",
            Self::Image => "image id",
            Self::Export => "server and export",
            Self::Mirror => "mirror",
            Self::Bucket => "id of the volume in its bucket",
        })
    }
}

/// A property that distinguishes a device from others, encoded in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact(u64);

impl Fact {
    /// Creates a fact from the lower 56 bits of a number.
    pub fn number(kind: FactKind, value: u64) -> Self {
        Self((kind as u64) << VALUE_BITS | value & VALUE_MASK)
    }

    /// Creates a fact from the checksum of a text.
    pub fn text(kind: FactKind, text: &str) -> Self {
        Self::number(kind, crc_fast::crc64_nvme(text.as_bytes()))
    }

    fn is_of(self, kind: FactKind) -> bool {
        self.0 >> VALUE_BITS == kind as u64
    }
}

/// The known facts that identify a device; there may be none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity(Vec<Fact>);

/// The result of comparing a device with the device that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// All facts that both identities have agree, and there is at least one.
    Same,
    /// The identities have no fact in common.
    Unknown,
    /// A fact of this kind differs.
    Other(FactKind),
    /// One is a file, the other a disk.
    OtherClass,
}

impl Identity {
    /// Creates an identity from facts.
    pub fn of(facts: impl IntoIterator<Item = Fact>) -> Self {
        let mut facts: Vec<Fact> = facts.into_iter().collect();
        facts.sort_unstable();
        Self(facts)
    }

    /// Reads an identity that was stored in a cache. Kinds unknown to this version are kept, but
    /// not compared.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        Self::of(words.into_iter().map(Fact))
    }

    /// Returns the words that represent the identity in a cache.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|fact| fact.0)
    }

    /// Converts an identity from version 2 of the cache format: an inode number or a hash of
    /// several; 0 means unknown.
    pub fn from_version_2(number: u64) -> Self {
        Self::of((number != 0).then(|| Fact::number(FactKind::Inode, number)))
    }

    /// Returns the identity of a stripe: for each kind of fact that all members have, a hash of
    /// their facts in order.
    pub(crate) fn of_stripe(members: &[Identity]) -> Self {
        let [first, ..] = members else { return Self::default() };
        let combined = first.0.iter().filter_map(|fact| {
            let kind = fact.0 >> VALUE_BITS;
            let of = |member: &Identity| {
                member.0.iter().find(|fact| fact.0 >> VALUE_BITS == kind).copied()
            };
            let facts = members.iter().map(of).collect::<Option<Vec<Fact>>>()?;
            let value = mix(facts.iter().map(|fact| fact.0 & VALUE_MASK));
            Some(Fact(kind << VALUE_BITS | value & VALUE_MASK))
        });
        Self::of(combined)
    }

    /// Returns the identity of a mirror, independent of which of its halves are present.
    pub(crate) fn of_mirror(id: &[u8; 16]) -> Self {
        Self::of([Fact::number(FactKind::Mirror, crc_fast::crc64_nvme(id))])
    }

    fn fact(&self, kind: FactKind) -> Option<Fact> {
        self.0.iter().copied().find(|fact| fact.is_of(kind))
    }

    /// Returns whether this is the identity of a file; `None` if no fact is known.
    fn is_of_file(&self) -> Option<bool> {
        let is = |fact: &Fact| OF_FILES.iter().any(|kind| fact.is_of(*kind));
        (!self.0.is_empty()).then(|| self.0.iter().any(is))
    }

    /// Compares this recorded identity with the one that was found now.
    pub fn compare(&self, found: &Identity) -> Likeness {
        let (Some(was_file), Some(is_file)) = (self.is_of_file(), found.is_of_file()) else {
            return Likeness::Unknown;
        };
        if was_file != is_file {
            return Likeness::OtherClass;
        }
        if self.fact(FactKind::Offset) != found.fact(FactKind::Offset) {
            return Likeness::Other(FactKind::Offset);
        }
        let mut likeness = Likeness::Unknown;
        for group in GROUPS {
            let both =
                group.iter().find_map(|kind| Some((*kind, self.fact(*kind)?, found.fact(*kind)?)));
            match both {
                Some((kind, was, is)) if was != is => return Likeness::Other(kind),
                Some(_) => likeness = Likeness::Same,
                None => {}
            }
        }
        likeness
    }
}

/// Hashes several numbers, order included, into one that is never 0. The hash is part of the cache
/// format, for identities of stripes.
fn mix(values: impl Iterator<Item = u64>) -> u64 {
    let add = |all: u64, one: u64| (all.rotate_left(17) ^ one).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    values.fold(1, add).max(1)
}

/// Magic numbers of file systems that derive their `statfs` number from their UUID: ext2 to 4,
/// btrfs, f2fs, ZFS. Others derive it from a device number, which changes.
const NUMBERED_BY_UUID: [u64; 4] = [0xEF53, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1];

/// The maximum nesting of loop devices that is followed.
const MOST_LOOPS: usize = 8;

/// The folders in which the system describes block devices.
struct Places {
    sysfs: PathBuf,
    udev: PathBuf,
}

/// Collects all facts about an open file or block device, from sysfs and udev's database. A loop
/// device is identified by its backing file. Facts that cannot be determined are omitted.
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

/// Returns the text of a file in sysfs, if there is any.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim().trim_matches('\0').trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns whether a disk's name identifies it; disks without a name report zeros.
fn is_telling(name: &str) -> bool {
    name.chars().any(|letter| letter.is_ascii_alphanumeric() && letter != '0')
}

#[cfg(test)]
mod tests {
    use super::FactKind::*;
    use super::*;

    fn identity(facts: &[(FactKind, &str)]) -> Identity {
        Identity::of(facts.iter().map(|(kind, text)| Fact::text(*kind, text)))
    }

    #[test]
    fn like_is_compared_with_like() {
        let disk = [(WorldWideName, "wwn-a"), (Serial, "S1")];
        let partition = [(WorldWideName, "wwn-a:2048"), (Serial, "S1:2048"), (Partition, "p1")];
        let file = [(FileSystem, "f"), (Inode, "12"), (Birth, "noon")];
        let cases: [(&str, &[_], &[_], Likeness); 19] = [
            ("nothing is known of either", &[], &[], Likeness::Unknown),
            ("nothing was known, as of a disk in version 2", &[], &disk, Likeness::Unknown),
            ("nothing is found", &disk, &[], Likeness::Unknown),
            ("the same disk under any kernel name", &disk, &disk, Likeness::Same),
            (
                "two disks swapped",
                &disk,
                &[(WorldWideName, "wwn-b"), (Serial, "S2")],
                Likeness::Other(WorldWideName),
            ),
            (
                "a bridge that makes up serial numbers",
                &disk,
                &[(WorldWideName, "wwn-a"), (Serial, "X")],
                Likeness::Same,
            ),
            ("a weaker identity is found: the same", &disk, &[(Serial, "S1")], Likeness::Same),
            (
                "a weaker identity is found: another",
                &disk,
                &[(Serial, "S2")],
                Likeness::Other(Serial),
            ),
            ("a stronger identity is found", &[(Serial, "S1")], &disk, Likeness::Same),
            ("no kind in common", &[(Serial, "S1")], &[(Mapping, "LVM-1")], Likeness::Unknown),
            ("the partition", &partition, &partition, Likeness::Same),
            (
                "a clone of the partition on another disk",
                &partition,
                &[(WorldWideName, "wwn-b:2048"), (Partition, "p1")],
                Likeness::Other(WorldWideName),
            ),
            (
                "another partition in its place",
                &partition,
                &[(WorldWideName, "wwn-a:2048"), (Partition, "p2")],
                Likeness::Other(Partition),
            ),
            (
                "two logical volumes",
                &[(Mapping, "LVM-1")],
                &[(Mapping, "LVM-2")],
                Likeness::Other(Mapping),
            ),
            ("a renamed file", &file, &file, Likeness::Same),
            (
                "a copy in the same file system",
                &file,
                &[(FileSystem, "f"), (Inode, "13"), (Birth, "one")],
                Likeness::Other(Inode),
            ),
            (
                "a file made anew with the same inode number",
                &file,
                &[(FileSystem, "f"), (Inode, "12"), (Birth, "one")],
                Likeness::Other(Birth),
            ),
            (
                "the same inode number in another file system",
                &file,
                &[(FileSystem, "g"), (Inode, "12")],
                Likeness::Other(FileSystem),
            ),
            ("a file became a disk", &file, &disk, Likeness::OtherClass),
        ];
        for (case, was, is, wanted) in cases {
            assert_eq!(identity(was).compare(&identity(is)), wanted, "{case}");
        }
    }

    #[test]
    fn a_loop_device_elsewhere_in_its_file_is_another() {
        let (whole, part) =
            (identity(&[(Inode, "1")]), identity(&[(Inode, "1"), (Offset, "4096")]));
        assert_eq!(whole.compare(&part), Likeness::Other(Offset));
        assert_eq!(part.compare(&part), Likeness::Same);
    }

    #[test]
    fn an_identity_of_version_2_is_an_inode() {
        let of = |inode| Identity::of([Fact::number(Inode, inode), Fact::text(Birth, "noon")]);
        assert_eq!(Identity::from_version_2(4711).compare(&of(4711)), Likeness::Same);
        assert_eq!(Identity::from_version_2(4711).compare(&of(4712)), Likeness::Other(Inode));
        assert_eq!(Identity::from_version_2(0).compare(&of(4712)), Likeness::Unknown);
    }

    #[test]
    fn a_stripe_is_what_all_its_members_are_in_their_order() {
        let (a, b) =
            (identity(&[(WorldWideName, "a"), (Serial, "1")]), identity(&[(WorldWideName, "b")]));
        let stripe = |members: &[&Identity]| {
            Identity::of_stripe(&members.iter().map(|member| (*member).clone()).collect::<Vec<_>>())
        };
        assert_eq!(stripe(&[&a, &b]).compare(&stripe(&[&a, &b])), Likeness::Same);
        assert_eq!(stripe(&[&a, &b]).compare(&stripe(&[&b, &a])), Likeness::Other(WorldWideName));
        assert_eq!(stripe(&[&a, &b]).words().len(), 1, "not all have a serial number");
        assert_eq!(stripe(&[&a, &Identity::default()]), Identity::default());
        // As version 2 combined inodes.
        let inode = |number| Identity::of([Fact::number(Inode, number)]);
        let known = Identity::from_version_2(mix([17, 4].into_iter()));
        assert_eq!(known.compare(&stripe(&[&inode(17), &inode(4)])), Likeness::Same);
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let identity = Identity::of([Fact::number(Inode, 7), Fact(0xEE << 56 | 5)]);
        assert_eq!(Identity::from_words(identity.words()), identity);
        assert_eq!(identity.words().next(), Some(1 << 56 | 7));
        assert_eq!(identity.compare(&Identity::of([Fact::number(Inode, 7)])), Likeness::Same);
    }
}

#[cfg(test)]
mod collect_tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::Likeness;
    use super::*;

    /// Creates folders like `sys` and `udev` with these files.
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

    /// Returns the identity of a device that has this number at one boot and these files in sysfs.
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
