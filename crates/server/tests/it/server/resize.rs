//! Tiers that become larger and smaller under a running server: right bytes whatever clients do
//! meanwhile, and the old size where the new one cannot be.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::scope;

use floe_block::{Io, KeptCache, MemoryWrite, WriteMode};
use floe_device::{Action, Device, MemoryDevice, OpenError, Pool, Ring, Witness};
use floe_server::admin::client::{self as admin, AdminError};
use floe_server::admin::{NewTier, ShareChange};
use floe_server::config::TierConfig;
use floe_server::{CacheDevices, DeviceSource};
use floe_testkit::{Intercepted, Random, pattern};

use super::churn;
use super::mood::Mood;
use super::restack::{tier, with_newcomers};
use super::volumes::refused;
use crate::rig::{Gate, Rig, Setup, VOLUME};

const MIB: u64 = 1 << 20;

/// The size of the first tier when a server starts.
const SIZE: u64 = 4 * MIB;

fn sizes(rig: &Rig) -> Vec<u64> {
    rig.status().tiers.iter().map(|tier| tier.size_bytes).collect()
}

#[test]
fn many_requests_find_what_was_written_while_tiers_are_resized() {
    const SHARE: usize = 3_000_001; // neighbours share sectors
    for (seed, (mode, memory)) in [
        (WriteMode::Back, None),
        (WriteMode::Through, None),
        (WriteMode::Back, Some(MemoryWrite::Back)),
    ]
    .into_iter()
    .enumerate()
    {
        for threads in 1..=3 {
            let rig =
                with_newcomers(Setup::new(mode).threads(threads).memory(memory), &Mood::default());
            admin::add_tier(&rig.admin, &tier("back 4", None)).unwrap();
            let mut volume = vec![0; VOLUME];
            let (stop, seed) = (AtomicBool::new(false), 100 * seed as u64 + threads as u64);
            let done = scope(|scope| {
                let resizer = scope.spawn(|| {
                    let (mut random, mut done) = (Random(seed), 0);
                    while !stop.load(SeqCst) || done == 0 {
                        let (number, mib) = (random.below(2), 1 + random.below(9) as u64);
                        let (_, after) = admin::resize_tier(&rig.admin, number, mib * MIB).unwrap();
                        assert_eq!(after.size_bytes, mib * MIB);
                        assert!(after.valid_bytes <= mib * MIB, "{}", after.valid_bytes);
                        done += 1;
                    }
                    done
                });
                let churners: Vec<_> = (0..).zip(volume.chunks_mut(SHARE).take(4)).collect();
                let churners: Vec<_> = churners
                    .into_iter()
                    .map(|(number, bytes)| {
                        let mut client = rig.client_on(number);
                        scope.spawn(move || {
                            churn(&mut client, number * SHARE, bytes, seed + number as u64)
                        })
                    })
                    .collect();
                let ended: Vec<_> = churners.into_iter().map(|churner| churner.join()).collect();
                stop.store(true, SeqCst);
                ended.into_iter().for_each(|ended| ended.unwrap());
                resizer.join().unwrap()
            });
            println!("{mode}, {threads} threads, seed {seed}: {done} sizes");
            assert!(rig.end() == volume, "{mode}, {threads} threads, seed {seed}");
        }
    }
}

#[test]
fn a_larger_tier_holds_more_and_a_smaller_one_less() {
    for threads in 1..=2 {
        let rig = with_newcomers(Setup::new(WriteMode::Back).threads(threads), &Mood::default());
        let mut client = rig.client();
        let bytes = pattern(3, 12 * MIB as usize);
        let mut found = vec![0; bytes.len()];
        let (before, after) = admin::resize_tier(&rig.admin, 0, 16 * MIB).unwrap();
        assert_eq!((before.size_bytes, after.size_bytes), (SIZE, 16 * MIB));
        client.write(0, &bytes, false).unwrap();
        client.read(0, &mut found).unwrap();
        assert!(found == bytes);
        let tier = &rig.status().tiers[0];
        assert!(tier.valid_bytes > 10 * MIB, "{}", tier.valid_bytes);
        let metrics = admin::metrics(&rig.admin).unwrap();
        assert!(metrics.contains("floe_tier_size_bytes{tier=\"0\"} 16777216"), "{metrics}");
        let (_, after) = admin::resize_tier(&rig.admin, 0, MIB).unwrap();
        assert_eq!(after.size_bytes, MIB);
        assert!(after.valid_bytes <= MIB && after.dirty_bytes <= MIB, "{after:?}");
        let (before, after) = admin::resize_tier(&rig.admin, 0, MIB).unwrap();
        assert_eq!(before.size_bytes, after.size_bytes);
        client.read(0, &mut found).unwrap();
        assert!(found == bytes);
        assert!(rig.end()[..bytes.len()] == bytes);
    }
}

