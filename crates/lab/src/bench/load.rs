//! The requests of the clients: the keys of a trace in a loop, some of them as writes.
//!
//! A key and its write flag share four bytes, so that reading the load costs little beside the
//! fastest hit. All threads take chunks of operations from one shared position, so that together
//! they keep to the order of the load.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_policy::mix;

use crate::simulate::stream::Stream;

/// Bit that marks an operation as a write.
const WRITE: u32 = 1 << 31;

/// An operation of the load: a key, and a flag that marks writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation(u32);

impl Operation {
    /// Returns the key, numbered densely from 0.
    #[inline]
    pub fn key(self) -> u64 {
        u64::from(self.0 & !WRITE)
    }

    /// Returns whether the operation is a write.
    #[inline]
    pub fn writes(self) -> bool {
        self.0 & WRITE != 0
    }
}

/// A position in a load: the number of chunks before it, those of earlier passes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place(u64);

/// Errors of building a load from a trace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoadError {
    /// The trace has more distinct keys than an operation can encode.
    #[error("the load has {0} keys; there may be up to {max}", max = WRITE)]
    TooManyKeys(usize),
}

/// The operations of a trace, repeated pass after pass.
#[derive(Debug)]
pub struct Load {
    operations: Vec<Operation>,
    keys: usize,
    order: PassOrder,
}

impl Load {
    /// Creates a load from a trace. With `writes`, that share of the operations are writes, drawn
    /// at random; otherwise the trace's own writes.
    ///
    /// # Errors
    /// When the trace has more than 2³¹ keys.
    pub fn new(stream: &Stream, writes: Option<f64>, order: PassOrder) -> Result<Self, LoadError> {
        if stream.distinct > WRITE as usize {
            return Err(LoadError::TooManyKeys(stream.distinct));
        }
        let is_write = |at: usize| match writes {
            Some(share) => ((mix(at as u64) >> 11) as f64) < share * (1u64 << 53) as f64,
            None => stream.writes(at),
        };
        let operation = |(at, &key)| Operation(key | if is_write(at) { WRITE } else { 0 });
        let operations = stream.keys.iter().enumerate().map(operation).collect();
        Ok(Self { operations, keys: stream.distinct, order })
    }

    /// Returns the number of operations in a pass.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Returns whether the load has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the number of distinct keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Returns the number of chunks in a pass.
    fn chunks(&self) -> u64 {
        self.operations.len().div_ceil(CHUNK) as u64
    }

    /// Returns the beginning of the next pass after a position.
    pub(super) fn pass_after(&self, place: Place) -> Place {
        let chunks = self.chunks();
        Place((place.0 / chunks + 1) * chunks)
    }

    /// Returns the operations in the order of the trace.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

/// Hands out the operations of a load to threads, chunk by chunk.
#[derive(Debug, Default)]
pub struct Feed {
    next: AtomicU64,
}

impl Feed {
    /// Returns the next chunk of operations, which has at least one.
    #[inline]
    pub fn next<'a>(&self, load: &'a Load) -> &'a [Operation] {
        let chunks = load.chunks();
        // Relaxed: it only hands out numbers, and the load never changes.
        let next = self.next.fetch_add(1, Relaxed);
        let from = load.order.chunk(next / chunks, next % chunks, chunks) as usize * CHUNK;
        &load.operations[from..(from + CHUNK).min(load.operations.len())]
    }

    /// Returns the position of the next chunk to hand out.
    pub(super) fn place(&self) -> Place {
        Place(self.next.load(Relaxed))
    }

    /// Continues from a position in the load.
    pub(super) fn go_to(&self, place: Place) {
        self.next.store(place.0, Relaxed);
    }
}

/// Number of operations that a thread takes from the load at a time.
pub(super) const CHUNK: usize = 512;

/// The order of operations in repeated passes over a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PassOrder {
    /// Every pass follows the order of the trace.
    #[default]
    AsIs,
    /// The first pass follows the trace; later ones consist of chunks drawn at random, with
    /// repetition.
    Drawn,
}

