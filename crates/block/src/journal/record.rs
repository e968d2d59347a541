//! Records: changes encoded as bytes in the payload of a page.
//!
//! A `BLOCK` record (16 bytes) names a block. The records after it are about that block, up to the
//! next name or the end of the page. Each other record (4 bytes) makes a statement, followed by a
//! checksum of 8 bytes for each sector where the standing has them. `MIXED` has two bits a sector
//! before the checksums, for the standing. A run that does not fit into a page is split. No record
//! reaches over a page's end.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::page::{self, PAYLOAD_BYTES, PageBytes};
use crate::geometry::{LARGEST_BLOCK_BYTES, SECTOR_BYTES, Sectors, VolumeId};

pub(super) const BLOCK_BYTES: usize = size_of::<BlockRecord>();
pub(super) const RUN_BYTES: usize = size_of::<RunRecord>();
pub(super) const SUM_BYTES: usize = size_of::<U64>();

const BLOCK: u8 = 1;
const CLEAN: u8 = 2;
const DIRTY: u8 = 3;
const INVALID: u8 = 4;
const DROPPED: u8 = 5;
const LOST: u8 = 6;
const RESTING: u8 = 7;
const SEALED: u8 = 8;
const DOUBTED: u8 = 9;
const CRASHED: u8 = 10;
const MIXED: u8 = 11;

/// The standing that each value of a `MIXED` record's two bits stands for.
const MIXTURE: [Standing; 4] =
    [Standing::Clean, Standing::Doubted, Standing::Sealed, Standing::Dirty];

/// Number of sectors whose standings fit into a byte of a `MIXED` record.
const SECTORS_A_BYTE: usize = 4;

/// Binary logarithm of the sectors of the largest block.
const MOST_ORDER: u8 = (LARGEST_BLOCK_BYTES / SECTOR_BYTES).ilog2() as u8;

