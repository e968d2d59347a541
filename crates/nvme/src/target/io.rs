//! Commands of I/O queues, validated against the namespaces.

use super::access::AccessState;
use super::request::RequestKind;
use super::{NAMESPACES_MAX, TRANSFER_MAX_BYTES, VOLUMES_MAX};
use crate::wire::{ALL_NAMESPACES, NvmeCommand, Status, io};

/// Bytes of one range in the list of a Dataset Management command.
pub(super) const RANGE_BYTES: usize = 16;

/// Maximum length of a request without data. Longer ranges become several requests.
const PIECE_BYTES: u64 = 1 << 30;

/// A range of bytes in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) volume: u16,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The requests that a command turns into.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// One request. A write and a comparison need data from the host.
    One { kind: RequestKind, range: Range },
    /// One flush request for each of these volumes.
    Flush(Pieces),
    /// The command needs a list of ranges from the host, `list_bytes` long.
    Deallocate { list_bytes: usize },
    /// The command changes the namespace's reservation and needs `bytes` of data from the host.
    Reserve { bytes: usize },
    /// The command returns the namespace's reservation.
    Report,
}

impl Plan {
    /// Returns whether a reservation of another host must allow writing for the command.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::One { kind, .. } => !kind.only_reads(),
            Self::Flush(_) | Self::Deallocate { .. } => true,
            Self::Reserve { .. } | Self::Report => false,
        }
    }
}

/// Validates a command and plans its requests. The command's data is not examined yet.
pub(super) fn plan(command: &NvmeCommand, namespaces: &Namespaces) -> Result<Plan, Status> {
    let opcode = command.opcode();
    if opcode == io::FLUSH {
        let meant = namespaces.meant_by(command.namespace());
        if meant.is_empty() {
            return Err(Status::INVALID_NAMESPACE.final_());
        }
        meant.iter().try_for_each(accessible)?;
        return Ok(Plan::Flush(Pieces::flush(meant)));
    }
    if let Some(bytes) = reservation_data_bytes(opcode) {
        return namespace(command, namespaces).map(|_| Plan::Reserve { bytes });
    }
    if opcode == io::RESERVATION_REPORT {
        return namespace(command, namespaces).map(|_| Plan::Report);
    }
    let durable = command.word(12) & 1 << 30 != 0;
    let deallocate = command.word(12) & 1 << 25 != 0;
    let kind = match opcode {
        io::READ => RequestKind::Read,
        io::VERIFY => RequestKind::Verify,
        io::COMPARE => RequestKind::Compare,
        io::WRITE => RequestKind::Write { durable },
        io::WRITE_ZEROES => RequestKind::WriteZeroes { durable, deallocate },
        io::DATASET_MANAGEMENT => {
            writable(namespace(command, namespaces)?)?;
            let list_bytes = ((command.word(10) & 0xff) as usize + 1) * RANGE_BYTES;
            return Ok(Plan::Deallocate { list_bytes });
        }
        _ => return Err(Status::INVALID_OPCODE.final_()),
    };
    let namespace = namespace(command, namespaces)?;
    if !kind.only_reads() {
        writable(namespace)?;
    }
    let blocks = u64::from(command.word(12) & 0xffff) + 1;
    let range = range(namespace, command.u64(40), blocks)?;
    let is_bounded = !matches!(kind, RequestKind::WriteZeroes { .. });
    if is_bounded && range.bytes > u64::from(TRANSFER_MAX_BYTES) {
        return Err(Status::INVALID_FIELD.final_());
    }
    Ok(Plan::One { kind, range })
}

/// Returns the namespace that a command addresses.
pub(super) fn namespace<'a>(
    command: &NvmeCommand,
    all: &'a Namespaces,
) -> Result<&'a Namespace, Status> {
    let found = all.find(command.namespace()).ok_or(Status::INVALID_NAMESPACE.final_())?;
    accessible(found).map(|()| found)
}

/// Checks that hosts may use the namespace on this path. The status of a refusal allows a retry.
fn accessible(namespace: &Namespace) -> Result<(), Status> {
    match namespace.access {
        AccessState::Optimized => Ok(()),
        AccessState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
        AccessState::Change => Err(Status::ANA_TRANSITION),
    }
}

/// Returns the bytes of data that a host sends with a command that changes a reservation; `None`
/// for other commands.
pub(super) fn reservation_data_bytes(opcode: u8) -> Option<usize> {
    match opcode {
        io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE => Some(16),
        io::RESERVATION_RELEASE => Some(8),
        _ => None,
    }
}

fn writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only { Err(Status::WRITE_PROTECTED.final_()) } else { Ok(()) }
}

