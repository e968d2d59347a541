//! The pace of cleaning and the bound on fills, in virtual time: what waits for them, and what they
//! wait for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_block::{
    Answer, BlockCache, Config, Driver, Request, RequestId, RequestKind, Tier, VolumeError,
    VolumeId, WriteMode,
};
use floe_device::{Action, Completion, Device, MemoryDevice, Operation, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SECTOR: u64 = 4096;
const VOLUME_SECTORS: u64 = 1024;
const CACHE_SECTORS: u64 = 256;
/// Sectors that may be dirty.
const MOST: u64 = 128;
const SERVICE_US: u64 = 8000;
/// The time of a read of a fast volume.
const MISS_US: u64 = 100;
const VOLUME: VolumeId = VolumeId(0);

/// The time of a test, in microseconds.
#[derive(Debug, Clone)]
struct Time {
    now: Rc<Cell<u64>>,
    epoch: Instant,
}

impl Time {
    fn at(&self, us: u64) -> Instant {
        self.epoch + Duration::from_micros(us)
    }
}

/// What a disk has under way, by the time at which it ends, and what it has done.
#[derive(Debug, Default)]
struct Queue {
    under_way: VecDeque<(u64, u64)>,
    most_under_way: usize,
    read: u64,
    written: u64,
    /// The time of an operation.
    service_us: u64,
    /// Set for a disk that serves any number of operations at a time, not one.
    side_by_side: bool,
}

/// A disk that takes as long for each operation.
struct Disk {
    inner: MemoryDevice,
    time: Time,
    queue: Rc<RefCell<Queue>>,
}

impl Disk {
    /// Creates a disk; the returned queue changes its speed.
    fn new(sectors: u64, time: &Time, service_us: u64) -> (Self, Rc<RefCell<Queue>>) {
        let queue = Rc::new(RefCell::new(Queue { service_us, ..Queue::default() }));
        let inner = MemoryDevice::new(sectors * SECTOR);
        (Self { inner, time: time.clone(), queue: queue.clone() }, queue)
    }
}

impl Device for Disk {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        let mut queue = self.queue.borrow_mut();
        let token = operation.token;
        let writes = matches!(operation.action, Action::Write { .. });
        queue.written += u64::from(writes);
        queue.read += u64::from(matches!(operation.action, Action::Read(_)));
        let now = self.time.now.get();
        let last = queue.under_way.back().map_or(0, |(due, _)| *due);
        let from = if queue.side_by_side { now } else { last.max(now) };
        let due = from + queue.service_us;
        let at = queue.under_way.partition_point(|(other, _)| *other <= due);
        queue.under_way.insert(at, (due, token));
        queue.most_under_way = queue.most_under_way.max(queue.under_way.len());
        self.inner.submit(operation);
        self.inner.poll(&mut Vec::new());
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut queue = self.queue.borrow_mut();
        while queue.under_way.front().is_some_and(|(due, _)| *due <= self.time.now.get()) {
            let (_, token) = queue.under_way.pop_front().expect("it has been looked at");
            done.push(Completion { token, result: Ok(()) });
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.queue.borrow().under_way.front().map(|(due, _)| self.time.at(*due))
    }
}

struct Rig {
    driver: Driver,
    time: Time,
    /// The queues of the volume and of the cache device, which takes no time at first.
    queue: Rc<RefCell<Queue>>,
    cache: Rc<RefCell<Queue>>,
    answers: Vec<Answer>,
    stamps: Vec<u8>,
}

impl Rig {
    /// Creates a cache of 4 KiB blocks above a disk, whose service time it has learned.
    fn new() -> Self {
        let time = Time { now: Rc::default(), epoch: Instant::now() };
        let config = Config {
            sizes: "4KiB".parse().unwrap(),
            cache_bytes: CACHE_SECTORS * SECTOR,
            mode: WriteMode::Back,
            shards: Some(2),
            ..Config::default()
        };
        let (device, cache) = Disk::new(CACHE_SECTORS, &time, 0);
        let (disk, queue) = Disk::new(VOLUME_SECTORS, &time, SERVICE_US);
        let clock = time.clone();
        let block_cache = BlockCache::new(config).unwrap();
        let mut tier = Tier::new(block_cache, Box::new(device), Pool::new(0));
        tier.limit_dirty(MOST * SECTOR);
        let tier = tier.with_clock(move || clock.at(clock.now.get()));
        let mut driver = Driver::new(tier);
        driver.add_volume("test", Box::new(disk));
        let stamps = vec![0; VOLUME_SECTORS as usize];
        let mut rig = Self { driver, time, queue, cache, answers: Vec::new(), stamps };
        rig.read(VOLUME_SECTORS - 1);
        rig
    }

    /// Creates a cache whose device takes `cache_us` for an operation, one at a time, above a
    /// volume that takes [`MISS_US`] for any number at a time.
    fn above_equal(cache_us: u64) -> Self {
        let rig = Self::new();
        rig.cache.borrow_mut().service_us = cache_us;
        let mut queue = rig.queue.borrow_mut();
        (queue.service_us, queue.side_by_side) = (MISS_US, true);
        drop(queue);
        rig
    }

    /// Reads these sectors, as many at a time as there are clients.
    fn read_all(&mut self, clients: usize, sectors: impl Iterator<Item = u64>) {
        let mut pending = Vec::new();
        for sector in sectors {
            pending.push(self.submit(RequestKind::Read, sector, 1));
            while pending.len() == clients {
                self.driver.advance();
                self.driver.take_answers(&mut self.answers);
                let answered = std::mem::take(&mut self.answers);
                pending.retain(|id| !answered.iter().any(|answer| answer.request == *id));
                if answered.is_empty() {
                    self.turn();
                }
            }
        }
        pending.into_iter().for_each(|id| _ = self.wait(id));
    }

    /// Returns the sectors that were fetched for clients and not stored.
    fn unfilled(&self) -> u64 {
        self.driver.top().stats().counters.unfilled_bytes / SECTOR
    }

    fn submit(&mut self, kind: RequestKind, sector: u64, sectors: u64) -> RequestId {
        let (offset, len) = (sector * SECTOR, sectors * SECTOR);
        let request = Request { volume: VOLUME, kind, offset, len };
        let buffer = (request.buffer_bytes() > 0).then(|| self.driver.buffer(&request));
        if let (RequestKind::Write { .. }, Some(buffer)) = (kind, &buffer) {
            for at in sector..sector + sectors {
                let stamp = &mut self.stamps[at as usize];
                *stamp = stamp.wrapping_add(1).max(1);
                let part = (at - sector) * SECTOR;
                let payload = Driver::payload(&request, buffer);
                let slice = payload.slice(part as usize..(part + SECTOR) as usize);
                slice.copy_from(&[*stamp; SECTOR as usize]);
            }
        }
        self.driver.submit(request, buffer)
    }

    /// Does what is possible without time, and lets time pass until the next event.
    fn turn(&mut self) {
        self.driver.advance();
        self.driver.take_answers(&mut self.answers);
        if let Some(due) = self.driver.next_due() {
            let us = (due - self.time.epoch).as_nanos().div_ceil(1000) as u64;
            self.time.now.set(self.time.now.get().max(us));
        }
    }

    /// Waits for a request; returns the time that it took.
    fn wait(&mut self, id: RequestId) -> u64 {
        let begun = self.time.now.get();
        for _ in 0..100_000 {
            self.driver.advance();
            self.driver.take_answers(&mut self.answers);
            if let Some(at) = self.answers.iter().position(|answer| answer.request == id) {
                assert_eq!(self.answers.swap_remove(at).result, Ok(()));
                return self.time.now.get() - begun;
            }
            self.turn();
        }
        panic!("request {id:?} is never answered")
    }

    fn read(&mut self, sector: u64) -> u64 {
        let id = self.submit(RequestKind::Read, sector, 1);
        self.wait(id)
    }

    fn write(&mut self, sector: u64) -> u64 {
        let id = self.submit(RequestKind::Write { durable: false }, sector, 1);
        self.wait(id)
    }

    fn flush(&mut self) -> u64 {
        let request = Request { volume: VOLUME, kind: RequestKind::Flush, offset: 0, len: 0 };
        let id = self.driver.submit(request, None);
        self.wait(id)
    }

    /// Lets time pass until this moment.
    fn pass_until(&mut self, us: u64) {
        loop {
            self.driver.advance();
            let due = self.driver.next_due().map(|due| (due - self.time.epoch).as_micros() as u64);
            let next = due.unwrap_or(us).min(us).max(self.time.now.get());
            if next == us {
                break;
            }
            self.time.now.set(next + 1);
        }
        self.time.now.set(us);
        self.driver.advance();
    }

    fn dirty(&self) -> u64 {
        self.driver.top().stats().dirty_bytes / SECTOR
    }

    fn written(&self) -> u64 {
        self.queue.borrow().written
    }
}

#[test]
fn an_idle_disk_cleans_all() {
    let mut rig = Rig::new();
    (0..20).for_each(|sector| _ = rig.write(sector));
    rig.driver.clean();
    let now = rig.time.now.get();
    rig.pass_until(now + 10 * SERVICE_US);
    assert_eq!(rig.written(), 0, "a client has just been there");
    rig.pass_until(now + 60 * SERVICE_US);
    assert_eq!((rig.dirty(), rig.written()), (0, 20));
    assert!(rig.queue.borrow().most_under_way <= 4, "the disk serves one at a time");
}

#[test]
fn a_round_gets_its_turn_though_no_operation_ends() {
    let mut rig = Rig::new();
    (0..20).for_each(|sector| _ = rig.write(sector));
    let now = rig.time.now.get();
    rig.pass_until(now + 100 * SERVICE_US);
    rig.driver.clean(); // as a server does, when it is due, after it has advanced
    while rig.driver.has_orders() || rig.driver.next_due().is_some() {
        rig.turn();
    }
    assert_eq!((rig.dirty(), rig.written()), (0, 20));
}

#[test]
fn clients_that_read_are_hardly_delayed_though_all_becomes_clean_at_last() {
    let mut rig = Rig::new();
    (0..20).for_each(|sector| _ = rig.write(sector));
    rig.driver.clean();
    let first: Vec<u64> = (100..150).map(|sector| rig.read(sector)).collect();
    assert!(first.iter().all(|us| *us == SERVICE_US), "{first:?}");
    assert_eq!(rig.written(), 0);
    rig.driver.clean(); // the first round has not ended
    let mut second = Vec::new();
    for sector in 150..VOLUME_SECTORS - 1 {
        second.push(rig.read(sector));
        if rig.dirty() == 0 {
            break;
        }
    }
    let delayed = second.iter().filter(|us| **us > SERVICE_US).count();
    assert!((1..=40).contains(&delayed), "{delayed} of {} reads", second.len());
    assert!(second.iter().all(|us| *us <= 2 * SERVICE_US), "{second:?}");
    assert_eq!((rig.dirty(), rig.written()), (0, 20));
}

#[test]
fn a_flush_does_not_wait_for_turns() {
    for is_overdue in [false, true] {
        let mut rig = Rig::new();
        (0..24).for_each(|sector| _ = rig.write(sector));
        rig.driver.clean();
        if is_overdue {
            rig.driver.clean();
        }
        let read = rig.submit(RequestKind::Read, 700, 1); // a client is there all the time
        let us = rig.flush();
        assert_eq!(rig.dirty(), 0);
        assert!(us <= 27 * SERVICE_US, "{us} us for 24 writes");
        assert!(rig.queue.borrow().most_under_way >= 8, "many at once");
        rig.wait(read);
    }
}

#[test]
fn a_rest_leaves_what_nothing_waits_for() {
    let mut rig = Rig::new();
    (0..24).for_each(|sector| _ = rig.write(sector));
    rig.driver.clean();
    rig.driver.advance();
    assert!(!rig.driver.is_idle(), "a round waits for its turn");
    rig.driver.rest();
    rig.driver.advance();
    assert!(rig.driver.is_idle());
    assert_eq!((rig.dirty(), rig.written()), (24, 0));
    rig.driver.clean();
    let now = rig.time.now.get();
    rig.pass_until(now + 100 * SERVICE_US);
    assert_eq!(rig.dirty(), 0, "it goes on");
}

#[test]
fn a_volume_whose_round_waits_for_its_turn_can_be_removed() {
    let mut rig = Rig::new();
    (0..24).for_each(|sector| _ = rig.write(sector));
    rig.driver.clean();
    rig.driver.advance();
    let dirty = rig.driver.remove_volume(0, VOLUME, false);
    assert_eq!(dirty, Err(VolumeError::Dirty(24 * SECTOR)));
    assert_eq!(rig.driver.remove_volume(0, VOLUME, true), Ok(()));
    rig.driver.advance();
    assert!(rig.driver.is_idle());
}

/// Whatever clients do at whatever times, what they wrote is there, few blocks are cleaned at once,
/// and all is clean at the end.
#[test]
fn whatever_clients_do_all_is_there_and_clean_at_the_end() {
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut rig = Rig::new();
        rig.cache.borrow_mut().service_us = [0, 30, SERVICE_US][rng.random_range(0..3)];
        rig.queue.borrow_mut().side_by_side = rng.random();
        let clients = rng.random_range(1..=8);
        let reads = rng.random_range(0.0..1.0);
        let mut pending: Vec<(RequestId, RequestKind, u64)> = Vec::new();
        for _ in 0..400 {
            while pending.len() >= clients || (!pending.is_empty() && rng.random_ratio(1, 4)) {
                rig.turn();
                let answered = std::mem::take(&mut rig.answers);
                for Answer { request, result, .. } in answered {
                    assert_eq!(result, Ok(()), "seed {seed}");
                    pending.retain(|(id, ..)| *id != request);
                }
            }
            let sector = rng.random_range(0..VOLUME_SECTORS - 1);
            if pending.iter().any(|(.., other)| *other == sector) {
                continue;
            }
            let kind = match rng.random_range(0..40) {
                0 => RequestKind::Flush,
                1 => RequestKind::Drain,
                2 => RequestKind::Evict,
                _ if rng.random_bool(reads) => RequestKind::Read,
                _ => RequestKind::Write { durable: rng.random_ratio(1, 20) },
            };
            let sectors = u64::from(!matches!(kind, RequestKind::Flush | RequestKind::Drain));
            pending.push((rig.submit(kind, sector * sectors, sectors), kind, sector));
            if rng.random_ratio(1, 30) {
                rig.driver.clean();
            }
            assert!(rig.dirty() <= MOST, "seed {seed}");
        }
        for (id, ..) in pending {
            rig.wait(id);
        }
        for _ in 0..2 {
            rig.driver.clean(); // a round under way has only what was dirty before
            let now = rig.time.now.get();
            rig.pass_until(now + 400 * SERVICE_US);
        }
        assert!(rig.driver.is_idle() && rig.dirty() == 0, "seed {seed}: {} dirty", rig.dirty());
        for sector in 0..VOLUME_SECTORS {
            let request = Request {
                volume: VOLUME,
                kind: RequestKind::Read,
                offset: sector * SECTOR,
                len: SECTOR,
            };
            let buffer = rig.driver.buffer(&request);
            let id = rig.driver.submit(request, Some(buffer.clone()));
            rig.wait(id);
            let found = Driver::payload(&request, &buffer).to_vec();
            let stamp = rig.stamps[sector as usize];
            assert!(found.iter().all(|byte| *byte == stamp), "seed {seed}, sector {sector}");
        }
    }
}

