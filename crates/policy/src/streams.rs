//! Detection of sequential streams: requests for consecutive positions.
//!
//! The owner of a cache follows the streams before keys are divided into shards, because a shard
//! that sees some regions of a volume would lose a stream at the end of each. The owner passes its
//! findings to policies and admissions with each access
//! ([`Access::in_a_row`](crate::Access::in_a_row)). If a policy uses prefetched blocks
//! ([`Eviction::fetches_ahead`](crate::Eviction::fetches_ahead)), the owner fetches those of
//! [`Streams::ahead`].
//!
//! Several streams are followed at once, and the one idle for longest is given up. The length of a
//! prefetch is fixed, as in SARC (Gill and Modha, ATC '05), but no less than a request of the
//! stream.

use std::ops::Range;

/// Number of streams followed at once.
const STREAMS: usize = 32;
/// Minimum number of positions that one prefetch orders; `DEGREE_MAX` is the most.
const DEGREE: u64 = 8;
const DEGREE_MAX: u64 = 256;

/// A run of consecutive positions; unused while `next` is 0.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    begun: u64,
    next: u64,
    ordered_to: u64,
    last_seen: u64,
}

/// The sequential streams that are being followed.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    /// Index of the stream followed last; `asked` is the number of positions in its last request.
    last: usize,
    asked: u64,
    now: u64,
}

impl Streams {
    /// Finds the stream that a request continues, or begins a new one. Returns the position at
    /// which the stream began. `positions` are those of the request, at least one.
    ///
    /// A request also continues a stream if it begins within the last position, which may be
    /// requested in parts, or after the next position but within those already ordered.
    pub fn follow(&mut self, positions: &Range<u64>) -> u64 {
        let Range { start, end } = *positions;
        self.now += 1;
        self.asked = end - start;
        let continues = |stream: &Stream| {
            stream.next > 0
                && (stream.next - 1..=stream.next.max(stream.ordered_to)).contains(&start)
        };
        if let Some(at) = self.streams.iter().position(continues) {
            self.last = at;
            let stream = &mut self.streams[at];
            stream.next = stream.next.max(end);
            stream.last_seen = self.now;
            return stream.begun;
        }
        let idle = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.last_seen);
        self.last = idle.map_or(0, |(at, _)| at);
        self.streams[self.last] =
            Stream { begun: start, next: end, ordered_to: 0, last_seen: self.now };
        start
    }

    /// Returns positions worth fetching ahead if the stream followed last is at least `threshold`
    /// positions long. Each position is returned once. The next ones are returned when half of the
    /// last are used up, so that they arrive in time.
    pub fn ahead(&mut self, threshold: u64) -> Option<Range<u64>> {
        let stream = &mut self.streams[self.last];
        let degree = self.asked.clamp(DEGREE, DEGREE_MAX);
        if stream.next - stream.begun < threshold
            || stream.next.saturating_add(degree / 2) < stream.ordered_to
        {
            return None;
        }
        let start = stream.ordered_to.max(stream.next);
        stream.ordered_to = start.saturating_add(degree);
        Some(start..stream.ordered_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_through_parts_of_positions_repeats_and_what_was_ordered() {
        let mut streams = Streams::default();
        assert_eq!(streams.follow(&(10..12)), 10);
        assert_eq!(streams.follow(&(11..12)), 10, "the rest of the last position");
        assert_eq!(streams.follow(&(11..13)), 10);
        assert_eq!(streams.ahead(4), None, "three so far");
        assert_eq!(streams.follow(&(13..14)), 10);
        assert_eq!(streams.ahead(4), Some(14..22));
        assert_eq!(streams.ahead(4), None, "it was told");
        assert_eq!(streams.follow(&(16..17)), 10, "a step over what is on its way");
        assert_eq!(streams.ahead(4), None, "more than half of it is left");
        assert_eq!(streams.follow(&(17..18)), 10);
        assert_eq!(streams.ahead(4), Some(22..30));
        assert_eq!(streams.follow(&(31..32)), 31, "nobody ordered that");
        assert_eq!(streams.follow(&(9..10)), 9, "streams go upwards");
    }

    #[test]
    fn as_much_is_ordered_as_is_asked_for_at_once_up_to_a_bound() {
        let mut streams = Streams::default();
        streams.follow(&(0..100));
        assert_eq!(streams.ahead(3), Some(100..200));
        streams.follow(&(5000..6000));
        assert_eq!(streams.ahead(3), Some(6000..6000 + DEGREE_MAX));
        streams.follow(&(u64::MAX - 4..u64::MAX));
        assert_eq!(streams.ahead(3), Some(u64::MAX..u64::MAX), "there is no further");
    }

    #[test]
    fn many_streams_at_once_are_told_apart_and_the_idlest_is_forgotten() {
        let mut streams = Streams::default();
        for step in 0..5 {
            for stream in 0..STREAMS as u64 {
                let at = stream * 1000 + step;
                assert_eq!(streams.follow(&(at..at + 1)), stream * 1000);
            }
        }
        streams.follow(&(1 << 40..(1 << 40) + 1));
        assert_eq!(streams.follow(&(1005..1006)), 1000);
        assert_eq!(streams.follow(&(5..6)), 5, "the one that was idle for longest");
    }
}