#[test]
fn the_limit_of_dirty_data_and_shares_follow_the_size() {
    let rig = with_newcomers(Setup::new(WriteMode::Through), &Mood::default());
    admin::add_tier(&rig.admin, &tier("back 8", None)).unwrap();
    let guarantee = |portion: &str| {
        let guaranteed = Some(Some(portion.parse().unwrap()));
        let change = ShareChange { guaranteed, most: None };
        admin::share_volume(&rig.admin, "floe", &change).unwrap()
    };
    assert_eq!(guarantee("50%").cached[1].guaranteed_bytes, 4 * MIB);
    admin::resize_tier(&rig.admin, 1, 4 * MIB).unwrap();
    let mut client = rig.client();
    client.write(0, &pattern(1, 4 * MIB as usize), false).unwrap();
    let status = rig.status();
    assert!(status.tiers[1].dirty_bytes <= 2 * MIB, "{}", status.tiers[1].dirty_bytes);
    assert_eq!(status.tiers[1].name.split(',').next(), Some("memory:4MiB"));
    assert_eq!(status.volumes[0].cached[1].guaranteed_bytes, 2 * MIB);
    // What is guaranteed as a number of bytes does not become less.
    guarantee("3MiB");
    refused(admin::resize_tier(&rig.admin, 1, 2 * MIB).map(drop), "cache-guaranteed");
    admin::resize_tier(&rig.admin, 1, 3 * MIB).unwrap();
    assert_eq!(sizes(&rig), [SIZE, 3 * MIB]);
    rig.end();
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    let rig = with_newcomers(Setup::new(WriteMode::Back), &Mood::default());
    let resize = |number, bytes| admin::resize_tier(&rig.admin, number, bytes).map(drop);
    refused(resize(1, MIB), "there is no tier 1: the last one is number 0");
    refused(resize(0, MIB + 1), "a multiple of 4096 bytes");
    refused(resize(0, 0), "it has at least 256KiB");
    refused(
        resize(0, 252 << 10),
        "with shards = 4 and blocks of up to 64KiB it has at least 256KiB",
    );
    refused(resize(0, 1 << 60), "too large");
    assert_eq!(sizes(&rig), [SIZE]);
    resize(0, 256 << 10).unwrap();
    assert_eq!(sizes(&rig), [256 << 10]);
    rig.end();
}

