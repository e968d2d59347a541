//! SARC in a cache whose owner follows streams, and fetches ahead.

use std::collections::HashMap;

use floe_policy::owner::SlotOwner;
use floe_policy::streams::Streams;
use floe_policy::{Access, Eviction, Sarc, Slot, mix};

const SIZE: usize = 64;

/// A cache of as many positions.
struct Cache {
    owner: SlotOwner<Sarc, HashMap<u64, Slot>>,
    streams: Streams,
    fetches: bool,
}

impl Cache {
    fn new(fetches: bool) -> Self {
        let owner = SlotOwner::new(Sarc::default(), HashMap::new(), SIZE as u64, SIZE);
        Self { owner, streams: Streams::default(), fetches }
    }

    fn insert(&mut self, position: u64, access: Access) {
        let slot = self.owner.insert(position, &access, |_, _, _| ());
        assert!(slot.is_some(), "a full cache has a victim");
    }

    /// Reads a position, and says whether it was there.
    fn read(&mut self, position: u64) -> bool {
        let in_a_row = position + 1 - self.streams.follow(&(position..position + 1));
        let access = Access { in_a_row, ..Access::new(mix(position)) };
        let found = self.owner.find(position);
        match found {
            Some(slot) => self.owner.access(slot),
            None => self.insert(position, access),
        }
        let ahead =
            self.owner.policy().fetches_ahead().and_then(|threshold| self.streams.ahead(threshold));
        for ahead in ahead.into_iter().flatten() {
            if self.fetches && self.owner.find(ahead).is_none() {
                self.insert(ahead, Access { ahead: true, ..Access::new(mix(ahead)) });
            }
        }
        found.is_some()
    }
}

fn hits(cache: &mut Cache, positions: impl IntoIterator<Item = u64>) -> usize {
    positions.into_iter().filter(|&position| cache.read(position)).count()
}

#[test]
fn a_sequential_read_hits_once_it_is_recognised() {
    let hits = hits(&mut Cache::new(true), 0..1000);
    assert!(hits >= 990, "{hits} of 1000 reads hit");
}

#[test]
fn without_fetching_ahead_a_sequential_read_never_hits() {
    assert_eq!(hits(&mut Cache::new(false), 0..1000), 0);
}

#[test]
fn a_long_read_takes_little_from_what_is_read_again() {
    let mut cache = Cache::new(true);
    let hot = || (0..SIZE as u64 / 2).map(|at| 1_000_000 + 10 * at);
    hits(&mut cache, hot().chain(hot()));
    let found: usize = (0..50)
        .map(|part| {
            hits(&mut cache, part * 20..(part + 1) * 20);
            hits(&mut cache, hot())
        })
        .sum();
    assert!(
        found > 50 * SIZE / 2 * 9 / 10,
        "{found} of {} reads of what is hot hit",
        50 * SIZE / 2
    );
}
