//! A cache that outlives the program: what was cached, and what was dirty, is there when it is
//! opened again.

use std::cell::Cell;
use std::rc::Rc;

use floe_block::{
    Begun, BlockSizes, Config, Driver, Fault, Io, KeptCache, Layout, NewCache, Request,
    RequestKind, Tier, Volume, VolumeId, WriteMode,
};
use floe_device::{Action, Device, Halves, MemoryDevice, Operation, Pool, delegate_device};
use floe_testkit::Intercepted;

pub(crate) const SECTOR: u64 = 4096;
pub(crate) const VOLUME: u64 = 64 * SECTOR;
const CACHE: u64 = 4 << 20;
pub(crate) const ID: VolumeId = VolumeId(0);

/// Two devices, and a program that uses them until it is dropped.
pub(crate) struct Machine {
    pub(crate) cache: MemoryDevice,
    backing: MemoryDevice,
    pool: Pool,
    /// Bytes of zeros written to the cache device if it is a mirror.
    pub(crate) zeroed: Option<Rc<Cell<u64>>>,
}

/// A device with two copies. It writes zeros for a discard, as a mirror does, and counts them.
struct Mirrored {
    device: MemoryDevice,
    zeroed: Rc<Cell<u64>>,
}

impl Device for Mirrored {
    delegate_device!(this => this.device; size_bytes poll);

    fn submit(&mut self, operation: Operation) {
        let Operation { token, offset, action } = operation;
        let action = match action {
            Action::Discard { len } => {
                self.zeroed.update(|bytes| bytes + len);
                Action::Zero { len, may_unmap: true, fast: false }
            }
            other => other,
        };
        self.device.submit(Operation { token, offset, action });
    }

    fn copies(&self) -> Halves {
        Halves::one(0).with(Halves::one(1))
    }
}

pub(crate) fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes);
    bytes
}

pub(crate) fn volume() -> Volume {
    Volume::new(ID, "v", VOLUME)
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self {
            cache: MemoryDevice::new(CACHE),
            backing: MemoryDevice::new(VOLUME),
            pool: Pool::new(1 << 20),
            zeroed: None,
        }
    }

    fn device(&self) -> Box<dyn Device> {
        let device = self.cache.clone();
        match &self.zeroed {
            Some(zeroed) => Box::new(Mirrored { device, zeroed: Rc::clone(zeroed) }),
            None => Box::new(device),
        }
    }

    pub(crate) fn with_io<T>(&self, act: impl FnOnce(&mut Io<'_>) -> T) -> T {
        let mut device = self.device();
        act(&mut Io { device: &mut *device, pool: &self.pool, wait: &mut || Ok(()) })
    }

    pub(crate) fn create(&self, shards: u64) {
        self.create_of(CACHE, shards);
    }

    pub(crate) fn create_of(&self, bytes: u64, shards: u64) {
        let sizes: BlockSizes = "4KiB,16KiB".parse().unwrap();
        let layout = Layout::new(&sizes, bytes, shards).unwrap();
        self.with_io(|io| {
            KeptCache::create(io, NewCache { id: [1; 16], layout, volumes: vec![volume()] })
        })
        .unwrap();
    }

    pub(crate) fn start(&self, mode: WriteMode) -> Driver {
        self.start_on(mode, self.device())
    }

    /// With something in front of the cache device.
    pub(crate) fn start_on(&self, mode: WriteMode, cache_device: Box<dyn Device>) -> Driver {
        self.start_with(volume(), mode, cache_device)
    }

    /// With this volume, and without what is there of others.
    pub(crate) fn start_with(
        &self,
        volume: Volume,
        mode: WriteMode,
        cache_device: Box<dyn Device>,
    ) -> Driver {
        let id = volume.id;
        let config = Config { mode, ..Config::default() };
        let begun: Begun = self.with_io(|io| {
            let kept = KeptCache::open(io, &mut |_, _| {}).unwrap().expect("there is a cache");
            kept.begin(io, vec![volume], &config, 1).unwrap()
        });
        let (cache, journal) = begun.parts.into_iter().next().unwrap();
        let tier = Tier::new(cache, cache_device, self.pool.clone()).with_journal(Some(journal));
        let mut driver = Driver::new(tier);
        driver.add_volume_at(id, "v", Box::new(self.backing.clone()) as Box<dyn Device>);
        driver
    }
}

