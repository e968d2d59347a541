//! The identity of a device: facts that stay the same over a restart of the program or the machine,
//! and the rule that compares them.
//!
//! Each [`Fact`] says of what kind it is, so that like is compared with like: a serial number with
//! a serial number, an inode with an inode. The rule, [`Identity::compare`], is a pure function
//! over facts; `collect` finds them in the system. Facts are stored as words of 64 bits, the kind
//! in the upper eight. Numbers that the kernel gives at boot, such as major and minor, are no
//! facts.
//!
//! A file system's UUID says nothing of the device below it: a client that formats the volume
//! changes it. It counts for files only, where it names the file system they are in.

mod collect;

use std::fmt;

pub(crate) use collect::identify;

/// Bits of a fact's value.
const VALUE_BITS: u32 = 56;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// A kind of fact. The numbers are stored in caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FactKind {
    /// The number of a file's inode.
    Inode = 1,
    /// When a file was created.
    Birth = 2,
    /// The UUID of the file system a file is in.
    FileSystem = 3,
    /// The number by which `statfs` names that file system, where it is made from its UUID.
    FileSystemNumber = 4,
    /// Where a loop device begins in its file; none at the beginning.
    Offset = 5,
    /// The device mapper's UUID of a device: LVM, encryption, multipath.
    Mapping = 16,
    /// The UUID of a RAID of the kernel.
    Raid = 17,
    /// The world-wide name of a disk, and where a partition begins on it.
    WorldWideName = 18,
    /// The serial number of a disk, and where a partition begins on it.
    Serial = 19,
    /// The UUID in the entry of a partition table.
    Partition = 20,
    /// An image of Ceph: its cluster, its pool, its id and perhaps a snapshot.
    Image = 21,
    /// An export of an NBD server: the server's address and the export's name.
    Export = 22,
    /// A mirror, by the number in its halves' headers.
    Mirror = 23,
}

/// Kinds that only files have, in the order of [`GROUPS`].
const OF_FILES: [FactKind; 5] = [
    FactKind::Inode,
    FactKind::Birth,
    FactKind::FileSystem,
    FactKind::FileSystemNumber,
    FactKind::Offset,
];

/// Of each group the first kind that both identities have decides; in every group they must agree.
const GROUPS: [&[FactKind]; 10] = [
    &[FactKind::Mirror],
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
        })
    }
}

/// Something that tells a device from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact(u64);

impl Fact {
    /// A number, of which the lower 56 bits count.
    pub fn number(kind: FactKind, value: u64) -> Self {
        Self((kind as u64) << VALUE_BITS | value & VALUE_MASK)
    }

    /// A text, by its checksum.
    pub fn text(kind: FactKind, text: &str) -> Self {
        Self::number(kind, crc_fast::crc64_nvme(text.as_bytes()))
    }

    fn is_of(self, kind: FactKind) -> bool {
        self.0 >> VALUE_BITS == kind as u64
    }
}

/// The known facts that identify a device; none, perhaps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity(Vec<Fact>);

/// The result of comparing a device with the one that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// Every fact that both have agrees, and there is one.
    Same,
    /// They have no fact in common.
    Unknown,
    /// A fact differs.
    Other(FactKind),
    /// One is a file and the other one a disk.
    OtherClass,
}

impl Identity {
    /// One made of these facts.
    pub fn of(facts: impl IntoIterator<Item = Fact>) -> Self {
        let mut facts: Vec<Fact> = facts.into_iter().collect();
        facts.sort_unstable();
        Self(facts)
    }

    /// One read from a cache. Kinds that this version does not know are kept, and nothing is
    /// compared with them.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        Self::of(words.into_iter().map(Fact))
    }

    /// The words to store.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        self.0.iter().map(|fact| fact.0)
    }

    /// The identity that version 2 of the cache's format has: the number of an inode, or one made
    /// from several; 0 for none.
    pub fn from_version_2(number: u64) -> Self {
        Self::of((number != 0).then(|| Fact::number(FactKind::Inode, number)))
    }

    /// The identity of members that take turns: each kind of fact that all of them have, in their
    /// order.
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

    /// The identity of a mirror, whichever of its halves are there.
    pub(crate) fn of_mirror(id: &[u8; 16]) -> Self {
        Self::of([Fact::number(FactKind::Mirror, crc_fast::crc64_nvme(id))])
    }

    fn fact(&self, kind: FactKind) -> Option<Fact> {
        self.0.iter().copied().find(|fact| fact.is_of(kind))
    }

    /// True for the identity of a file; `None` where nothing is known.
    fn is_of_file(&self) -> Option<bool> {
        let is = |fact: &Fact| OF_FILES.iter().any(|kind| fact.is_of(*kind));
        (!self.0.is_empty()).then(|| self.0.iter().any(is))
    }

    /// Compares what was known of a device with what is found of one.
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

/// Makes one number of several, whose order counts; never 0. Identities of stripes are stored with
/// it.
fn mix(values: impl Iterator<Item = u64>) -> u64 {
    let add = |all: u64, one: u64| (all.rotate_left(17) ^ one).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    values.fold(1, add).max(1)
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