/// Where misses come faster than the cache device stores them, a write waits for few fills, and the
/// device is busy with some most of the time.
#[test]
fn a_write_waits_for_no_more_fills_than_take_as_long_as_a_miss() {
    const STORE_US: u64 = 30;
    let mut rig = Rig::above_equal(STORE_US);
    for round in 0..4 {
        let (begun, before) = (rig.time.now.get(), rig.cache.borrow().written);
        rig.read_all(8, (0..VOLUME_SECTORS - 1).map(|at| at * 5 % (VOLUME_SECTORS - 1)));
        let us = rig.write(VOLUME_SECTORS - 1);
        assert!(us <= MISS_US + 3 * STORE_US, "round {round}: a write took {us} us");
        let busy_us = (rig.cache.borrow().written - before) * STORE_US;
        let passed_us = rig.time.now.get() - begun;
        assert!(busy_us * 3 > passed_us, "busy for {busy_us} of {passed_us} us");
    }
    assert!(rig.unfilled() > VOLUME_SECTORS, "{}", rig.unfilled());
}

/// Fills go on as before after a bad moment of the cache device.
#[test]
fn a_cache_device_that_was_slow_for_a_while_is_filled_again() {
    const STORE_US: u64 = 30;
    let mut rig = Rig::above_equal(STORE_US);
    let sectors = || (0..VOLUME_SECTORS - 1).map(|at| at * 5 % (VOLUME_SECTORS - 1));
    rig.read_all(8, sectors());
    rig.cache.borrow_mut().service_us = 100_000;
    rig.read_all(8, sectors().take(200));
    rig.cache.borrow_mut().service_us = STORE_US;
    let now = rig.time.now.get();
    rig.pass_until(now + 20_000_000);
    for _ in 0..150 {
        rig.read_all(8, sectors());
    }
    let (begun, before) = (rig.time.now.get(), rig.cache.borrow().written);
    rig.read_all(8, sectors());
    let busy_us = (rig.cache.borrow().written - before) * STORE_US;
    let passed_us = rig.time.now.get() - begun;
    assert!(busy_us * 3 > passed_us, "busy for {busy_us} of {passed_us} us");
}

