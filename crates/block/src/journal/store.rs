//! A cache device as a whole: creates a cache on it, opens it, and writes its superblock.
//!
//! A superblock is always written twice, each time durably: first over the older copy, then over
//! the other. So both copies agree except in the moment between. A failure in that moment leaves
//! one copy intact, with the old or the new content. Where the device refuses the older copy and
//! leaves it intact, the other is written all the same. Only both together count as written: one
//! alone would be lost to a defect.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use floe_device::{Damage, Judge};

use super::io::{Io, Mend, Units};
use super::layout::{Layout, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, StoreError, fits_dump};
use super::map::{Finished, RestoredBlock};
use super::page::{Owner, PAGE_BYTES, read, sum_of};
use super::record::{Change, NO_SUM, mix};
use super::restore::{Found, Reader};
use super::salvage::Salvaged;
use super::superblock::{Copy, Superblock, Volume};
use super::writer::ShardJournal;
use crate::bits::Bits;
use crate::geometry::{SECTOR_BYTES, Sectors, VolumeId};

/// The properties of a cache to be created.
#[derive(Debug, Clone)]
pub struct NewCache {
    /// Sixteen random bytes that distinguish the cache's pages from earlier content of the device.
    pub id: [u8; 16],
    /// Positions of all structures on the device.
    pub layout: Layout,
    /// The volumes of the new cache.
    pub volumes: Vec<Volume>,
}

/// The content found on a cache device.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The superblock as the last session left it.
    pub(crate) superblock: Superblock,
    /// Removed volumes that the logs still mention.
    pub(crate) gone: BTreeSet<VolumeId>,
    /// The recovered content of each shard.
    pub(crate) shards: Vec<Restored>,
    /// Superblocks and pages to be written before a session begins.
    pub(crate) mends: Vec<Mend>,
    /// Messages about pages among `mends` that the ends of logs lacked, one for each.
    pub(crate) restored: Vec<String>,
}

/// The recovered content of a shard.
#[derive(Debug)]
pub(crate) struct Restored {
    /// The shard's blocks with valid sectors, coldest first.
    pub(crate) blocks: Vec<RestoredBlock>,
    /// Checksum of the data in each sector of the shard's space, if it is known.
    pub(crate) sums: Vec<u64>,
    /// Doubted sectors of the shard's space, which are clean only if their checksums are right.
    pub(crate) doubted: Bits,
    /// The shard's journal for new changes. Its pages belong to the session that [`begin_session`]
    /// begins.
    pub(crate) journal: ShardJournal,
}

/// Creates an empty cache, in place of whatever is on the device. Calibration data of an earlier
/// cache on the device is kept.
///
/// After a power cut the device has the old content, the new cache, or no cache.
///
/// # Errors
/// When the device fails or is too small, a volume does not fit, or the id is that of the cache
/// already on the device.
pub(crate) fn create(io: &mut Io<'_>, new: NewCache) -> Result<Superblock, StoreError> {
    let NewCache { id, layout, volumes } = new;
    check_size(io, &layout)?;
    let mut superblock = Superblock {
        id,
        generation: 0,
        session: 0,
        clean: true,
        void: false,
        retired: None,
        layout,
        cache_bytes: None,
        calibrated: None,
        stack: 0,
        next_stack: 0,
        companions: Vec::new(),
        volumes,
    };
    superblock.encode()?;
    match newest(read_copies(io, &mut Vec::new())) {
        // The first copy of the new superblock replaces the older copy of the old one, so one of
        // the two is valid at any moment.
        Ok(Some(old)) if old.id == id => return Err(StoreError::SameId),
        Ok(Some(old)) => {
            superblock.generation = old.generation;
            superblock.calibrated = old.calibrated; // of the device, which is the same
        }
        Err(error @ StoreError::Io { .. }) => return Err(error),
        // The device has no cache, or one that cannot be opened. An unfinished copy is recognised
        // by the zeros in place of the other.
        Ok(None) | Err(_) => {
            for offset in SUPERBLOCK_OFFSETS {
                io.write(offset, &[0; SUPERBLOCK_BYTES], true)?;
            }
        }
    }
    write_superblock(io, &mut superblock)?;
    Ok(superblock)
}