/// Returns the range of `blocks` logical blocks from `first`.
fn range(namespace: &Namespace, first: u64, blocks: u64) -> Result<Range, Status> {
    let end = first.checked_add(blocks).filter(|&end| end <= namespace.blocks());
    end.ok_or(Status::LBA_OUT_OF_RANGE.final_())?;
    let shift = namespace.block_size.shift();
    let (offset, bytes) = (first << shift, blocks << shift);
    Ok(Range { volume: namespace.volume, offset, bytes })
}

/// Parses the list of ranges of a Dataset Management command.
pub(super) fn ranges(
    command: &NvmeCommand,
    list: &[u8],
    namespaces: &Namespaces,
) -> Result<Pieces, Status> {
    let mut ranges = Vec::new();
    let namespace = namespace(command, namespaces)?;
    writable(namespace)?; // it may have changed since the command came
    let deallocate = command.word(11) & 1 << 2 != 0; // the other attributes are hints
    let count = (command.word(10) & 0xff) as usize + 1; // hosts may send more than they name
    for descriptor in list.chunks_exact(RANGE_BYTES).take(count) {
        let blocks = u32::from_le_bytes(descriptor[4..8].try_into().expect("four bytes"));
        let first = u64::from_le_bytes(descriptor[8..].try_into().expect("eight bytes"));
        let range = range(namespace, first, blocks.into())?;
        if deallocate && range.bytes > 0 {
            ranges.push(range);
        }
    }
    Ok(Pieces { kind: RequestKind::Deallocate, ranges })
}

/// The outstanding requests of a command that needs several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) kind: RequestKind,
    /// Ranges that are not yet requested.
    ranges: Vec<Range>,
}

impl Pieces {
    /// Creates the flush requests for these namespaces.
    pub(super) fn flush(namespaces: &[Namespace]) -> Self {
        let whole = |it: &Namespace| Range { volume: it.volume, offset: 0, bytes: 0 };
        Self { kind: RequestKind::Flush, ranges: namespaces.iter().map(whole).collect() }
    }

    pub(super) fn next(&mut self) -> Option<(RequestKind, Range)> {
        let range = self.ranges.last_mut()?;
        let piece = Range { bytes: range.bytes.min(PIECE_BYTES), ..*range };
        range.offset += piece.bytes;
        range.bytes -= piece.bytes;
        if range.bytes == 0 {
            self.ranges.pop();
        }
        Some((self.kind, piece))
    }
}

/// Size of a namespace's logical blocks: the unit of addresses and lengths in commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes.
    #[default]
    Bytes512,
    /// 4096 bytes.
    Bytes4096,
}

impl BlockSize {
    /// Returns the base-2 logarithm of the size in bytes.
    pub(super) fn shift(self) -> u8 {
        match self {
            Self::Bytes512 => 9,
            Self::Bytes4096 => 12,
        }
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Returns the size of `bytes` bytes, if namespaces may have that.
    pub fn of(bytes: u64) -> Option<Self> {
        [Self::Bytes512, Self::Bytes4096].into_iter().find(|size| size.bytes() == bytes)
    }
}

/// A namespace: a volume as NVMe hosts see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Index of the volume, which determines the namespace identifier.
    pub volume: u16,
    /// Name of the volume.
    pub name: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Size of a logical block. The namespace is another one with another size.
    pub block_size: BlockSize,
    /// Reject commands that change the volume.
    pub read_only: bool,
    /// Access that this server gives to the namespace.
    pub access: AccessState,
}

impl Namespace {
    /// Returns the namespace identifier. It depends on the size of a logical block. So a host that
    /// repeats commands after the size has changed addresses a namespace that is gone, and not
    /// other blocks.
    pub fn id(&self) -> u32 {
        let first = match self.block_size {
            BlockSize::Bytes512 => 1,
            BlockSize::Bytes4096 => 1 + VOLUMES_MAX,
        };
        u32::from(self.volume) + first
    }

    /// Returns the ANA group, of which this namespace is the only member. All servers return the
    /// same number.
    pub(super) fn access_group(&self) -> u32 {
        self.id()
    }

    /// Returns the size in logical blocks, rounded down.
    pub fn blocks(&self) -> u64 {
        self.bytes >> self.block_size.shift()
    }
}

/// An immutable list of a subsystem's namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    list: Vec<Namespace>,
    /// Number of earlier changes to the set of namespaces (identifiers and names).
    generation: u64,
    /// Number of changes of the access when the list was made.
    access_changes: u64,
}