/// A cache device that is faster than the volume stores all that was fetched.
#[test]
fn above_a_slower_volume_all_is_stored() {
    for (cache_us, clients) in [(0, 8), (10, 8), (90, 1)] {
        let mut rig = Rig::above_equal(cache_us);
        for _ in 0..3 {
            rig.read_all(clients, 0..VOLUME_SECTORS - 1);
        }
        assert_eq!(rig.unfilled(), 0, "{cache_us} us, {clients} clients");
    }
}

/// In memory no fill waits for another, though a busy machine makes some seem to.
#[test]
fn a_cache_in_memory_stores_all_on_a_busy_machine() {
    let config = Config {
        sizes: "4KiB,8KiB".parse().unwrap(),
        cache_bytes: CACHE_SECTORS * SECTOR,
        ..Config::default()
    };
    let device = || Box::new(MemoryDevice::new(VOLUME_SECTORS * SECTOR));
    let tier = Tier::new(BlockCache::new(config).unwrap(), device(), Pool::new(0));
    // Other programs have the processor now and then.
    let (epoch, passed) = (Instant::now(), Rc::new(Cell::new(0)));
    let random = Rc::new(RefCell::new(SmallRng::seed_from_u64(7)));
    let mut driver = Driver::new(tier.with_clock(move || {
        let held_up = random.borrow_mut().random_ratio(1, 20);
        passed.set(passed.get() + if held_up { 10_000_000 } else { 100 });
        epoch + Duration::from_nanos(passed.get())
    }));
    driver.add_volume("test", device());
    let mut answers = Vec::new();
    for at in 0..5000 {
        let (offset, len) = (at * 37 % (VOLUME_SECTORS - 32) * SECTOR, (1 + at % 32) * SECTOR);
        let request = Request { volume: VOLUME, kind: RequestKind::Read, offset, len };
        let buffer = driver.buffer(&request);
        driver.submit(request, Some(buffer));
        while !driver.is_idle() {
            driver.advance();
        }
        driver.take_answers(&mut answers);
    }
    assert!(answers.len() == 5000 && answers.iter().all(|answer| answer.result.is_ok()));
    assert_eq!(driver.top().stats().counters.unfilled_bytes, 0);
}