fn run(driver: &mut Driver, kind: RequestKind, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    let request = Request { volume: ID, kind, offset, len: bytes.len() as u64 };
    let buffer = (request.buffer_bytes() > 0).then(|| driver.buffer(&request));
    if let (RequestKind::Write { .. }, Some(buffer)) = (kind, &buffer) {
        Driver::payload(&request, buffer).copy_from(bytes);
    }
    driver.submit(request, buffer.clone());
    let mut answers = Vec::new();
    while answers.is_empty() {
        driver.advance();
        driver.take_answers(&mut answers);
    }
    if let (RequestKind::Read, Some(buffer)) = (kind, &buffer) {
        Driver::payload(&request, buffer).copy_to(bytes);
    }
    while !driver.is_idle() {
        driver.advance();
    }
    answers[0].result
}

pub(crate) fn write(driver: &mut Driver, sector: u64, byte: u8) {
    run(
        driver,
        RequestKind::Write { durable: false },
        sector * SECTOR,
        &mut [byte; SECTOR as usize],
    )
    .unwrap();
}

pub(crate) fn flush(driver: &mut Driver) {
    run(driver, RequestKind::Flush, 0, &mut []).unwrap();
}

pub(crate) fn read(driver: &mut Driver, sector: u64) -> u8 {
    let mut bytes = [0; SECTOR as usize];
    run(driver, RequestKind::Read, sector * SECTOR, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn what_was_flushed_is_dirty_in_the_next_life_and_what_was_read_is_a_hit() {
    let machine = Machine::new();
    machine.create(2);
    let mut driver = machine.start(WriteMode::Back);
    for sector in 0..8 {
        write(&mut driver, sector, sector as u8 + 1);
    }
    read(&mut driver, 40);
    flush(&mut driver);
    assert_eq!(bytes_of(&machine.backing)[0], 0, "a flush leaves what is dirty where it is");
    drop(driver);

    let mut driver = machine.start(WriteMode::Back);
    let stats = driver.top().stats();
    assert_eq!(stats.dirty_bytes, 8 * SECTOR);
    assert_eq!(stats.valid_bytes, 9 * SECTOR);
    assert_eq!(
        (0..8).map(|sector| read(&mut driver, sector)).collect::<Vec<_>>(),
        (1..=8).collect::<Vec<_>>()
    );
    assert_eq!(read(&mut driver, 40), 0);
    assert_eq!(driver.top().stats().requests.read_hits, 9);
    run(&mut driver, RequestKind::Drain, 0, &mut []).unwrap();
    assert_eq!(driver.top().stats().dirty_bytes, 0);
    assert_eq!(bytes_of(&machine.backing)[7 * SECTOR as usize], 8);
    drop(driver);

    let mut driver = machine.start(WriteMode::Through);
    assert_eq!(driver.top().stats().dirty_bytes, 0);
    assert_eq!(read(&mut driver, 3), 4);
    assert_eq!(driver.top().stats().requests.read_hits, 1);
}

/// The device, what it was to write, and whether it is full.
type Watch = (Box<dyn Device>, Rc<Cell<u64>>, Rc<Cell<bool>>);

/// A cache device that counts what it is to write, and takes nothing while it is full.
fn watched(machine: &Machine) -> Watch {
    let (written, full) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (of, is_full) = (Rc::clone(&written), Rc::clone(&full));
    let device = Intercepted::new(machine.cache.clone(), move |operation| {
        let Action::Write { from, .. } = &operation.action else { return None };
        of.set(of.get() + from.len() as u64);
        is_full.get().then(|| Err(std::io::ErrorKind::StorageFull.into()))
    });
    (Box::new(device), written, full)
}

#[test]
fn what_the_journal_writes_is_counted() {
    let machine = Machine::new();
    machine.create(2);
    let (device, written, _) = watched(&machine);
    let mut driver = machine.start_on(WriteMode::Back, device);
    for round in 0..200 {
        write(&mut driver, round % 64, round as u8);
        flush(&mut driver); // checkpoints come, too
    }
    assert!(written.get() > 200 * 2 * SECTOR, "data and a page of the journal each time");
    assert_eq!(driver.top().stats().counters.cache_write_bytes, written.get());
}

#[test]
fn requests_wait_for_what_becomes_of_a_journal_that_cannot_be_written_and_then_go_past_it() {
    let machine = Machine::new();
    machine.create(2);
    let (device, _, full) = watched(&machine);
    let mut driver = machine.start_on(WriteMode::Back, device);
    (0..8).for_each(|sector| write(&mut driver, sector, 1 + sector as u8));
    flush(&mut driver);
    write(&mut driver, 3, 33); // in the journal that is what it was before
    full.set(true);
    let mut ask = |kind, sector: u64, byte: u8| {
        let len = if kind == RequestKind::Flush { 0 } else { SECTOR };
        let request = Request { volume: ID, kind, offset: sector * SECTOR, len };
        let buffer = (len > 0).then(|| driver.buffer(&request));
        buffer.iter().for_each(|buffer| buffer.whole().copy_from(&[byte; SECTOR as usize]));
        driver.submit(request, buffer);
    };
    ask(RequestKind::Flush, 0, 0);
    ask(RequestKind::Write { durable: false }, 5, 55);
    ask(RequestKind::Write { durable: true }, 40, 66);
    let mut answers = Vec::new();
    let mut go_on = |driver: &mut Driver| {
        for _ in 0..1000 {
            driver.advance();
        }
        driver.take_answers(&mut answers);
        answers.drain(..).map(|answer| answer.result).collect::<Vec<_>>()
    };
    let early = go_on(&mut driver);
    assert!(
        driver.top().cache().condition().has_lost_journal()
            && !driver.top().cache().condition().is_bypassed()
    );
    assert!(early.len() < 3 && early.iter().all(Result::is_ok), "{early:?}");
    driver.top_mut().bypass(false);
    let later = go_on(&mut driver);
    assert!(driver.top().cache().condition().is_emptied(), "what was dirty is brought down");
    assert!(
        early.len() + later.len() < 3,
        "the flush may not promise what the journal may replace"
    );
    driver.top_mut().retire();
    let last = go_on(&mut driver);
    assert_eq!(early.len() + later.len() + last.len(), 3);
    assert!(later.iter().chain(&last).all(Result::is_ok), "{later:?} {last:?}");
    let backing = bytes_of(&machine.backing);
    let found = [0, 3, 5, 7, 40].map(|sector| backing[sector * SECTOR as usize]);
    assert_eq!(found, [1, 33, 55, 8, 66]);
    assert_eq!((read(&mut driver, 3), read(&mut driver, 5)), (33, 55));
}

#[test]
fn a_durable_write_is_there_without_a_flush() {
    let machine = Machine::new();
    machine.create(1);
    let mut driver = machine.start(WriteMode::Back);
    run(&mut driver, RequestKind::Write { durable: true }, SECTOR, &mut [9; SECTOR as usize])
        .unwrap();
    drop(driver);
    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(driver.top().stats().dirty_bytes, SECTOR);
    assert_eq!(read(&mut driver, 1), 9);
}

#[test]
fn a_bit_that_flips_in_a_clean_sector_is_read_from_the_backing_device() {
    let machine = Machine::new();
    machine.create(1);
    let mut driver = machine.start(WriteMode::Through);
    write(&mut driver, 5, 77);
    driver.clean();
    flush(&mut driver);
    let cached = bytes_of(&machine.cache);
    let at = (0..cached.len()).step_by(4096).rfind(|&at| cached[at..at + 4096] == [77; 4096]);
    machine.cache.write_at(at.expect("it is cached") as u64 + 100, &[76]);
    assert_eq!(read(&mut driver, 5), 77);
    let stats = driver.top().stats();
    assert_eq!((stats.counters.cache_errors, stats.corrupt_sectors), (1, 1));
}

#[test]
fn a_log_that_fills_is_shortened_by_checkpoints_and_nothing_is_lost() {
    let machine = Machine::new();
    machine.create(1);
    let mut expected = [0; 64];
    let mut random = 12345u64;
    for life in 0..20 {
        let mut driver = machine.start(WriteMode::Back);
        for sector in 0..64 {
            assert_eq!(
                read(&mut driver, sector),
                expected[sector as usize],
                "sector {sector} in life {life}"
            );
        }
        for _ in 0..200 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (sector, byte) = ((random >> 33) % 64, (random >> 40) as u8);
            write(&mut driver, sector, byte);
            expected[sector as usize] = byte;
            flush(&mut driver);
        }
        if life % 3 == 0 {
            run(&mut driver, RequestKind::Drain, 0, &mut []).unwrap();
        }
    }
}

/// Changes a sector on the cache device, of which all bytes are `byte`, behind the cache's back.
fn rot(machine: &Machine, byte: u8) {
    let sector = [byte; SECTOR as usize];
    let bytes = bytes_of(&machine.cache);
    let mut found =
        (0..CACHE / SECTOR).filter(|at| bytes[(at * SECTOR) as usize..].starts_with(&sector));
    let offset = found.next().expect("the sector is in the cache") * SECTOR;
    assert_eq!(found.next(), None, "it is there once");
    machine.cache.write_at(offset, &[byte ^ 1; SECTOR as usize]);
}

fn try_read(driver: &mut Driver, sector: u64) -> Result<u8, Fault> {
    let mut bytes = [0; SECTOR as usize];
    run(driver, RequestKind::Read, sector * SECTOR, &mut bytes)?;
    Ok(bytes[0])
}

/// Ends the session of a driver in good order.
pub(crate) fn end(machine: &Machine, mut driver: Driver) {
    flush(&mut driver);
    driver.note_rest();
    while !driver.is_idle() || driver.has_orders() {
        driver.advance();
    }
    drop(driver);
    machine.with_io(|io| {
        let mut superblock = KeptCache::identify(io).unwrap().unwrap();
        superblock.clean = true;
        floe_block::write_superblock(io, &mut superblock).unwrap();
    });
}

#[test]
fn what_was_found_to_be_lost_is_an_error_also_after_a_crash_until_it_is_written_anew() {
    let machine = Machine::new();
    machine.create(1);
    let mut driver = machine.start(WriteMode::Back);
    (0..4).for_each(|sector| write(&mut driver, sector, 40 + sector as u8));
    flush(&mut driver);
    rot(&machine, 41);
    rot(&machine, 42);
    for _ in 0..3 {
        assert_eq!(try_read(&mut driver, 1), Err(Fault::Io));
    }
    let stats = driver.top().stats();
    assert_eq!((stats.corrupt_sectors, stats.lost_bytes), (1, SECTOR), "counted once");
    assert_eq!(stats.lost_runs, [(ID, 1..2)]);
    let mut newly = Vec::new();
    driver.top_mut().take_newly_lost(&mut newly);
    assert_eq!(newly, [(ID, 1..2)]);
    flush(&mut driver);
    drop(driver);

    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 1), Err(Fault::Io));
    assert_eq!(try_read(&mut driver, 0), Ok(40));
    driver.top_mut().take_newly_lost(&mut newly);
    assert_eq!(newly[1..], [(ID, 1..2)], "it is told again");
    write(&mut driver, 1, 51);
    assert_eq!(try_read(&mut driver, 1), Ok(51));
    flush(&mut driver);
    drop(driver);

    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 1), Ok(51));
    assert_eq!(driver.top().stats().lost_bytes, 0);
}

