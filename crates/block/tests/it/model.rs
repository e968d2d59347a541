//! The block cache against plain bytes: random requests over several volumes, completed in random
//! order, with devices that fail at random, one of them at times altogether, in one part or in
//! several that hear each other late; with a tier in memory that has copies, or holds writes, and
//! loses copies at random; with a share of hits that is shed, which changes; with an admission that
//! keeps out what it likes, and a policy that evicts, and fetches ahead, what it likes; with shares
//! of the volumes that change at random, and a cache that becomes larger and smaller at random.
//!
//! Every write fills its bytes with a stamp of its own. For each 512 bytes the model keeps the
//! stamps that may be there: those of the last writes answered, of writes under way, and of writes
//! that failed (nobody knows whether they happened). A read must return one of them, and when
//! nothing is being written it settles which. When a flush is answered, what the backing device
//! would keep in a power cut must be an allowed stamp everywhere; when a durable write is, in its
//! range.

use std::collections::HashMap;
use std::ops::Range;

use crate::common::{Answered, Bench, POISON, SECTOR, target};
use floe_block::{
    AdmissionConfig, BlockCache, BlockSizes, CacheShare, Config, DeviceId, Fault, Memory, Request,
    RequestId, RequestKind, VolumeError, VolumeId, WriteMode,
};
use proptest::prelude::*;

const UNIT: u64 = 512;
const UNITS_PER_SECTOR: usize = (SECTOR / UNIT) as usize;
/// The second volume ends within a sector.
const VOLUMES: [u64; 2] = [600 << 10, (300 << 10) + 3 * UNIT];
const STEPS_PER_CASE: usize = 3_000; // on average, a third of them deliveries
const CASES: u32 = 500; // of 2,000 other steps each: a million

/// What the devices hold before anything is written, and what a zeroing leaves.
const ZERO: u8 = 0;

#[derive(Debug, Clone)]
enum Step {
    Submit {
        volume: usize,
        kind: u8,
        at: u64,
        len: u64,
    },
    /// Completes one of the operations under way. It fails when `fails` is below the device's rate
    /// of faults, after `tear` units.
    Complete {
        which: usize,
        fails: u8,
        tear: u64,
    },
    /// Lets one part hear what another has said.
    Deliver {
        which: usize,
    },
    Clean,
    /// A page leaves the tier in memory.
    Evict {
        which: usize,
    },
    /// The cache device fails altogether from now on, or no longer does.
    CacheDead(bool),
    /// An operator gives the cache device up, or uses it again, perhaps without its clean content.
    Degrade,
    Restore {
        forget: bool,
    },
    /// A volume gets this share of the cache.
    Share {
        volume: usize,
        share: CacheShare,
    },
    /// The cache gets so many groups a shard; one that outlives the program at most as many as it
    /// was made with.
    Resize {
        groups: u64,
    },
    /// From now on this share of hits is read from the backing devices.
    Shed(f64),
    /// A volume is removed as soon as it is idle, and another of so many units gets its id.
    Replace {
        volume: usize,
        discard: bool,
        units: u64,
    },
    /// A volume grows by so many units, as soon as all parts let it.
    Grow {
        volume: usize,
        units: u64,
    },
}

#[derive(Debug, Clone)]
struct Setup {
    sizes: &'static str,
    mode: WriteMode,
    groups: u64,
    shards: u64,
    parts: usize,
    memory: Memory,
    admit: &'static str,
    evict: &'static str,
    /// Whether the cache is one that outlives the program.
    kept: bool,
    /// Operations of 256 that fail.
    cache_faults: u8,
    backing_faults: u8,
    zeroes_fast: bool,
}

impl Setup {
    /// The bytes of a cache with so many groups a shard.
    fn bytes_of(&self, groups: u64) -> u64 {
        let sizes: BlockSizes = self.sizes.parse().unwrap();
        sizes.bytes(sizes.classes().last().unwrap()) * groups * self.shards
    }
}

/// With windows so short that they do something in a case.
const ADMISSIONS: [&str; 15] = [
    "always",
    "always",
    "always",
    "never",
    "reads",
    "probability:p=0.5",
    "second-access",
    "obp:target=0.3:half-life=200",
    "obp:target=0.1:half-life=200:fill=0:invalidate=1",
    "duel",
    "fussy:popular=2:check=100:warm-up=100:patience=1",
    "fussy:popular=1:check=50:warm-up=1 + obp:target=0.5:half-life=100",
    "small-bypass:memory=100000",
    "until-full",
    "sequential:threshold=4 + probability:p=0.9",
];

