//! Tests that open a failed drive again, with changes meanwhile and crashes at every write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::reopen::Reopened;
use crate::tests::simulated::SimulatedFlash;
use crate::tests::store::{Rig, value_of};

const KEYS: u64 = 60;

/// The versions of a key.
#[derive(Debug, Clone, Copy, Default)]
struct Versions {
    /// The version that lookups may find; `None` if the key was removed.
    newest: Option<u64>,
    /// The version below which none may come back.
    floor: u64,
}

struct World {
    seed: u64,
    random: SmallRng,
    keys: Vec<Versions>,
    version: u64,
}

impl World {
    fn change(&mut self, rig: &Rig) {
        let key = self.random.random_range(0..KEYS);
        self.version += 1;
        let removes = self.random.random_bool(0.3);
        let len = self.random.random_range(16..6_000);
        // A failed drive takes no object; the change of the key counts.
        let newest = &mut self.keys[key as usize].newest;
        *newest = match removes {
            true => {
                rig.remove(key);
                None
            }
            false => rig.insert(key, &value_of(key, self.version, len)).then_some(self.version),
        };
    }

    /// Checks what the cache serves. After a crash an older version may be there, but none older
    /// than the floor.
    fn check(&mut self, rig: &Rig, crashed: bool) {
        let seed = self.seed;
        for (key, versions) in (0..).zip(&mut self.keys) {
            let found = rig.get(key).map(|value| {
                let found = u64::from_le_bytes(value[8..16].try_into().unwrap());
                assert_eq!(value, value_of(key, found, value.len()), "seed {seed}: torn");
                found
            });
            if crashed {
                versions.newest = found;
            }
            assert!(found.is_none() || found == versions.newest, "seed {seed}: key {key}");
            let came_back = found.is_some_and(|found| found < versions.floor);
            assert!(!came_back, "seed {seed}: {key} has {found:?} of {versions:?}");
        }
    }

    /// All changes up to now must survive any crash, but those of `except`. An object may be lost.
    fn raise_floors(&mut self, except: &[u64]) {
        self.version += 1;
        for (key, versions) in (0..).zip(&mut self.keys) {
            if !except.contains(&key) {
                versions.floor = versions.newest.unwrap_or(self.version);
            }
        }
    }
}

/// Fails a drive, changes keys, opens it again, changes keys, and crashes. Returns the results.
fn world(seed: u64) -> Vec<Result<Reopened, String>> {
    let mut random = SmallRng::seed_from_u64(seed);
    let bytes = 64 * 1024 * random.random_range(8..24) + (64 << 10);
    let mut rig = Rig::open(SimulatedFlash::new(bytes, seed));
    let keys = vec![Versions::default(); KEYS as usize];
    let mut world = World { seed, random, keys, version: 1 };
    let mut results = Vec::new();
    for _ in 0..world.random.random_range(1..4) {
        for _ in 0..world.random.random_range(0..800) {
            world.change(&rig);
        }
        rig.flash.lose_power_after(world.random.random_range(0..60));
        while rig.store.log.failure().is_none() {
            world.change(&rig);
            if world.random.random_bool(0.1) {
                rig.sync();
            }
        }
        for _ in 0..world.random.random_range(0..30) {
            world.change(&rig);
        }
        world.check(&rig, false);
        let during = loop {
            let image = match world.random.random_range(0..10) {
                0 => vec![0; bytes],
                1..5 => rig.flash.written(),
                _ => rig.flash.after_power_loss(),
            };
            let flash = SimulatedFlash::from_image(image, seed);
            if world.random.random_bool(0.5) {
                flash.lose_power_after(world.random.random_range(0..12));
            }
            // Another thread removes keys meanwhile.
            let pause = Duration::from_micros(world.random.random_range(0..100));
            let (ends, store) = (AtomicBool::new(false), std::sync::Arc::clone(&rig.store));
            let first = world.random.random_range(0..KEYS);
            let (result, removed) = std::thread::scope(|scope| {
                let remover = scope.spawn(|| {
                    let mut removed = 0;
                    while !ends.load(Ordering::Relaxed) && removed < KEYS / 4 {
                        let hash = crate::store::hash_key(
                            store.hash_seed,
                            &((first + removed) % KEYS).to_le_bytes(),
                        );
                        let stripe = store.stripes.of(hash);
                        let full = store.forget(hash) == Err(crate::log::Refused::Full);
                        drop(stripe);
                        removed += u64::from(!full);
                        std::thread::sleep(pause); // spreads the removals over the call
                    }
                    removed
                });
                let result = rig.reopen(flash);
                ends.store(true, Ordering::Relaxed);
                (result, remover.join().unwrap())
            });
            let removed: Vec<_> = (first..first + removed).map(|key| key % KEYS).collect();
            removed.iter().for_each(|key| world.keys[*key as usize].newest = None);
            world.check(&rig, false);
            let is_open = result.is_ok();
            results.push(result);
            if is_open {
                break removed;
            }
            // A drive that fails during the call may fail before or after the log goes on.
            rig.store.log.fail(&std::io::Error::other("failed again"));
        };
        // Removals that the log took during the call need a sync, those before it do not.
        let syncs = world.random.random_bool(0.5);
        world.raise_floors(if syncs && rig.sync() { &[] } else { &during });
        for _ in 0..world.random.random_range(0..500) {
            world.change(&rig);
        }
        world.check(&rig, false);
        let loses_power = world.random.random_bool(0.5);
        rig = Rig::open(rig.kill(loses_power, seed));
        world.check(&rig, true);
    }
    results
}