impl PassOrder {
    /// Returns the number of the chunk at position `at` of a pass of `chunks` chunks.
    #[inline]
    pub fn chunk(self, pass: u64, at: u64, chunks: u64) -> u64 {
        match self {
            Self::Drawn if pass > 0 => {
                let draw = mix(pass.wrapping_mul(chunks).wrapping_add(at));
                ((u128::from(draw) * u128::from(chunks)) >> 64) as u64
            }
            _ => at,
        }
    }

    /// Returns the indices of a pass's operations in a load of `operations` operations.
    pub fn places(self, pass: u64, operations: usize) -> Vec<usize> {
        let chunks = operations.div_ceil(CHUNK) as u64;
        let chunk = |at| {
            let from = self.chunk(pass, at, chunks) as usize * CHUNK;
            from..(from + CHUNK).min(operations)
        };
        (0..chunks).flat_map(chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::stream::{Builder, Keep};
    use floe_trace::{Kind, Op, Request};

    fn stream(count: u64) -> Stream {
        let mut builder =
            Builder::new(Kind::Key, Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
        for at in 0..count {
            let op = if at % 3 == 0 { Op::Write } else { Op::Read };
            builder
                .add(&Request { time_ns: 0, key: 7 * (at % 500), bytes: 1, volume: 0, op })
                .unwrap();
        }
        builder.finish().unwrap()
    }

    #[test]
    fn a_load_follows_its_trace_and_begins_again() {
        let stream = stream(1000);
        let load = Load::new(&stream, None, PassOrder::AsIs).unwrap();
        assert_eq!((load.len(), load.keys()), (1000, 500));
        let feed = Feed::default();
        let taken: Vec<Operation> = (0..4).flat_map(|_| feed.next(&load).iter().copied()).collect();
        assert_eq!(taken.len(), 2000);
        for (at, operation) in taken.iter().enumerate() {
            let at = at % 1000;
            assert_eq!(
                (operation.key(), operation.writes()),
                (u64::from(stream.keys[at]), at % 3 == 0),
                "{at}"
            );
        }
    }

    #[test]
    fn a_share_of_writes_replaces_those_of_the_trace() {
        let stream = stream(100_000);
        for share in [0.0, 0.05, 0.5, 1.0] {
            let load = Load::new(&stream, Some(share), PassOrder::AsIs).unwrap();
            let writes = load.operations().iter().filter(|operation| operation.writes()).count();
            // four standard errors
            assert!((writes as f64 / 1e5 - share).abs() < 0.007, "{share}: {writes}");
        }
    }

    #[test]
    fn threads_share_a_load_without_taking_anything_twice() {
        let load = Load::new(&stream(50_000), None, PassOrder::Drawn).unwrap();
        let feed = Feed::default();
        let take = || (0..20).map(|_| feed.next(&load).as_ptr() as usize).collect::<Vec<_>>();
        let mut taken: Vec<usize> = std::thread::scope(|scope| {
            let threads = [scope.spawn(take), scope.spawn(take)];
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 40);
    }
}

#[cfg(test)]
mod order_tests {
    use super::*;

    #[test]
    fn the_first_pass_and_every_pass_of_a_trace_hold_each_operation_once() {
        for operations in [1, CHUNK, CHUNK + 1, 5 * CHUNK - 7, 100_000] {
            assert!(
                PassOrder::Drawn.places(0, operations).into_iter().eq(0..operations),
                "{operations}"
            );
            assert!(
                PassOrder::AsIs.places(5, operations).into_iter().eq(0..operations),
                "{operations}"
            );
        }
    }

    #[test]
    fn chunks_are_drawn_with_the_same_chance_in_every_pass() {
        const CHUNKS: u64 = 20;
        for pass in [1, 2, 1000] {
            let mut counts = [0u32; CHUNKS as usize];
            for (pass, at) in
                (pass..pass + 1000).flat_map(|pass| (0..CHUNKS).map(move |at| (pass, at)))
            {
                counts[PassOrder::Drawn.chunk(pass, at, CHUNKS) as usize] += 1;
            }
            let chi_square: f64 =
                counts.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
            // one in a thousand at 19 degrees of freedom
            assert!(chi_square < 43.8, "{chi_square}");
        }
        assert_ne!(PassOrder::Drawn.places(1, 100_000), PassOrder::Drawn.places(2, 100_000));
    }
}
