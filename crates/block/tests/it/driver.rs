//! The driver over real devices against plain bytes: memory and files, with failures, delays and
//! power cuts.

use std::time::{Duration, Instant};

use floe_block::{
    AdmissionConfig, Answer, BlockCache, Config, Driver, Evict, Fault, LEAST_MEMORY_BYTES, Memory,
    MemoryOptions, MemoryTier, MemoryWrite, Request, RequestId, RequestKind, Tier, VolumeId,
    WriteMode, grow_device, resize_tier,
};
use floe_device::medium::Medium;
use floe_device::{
    Buffer, Device, FileDevice, FileOptions, MediumDevice, MemoryDevice, Pool, Ring,
};
use floe_testkit::faults::{FaultDevice, FaultPlan, Rates};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const VOLUME: u64 = 1 << 20;
const CACHE: u64 = 256 << 10;
/// The bytes of a group: those of the largest block.
const GROUP: u64 = 32 << 10;
const UNIT: u64 = 512;
const MODES: [WriteMode; 4] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back];

/// The write modes, each without a tier in memory and with one of each kind, and a seed.
fn setups() -> impl Iterator<Item = (u64, WriteMode, Option<MemoryWrite>)> + Clone {
    let memory = [None, Some(MemoryWrite::Through), Some(MemoryWrite::Back)];
    (0..).zip(memory).flat_map(|(at, memory)| {
        (0..).zip(MODES).map(move |(mode_at, mode)| (4 * at + mode_at, mode, memory))
    })
}

struct Pending {
    id: RequestId,
    request: Request,
    buffer: Buffer,
}

/// A driver, and the bytes its volume must hold. Requests under way at once never overlap, so what
/// each must find is plain; a unit that a failed write may or may not have changed is not known
/// until it is written again.
struct Rig {
    driver: Driver,
    ring: Option<Ring>,
    model: Vec<Option<u8>>,
    pending: Vec<Pending>,
    answers: Vec<Answer>,
    rng: SmallRng,
    failed: u64,
}

impl Rig {
    fn new(
        (seed, mode, memory): (u64, WriteMode, Option<MemoryWrite>),
        cache: Box<dyn Device>,
        backing: Box<dyn Device>,
        pool: Pool,
    ) -> Self {
        let options = |write| MemoryOptions { write, ..MemoryOptions::default() };
        let tier = memory.map(|write| MemoryTier::new(LEAST_MEMORY_BYTES, options(write)).unwrap());
        let memory = tier.as_ref().map_or(Memory::None, MemoryTier::config);
        let sizes = "4KiB,16KiB,32KiB".parse().unwrap();
        let cache_of = BlockCache::new(Config {
            adapts_fetches: false,
            sizes,
            cache_bytes: CACHE,
            mode,
            shards: Some(2),
            gate: AdmissionConfig::default(),
            evict: Evict::default(),
            memory,
            kept: false,
        })
        .unwrap();
        let mut driver = Driver::new(Tier::new(cache_of, cache, pool).with_memory(tier));
        driver.add_volume("test", backing);
        let model = vec![Some(0); (VOLUME / UNIT) as usize];
        let rng = SmallRng::seed_from_u64(seed);
        Self { driver, ring: None, model, pending: Vec::new(), answers: Vec::new(), rng, failed: 0 }
    }

    fn submit(&mut self, request: Request) {
        let buffer = self.driver.buffer(&request);
        if let RequestKind::Write { .. } = request.kind {
            let stamp = self.rng.random_range(1..=255u8);
            Driver::payload(&request, &buffer).copy_from(&vec![stamp; request.len as usize]);
        }
        let mut hit = [false];
        if request.kind == RequestKind::Read {
            self.driver.top_mut().read_memory(&[(request, buffer.clone())], &mut hit);
        }
        if hit == [true] {
            return self.check_read(&request, &buffer);
        }
        let id = self.driver.submit(request, Some(buffer.clone()));
        self.pending.push(Pending { id, request, buffer });
    }

    fn check_read(&mut self, request: &Request, buffer: &Buffer) {
        let units =
            (request.offset / UNIT) as usize..((request.offset + request.len) / UNIT) as usize;
        let bytes = Driver::payload(request, buffer).to_vec();
        for (unit, found) in self.model[units].iter_mut().zip(bytes.chunks(UNIT as usize)) {
            assert!(found.iter().all(|byte| *byte == found[0]));
            assert!(
                unit.is_none_or(|byte| byte == found[0]),
                "{request:?}: {unit:?}, {}",
                found[0]
            );
            *unit = Some(found[0]);
        }
    }

