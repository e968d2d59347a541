//! Removal by a predicate beside other threads that use the cache.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::admission::GateOptions;
use crate::compression::Compression;
use crate::flash::{Flash, FlashSwitch};
use crate::flow::{OnFull, Settings};
use crate::format::DriveSet;
use crate::hybrid::{Hybrid, OpenDrive};
use crate::options::InsertOptions;
use crate::recovery::{self, StoreOptions};
use crate::store::Pace;
use crate::tests::simulated::SimulatedFlash;

fn open(flash_bytes: usize, memory_bytes: u64, seed: u64) -> Hybrid<u64, Vec<u8>> {
    let options = StoreOptions {
        expected_objects: 0,
        max_segment_bytes: 64 << 10,
        keep_share: 0.5,
        random: (seed, seed),
        pace: Pace::Free,
        set: DriveSet::default(),
    };
    let flash = Arc::new(SimulatedFlash::new(flash_bytes, seed));
    let switch = Arc::new(FlashSwitch::simulated(flash));
    let open = recovery::open(Arc::clone(&switch) as Arc<dyn Flash>, &options).unwrap();
    let settings = Settings {
        memory_bytes,
        on_full: OnFull::Wait,
        time_to_live: None,
        refresh_ahead: None,
        compression: Compression::default(),
    };
    let drive = OpenDrive { open, gate: GateOptions::default(), switch };
    Hybrid::assemble(vec![drive], &settings, (None, None)).unwrap()
}

/// Ends the threads of a test when it is dropped, by a panic, too.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Objects are inserted; then one thread removes a class of them while others use the cache.
fn round(cache: &Hybrid<u64, Vec<u8>>, seed: u64, doomed: u64) {
    const KEYS: u64 = 1500;
    let mut random = SmallRng::seed_from_u64(seed);
    let hints = [InsertOptions::new(), InsertOptions::new().to_flash()];
    for key in 0..KEYS {
        let len = random.random_range(8..1500);
        cache.insert_with(key, vec![seed as u8; len], hints[random.random_range(0..2)]);
    }
    let pause = Duration::from_millis(random.random_range(0..4));
    let (ends, writers) = (AtomicBool::new(false), random.random_range(0..2));
    let others = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&ends);
        let mut threads = Vec::new();
        for thread in 0..2 {
            let (ends, others) = (&ends, &others);
            threads.push(scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ (thread + 1) << 32);
                while !ends.load(Ordering::Relaxed) {
                    let key = random.random_range(0..KEYS);
                    // Lookups bring doomed objects to memory; insertions make the log go round.
                    if key % 3 == doomed || thread >= writers {
                        cache.get_blocking(&key);
                    } else {
                        let len = random.random_range(8..1500);
                        cache.insert(key, vec![seed as u8; len]);
                        others.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
        while writers > 0 && others.load(Ordering::Relaxed) < 100 {
            let has_panicked = threads.iter().any(|thread| thread.is_finished());
            assert!(!has_panicked, "seed {seed}: a thread ended early");
            std::thread::yield_now();
        }
        // With a pause at each segment, the log overtakes the sweep.
        let pause = |_, _| {
            std::thread::sleep(pause);
            ControlFlow::Continue(())
        };
        let removed = cache.remove_if_while(|key| key % 3 == doomed, pause).unwrap();
        assert!(removed.removed > 0 && removed.removed <= KEYS / 3, "{removed:?}");
        for _ in 0..2 {
            for key in (0..KEYS).filter(|key| key % 3 == doomed) {
                assert_eq!(cache.get_blocking(&key), None, "seed {seed}: key {key} is still there");
            }
        }
    });
}

#[test]
fn what_was_removed_is_gone_though_objects_move_meanwhile() {
    let rounds = std::env::var("FLOE_HYBRID_ROUNDS").map_or(40, |rounds| rounds.parse().unwrap());
    let first = std::env::var("FLOE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let cache = open(1 << 20, 100 << 10, first);
    for seed in first..first + rounds {
        round(&cache, seed, seed % 3);
    }
}

#[test]
fn loads_under_way_do_not_bring_objects_back() {
    let cache = open(1 << 20, 100 << 10, 1);
    let ready = AtomicBool::new(false);
    let fetch = std::future::poll_fn(|_| match ready.load(Ordering::Relaxed) {
        true => Poll::Ready(Ok::<_, ()>(vec![7])),
        false => Poll::Pending,
    });
    let mut fetched = pin!(cache.get_or_fetch(&7, fetch));
    let mut context = Context::from_waker(Waker::noop());
    assert!(fetched.as_mut().poll(&mut context).is_pending());
    cache.remove_if(|key| *key == 7).unwrap();
    ready.store(true, Ordering::Relaxed);
    assert_eq!(fetched.poll(&mut context), Poll::Ready(Ok(vec![7])));
    assert!(!cache.contains(&7));
}

#[test]
fn prefixes_progress_and_cancellation() {
    let cache = open(4 << 20, 100 << 10, 1);
    for key in 0..2000u64 {
        cache.insert(key, vec![1; 1000]);
    }
    let mut steps = 0;
    let cancel = |_, _| {
        steps += 1;
        if steps == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let removed = cache.remove_if_while(|_| true, cancel).unwrap();
    assert!(removed.cancelled && removed.removed < 1000, "{removed:?}");
    let left = (0..2000).filter(|key| cache.contains(key)).count() as u64;
    assert_eq!(left + removed.removed, 2000);
    // The low byte comes first.
    cache.remove_prefix([7]).unwrap();
    let found = |key: &u64| cache.get_blocking(key).is_some();
    assert!((1..2000).filter(found).all(|key| key % 256 != 7));
    assert!(cache.remove_if(|_| true).unwrap().removed > 900);
    assert_eq!((0..2000).filter(found).count(), 0);
    cache.close().unwrap();
    assert!(cache.remove_if(|_| true).is_err());
}
