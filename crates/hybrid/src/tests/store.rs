//! Tests that compare the store with a map through crashes of the process and losses of power.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::flash::{Flash, FlashSwitch};
use crate::format::{DriveSet, NOTES, Record, RecordHeader, RecordKind};
use crate::log::Refused;
use crate::recovery::{self, OpenStore, Opened, StoreOptions, SuperblockWriter};
use crate::reopen::{self, Reopened};
use crate::store::{Pace, Store, hash_key, spawn_writer};
use crate::sweep::{Purpose, sweep};
use crate::tests::simulated::SimulatedFlash;

pub(crate) struct Rig {
    pub(crate) flash: Arc<SimulatedFlash>,
    switch: Arc<FlashSwitch>,
    pub(crate) store: Arc<Store<()>>,
    writer: SuperblockWriter,
    pub(crate) opened: Opened,
    unlogged: Vec<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    pub(crate) fn open(flash: SimulatedFlash) -> Self {
        let mut rig = Self::open_without_writer(flash, 0);
        rig.start_writer();
        rig
    }

    /// Opens the store. Nothing is written to the log before [`Rig::start_writer`].
    pub(crate) fn open_without_writer(flash: SimulatedFlash, expected_objects: u64) -> Self {
        let flash = Arc::new(flash);
        let switch = Arc::new(FlashSwitch::simulated(flash.clone()));
        let options = StoreOptions {
            expected_objects,
            max_segment_bytes: 64 << 10,
            keep_share: 0.5,
            random: (77, 99),
            pace: Pace::Free,
            set: DriveSet::default(),
        };
        let open = recovery::open(Arc::clone(&switch) as Arc<dyn Flash>, &options).unwrap();
        let OpenStore { store, superblock: writer, opened, unlogged } = open;
        Self { flash, switch, store: Arc::new(store), writer, opened, unlogged, thread: None }
    }

    pub(crate) fn start_writer(&mut self) {
        self.thread = Some(spawn_writer(&self.store, &Default::default()).unwrap());
        if self.opened == Opened::Recovered {
            recovery::log_removals(&self.store, &self.writer, &self.unlogged).unwrap();
        }
    }

    /// Opens the flash again, as the cache does, after it has failed.
    pub(crate) fn reopen(&mut self, flash: SimulatedFlash) -> Result<Reopened, String> {
        assert!(self.store.log.failure().is_some());
        self.thread.take().unwrap().join().unwrap();
        let flash = Arc::new(flash);
        let revived = reopen::revive(&self.store, &self.writer, &self.switch, flash.clone(), 5);
        self.thread = Some(spawn_writer(&self.store, &Default::default()).unwrap());
        let revived = revived.map_err(|failure| format!("{failure:?}"));
        // Writes go to the new drive from here on.
        self.flash = flash;
        reopen::complete(&self.store, &self.writer, revived?).map_err(|error| error.to_string())
    }

    pub(crate) fn hash(&self, key: u64) -> u64 {
        hash_key(self.store.hash_seed, &key.to_le_bytes())
    }

    pub(crate) fn insert(&self, key: u64, value: &[u8]) -> bool {
        // As the cache does: what flash has is forgotten before a new value is in memory.
        if !self.remove(key) {
            return false;
        }
        let hash = self.hash(key);
        let key = key.to_le_bytes();
        let header = RecordHeader::new(RecordKind::Object, &key, value);
        let encoded = header.encode(&key, value);
        loop {
            let stripe = self.store.stripes.of(hash);
            let appended = self.store.append_object(hash, &header, &encoded, &key, value);
            drop(stripe);
            match appended {
                Ok(()) => return true,
                Err(Refused::Full) => self.store.log.wait_for_room(header.log_bytes()),
                Err(Refused::Ended) => return false,
            }
        }
    }