/// The result of salvaging a shard's damaged journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvage {
    /// The number of the shard.
    pub shard: u64,
    /// Descriptions of the pages that were rebuilt, a line each. Nothing is lost with these.
    pub mended: Vec<String>,
    /// Descriptions of the pages that are lost, a line each. Statements that only these pages made
    /// are unknown.
    pub gone: Vec<String>,
    /// Dirty runs that may have changed in the lost pages: the data in their places cannot be
    /// trusted.
    pub lost: Vec<(VolumeId, Sectors)>,
}

/// Reads the metadata of a cache; `None` when the device has none. Calls `progress` with the bytes
/// read so far and their total.
///
/// # Errors
/// When the cache cannot be read completely.
pub(crate) fn open(
    io: &mut Io<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Opened>, StoreError> {
    open_what_there_is(io, None, false, progress)
}

/// Reads the metadata of a cache from all copies of the device, where [`open`] reads only one that
/// is intact.
///
/// # Errors
/// When the cache cannot be read completely.
pub(crate) fn open_all_copies(io: &mut Io<'_>) -> Result<Option<Opened>, StoreError> {
    open_what_there_is(io, None, true, &mut |_, _| {})
}

/// Reads the metadata of a cache, and salvages damaged journals. Each salvaged journal has to be
/// [written anew](rewrite).
///
/// # Errors
/// When the superblock cannot be read, or the device fails.
pub(crate) fn salvage(
    io: &mut Io<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<(Opened, Vec<Salvage>)>, StoreError> {
    let mut salvages = Vec::new();
    Ok(open_what_there_is(io, Some(&mut salvages), true, progress)?
        .map(|opened| (opened, salvages)))
}

fn open_what_there_is(
    io: &mut Io<'_>,
    mut salvages: Option<&mut Vec<Salvage>>,
    thorough: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Opened>, StoreError> {
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(None);
    }
    // Data read from a disk's volatile cache could still be lost when durable data depends on it.
    io.flush()?;
    let mut mends = Vec::new();
    let Some(mut superblock) = newest(read_copies(io, &mut mends))? else { return Ok(None) };
    check_size(io, &superblock.layout)?;
    let known: BTreeSet<_> = superblock.volumes.iter().map(|volume| volume.id).collect();
    let (mut found, mut gone, mut restored) = (Vec::new(), BTreeSet::new(), Vec::new());
    for shard in 0..superblock.layout.shards() {
        let (Found { mut map, mut resume, mut session, damage, restored: pages, .. }, of_shard) =
            read_shard(io, &superblock, shard, thorough, progress)?;
        mends.extend(of_shard);
        match (damage, &mut salvages) {
            (None, _) => {
                restored.extend(pages.iter().map(|page| format!("shard {shard}: {page}")));
            }
            (Some(damage), None) => return Err(damage),
            (Some(_), Some(salvages)) => {
                let salvaged = reader(&superblock, shard).salvage(io)?;
                let Salvaged { mended, gone, lost, .. } = salvaged;
                salvages.push(Salvage { shard, mended, gone, lost });
                (map, resume, session) = (salvaged.map, salvaged.resume, salvaged.session);
            }
        }
        // A copy that is older than the journal remains when the other copy was damaged.
        superblock.session = superblock.session.max(session);
        if !superblock.clean {
            map.doubt();
        }
        let unknown = map.forget_unknown(|volume| known.contains(&volume));
        gone.extend(unknown.iter().map(|block| block.volume));
        found.push((map.finish(), unknown, resume));
    }
    let read = |(shard, (finished, unknown, resume)): (usize, (Finished, Vec<_>, _))| {
        let owner = owner(&superblock, shard as u64);
        let (layout, session) = (superblock.layout.clone(), superblock.session + 1);
        let mut journal = ShardJournal::new(layout, owner, session, resume);
        // Statements about a removed volume must not apply to a later volume of the same number.
        for block in unknown {
            journal.log(&Change::Dropped { block }, |_| NO_SUM);
        }
        // The next session may be closed cleanly while the content left by this one is still
        // doubtful.
        if !superblock.clean {
            journal.log(&Change::Crashed, |_| NO_SUM);
        }
        let Finished { blocks, sums, doubted } = finished;
        Restored { blocks, sums, doubted, journal }
    };
    let shards = found.into_iter().enumerate().map(read).collect();
    Ok(Some(Opened { superblock, gone, shards, mends, restored }))
}

/// Writes a checkpoint of a shard's whole content, in place of its old journal. To be called after
/// the session has begun.
///
/// # Errors
/// When the device fails.
pub(crate) fn rewrite(io: &mut Io<'_>, shard: &mut Restored) -> Result<(), StoreError> {
    let Restored { blocks, sums, doubted, journal } = shard;
    journal.begin_checkpoint();
    let mut pages = Vec::new();
    for block in blocks.iter() {
        let mut changes = block.changes(sums, doubted);
        if !fits_dump(&changes) {
            mix(&mut changes);
        }
        for change in &changes {
            let had_room = journal.dump(change, |place| sums[place as usize]);
            debug_assert!(had_room, "nothing changes meanwhile");
        }
    }
    let header = journal.finish_checkpoint(&mut pages).ok_or(StoreError::NoRoom)?;
    for page in &pages {
        io.write(page.offset, &page.bytes[..], false)?;
    }
    io.flush()?;
    io.write(header.offset, &header.bytes[..], true)?;
    journal.checkpoint_written();
    Ok(())
}

/// Returns the superblock of the cache on a device; `None` when there is no cache.
///
/// # Errors
/// When the superblock cannot be read.
pub(crate) fn superblock_of(io: &mut Io<'_>) -> Result<Option<Superblock>, StoreError> {
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(None);
    }
    newest(read_copies(io, &mut Vec::new()))
}

/// Begins a session: from now on the cache is not clean, and journal pages may be written.
///
/// # Errors
/// When the device fails.
pub(crate) fn begin_session(
    io: &mut Io<'_>,
    superblock: &mut Superblock,
) -> Result<(), StoreError> {
    superblock.session += 1;
    superblock.clean = false;
    write_superblock(io, superblock)
}

/// Durably zeroes the first page behind each log, which a crash may have torn.
///
/// The next session writes that page. If a crash tore that write over a torn old page, the two
/// parts could form the old page again where both have zeros. Its statements would count although
/// their places were reused.
pub(crate) fn clear_torn_pages(
    io: &mut Io<'_>,
    offsets: impl Iterator<Item = u64>,
) -> Result<(), StoreError> {
    for offset in offsets {
        io.write(offset, &[0; PAGE_BYTES], false)?;
    }
    io.flush()
}

/// Writes a changed superblock, durably: into the older copy, then into the other.
///
/// A superblock that says clean vouches for the checksums of all data. So the data, which may still
/// be in the device's write cache, becomes durable first.
///
/// # Errors
/// When a volume does not fit, in which case nothing was written. When the device does not take
/// both copies; then either the old or the new superblock is valid: the new one wherever the device
/// took a copy.
pub(crate) fn write_superblock(
    io: &mut Io<'_>,
    superblock: &mut Superblock,
) -> Result<(), StoreError> {
    if superblock.clean {
        io.flush()?;
    }
    if let Err(refused) = write_next_copy(io, superblock) {
        // A crash may tear the copy being written, so the refused one has to be intact.
        if is_copy_at(io, superblock.offset()) {
            let _ = write_next_copy(io, superblock);
        } else {
            superblock.generation += 1; // the next write begins with the same copy
        }
        return Err(refused);
    }
    let second = write_next_copy(io, superblock);
    if second.is_err() {
        superblock.generation += 1; // the next write begins with the copy that failed
    }
    second
}

fn is_copy_at(io: &mut Io<'_>, offset: u64) -> bool {
    matches!(read_copy(io, offset, &mut Vec::new()), Copy::Good(_))
}

fn write_next_copy(io: &mut Io<'_>, superblock: &mut Superblock) -> Result<(), StoreError> {
    superblock.generation += 1;
    let bytes = superblock.encode()?;
    io.write(superblock.offset(), &bytes, true)
}

fn copy_range(offset: u64) -> Range<u64> {
    offset..offset + SUPERBLOCK_BYTES as u64
}

pub(super) fn owner(superblock: &Superblock, shard: u64) -> Owner {
    Owner { cache: superblock.id, shard: shard as u16 }
}

pub(super) fn reader(superblock: &Superblock, shard: u64) -> Reader<'_> {
    let ended = superblock.clean.then_some(superblock.session);
    let (owner, last) = (owner(superblock, shard), superblock.session);
    Reader {
        layout: &superblock.layout,
        owner,
        ended,
        last,
        thorough: false,
        mends: Default::default(),
    }
}