impl Namespaces {
    /// Creates a list, sorted by identifier. Hosts see the first [`NAMESPACES_MAX`] namespaces.
    pub fn new(mut namespaces: Vec<Namespace>) -> Self {
        namespaces.retain(|namespace| u32::from(namespace.volume) < VOLUMES_MAX);
        namespaces.sort_by_key(Namespace::id);
        namespaces.truncate(NAMESPACES_MAX);
        Self { list: namespaces, ..Self::default() }
    }

    /// Creates the successor of this list. `access_changes` is the current number of changes of the
    /// access.
    #[must_use]
    pub fn followed_by(&self, namespaces: Vec<Namespace>, access_changes: u64) -> Self {
        let new = Self::new(namespaces);
        let names =
            |list: &Self| -> Vec<_> { list.iter().map(|it| (it.id(), it.name.clone())).collect() };
        let generation = self.generation + u64::from(names(self) != names(&new));
        Self { generation, access_changes, ..new }
    }

    /// Returns the number of earlier changes to the set of namespaces.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of changes of the access when the list was made.
    pub(super) fn access_changes(&self) -> u64 {
        self.access_changes
    }

    /// Returns whether a namespace that is in both lists has a different access.
    pub(super) fn differ_in_access(&self, newer: &Self) -> bool {
        let differs =
            |old: &Namespace| newer.find(old.id()).is_some_and(|new| new.access != old.access);
        self.access_changes != newer.access_changes && self.iter().any(differs)
    }

    /// Returns the namespace with this identifier.
    pub fn find(&self, id: u32) -> Option<&Namespace> {
        // Most often the volumes are 0, 1, 2 …, with blocks of one size.
        let at = id.wrapping_sub(1) as usize % VOLUMES_MAX as usize;
        if let Some(namespace) = self.list.get(at).filter(|namespace| namespace.id() == id) {
            return Some(namespace);
        }
        let at = self.list.binary_search_by_key(&id, Namespace::id).ok()?;
        Some(&self.list[at])
    }

    /// Returns the namespaces that a command with this identifier addresses: one, all or none.
    pub(super) fn meant_by(&self, id: u32) -> &[Namespace] {
        if id == ALL_NAMESPACES {
            return &self.list;
        }
        match self.list.binary_search_by_key(&id, Namespace::id) {
            Ok(at) => &self.list[at..=at],
            Err(_) => &[],
        }
    }

    /// Iterates over all namespaces, in the order of their identifiers.
    pub fn iter(&self) -> std::slice::Iter<'_, Namespace> {
        self.list.iter()
    }

    /// Returns the identifiers of the namespaces that differ between this list and a newer one.
    pub(super) fn differences(&self, newer: &Self) -> Vec<u32> {
        let is_same = |old: &Namespace, new: &Namespace| {
            (&old.name, old.bytes, old.read_only) == (&new.name, new.bytes, new.read_only)
        };
        let stays = |old: &Namespace| newer.find(old.id()).is_some_and(|new| is_same(old, new));
        let gone = self.iter().filter(|old| !stays(old));
        let new = newer.iter().filter(|new| self.find(new.id()).is_none());
        let mut ids: Vec<u32> = gone.chain(new).map(Namespace::id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_found_by_identifiers_that_depend_on_their_blocks() {
        let namespace = |volume, block_size| Namespace {
            volume,
            name: format!("disk{volume}"),
            bytes: 10_000,
            block_size,
            read_only: false,
            access: AccessState::Optimized,
        };
        let (small, large) = (BlockSize::Bytes512, BlockSize::Bytes4096);
        let sizes = [small, large, small, large, large];
        let list = (0..).zip(sizes).map(|(volume, size)| namespace(volume, size));
        let beyond = namespace(VOLUMES_MAX as u16, small);
        let all = Namespaces::new(list.chain([beyond]).collect());
        let ids: Vec<u32> = all.iter().map(Namespace::id).collect();
        assert_eq!(ids, [1, 3, 4098, 4100, 4101]);
        for namespace in all.iter() {
            assert_eq!(all.find(namespace.id()), Some(namespace));
            assert_eq!(all.meant_by(namespace.id()), std::slice::from_ref(namespace));
            assert_eq!(namespace.blocks(), 10_000 / namespace.block_size.bytes());
        }
        for none in [0, 2, 4, 4096, 4097, 4099, 4102, u32::MAX] {
            assert_eq!(all.find(none), None, "{none}");
        }
        let changed = all.followed_by(vec![namespace(0, large)], 0);
        assert_eq!(all.differences(&changed), [1, 3, 4097, 4098, 4100, 4101]);
        assert_ne!(all.generation(), changed.generation());
    }
}
