//! [`Planner`]: decides which bytes a miss requests. It has neither a clock nor I/O.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;
use object_store::GetRange;

use crate::ghosts::{Ghosts, ReadKind};
use crate::parts::{UNIT, align, push, union};
use crate::prices::Prices;

/// The bytes that a miss requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FetchSize {
    /// Learned: the range that pays, by the price of a request and of a byte on the store, and by
    /// the use of bytes that were fetched beyond a read.
    #[default]
    Adaptive,
    /// The bytes of the read, rounded out to 4 KiB.
    Exact,
    /// Aligned parts of so many bytes, a power of two from 4 KiB on. Neighbours are one request.
    Fixed(u64),
    /// Parts as of [`Fixed`](Self::Fixed). As with [`Adaptive`](Self::Adaptive), a large range is
    /// split into requests at once, and where a function [spawns](crate::Builder::spawn) tasks,
    /// reads that go on where others ended fetch ahead:
    /// [`parallel`](crate::Builder::parallel) parts, as long as all bytes under way fit into
    /// [`in_flight_bytes`](crate::Builder::in_flight_bytes).
    FixedAhead(u64),
}

impl FetchSize {
    /// Returns the bytes of a part, where they are fixed.
    pub(crate) fn fixed(self) -> Option<u64> {
        match self {
            Self::Fixed(bytes) | Self::FixedAhead(bytes) => Some(bytes),
            Self::Adaptive | Self::Exact => None,
        }
    }
}

/// A read as the planner sees it.
#[derive(Debug, Clone)]
pub(crate) struct Read<'a> {
    /// Hash of the version of the object.
    pub(crate) object: u64,
    /// Hash of the part of the location that objects of one kind share.
    pub(crate) prefix: u64,
    /// Length of the object.
    pub(crate) len: u64,
    /// Aligned bytes that are read, in ascending order.
    pub(crate) ranges: &'a [Range<u64>],
    /// Bytes that may be fetched ahead.
    pub(crate) room: u64,
}

/// The advice for the misses of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Bytes of the aligned blocks to fetch.
    pub(crate) block: u64,
    /// Bytes before the first missing one are fetched, too.
    pub(crate) before: bool,
    /// Aligned bytes to fetch in the background.
    pub(crate) ahead: Option<Range<u64>>,
}

impl Advice {
    fn of(block: u64, kind: ReadKind) -> Self {
        Self { block, before: matches!(kind, ReadKind::Jump | ReadKind::End), ahead: None }
    }
}

/// Bytes between two ranges are requested with them if they take less than this share of a
/// request's time: the two could be requested at once.
const GAP_SHARE: f64 = 0.1;
/// Smallest piece into which a large range is split, in bytes.
const SMALLEST_PIECE: f64 = (1 << 20) as f64;
/// Largest piece, which bounds the memory of a request.
const LARGEST_PIECE: u64 = 16 << 20;

/// Objects whose last reads are remembered.
const RECENT: usize = 4096;
/// Reads of an object that may go on, such as those of several scans.
const ENDS: usize = 4;
/// A read goes on where another ended if it begins at most so many bytes behind.
const RUN_GAP: u64 = 256 << 10;
/// Smallest block that is fetched ahead.
const SMALLEST_AHEAD: u64 = 1 << 20;

/// The last reads of an object.
#[derive(Debug, Default)]
struct Recent {
    ends: [u64; ENDS],
    next: usize,
    /// The end of the last bytes that were fetched ahead.
    ahead: u64,
}

/// Decides which bytes are requested.
#[derive(Debug)]
pub(crate) struct Planner {
    fetch: FetchSize,
    parallel: u64,
    /// Requests go on without a read that waits.
    has_tasks: bool,
    pub(crate) prices: Prices,
    ghosts: Ghosts,
    recent: HashMap<u64, Recent, FixedState>,
}

impl Planner {
    /// `parallel` is the largest number of requests for one range at once, and `capacity` the size
    /// of the cache in bytes.
    pub(crate) fn new(fetch: FetchSize, parallel: u64, has_tasks: bool, capacity: u64) -> Self {
        Self {
            fetch,
            parallel,
            has_tasks,
            prices: Prices::new(),
            ghosts: Ghosts::new(capacity),
            recent: HashMap::default(),
        }
    }