/// Upper bound of sector numbers of a volume and its blocks.
const MOST_SECTOR: u64 = 1 << 47;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BlockRecord {
    kind: u8,
    /// Binary logarithm of the block's sectors.
    order: u8,
    volume: U16,
    place: U32,
    /// First sector of the block within its volume.
    start: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RunRecord {
    kind: u8,
    /// First sector of the run within its block.
    first: u8,
    /// Last sector of the run within its block.
    last: u8,
    unused: u8,
}

/// A page under construction.
#[derive(Debug)]
pub(super) struct Draft {
    bytes: PageBytes,
    used: usize,
    /// The block that the last records are about.
    block: Option<BlockAt>,
}

impl Default for Draft {
    fn default() -> Self {
        Self { bytes: page::blank(), used: 0, block: None }
    }
}

impl Draft {
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the page and the bytes of records in it.
    pub(super) fn into_parts(self) -> (PageBytes, usize) {
        (self.bytes, self.used)
    }

    /// Adds a change. Pages that fill up on the way are passed to `full`.
    pub(super) fn push(
        &mut self,
        change: &Change,
        sum: impl Fn(u64) -> u64,
        mut full: impl FnMut(Draft),
    ) {
        match change {
            Change::Dropped { block } => {
                self.make_room(block, 0, &mut full);
                self.put(RunRecord { kind: DROPPED, first: 0, last: 0, unused: 0 }.as_bytes());
            }
            Change::Crashed => {
                if self.used + RUN_BYTES > PAYLOAD_BYTES {
                    full(std::mem::take(self));
                }
                self.put(RunRecord { kind: CRASHED, first: 0, last: 0, unused: 0 }.as_bytes());
            }
            Change::Mixed { block, run, standings } => {
                let mut rest = run.clone();
                while rest.start < rest.end {
                    let room = self.make_room(block, SUM_BYTES + 1, &mut full);
                    // A byte of standings for every four checksums.
                    let sectors = room / (SECTORS_A_BYTE * SUM_BYTES + 1) * SECTORS_A_BYTE;
                    let end = rest.end.min(rest.start + (sectors as u64).max(1));
                    let at = (rest.start - run.start) as usize;
                    self.put_mixed(block, &(rest.start..end), &standings[at..], &sum);
                    rest.start = end;
                }
            }
            Change::Run { block, run, standing } => {
                debug_assert!(block.sectors.start <= run.start && run.end <= block.sectors.end);
                let mut rest = run.clone();
                while rest.start < rest.end {
                    let each = if standing.has_sums() { SUM_BYTES } else { 0 };
                    let room = self.make_room(block, each, &mut full);
                    let sectors =
                        (room.checked_div(each)).map_or(u64::MAX, |sectors| sectors as u64);
                    let end = rest.end.min(rest.start.saturating_add(sectors));
                    self.put_run(block, &(rest.start..end), *standing, &sum);
                    rest.start = end;
                }
            }
        }
    }

    /// Makes room for a statement about a block and `more` bytes, and adds a record that names the
    /// block. Returns the bytes of room left.
    fn make_room(&mut self, block: &BlockAt, more: usize, full: &mut impl FnMut(Draft)) -> usize {
        let needed = |draft: &Draft| {
            let name = if draft.block.as_ref() == Some(block) { 0 } else { BLOCK_BYTES };
            name + RUN_BYTES
        };
        if self.used + needed(self) + more > PAYLOAD_BYTES {
            full(std::mem::take(self));
        }
        let room = PAYLOAD_BYTES - self.used - needed(self);
        if self.block.as_ref() != Some(block) {
            let size = block.sectors.end - block.sectors.start;
            debug_assert!(size.is_power_of_two());
            let record = BlockRecord {
                kind: BLOCK,
                order: size.ilog2() as u8,
                volume: block.volume.0.into(),
                place: u32::try_from(block.place)
                    .expect("a shard has fewer than 2^32 sectors")
                    .into(),
                start: block.sectors.start.into(),
            };
            self.put(record.as_bytes());
            self.block = Some(block.clone());
        }
        room
    }

    fn put_run(
        &mut self,
        block: &BlockAt,
        run: &Sectors,
        standing: Standing,
        sum: impl Fn(u64) -> u64,
    ) {
        let kind = match standing {
            Standing::Clean => CLEAN,
            Standing::Doubted => DOUBTED,
            Standing::Dirty => DIRTY,
            Standing::Sealed => SEALED,
            Standing::Resting => RESTING,
            Standing::Lost => LOST,
            Standing::Invalid => INVALID,
        };
        let within = |sector: u64| (sector - block.sectors.start) as u8;
        let record =
            RunRecord { kind, first: within(run.start), last: within(run.end - 1), unused: 0 };
        self.put(record.as_bytes());
        if standing.has_sums() {
            for sector in run.clone() {
                self.put(&sum(block.place + (sector - block.sectors.start)).to_le_bytes());
            }
        }
    }

    fn put_mixed(
        &mut self,
        block: &BlockAt,
        run: &Sectors,
        standings: &[Standing],
        sum: impl Fn(u64) -> u64,
    ) {
        let within = |sector: u64| (sector - block.sectors.start) as u8;
        let record = RunRecord {
            kind: MIXED,
            first: within(run.start),
            last: within(run.end - 1),
            unused: 0,
        };
        self.put(record.as_bytes());
        let standings = &standings[..(run.end - run.start) as usize];
        for four in standings.chunks(SECTORS_A_BYTE) {
            let bits = |standing: &Standing| MIXTURE.iter().position(|other| other == standing);
            let bits = four
                .iter()
                .map(|standing| bits(standing).expect("it can be part of a mixture") as u8);
            self.put(&[bits.enumerate().fold(0, |byte, (at, bits)| byte | bits << (2 * at))]);
        }
        for (sector, standing) in run.clone().zip(standings) {
            let sum = if standing.has_sums() {
                sum(block.place + (sector - block.sectors.start))
            } else {
                NO_SUM
            };
            self.put(&sum.to_le_bytes());
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let to = self.used..self.used + bytes.len();
        page::payload(&mut self.bytes)[to.clone()].copy_from_slice(bytes);
        self.used = to.end;
    }
}

/// The statement of a record.
#[derive(Debug, Clone)]
pub(super) enum Statement<'a> {
    /// A run of a block's sectors has this state; the checksums are given where the state has them.
    Run { block: &'a BlockAt, run: Sectors, standing: Standing, sums: &'a [U64] },
    /// A block has been removed.
    Dropped { block: &'a BlockAt },
    /// A crash happened before this record was written.
    Crashed,
}

/// A malformed record, and its offset in the payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) at: usize,
    pub(super) what: &'static str,
}

/// Passes the statements of a payload to `each`, in order, until one is refused or cannot be read.
pub(super) fn decode(
    payload: &[u8],
    mut each: impl FnMut(&Statement<'_>) -> Result<(), &'static str>,
) -> Result<(), Malformed> {
    let mut rest = payload;
    let mut block = None;
    while let Some(kind) = rest.first() {
        let at = payload.len() - rest.len();
        let refuse = |what| Malformed { at, what };
        let cut = || refuse("ends within a record");
        if *kind == BLOCK {
            let (record, after) = BlockRecord::ref_from_prefix(rest).map_err(|_| cut())?;
            block = Some(name(record).map_err(refuse)?);
            rest = after;
            continue;
        }
        let (record, after) = RunRecord::ref_from_prefix(rest).map_err(|_| cut())?;
        if record.kind == CRASHED {
            each(&Statement::Crashed).map_err(refuse)?;
            rest = after;
            continue;
        }
        let block = block.as_ref().ok_or_else(|| refuse("states something about no block"))?;
        let standing = match record.kind {
            CLEAN => Standing::Clean,
            DOUBTED => Standing::Doubted,
            DIRTY => Standing::Dirty,
            SEALED => Standing::Sealed,
            INVALID => Standing::Invalid,
            LOST => Standing::Lost,
            RESTING => Standing::Resting,
            DROPPED => {
                each(&Statement::Dropped { block }).map_err(refuse)?;
                rest = after;
                continue;
            }
            MIXED => Standing::Clean,
            _ => return Err(refuse("has a record of an unknown kind")),
        };
        let count = usize::from(record.last.saturating_sub(record.first)) + 1;
        let (bits, after) = match record.kind {
            MIXED => after.split_at_checked(count.div_ceil(SECTORS_A_BYTE)).ok_or_else(cut)?,
            _ => (&[][..], after),
        };
        let (sums, after) = match standing.has_sums() {
            true => <[U64]>::ref_from_prefix_with_elems(after, count).map_err(|_| cut())?,
            false => (&[][..], after),
        };
        let run = record
            .sectors(block)
            .ok_or_else(|| refuse("has a run that reaches out of its block"))?;
        if record.kind == MIXED {
            unmix(block, &run, bits, sums, &mut each).map_err(refuse)?;
        } else {
            each(&Statement::Run { block, run, standing, sums }).map_err(refuse)?;
        }
        rest = after;
    }
    Ok(())
}

/// Passes each part of a `MIXED` run whose sectors have equal standing to `each`.
fn unmix(
    block: &BlockAt,
    run: &Sectors,
    bits: &[u8],
    sums: &[U64],
    each: &mut impl FnMut(&Statement<'_>) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let standing = |at: usize| {
        MIXTURE[usize::from(bits[at / SECTORS_A_BYTE] >> (at % SECTORS_A_BYTE * 2) & 3)]
    };
    let mut start = 0;
    while start < sums.len() {
        let of = standing(start);
        let end = start + (start..sums.len()).take_while(|&at| standing(at) == of).count();
        let sums = if of.has_sums() { &sums[start..end] } else { &[] };
        let run = run.start + start as u64..run.start + end as u64;
        each(&Statement::Run { block, run, standing: of, sums })?;
        start = end;
    }
    Ok(())
}

/// Returns the block that a record names.
fn name(record: &BlockRecord) -> Result<BlockAt, &'static str> {
    if record.order > MOST_ORDER {
        return Err("names a block larger than any");
    }
    let (start, size) = (record.start.get(), 1 << record.order);
    if start >= MOST_SECTOR || !start.is_multiple_of(size) {
        return Err("names a block that cannot be where it says");
    }
    let place = u64::from(record.place.get());
    Ok(BlockAt { volume: VolumeId(record.volume.get()), sectors: start..start + size, place })
}

impl RunRecord {
    /// Returns the run of the record as sectors of the volume.
    fn sectors(&self, block: &BlockAt) -> Option<Sectors> {
        let (first, last) = (u64::from(self.first), u64::from(self.last));
        let start = block.sectors.start;
        (first <= last && start + last < block.sectors.end)
            .then_some(start + first..start + last + 1)
    }
}

/// Stands for an unknown checksum. Clean data stored under it is lost at a power cut.
pub(crate) const NO_SUM: u64 = 0;

/// A block and its position on the cache device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockAt {
    pub(crate) volume: VolumeId,
    /// All sectors of the block, within its volume.
    pub(crate) sectors: Sectors,
    /// First sector of the block's place, within the shard's space on the cache device.
    pub(crate) place: u64,
}