/// Readers that wait for a fetch have its data, though it is not stored.
#[test]
fn readers_of_one_block_share_a_fetch_that_is_not_stored() {
    let mut rig = Rig::above_equal(90);
    rig.read_all(8, 0..800);
    let now = rig.time.now.get();
    rig.pass_until(now + 10 * SERVICE_US);
    let before = (rig.unfilled(), rig.queue.borrow().read);
    let begun = rig.time.now.get();
    let sectors = (900..916).flat_map(|sector| [sector; 4]);
    let reads: Vec<_> = sectors.map(|sector| rig.submit(RequestKind::Read, sector, 1)).collect();
    reads.into_iter().for_each(|id| _ = rig.wait(id));
    assert_eq!(rig.time.now.get() - begun, MISS_US);
    assert_eq!(rig.queue.borrow().read - before.1, 16);
    assert!(rig.unfilled() - before.0 >= 12, "few of them are stored");
}

/// A client that asks for data to be cached has it cached, however busy the device is.
#[test]
fn a_prefetch_is_always_stored() {
    let mut rig = Rig::above_equal(90);
    rig.read_all(8, 0..800);
    let reads: Vec<_> = (900..916).map(|at| rig.submit(RequestKind::Read, at, 1)).collect();
    let wanted: Vec<_> = (920..952).map(|at| rig.submit(RequestKind::Warm, at, 1)).collect();
    reads.into_iter().chain(wanted).for_each(|id| _ = rig.wait(id));
    let now = rig.time.now.get();
    rig.pass_until(now + 10 * SERVICE_US);
    let before = rig.queue.borrow().read;
    rig.read_all(1, 920..952);
    assert_eq!(rig.queue.borrow().read, before, "all of them hit");
}