    /// Notes a read, hit or miss, and returns the advice for what it misses.
    pub(crate) fn read(&mut self, read: &Read<'_>) -> Advice {
        match self.fetch {
            FetchSize::Fixed(block) => return Advice::of(block, ReadKind::Jump),
            FetchSize::Exact => return Advice::of(UNIT, ReadKind::Run),
            FetchSize::Adaptive | FetchSize::FixedAhead(_) => {}
        }
        let reads = self.kinds(read);
        if self.fetch == FetchSize::Adaptive {
            self.ghosts.read(read.object, read.prefix, read.len, &reads);
        }
        let run = reads.iter().find(|(kind, _)| *kind == ReadKind::Run);
        let advice = run.or(reads.first());
        let Some((kind, range)) = advice else { return Advice::of(UNIT, ReadKind::Run) };
        let kind = *kind;
        let (mut advice, window) = match self.fetch {
            FetchSize::FixedAhead(block) => {
                let window = block.saturating_mul(self.parallel).min(read.len);
                (Advice::of(block, ReadKind::Jump), window)
            }
            _ => {
                let advice = Advice::of(self.block(read.prefix, kind), kind);
                let window = if advice.block < SMALLEST_AHEAD { 0 } else { advice.block };
                (advice, window)
            }
        };
        if kind == ReadKind::Run && self.has_tasks && window > 0 {
            advice.ahead = self.ahead(read, range.end, advice.block, window);
        }
        advice
    }

    /// Returns the blocks to fetch ahead of a run that has come to `at`, so that a window of bytes
    /// is there or under way, as far as there is room. It does so each time that half of the window
    /// is used up.
    fn ahead(&mut self, read: &Read<'_>, at: u64, block: u64, window: u64) -> Option<Range<u64>> {
        let recent = self.recent.get_mut(&read.object)?;
        let is_of_run = (at..=at + window + block).contains(&recent.ahead);
        let start = if is_of_run { recent.ahead } else { at }.next_multiple_of(block);
        let room = read.room / block * block;
        let end = (at + window).next_multiple_of(block).min(start.saturating_add(room));
        let end = end.min(read.len);
        if start >= end || start - at > window / 2 {
            return None;
        }
        recent.ahead = end;
        Some(start..end)
    }

    /// Returns the relations of a read's ranges to earlier reads, and notes them. The ranges of one
    /// read do not go on from each other: columns that lie side by side are not a scan.
    fn kinds(&mut self, read: &Read<'_>) -> Vec<(ReadKind, Range<u64>)> {
        if self.recent.len() >= RECENT && !self.recent.contains_key(&read.object) {
            self.recent.clear();
        }
        let recent = self.recent.entry(read.object).or_default();
        let before = recent.ends;
        let mut reads = Vec::with_capacity(read.ranges.len());
        for range in read.ranges {
            let goes_on =
                |end: &u64| *end > 0 && range.start + UNIT >= *end && range.start <= *end + RUN_GAP;
            let kind = match before.iter().position(goes_on) {
                Some(at) => {
                    recent.ends[at] = range.end;
                    ReadKind::Run
                }
                None => {
                    recent.ends[recent.next] = range.end;
                    recent.next = (recent.next + 1) % ENDS;
                    match (range.start, range.end) {
                        (0, _) => ReadKind::Start,
                        (_, end) if end == read.len => ReadKind::End,
                        _ => ReadKind::Jump,
                    }
                }
            };
            reads.push((kind, range.clone()));
        }
        reads
    }

    /// Returns the block that pays for a kind of reads.
    fn block(&self, prefix: u64, kind: ReadKind) -> u64 {
        let price = |requests: f64, unread: f64, block: u64| {
            let lanes = self.prices.known_lanes(self.parallel).unwrap_or(1) as f64;
            let lanes = (block as f64 / self.smallest_piece()).clamp(1.0, lanes);
            requests * self.prices.request() + unread * self.prices.byte() / lanes
        };
        self.ghosts.best(prefix, kind, price).unwrap_or(match kind {
            ReadKind::Start | ReadKind::End => 64 << 10,
            ReadKind::Run => 4 << 20,
            ReadKind::Jump => 16 << 10,
        })
    }

