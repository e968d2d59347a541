//! The streams of a trace that is simulated, and the keys that a policy wants fetched ahead.

use std::collections::HashMap;

use floe_policy::Policy;
use floe_policy::streams::Streams;

use super::stream::Stream;

/// The streams of a trace, and the key at each position where a policy fetches ahead. A position
/// that several volumes have stands for the volume that used it first.
pub(super) struct Positions<'a> {
    streams: Option<Streams>,
    numbers: &'a [u64],
    fetches_from: u64,
    keys: HashMap<u64, u32>,
}

impl<'a> Positions<'a> {
    pub(super) fn of<P: Policy>(stream: &'a Stream, order: &P) -> Self {
        let mut keys = HashMap::new();
        let fetches_from = order.fetches_ahead();
        if fetches_from.is_some() {
            for (key, &number) in (0..).zip(&stream.numbers) {
                keys.entry(number).or_insert(key);
            }
        }
        Self {
            streams: P::INFO.streams.then(Streams::default),
            numbers: &stream.numbers,
            fetches_from: fetches_from.unwrap_or(u64::MAX),
            keys,
        }
    }

    /// Follows streams for an admission, too.
    pub(super) fn followed_if(mut self, wanted: bool) -> Self {
        self.streams = self.streams.or_else(|| wanted.then(Streams::default));
        self
    }

    /// Returns the length of the run of positions that a request ends; 0 where it is not followed.
    #[inline]
    pub(super) fn follow(&mut self, key: u32) -> u64 {
        let Some(streams) = &mut self.streams else { return 0 };
        let position = self.numbers[key as usize];
        position + 1 - streams.follow(&(position..position + 1))
    }

    /// Returns the keys to be fetched after the last request. Keys that the trace never asks for
    /// are unknown, and not fetched.
    #[inline]
    pub(super) fn ahead(&mut self) -> impl Iterator<Item = u32> + use<> {
        let ahead = self.streams.as_mut().and_then(|streams| streams.ahead(self.fetches_from));
        let keys =
            ahead.into_iter().flatten().filter_map(|position| self.keys.get(&position).copied());
        keys.collect::<Vec<u32>>().into_iter()
    }
}
