//! Where a stripe keeps its bytes.
//!
//! Chunk 0 is on the first member, chunk 1 on the second, and after the last member comes the first
//! again (RAID-0). So a range of the stripe is one contiguous range on every member it touches, and
//! chunk by chunk a run on one member. Pure arithmetic.

use std::ops::Range;

/// The number of members and the size of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) members: u64,
    pub(crate) chunk: u64,
}

/// Part of a range: what lies on one member in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of the member.
    pub(crate) member: usize,
    /// Where on that member.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) len: u64,
}

impl Layout {
    /// Bytes of a stripe whose smallest member has `member_bytes`: whole chunks only.
    pub(crate) fn capacity(self, member_bytes: u64) -> u64 {
        (member_bytes / self.chunk * self.chunk).saturating_mul(self.members)
    }

    /// The bytes that each member needs for a stripe of `bytes`.
    pub(crate) fn member_bytes(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.chunk.saturating_mul(self.members)).saturating_mul(self.chunk)
    }

    /// The range chunk by chunk, in order.
    pub(crate) fn parts(self, range: Range<u64>) -> impl Iterator<Item = Part> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (chunk, into) = (at / self.chunk, at % self.chunk);
            let len = (self.chunk - into).min(range.end.checked_sub(at).filter(|&left| left > 0)?);
            at += len;
            let member = (chunk % self.members) as usize;
            Some(Part { member, offset: chunk / self.members * self.chunk + into, len })
        })
    }

    /// The parts of the range on each member, for members that have some of it.
    pub(crate) fn spans(self, range: Range<u64>) -> impl Iterator<Item = Part> {
        (0..self.members).filter_map(move |member| {
            let (start, end) = (self.before(member, range.start), self.before(member, range.end));
            (start < end).then_some(Part {
                member: member as usize,
                offset: start,
                len: end - start,
            })
        })
    }

    /// The number of the stripe's first `bytes` bytes that lie on a member.
    fn before(self, member: u64, bytes: u64) -> u64 {
        let row = self.chunk * self.members;
        let into = (bytes % row).saturating_sub(member * self.chunk).min(self.chunk);
        bytes / row * self.chunk + into
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_and_parts_are_the_same_bytes_and_every_byte_has_its_own_place(
            members in 1u64..6, chunk in 1u64..9, start in 0u64..200, len in 0u64..100,
        ) {
            let layout = Layout { members, chunk };
            let bytes = |part: Part| {
                (part.offset..part.offset + part.len).map(move |at| (part.member, at))
            };
            let parts: Vec<_> = layout.parts(start..start + len).flat_map(bytes).collect();
            for (at, place) in (start..).zip(&parts) {
                let (chunk_number, into) = (at / chunk, at % chunk);
                let (row, member) = (chunk_number / members, chunk_number % members);
                prop_assert_eq!(*place, (member as usize, row * chunk + into));
                prop_assert!(place.1 < layout.member_bytes(start + len));
            }
            prop_assert_eq!(parts.len() as u64, len);
            let mut sorted = parts;
            sorted.sort_unstable();
            let spans: Vec<_> = layout.spans(start..start + len).flat_map(bytes).collect();
            prop_assert_eq!(spans, sorted);
        }

        #[test]
        fn a_stripe_fits_on_members_of_the_size_it_asks_for(
            members in 1u64..6, chunk in 1u64..9, bytes in 0u64..999,
        ) {
            let layout = Layout { members, chunk };
            prop_assert!(layout.capacity(layout.member_bytes(bytes)) >= bytes);
            let less = layout.member_bytes(bytes).saturating_sub(1);
            prop_assert!(bytes == 0 || layout.capacity(less) < bytes);
        }
    }
}