    /// Returns the advice for an object that is not known yet.
    pub(crate) fn first(&self, prefix: u64, range: Option<&GetRange>) -> Advice {
        let kind = match range {
            None => ReadKind::Start,
            Some(GetRange::Bounded(range)) if range.start == 0 => ReadKind::Start,
            Some(GetRange::Offset(0)) => ReadKind::Start,
            Some(GetRange::Suffix(_)) => ReadKind::End,
            Some(_) => ReadKind::Jump,
        };
        match self.fetch {
            FetchSize::Fixed(block) | FetchSize::FixedAhead(block) => {
                Advice::of(block, ReadKind::Jump)
            }
            FetchSize::Exact => Advice::of(UNIT, ReadKind::Run),
            FetchSize::Adaptive => Advice::of(self.block(prefix, kind), kind),
        }
    }

    /// Returns the number of requests at once that are worth it for one range.
    pub(crate) fn lanes(&self) -> u64 {
        self.prices.lanes(self.parallel)
    }

    fn smallest_piece(&self) -> f64 {
        self.prices.bytes_of_a_request().clamp(SMALLEST_PIECE, LARGEST_PIECE as f64)
    }

    /// Returns the bytes to fetch for ascending missing ranges, in ascending order.
    pub(crate) fn extend(
        &self,
        advice: &Advice,
        missing: &[Range<u64>],
        len: u64,
    ) -> Vec<Range<u64>> {
        let mut extended = Vec::with_capacity(missing.len());
        for range in missing {
            let start = match advice.before {
                true => range.start / advice.block * advice.block,
                false => range.start,
            };
            let end = range.end.next_multiple_of(advice.block).min(len);
            extended.push(align(&(start..end), len));
        }
        union(extended)
    }

    /// Groups ascending missing ranges into requests. Each asks for the bytes from its first range
    /// to its last.
    pub(crate) fn requests(&self, missing: &[Range<u64>]) -> Vec<Vec<Range<u64>>> {
        let gap = match self.fetch.fixed() {
            Some(_) => 0,
            None => (self.prices.bytes_of_a_request() * GAP_SHARE) as u64,
        };
        let mut groups: Vec<Vec<Range<u64>>> = Vec::new();
        for range in missing {
            for piece in self.split(range) {
                match groups.last_mut() {
                    Some(group)
                        if piece.start == range.start
                            && piece.start - group[group.len() - 1].end <= gap
                            && piece.end - group[0].start <= LARGEST_PIECE =>
                    {
                        push(group, piece);
                    }
                    _ => groups.push(vec![piece]),
                }
            }
        }
        groups
    }

    /// Splits a large range into requests that are carried out at once.
    fn split(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let bytes = range.end - range.start;
        let most = match self.fetch {
            FetchSize::Fixed(_) => 1,
            _ => {
                let smallest = self.smallest_piece() as u64;
                (bytes / smallest).min(self.lanes())
            }
        };
        let count = most.max(bytes.div_ceil(LARGEST_PIECE)).max(1);
        let piece = bytes.div_ceil(count).next_multiple_of(256 << 10);
        (0..count)
            .map(|at| range.start + at * piece..(range.start + (at + 1) * piece).min(range.end))
            .filter(|piece| !piece.is_empty())
            .collect()
    }

