//! Tiers that stand on each other, against plain bytes: two and three of them, in every mix of
//! write modes, with delays, failures and power cuts.

use std::time::{Duration, Instant};

use floe_block::{
    AdmissionConfig, Answer, BlockCache, Config, Driver, Evict, Fault, Memory, Request, RequestId,
    RequestKind, VolumeError, VolumeId, WriteMode,
};
use floe_device::{Buffer, Device, MemoryDevice, Pool};
use floe_testkit::faults::{FaultDevice, FaultPlan, Rates};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const UNIT: u64 = 512;
/// The last sector is cut.
const VOLUME: u64 = (1 << 20) + 3 * UNIT;
const SECTOR: u64 = 4096;
const MODES: [WriteMode; 5] =
    [WriteMode::Pass, WriteMode::Through, WriteMode::Around, WriteMode::Back, WriteMode::Only];

/// The volume's ids in the tiers; tiers need not agree on them.
const IDS: [VolumeId; 3] = [VolumeId(1), VolumeId(0), VolumeId(2)];
const ID: VolumeId = IDS[0];

/// A tier: when it writes, how large it is, its blocks, and how often its device fails.
#[derive(Debug, Clone)]
struct Tier {
    mode: WriteMode,
    cache_bytes: u64,
    sizes: &'static str,
    fail: f64,
}

/// Two or three tiers, some of them much too small.
fn random_tiers(rng: &mut SmallRng) -> Vec<Tier> {
    let sizes = ["4KiB,16KiB,32KiB", "4KiB", "8KiB,32KiB"];
    let mut tier = || Tier {
        mode: *MODES.choose(rng).unwrap(),
        cache_bytes: *[64 << 10, 256 << 10, 512 << 10].choose(rng).unwrap(),
        sizes: sizes.choose(rng).unwrap(),
        fail: 0.0,
    };
    let mut tiers = vec![tier(), tier(), tier()];
    tiers.truncate(rng.random_range(2..=3));
    tiers
}

fn device(bytes: u64, fail: f64, seed: u64) -> Box<dyn Device> {
    let rates = Rates { fail, delay: 0.2, ..Rates::default() };
    Box::new(FaultDevice::new(MemoryDevice::new(bytes), FaultPlan::seeded(seed, rates)).0)
}

/// A tier by itself.
fn alone(tier: &Tier, pool: &Pool, seed: u64) -> floe_block::Tier {
    let config = Config {
        adapts_fetches: false,
        sizes: tier.sizes.parse().unwrap(),
        cache_bytes: tier.cache_bytes,
        mode: tier.mode,
        shards: Some(2),
        gate: AdmissionConfig::default(),
        evict: Evict::default(),
        memory: Memory::None,
        kept: false,
    };
    let device = device(tier.cache_bytes, tier.fail, seed);
    floe_block::Tier::new(BlockCache::new(config).unwrap(), device, pool.clone())
}

/// A driver for each of the tiers, the lowest on the backing device of a volume.
fn stack(tiers: &[Tier], backing: Box<dyn Device>, seed: u64) -> Driver {
    let pool = Pool::new(1 << 20);
    let one = |(at, tier): (usize, &Tier)| alone(tier, &pool, 10 * seed + at as u64);
    let mut from_below = tiers.iter().enumerate().rev().map(one);
    let lowest = Driver::new(from_below.next().unwrap());
    let mut driver = from_below.fold(lowest, |lower, upper| Driver::on(upper, lower));
    driver.add_volume_in(&IDS[..tiers.len()], "test", backing);
    driver
}

struct Pending {
    id: RequestId,
    request: Request,
    buffer: Buffer,
}

/// The tiers, and the bytes their volume must hold. Requests under way at once never overlap, so
/// what each must find is plain; a unit that a failed write may or may not have changed is not
/// known until it is read.
struct Rig {
    driver: Driver,
    model: Vec<Option<u8>>,
    pending: Vec<Pending>,
    answers: Vec<Answer>,
    rng: SmallRng,
    failed: u64,
    what: String,
}

fn whole(kind: RequestKind) -> Request {
    Request { volume: ID, kind, offset: 0, len: 0 }
}