    pub(crate) fn remove(&self, key: u64) -> bool {
        let hash = self.hash(key);
        loop {
            let stripe = self.store.stripes.of(hash);
            let forgotten = self.store.forget(hash);
            drop(stripe);
            match forgotten {
                Ok(_) => return true,
                Err(Refused::Full) => self.store.log.wait_for_room(64),
                Err(Refused::Ended) => return false,
            }
        }
    }

    /// Removes all keys that `matches` chooses.
    fn remove_if(&self, matches: impl Fn(u64) -> bool) -> bool {
        let mut alive = true;
        let visit = |hash, key: &[u8]| {
            let key = u64::from_le_bytes(key.try_into().unwrap());
            assert_eq!(hash, self.hash(key));
            if matches(key) {
                alive &= self.remove(key);
            }
        };
        let swept = sweep(&self.store, Purpose::Removal, visit, |_, _| ControlFlow::Continue(()));
        alive && swept.unreadable_segments == 0 && self.store.log.check_open().is_ok()
    }

    pub(crate) fn get(&self, key: u64) -> Option<Vec<u8>> {
        let hash = self.hash(key);
        let (place, _) = self.store.index.look_up(hash)?;
        let read = |record: &Record<'_>| record.value.to_vec();
        self.store.read_blocking(hash, place, &key.to_le_bytes(), read).unwrap()
    }

    pub(crate) fn sync(&self) -> bool {
        self.store.log.sync_until(self.store.log.end()).is_ok()
    }

    pub(crate) fn close(mut self) -> SimulatedFlash {
        self.store.log.end_soon();
        self.thread.take().unwrap().join().unwrap();
        recovery::save(&self.store, &self.writer).unwrap();
        SimulatedFlash::from_image(self.flash.written(), 3)
    }

    /// Ends the process at once. Returns the drive.
    pub(crate) fn kill(mut self, loses_power: bool, seed: u64) -> SimulatedFlash {
        self.flash.lose_power_after(0);
        self.store.log.fail(&std::io::Error::other("killed"));
        self.thread.take().unwrap().join().unwrap();
        let image = if loses_power { self.flash.after_power_loss() } else { self.flash.written() };
        SimulatedFlash::from_image(image, seed)
    }
}

pub(crate) fn value_of(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut value = vec![(key ^ version) as u8; len.max(16)];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value
}

#[test]
fn objects_are_found_in_memory_on_flash_and_after_a_restart() {
    let rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    assert_eq!(rig.opened, Opened::New);
    for key in 0..1000 {
        assert!(rig.insert(key, &value_of(key, 0, 500)));
    }
    let check = |rig: &Rig| {
        for key in 0..1000 {
            assert_eq!(rig.get(key), Some(value_of(key, 0, 500)), "{key}");
        }
        assert_eq!(rig.get(1000), None);
    };
    check(&rig);
    let rig = Rig::open(rig.close());
    assert_eq!(rig.opened, Opened::Clean);
    check(&rig);
    assert!(rig.sync());
    let rig = Rig::open(rig.kill(true, 5));
    assert_eq!(rig.opened, Opened::Recovered);
    check(&rig);
}

#[test]
fn the_oldest_leave_and_the_used_stay() {
    let rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    for key in 0..20_000u64 {
        assert!(rig.insert(key, &value_of(key, 0, 300)));
        if key % 50 == 49 {
            (0..5).for_each(|hot| assert!(rig.get(hot).is_some(), "{hot} after {key}"));
        }
    }
    assert!((0..5).all(|hot| rig.get(hot).is_some()));
    assert_eq!(rig.get(10), None);
    let held = rig.store.index.len();
    assert!((4_000..6_500).contains(&held), "{held} objects of 332 bytes in 2 MiB");
}