#[test]
fn a_tier_whose_dirty_data_cannot_be_written_keeps_its_size() {
    for threads in 1..=2 {
        let mood = Mood::default();
        let backing = mood.clone();
        let setup = Setup::new(WriteMode::Back).threads(threads);
        let setup = setup.backing(move |memory| backing.before(memory));
        let rig = with_newcomers(setup, &Mood::default());
        let mut client = rig.client();
        let bytes = pattern(5, 3 * MIB as usize);
        client.write(0, &bytes, false).unwrap();
        mood.fail(true);
        match admin::resize_tier(&rig.admin, 0, MIB) {
            Err(AdminError::Failed { problem, .. }) => {
                assert!(problem.starts_with("tier 0 keeps 4MiB"), "{problem}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sizes(&rig), [SIZE]);
        mood.fail(false);
        let mut found = vec![0; bytes.len()];
        client.read(0, &mut found).unwrap();
        assert!(found == bytes, "nothing is lost");
        admin::resize_tier(&rig.admin, 0, MIB).unwrap();
        client.read(0, &mut found).unwrap();
        assert!(found == bytes);
        assert!(rig.end()[..bytes.len()] == bytes);
    }
}

#[test]
fn one_change_comes_at_a_time_and_the_end_waits_for_no_resize() {
    for ends in [false, true] {
        let gate = Gate::default();
        let before = gate.clone();
        let setup = Setup::new(WriteMode::Back).backing(move |memory| before.before(memory));
        let rig = with_newcomers(setup, &Mood::default());
        let bytes = pattern(8, 3 * MIB as usize);
        rig.client().write(0, &bytes, false).unwrap();
        gate.shut();
        scope(|scope| {
            let resize = scope.spawn(|| admin::resize_tier(&rig.admin, 0, MIB).map(drop));
            gate.wait_for(1);
            refused(admin::resize_tier(&rig.admin, 0, 2 * MIB), "try again when that is done");
            if ends {
                rig.tell_to_end();
            }
            gate.open();
            let resized = resize.join().unwrap();
            assert!(ends || resized.is_ok(), "{resized:?}");
        });
        if !ends {
            assert_eq!(sizes(&rig), [MIB]);
            rig.tell_to_end();
        }
        let (result, volume) = rig.join();
        result.unwrap();
        assert!(volume[..bytes.len()] == bytes);
    }
}

/// The device of a persistent tier, in memory. It refuses superblocks, and room.
#[derive(Debug, Clone)]
struct KeptDevice {
    memory: MemoryDevice,
    is_full: Arc<AtomicBool>,
    /// Number of copies of superblocks written since a test has begun to refuse some, and those
    /// that are refused.
    copies: Arc<Mutex<(u64, Range<u64>)>>,
    /// Operations wait before it while it is shut: the device hangs.
    gate: Gate,
}

impl KeptDevice {
    fn new() -> Self {
        let memory = MemoryDevice::new(SIZE);
        Self { memory, is_full: Arc::default(), copies: Arc::default(), gate: Gate::default() }
    }

    /// Refuses the copies of superblocks with these numbers, counted from here.
    fn refuse(&self, copies: Range<u64>) {
        *self.copies.lock().unwrap() = (0, copies);
    }

    /// The size in the superblock.
    fn recorded(&self) -> Option<u64> {
        let (mut device, pool) = (self.memory.clone(), Pool::new(1 << 20));
        let mut io = Io { device: &mut device, pool: &pool, wait: &mut || Ok(()) };
        KeptCache::identify(&mut io).unwrap().unwrap().cache_bytes
    }
}

impl DeviceSource for KeptDevice {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn refresh(&self) -> std::io::Result<u64> {
        Ok(SIZE)
    }

    fn grow(&self, wanted: u64) -> Result<(), OpenError> {
        match self.is_full.load(SeqCst) {
            true => Err(OpenError::TooLittleSpace { path: "tier".into(), wanted, room: MIB }),
            false => Ok(()),
        }
    }

    fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
        const SUPERBLOCK: usize = 32 << 10;
        let copies = Arc::clone(&self.copies);
        let device = Intercepted::new(self.memory.clone(), move |operation| {
            let Action::Write { from, .. } = &operation.action else { return None };
            let is_copy = operation.offset < MIB / 8 && from.len() == SUPERBLOCK;
            let mut copies = copies.lock().unwrap();
            let number = copies.0;
            copies.0 += u64::from(is_copy);
            let is_refused = is_copy && copies.1.contains(&number);
            is_refused.then(|| Err(std::io::ErrorKind::StorageFull.into()))
        });
        Ok(self.gate.before(device))
    }
}

impl CacheDevices for KeptDevice {
    fn prepare(
        &self,
        _: &TierConfig,
        _: Option<&Arc<dyn Witness>>,
    ) -> Result<Arc<dyn DeviceSource>, OpenError> {
        Ok(Arc::new(self.clone()))
    }
}

/// A server with a persistent tier number 1.
fn with_kept(device: &KeptDevice) -> Rig {
    let mut setup = Setup::new(WriteMode::Back);
    setup.config.devices = Arc::new(device.clone());
    let rig = setup.start().unwrap();
    let tier = "file:/nowhere/tier,size=4MiB,write=back,block-sizes=4KiB+64KiB,shards=4".to_owned();
    let tier = NewTier { tier, at: None, initialise: false, discard_dirty: false };
    admin::add_tier(&rig.admin, &tier).unwrap();
    rig
}

#[test]
fn a_persistent_tier_grows_only_where_its_file_system_has_room() {
    let device = KeptDevice::new();
    let rig = with_kept(&device);
    let resize = |bytes| admin::resize_tier(&rig.admin, 1, bytes).map(drop);
    resize(2 * MIB).unwrap();
    device.is_full.store(true, SeqCst);
    refused(resize(3 * MIB), "its file system has room for");
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE, 2 * MIB], Some(2 * MIB)));
    resize(2 * MIB - (256 << 10)).unwrap();
    device.is_full.store(false, SeqCst);
    resize(SIZE).unwrap();
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE; 2], None));
    rig.end();
}