/// The state of a sector of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The cache and the backing device hold the same data.
    Clean,
    /// Clean if the checksum is right. A crash may have come while other data was being written in
    /// the sector's place.
    Doubted,
    /// Only the cache has the sector's data, which may be overwritten in place.
    Dirty,
    /// Only the cache has the sector's data, with this checksum. An overwrite must first be logged.
    Sealed,
    /// Only the cache has the sector's data. The checksum is valid if the session that logged it
    /// was closed cleanly. No longer written.
    Resting,
    /// Only the cache had the sector's data, and its place does not contain what was stored.
    Lost,
    /// The cache has no data of the sector.
    Invalid,
}

impl Standing {
    /// Returns whether records of sectors in this state include checksums.
    pub(crate) fn has_sums(self) -> bool {
        matches!(self, Self::Clean | Self::Doubted | Self::Sealed | Self::Resting)
    }

    /// Returns whether the backing device lacks the sector's newest data.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, Self::Dirty | Self::Sealed | Self::Resting | Self::Lost)
    }
}

/// A change of the mapping, as recorded in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The block stands at its place, and a run of its sectors has this state.
    Run { block: BlockAt, run: Sectors, standing: Standing },
    /// The block stands at its place, and each sector of a run has its own state: clean, doubted,
    /// dirty or sealed.
    Mixed { block: BlockAt, run: Sectors, standings: Vec<Standing> },
    /// The block has been removed, and its place is free.
    Dropped { block: BlockAt },
    /// A crash happened before: all sectors that were clean so far are
    /// [doubted](Standing::Doubted).
    Crashed,
}

