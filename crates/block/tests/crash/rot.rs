//! Bits of the cache device that flip between two lives.
//!
//! Only where that can be noticed: nothing tells of the end of a log but its last intact page and
//! the parity of the last batch, and dirty data has no checksum while it may be overwritten
//! (docs/format.md). Everything else must be noticed or make no difference: a page of the last
//! batch is made again, clean data is read from the backing device, dirty data is an
//! error, one copy of the superblock does for both, a damaged checkpoint or log page is refused by
//! name, unless what is left says the same.

use std::ops::Range;

use floe_block::{KeptCache, SECTOR_BYTES, VolumeId};
use rand::Rng;
use rand::rngs::SmallRng;

const PAGE: usize = 4096;
const SUPERBLOCK: usize = 32 << 10;

/// A page of the journal, as docs/format.md draws it.
struct Page {
    at: usize,
    kind: u8,
    shard: u16,
    seq: u64,
    session: u64,
    mark: u64,
    /// Of a parity page of a log: for how many pages before it that stands.
    covers: u64,
}

const LOG: u8 = 1;
const DUMP: u8 = 2;
const PARITY: u8 = 4;

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The intact pages of a cache in its metadata.
fn pages<'a>(metadata: &'a [u8], id: &'a [u8; 16]) -> impl Iterator<Item = Page> + 'a {
    let page = move |(number_of, bytes): (usize, &'a [u8])| {
        let is_one = bytes[8..12] == *b"FlPg"
            && bytes[16..32] == *id
            && number(bytes, 0) == crc_fast::crc64_nvme(&bytes[8..]);
        is_one.then(|| Page {
            at: 2 * SUPERBLOCK + number_of * PAGE,
            kind: bytes[12],
            shard: u16::from_le_bytes([bytes[14], bytes[15]]),
            seq: number(bytes, 32),
            session: number(bytes, 40),
            mark: number(bytes, 48),
            covers: u16::from_le_bytes([bytes[60], bytes[61]]).into(),
        })
    };
    metadata[2 * SUPERBLOCK..].chunks_exact(PAGE).enumerate().filter_map(page)
}

/// A byte of the metadata that has rotted.
#[derive(Debug, Clone, Copy)]
pub struct Rotten {
    pub byte: usize,
    /// Of a checkpoint. What an older one and the log say instead has all that was flushed; but it
    /// may lack what was not, and was read after a crash, and read it otherwise.
    pub is_checkpoint: bool,
    /// Of a page of a log's last batch: it has to be made again.
    pub is_last: bool,
}

/// A byte of a superblock, or of a page of the journal.
pub fn anywhere_in_metadata(metadata: &[u8], id: &[u8; 16], rng: &mut SmallRng) -> Option<usize> {
    if rng.random_ratio(1, 4) {
        return Some(rng.random_range(0..2 * SUPERBLOCK));
    }
    let pages: Vec<Page> = pages(metadata, id).collect();
    let page = pages.get(rng.random_range(0..pages.len().max(1)))?;
    Some(page.at + rng.random_range(0..PAGE))
}

/// The last session that has begun, as the newer copy of the superblock says.
fn last_session(metadata: &[u8]) -> u64 {
    let copies = metadata[..2 * SUPERBLOCK].chunks_exact(SUPERBLOCK);
    let intact = copies.filter(|copy| number(copy, 0) == crc_fast::crc64_nvme(&copy[8..]));
    intact.max_by_key(|copy| number(copy, 24)).map_or(0, |copy| number(copy, 32))
}

/// True for a page of its log's last batch, of the last session, with all other pages of the
/// batch and its parity.
fn is_covered(pages: &[Page], page: &Page, session: u64) -> bool {
    let of_log = |other: &&Page| {
        matches!(other.kind, LOG | PARITY)
            && (other.shard, other.session) == (page.shard, page.session)
    };
    let parity = pages.iter().filter(of_log).find(|other| {
        other.kind == PARITY
            && other.seq > page.seq
            && other.seq.saturating_sub(other.covers) <= page.seq
    });
    let is_there = |seq: u64| pages.iter().filter(of_log).any(|other| other.seq == seq);
    page.session == session
        && parity.is_some_and(|parity| (parity.seq - parity.covers..parity.seq).all(is_there))
}

/// A byte of the metadata that may rot. A page of a log may only where the later one that tells of
/// it is `durable`: a power cut must not take that away.
pub fn in_metadata(
    metadata: &[u8],
    durable: &[u8],
    id: &[u8; 16],
    rng: &mut SmallRng,
) -> Option<Rotten> {
    if rng.random_ratio(1, 4) {
        let byte = rng.random_range(0..2 * SUPERBLOCK);
        return Some(Rotten { byte, is_checkpoint: false, is_last: false });
    }
    let pages: Vec<Page> = pages(metadata, id).collect();
    let witnesses: Vec<Page> = self::pages(durable, id).collect();
    let session = last_session(durable);
    let is_covered = |page: &Page| is_covered(&witnesses, page, session);
    let may_rot =
        |page: &&Page| page.kind != LOG || is_missed(&witnesses, page) || is_covered(page);
    let may_rot: Vec<&Page> = pages.iter().filter(may_rot).collect();
    let page = may_rot.get(rng.random_range(0..may_rot.len().max(1)))?;
    let tells = |other: &Page| {
        matches!(other.kind, LOG | PARITY)
            && other.shard == page.shard
            && other.seq > page.seq
            && other.mark >= page.seq
    };
    let is_last = page.kind == LOG && !pages.iter().any(tells);
    let byte = page.at + rng.random_range(0..PAGE);
    Some(Rotten { byte, is_checkpoint: page.kind != LOG, is_last })
}

