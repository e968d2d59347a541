//! A persistent tier that is put in while its volume's device has writes that a power cut takes
//! back: they came from the tier above, before it was there.

use floe_block::{
    AdmissionConfig, Begun, BlockCache, BlockSizes, Config, Driver, Evict, Io, KeptCache, Layout,
    Memory, NewCache, Request, RequestKind, Tier, Volume, VolumeId, WriteMode,
};
use floe_device::{MemoryDevice, Pool};
use floe_testkit::faults::{FaultDevice, FaultPlan, Faults, Rates};

const SECTOR: u64 = 4096;
const VOLUME: u64 = 64 * SECTOR;
const CACHE: u64 = 4 << 20;
const ID: VolumeId = VolumeId(0);

/// A volume that loses unflushed writes, below a first tier; a persistent tier can come between.
struct Rig {
    driver: Driver,
    cache: MemoryDevice,
    surviving: MemoryDevice,
    power: Faults,
}

fn with_io<T>(cache: &MemoryDevice, act: impl FnOnce(&mut Io<'_>) -> T) -> T {
    let (mut device, pool) = (cache.clone(), Pool::new(1 << 20));
    act(&mut Io { device: &mut device, pool: &pool, wait: &mut || Ok(()) })
}

/// A persistent tier, empty, on this device.
fn persistent(cache: &MemoryDevice, mode: WriteMode) -> Tier {
    let sizes: BlockSizes = "4KiB,16KiB".parse().unwrap();
    let layout = Layout::new(&sizes, CACHE, 2).unwrap();
    let volumes = || vec![Volume::new(ID, "v", VOLUME)];
    let config = Config { mode, ..Config::default() };
    let Begun { parts, .. } = with_io(cache, |io| {
        let new = NewCache { id: [1; 16], layout, volumes: volumes() };
        KeptCache::create(io, new).unwrap().begin(io, volumes(), &config, 1).unwrap()
    });
    let (part, journal) = parts.into_iter().next().unwrap();
    Tier::new(part, Box::new(cache.clone()), Pool::new(1 << 20)).with_journal(Some(journal))
}

fn volatile(mode: WriteMode) -> Tier {
    let config = Config {
        adapts_fetches: false,
        sizes: "4KiB".parse().unwrap(),
        cache_bytes: 64 << 10,
        mode,
        shards: Some(2),
        gate: AdmissionConfig::default(),
        evict: Evict::default(),
        memory: Memory::None,
        kept: false,
    };
    let device = Box::new(MemoryDevice::new(64 << 10));
    Tier::new(BlockCache::new(config).unwrap(), device, Pool::new(1 << 20))
}

impl Rig {
    fn new(upper: Tier) -> Self {
        let surviving = MemoryDevice::new(VOLUME);
        let plan = FaultPlan::seeded(1, Rates::default());
        let (backing, power) = FaultDevice::new(surviving.clone(), plan);
        let mut driver = Driver::new(upper);
        driver.add_volume_at(ID, "v", Box::new(backing));
        Self { driver, cache: MemoryDevice::new(CACHE), surviving, power }
    }

    fn put_below(&mut self) {
        self.driver.top_mut().io_gate_mut().shut();
        while !self.driver.top().io_gate().is_quiet() {
            self.driver.advance();
        }
        let newcomer = persistent(&self.cache, WriteMode::Back);
        self.driver.put_below(0, newcomer, &[(ID, ID)]);
        self.driver.top_mut().io_gate_mut().open();
    }

    fn run(&mut self, kind: RequestKind, sector: u64, bytes: &mut [u8]) {
        let request =
            Request { volume: ID, kind, offset: sector * SECTOR, len: bytes.len() as u64 };
        let buffer = (request.buffer_bytes() > 0).then(|| self.driver.buffer(&request));
        if let (RequestKind::Write { .. }, Some(buffer)) = (kind, &buffer) {
            Driver::payload(&request, buffer).copy_from(bytes);
        }
        self.driver.submit(request, buffer.clone());
        let mut answers = Vec::new();
        self.rest();
        self.driver.take_answers(&mut answers);
        assert_eq!(answers[0].result, Ok(()));
        if let (RequestKind::Read, Some(buffer)) = (kind, &buffer) {
            Driver::payload(&request, buffer).copy_to(bytes);
        }
    }

    fn rest(&mut self) {
        self.driver.advance();
        while !self.driver.is_idle() {
            self.driver.advance();
        }
    }

    fn write(&mut self, sector: u64, byte: u8) {
        self.run(RequestKind::Write { durable: false }, sector, &mut [byte; SECTOR as usize]);
    }

    /// Cuts the power; answers what the volume has then, by sector.
    fn cut(mut self) -> (MemoryDevice, Vec<Vec<u8>>) {
        self.power.power_cut();
        self.driver.advance();
        drop(self.driver);
        let mut bytes = vec![0; VOLUME as usize];
        self.surviving.read_at(0, &mut bytes);
        (self.cache, bytes.chunks(SECTOR as usize).map(<[u8]>::to_vec).collect())
    }
}

#[test]
fn what_a_new_tier_calls_clean_after_a_crash_is_what_its_volume_has() {
    for upper in [WriteMode::Pass, WriteMode::Around, WriteMode::Through] {
        let mut rig = Rig::new(volatile(upper));
        for sector in 0..64 {
            rig.write(sector, 7);
        }
        rig.put_below();
        for sector in 0..64 {
            let mut found = [0; SECTOR as usize];
            rig.run(RequestKind::Read, sector, &mut found);
            assert_eq!(found[0], 7);
        }
        // A flush of the volume, and a commit of what it has durably by then.
        for _ in 0..2 {
            rig.driver.clean();
            rig.rest();
        }
        let (cache, volume) = rig.cut();
        let kept = with_io(&cache, |io| KeptCache::open(io, &mut |_, _| {})).unwrap().unwrap();
        let clean = kept.clean_sums(ID, 64);
        assert!(!clean.is_empty(), "{upper:?}: nothing is clean, so nothing is shown");
        for (sector, sum) in clean {
            let found = floe_block::sector_sum(&volume[sector as usize]);
            assert_eq!(found, sum, "{upper:?}: sector {sector} is {}", volume[sector as usize][0]);
        }
    }
}

#[test]
fn a_flush_makes_durable_what_was_written_before_a_tier_was_put_in() {
    for upper in [WriteMode::Around, WriteMode::Through] {
        let mut rig = Rig::new(persistent(&MemoryDevice::new(CACHE), upper));
        rig.write(3, 7);
        rig.put_below();
        rig.run(RequestKind::Flush, 0, &mut []);
        let (_, volume) = rig.cut();
        assert_eq!(volume[3][0], 7, "{upper:?}: a flushed write is lost");
    }
}