#[test]
fn what_is_lost_keeps_nothing_else_from_the_backing_device() {
    let machine = Machine::new();
    machine.create(1);
    let mut driver = machine.start(WriteMode::Back);
    (0..4).for_each(|sector| write(&mut driver, sector, 40 + sector as u8));
    flush(&mut driver);
    rot(&machine, 41);
    for _ in 0..2 {
        assert_eq!(run(&mut driver, RequestKind::Drain, 0, &mut []), Err(Fault::Io));
        assert_eq!(driver.top().stats().dirty_bytes, SECTOR);
        assert_eq!(driver.top().stats().corrupt_sectors, 1);
        let backing = bytes_of(&machine.backing);
        assert_eq!([0, 1, 2, 3].map(|sector| backing[sector * SECTOR as usize]), [40, 0, 42, 43]);
    }
    flush(&mut driver);
    drop(driver);

    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 1), Err(Fault::Io));
    run(&mut driver, RequestKind::Trim, SECTOR, &mut [0; SECTOR as usize]).unwrap();
    run(&mut driver, RequestKind::Drain, 0, &mut []).unwrap();
    assert_eq!((driver.top().stats().dirty_bytes, driver.top().stats().lost_bytes), (0, 0));
}

#[test]
fn what_was_dirty_at_a_clean_end_is_known_by_its_checksum() {
    let machine = Machine::new();
    machine.create(2);
    let mut driver = machine.start(WriteMode::Back);
    (0..8).for_each(|sector| write(&mut driver, sector, 40 + sector as u8));
    end(&machine, driver);
    rot(&machine, 43);

    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 3), Err(Fault::Io));
    assert_eq!(try_read(&mut driver, 2), Ok(42));
    write(&mut driver, 4, 54);
    flush(&mut driver);
    drop(driver);

    // That was no clean end: what was overwritten in place since is not held against its old
    // checksum.
    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 4), Ok(54));
    assert_eq!(try_read(&mut driver, 3), Err(Fault::Io));
    end(&machine, driver);
    let mut driver = machine.start(WriteMode::Back);
    assert_eq!(try_read(&mut driver, 4), Ok(54));
    assert_eq!(try_read(&mut driver, 3), Err(Fault::Io));
    assert_eq!(driver.top().stats().lost_bytes, SECTOR);
}

