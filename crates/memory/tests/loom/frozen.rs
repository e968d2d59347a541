//! Models of frozen entries: published, replaced, removed and thawed beside readers.

use std::sync::Arc;

use crate::sync::Tracked;
use crate::{Cache, Handle, barrier, model, model_of_readers, sync, thread};

impl Cache {
    /// One entry, which is frozen.
    fn frozen() -> Self {
        let cache = Self::small(1);
        cache.put(1, 10);
        assert_eq!(cache.freeze(1.0).entries, 1);
        cache.is_served();
        cache
    }

    /// Fails unless the key is found in the frozen index, where there is to be one.
    fn is_served(&self) {
        let (index, record, key) =
            (self.inner.frozen.published(), self.inner.record(), Tracked::new(1));
        let found =
            self.inner.frozen.find(index, record, record.cell(), self.inner.hash(&key), &key);
        let found = found.map(|found| {
            (found.entry.value.get(), found.cell.store(0, std::sync::atomic::Ordering::Release)).0
        });
        assert_eq!(found, barrier::is_asymmetric().then_some(10));
    }

    /// Returns what the shard says, past the frozen index.
    fn dynamic_value(&self, key: u64) -> Option<u64> {
        let key = Tracked::new(key);
        self.peek(&key).map(|value| value.get())
    }

    fn value_in_batch(&self, key: u64) -> Option<u64> {
        let mut found = None;
        self.get_many(&[Tracked::new(key)], |_, value| found = Some(value.get()));
        found
    }
}

/// Ways to look a key up.
const LOOKUPS: [fn(&Cache, u64) -> Option<u64>; 3] =
    [Cache::value, Cache::dynamic_value, Cache::value_in_batch];

/// A reader looks the key up twice in each two ways, while a cache in which it is frozen changes.
fn beside_two_lookups(
    preemptions: usize,
    change: impl Fn(&Cache) + Sync + Send + Copy + 'static,
    check: fn(Option<u64>, Option<u64>),
) {
    for (first, second) in [(0, 0), (0, 1), (1, 0), (2, 1), (1, 2)] {
        model_of_readers(preemptions, move || {
            let cache = Cache::frozen();
            let other = Handle::of(&cache);
            let reader = thread::spawn(move || {
                let seen = LOOKUPS[first](&other, 1);
                check(seen, LOOKUPS[second](&other, 1));
            });
            change(&cache);
            reader.join().unwrap();
        });
    }
}

#[test]
fn what_is_there_is_found_while_it_is_frozen_and_thawed() {
    model_of_readers(2, || {
        let cache = Cache::small(1);
        cache.put(1, 10);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            assert_eq!(other.value(1), Some(10), "it is there all the while");
            assert_eq!(other.value_in_batch(1), Some(10), "it is there all the while");
        });
        assert_eq!(cache.freeze(1.0).entries, 1);
        cache.thaw();
        reader.join().unwrap();
    });
}

#[test]
fn a_frozen_value_that_is_replaced_is_seen_by_nobody_after_its_successor() {
    let replace = |cache: &Cache| {
        cache.put(1, 11);
        cache.reclaim();
    };
    beside_two_lookups(3, replace, |first, second| {
        let seen =
            (first.expect("it is there all the while"), second.expect("it is there all the while"));
        assert!([(10, 10), (10, 11), (11, 11)].contains(&seen), "{seen:?}");
    });
}

#[test]
fn a_frozen_value_that_is_removed_is_seen_by_nobody_after_it_was_missed() {
    let remove = |cache: &Cache| {
        drop(cache.remove(&Tracked::new(1)));
        cache.reclaim();
    };
    beside_two_lookups(3, remove, |first, second| {
        assert!(
            [None, Some(10)].contains(&first) && [None, first].contains(&second),
            "{first:?}, {second:?}"
        );
    });
}

#[test]
fn who_knows_of_a_removal_or_a_replacement_does_not_find_what_was_frozen() {
    for removes in [true, false] {
        model_of_readers(3, move || {
            let cache = Cache::frozen();
            let other = Handle::of(&cache);
            let told = Arc::new(loom::sync::atomic::AtomicBool::new(false));
            let tell = Arc::clone(&told);
            let reader = thread::spawn(move || {
                // Acquire: the change came before.
                if told.load(std::sync::atomic::Ordering::Acquire) {
                    assert_eq!(other.value(1), (!removes).then_some(11));
                }
            });
            if removes {
                drop(cache.remove(&Tracked::new(1)));
            } else {
                cache.put(1, 11);
            }
            tell.store(true, std::sync::atomic::Ordering::Release);
            reader.join().unwrap();
        });
    }
}

#[test]
fn a_late_reader_finds_neither_what_was_freed_in_a_thawed_index_nor_the_index_freed() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        for lookup in [LOOKUPS[0], LOOKUPS[2]] {
            model_of_readers(2, move || {
                let cache = Cache::frozen();
                let other = Handle::of(&cache);
                let reader = thread::spawn(move || {
                    assert!(lookup(&other, 1).is_none_or(|value| value == 10));
                });
                cache.thaw();
                drop(cache.remove(&Tracked::new(1)));
                cache.reclaim();
                assert_eq!(cache.value(1), None);
                reader.join().unwrap();
            });
        }
    }
}

#[test]
fn what_is_removed_while_another_thaws_is_not_freed_under_a_late_reader() {
    barrier::with(barrier::BarrierKind::Asymmetric);
    model(2, || {
        let cache = Cache::frozen();
        let (reads, removes) = (Handle::of(&cache), Handle::of(&cache));
        let reader = thread::spawn(move || {
            assert!(reads.value(1).is_none_or(|value| value == 10));
        });
        let remover = thread::spawn(move || {
            drop(removes.remove(&Tracked::new(1)));
            removes.reclaim();
        });
        cache.thaw();
        reader.join().unwrap();
        remover.join().unwrap();
    });
}

#[test]
fn what_is_frozen_and_removed_is_not_freed_under_a_reader() {
    for own_fences in [true, false] {
        sync::with_own_fences(own_fences);
        for lookup in [LOOKUPS[0], LOOKUPS[2]] {
            model_of_readers(3, move || {
                let cache = Cache::frozen();
                let other = Handle::of(&cache);
                let reader = thread::spawn(move || {
                    assert!(lookup(&other, 1).is_none_or(|value| value == 10));
                });
                drop(cache.remove(&Tracked::new(1)));
                cache.reclaim();
                reader.join().unwrap();
            });
        }
    }
}

#[test]
fn an_index_that_is_bypassed_and_resumed_shows_nothing_old() {
    model_of_readers(2, || {
        let cache = Cache::frozen();
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            let seen = (other.value(1).unwrap(), other.value(1).unwrap());
            assert!([(10, 10), (10, 11), (11, 11)].contains(&seen), "{seen:?}");
        });
        cache.inner.frozen.publish(&cache.inner.frozen.freezer(), false);
        cache.put(1, 11);
        cache.inner.frozen.publish(&cache.inner.frozen.freezer(), true);
        cache.reclaim();
        reader.join().unwrap();
    });
}

#[test]
fn what_is_frozen_and_removed_is_not_freed_under_a_reader_when_the_barrier_is_refused_later() {
    sync::with_own_fences(false);
    barrier::with(barrier::BarrierKind::Refused);
    model(3, || {
        let cache = Cache::small(2);
        cache.put(1, 10);
        cache.put(2, 20);
        assert_eq!(cache.freeze(1.0).entries, 2);
        let other = Handle::of(&cache);
        let reader = thread::spawn(move || {
            // By the second lookup the reader can have been told, and the index is still there.
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