impl Rig {
    fn new(tiers: &[Tier], backing: Box<dyn Device>, seed: u64) -> Self {
        Self {
            driver: stack(tiers, backing, seed),
            model: vec![Some(0); (VOLUME / UNIT) as usize],
            pending: Vec::new(),
            answers: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            failed: 0,
            what: format!("seed {seed}, {tiers:?}"),
        }
    }

    fn submit(&mut self, request: Request) {
        let buffer = self.driver.buffer(&request);
        if let RequestKind::Write { .. } = request.kind {
            let stamp = self.rng.random_range(1..=255u8);
            Driver::payload(&request, &buffer).copy_from(&vec![stamp; request.len as usize]);
        }
        let id = self.driver.submit(request, Some(buffer.clone()));
        self.pending.push(Pending { id, request, buffer });
    }

    fn check_read(&mut self, request: &Request, buffer: &Buffer) {
        let units =
            (request.offset / UNIT) as usize..((request.offset + request.len) / UNIT) as usize;
        let bytes = Driver::payload(request, buffer).to_vec();
        for (unit, found) in self.model[units].iter_mut().zip(bytes.chunks(UNIT as usize)) {
            assert!(found.iter().all(|byte| *byte == found[0]), "{}", self.what);
            let known = unit.is_none_or(|byte| byte == found[0]);
            assert!(known, "{request:?}: {unit:?}, not {}: {}", found[0], self.what);
            *unit = Some(found[0]);
        }
    }

