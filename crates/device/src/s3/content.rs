//! The next content of an object, made of its base and the writes that change it.

use std::ops::Range;

use bytes::Bytes;

/// A change of a range of an object.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// The range gets these bytes.
    Bytes(Bytes),
    /// The range becomes zeros.
    Zero,
}

/// The content of an object while changes are applied to it.
#[derive(Debug)]
pub(super) struct Content {
    len: usize,
    /// `None` if all bytes are zeros, so that the object need not exist.
    bytes: Option<Built>,
}

#[derive(Debug)]
enum Built {
    /// A write of the whole object, as it came.
    Shared(Bytes),
    Own(Vec<u8>),
}

impl Content {
    /// Creates a content of `len` bytes that begins with those of `base`; the others are zeros.
    pub(super) fn new(len: usize, base: Bytes) -> Self {
        let bytes = (!base.is_empty()).then_some(Built::Shared(base));
        Self { len, bytes }
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, range: &Range<usize>, change: &Change) {
        let is_whole = *range == (0..self.len);
        match change {
            Change::Zero if is_whole => self.bytes = None,
            Change::Zero if self.bytes.is_none() => {}
            Change::Zero => self.own()[range.clone()].fill(0),
            Change::Bytes(bytes) => match is_zero(bytes) {
                true if is_whole => self.bytes = None,
                true if self.bytes.is_none() => {}
                _ if is_whole => self.bytes = Some(Built::Shared(bytes.clone())),
                _ => self.own()[range.clone()].copy_from_slice(bytes),
            },
        }
    }

    fn own(&mut self) -> &mut [u8] {
        let mut bytes = match self.bytes.take() {
            None => vec![0; self.len],
            Some(Built::Own(bytes)) => bytes,
            // Without a copy if nothing else has the bytes.
            Some(Built::Shared(bytes)) => Vec::from(bytes),
        };
        bytes.resize(self.len, 0);
        match self.bytes.insert(Built::Own(bytes)) {
            Built::Own(bytes) => bytes,
            Built::Shared(_) => unreachable!("they are its own"),
        }
    }

    /// Returns the bytes of the object; `None` if it shall not exist.
    pub(super) fn finish(self) -> Option<Bytes> {
        self.bytes.map(|bytes| match bytes {
            Built::Shared(bytes) => bytes,
            Built::Own(bytes) => bytes.into(),
        })
    }
}

/// Returns whether ranges cover the whole of `len` bytes.
pub(super) fn is_covered<'a>(len: usize, ranges: impl Iterator<Item = &'a Range<usize>>) -> bool {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut end = 0;
    for range in ranges {
        if range.start > end {
            return false;
        }
        end = end.max(range.end);
    }
    end >= len
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod content_tests {
    use super::*;

    fn bytes(byte: u8, len: usize) -> Change {
        Change::Bytes(vec![byte; len].into())
    }

    #[test]
    fn zeros_over_everything_leave_nothing() {
        let mut content = Content::new(8, Bytes::new());
        content.apply(&(2..4), &bytes(0, 2));
        content.apply(&(2..4), &Change::Zero);
        assert!(content.finish().is_none(), "zeros in a missing object");
        for last in [Change::Zero, bytes(0, 8)] {
            let mut content = Content::new(8, Bytes::from_static(&[1; 8]));
            content.apply(&(0..8), &last);
            assert!(content.finish().is_none());
        }
        let mut content = Content::new(8, Bytes::from_static(&[1; 6]));
        content.apply(&(1..3), &Change::Zero);
        content.apply(&(2..4), &bytes(2, 2));
        assert_eq!(content.finish().expect("it has bytes")[..], [1, 0, 2, 2, 1, 1, 0, 0]);
        let mut content = Content::new(8, Bytes::from_static(&[1; 8]));
        content.apply(&(0..8), &bytes(3, 8));
        content.apply(&(0..1), &bytes(0, 1));
        assert_eq!(content.finish().expect("it has bytes")[..], [0, 3, 3, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn ranges_cover_in_any_order() {
        let covers = |ranges: &[Range<usize>]| is_covered(8, ranges.iter());
        assert!(covers(&[4..8, 0..5]) && covers(&[0..4, 0..8]) && covers(&[0..7, 1..2, 7..8]));
        assert!(
            !covers(&[])
                && !covers(&[1..8, 2..3])
                && !covers(&[0..3, 4..8])
                && !covers(&[0..7, 0..2])
        );
    }
}