/// Reads the journal of one shard, and reports progress through all of them. Also returns the mends
/// to be written before a session begins.
pub(super) fn read_shard(
    io: &mut Io<'_>,
    superblock: &Superblock,
    shard: u64,
    thorough: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Found, Vec<Mend>), StoreError> {
    let layout = &superblock.layout;
    let each = layout.journal_bytes();
    let mut read = 0;
    let mut advance = |bytes| {
        read = each.min(read + bytes);
        progress(shard * each + read, layout.shards() * each);
    };
    let reader = Reader { thorough, ..reader(superblock, shard) };
    let mut found = reader.read(io, &mut advance)?;
    advance(each);
    let mut mends = reader.mends.take();
    mends.append(&mut found.made_again);
    Ok((found, mends))
}

/// Reads both copies of the superblock. Adds to `mends` what single copies of a mirrored device
/// lack.
pub(super) fn read_copies(io: &mut Io<'_>, mends: &mut Vec<Mend>) -> [Copy; 2] {
    SUPERBLOCK_OFFSETS.map(|offset| read_copy(io, offset, mends))
}

fn read_copy(io: &mut Io<'_>, offset: u64, mends: &mut Vec<Mend>) -> Copy {
    let mut found = Vec::new();
    let units = Units { bytes: SUPERBLOCK_BYTES, thorough: true };
    let is_good = |bytes: &[u8]| matches!(Superblock::decode(bytes), Copy::Good(_));
    let read = io.stream(copy_range(offset), units, is_good, mends, |_, bytes| {
        found.extend_from_slice(bytes);
        Ok(())
    });
    match read {
        Ok(()) => Superblock::decode(&found),
        Err(error) => Copy::Unreadable(error),
    }
}