    /// Moves everything that can move, and takes in answers.
    fn turn(&mut self) {
        self.driver.advance();
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
            assert!(
                Instant::now() < patience,
                "{} requests hang: {}",
                self.pending.len(),
                self.what
            );
        }
    }

    fn random_requests(&mut self, requests: usize) {
        self.begin_requests(requests);
        self.settle();
    }

    fn begin_requests(&mut self, requests: usize) {
        for _ in 0..requests {
            let kind = match self.rng.random_range(0..40) {
                0 => RequestKind::Flush,
                1 => RequestKind::Drain,
                2 | 3 => RequestKind::Zero {
                    durable: self.rng.random(),
                    may_unmap: true,
                    fast: self.rng.random(),
                },
                4 | 5 => RequestKind::Trim,
                6 | 7 => RequestKind::Write { durable: true },
                8 => RequestKind::Prefetch,
                9 => RequestKind::DirtyMap,
                10 => RequestKind::Warm,
                11 => RequestKind::Evict,
                12..22 => RequestKind::Write { durable: false },
                _ => RequestKind::Read,
            };
            let len =
                UNIT * if self.rng.random_bool(0.1) { 300 } else { self.rng.random_range(1..40) };
            let last = VOLUME - len;
            let offset = match self.rng.random_bool(0.05) {
                true => last,
                false => UNIT * self.rng.random_range(0..=last / UNIT),
            };
            let request = match kind {
                RequestKind::Flush | RequestKind::Drain => whole(kind),
                _ => Request { volume: ID, kind, offset, len },
            };
            let overlaps = |other: &Pending| {
                other.request.offset < offset + request.len
                    && offset < other.request.offset + other.request.len
            };
            while self.pending.iter().any(overlaps) {
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
    }

    fn turn_until(&mut self, what: &str, happened: impl Fn(&Driver) -> bool) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !happened(&self.driver) {
            self.turn();
            assert!(Instant::now() < patience, "{what} does not happen: {}", self.what);
        }
    }

    /// Shuts the I/O gate below a tier.
    fn shut(&mut self, above: usize) {
        self.driver.tier_mut(above).unwrap().io_gate_mut().shut();
        self.turn_until("quiet", |driver| driver.tiers().nth(above).unwrap().io_gate().is_quiet());
    }

    /// Puts a tier below the one with this number.
    fn put_below(&mut self, above: usize, tier: &Tier, seed: u64) {
        let newcomer = alone(tier, &Pool::new(1 << 20), seed);
        self.shut(above);
        let id = self.driver.volume_ids(ID)[above];
        let new = VolumeId(self.rng.random_range(0..4));
        self.driver.put_below(above, newcomer, &[(id, new)]);
        self.driver.tier_mut(above).unwrap().io_gate_mut().open();
    }

    /// Has the tier below the one with this number bring down what it has: whether it could.
    fn drain_below(&mut self, above: usize) -> bool {
        let id = self.driver.volume_ids(ID)[above];
        self.driver.drain_below(above, id, 7);
        let mut drained = Vec::new();
        let patience = Instant::now() + Duration::from_secs(60);
        while drained.is_empty() {
            self.turn();
            self.driver.tier_mut(above).unwrap().io_gate_mut().take_drained(&mut drained);
            assert!(Instant::now() < patience, "a drain hangs: {}", self.what);
        }
        assert_eq!((drained.len(), drained[0].0), (1, 7));
        drained[0].1.is_ok()
    }

    /// Takes the tier below the one with this number out, unless it cannot bring down what only it
    /// has.
    fn take_below(&mut self, above: usize) -> bool {
        let mut goes = self.drain_below(above);
        self.shut(above);
        goes &= self.drain_below(above);
        let below = move |driver: &Driver| driver.tiers().nth(above + 1).unwrap().is_at_rest();
        self.turn_until("rest", below);
        let tier = self.driver.tier_mut(above + 1).unwrap();
        goes &= !tier.cache().condition().has_dirty_data();
        if goes {
            self.driver.take_below(above);
        }
        self.driver.tier_mut(above).unwrap().io_gate_mut().open();
        goes
    }

    /// Puts tiers in and takes them out while requests are under way; how often a tier could not
    /// go.
    fn restack(&mut self, times: usize, fail: f64) -> usize {
        let mut stayed = 0;
        for time in 0..times {
            self.begin_requests(60);
            let tiers = self.driver.tiers().count();
            let above = self.rng.random_range(0..tiers);
            if tiers < 2 || above + 1 == tiers || tiers < 4 && self.rng.random() {
                let tier = Tier { fail, ..random_tiers(&mut self.rng)[0].clone() };
                self.put_below(above, &tier, 1000 + time as u64);
            } else {
                stayed += usize::from(!self.take_below(above));
            }
            self.begin_requests(20);
        }
        self.settle();
        stayed
    }

    fn read_all(&mut self) {
        for offset in (0..VOLUME).step_by(64 << 10) {
            let len = (VOLUME - offset).min(64 << 10);
            self.submit(Request { volume: ID, kind: RequestKind::Read, offset, len });
            self.settle();
        }
    }

    /// Whether it went well.
    fn ask(&mut self, kind: RequestKind) -> bool {
        let failed = self.failed;
        self.submit(whole(kind));
        self.settle();
        self.failed == failed
    }

    fn dirty_bytes(&self) -> Vec<u64> {
        self.driver.tiers().map(|tier| tier.stats().dirty_bytes).collect()
    }

    /// Checks what is on the backing device.
    fn check_below(&self, backing: &MemoryDevice) {
        let mut bytes = vec![0; VOLUME as usize];
        backing.read_at(0, &mut bytes);
        for (unit, (byte, found)) in self.model.iter().zip(bytes.chunks(UNIT as usize)).enumerate()
        {
            let known = byte.is_none_or(|byte| found.iter().all(|found| *found == byte));
            assert!(known, "unit {unit}: {byte:?}, not {}: {}", found[0], self.what);
        }
    }
}

#[test]
fn every_read_returns_what_was_written_last_and_a_drain_leaves_it_on_the_backing_device() {
    for seed in 0..48 {
        let tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        let backing = MemoryDevice::new(VOLUME);
        let mut rig = Rig::new(&tiers, Box::new(backing.clone()), seed);
        for _ in 0..3 {
            rig.random_requests(400);
            rig.read_all();
            assert!(rig.ask(RequestKind::Drain));
            assert_eq!(rig.dirty_bytes(), vec![0; tiers.len()], "{}", rig.what);
            rig.check_below(&backing);
        }
        assert_eq!(
            (rig.failed, rig.driver.top().device_errors(), rig.driver.backing_errors()),
            (0, 0, 0),
            "{}",
            rig.what
        );
        rig.driver.tiers().for_each(|tier| tier.cache().check());
    }
}

