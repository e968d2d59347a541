//! An eviction of a part of a volume: the ranges that are still to be dropped, and the search for
//! those that the cache has.
//!
//! A part that is larger than the cache is mostly not cached. So the cached blocks are looked for
//! first, and only the ranges around them are dropped.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use floe_block::{Driver, Request, RequestKind, SECTOR_BYTES, SearchPlace, VolumeId, search};

use crate::admin::VolumePart;

/// Bytes that are dropped at once. An eviction needs no device, so a worker does it at once: it
/// must be short, or clients would wait.
const CHUNK_BYTES: u64 = VolumePart::WARM_BYTES_MAX;

/// Slots that a worker visits at once in a search.
const SLOTS_AT_ONCE: u32 = 4 << 10;

/// Ranges of a volume that are to leave the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Eviction {
    volume: VolumeId,
    /// The ranges left, in bytes and in order.
    left: VecDeque<Range<u64>>,
}

impl Eviction {
    /// Creates the eviction of a whole part.
    pub(crate) fn of(part: &Request) -> Self {
        let range = part.offset..part.offset + part.len;
        Self { volume: part.volume, left: VecDeque::from([range]) }
    }

    /// Takes the request that drops the next range; `None` when nothing is left.
    pub(crate) fn next(&mut self) -> Option<Request> {
        let mut range = self.left.pop_front().filter(|range| !range.is_empty())?;
        let len = (range.end - range.start).min(CHUNK_BYTES);
        let (volume, offset) = (self.volume, range.start);
        range.start += len;
        if !range.is_empty() {
            self.left.push_front(range);
        }
        Some(Request { volume, kind: RequestKind::Evict, offset, len })
    }
}

/// A search for the chunks of a part of a volume that the cache has, in all workers.
#[derive(Debug, Clone)]
pub(crate) struct CacheSearch {
    part: Request,
    /// Workers that have more to search, in order, each with the place to go on from.
    places: Vec<(usize, SearchPlace)>,
    /// Numbers of the chunks found.
    found: BTreeSet<u64>,
}

impl CacheSearch {
    /// Creates a search that begins in each of the workers.
    pub(crate) fn new(part: Request, workers: usize) -> Self {
        let places = (0..workers).map(|worker| (worker, SearchPlace::default())).collect();
        Self { part, places, found: BTreeSet::new() }
    }

    /// Returns the part that is searched.
    pub(crate) fn part(&self) -> Request {
        self.part
    }

    /// Returns the workers that have more to search, in order, each with the place to go on from.
    pub(crate) fn places(&self) -> &[(usize, SearchPlace)] {
        &self.places
    }

    /// Adds the findings of the last step, in the order of the workers.
    pub(crate) fn take(&mut self, findings: impl Iterator<Item = Findings>) {
        let places = std::mem::take(&mut self.places);
        for ((worker, _), Findings { chunks, rest }) in places.into_iter().zip(findings) {
            self.found.extend(chunks);
            self.places.extend(rest.map(|place| (worker, place)));
        }
    }

    /// Returns the eviction of what was found.
    pub(crate) fn into_eviction(self) -> Eviction {
        let Request { volume, offset, len, .. } = self.part;
        let chunk = |number: u64| {
            let start = number * CHUNK_BYTES;
            start.max(offset)..(start + CHUNK_BYTES).min(offset + len)
        };
        let left = self.found.into_iter().map(chunk).filter(|range| !range.is_empty());
        Eviction { volume, left: left.collect() }
    }
}

/// The findings of a worker in a step of a search.
#[derive(Debug)]
pub(crate) struct Findings {
    /// Numbers of chunks of which some blocks are cached.
    chunks: BTreeSet<u64>,
    /// The place to go on from, if the worker has more to search.
    rest: Option<SearchPlace>,
}

impl Findings {
    /// Takes the next step of a search in a worker's part of the cache.
    pub(crate) fn of(driver: &Driver, part: &Request, from: SearchPlace) -> Self {
        let mut chunks = BTreeSet::new();
        let sectors = part.offset / SECTOR_BYTES..(part.offset + part.len).div_ceil(SECTOR_BYTES);
        let mut last = None;
        let mut found = |run: Range<u64>| {
            // The largest block is shorter than a chunk, and aligned.
            let chunk = run.start * SECTOR_BYTES / CHUNK_BYTES;
            if last != Some(chunk) {
                last = Some(chunk);
                chunks.insert(chunk);
            }
        };
        let rest = search(driver, part.volume, &sectors, from, SLOTS_AT_ONCE, &mut found);
        Self { chunks, rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn part(offset: u64, len: u64) -> Request {
        Request { volume: VolumeId(3), kind: RequestKind::Evict, offset, len }
    }

    fn ranges(mut eviction: Eviction) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| eviction.next().map(|it| (it.offset, it.len))).collect()
    }

    #[test]
    fn an_eviction_drops_a_part_bit_by_bit() {
        let long = part(5 * KIB, 2 * CHUNK_BYTES + KIB);
        let expected = [
            (5 * KIB, CHUNK_BYTES),
            (5 * KIB + CHUNK_BYTES, CHUNK_BYTES),
            (5 * KIB + 2 * CHUNK_BYTES, KIB),
        ];
        assert_eq!(ranges(Eviction::of(&long)), expected);
        assert_eq!(ranges(Eviction::of(&part(7, 0))), []);
    }

    #[test]
    fn a_search_leaves_the_chunks_that_some_worker_has() {
        let end = 5 * CHUNK_BYTES + KIB;
        let mut search = CacheSearch::new(part(KIB, end - KIB), 3);
        let found = |chunks: &[u64], rest: bool| {
            let chunks = chunks.iter().copied().collect();
            Findings { chunks, rest: rest.then(SearchPlace::default) }
        };
        let asked =
            |search: &CacheSearch| search.places().iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(asked(&search), [0, 1, 2]);
        search.take([found(&[2, 0], true), found(&[], false), found(&[2], true)].into_iter());
        assert_eq!(asked(&search), [0, 2]);
        search.take([found(&[], false), found(&[5], false)].into_iter());
        assert!(asked(&search).is_empty());
        let expected =
            [(KIB, CHUNK_BYTES - KIB), (2 * CHUNK_BYTES, CHUNK_BYTES), (5 * CHUNK_BYTES, KIB)];
        assert_eq!(ranges(search.into_eviction()), expected);
        let nothing = CacheSearch::new(part(0, end), 0);
        assert_eq!(ranges(nothing.into_eviction()), []);
    }
}