/// A later page of the log says that this one was durable.
fn is_missed(pages: &[Page], page: &Page) -> bool {
    let says = |other: &Page| {
        other.kind == LOG
            && other.shard == page.shard
            && other.seq > page.seq
            && other.mark >= page.seq
    };
    pages.iter().any(says)
}

/// Pages in a row, of a log or of a checkpoint, that get lost as a whole.
#[derive(Debug)]
pub struct LostPages {
    /// The bytes of the device that each had.
    pub pages: Vec<Range<usize>>,
    pub is_of_log: bool,
    /// It is one page of a log, and its parity is there with all other pages of the batch.
    pub is_covered: bool,
    /// Of a log, these pages and all later ones.
    pub later: Vec<Range<usize>>,
}

impl LostPages {
    pub fn bytes(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().flat_map(Clone::clone)
    }
}

/// Pages of the metadata whose loss will be noticed.
pub fn pages_to_lose(metadata: &[u8], id: &[u8; 16], rng: &mut SmallRng) -> Option<LostPages> {
    const MOST_LOST: usize = 3;
    let pages: Vec<Page> = pages(metadata, id).collect();
    let firsts: Vec<&Page> = pages.iter().filter(|page| matches!(page.kind, LOG | DUMP)).collect();
    let first = *firsts.get(rng.random_range(0..firsts.len().max(1)))?;
    let is_of_log = first.kind == LOG;
    let follows = |page: &Page, last: &Page, by: u64| {
        let kinds: &[u8] = if is_of_log { &[LOG, PARITY] } else { &[DUMP] };
        kinds.contains(&page.kind)
            && page.shard == last.shard
            && page.seq == last.seq + by
            && page.at == last.at + by as usize * PAGE
    };
    let mut lost = vec![first];
    while lost.len() < MOST_LOST && rng.random() {
        let Some(next) = pages.iter().find(|page| follows(page, lost[lost.len() - 1], 1)) else {
            break;
        };
        lost.push(next);
    }
    if is_of_log && !is_missed(&pages, lost[lost.len() - 1]) {
        return None;
    }
    let of_batch = |parity: &Page, from: u64| {
        let is_there = |seq: u64| {
            let is_it = |page: &Page| {
                (page.kind, page.shard, page.session, page.seq)
                    == (LOG, parity.shard, parity.session, seq)
                    && page.at + (parity.seq - seq) as usize * PAGE == parity.at
            };
            pages.iter().any(is_it)
        };
        (from..parity.seq).all(is_there)
    };
    let covers_first = |parity: &Page| {
        let by = parity.seq.saturating_sub(first.seq);
        let from = parity.seq.saturating_sub(parity.covers);
        parity.kind == PARITY
            && follows(parity, first, by)
            && parity.session == first.session
            && from <= first.seq
            && of_batch(parity, from)
    };
    let is_covered = is_of_log && lost.len() == 1 && pages.iter().any(covers_first);
    let of_log = |page: &&Page| matches!(page.kind, LOG | PARITY) && page.shard == first.shard;
    let later = pages.iter().filter(of_log).filter(|page| page.seq >= first.seq);
    let bytes = |page: &Page| page.at..page.at + PAGE;
    Some(LostPages {
        later: if is_of_log { later.map(bytes).collect() } else { Vec::new() },
        pages: lost.into_iter().map(bytes).collect(),
        is_of_log,
        is_covered,
    })
}

/// A byte of the data that may rot, and whether only the cache has its sector: of none that may be
/// overwritten.
pub fn in_data(
    kept: &KeptCache,
    data: Range<u64>,
    volumes: usize,
    rng: &mut SmallRng,
) -> Option<(usize, bool)> {
    let at = rng.random_range(data) as usize;
    match dirty_at(kept, at, volumes) {
        Some((volume, sector)) => (!has_no_sum(kept, volume, sector)).then_some((at, true)),
        None => Some((at, false)),
    }
}

fn has_no_sum(kept: &KeptCache, volume: VolumeId, sector: u64) -> bool {
    kept.unsealed_runs(volume).iter().any(|run| run.contains(&sector))
}

/// The sector that only the cache has, and has there.
fn dirty_at(kept: &KeptCache, byte: usize, volumes: usize) -> Option<(VolumeId, u64)> {
    let runs = (0..volumes).flat_map(|volume| {
        let volume = VolumeId(volume as u16);
        kept.dirty_runs(volume).into_iter().map(move |(run, start)| (volume, run, start))
    });
    let mut sectors = runs.filter_map(|(volume, run, start)| {
        let number = (byte as u64).checked_sub(start)? / SECTOR_BYTES;
        (number < run.end - run.start).then_some((volume, run.start + number))
    });
    sectors.next()
}
