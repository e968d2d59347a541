//! Readers of the index beside its owner, under a model checker that tries every order in which
//! threads and their memory can meet.
//!
//! A binary of its own: it takes the modules of the crate in with the atomics of the model checker.

#![allow(unsafe_code, dead_code, missing_docs, unreachable_pub)]

#[path = "loom/barrier.rs"]
mod barrier;
#[path = "../src/hints.rs"]
mod hints;
#[path = "../src/index.rs"]
mod index;
#[path = "loom/sync.rs"]
mod sync;

use std::sync::Arc;

use index::{Hash32, Index, LANES, Lane};
use loom::thread;
use sync::{Ordering, Tracked, fence};

/// Keys of the first of two buckets, with tags of their own.
fn hash(key: u32) -> Hash32 {
    Hash32(key)
}

/// An index of two buckets, the first of which is full: key `n` is at place `n + 1`, and key 6
/// had to go to the second.
fn crowded() -> (Arc<Index>, Vec<Lane>) {
    let index = Index::with_room(LANES);
    let lanes = (0..=LANES as u32).map(|key| index.insert(hash(key), key + 1)).collect();
    assert!(index.bucket(0).tags().were_passed_by() && !index.bucket(1).tags().were_passed_by());
    (Arc::new(index), lanes)
}

/// Returns what a reader does, as `Shard::slow_lookup` does it, for a key that is known by its
/// places: whether it is there.
fn search(index: &Index, key: u32, places: &[u32]) -> Option<u32> {
    'again: loop {
        let first = index.first(hash(key));
        let mut number = first;
        loop {
            let bucket = index.bucket(number);
            let tags = bucket.tags();
            for lane in tags.matching(hash(key)) {
                let place = bucket.place(lane);
                if !places.contains(&place) {
                    continue;
                }
                fence(Ordering::SeqCst);
                if bucket.place(lane) != place {
                    thread::yield_now();
                    continue 'again;
                }
                return Some(place);
            }
            if !tags.were_passed_by() {
                return None;
            }
            number = index.after(number);
            if number == first {
                return None;
            }
        }
    }
}

/// Takes a key out, as its owner does.
fn remove(index: &Index, key: u32, lane: Lane) {
    let (spot, _) = index.spot(hash(key), lane, |place| place == key + 1);
    index.remove(spot);
}

fn model(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

#[test]
fn a_key_that_is_there_is_found_whatever_is_put_in_and_taken_out_beside_it() {
    model(5, || {
        let (index, lanes) = crowded();
        let read = Arc::clone(&index);
        let reader = thread::spawn(move || {
            assert_eq!(search(&read, 6, &[7]), Some(7), "it is there all the while");
        });
        remove(&index, 3, lanes[3]); // its lane is free now, and the reader's key is past it
        index.insert(hash(9), 10); // takes the lane
        let further = index.insert(hash(10), 11); // passes the first bucket by
        remove(&index, 10, further);
        reader.join().unwrap();
        assert!(index.bucket(0).tags().were_passed_by(), "key 6 is still further on");
    });
}

#[test]
fn a_key_that_comes_in_is_there_with_its_entry() {
    model(5, || {
        let (index, _) = crowded();
        let entry = Arc::new(Tracked::new(0));
        let (read, seen) = (Arc::clone(&index), Arc::clone(&entry));
        let reader = thread::spawn(move || {
            if search(&read, 9, &[10]).is_some() {
                assert_eq!(seen.get(), 9);
            }
        });
        entry.set(9);
        index.insert(hash(9), 10);
        reader.join().unwrap();
    });
}

#[test]
fn a_place_that_is_replaced_is_the_old_one_or_the_new_one() {
    model(5, || {
        let (index, lanes) = crowded();
        let read = Arc::clone(&index);
        let reader = thread::spawn(move || {
            let seen = search(&read, 6, &[7, 20, 21]).expect("it is there all the while");
            let then = search(&read, 6, &[7, 20, 21]).expect("it is there all the while");
            assert!(then >= seen, "{seen}, then {then}");
        });
        let (spot, _) = index.spot(hash(6), lanes[6], |place| place == 7);
        index.replace(spot, 20);
        index.replace(spot, 21);
        reader.join().unwrap();
    });
}

#[test]
fn a_place_is_not_found_valid_once_it_is_free() {
    model(5, || {
        let (index, lanes) = crowded();
        let (read, entry) = (Arc::clone(&index), Arc::new(Tracked::new(7)));
        let looked_at = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (seen, says) = (Arc::clone(&entry), Arc::clone(&looked_at));
        let reader = thread::spawn(move || {
            // A cell that names the entry, in one bit.
            says.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            if search(&read, 6, &[7]).is_some() {
                assert_eq!(seen.get(), 7);
            }
            drop(seen);
            says.store(false, Ordering::Release);
        });
        remove(&index, 6, lanes[6]);
        assert!(!index.bucket(0).tags().were_passed_by());
        fence(Ordering::SeqCst);
        if !looked_at.load(Ordering::Acquire) {
            entry.free();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_key_that_moves_to_another_index_is_found_all_the_while() {
    model(5, || {
        let (old, lanes) = crowded();
        let new = Arc::new(Index::with_room(2 * LANES));
        let indexes = [Arc::clone(&old), Arc::clone(&new)];
        let reader = thread::spawn(move || {
            // As `Shard::slow_lookup` does it with both indexes of a table.
            for key in [6, 3] {
                let found = indexes.iter().find_map(|index| search(index, key, &[key + 1]));
                assert_eq!(found, Some(key + 1));
            }
        });
        for key in [3, 6] {
            new.insert(hash(key), key + 1);
            remove(&old, key, lanes[key as usize]);
        }
        reader.join().unwrap();
    });
}