/// Merges adjacent runs of a block into one change where a mixture can express them. A mixture
/// costs two bits a sector instead of a record a run.
pub(crate) fn mix(changes: &mut Vec<Change>) {
    let mut mixed: Vec<Change> = Vec::new();
    for change in changes.drain(..) {
        match (mixed.last_mut(), change) {
            (
                Some(Change::Mixed { run: before, standings, .. }),
                Change::Run { run, standing, .. },
            ) if before.end == run.start && can_be_mixed(standing) => {
                standings.extend(run.clone().map(|_| standing));
                before.end = run.end;
            }
            (_, Change::Run { block, run, standing }) if can_be_mixed(standing) => {
                let standings = run.clone().map(|_| standing).collect();
                mixed.push(Change::Mixed { block, run, standings });
            }
            (_, change) => mixed.push(change),
        }
    }
    *changes = mixed;
}

fn can_be_mixed(standing: Standing) -> bool {
    matches!(standing, Standing::Clean | Standing::Doubted | Standing::Dirty | Standing::Sealed)
}

#[cfg(test)]
impl Change {
    /// Returns the block that the change is about.
    pub(crate) fn block(&self) -> &BlockAt {
        match self {
            Change::Run { block, .. } | Change::Mixed { block, .. } | Change::Dropped { block } => {
                block
            }
            Change::Crashed => panic!("it is about no block"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates changes of blocks of all sizes.
    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let block = (0u32..=8, 0u16..4, 0u64..64, 0u64..1 << 24).prop_map(
            |(order, volume, start, place)| {
                let size = 1 << order;
                let sectors = start * size..(start + 1) * size;
                BlockAt { volume: VolumeId(volume), sectors, place: place * size }
            },
        );
        use Standing::{Clean, Dirty, Doubted, Invalid, Lost, Resting, Sealed};
        let standings =
            proptest::sample::select(vec![Clean, Dirty, Resting, Lost, Invalid, Sealed, Doubted]);
        let mixture = proptest::collection::vec(proptest::sample::select(MIXTURE.to_vec()), 256);
        let change = (block, any::<(u8, u8)>(), standings, mixture, any::<u8>(), 1usize..3)
            .prop_map(|(block, (one, other), standing, mixture, kind, again)| {
                let size = block.sectors.end - block.sectors.start;
                let (one, other) = (u64::from(one) % size, u64::from(other) % size);
                let run =
                    block.sectors.start + one.min(other)..block.sectors.start + one.max(other) + 1;
                let standings = mixture[..(run.end - run.start) as usize].to_vec();
                let change = match kind {
                    0..32 => Change::Dropped { block },
                    32..40 => Change::Crashed,
                    40..80 => Change::Mixed { block, run, standings },
                    _ => Change::Run { block, run, standing },
                };
                vec![change; again]
            });
        proptest::collection::vec(change, 0..120).prop_map(|changes| changes.concat())
    }

    fn sum(sector: u64) -> u64 {
        sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// The statement about a sector of a block, or about the whole block; `None` is about no block.
    type Said = Option<(BlockAt, Option<(u64, Standing)>)>;

    /// Splits a change into statements about single sectors, so that runs may be cut.
    fn sectors(change: &Change) -> Vec<Said> {
        match change {
            Change::Crashed => vec![None],
            Change::Dropped { block } => vec![Some((block.clone(), None))],
            Change::Run { block, run, standing } => {
                run.clone().map(|sector| Some((block.clone(), Some((sector, *standing))))).collect()
            }
            Change::Mixed { block, run, standings } => {
                let each = run.clone().zip(standings);
                each.map(|(sector, standing)| Some((block.clone(), Some((sector, *standing)))))
                    .collect()
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(changes in changes()) {
            let (mut draft, mut pages) = (Draft::default(), Vec::new());
            for change in &changes {
                draft.push(change, sum, |full| pages.push(full));
            }
            pages.push(draft);
            let mut read = Vec::new();
            for page in pages {
                let (mut bytes, used) = page.into_parts();
                let payload = &page::payload(&mut bytes)[..used];
                decode(payload, |statement| {
                    read.extend(match statement.clone() {
                        Statement::Crashed => sectors(&Change::Crashed),
                        Statement::Dropped { block } => {
                            sectors(&Change::Dropped { block: block.clone() })
                        }
                        Statement::Run { block, run, standing, sums } => {
                            let first = block.sectors.start;
                            let places = run.clone().map(|sector| block.place + sector - first);
                            let expected: Vec<_> =
                                places.map(|place| U64::new(sum(place))).collect();
                            assert_eq!(sums, if standing.has_sums() { &expected[..] } else { &[] });
                            sectors(&Change::Run { block: block.clone(), run, standing })
                        }
                    });
                    Ok(())
                })
                .unwrap();
            }
            prop_assert_eq!(read, changes.iter().flat_map(sectors).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(0u8..12, 0..200)) {
            let _ = decode(&bytes, |statement| {
                if let Statement::Run { block, run, .. } = statement {
                    assert!(block.sectors.start <= run.start && run.start < run.end);
                    assert!(run.end <= block.sectors.end);
                }
                Ok(())
            });
        }
    }

    #[test]
    fn records_stand_in_a_page_as_they_are_drawn() {
        let block = BlockAt { volume: VolumeId(3), sectors: 16..24, place: 0x0102 };
        let mut draft = Draft::default();
        let push =
            |draft: &mut Draft, change| draft.push(&change, sum, |_| panic!("a page has room"));
        let run = Change::Run { block: block.clone(), run: 18..20, standing: Standing::Clean };
        push(&mut draft, run);
        push(&mut draft, Change::Dropped { block });
        let (mut bytes, used) = draft.into_parts();
        let mut expected =
            b"\x01\x03\x03\x00\x02\x01\x00\x00\x10\0\0\0\0\0\0\0\x02\x02\x03\x00".to_vec();
        expected.extend([sum(0x0104), sum(0x0105)].map(u64::to_le_bytes).concat());
        expected.extend(b"\x05\0\0\0");
        assert_eq!(page::payload(&mut bytes)[..used], expected);
    }

    #[test]
    fn a_mixture_stands_in_a_page_as_it_is_drawn() {
        use Standing::{Clean, Dirty, Doubted, Sealed};
        let block = BlockAt { volume: VolumeId(3), sectors: 16..24, place: 0x0102 };
        let mut draft = Draft::default();
        let standings = vec![Sealed, Dirty, Clean, Doubted, Sealed];
        draft.push(&Change::Crashed, sum, |_| panic!("a page has room"));
        draft.push(&Change::Mixed { block, run: 17..22, standings }, sum, |_| {
            panic!("a page has room")
        });
        let (mut bytes, used) = draft.into_parts();
        let mut expected = b"\x0a\0\0\0\x01\x03\x03\x00\x02\x01\x00\x00\x10\0\0\0\0\0\0\0".to_vec();
        expected.extend(b"\x0b\x01\x05\0\x4e\x02");
        let sums = [sum(0x103), 0, sum(0x105), sum(0x106), sum(0x107)];
        expected.extend(sums.map(u64::to_le_bytes).concat());
        assert_eq!(page::payload(&mut bytes)[..used], expected);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_place() {
        let refused =
            |bytes: &[u8]| decode(bytes, |_| Ok(())).map_err(|found| (found.at, found.what));
        let block = b"\x01\x03\0\0\0\0\0\0\x10\0\0\0\0\0\0\0";
        let after = |bytes: &[u8]| [&block[..], bytes].concat();
        assert_eq!(refused(b"\x03\0\0\0"), Err((0, "states something about no block")));
        assert_eq!(refused(&block[..15]), Err((0, "ends within a record")));
        assert_eq!(
            refused(&after(b"\x02\0\x01\0\0\0\0\0\0\0\0\0")),
            Err((16, "ends within a record"))
        );
        assert_eq!(
            refused(&after(b"\x04\x00\x08\0")),
            Err((16, "has a run that reaches out of its block"))
        );
        assert_eq!(
            refused(&after(b"\x04\x02\x01\0")),
            Err((16, "has a run that reaches out of its block"))
        );
        assert_eq!(refused(&after(b"\x0c\0\0\0")), Err((16, "has a record of an unknown kind")));
        assert_eq!(
            refused(&after(b"\x0b\0\x01\0\0\0\0\0\0\0\0\0")),
            Err((16, "ends within a record"))
        );
        assert_eq!(refused(&after(b"\0\0\0\0")), Err((16, "has a record of an unknown kind")));
        let askew = b"\x01\x03\0\0\0\0\0\0\x11\0\0\0\0\0\0\0";
        assert_eq!(refused(askew), Err((0, "names a block that cannot be where it says")));
    }
}
