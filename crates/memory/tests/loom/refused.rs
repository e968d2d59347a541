//! Models of a barrier that the system refuses after a while: from then on readers fence.

use std::cell::Cell;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use equivalent::Equivalent;
use floe_policy::Fifo;

use crate::barrier::BarrierKind;
use crate::reader_models::{looks_up_beside_a_removal, looks_up_while_the_table_is_replaced};
use crate::sync::Tracked;
use crate::{Cache, Handle, barrier, cache, clock, model, sync, thread};

#[test]
fn a_barrier_that_is_refused_later_is_done_without() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        barrier::with(BarrierKind::Refused);
        model(3, looks_up_beside_a_removal);
    }
    model(2, looks_up_while_the_table_is_replaced);
    // The reader has been told by the time of the second removal, or has to be waited for again.
    model(2, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert!(other.value(1).is_none_or(|value| value == 10));
            assert!(other.value(2).is_none_or(|value| value == 20));
        });
        for key in [1, 2] {
            drop(cache.remove(&Tracked::new(key)));
            cache.reclaim();
        }
        reader.join().unwrap();
    });
}

/// Of every key the same, so that all stand in one bucket, with one tag.
#[derive(Default)]
struct Same;

impl Hasher for Same {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}
}

type CacheOfSame = cache::Cache<Tracked, Tracked, Fifo, BuildHasherDefault<Same>>;

/// What a lookup does with a key.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Hash,
    Compare,
}

/// A key that has the barrier refused, and hears of it, when it is hashed or compared for the
/// second time.
struct Curious<'a> {
    key: Tracked,
    cache: &'a CacheOfSame,
    hears: Use,
    uses: Cell<u32>,
}

impl<'a> Curious<'a> {
    fn new(key: u64, cache: &'a CacheOfSame, hears: Use) -> Self {
        Self { key: Tracked::new(key), cache, hears, uses: Cell::new(0) }
    }

    fn used(&self, by: Use) {
        self.uses.set(self.uses.get() + u32::from(by == self.hears));
        if by == self.hears && self.uses.get() == 2 {
            self.cache.reclaim();
            assert!(self.cache.get(&Tracked::new(9)).is_none());
        }
    }
}

impl Hash for Curious<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.used(Use::Hash);
        self.key.hash(hasher);
    }
}

impl Equivalent<Tracked> for Curious<'_> {
    fn equivalent(&self, key: &Tracked) -> bool {
        self.used(Use::Compare);
        self.key == *key
    }
}

/// Two entries, of which the first stands in the first lane; the newer is frozen if so asked.
fn two(is_frozen: bool) -> CacheOfSame {
    let cache: CacheOfSame = cache::Cache::<Tracked, Tracked>::builder()
        .capacity(2)
        .policy(Fifo::default())
        .hasher(BuildHasherDefault::default())
        .shards(1)
        .clock(clock::Clock::manual())
        .build();
    for key in [1, 2] {
        cache.insert(Tracked::new(key), Tracked::new(10 * key));
    }
    if is_frozen {
        assert_eq!(cache.freeze(0.5).entries, 1);
    }
    cache
}

/// A lookup that hears of the refusal meanwhile, beside the removal of what it looks for. Its
/// thread holds the entry `held`, if any.
fn hears_beside_a_removal(key: u64, hears: Use, is_frozen: bool, held: Option<u64>) {
    sync::with_own_fences(false);
    barrier::with(BarrierKind::Refused);
    model(3, move || {
        let cache = two(is_frozen);
        let other = cache.clone();
        let reader = thread::spawn(move || {
            let _held = held.and_then(|held| other.get(&Tracked::new(held)));
            let curious = Curious::new(key, &other, hears);
            let found = other.get(&curious).map(|value| value.get());
            assert!(found.is_none_or(|value| value == 10 * key));
            other.inner.threads.release();
        });
        drop(cache.remove(&Tracked::new(key)));
        cache.reclaim();
        reader.join().unwrap();
        cache.inner.threads.release();
    });
}

#[test]
fn a_comparison_that_hears_of_the_refusal_makes_its_own_lookup_fence() {
    // Compared with the first lane's key before the lookup comes to its own, and so for the second
    // time within the loop over all lanes, which follows the look at the first.
    hears_beside_a_removal(2, Use::Compare, false, None);
}

#[test]
fn hashing_that_hears_of_the_refusal_makes_its_own_lookup_fence() {
    // Not in the frozen index, and so hashed again; in the first lane of its shard, so that nothing
    // is compared between that and its own.
    hears_beside_a_removal(1, Use::Hash, true, None);
    // In the frozen index, and hashed again, as the thread holds a guard.
    hears_beside_a_removal(2, Use::Hash, true, Some(1));
}