#[test]
fn a_cache_full_of_what_is_lost_is_gone_past() {
    let machine = Machine::new();
    machine.create_of(512 << 10, 1);
    let mut driver = machine.start(WriteMode::Back);
    let mut kept = 0;
    while driver.top().stats().dirty_bytes == kept * SECTOR && kept < 48 {
        write(&mut driver, kept, 1);
        kept += 1;
    }
    assert!((8..48).contains(&kept), "{kept} sectors are in the cache, and it is full");
    run(&mut driver, RequestKind::Drain, 0, &mut []).unwrap();
    let full = driver.top().stats().valid_bytes / SECTOR;
    (0..full).for_each(|sector| write(&mut driver, sector, 150 + 2 * sector as u8));
    assert_eq!(
        driver.top().stats().dirty_bytes,
        full * SECTOR,
        "all that is in the cache is dirty"
    );
    (0..full).for_each(|sector| rot(&machine, 150 + 2 * sector as u8));
    (0..full).for_each(|sector| assert_eq!(try_read(&mut driver, sector), Err(Fault::Io)));
    assert_eq!(driver.top().stats().lost_bytes, full * SECTOR);
    driver.top_mut().restore(); // it was given up for what it has lost
    for sector in 50..64 {
        write(&mut driver, sector, sector as u8);
        assert_eq!(try_read(&mut driver, sector), Ok(sector as u8));
    }
    run(&mut driver, RequestKind::Drain, 0, &mut []).unwrap_err();
    assert_eq!(driver.top().stats().dirty_bytes, full * SECTOR);
}