/// Returns the valid superblock; `None` when there is no cache.
///
/// No action is based on a change before both copies have it, so either copy will do where the
/// other is damaged or cannot be read.
pub(super) fn newest(copies: [Copy; 2]) -> Result<Option<Superblock>, StoreError> {
    let mut good: Option<Superblock> = None;
    let (mut damaged, mut zeros, mut unreadable) = (false, false, None);
    let mut says = Vec::new();
    for (copy, offset) in copies.into_iter().zip(SUPERBLOCK_OFFSETS) {
        says.push(match copy {
            Copy::Good(superblock) => {
                if good.as_ref().is_none_or(|other| other.generation < superblock.generation) {
                    good = Some(superblock);
                }
                continue;
            }
            Copy::Newer(version) => return Err(StoreError::Newer { offset, version }),
            Copy::Nonsense(what) => return Err(StoreError::Nonsense { offset, what }),
            Copy::Unreadable(error) => {
                unreadable = unreadable.or(Some(error));
                continue;
            }
            Copy::Blank => {
                zeros = true;
                format!("the one at offset {offset} is all zeros")
            }
            Copy::Foreign => format!("at offset {offset} is none"),
            Copy::Damaged { stated, found } => {
                damaged = true;
                format!(
                    "the one at offset {offset} has checksum {found:016x} and says {stated:016x}"
                )
            }
        });
    }
    match good {
        None if let Some(error) = unreadable => Err(error),
        // Zeros beside a damaged copy: the cache was being created.
        None if damaged && !zeros => Err(StoreError::Superblocks(says.remove(0), says.remove(0))),
        good => Ok(good),
    }
}

fn check_size(io: &Io<'_>, layout: &Layout) -> Result<(), StoreError> {
    let (needs, has) = (layout.end_bytes(), io.device.size_bytes());
    if needs > has { Err(StoreError::DeviceTooSmall { needs, has }) } else { Ok(()) }
}

/// The checksums of a shard's sectors. One thread changes them, and others read them.
#[derive(Debug)]
pub(crate) struct Sums(Vec<AtomicU64>);

impl Sums {
    pub(crate) fn new(sums: Vec<u64>) -> Arc<Self> {
        Arc::new(Self(sums.into_iter().map(AtomicU64::new).collect()))
    }