/// After an answered flush the backing device holds every answered write, whatever the power does:
/// all tiers end with the program.
#[test]
fn what_was_answered_before_a_flush_survives_a_power_cut() {
    for seed in 100..132 {
        let tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        let surviving = MemoryDevice::new(VOLUME);
        let rates = Rates { delay: 0.2, ..Rates::default() };
        let (backing, power) = FaultDevice::new(surviving.clone(), FaultPlan::seeded(seed, rates));
        let mut rig = Rig::new(&tiers, Box::new(backing), seed);
        for _ in 0..3 {
            rig.random_requests(150);
            assert!(rig.ask(RequestKind::Flush));
            power.power_cut_keeping(seed);
            rig.driver.advance();
            rig.check_below(&surviving);
            power.power_on();
        }
        rig.read_all();
    }
}

/// A durable write is on the backing device once it is answered, without a flush.
#[test]
fn a_durable_write_reaches_through_all_tiers() {
    for seed in 200..208 {
        let mut tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        tiers.iter_mut().for_each(|tier| tier.mode = WriteMode::Back);
        let surviving = MemoryDevice::new(VOLUME);
        let (backing, power) =
            FaultDevice::new(surviving.clone(), FaultPlan::seeded(seed, Rates::default()));
        let mut rig = Rig::new(&tiers, Box::new(backing), seed);
        let durable = Request {
            volume: ID,
            kind: RequestKind::Write { durable: true },
            offset: 700 * UNIT,
            len: 21 * UNIT,
        };
        rig.submit(durable);
        rig.settle();
        power.power_cut();
        rig.driver.advance();
        rig.check_below(&surviving);
    }
}

#[test]
fn tiers_below_that_fail_never_yield_wrong_data() {
    let mut failed = 0;
    for seed in 300..332 {
        let mut tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        tiers[1..].iter_mut().for_each(|tier| tier.fail = 0.03);
        let mut rig = Rig::new(&tiers, device(VOLUME, 0.002, seed), seed);
        rig.random_requests(800);
        rig.read_all();
        failed += rig.failed;
    }
    assert!(failed > 0, "the devices did fail");
}

#[test]
fn tiers_come_and_go_under_requests_and_every_read_returns_what_was_written_last() {
    for seed in 400..432 {
        let tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        let memory = MemoryDevice::new(VOLUME);
        let rates = Rates { delay: 0.2, ..Rates::default() };
        let (backing, _) = FaultDevice::new(memory.clone(), FaultPlan::seeded(seed, rates));
        let mut rig = Rig::new(&tiers, Box::new(backing), seed);
        for _ in 0..3 {
            assert_eq!(rig.restack(10, 0.0), 0, "{}", rig.what);
            rig.read_all();
            assert!(rig.ask(RequestKind::Drain));
            assert!(rig.dirty_bytes().iter().all(|bytes| *bytes == 0), "{}", rig.what);
            rig.check_below(&memory);
        }
        assert_eq!(
            (rig.failed, rig.driver.top().device_errors(), rig.driver.backing_errors()),
            (0, 0, 0),
            "{}",
            rig.what
        );
        rig.driver.tiers().for_each(|tier| tier.cache().check());
    }
}

#[test]
fn tiers_that_fail_stay_with_what_only_they_have() {
    let mut stayed = 0;
    for seed in 500..532 {
        let tiers = random_tiers(&mut SmallRng::seed_from_u64(seed));
        let mut rig = Rig::new(&tiers, device(VOLUME, 0.002, seed), seed);
        stayed += rig.restack(24, 0.03);
        rig.read_all();
    }
    assert!(stayed > 0, "some could not go");
}

#[test]
fn the_map_of_dirty_sectors_has_what_each_tier_has() {
    let tier = |mode, cache_bytes| Tier { mode, cache_bytes, sizes: "4KiB", fail: 0.0 };
    let tiers = [
        tier(WriteMode::Back, 256 << 10),
        tier(WriteMode::Through, 256 << 10),
        tier(WriteMode::Back, 256 << 10),
    ];
    let mut rig = Rig::new(&tiers, device(VOLUME, 0.0, 1), 1);
    let write = |sector: u64| Request {
        volume: ID,
        kind: RequestKind::Write { durable: false },
        offset: sector * SECTOR,
        len: SECTOR,
    };
    // Two are cleaned out of the first tier, through the second, into the third; one stays in the
    // first.
    rig.submit(write(3));
    rig.submit(write(5));
    rig.settle();
    rig.driver.clean();
    rig.settle();
    rig.submit(write(6));
    rig.settle();
    assert_eq!(rig.dirty_bytes(), [SECTOR, 0, 2 * SECTOR]);
    let request =
        Request { volume: ID, kind: RequestKind::DirtyMap, offset: SECTOR, len: 7 * SECTOR };
    let buffer = rig.driver.buffer(&request);
    let id = rig.driver.submit(request, Some(buffer.clone()));
    rig.pending.push(Pending { id, request, buffer: buffer.clone() });
    rig.settle();
    assert_eq!(buffer.slice(0..7).to_vec(), [0, 0, 1, 0, 1, 1, 0]);
    // A drain empties them from the top.
    assert!(rig.ask(RequestKind::Drain));
    assert_eq!(rig.dirty_bytes(), [0, 0, 0]);
}