    /// Moves everything that can move, and takes in answers.
    fn turn(&mut self) {
        self.driver.advance();
        if let Some(ring) = &self.ring {
            // hands what was submitted to the kernel
            ring.wait_until(Some(Instant::now())).unwrap();
        }
        self.driver.take_answers(&mut self.answers);
        for Answer { request: id, result, .. } in std::mem::take(&mut self.answers) {
            let at = self
                .pending
                .iter()
                .position(|pending| pending.id == id)
                .expect("each is answered once");
            let Pending { request, buffer, .. } = self.pending.swap_remove(at);
            let refused = result == Err(Fault::Unsupported);
            self.failed += u64::from(result.is_err() && !refused);
            let units =
                (request.offset / UNIT) as usize..((request.offset + request.len) / UNIT) as usize;
            match request.kind {
                RequestKind::Read if result.is_ok() => self.check_read(&request, &buffer),
                RequestKind::Write { .. } => {
                    let byte = Driver::payload(&request, &buffer).slice(0..1).to_vec()[0];
                    self.model[units].fill(result.is_ok().then_some(byte));
                }
                RequestKind::Zero { fast: true, .. } if refused => {}
                RequestKind::Zero { .. } => self.model[units].fill(result.is_ok().then_some(0)),
                RequestKind::Trim => self.model[units].fill(None),
                RequestKind::DirtyMap => {
                    let marks = buffer.slice(0..request.buffer_bytes() as usize).to_vec();
                    assert!(marks.iter().all(|mark| *mark <= 1), "{marks:?}");
                }
                RequestKind::Read
                | RequestKind::Flush
                | RequestKind::Drain
                | RequestKind::Prefetch
                | RequestKind::Warm
                | RequestKind::Evict => {}
            }
        }
    }

    fn settle(&mut self) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !self.pending.is_empty() || !self.driver.is_idle() {
            self.turn();
            if let Some(ring) = &self.ring {
                let soon = Instant::now() + Duration::from_millis(1);
                ring.wait_until(Some(self.driver.next_due().unwrap_or(soon).min(soon))).unwrap();
            }
            assert!(Instant::now() < patience, "{} requests hang", self.pending.len());
        }
    }

    fn random_requests(&mut self, requests: usize) {
        for _ in 0..requests {
            let kind = match self.rng.random_range(0..20) {
                0 => RequestKind::Flush,
                1 => RequestKind::Zero { durable: false, may_unmap: true, fast: self.rng.random() },
                2 => RequestKind::Trim,
                3 => RequestKind::Write { durable: true },
                10 => RequestKind::Prefetch,
                11 => RequestKind::DirtyMap,
                12 => RequestKind::Warm,
                13 => RequestKind::Evict,
                4..10 => RequestKind::Write { durable: false },
                _ => RequestKind::Read,
            };
            let len =
                UNIT * if self.rng.random_bool(0.1) { 300 } else { self.rng.random_range(1..40) };
            let offset = UNIT * self.rng.random_range(0..=(VOLUME - len) / UNIT);
            let request = Request { volume: VolumeId(0), kind, offset, len };
            let overlaps = |other: &Pending| {
                other.request.offset < offset + len
                    && offset < other.request.offset + other.request.len
            };
            while kind != RequestKind::Flush && self.pending.iter().any(overlaps) {
                self.turn();
            }
            self.submit(request);
            if self.rng.random_bool(0.3) {
                self.turn();
            }
            if self.rng.random_bool(0.02) {
                self.driver.clean();
            }
        }
        self.settle();
    }

    fn read_all(&mut self) {
        for offset in (0..VOLUME).step_by(64 << 10) {
            self.submit(Request {
                volume: VolumeId(0),
                kind: RequestKind::Read,
                offset,
                len: 64 << 10,
            });
            self.settle();
        }
    }

    fn flush(&mut self) -> bool {
        let failed = self.failed;
        self.submit(Request { volume: VolumeId(0), kind: RequestKind::Flush, offset: 0, len: 0 });
        self.settle();
        self.failed == failed
    }

    /// Checks what a power cut now would leave on the backing device.
    fn check_surviving(&self, surviving: &MemoryDevice) {
        let mut bytes = vec![0; VOLUME as usize];
        surviving.read_at(0, &mut bytes);
        for (unit, (byte, found)) in self.model.iter().zip(bytes.chunks(UNIT as usize)).enumerate()
        {
            assert!(
                byte.is_none_or(|byte| found.iter().all(|found| *found == byte)),
                "unit {unit}: {byte:?}"
            );
        }
    }
}

#[test]
fn random_requests_over_memory_read_what_was_written() {
    for setup in setups() {
        let (cache, backing) = (MemoryDevice::new(CACHE), MemoryDevice::new(VOLUME));
        let mut rig = Rig::new(setup, Box::new(cache), Box::new(backing), Pool::new(1 << 20));
        rig.random_requests(4_000);
        rig.read_all();
        assert_eq!(
            (rig.failed, rig.driver.top().device_errors(), rig.driver.backing_errors()),
            (0, 0, 0)
        );
        assert_eq!(rig.driver.top().stats().memory_hits > 0, setup.2.is_some());
    }
}

