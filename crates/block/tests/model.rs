//! The block cache against plain bytes: random requests over several volumes, completed in random order, with
//! devices that fail at random.
//!
//! Every write fills its bytes with a stamp of its own. For each 512 bytes the model keeps the stamps that may be
//! there: those of the last writes answered, of writes under way, and of writes that failed (nobody knows whether
//! they happened). A read must return one of them, and when nothing is being written it settles which. When a flush
//! is answered the backing device itself must hold an allowed stamp everywhere.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use floe_block::{
    BlockCache, BlockSizes, BufferId, Config, DeviceId, Fault, Kind, OpId, Order, Request, RequestId, Span,
    VolumeId, WriteMode,
};
use floe_policy::Lru;
use proptest::prelude::*;

const UNIT: u64 = 512;
const SECTOR: u64 = 4096;
/// The second volume ends within a sector.
const VOLUMES: [u64; 2] = [600 << 10, (300 << 10) + 3 * UNIT];
const STEPS_PER_CASE: usize = 2_000; // on average
const CASES: u32 = 500; // of 2,000 steps each: a million

/// What the devices hold before anything is written, and what a zeroing leaves.
const ZERO: u8 = 0;
/// What must never be seen: the cache device before it is written, and the buffers of failed reads.
const POISON: u8 = 0xee;

#[derive(Debug, Clone)]
enum Step {
    Submit {
        volume: usize,
        kind: u8,
        at: u64,
        len: u64,
    },
    /// Completes one of the operations under way. It fails when `fails` is below the device's rate of faults, after
    /// `tear` units.
    Complete {
        which: usize,
        fails: u8,
        tear: u64,
    },
    Clean,
}

#[derive(Debug, Clone)]
struct Setup {
    sizes: &'static str,
    mode: WriteMode,
    groups: u64,
    shards: u64,
    /// Operations of 256 that fail.
    cache_faults: u8,
    backing_faults: u8,
}