#[test]
fn a_lower_tier_serves_what_the_one_above_has_no_room_for() {
    let tier = |mode, cache_bytes| Tier { mode, cache_bytes, sizes: "4KiB", fail: 0.0 };
    let tiers = [tier(WriteMode::Through, 64 << 10), tier(WriteMode::Through, 2 << 20)];
    let mut rig = Rig::new(&tiers, device(VOLUME, 0.0, 1), 1);
    rig.read_all();
    let before: Vec<_> = rig.driver.tiers().map(|tier| tier.stats()).collect();
    assert_eq!(before[1].counters.backing_read_bytes, VOLUME.next_multiple_of(SECTOR));
    rig.read_all();
    let after: Vec<_> = rig.driver.tiers().map(|tier| tier.stats()).collect();
    assert_eq!(
        after[0].requests.read_hits, before[0].requests.read_hits,
        "the upper tier is too small"
    );
    assert!(after[0].counters.backing_read_bytes > before[0].counters.backing_read_bytes);
    assert_eq!(after[1].counters.backing_read_bytes, before[1].counters.backing_read_bytes);
    let all_hit = |stats: &floe_block::Stats| stats.requests.reads - stats.requests.read_hits;
    assert_eq!(all_hit(&after[1]), all_hit(&before[1]), "the second time the lower tier has all");
}

#[test]
fn a_volume_goes_tier_by_tier_and_its_ids_are_given_again() {
    let tier = Tier { mode: WriteMode::Back, cache_bytes: 256 << 10, sizes: "4KiB", fail: 0.0 };
    let mut driver = stack(&[tier.clone(), tier], device(VOLUME, 0.0, 1), 1);
    let backing = || Box::new(MemoryDevice::new(64 << 10));
    let other = driver.add_volume("other", backing());
    assert_eq!(other, VolumeId(0), "the lowest that is free in the upper tier");
    let ask = |driver: &mut Driver, kind, len| {
        let request = Request { volume: other, kind, offset: 0, len };
        let buffer = driver.buffer(&request);
        buffer.whole().copy_from(&vec![7; buffer.len()]);
        driver.submit(request, Some(buffer.clone()));
        let mut answers = Vec::new();
        while answers.is_empty() || !driver.is_idle() {
            driver.advance();
            driver.take_answers(&mut answers);
        }
        assert_eq!(answers[0].result, Ok(()));
        buffer.slice(0..1).to_vec()[0]
    };
    ask(&mut driver, RequestKind::Write { durable: false }, SECTOR);
    assert_eq!(driver.remove_volume(0, other, false), Err(VolumeError::Dirty(SECTOR)));
    driver.clean();
    ask(&mut driver, RequestKind::Read, SECTOR);
    assert_eq!(driver.remove_volume(0, other, false), Ok(()), "the tier below has it now");
    assert_eq!(driver.remove_volume(1, other, false), Err(VolumeError::Dirty(SECTOR)));
    assert_eq!(driver.remove_volume(1, other, true), Ok(()));
    assert_eq!(driver.add_volume("another", backing()), other);
    assert_eq!(ask(&mut driver, RequestKind::Read, SECTOR), 0, "nothing is left of the one before");
    ask(&mut driver, RequestKind::Write { durable: false }, SECTOR);
    ask(&mut driver, RequestKind::Drain, 0);
    assert_eq!(driver.remove_volume(0, other, false), Ok(()));
    assert_eq!(driver.remove_volume(1, other, false), Ok(()));
}