#[test]
fn damage_and_unreadable_sectors_are_misses_and_counted() {
    let rig = Rig::open(SimulatedFlash::new(2 << 20, 1));
    for key in 0..2000 {
        assert!(rig.insert(key, &value_of(key, 0, 500)));
    }
    assert!(rig.sync());
    let start = 64 << 10;
    // A bit of each of 100 pages, some of them of footers, and a segment that cannot be read.
    (0..100).for_each(|page| rig.flash.flip((start + page * 4096 + 2000) * 8 + 3));
    rig.flash.spoil(start + 10 * (64 << 10), 64 << 10);
    let (mut found, mut failed) = (0, 0);
    for key in 0..2000 {
        let hash = rig.hash(key);
        let Some((place, _)) = rig.store.index.look_up(hash) else { continue };
        let read = |record: &Record<'_>| record.value.to_vec();
        match rig.store.read_blocking(hash, place, &key.to_le_bytes(), read) {
            Ok(Some(value)) => {
                assert_eq!(value, value_of(key, 0, 500), "{key}");
                found += 1;
            }
            Ok(None) => {}
            Err(_) => failed += 1,
        }
    }
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let damaged = load(&rig.store.counters.damaged);
    assert!((60..=100).contains(&damaged), "{damaged} records damaged");
    assert_eq!(load(&rig.store.counters.failed_reads), failed);
    assert_eq!(found + failed + damaged, 2000);
    // The log goes on past the segment that cannot be read.
    for key in 2000..9000 {
        assert!(rig.insert(key, &value_of(key, 0, 500)));
    }
    assert_eq!(rig.get(8999), Some(value_of(8999, 0, 500)));
}

/// Damages a segment, of which the place and the bytes are given.
type Damage = fn(&SimulatedFlash, std::ops::Range<usize>);

#[test]
fn after_a_crash_a_damaged_segment_brings_nothing_removed_back() {
    let damages: [Damage; 4] = [
        |flash, bytes| flash.spoil(bytes.start, bytes.len()),
        |flash, bytes| flash.spoil(bytes.end - 4096, 4096),
        |flash, bytes| flash.spoil(bytes.start, 4096),
        // Each page but the last, which says how many records there are.
        |flash, bytes| {
            (bytes.start..bytes.end - 4096).step_by(16).for_each(|byte| flash.flip(byte * 8));
        },
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        let rig = Rig::open(SimulatedFlash::new(4 << 20, 1));
        let segment = |rig: &Rig| rig.store.log.end() / rig.store.log.geometry.segment_bytes;
        let filler = 2 * NOTES as u64;
        for key in 0..filler {
            assert!(rig.insert(key, &value_of(key, 0, 100)));
        }
        let removals = segment(&rig) + 1;
        while segment(&rig) < removals {
            assert!(rig.insert(filler, &value_of(filler, 0, 2_000)));
        }
        (0..10).for_each(|key| assert!(rig.remove(key)));
        assert_eq!(segment(&rig), removals);
        // Other removals take the places of the notes.
        (10..filler).for_each(|key| assert!(rig.remove(key)));
        let newest = filler + 1;
        assert!(rig.insert(newest, &value_of(newest, 0, 100)) && rig.sync());
        let geometry = rig.store.log.geometry;
        let start = geometry.segment_start(removals % geometry.segments) as usize;
        let flash = rig.kill(false, 1);
        damage(&flash, start..start + geometry.segment_bytes as usize);
        let rig = Rig::open(flash);
        assert_eq!(rig.opened, Opened::Recovered);
        let damaged = rig.store.counters.failed_reads.load(Ordering::Relaxed);
        assert_eq!(damaged, u64::from(at != 2), "the footer suffices without a header");
        (0..10).for_each(|key| assert_eq!(rig.get(key), None, "damage {at}: {key} came back"));
        assert!(rig.get(newest).is_some(), "damage {at}: newer objects stay");
    }
}