    /// Returns the checksum of a sector, `NO_SUM` where none is known.
    #[inline]
    pub(crate) fn get(&self, sector: u64) -> u64 {
        // A judge that sees an older checksum finds no copy that matches, and takes the first.
        self.0[sector as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, sector: u64, sum: u64) {
        self.0[sector as usize].store(sum, Ordering::Relaxed);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }
}

/// A judge that detects damaged data on the device of a cache in service, by its checksums.
#[derive(Debug)]
pub(crate) struct CacheJudge {
    pub(crate) layout: Layout,
    pub(crate) id: [u8; 16],
    /// The checksums of each shard's sectors.
    pub(crate) sums: Vec<Arc<Sums>>,
}

impl CacheJudge {
    fn is_intact(&self, offset: u64, sector: &[u8]) -> bool {
        let layout = &self.layout;
        if offset < layout.data_offset_bytes(0) {
            let journals = SUPERBLOCK_OFFSETS[1] + SUPERBLOCK_BYTES as u64;
            let shard = (offset - journals) / layout.journal_bytes();
            let owner = Owner { cache: self.id, shard: shard as u16 };
            let is_of_none = shard >= layout.shards();
            return is_of_none
                || read(sector, owner).is_some()
                || sector.iter().all(|byte| *byte == 0);
        }
        let at = (offset - layout.data_offset_bytes(0)) / SECTOR_BYTES;
        let Some(sums) = self.sums.get((at / layout.shard_sectors()) as usize) else { return true };
        let sum = sums.get(at % layout.shard_sectors());
        sum == NO_SUM || sum == sum_of(sector)
    }
}

impl Judge for CacheJudge {
    fn damage(&self, offset: u64, bytes: &[u8]) -> Vec<Damage> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let place = offset + at as u64;
            let is_superblock = SUPERBLOCK_OFFSETS.contains(&place);
            let len = if is_superblock { SUPERBLOCK_BYTES } else { PAGE_BYTES };
            let range = at..(at + len).min(bytes.len());
            let part = &bytes[range.clone()];
            let is_whole = part.len() == len;
            let is_intact = match is_superblock {
                true => !is_whole || matches!(Superblock::decode(part), Copy::Good(_)),
                false => !is_whole || self.is_intact(place, part),
            };
            if !is_intact {
                let exact = place >= self.layout.data_offset_bytes(0);
                found.push(Damage { range: range.clone(), exact });
            }
            at = range.end;
        }
        found
    }
}

/// A report on the content of a cache device.
#[derive(Debug)]
pub struct Report {
    /// The valid superblock, if one can be read.
    pub superblock: Option<Superblock>,
    /// A report on each shard; empty without a superblock.
    pub shards: Vec<ShardReport>,
    /// Descriptions of problems outside the shards, a line each.
    pub problems: Vec<String>,
    /// The bytes that the device needs, if it has become too short. The end of the cache's data is
    /// then missing, and nothing can be repaired before the device has that length again.
    pub cut_short_of: Option<u64>,
    /// Damage of single copies of the device, where another copy is intact.
    pub wrong_copies: Vec<WrongCopy>,
}

/// A range of a device that is damaged in one copy and intact in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongCopy {
    /// The damaged copy: the number of a mirror's half.
    pub copy: usize,
    /// First byte of the range on the cache device.
    pub offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

impl WrongCopy {
    pub(crate) fn of(mend: &Mend) -> impl Iterator<Item = WrongCopy> {
        let (offset, bytes) = (mend.offset, mend.bytes.len() as u64);
        mend.wrong.iter().map(move |copy| WrongCopy { copy, offset, bytes })
    }
}

/// A report on one shard's journal; for a damaged one, as far as it can be read.
#[derive(Debug)]
pub struct ShardReport {
    /// The number of the shard.
    pub shard: u64,
    /// Number of the checkpoint in use, counting all that were begun; 0 without one.
    pub checkpoint_generation: u64,
    /// Number of pages of the checkpoint in use.
    pub checkpoint_pages: u64,
    /// Number of log pages after the checkpoint.
    pub log_pages: u64,
    /// Number of blocks with valid data.
    pub blocks: u64,
    /// Bytes of valid data in the cache.
    pub valid_bytes: u64,
    /// Bytes of dirty data, which only the cache has.
    pub dirty_bytes: u64,
    /// Descriptions of the shard's problems, a line each.
    pub problems: Vec<String>,
    /// The salvage of a damaged journal. The other fields then count only the part that can be
    /// trusted.
    pub salvage: Option<Salvage>,
    /// The reason why damage at the end of the log cannot be ruled out. Not a problem: a crash may
    /// leave a log in this form.
    pub untold: Option<String>,
}

