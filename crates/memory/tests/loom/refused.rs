//! Models of a barrier that the system refuses after a while: from then on readers fence.

use std::cell::Cell;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use equivalent::Equivalent;
use floe_policy::Fifo;

use crate::barrier::Kind;
use crate::sync::Tracked;
use crate::{Cache, Handle, barrier, cache, clock, model, sync, thread};
use crate::{looks_up_beside_a_removal, looks_up_while_the_table_is_replaced};

#[test]
fn a_barrier_that_is_refused_later_is_done_without() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        barrier::with(Kind::Refused);
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

/// A key that has the barrier refused, and hears of it, when it is compared for the second time:
/// within the loop over all lanes, which follows the look at the first.
struct Curious<'a> {
    key: Tracked,
    cache: &'a CacheOfSame,
    compared: Cell<u32>,
}

impl Hash for Curious<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key.hash(hasher);
    }
}

impl Equivalent<Tracked> for Curious<'_> {
    fn equivalent(&self, key: &Tracked) -> bool {
        self.compared.set(self.compared.get() + 1);
        if self.compared.get() == 2 {
            self.cache.reclaim();
            assert!(self.cache.get(&Tracked::new(9)).is_none());
        }
        self.key == *key
    }
}

#[test]
fn a_comparison_that_hears_of_the_refusal_makes_its_own_lookup_fence() {
    sync::with_own_fences(false);
    barrier::with(Kind::Refused);
    model(3, || {
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
        let other = cache.clone();
        let reader = thread::spawn(move || {
            // Compares the key with the first lane's before it comes to its own.
            let key = Curious { key: Tracked::new(2), cache: &other, compared: Cell::new(0) };
            let found = other.get(&key).map(|value| value.get());
            assert!(found.is_none_or(|value| value == 20));
            other.inner.threads.release();
        });
        drop(cache.remove(&Tracked::new(2)));
        cache.reclaim();
        reader.join().unwrap();
        cache.inner.threads.release();
    });
}