fn setups() -> impl Strategy<Value = Setup> {
    let sizes =
        prop::sample::select(vec!["4KiB,8KiB,16KiB,32KiB", "4KiB,64KiB", "8KiB,16KiB", "16KiB", "4KiB"]);
    let modes =
        vec![WriteMode::Back, WriteMode::Back, WriteMode::Through, WriteMode::Around, WriteMode::Pass];
    let faults = || prop::sample::select(vec![0u8, 0, 8, 60]);
    let all = (sizes, prop::sample::select(modes), 1u64..12, 1u64..4, faults(), faults());
    all.prop_map(|(sizes, mode, groups, shards, cache_faults, backing_faults)| Setup {
        sizes,
        mode,
        groups,
        shards,
        cache_faults,
        backing_faults,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = prop_oneof![0..VOLUMES[0], (0..40u64).prop_map(|block| block * SECTOR), 0..(64u64 << 10)];
    let len = prop_oneof![
        4 => 1..=SECTOR,
        4 => (1..=8u64).prop_map(|sectors| sectors * SECTOR),
        1 => 1..=(150u64 << 10),
        1 => 0..2u64
    ];
    let submit = (0..VOLUMES.len(), 0u8..20, place, len);
    let submit = submit.prop_map(|(volume, kind, at, len)| Step::Submit { volume, kind, at, len });
    let complete = (any::<usize>(), any::<u8>(), 0..40u64);
    let complete = complete.prop_map(|(which, fails, tear)| Step::Complete { which, fails, tear });
    prop::collection::vec(
        prop_oneof![10 => submit, 25 => complete, 1 => Just(Step::Clean)],
        1..2 * STEPS_PER_CASE,
    )
}

/// Something that changed or may have changed a unit.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    stamp: u8,
    /// A trim: the content may be anything.
    anything: bool,
    submitted: u64,
    answered: Option<u64>,
}

/// What may be in 512 bytes.
type Unit = Vec<Change>;

fn allows(unit: &Unit, byte: u8) -> bool {
    unit.iter().any(|change| change.anything || change.stamp == byte)
}

fn settled(stamp: u8) -> Unit {
    vec![Change { stamp, anything: false, submitted: 0, answered: Some(0) }]
}

struct Pending {
    request: Request,
    submitted: u64,
    answered: bool,
    /// What a read may return and what a flush may leave: as it was when they came, and what was written since.
    allowed: Vec<Unit>,
}

struct World {
    cache: BlockCache<Lru>,
    orders: Vec<Order>,
    under_way: Vec<(OpId, Order)>,
    devices: HashMap<DeviceId, Vec<u8>>,
    buffers: HashMap<BufferId, Vec<u8>>,
    requests: BTreeMap<u32, Pending>,
    units: Vec<Vec<Unit>>,
    now: u64,
    last_stamp: u8,
    setup: Setup,
}

fn units_of(request: &Request) -> Range<usize> {
    let first = request.offset / UNIT;
    let end = if request.len == 0 { first } else { (request.offset + request.len).div_ceil(UNIT) };
    first as usize..end as usize
}

impl World {
    fn new(setup: Setup) -> Self {
        let sizes: BlockSizes = setup.sizes.parse().unwrap();
        let cache_bytes = sizes.bytes(sizes.classes().last().unwrap()) * setup.groups * setup.shards;
        let config = Config { sizes, cache_bytes, mode: setup.mode, shards: Some(setup.shards) };
        let mut cache = BlockCache::new(config).unwrap();
        let mut devices = HashMap::from([(DeviceId::Cache, vec![POISON; cache_bytes as usize])]);
        let mut units = Vec::new();
        for bytes in VOLUMES {
            devices.insert(DeviceId::Backing(cache.add_volume(bytes)), vec![ZERO; bytes as usize]);
            units.push(vec![settled(ZERO); bytes.div_ceil(UNIT) as usize]);
        }
        Self {
            cache,
            orders: Vec::new(),
            under_way: Vec::new(),
            devices,
            buffers: HashMap::new(),
            requests: BTreeMap::new(),
            units,
            now: 1,
            last_stamp: 0,
            setup,
        }
    }

    fn submit(&mut self, volume: usize, kind: u8, at: u64, len: u64) {
        let id = (0..).find(|id| !self.requests.contains_key(id)).unwrap();
        self.now += 1;
        let size = VOLUMES[volume];
        let beyond_the_end = kind == 19;
        let kind = match kind {
            8..=12 => Kind::Write { durable: false },
            13 => Kind::Write { durable: true },
            14 => Kind::Zero { durable: len % 2 == 0, may_unmap: at % 2 == 0 },
            15 => Kind::Trim,
            16 | 17 => Kind::Flush,
            _ => Kind::Read,
        };
        let (mut offset, mut len) = (at % size, len);
        if kind != Kind::Read {
            // Content is checked by units, so what changes it is made of units.
            (offset, len) = (offset / UNIT * UNIT, len.next_multiple_of(UNIT));
        }
        len = len.min(size - offset);
        if beyond_the_end {
            len = len.max(2);
            offset = size - len / 2;
        }
        let request = Request { volume: VolumeId(volume as u16), kind, offset, len };
        let skew = (offset % SECTOR) as usize;
        let mut buffer = vec![0; (skew as u64 + len).next_multiple_of(SECTOR) as usize];
        let mut allowed = Vec::new();
        match kind {
            _ if beyond_the_end => {}
            Kind::Read => allowed = self.units[volume][units_of(&request)].to_vec(),
            Kind::Flush => allowed = self.units[volume].clone(),
            Kind::Write { .. } => {
                self.last_stamp = if self.last_stamp == POISON - 1 { 1 } else { self.last_stamp + 1 };
                buffer[skew..skew + len as usize].fill(self.last_stamp);
                self.begin_change(&request, self.last_stamp);
            }
            Kind::Zero { .. } | Kind::Trim => self.begin_change(&request, ZERO),
        }
        self.buffers.insert(BufferId::Request(RequestId(id)), buffer);
        self.requests.insert(id, Pending { request, submitted: self.now, answered: false, allowed });
        self.cache.submit(RequestId(id), request, &mut self.orders);
        self.carry_out();
    }

    /// From now on the stamp may be there, also for reads and flushes under way.
    fn begin_change(&mut self, request: &Request, stamp: u8) {
        let anything = request.kind == Kind::Trim;
        let change = Change { stamp, anything, submitted: self.now, answered: None };
        let range = units_of(request);
        for unit in &mut self.units[request.volume.0 as usize][range.clone()] {
            unit.push(change.clone());
        }
        for pending in self.requests.values_mut().filter(|pending| pending.request.volume == request.volume) {
            let first =
                if pending.request.kind == Kind::Flush { 0 } else { units_of(&pending.request).start };
            for (at, allowed) in (first..).zip(&mut pending.allowed) {
                if range.contains(&at) {
                    allowed.push(change.clone());
                }
            }
        }
    }

    /// A change has been answered. If it succeeded, what had been answered before it came is gone.
    fn end_change(&mut self, request: &Request, submitted: u64, ok: bool) {
        for unit in &mut self.units[request.volume.0 as usize][units_of(request)] {
            for change in unit.iter_mut().filter(|change| change.submitted == submitted) {
                change.answered = Some(self.now);
            }
            if ok && request.kind != Kind::Trim {
                unit.retain(|change| change.answered.is_none_or(|at| at >= submitted));
            }
        }
    }

    fn carry_out(&mut self) {
        while !self.orders.is_empty() {
            for order in std::mem::take(&mut self.orders) {
                match order {
                    Order::Read { op, .. }
                    | Order::Write { op, .. }
                    | Order::Zero { op, .. }
                    | Order::Discard { op, .. }
                    | Order::Flush { op, .. } => self.under_way.push((op, order)),
                    Order::Allocate { scratch, len } => {
                        let before =
                            self.buffers.insert(BufferId::Scratch(scratch), vec![POISON; len as usize]);
                        assert!(before.is_none(), "a scratch buffer is made twice");
                    }
                    Order::Copy { from, to } => {
                        let bytes = self.bytes(&from).to_vec();
                        self.bytes_mut(&to).copy_from_slice(&bytes);
                    }
                    Order::Clear { span } => self.bytes_mut(&span).fill(0),
                    Order::Answer { request, result } => self.answered(request, result),
                    Order::Release { buffer } => {
                        self.buffers.remove(&buffer).expect("only buffers that are there are released");
                        if let BufferId::Request(request) = buffer {
                            assert!(self.requests.remove(&request.0).unwrap().answered);
                        }
                    }
                }
            }
        }
    }

    fn bytes(&self, span: &Span) -> &[u8] {
        &self.buffers[&span.buffer][span.offset as usize..(span.offset + span.len) as usize]
    }

    fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        let buffer = self.buffers.get_mut(&span.buffer).expect("the buffer is there");
        &mut buffer[span.offset as usize..(span.offset + span.len) as usize]
    }

    fn complete(&mut self, which: usize, fails: u8, tear: u64) {
        if self.under_way.is_empty() {
            return;
        }
        let (op, order) = self.under_way.swap_remove(which % self.under_way.len());
        let (device, offset, len) = match order {
            Order::Read { device, offset, to: span, .. }
            | Order::Write { device, offset, from: span, .. } => {
                assert!([offset, span.offset, span.len].iter().all(|n| n % SECTOR == 0), "{order:?}");
                (device, offset, span.len)
            }
            Order::Zero { device, offset, len, .. } | Order::Discard { device, offset, len, .. } => {
                (device, offset, len)
            }
            Order::Flush { device, .. } => (device, 0, 0),
            _ => unreachable!("only operations are under way"),
        };
        let cached = device == DeviceId::Cache;
        let failed = fails < if cached { self.setup.cache_faults } else { self.setup.backing_faults };
        let end = self.devices[&device].len() as u64;
        assert!(
            offset < end && offset + len <= end.next_multiple_of(SECTOR),
            "{order:?} is not on the device"
        );
        let there = len.min(end - offset).min(if failed { tear * UNIT } else { u64::MAX });
        let there = offset as usize..(offset + there) as usize;
        match order {
            Order::Read { to, .. } => {
                let bytes = self.devices[&device][there].to_vec();
                let into = self.bytes_mut(&to);
                into.fill(if failed { POISON } else { 0 });
                into[..bytes.len()].copy_from_slice(&bytes);
            }
            Order::Write { from, .. } => {
                let bytes = self.bytes(&from)[..there.len()].to_vec();
                self.device(device)[there].copy_from_slice(&bytes);
            }
            Order::Zero { .. } => self.device(device)[there].fill(ZERO),
            Order::Discard { .. } if tear % 2 == 0 => self.device(device)[there].fill(ZERO),
            _ => {} // a discard may do nothing
        }
        self.now += 1;
        self.cache.completed(op, if failed { Err(Fault::Io) } else { Ok(()) }, &mut self.orders);
        self.carry_out();
    }

    fn device(&mut self, device: DeviceId) -> &mut [u8] {
        self.devices.get_mut(&device).expect("the device is there")
    }

    fn answered(&mut self, id: RequestId, result: Result<(), Fault>) {
        self.now += 1;
        let pending = self.requests.get_mut(&id.0).expect("only requests under way are answered");
        assert!(!std::mem::replace(&mut pending.answered, true), "a request is answered twice");
        let (request, submitted) = (pending.request, pending.submitted);
        let volume = request.volume.0 as usize;
        if request.kind != Kind::Flush && request.offset + request.len > VOLUMES[volume] {
            return assert_eq!(result, Err(Fault::OutOfRange));
        }
        let allowed = std::mem::take(&mut pending.allowed);
        let no_faults = self.setup.cache_faults == 0 && self.setup.backing_faults == 0;
        assert!(result.is_ok() || !no_faults, "{request:?} failed though no device did");
        match request.kind {
            Kind::Read if result.is_ok() => self.check_read(id, &request, &allowed),
            Kind::Flush if result.is_ok() => self.check_flush(volume, &allowed),
            Kind::Read | Kind::Flush => {}
            _ => self.end_change(&request, submitted, result.is_ok()),
        }
    }

    fn check_read(&mut self, id: RequestId, request: &Request, allowed: &[Unit]) {
        let skew = (request.offset % SECTOR) as usize;
        let bytes = self.buffers[&BufferId::Request(id)][skew..skew + request.len as usize].to_vec();
        for (unit, allowed) in (request.offset / UNIT..).zip(allowed) {
            let start = (unit * UNIT).max(request.offset) - request.offset;
            let end = ((unit + 1) * UNIT).min(request.offset + request.len) - request.offset;
            let part = &bytes[start as usize..end as usize];
            assert!(part.iter().all(|byte| *byte == part[0]), "unit {unit} is torn");
            assert!(
                allows(allowed, part[0]),
                "unit {unit} reads {} of {request:?}, not {allowed:?}",
                part[0]
            );
            // With nothing under way meanwhile, what has been read once must be read again.
            let now = &mut self.units[request.volume.0 as usize][unit as usize];
            if now == allowed && now.iter().all(|change| change.answered.is_some()) {
                *now = settled(part[0]);
            }
        }
    }

    fn check_flush(&self, volume: usize, allowed: &[Unit]) {
        let bytes = &self.devices[&DeviceId::Backing(VolumeId(volume as u16))];
        for (unit, allowed) in allowed.iter().enumerate() {
            let byte = bytes[unit * UNIT as usize];
            assert!(
                allows(allowed, byte),
                "after a flush unit {unit} of the backing holds {byte}, not {allowed:?}"
            );
        }
    }

    fn complete_all(&mut self) {
        while !self.under_way.is_empty() {
            self.complete(0, u8::MAX, 0);
        }
        assert!(self.cache.is_idle(), "nothing is under way, yet something is waited for");
        assert!(self.requests.is_empty() && self.buffers.is_empty(), "buffers are left behind");
        self.cache.check();
    }

    /// Lets everything end well, and reads all volumes.
    fn end(mut self) {
        self.complete_all();
        for (volume, bytes) in VOLUMES.into_iter().enumerate() {
            for at in (0..bytes).step_by(64 << 10) {
                self.submit(volume, 0, at, 64 << 10);
                self.complete_all();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn a_million_random_operations_read_what_was_written(setup in setups(), steps in steps()) {
        let mut world = World::new(setup);
        for step in steps {
            match step {
                Step::Submit { volume, kind, at, len } => world.submit(volume, kind, at, len),
                Step::Complete { which, fails, tear } => world.complete(which, fails, tear),
                Step::Clean => {
                    world.cache.clean(&mut world.orders);
                    world.carry_out();
                }
            }
        }
        world.end();
    }
}