/// Cached clean copies of 32 sectors, each of which a session that then crashes has overwritten
/// without a flush.
fn half_overwritten() -> Machine {
    let machine = Machine::new();
    machine.create(1);
    let mut driver = machine.start(WriteMode::Through);
    (0..32).for_each(|sector| write(&mut driver, sector, 100 + sector as u8));
    driver.clean();
    end(&machine, driver);
    let mut driver = machine.start(WriteMode::Back);
    (0..32).for_each(|sector| write(&mut driver, sector, 200));
    assert_eq!(driver.top().stats().dirty_bytes, 32 * SECTOR, "no copy has moved");
    drop(driver);
    machine
}

#[test]
fn copies_that_a_crash_found_half_overwritten_are_forgotten_without_a_word() {
    let machine = half_overwritten();
    let mut driver = machine.start(WriteMode::Back);
    for sector in 0..32 {
        assert_eq!(read(&mut driver, sector), 100 + sector as u8, "nothing newer was flushed");
    }
    let stats = driver.top().stats();
    assert_eq!((stats.corrupt_sectors, stats.counters.cache_errors), (0, 0));
    assert_eq!(stats.degraded_shards, 0, "a healthy device is not given up");
    // What has been stored or read since is known: its rot is told.
    for sector in 0..32 {
        read(&mut driver, sector);
    }
    rot(&machine, 107);
    assert_eq!(read(&mut driver, 7), 107);
    assert_eq!(driver.top().stats().corrupt_sectors, 1);
}