/// Groups of the cache device that hold anything but zeros.
fn groups_held(cache: &MemoryDevice, bytes: u64) -> u64 {
    let mut found = vec![0; bytes as usize];
    cache.read_at(0, &mut found);
    found.chunks(GROUP as usize).filter(|group| group.iter().any(|byte| *byte != 0)).count() as u64
}

#[test]
fn memory_follows_a_tier_that_becomes_larger_and_smaller() {
    for setup in setups() {
        let (mut cache, backing) = (MemoryDevice::new(CACHE), MemoryDevice::new(VOLUME));
        let device = Box::new(cache.clone());
        let mut rig = Rig::new(setup, device, Box::new(backing), Pool::new(1 << 20));
        let (mut largest, mut most_held) = (CACHE, 0);
        for bytes in [CACHE, 4 * CACHE, CACHE / 2, 2 * CACHE, 6 * CACHE, CACHE / 4] {
            largest = largest.max(bytes);
            cache.grow(largest).unwrap();
            cache.set_size(largest).unwrap();
            rig.random_requests(100);
            grow_device(rig.driver.top_mut(), largest).unwrap();
            resize_tier(rig.driver.top_mut(), bytes).unwrap();
            rig.random_requests(200);
            assert_eq!(rig.driver.top().cache().condition().bytes_over(), 0);
            let held = groups_held(&cache, largest);
            assert!(held <= bytes / GROUP, "{held} groups of {bytes} bytes");
            most_held = most_held.max(held);
            rig.read_all();
        }
        assert!(most_held > CACHE / GROUP || setup.1 == WriteMode::Pass, "{most_held}");
        assert!(grow_device(rig.driver.top_mut(), 8 * CACHE).is_err(), "there is no such memory");
        assert_eq!(rig.failed, 0);
    }
}

#[test]
fn random_requests_over_files_read_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    for setup in setups() {
        let pool = Pool::new(4 << 20);
        let ring = match Ring::new(256) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: no io_uring here: {error}"),
        };
        let open = |name: &str, bytes| {
            let options = FileOptions { create: true, size: Some(bytes), ..FileOptions::default() };
            let path = folder.path().join(format!("{name}{}", setup.0));
            FileDevice::open(&ring, &pool, path, options).map(Box::new).unwrap()
        };
        let (cache, backing) = (open("cache", CACHE), open("backing", VOLUME));
        let mut rig = Rig::new(setup, cache, backing, pool.clone());
        rig.ring = Some(ring.clone());
        rig.random_requests(600);
        rig.read_all();
        assert_eq!(rig.failed, 0);
    }
}

#[test]
fn random_requests_over_slow_devices_read_what_was_written() {
    for setup in setups() {
        let slow = |bytes, seed| {
            let medium = Medium::named("dram").expect("the medium is known");
            MediumDevice::new(MemoryDevice::new(bytes), medium, seed)
        };
        let (cache, backing) = (slow(CACHE, setup.0), slow(VOLUME, setup.0 + 9));
        let mut rig = Rig::new(setup, Box::new(cache), Box::new(backing), Pool::new(1 << 20));
        rig.random_requests(500);
        rig.read_all();
        assert_eq!(rig.failed, 0);
    }
}

#[test]
fn failing_devices_never_yield_wrong_data() {
    for seed in 0..24 {
        let (_, mode, memory) = setups().cycle().nth(seed as usize).unwrap();
        let setup = (seed, mode, memory);
        let rates = |fail| Rates { fail, delay: 0.2, ..Rates::default() };
        let plan = |fail, seed| FaultPlan::seeded(seed, rates(fail));
        let (cache, _) = FaultDevice::new(MemoryDevice::new(CACHE), plan(0.03, seed));
        let (backing, _) = FaultDevice::new(MemoryDevice::new(VOLUME), plan(0.01, seed + 99));
        let mut rig = Rig::new(setup, Box::new(cache), Box::new(backing), Pool::new(1 << 20));
        rig.random_requests(1_500);
        rig.read_all();
        assert!(rig.failed > 0 || seed % 4 != 0, "the devices did fail");
    }
}

/// After an answered flush the backing device holds every answered write, in every mode, whatever
/// the power does.
#[test]
fn what_was_answered_before_a_flush_survives_a_power_cut() {
    for seed in 0..24 {
        let (_, mode, memory) = setups().cycle().nth(seed as usize).unwrap();
        let setup = (seed, mode, memory);
        let surviving = MemoryDevice::new(VOLUME);
        let rates = Rates { delay: 0.2, ..Rates::default() };
        let (backing, power) = FaultDevice::new(surviving.clone(), FaultPlan::seeded(seed, rates));
        let cache = MemoryDevice::new(CACHE);
        let mut rig = Rig::new(setup, Box::new(cache), Box::new(backing), Pool::new(1 << 20));
        for _ in 0..4 {
            rig.random_requests(200);
            assert!(rig.flush());
            power.power_cut_keeping(seed);
            rig.driver.advance();
            rig.check_surviving(&surviving);
            power.power_on();
        }
        rig.read_all();
    }
}