/// Runs random operations against a map; ends with a crash or a close, several times.
fn world(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut flash = SimulatedFlash::new(64 * 1024 * random.random_range(8..30) + (64 << 10), seed);
    // Newest version of each key, and the one below which no version may come back.
    let mut versions: HashMap<u64, (Option<u64>, u64)> = HashMap::new();
    let mut version = 1;
    // With long values the log goes round several times.
    let longest = random.random_range(100..8_000);
    for round in 0..random.random_range(1..5) {
        let rig = Rig::open(flash);
        let check = |versions: &HashMap<u64, (Option<u64>, u64)>, key: u64, crashed: bool| {
            let Some(value) = rig.get(key) else { return };
            let (of, found) = (
                u64::from_le_bytes(value[..8].try_into().unwrap()),
                u64::from_le_bytes(value[8..16].try_into().unwrap()),
            );
            assert_eq!(of, key, "seed {seed}: another key's value");
            assert_eq!(value, value_of(key, found, value.len()), "seed {seed}: torn");
            let (newest, floor) = versions.get(&key).copied().unwrap_or((None, 0));
            match newest {
                _ if crashed => {}
                newest => assert_eq!(Some(found), newest, "seed {seed}: key {key}, round {round}"),
            }
            assert!(found >= floor, "seed {seed}: key {key} came back, {found} of {floor}");
        };
        // After a crash any version since the last durable change may be there: what is found
        // counts.
        for key in 0..60 {
            check(&versions, key, true);
            let found = rig.get(key).map(|it| u64::from_le_bytes(it[8..16].try_into().unwrap()));
            let entry = versions.entry(key).or_default();
            entry.0 = found;
        }
        if random.random_bool(0.5) {
            rig.flash.lose_power_after(random.random_range(0..200));
        }
        let mut alive = true;
        for _ in 0..random.random_range(0..600) {
            let key = random.random_range(0..60);
            version += 1;
            match random.random_range(0..200) {
                0 => {
                    let (modulus, rest) = (random.random_range(1..5), random.random_range(0..5));
                    let matches = |key: u64| key % modulus == rest;
                    if rig.remove_if(matches) {
                        for (key, entry) in versions.iter_mut().filter(|(key, _)| matches(**key)) {
                            entry.0 = None;
                            assert_eq!(rig.get(*key), None, "seed {seed}: key {key} was not swept");
                        }
                    } else {
                        alive = false;
                    }
                }
                1..100 => {
                    let len = if random.random_bool(0.05) {
                        random.random_range(16..40_000)
                    } else {
                        random.random_range(16..longest)
                    };
                    if rig.insert(key, &value_of(key, version, len)) {
                        versions.entry(key).or_default().0 = Some(version);
                    } else {
                        alive = false;
                    }
                }
                100..140 => {
                    if rig.remove(key) {
                        versions.entry(key).or_default().0 = None;
                    } else {
                        alive = false;
                    }
                }
                140..160 => {
                    if rig.sync() {
                        for (newest, floor) in versions.values_mut() {
                            *floor = (*newest).unwrap_or(version).max(*floor);
                        }
                    } else {
                        alive = false;
                    }
                }
                _ => check(&versions, key, false),
            }
            if !alive {
                break;
            }
        }
        flash = match random.random_range(0..3) {
            0 if alive && rig.store.log.failure().is_none() && rig.sync() => {
                rig.flash.lose_power_after(u64::MAX);
                for (newest, floor) in versions.values_mut() {
                    *floor = (*newest).unwrap_or(version).max(*floor);
                }
                rig.close()
            }
            1 => {
                // The end of the process alone leaves every removal and replacement.
                if alive && rig.store.log.failure().is_none() {
                    for (newest, floor) in versions.values_mut() {
                        *floor = (*newest).unwrap_or(version).max(*floor);
                    }
                }
                rig.kill(false, seed ^ version)
            }
            _ => rig.kill(true, seed ^ version),
        };
    }
}

#[test]
fn no_crash_brings_back_what_was_durably_changed() {
    let worlds = std::env::var("FLOE_HYBRID_WORLDS").map_or(300, |worlds| worlds.parse().unwrap());
    let first = std::env::var("FLOE_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + worlds {
        world(seed);
    }
}