#[test]
fn a_tier_whose_size_cannot_be_recorded_keeps_it_on_the_device_too() {
    let device = KeptDevice::new();
    let rig = with_kept(&device);
    let resize = |bytes| admin::resize_tier(&rig.admin, 1, bytes).map(drop);
    let fails = |bytes, keeps: &str| match resize(bytes) {
        Err(AdminError::Failed { problem, .. }) => assert!(problem.contains(keeps), "{problem}"),
        other => panic!("{other:?}"),
    };
    // The second copy is refused, and the first one has the new size.
    device.refuse(1..2);
    fails(2 * MIB, "tier 1 keeps 4MiB");
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE; 2], None));
    device.refuse(0..0);
    resize(SIZE).unwrap();
    // All later ones are refused as well, until the command is repeated.
    device.refuse(1..u64::MAX);
    fails(2 * MIB, "tier 1 keeps 4MiB");
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE; 2], Some(2 * MIB)));
    device.refuse(0..0);
    resize(SIZE).unwrap();
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE; 2], None));
    resize(2 * MIB).unwrap();
    device.refuse(1..2);
    fails(3 * MIB, "tier 1 keeps 2MiB");
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE, 2 * MIB], Some(2 * MIB)));
    device.refuse(0..0);
    resize(3 * MIB).unwrap();
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE, 3 * MIB], Some(3 * MIB)));
    rig.end();
}

/// The control thread waits for no device while a size is recorded.
#[test]
fn a_device_that_hangs_while_a_size_is_recorded_delays_no_status_and_no_client() {
    let device = KeptDevice::new();
    let rig = with_kept(&device);
    let resize = |bytes| admin::resize_tier(&rig.admin, 1, bytes).map(drop);
    let (mut client, bytes) = (rig.client(), pattern(2, 64 << 10));
    client.write(0, &bytes, false).unwrap();
    resize(2 * MIB).unwrap();
    device.gate.shut();
    scope(|scope| {
        let larger = scope.spawn(|| resize(3 * MIB));
        // The new size is recorded in the superblock before the tier uses it.
        device.gate.wait_for_one_in(0..MIB / 8);
        assert_eq!(sizes(&rig), [SIZE, 2 * MIB]);
        admin::metrics(&rig.admin).unwrap();
        refused(resize(4 * MIB), "try again when that is done");
        let change = ShareChange { guaranteed: Some(Some("1%".parse().unwrap())), most: None };
        let shared = admin::share_volume(&rig.admin, "floe", &change).map(drop);
        refused(shared, "try again when that is done");
        let mut found = vec![0; bytes.len()];
        client.read(0, &mut found).unwrap();
        assert!(found == bytes, "a hit of the tier above");
        client.write(0, &bytes, false).unwrap();
        device.gate.open();
        larger.join().unwrap().unwrap();
    });
    assert_eq!((sizes(&rig), device.recorded()), (vec![SIZE, 3 * MIB], Some(3 * MIB)));
    rig.end();
}
