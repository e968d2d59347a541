//! Segmented LRU: an entry climbs one segment with each hit and falls one when its segment
//! overflows.
//!
//! New entries go to the lowest segment, whose tail leaves. A hit moves an entry to the head of the
//! next segment up; the tail of a segment that grew beyond its equal share goes down one. With two
//! segments they are called probation and protection (Karedla, Love, Wherry, "Caching Strategies to
//! Improve Disk System Performance", 1994).
//!
//! Do not use SLRU with many cores: a hit moves entries in two segments, and throughput falls from
//! a hit ratio of about one half (queueing paper, section 3.5).

use crate::listed::Listed;
use crate::{
    Access, AlwaysPromote, Lists, Parameter, Parameters, Policy, PolicyInfo, Ranked, Slot,
};

/// Largest number of segments.
const SEGMENTS_MAX: usize = 8;

/// Names of the segments in operation counts.
const NAMES: [&str; SEGMENTS_MAX] = [
    "segment 1",
    "segment 2",
    "segment 3",
    "segment 4",
    "segment 5",
    "segment 6",
    "segment 7",
    "segment 8",
];

/// SLRU (`slru`): LRU in segments; a hit moves an entry up by one segment. LRU-like.
#[derive(Debug, Clone)]
pub struct Slru {
    /// LRU list of each segment; segment 0 is the lowest.
    segments: Lists<SEGMENTS_MAX>,
    top: usize,
    segment_size: u64,
}

impl Slru {
    /// Moves the coldest entries of an overfull segment down, and so on in the segments below.
    #[inline]
    fn spill(&mut self, mut full: usize) {
        while full > 0 && self.segments.size(full) > self.segment_size {
            match self.segments.tail(full) {
                Some(coldest) => self.segments.move_to_head(full - 1, coldest),
                None => break,
            }
            if self.segments.size(full) <= self.segment_size {
                full -= 1;
            }
        }
    }
}

impl Policy for Slru {
    const INFO: PolicyInfo = PolicyInfo::new(
        "slru",
        "each hit moves an entry up by one LRU segment",
        "Karedla et al., 1994",
    )
    .with(&[Parameter::count(
        "segments",
        4,
        2..=SEGMENTS_MAX as u64,
        "number of equal segments",
    )]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            segments: Lists::named(NAMES),
            top: parameters.count("segments") as usize - 1,
            segment_size: 0,
        }
    }
}

impl Listed for Slru {
    type Marks = AlwaysPromote;
    type Lists = Lists<SEGMENTS_MAX>;

    const WEIGHTED: bool = true;

    fn lists(&self) -> &Lists<SEGMENTS_MAX> {
        &self.segments
    }

    fn lists_mut(&mut self) -> &mut Lists<SEGMENTS_MAX> {
        &mut self.segments
    }

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    #[inline]
    fn promote(&mut self, slot: Slot) {
        let Some(segment) = self.segments.list_of(slot) else { return };
        let segment = (segment + 1).min(self.top);
        self.segments.move_to_head(segment, slot);
        self.spill(segment);
        debug_assert!(
            segment == 0 || self.segments.size(segment) <= self.segment_size,
            "a segment above the lowest keeps to its size"
        );
    }

    #[inline]
    fn insert(&mut self, slot: Slot, access: &Access) {
        self.segments.set_weight(slot, access.weight);
        self.segments.push_head(0, slot);
    }

    #[inline]
    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        (0..=self.top).find_map(|segment| self.segments.pop_tail(segment))
    }

    fn victim(&mut self, _: Option<&Access>) -> Option<Slot> {
        (0..=self.top).find_map(|segment| self.segments.tail(segment))
    }

    fn hottest_first(&self) -> impl AsRef<[usize]> {
        [7, 6, 5, 4, 3, 2, 1, 0]
    }

    fn resized(&mut self) {
        self.segment_size = self.segments.capacity() / (self.top as u64 + 1);
    }

    fn reweighed(&mut self, slot: Slot) {
        if let Some(segment) = self.segments.list_of(slot) {
            self.spill(segment);
        }
    }
}

impl Ranked for Slru {
    fn coldest_first(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..=self.top).flat_map(|segment| self.segments.coldest_first(segment))
    }
}
