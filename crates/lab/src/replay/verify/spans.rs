//! The versions that each byte of a volume may have: a map from ranges to candidates.
//!
//! Ranges never written hold the volume's first version and take no memory. A range that one write
//! has settled is one span again, so there are never more than two spans for each write.

use std::collections::BTreeMap;
use std::ops::Range;

/// The versions a byte may have; nearly always one, which takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidates {
    first: u64,
    others: Vec<u64>,
}

impl Candidates {
    pub(super) fn one(version: u64) -> Self {
        Self { first: version, others: Vec::new() }
    }

    pub(super) fn add(&mut self, version: u64) {
        self.others.push(version);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    pub(super) fn is_one(&self) -> bool {
        self.others.is_empty()
    }

    /// Keeps what `keep` says, which is at least one.
    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.others.retain(|&version| keep(version));
        if !keep(self.first) {
            self.first = self.others.remove(0);
        }
    }
}

#[derive(Debug, Clone)]
struct Span {
    end: u64,
    candidates: Candidates,
}

/// The versions of a volume's bytes.
#[derive(Debug)]
pub(super) struct Spans {
    /// The version of all bytes outside of the spans.
    initial: u64,
    spans: BTreeMap<u64, Span>,
}

impl Spans {
    pub(super) fn new(initial: u64) -> Self {
        Self { initial, spans: BTreeMap::new() }
    }

    /// The parts of a range with their candidates, in order and without gaps.
    pub(super) fn of(&self, range: &Range<u64>) -> Vec<(Range<u64>, Candidates)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let before = self.spans.range(..range.start).next_back();
        for (&start, span) in before.into_iter().chain(self.spans.range(range.clone())) {
            let (start, end) = (start.max(range.start), span.end.min(range.end));
            if start >= end {
                continue;
            }
            if at < start {
                parts.push((at..start, Candidates::one(self.initial)));
            }
            parts.push((start..end, span.candidates.clone()));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, Candidates::one(self.initial)));
        }
        parts
    }

    /// A write of a range begins: from now on it may be seen.
    pub(super) fn may_become(&mut self, range: &Range<u64>, version: u64) {
        self.cover(range);
        for (_, span) in self.spans.range_mut(range.clone()) {
            span.candidates.add(version);
        }
    }

    /// A write of a range has been answered: what `keep` does not name is gone for good.
    pub(super) fn settle(&mut self, range: &Range<u64>, version: u64, keep: impl Fn(u64) -> bool) {
        let mut settled = true;
        for (_, span) in self.spans.range_mut(range.clone()) {
            span.candidates.retain(&keep);
            settled &= span.candidates.is_one();
        }
        if settled {
            self.set(range, version);
        }
    }

    /// A range is known to hold one version.
    pub(super) fn set(&mut self, range: &Range<u64>, version: u64) {
        self.cover(range);
        let starts: Vec<u64> = self.spans.range(range.clone()).map(|(&start, _)| start).collect();
        starts.iter().for_each(|start| drop(self.spans.remove(start)));
        self.spans
            .insert(range.start, Span { end: range.end, candidates: Candidates::one(version) });
    }

    /// Makes spans of all of a range, none of which reaches beyond it.
    fn cover(&mut self, range: &Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        for (part, candidates) in self.of(range) {
            self.spans.entry(part.start).or_insert(Span { end: part.end, candidates });
        }
    }

    fn split(&mut self, at: u64) {
        let Some((_, span)) = self.spans.range_mut(..at).next_back() else { return };
        if span.end > at {
            let rest = Span { end: span.end, candidates: span.candidates.clone() };
            span.end = at;
            self.spans.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(spans: &Spans, range: Range<u64>) -> Vec<(Range<u64>, Vec<u64>)> {
        spans
            .of(&range)
            .into_iter()
            .map(|(part, candidates)| (part, candidates.iter().collect()))
            .collect()
    }

    #[test]
    fn overlapping_writes_leave_what_each_may_have_left() {
        let mut spans = Spans::new(0);
        spans.may_become(&(10..20), 2);
        assert_eq!(parts(&spans, 5..15), [(5..10, vec![0]), (10..15, vec![0, 2])]);
        spans.may_become(&(15..30), 4);
        spans.settle(&(10..20), 2, |version| version >= 2);
        assert_eq!(
            parts(&spans, 0..40),
            [
                (0..10, vec![0]),
                (10..15, vec![2]),
                (15..20, vec![2, 4]),
                (20..30, vec![0, 4]),
                (30..40, vec![0])
            ]
        );
        spans.settle(&(15..30), 4, |version| version >= 4);
        assert_eq!(parts(&spans, 12..30), [(12..15, vec![2]), (15..30, vec![4])]);
    }

    #[test]
    fn what_is_written_over_and_over_stays_one_span() {
        let mut spans = Spans::new(0);
        for version in 1..100 {
            let range = version..version + 1;
            spans.may_become(&range, version);
            spans.settle(&range, version, |other| other == version);
        }
        spans.may_become(&(0..200), 100);
        spans.settle(&(0..200), 100, |other| other == 100);
        assert_eq!(spans.spans.len(), 1);
        assert_eq!(parts(&spans, 3..7), [(3..7, vec![100])]);
    }
}