impl Report {
    /// Returns whether the report has any problem. A device without a cache has none.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
            || !self.wrong_copies.is_empty()
            || self.shards.iter().any(|shard| !shard.problems.is_empty())
    }
}

/// Reads superblocks, checkpoints and logs. Calls `progress` with the bytes read so far and their
/// total.
///
/// # Errors
/// When the device fails.
pub fn scan(io: &mut Io<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, StoreError> {
    let (shards, problems) = (Vec::new(), Vec::new());
    let mut report =
        Report { superblock: None, shards, problems, cut_short_of: None, wrong_copies: Vec::new() };
    if io.device.size_bytes() < 2 * SUPERBLOCK_BYTES as u64 {
        return Ok(report);
    }
    let mut mends = Vec::new();
    let copies = read_copies(io, &mut mends);
    let odd: Vec<String> = copies.iter().zip(SUPERBLOCK_OFFSETS).filter_map(odd).collect();
    match newest(copies) {
        Ok(superblock) => report.superblock = superblock,
        Err(error) => report.problems.push(error.to_string()),
    }
    let Some(superblock) = &report.superblock else { return Ok(report) };
    report.problems.extend(odd);
    let (needs, has) = (superblock.layout.end_bytes(), io.device.size_bytes());
    if needs > has {
        report.problems.push(StoreError::DeviceTooSmall { needs, has }.to_string());
        report.cut_short_of = Some(needs);
        if has < superblock.layout.data_offset_bytes(0) {
            return Ok(report); // not even the journals are whole
        }
    }
    for shard in 0..superblock.layout.shards() {
        let (mut found, of_shard) = read_shard(io, superblock, shard, true, progress)?;
        mends.extend(of_shard);
        let mut problems: Vec<String> = found.damage.iter().map(StoreError::to_string).collect();
        let mut salvage = None;
        if !found.restored.is_empty() {
            problems.push(format!("the end of the log of shard {shard} is damaged"));
            let mended = std::mem::take(&mut found.restored);
            salvage = Some(Salvage { shard, mended, gone: Vec::new(), lost: Vec::new() });
        }
        if found.damage.is_some() {
            let salvaged = reader(superblock, shard).salvage(io)?;
            found.map = salvaged.map;
            let (mended, gone, lost) = (salvaged.mended, salvaged.gone, salvaged.lost);
            salvage = Some(Salvage { shard, mended, gone, lost });
        }
        let (blocks, valid_bytes, dirty_bytes) = found.map.totals();
        let (checkpoint_generation, checkpoint_pages) = found.checkpoint.unwrap_or_default();
        report.shards.push(ShardReport {
            shard,
            checkpoint_generation,
            checkpoint_pages,
            log_pages: found.log_pages,
            blocks,
            valid_bytes,
            dirty_bytes,
            problems,
            salvage,
            untold: found.untold,
        });
    }
    mends.sort_unstable_by_key(|mend| mend.offset);
    mends.dedup();
    report.wrong_copies = mends.iter().flat_map(WrongCopy::of).collect();
    Ok(report)
}

/// Describes the fault of one copy of a superblock whose other copy is good.
fn odd((copy, offset): (&Copy, u64)) -> Option<String> {
    let what = match copy {
        Copy::Good(_) => return None,
        Copy::Damaged { stated, found } => {
            format!("has checksum {found:016x} and says {stated:016x}")
        }
        Copy::Blank => "is all zeros".to_owned(),
        Copy::Foreign => "is not one".to_owned(),
        Copy::Newer(version) => format!("has format {version}"),
        Copy::Nonsense(what) => format!("says {what}"),
        Copy::Unreadable(error) => format!("cannot be read: {error}"),
    };
    Some(format!("the copy of the superblock at offset {offset} {what}"))
}
