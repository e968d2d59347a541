//! Commands of I/O queues, checked against the namespaces.

use super::TRANSFER_MAX_BYTES;
use super::namespace::{BLOCK_BYTES, Namespace, Namespaces};
use super::paths::AccessState;
use super::request::RequestKind;
use crate::wire::code::io;
use crate::wire::command::Command;
use crate::wire::status::Status;

/// Bytes that describe one range of Dataset Management.
pub(super) const RANGE_BYTES: usize = 16;

/// Most bytes of one request that has no data.
const PIECE_BYTES: u64 = 1 << 30;

/// A part of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) volume: u16,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The requests that a command needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// One request. A read returns its data; a write and a comparison need it.
    One { kind: RequestKind, range: Range },
    /// A request for each of these volumes.
    Flush(Pieces),
    /// Ranges come as data of so many bytes.
    Deallocate { list_bytes: usize },
}

/// Checks a command. Data is not looked at yet.
pub(super) fn plan(command: &Command, namespaces: &Namespaces) -> Result<Plan, Status> {
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

fn namespace<'a>(command: &Command, all: &'a Namespaces) -> Result<&'a Namespace, Status> {
    let found = all.find(command.namespace()).ok_or(Status::INVALID_NAMESPACE.final_())?;
    accessible(found).map(|()| found)
}

/// Refuses a namespace that hosts use on another path. They may repeat the command there.
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

/// The range of so many logical blocks.
fn range(namespace: &Namespace, first: u64, blocks: u64) -> Result<Range, Status> {
    let end = first.checked_add(blocks).filter(|&end| end <= namespace.blocks());
    end.ok_or(Status::LBA_OUT_OF_RANGE.final_())?;
    let (offset, bytes) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
    Ok(Range { volume: namespace.volume, offset, bytes })
}

/// Reads the ranges of a Dataset Management command whose data has come.
pub(super) fn ranges(
    command: &Command,
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

/// The requests of a command that needs several.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) kind: RequestKind,
    /// Still to be requested.
    ranges: Vec<Range>,
}

impl Pieces {
    /// Flushes namespaces.
    pub(super) fn flush(namespaces: &[Namespace]) -> Self {
        let whole = |it: &Namespace| Range { volume: it.volume, offset: 0, bytes: 0 };
        Self { kind: RequestKind::Flush, ranges: namespaces.iter().map(whole).collect() }
    }

    /// Takes the next request.
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