#[test]
fn a_crash_excuses_no_rot_of_what_was_read_or_stored_after_it() {
    let machine = half_overwritten();
    let verified = || {
        let verify = |io: &mut Io<'_>| {
            KeptCache::open(io, &mut |_, _| {})
                .unwrap()
                .unwrap()
                .verify(io, &mut |_, _| {})
                .unwrap()
        };
        let rotten = machine.with_io(verify);
        (rotten.iter().filter(|run| !run.doubted).count(), rotten.len())
    };
    let mut driver = machine.start(WriteMode::Back);
    for sector in [3, 4, 3, 4] {
        assert_eq!(read(&mut driver, sector), 100 + sector as u8, "and comes into the cache anew");
    }
    driver.clean();
    end(&machine, driver);
    let (problems, all) = verified();
    assert!(problems == 0 && all > 0, "{problems} of {all}: the rest is as the crash left it");
    rot(&machine, 104);
    assert_eq!(verified().0, 1);

    // Through checkpoints and more sessions, too.
    for _ in 0..3 {
        let mut driver = machine.start(WriteMode::Through);
        for _ in 0..300 {
            write(&mut driver, 40, 7);
            driver.clean();
            flush(&mut driver);
        }
        end(&machine, driver);
    }
    assert_eq!(verified().0, 1);
}

fn next(random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Where the cache device has the dirty sectors of the volume.
fn dirty_sectors(machine: &Machine) -> Vec<(u64, u64)> {
    let kept = machine.with_io(|io| KeptCache::open(io, &mut |_, _| {})).unwrap().unwrap();
    let each = kept.dirty_runs(ID).into_iter().flat_map(|(run, offset)| {
        run.clone().map(move |sector| (sector, offset + (sector - run.start) * SECTOR))
    });
    each.collect()
}

#[test]
fn no_bit_that_flips_in_flushed_dirty_data_after_a_kill_is_served() {
    let mut random = 16;
    for overwrites in [0, 40, 400] {
        let machine = Machine::new();
        machine.create(2);
        let mut driver = machine.start(WriteMode::Back);
        let mut expected = [0; 64];
        for number in 0..64 + overwrites {
            let sector = if number < 64 { number } else { next(&mut random) % 64 };
            expected[sector as usize] = next(&mut random) as u8;
            write(&mut driver, sector, expected[sector as usize]);
            if next(&mut random).is_multiple_of(5) {
                flush(&mut driver);
            }
        }
        flush(&mut driver);
        drop(driver); // killed
        let dirty = dirty_sectors(&machine);
        assert_eq!(dirty.len(), 64);
        for _ in 0..75 {
            let (sector, offset) = dirty[next(&mut random) as usize % 64];
            let at = offset + next(&mut random) % SECTOR;
            let mut byte = [0];
            machine.cache.read_at(at, &mut byte);
            let flipped = byte[0] ^ 1 << (next(&mut random) % 8);
            machine.cache.write_at(at, &[flipped]);
            let mut driver = machine.start(WriteMode::Back);
            assert_eq!(try_read(&mut driver, sector), Err(Fault::Io), "a flipped bit is served");
            let other = (sector + 1) % 64;
            assert_eq!(try_read(&mut driver, other), Ok(expected[other as usize]));
            drop(driver);
            machine.cache.write_at(at, &byte);
        }
    }
}

#[test]
fn what_was_flushed_is_never_lost_to_an_overwrite_that_a_kill_has_cut_short() {
    let mut random = 17;
    for _ in 0..50 {
        let machine = Machine::new();
        machine.create(1);
        let mut driver = machine.start(WriteMode::Back);
        (0..16).for_each(|sector| write(&mut driver, sector, 1));
        flush(&mut driver);
        let request = Request {
            volume: ID,
            kind: RequestKind::Write { durable: false },
            offset: 0,
            len: 16 * SECTOR,
        };
        let buffer = driver.buffer(&request);
        Driver::payload(&request, &buffer).copy_from(&[2; 16 * SECTOR as usize]);
        driver.submit(request, Some(buffer));
        // Killed in the middle of it: perhaps the log only says that it may come, perhaps it is
        // there and not sealed.
        for _ in 0..next(&mut random) % 12 {
            driver.advance();
        }
        drop(driver);
        let mut driver = machine.start(WriteMode::Back);
        for sector in 0..16 {
            let found = try_read(&mut driver, sector);
            assert!(found == Ok(1) || found == Ok(2), "{found:?}");
        }
        assert_eq!((driver.top().stats().lost_bytes, driver.top().stats().corrupt_sectors), (0, 0));
    }
}
