//! What users of other block caches have lost, each as a test.

use std::rc::Rc;

use floe_block::{Driver, Fault, Request, RequestKind, VolumeId, WriteMode};
use floe_device::Pool;

use crate::boot::{Boot, Format, Service};
use crate::disk::Disk;
use crate::machine::Machine;
use crate::stamp::{Found, UNIT, fill, look};

const UNITS: u32 = 64;
const IN_CACHE: Service = Service {
    mode: WriteMode::Back,
    admit: "always",
    evict: "lru",
    memory: None,
    paced: false,
    most_dirty: None,
};

/// What nobody has written: what the cache device is full of at first.
const GARBAGE: u8 = 0xc5;

/// A machine with a kept cache of one volume.
struct Rig {
    machine: Rc<Machine>,
    format: Format,
    cache: Disk,
    backings: Vec<Disk>,
    pool: Pool,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let machine = Machine::new(seed);
        let sizes = "4KiB,16KiB".parse().expect("these are block sizes");
        let format = Format { sizes, groups: 4, shards: 1, kept: true };
        let cache = Disk::new(&machine, format.device_bytes() as usize, GARBAGE, true);
        let backings = vec![Disk::new(&machine, UNITS as usize * UNIT, 0, true)];
        machine.power_on(None);
        Rig { machine, format, cache, backings, pool: Pool::new(0) }
    }

    fn boot(&self) -> Boot<'_> {
        let Rig { machine, format, cache, backings, pool } = self;
        Boot { machine, format, cache, backings, pool }
    }

    fn start(&self) -> Driver {
        let kept = self.boot().open().expect("it can be read").expect("there is a cache");
        self.boot().begin(kept, IN_CACHE).expect("it begins").0
    }

    /// Lets time pass until something ends.
    fn turn(&self, driver: &mut Driver) {
        driver.advance();
        let due = self.backings.iter().chain([&self.cache]).filter_map(Disk::next_due).min();
        self.machine.pass_until(due.unwrap_or(0).max(self.machine.now()));
    }

    fn submit(&self, driver: &mut Driver, kind: RequestKind, units: u32) -> Request {
        let request =
            Request { volume: VolumeId(0), kind, offset: 0, len: u64::from(units) * UNIT as u64 };
        let buffer = (request.buffer_bytes() > 0).then(|| driver.buffer(&request));
        if let (RequestKind::Write { .. }, Some(buffer)) = (kind, &buffer) {
            let mut bytes = vec![0; request.len as usize];
            fill(&mut bytes, 0, 0, 1);
            Driver::payload(&request, buffer).copy_from(&bytes);
        }
        driver.submit(request, buffer);
        request
    }

    /// Waits for the next answer.
    fn answer(&self, driver: &mut Driver) -> Result<(), Fault> {
        let mut answers = Vec::new();
        while answers.is_empty() {
            self.turn(driver);
            driver.take_answers(&mut answers);
        }
        answers[0].result
    }

    fn settle(&self, driver: &mut Driver) {
        while !driver.is_idle() {
            self.turn(driver);
        }
    }

    /// What each unit of the volume holds.
    fn units(&self, driver: &mut Driver) -> Vec<Found> {
        let len = u64::from(UNITS) * UNIT as u64;
        let request = Request { volume: VolumeId(0), kind: RequestKind::Read, offset: 0, len };
        let buffer = driver.buffer(&request);
        driver.submit(request, Some(buffer.clone()));
        self.answer(driver).expect("it is read");
        let mut bytes = vec![0; len as usize];
        Driver::payload(&request, &buffer).copy_to(&mut bytes);
        (0..UNITS).zip(bytes.chunks(UNIT)).map(|(unit, bytes)| look(bytes, 0, unit)).collect()
    }
}

/// Open CAS flushed valid and dirty bits before the data that they describe: after a power cut the
/// cache served what had been in those places before.
#[test]
fn what_is_called_dirty_after_a_power_cut_is_what_was_written() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..300 {
        let rig = Rig::new(seed);
        rig.boot().create([1; 16]).expect("it is made");
        let mut driver = rig.start();
        rig.submit(&mut driver, RequestKind::Write { durable: false }, UNITS);
        rig.answer(&mut driver).expect("it is written");
        rig.submit(&mut driver, RequestKind::Flush, 0);
        let mut answers = Vec::new();
        for _ in 0..seed % 10 {
            rig.turn(&mut driver);
            driver.take_answers(&mut answers);
        }
        drop(driver);
        rig.cache.lose_power();
        let found = rig.units(&mut rig.start());
        for unit in &found {
            match unit {
                Found::Version(0) if answers.is_empty() => old += 1,
                Found::Version(1) => new += 1,
                found => panic!("seed {seed}: {found} after {} answers", answers.len()),
            }
        }
    }
    assert!(old > 0 && new > 0, "{old} units as they were, {new} as they were written");
}

/// Open CAS threw all clean content away after an unclean stop, and was cold for hours.
#[test]
fn clean_content_is_there_after_a_power_cut() {
    for seed in 0..30 {
        let rig = Rig::new(seed);
        rig.boot().create([1; 16]).expect("it is made");
        let mut driver = rig.start();
        let read = rig.units(&mut driver);
        rig.settle(&mut driver);
        rig.submit(&mut driver, RequestKind::Flush, 0);
        rig.answer(&mut driver).expect("it is flushed");
        let cached = driver.top().stats().valid_bytes;
        assert_eq!(cached, u64::from(UNITS) * UNIT as u64);
        drop(driver);
        rig.cache.lose_power();
        let mut driver = rig.start();
        assert_eq!(driver.top().stats().valid_bytes, cached);
        assert_eq!(rig.units(&mut driver), read);
        assert_eq!(driver.top().stats().requests.read_hits, 1);
    }
}

/// In Open CAS, making a cache anew in place of another was not atomic: a power cut in the midst of
/// it left neither.
#[test]
fn a_cache_made_in_place_of_another_is_there_or_the_other_is() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..400 {
        let rig = Rig::new(seed);
        rig.boot().create([1; 16]).expect("it is made");
        rig.machine.power_on(Some(seed % 40 + 1));
        let _ = rig.boot().create([2; 16]);
        rig.cache.lose_power();
        rig.machine.power_on(None);
        let found = rig.boot().open().expect("it can be read").expect("there is a cache");
        match found.superblock().id {
            [1, ..] => old += 1,
            id => {
                assert_eq!(id, [2; 16]);
                new += 1;
            }
        }
    }
    assert!(old > 0 && new > 0, "{old} times the old one, {new} times the new one");
}