const EVICTIONS: [&str; 14] = [
    "lru",
    "lru",
    "lru",
    "lru",
    "fifo",
    "s3-fifo",
    "sieve",
    "arc",
    "lfru",
    "sampled",
    "w-tinylfu",
    "lirs",
    "sarc",
    "sarc:threshold=2",
];

fn setups() -> impl Strategy<Value = Setup> {
    let sizes = prop::sample::select(vec![
        "4KiB,8KiB,16KiB,32KiB",
        "4KiB,64KiB",
        "8KiB,16KiB",
        "16KiB",
        "4KiB",
    ]);
    let modes = vec![
        WriteMode::Back,
        WriteMode::Back,
        WriteMode::Through,
        WriteMode::Around,
        WriteMode::Only,
        WriteMode::Pass,
    ];
    let memory = prop_oneof![
        Just(Memory::None),
        Just(Memory::Copies),
        prop::sample::select(vec![32u64, 100, 1000]).prop_map(|sectors| Memory::Holds { sectors })
    ];
    let faults = || prop::sample::select(vec![0u8, 0, 8, 60]);
    let all = (
        sizes,
        prop::sample::select(modes),
        1u64..12,
        1u64..5,
        1u64..4,
        memory,
        (prop::sample::select(ADMISSIONS.to_vec()), prop::sample::select(EVICTIONS.to_vec())),
        faults(),
        faults(),
        any::<(bool, bool)>(),
    );
    all.prop_map(
        |(
            sizes,
            mode,
            groups,
            shards,
            parts,
            memory,
            (admit, evict),
            cache_faults,
            backing_faults,
            flags,
        )| {
            let (zeroes_fast, kept) = flags;
            Setup {
                sizes,
                mode,
                groups,
                shards,
                parts: parts.min(shards) as usize,
                memory,
                admit,
                evict,
                kept,
                cache_faults,
                backing_faults,
                zeroes_fast,
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place =
        prop_oneof![0..VOLUMES[0], (0..40u64).prop_map(|block| block * SECTOR), 0..(64u64 << 10)];
    let len = prop_oneof![
        4 => 1..=SECTOR,
        4 => (1..=8u64).prop_map(|sectors| sectors * SECTOR),
        1 => 1..=(150u64 << 10),
        1 => 0..2u64
    ];
    let submit = (0..VOLUMES.len(), 0u8..22, place, len);
    let submit = submit.prop_map(|(volume, kind, at, len)| Step::Submit { volume, kind, at, len });
    let complete = (any::<usize>(), any::<u8>(), 0..40u64);
    let complete = complete.prop_map(|(which, fails, tear)| Step::Complete { which, fails, tear });
    let replace = (0..VOLUMES.len(), any::<bool>(), 1..1000u64);
    let replace =
        replace.prop_map(|(volume, discard, units)| Step::Replace { volume, discard, units });
    let grow =
        (0..VOLUMES.len(), 0..30u64).prop_map(|(volume, units)| Step::Grow { volume, units });
    let deliver = any::<usize>().prop_map(|which| Step::Deliver { which });
    let most = prop_oneof![Just(None), (0..24u64).prop_map(|sectors| Some(sectors * SECTOR))];
    let share = (0..VOLUMES.len(), 0..24u64, most).prop_map(|(volume, guaranteed, most)| {
        let share = CacheShare { guaranteed_bytes: guaranteed * SECTOR, most_bytes: most };
        Step::Share { volume, share }
    });
    prop::collection::vec(
        prop_oneof![
            400 => submit,
            1000 => complete,
            800 => deliver,
            40 => Just(Step::Clean),
            300 => any::<usize>().prop_map(|which| Step::Evict { which }),
            2 => Just(Step::CacheDead(true)),
            4 => Just(Step::CacheDead(false)),
            1 => Just(Step::Degrade),
            4 => any::<bool>().prop_map(|forget| Step::Restore { forget }),
            4 => prop::sample::select(vec![0.0, 0.3, 1.0]).prop_map(Step::Shed),
            6 => share,
            6 => (1..16u64).prop_map(|groups| Step::Resize { groups }),
            2 => replace,
            4 => grow,
        ],
        1..2 * STEPS_PER_CASE,
    )
}

/// Something that changed or may have changed a unit.
#[derive(Debug, Clone)]
struct Change {
    stamp: u8,
    /// A trim: the content may be anything.
    anything: bool,
    submitted: u64,
    answered: Option<u64>,
    /// When a later change has certainly replaced it: requests that came after that must not see
    /// it.
    gone: Option<u64>,
}

/// What may be in 512 bytes.
type Unit = Vec<Change>;

/// What a request that came at a moment may find.
fn allowed(unit: &Unit, since: u64) -> impl Iterator<Item = &Change> {
    unit.iter().filter(move |change| change.gone.is_none_or(|gone| gone > since))
}

fn allows(unit: &Unit, since: u64, byte: u8) -> bool {
    allowed(unit, since).any(|change| change.anything || change.stamp == byte)
}

fn settled(stamp: u8) -> Change {
    Change { stamp, anything: false, submitted: 0, answered: Some(0), gone: None }
}

struct Pending {
    request: Request,
    submitted: u64,
    answered: bool,
    beyond_the_end: bool,
}

struct World {
    bench: Bench,
    requests: HashMap<RequestId, Pending>,
    units: Vec<Vec<Unit>>,
    last_stamp: u8,
    setup: Setup,
    cache_dead: bool,
    cache_has_died: bool,
    /// In bytes, as clients know it.
    sizes: [u64; VOLUMES.len()],
    /// What some parts may know already: the size a volume grows to.
    growing: [Option<u64>; VOLUMES.len()],
    /// Whether dirty data is to be discarded, and the size of the volume that comes instead.
    leaving: [Option<(bool, u64)>; VOLUMES.len()],
}

fn units_of(request: &Request) -> Range<usize> {
    let first = request.offset / UNIT;
    let end = if request.len == 0 { first } else { (request.offset + request.len).div_ceil(UNIT) };
    first as usize..end as usize
}

impl World {
    fn new(setup: Setup) -> Self {
        let sizes: BlockSizes = setup.sizes.parse().unwrap();
        let cache_bytes = setup.bytes_of(setup.groups);
        let config = Config {
            sizes,
            cache_bytes,
            adapts_fetches: setup.groups.is_multiple_of(2),
            mode: setup.mode,
            gate: AdmissionConfig::new(setup.admit.parse().unwrap()),
            evict: setup.evict.parse().unwrap(),
            shards: Some(setup.shards),
            memory: setup.memory,
            kept: setup.kept,
        };
        let mut bench = Bench::in_parts(config, &VOLUMES, setup.parts);
        if setup.groups.is_multiple_of(3) {
            bench.each_part(|part| part.limit_dirty(setup.shards * 2 * SECTOR));
        }
        bench.keep_log = false;
        bench.zeroes_fast = setup.zeroes_fast;
        let units = VOLUMES.map(|bytes| vec![vec![settled(ZERO)]; bytes.div_ceil(UNIT) as usize]);
        Self {
            bench,
            requests: HashMap::new(),
            units: units.into(),
            last_stamp: 0,
            setup,
            cache_dead: false,
            cache_has_died: false,
            sizes: VOLUMES,
            growing: [None; VOLUMES.len()],
            leaving: [None; VOLUMES.len()],
        }
    }

    fn submit(&mut self, volume: usize, kind: u8, at: u64, len: u64) {
        let size = self.sizes[volume];
        let beyond_the_end = kind == 19;
        if self.leaving[volume].is_some() || beyond_the_end && self.growing[volume].is_some() {
            return;
        }
        let kind = match kind {
            8..=12 => RequestKind::Write { durable: false },
            13 => RequestKind::Write { durable: true },
            14 => RequestKind::Zero {
                durable: len.is_multiple_of(2),
                may_unmap: at.is_multiple_of(2),
                fast: at.is_multiple_of(3),
            },
            15 => RequestKind::Trim,
            16 => RequestKind::Flush,
            17 => RequestKind::Drain,
            18 => RequestKind::Prefetch,
            19 => RequestKind::Warm,
            20 => RequestKind::DirtyMap,
            21 => RequestKind::Evict,
            _ => RequestKind::Read,
        };
        let (mut offset, mut len) = (at % size, len);
        if kind != RequestKind::Read {
            // Content is checked by units, so what changes it is made of units.
            (offset, len) = (offset / UNIT * UNIT, len.next_multiple_of(UNIT));
        }
        len = len.min(size - offset);
        if beyond_the_end {
            len = len.max(2);
            offset = size - len / 2;
        }
        let request = Request { volume: VolumeId(volume as u16), kind, offset, len };
        let submitted = self.bench.tick();
        match kind {
            RequestKind::Write { .. } => {
                self.last_stamp =
                    if self.last_stamp == POISON - 1 { 1 } else { self.last_stamp + 1 };
                self.begin_change(&request, submitted, self.last_stamp);
            }
            RequestKind::Zero { .. } | RequestKind::Trim => {
                self.begin_change(&request, submitted, ZERO)
            }
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Drain
            | RequestKind::Prefetch
            | RequestKind::Warm
            | RequestKind::Evict
            | RequestKind::DirtyMap => {}
        }
        let id = self.bench.submit(request, self.last_stamp);
        self.requests.insert(id, Pending { request, submitted, answered: false, beyond_the_end });
        self.take_answers();
    }

    /// From now on the stamp may be there.
    fn begin_change(&mut self, request: &Request, submitted: u64, stamp: u8) {
        let oldest =
            self.requests.values().map(|pending| pending.submitted).min().unwrap_or(submitted);
        let anything = request.kind == RequestKind::Trim;
        let change = Change { stamp, anything, submitted, answered: None, gone: None };
        for unit in &mut self.units[request.volume.0 as usize][units_of(request)] {
            unit.retain(|change| change.gone.is_none_or(|gone| gone > oldest));
            unit.push(change.clone());
        }
    }

    /// A change has been answered. If it succeeded, what had been answered before it came is gone.
    fn end_change(&mut self, request: &Request, submitted: u64, ok: bool) {
        let now = self.bench.tick();
        for unit in &mut self.units[request.volume.0 as usize][units_of(request)] {
            for change in unit {
                if change.submitted == submitted {
                    change.answered = Some(now);
                }
                let replaced = change.answered.is_some_and(|answered| answered < submitted);
                if ok && request.kind != RequestKind::Trim && replaced && change.gone.is_none() {
                    change.gone = Some(now);
                }
            }
        }
    }

    /// Goes on with volumes that are to grow or leave.
    fn change_volumes(&mut self) {
        for volume in 0..VOLUMES.len() {
            let id = VolumeId(volume as u16);
            let grown = self.growing[volume].filter(|&bytes| {
                let grown = self.bench.ask_parts(|part| part.resize_volume(id, bytes)) == Ok(());
                // which the old end may cut
                self.bench.copies.remove(&(id, self.sizes[volume] / SECTOR));
                grown
            });
            if let Some(bytes) = grown {
                self.growing[volume] = None;
                self.sizes[volume] = bytes;
                self.units[volume].resize(bytes.div_ceil(UNIT) as usize, vec![settled(ZERO)]);
            }
            let in_use = self.requests.values().any(|pending| pending.request.volume == id);
            let Some((discard, bytes)) = self.leaving[volume].filter(|_| !in_use) else { continue };
            let gone = |result| if result == Err(VolumeError::Unknown) { Ok(()) } else { result };
            match self.bench.ask_parts(|part| gone(part.remove_volume(id, discard))) {
                Err(VolumeError::Dirty(_)) => self.leaving[volume] = Some((true, bytes)),
                Err(error) => assert_eq!(error, VolumeError::Busy),
                Ok(()) => {
                    self.leaving[volume] = None;
                    self.bench.forget_volume(id);
                    self.growing[volume] = None;
                    self.sizes[volume] = bytes;
                    assert_eq!(self.bench.add_volume(bytes, ZERO), id);
                    self.units[volume] = vec![vec![settled(ZERO)]; bytes.div_ceil(UNIT) as usize];
                }
            }
        }
    }

    fn complete(&mut self, which: usize, fails: u8, tear: u64) {
        if self.bench.under_way.is_empty() {
            return;
        }
        let which = which % self.bench.under_way.len();
        let fails = match target(&self.bench.under_way[which].order).0 {
            DeviceId::Cache => self.cache_dead || fails < self.setup.cache_faults,
            DeviceId::Backing(_) => fails < self.setup.backing_faults,
        };
        self.bench.complete(which, fails.then_some(tear * UNIT));
        self.take_answers();
    }

    fn deliver(&mut self, which: usize) {
        if !self.bench.said.is_empty() {
            self.bench.deliver(which % self.bench.said.len());
            self.take_answers();
        }
    }

    fn take_answers(&mut self) {
        self.bench.see_to_journal();
        for answer in std::mem::take(&mut self.bench.answers) {
            self.answered(answer);
        }
        for id in &self.bench.released {
            let released = self.requests.remove(id);
            assert!(released.is_none_or(|pending| pending.answered), "released before its answer");
        }
    }

    fn answered(&mut self, Answered { id, result, bytes }: Answered) {
        let pending = self.requests.get_mut(&id).expect("only requests under way are answered");
        assert!(!std::mem::replace(&mut pending.answered, true), "a request is answered twice");
        let (request, submitted) = (pending.request, pending.submitted);
        if pending.beyond_the_end {
            return assert_eq!(result, Err(Fault::OutOfRange));
        }
        let no_faults =
            self.setup.cache_faults == 0 && self.setup.backing_faults == 0 && !self.cache_has_died;
        let may_refuse = matches!(request.kind, RequestKind::Zero { fast: true, .. });
        let refused = may_refuse && result == Err(Fault::Unsupported);
        assert!(result.is_ok() || refused || !no_faults, "{request:?} failed though no device did");
        match request.kind {
            RequestKind::Read if result.is_ok() => self.check_read(&request, submitted, &bytes),
            // A cache that outlives the program may keep what is dirty; `crash` has a test for
            // that.
            RequestKind::Flush if result.is_ok() && !self.setup.kept => {
                self.check_stable(&request, submitted)
            }
            RequestKind::Drain if result.is_ok() => self.check_stable(&request, submitted),
            RequestKind::DirtyMap if result.is_ok() => self.check_map(&request, submitted, &bytes),
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Drain
            | RequestKind::Prefetch
            | RequestKind::Warm
            | RequestKind::Evict
            | RequestKind::DirtyMap => {}
            _ if result == Err(Fault::Unsupported) => self.undo_change(&request, submitted),
            kind => {
                self.end_change(&request, submitted, result.is_ok());
                let durable = match kind {
                    RequestKind::Write { durable } => durable && !self.setup.kept,
                    RequestKind::Zero { durable, .. } => durable && !self.setup.kept,
                    _ => false,
                };
                if durable && result.is_ok() {
                    self.check_stable(&request, submitted);
                }
            }
        }
    }

    fn check_read(&mut self, request: &Request, submitted: u64, bytes: &[u8]) {
        let now = self.bench.tick();
        let bytes = &bytes[(request.offset % SECTOR) as usize..][..request.len as usize];
        for at in units_of(request) {
            let start = (at as u64 * UNIT).max(request.offset) - request.offset;
            let end = ((at as u64 + 1) * UNIT).min(request.offset + request.len) - request.offset;
            let part = &bytes[start as usize..end as usize];
            let unit = &mut self.units[request.volume.0 as usize][at];
            assert!(part.iter().all(|byte| *byte == part[0]), "unit {at} is torn");
            assert!(
                allows(unit, submitted, part[0]),
                "unit {at} reads {} of {request:?} of {submitted}, not {unit:?}",
                part[0]
            );
            // With nothing under way meanwhile, what has been read once must be read again.
            let quiet = |change: &Change| {
                change.gone.is_none()
                    && change.answered.is_some_and(|answered| answered < submitted)
            };
            if (unit.len() > 1 || unit[0].anything) && allowed(unit, submitted).all(quiet) {
                for change in unit.iter_mut().filter(|change| change.gone.is_none()) {
                    change.gone = Some(now);
                }
                unit.push(settled(part[0]));
            }
        }
    }

    /// A change has been refused, and left everything as it was.
    fn undo_change(&mut self, request: &Request, submitted: u64) {
        for unit in &mut self.units[request.volume.0 as usize][units_of(request)] {
            unit.retain(|change| change.submitted != submitted);
        }
    }

    /// Where nothing is dirty, the backing device has what a client may find.
    fn check_map(&self, request: &Request, submitted: u64, marks: &[u8]) {
        let backing = &self.bench.devices[&DeviceId::Backing(request.volume)].bytes;
        for at in units_of(request) {
            let (unit, byte) =
                (&self.units[request.volume.0 as usize][at], backing[at * UNIT as usize]);
            let mark = marks[at / UNITS_PER_SECTOR - (request.offset / SECTOR) as usize];
            assert!(
                mark == 1 || allows(unit, submitted, byte),
                "unit {at} has {byte} and no mark, of {request:?} of {submitted}: {unit:?}"
            );
        }
    }

    /// After a flush the whole backing device would survive a power cut, and after a durable change
    /// its part, unless something replaced it that came before its answer.
    fn check_stable(&self, request: &Request, since: u64) {
        let units = &self.units[request.volume.0 as usize];
        let is_flush = matches!(request.kind, RequestKind::Flush | RequestKind::Drain);
        let range = if is_flush { 0..units.len() } else { units_of(request) };
        let stable = &self.bench.devices[&DeviceId::Backing(request.volume)].stable;
        for (at, unit) in range.clone().zip(&units[range]) {
            let byte = stable[at * UNIT as usize];
            let not_before = |change: &Change| {
                (change.anything || change.stamp == byte)
                    && change.answered.is_none_or(|at| at >= since)
            };
            assert!(
                if is_flush { allows(unit, since, byte) } else { unit.iter().any(not_before) },
                "after {request:?} unit {at} would hold {byte} after a power cut, not {unit:?}"
            );
        }
    }

    fn complete_all(&mut self) {
        while !self.bench.under_way.is_empty() || !self.bench.said.is_empty() {
            self.complete(0, u8::MAX, 0);
            self.deliver(0);
            self.bench.see_to_journal();
        }
        (0..2).for_each(|_| self.change_volumes()); // what is dirty is discarded the second time
        assert!(
            self.leaving.iter().all(Option::is_none) && self.growing.iter().all(Option::is_none)
        );
        assert!(self.requests.is_empty(), "requests without an answer");
        self.bench.check_idle();
    }

    /// Lets a cache that has become smaller give its space back. Lost sectors stand in the way
    /// until they are written.
    fn give_all_back(&mut self) {
        self.bench.each_part(BlockCache::restore);
        self.bench.clean();
        loop {
            self.bench.give_back();
            if self.bench.under_way.is_empty() {
                break;
            }
            self.complete_all();
        }
        let lost = std::cell::Cell::new(0);
        self.bench.each_part(|part| lost.set(lost.get() + part.stats().lost_bytes));
        assert!(lost.get() > 0 || self.bench.bytes_over() == 0, "{} over", self.bench.bytes_over());
    }

    /// Lets everything end well, and reads all volumes.
    fn end(mut self) {
        self.cache_dead = false;
        self.complete_all();
        self.give_all_back();
        for (volume, bytes) in self.sizes.into_iter().enumerate() {
            for at in (0..bytes).step_by(64 << 10) {
                self.submit(volume, 0, at, 64 << 10);
                self.complete_all();
            }
        }
        if self.setup.admit == "never" {
            self.bench.each_part(|part| {
                let stats = part.stats();
                assert_eq!((stats.valid_bytes, stats.counters.cache_write_bytes), (0, 0));
            });
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
                Step::Deliver { which } => world.deliver(which),
                Step::CacheDead(dead) => {
                    world.cache_dead = dead;
                    world.cache_has_died |= dead;
                }
                Step::Replace { volume, discard, units } => {
                    // One after the other, or ids would differ between parts.
                    if world.leaving.iter().all(Option::is_none) {
                        world.leaving[volume] = Some((discard, units * UNIT));
                    }
                }
                Step::Grow { volume, units } => {
                    let bytes = world.sizes[volume] + units * UNIT;
                    if world.growing[volume].is_none() && world.leaving[volume].is_none() {
                        world.growing[volume] = Some(bytes);
                        world.bench.grow_device(VolumeId(volume as u16), bytes);
                    }
                }
                Step::Share { volume, share } => {
                    let id = VolumeId(volume as u16);
                    world.bench.each_part(|part| part.set_share(id, share));
                }
                Step::Resize { groups } => {
                    world.bench.resize(world.setup.bytes_of(groups)).unwrap();
                }
                Step::Shed(share) => world.bench.each_part(|part| part.shed(share)),
                Step::Degrade => world.bench.each_part(BlockCache::degrade),
                Step::Restore { forget } => {
                    if forget {
                        world.bench.each_part(BlockCache::forget_clean);
                    }
                    world.bench.each_part(BlockCache::restore);
                }
                Step::Evict { which } => {
                    let at = which.checked_rem(world.bench.copies.len()).unwrap_or_default();
                    let place = world.bench.copies.keys().nth(at).copied();
                    place.and_then(|place| world.bench.copies.remove(&place));
                }
                Step::Clean => {
                    world.bench.clean();
                    world.take_answers();
                }
            }
            world.change_volumes();
            world.bench.give_back();
            world.take_answers();
        }
        world.end();
    }
}