#[test]
fn nothing_changed_meanwhile_comes_back_with_a_drive_that_failed() {
    let mut results = Vec::new();
    (0..300).for_each(|seed| results.extend(world(seed)));
    let count =
        |is: fn(&Result<Reopened, String>) -> bool| results.iter().filter(|it| is(it)).count();
    let outdated = count(|it| matches!(it, Ok(Reopened::Restored { outdated: 1.., .. })));
    let new = count(|it| matches!(it, Ok(Reopened::New { .. })));
    let failed = count(|it| it.is_err());
    assert!(outdated > 75 && new > 15 && failed > 40, "{outdated} {new} {failed}");
}

#[test]
fn objects_that_the_drive_still_has_are_found_again() {
    let mut rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    for key in 0..1000 {
        assert!(rig.insert(key, &value_of(key, 0, 500)));
    }
    assert!(rig.sync());
    rig.flash.lose_power_after(0);
    let image = rig.flash.written();
    while rig.store.log.failure().is_none() {
        rig.insert(2000, &value_of(2000, 0, 500));
    }
    assert!(!rig.remove(7), "a failed drive takes no removal");
    let result = rig.reopen(SimulatedFlash::from_image(image, 2)).unwrap();
    let Reopened::Restored { outdated, .. } = result else { panic!("{result:?}") };
    assert_eq!(outdated, 1);
    let check = |rig: &Rig| {
        for key in 0..1000 {
            assert_eq!(rig.get(key), (key != 7).then(|| value_of(key, 0, 500)), "{key}");
        }
    };
    check(&rig);
    assert!(rig.insert(3000, &value_of(3000, 0, 500)) && rig.sync());
    let rig = Rig::open(rig.kill(true, 3));
    check(&rig);
    assert_eq!(rig.get(3000), Some(value_of(3000, 0, 500)));
}

#[test]
fn a_drive_is_opened_again_though_a_segment_cannot_be_read() {
    let mut rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    (0..1000).for_each(|key| assert!(rig.insert(key, &value_of(key, 0, 500))));
    assert!(rig.sync());
    rig.flash.lose_power_after(0);
    let image = rig.flash.written();
    while rig.store.log.failure().is_none() {
        rig.insert(2000, &value_of(2000, 0, 500));
    }
    let geometry = rig.store.log.geometry;
    let flash = SimulatedFlash::from_image(image, 2);
    flash.spoil(geometry.segment_start(3) as usize, geometry.segment_bytes as usize);
    let result = rig.reopen(flash).unwrap();
    let Reopened::Restored { lost, .. } = result else { panic!("{result:?}") };
    let found = (0..1000).filter(|key| rig.get(*key) == Some(value_of(*key, 0, 500))).count();
    assert!((50..200).contains(&lost), "{lost} objects of a segment of 64 KiB");
    assert!(found as u64 >= 1000 - lost, "{found} found, {lost} lost");
}

#[test]
fn another_cache_is_refused_and_the_flash_stays_failed() {
    let mut rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    rig.flash.lose_power_after(0);
    while rig.store.log.failure().is_none() {
        rig.insert(1, &value_of(1, 0, 500));
        rig.sync();
    }
    let mut image = rig.flash.written();
    for copy in [0, 4096] {
        if let Ok(mut block) = crate::format::Superblock::decode(&image[copy..][..4096]) {
            block.id += 1;
            block.encode(&mut image[copy..][..4096]);
        }
    }
    let refused = rig.reopen(SimulatedFlash::from_image(image, 2)).unwrap_err();
    assert!(refused.contains("OtherCache") && rig.store.log.failure().is_some(), "{refused}");
}