    /// Returns the bytes of a window of a stream: so many are read at once.
    pub(crate) fn window(&self) -> u64 {
        (self.smallest_piece() as u64 * self.lanes())
            .next_multiple_of(1 << 20)
            .clamp(4 << 20, 32 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    #[test]
    fn near_ranges_are_one_request_and_far_ones_are_not() {
        let planner = Planner::new(FetchSize::Adaptive, 8, false, 1 << 30);
        let near = [0..4 * K, 8 * K..12 * K, 200 * K..204 * K];
        assert_eq!(planner.requests(&near), [near.to_vec()]);
        let far = [0..4 * K, 10 * M..11 * M];
        assert_eq!(planner.requests(&far), [vec![0..4 * K], vec![10 * M..11 * M]]);
        let planner = Planner::new(FetchSize::Fixed(64 * K), 8, false, 1 << 30);
        assert_eq!(planner.requests(&[0..64 * K, 128 * K..192 * K]).len(), 2);
    }

    fn read(planner: &mut Planner, object: u64, len: u64, range: Range<u64>) -> Advice {
        let ranges = [align(&range, len)];
        planner.read(&Read { object, prefix: 1, len, ranges: &ranges, room: u64::MAX })
    }

    #[test]
    fn scans_and_scattered_reads_of_a_prefix_are_told_apart() {
        let mut planner = Planner::new(FetchSize::Adaptive, 8, true, 1 << 30);
        let mut ahead = Vec::new();
        for at in 0..512u64 {
            let scan = read(&mut planner, 1, 64 * M, at * 128 * K..(at + 1) * 128 * K);
            ahead.extend(scan.ahead);
            let place = (at * 7919 % 4096) * 16 * M;
            read(&mut planner, 2, 64 << 30, place..place + 10);
        }
        let scan = read(&mut planner, 3, 64 * M, 0..128 * K);
        assert_eq!((scan.before, scan.ahead), (false, None));
        let scan = read(&mut planner, 3, 64 * M, 128 * K..256 * K);
        assert!(scan.block >= 4 * M && !scan.before, "{scan:?}");
        assert_eq!(read(&mut planner, 4, 64 << 30, 5 * M..5 * M + 10).block, UNIT);
        // Each block is fetched ahead once, not once a read.
        assert!(ahead.len() < 32, "{ahead:?}");
        assert_eq!(ahead.last().map(|last| last.end), Some(64 * M));
    }

    #[test]
    fn columns_of_one_read_that_lie_side_by_side_are_no_scan() {
        let mut planner = Planner::new(FetchSize::Adaptive, 8, true, 1 << 30);
        let columns = |start: u64| [start..start + 192 * K, start + 300 * K..start + 700 * K];
        let mut read = |ranges: &[Range<u64>]| {
            planner.read(&Read { object: 1, prefix: 1, len: 64 * M, ranges, room: u64::MAX })
        };
        let first = read(&columns(4 * M));
        assert!(first.before && first.block < M && first.ahead.is_none(), "{first:?}");
        let next = read(&columns(4 * M + 700 * K));
        assert!(!next.before && next.block >= M, "a later read goes on: {next:?}");
    }

    #[test]
    fn runs_of_fixed_parts_are_fetched_ahead_by_a_window() {
        let mut planner = Planner::new(FetchSize::FixedAhead(M), 4, true, 1 << 30);
        let mut ahead = Vec::new();
        for at in 0..80u64 {
            let scan = read(&mut planner, 1, 10 * M, at * 128 * K..(at + 1) * 128 * K);
            assert_eq!((scan.block, scan.before), (M, true));
            ahead.extend(scan.ahead);
        }
        assert_eq!(ahead, [M..5 * M, 5 * M..7 * M, 7 * M..9 * M, 9 * M..10 * M]);
        let jump = read(&mut planner, 1, 10 * M, 5 * M..5 * M + 10);
        assert_eq!(jump.ahead, None);
    }

    #[test]
    fn what_has_no_room_is_fetched_ahead_later() {
        let mut planner = Planner::new(FetchSize::FixedAhead(M), u64::MAX, true, 1 << 30);
        let mut read = |range: Range<u64>, room| {
            let read = Read { object: 1, prefix: 1, len: 10 * M, ranges: &[range], room };
            planner.read(&read).ahead
        };
        assert_eq!(read(0..128 * K, u64::MAX), None);
        assert_eq!(read(128 * K..256 * K, M - 1), None);
        assert_eq!(read(256 * K..384 * K, 3 * M + 5), Some(M..4 * M));
        assert_eq!(read(384 * K..512 * K, 0), None);
        assert_eq!(read(512 * K..640 * K, u64::MAX), Some(4 * M..10 * M));
    }

    #[test]
    fn large_ranges_are_split_without_loss() {
        let planner = Planner::new(FetchSize::Adaptive, 4, false, 1 << 30);
        for range in [0..M, 5 * K..64 * M + 1, 4 * K..9 * M] {
            let requests = planner.requests(std::slice::from_ref(&range));
            let pieces: Vec<_> = requests.into_iter().flatten().collect();
            assert!(pieces.iter().all(|piece| piece.end - piece.start <= LARGEST_PIECE + 256 * K));
            assert_eq!(union(pieces), [range]);
        }
        assert_eq!(planner.requests(&[0..16 * M]).len(), 4);
    }

    #[test]
    fn fixed_parts_are_aligned() {
        let planner = Planner::new(FetchSize::Fixed(64 * K), 8, false, 1 << 30);
        let advice = planner.first(0, None);
        let missing = [68 * K..72 * K, 190 * K..194 * K];
        assert_eq!(planner.extend(&advice, &missing, 200 * K), [64 * K..200 * K]);
        assert_eq!(planner.extend(&advice, &missing[..1], 100 * K), [64 * K..100 * K]);
    }
}
