//! Commands of I/O queues, validated against the namespaces.

use super::access::AccessState;
use super::request::RequestKind;
use super::{NAMESPACE_ID_MAX, NAMESPACES_MAX, TRANSFER_MAX_BYTES};
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

fn namespace<'a>(command: &NvmeCommand, all: &'a Namespaces) -> Result<&'a Namespace, Status> {
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

fn writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only { Err(Status::WRITE_PROTECTED.final_()) } else { Ok(()) }
}

/// Returns the range of `blocks` logical blocks from `first`.
fn range(namespace: &Namespace, first: u64, blocks: u64) -> Result<Range, Status> {
    let end = first.checked_add(blocks).filter(|&end| end <= namespace.blocks());
    end.ok_or(Status::LBA_OUT_OF_RANGE.final_())?;
    let (offset, bytes) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
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

/// Bytes of a logical block.
pub const BLOCK_BYTES: u64 = 512;
/// Base-2 logarithm of [`BLOCK_BYTES`].
pub(super) const BLOCK_SHIFT: u8 = 9;

/// A namespace: a volume as NVMe hosts see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Index of the volume. The namespace identifier is the index plus one.
    pub volume: u16,
    /// Name of the volume.
    pub name: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Reject commands that change the volume.
    pub read_only: bool,
    /// Access that this server gives to the namespace.
    pub access: AccessState,
}

impl Namespace {
    /// Returns the namespace identifier.
    pub fn id(&self) -> u32 {
        u32::from(self.volume) + 1
    }

    /// Returns the ANA group, of which this namespace is the only member. All servers return the
    /// same number.
    pub(super) fn access_group(&self) -> u32 {
        self.id()
    }

    /// Returns the size in logical blocks, rounded down.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES
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
        namespaces.retain(|namespace| namespace.id() <= NAMESPACE_ID_MAX);
        namespaces.sort_by_key(|namespace| namespace.volume);
        namespaces.truncate(NAMESPACES_MAX);
        Self { list: namespaces, ..Self::default() }
    }

    /// Creates the successor of this list. `access_changes` is the current number of changes of the
    /// access.
    #[must_use]
    pub fn followed_by(&self, namespaces: Vec<Namespace>, access_changes: u64) -> Self {
        let new = Self::new(namespaces);
        let names = |list: &Self| -> Vec<_> {
            list.iter().map(|it| (it.volume, it.name.clone())).collect()
        };
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
        // Most often the identifiers are 1, 2, 3 …
        let at = (id as usize).wrapping_sub(1);
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
