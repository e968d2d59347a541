//! Tiers that come and go under a running server: right bytes whatever clients do meanwhile, and
//! none lost when one cannot go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use floe_block::{MemoryWrite, WriteMode};
use floe_device::{Device, MemoryDevice, OpenError, Witness};
use floe_server::admin::NewTier;
use floe_server::admin::client::{self as admin, AdminError};
use floe_server::config::TierConfig;
use floe_server::{CacheDevices, DeviceSource};
use floe_testkit::{Random, pattern};

use super::churn;
use super::mood::Mood;
use super::volumes::{in_file, refused};
use crate::rig::{self, Rig, Setup, VOLUME, Wrapped};

const MIB: usize = 1 << 20;

/// Opens devices in memory, each in the same mood.
#[derive(Debug, Default)]
struct Moody(Mood);

impl CacheDevices for Moody {
    fn prepare(
        &self,
        tier: &TierConfig,
        _: Option<&Arc<dyn Witness>>,
    ) -> Result<Arc<dyn DeviceSource>, OpenError> {
        let mood = self.0.clone();
        let memory = MemoryDevice::new(tier.cache_bytes());
        Ok(Wrapped::source(memory, move |memory| mood.before(memory)))
    }
}

pub(super) fn with_newcomers(mut setup: Setup, mood: &Mood) -> Rig {
    setup.config.devices = Arc::new(Moody(mood.clone()));
    setup.start().unwrap()
}

/// A tier in memory of a text such as `back 8`, a write mode and mebibytes.
pub(super) fn tier(spec: &str, at: Option<usize>) -> NewTier {
    let (mode, mib) = spec.split_once(' ').unwrap();
    let tier = format!("memory:{mib}MiB,write={mode},block-sizes=4KiB+64KiB,shards=3");
    NewTier { tier, at, initialise: false, discard_dirty: false }
}

fn names(rig: &Rig) -> Vec<String> {
    admin::tiers(&rig.admin).unwrap().into_iter().map(|tier| tier.name).collect()
}

/// Adds and removes tiers at random until told to stop; how often.
fn restack(rig: &Rig, seed: u64, stop: &AtomicBool) -> (usize, usize) {
    let (mut random, mut tiers, mut done) = (Random(seed), names(rig).len(), (0, 0));
    while !stop.load(SeqCst) {
        let (comes, at) =
            (tiers == 1 || tiers < 4 && random.below(2) == 0, 1 + random.below(tiers));
        if comes {
            let spec = ["back 2", "through 8", "back 16", "around 4", "pass 4"][random.below(5)];
            admin::add_tier(&rig.admin, &tier(spec, (random.below(3) > 0).then_some(at))).unwrap();
            (tiers, done.0) = (tiers + 1, done.0 + 1);
        } else {
            admin::remove_tier(&rig.admin, at.min(tiers - 1)).unwrap();
            (tiers, done.1) = (tiers - 1, done.1 + 1);
        }
        assert_eq!(names(rig).len(), tiers);
    }
    done
}

#[test]
fn many_requests_find_what_was_written_while_tiers_come_and_go() {
    const SHARE: usize = 3_000_001; // neighbours share sectors
    for (seed, (mode, memory)) in [
        (WriteMode::Back, None),
        (WriteMode::Through, None),
        (WriteMode::Around, Some(MemoryWrite::Back)),
        (WriteMode::Pass, None),
    ]
    .into_iter()
    .enumerate()
    {
        for threads in 1..=3 {
            let rig =
                with_newcomers(Setup::new(mode).threads(threads).memory(memory), &Mood::default());
            let mut volume = vec![0; VOLUME];
            let (stop, seed) = (AtomicBool::new(false), 100 * seed as u64 + threads as u64);
            let done = std::thread::scope(|scope| {
                let restacker = scope.spawn(|| restack(&rig, seed, &stop));
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
                restacker.join().unwrap()
            });
            println!("{mode}, {threads} threads, seed {seed}: {} came, {} went", done.0, done.1);
            assert!(rig.end() == volume, "{mode}, {threads} threads, seed {seed}");
        }
    }
}

#[test]
fn a_tier_that_comes_serves_and_one_that_goes_leaves_all_it_had() {
    for threads in 1..=2 {
        let rig = with_newcomers(Setup::new(WriteMode::Through).threads(threads), &Mood::default());
        let mut client = rig.client();
        admin::add_tier(&rig.admin, &tier("back 32", None)).unwrap();
        admin::add_tier(&rig.admin, &tier("through 16", Some(1))).unwrap();
        let tiers = [
            "",
            "memory:16MiB,write=through,block-sizes=4KiB+64KiB,shards=3",
            "memory:32MiB,write=back,block-sizes=4KiB+64KiB,dirty-max=50%,shards=3",
        ];
        assert_eq!(names(&rig), tiers);
        let bytes = pattern(3, 12 * MIB);
        client.write(0, &bytes, false).unwrap();
        let dirty: Vec<bool> = rig.status().tiers.iter().map(|tier| tier.dirty_bytes > 0).collect();
        assert_eq!(dirty, [false, false, true]);
        let metrics = admin::metrics(&rig.admin).unwrap();
        assert!(metrics.contains("floe_tier_size_bytes{tier=\"2\"} 33554432"), "{metrics}");
        admin::remove_tier(&rig.admin, 1).unwrap();
        admin::remove_tier(&rig.admin, 1).unwrap();
        assert_eq!(rig.status().tiers.len(), 1);
        let mut found = vec![0; bytes.len()];
        client.read(0, &mut found).unwrap();
        assert!(found == bytes);
        assert!(rig.end()[..bytes.len()] == bytes);
    }
}

#[test]
fn bytes_of_backing_devices_are_counted_on_when_tiers_come_and_go() {
    for threads in 1..=2 {
        let rig = with_newcomers(Setup::new(WriteMode::Through).threads(threads), &Mood::default());
        let mut client = rig.client();
        let counted = || {
            let metrics = admin::metrics(&rig.admin).unwrap();
            let counters = rig.status().cache.counters;
            let of = |direction: &str, published: u64| {
                let sample = format!("backing\",direction=\"{direction}\"}} ");
                let name = format!("floe_device_bytes_total{{device=\"{sample}");
                let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
                let value: u64 = value.expect("it is a metric").parse().unwrap();
                assert_eq!(value, published, "{direction}");
                value
            };
            let read = of("read", counters.backing_read_bytes);
            (read, of("write", counters.backing_write_bytes))
        };
        let mut use_it = |piece: usize| {
            client.write((piece * MIB) as u64, &pattern(3, 64 << 10), false).unwrap();
            client.read((piece * MIB + MIB / 2) as u64, &mut vec![0; 128 << 10]).unwrap();
        };
        use_it(0);
        let mut before = counted();
        assert!(before.0 >= 128 << 10 && before.1 >= 64 << 10, "{before:?}");
        let add = |at| admin::add_tier(&rig.admin, &tier("through 8", at)).map(drop);
        let changes: [&dyn Fn() -> Result<(), AdminError>; 5] = [
            &|| add(None),
            &|| add(Some(1)),
            &|| add(None),
            &|| admin::remove_tier(&rig.admin, 3),
            &|| admin::remove_tier(&rig.admin, 2),
        ];
        for (change, piece) in changes.iter().zip(1..) {
            change().unwrap();
            assert_eq!(counted(), before, "{threads} threads, change {piece}");
            use_it(piece);
            let now = counted();
            assert!(now.0 >= before.0 + (128 << 10), "{now:?} after {before:?}");
            assert!(now.1 >= before.1 + (64 << 10), "{now:?} after {before:?}");
            before = now;
        }
        rig.end();
    }
}

#[test]
fn volumes_come_and_go_above_tiers_that_do_so() {
    for threads in 1..=2 {
        let rig = with_newcomers(Setup::new(WriteMode::Back).threads(threads), &Mood::default());
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one", "two"].map(|name| folder.path().join(name));
        let check = |name: &str, seed: u64| {
            let (mut client, mut found) = (rig.client_of(name).unwrap(), vec![0; MIB]);
            client.read(0, &mut found).unwrap();
            assert!(found == pattern(seed, MIB), "{name}");
        };
        let fill = |name: &str, seed: u64| {
            rig.client_of(name).unwrap().write(0, &pattern(seed, MIB), false).unwrap();
            check(name, seed);
        };
        admin::add_volume(&rig.admin, &in_file("one", &paths[0], Some(MIB))).unwrap();
        fill("one", 1);
        admin::add_tier(&rig.admin, &tier("back 8", None)).unwrap();
        admin::remove_volume(&rig.admin, "floe", true).unwrap();
        admin::add_volume(&rig.admin, &in_file("two", &paths[1], Some(MIB))).unwrap();
        fill("two", 2);
        check("one", 1);
        admin::add_tier(&rig.admin, &tier("back 8", Some(1))).unwrap();
        fill("one", 3);
        admin::remove_volume(&rig.admin, "two", true).unwrap();
        assert!(std::fs::read(&paths[1]).unwrap() == pattern(2, MIB));
        admin::remove_tier(&rig.admin, 2).unwrap();
        check("one", 3);
        admin::add_volume(&rig.admin, &in_file("two", &paths[1], None)).unwrap();
        check("two", 2);
        admin::remove_tier(&rig.admin, 1).unwrap();
        check("two", 2);
        check("one", 3);
        rig.end();
        assert!(std::fs::read(&paths[0]).unwrap() == pattern(3, MIB));
    }
}

#[test]
fn a_tier_whose_drain_fails_stays_with_what_it_has() {
    for threads in 1..=2 {
        let mood = Mood::default();
        let rig = with_newcomers(Setup::new(WriteMode::Through).threads(threads), &mood);
        admin::add_tier(&rig.admin, &tier("back 16", None)).unwrap();
        let mut client = rig.client();
        let bytes = pattern(5, 3 * MIB);
        client.write(0, &bytes, false).unwrap();
        mood.fail(true);
        match admin::remove_tier(&rig.admin, 1) {
            Err(AdminError::Failed { problem, .. }) => {
                assert!(problem.starts_with("tier 1 stays"), "{problem}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(names(&rig).len(), 2);
        mood.fail(false);
        admin::restore(&rig.admin).unwrap();
        let mut found = vec![0; bytes.len()];
        client.read(0, &mut found).unwrap();
        assert!(found == bytes, "nothing is lost");
        // It takes writes again, and can go once its device works.
        client.write(0, &pattern(6, MIB), false).unwrap();
        admin::remove_tier(&rig.admin, 1).unwrap();
        let volume = rig.end();
        assert!(volume[..MIB] == pattern(6, MIB) && volume[MIB..bytes.len()] == bytes[MIB..]);
    }
}

#[test]
fn a_tier_goes_only_when_what_is_below_it_has_taken_what_it_has() {
    let mood = Mood::default();
    let backing = mood.clone();
    let setup = Setup::new(WriteMode::Through).backing(move |memory| backing.before(memory));
    let rig = with_newcomers(setup, &Mood::default());
    admin::add_tier(&rig.admin, &tier("back 16", None)).unwrap();
    let mut client = rig.client();
    client.write(0, &pattern(7, MIB), false).unwrap();
    mood.fail_flushes(true);
    assert!(matches!(admin::remove_tier(&rig.admin, 1), Err(AdminError::Failed { .. })));
    mood.fail_flushes(false);
    admin::remove_tier(&rig.admin, 1).unwrap();
    assert!(rig.end()[..MIB] == pattern(7, MIB));
}

#[test]
fn what_cannot_come_or_go_changes_nothing() {
    for threads in 1..=3 {
        let mut setup = Setup::new(WriteMode::Back).threads(threads);
        setup = setup
            .tier(WriteMode::Through, 8 << 20, |memory| -> Box<dyn Device> { Box::new(memory) });
        let rig = with_newcomers(setup, &Mood::default());
        refused(admin::add_tier(&rig.admin, &tier("back 8", Some(0))), "above the first one");
        refused(admin::add_tier(&rig.admin, &tier("back 8", Some(3))), "number 3");
        let small = NewTier { tier: "memory:64KiB".into(), ..tier("back 1", None) };
        refused(admin::add_tier(&rig.admin, &small), "too small");
        refused(admin::remove_tier(&rig.admin, 0), "the first tier stays");
        refused(admin::remove_tier(&rig.admin, 2), "there is no tier 2");
        assert_eq!(names(&rig).len(), 2);
        rig.client().write(0, &pattern(1, MIB), false).unwrap();
        assert!(rig.end()[..MIB] == pattern(1, MIB));
    }
}

#[test]
fn the_end_comes_after_a_tier_that_is_on_its_way() {
    let gate = rig::Gate::default();
    let before = gate.clone();
    let setup = Setup::new(WriteMode::Through).backing(move |memory| before.before(memory));
    let rig = with_newcomers(setup, &Mood::default());
    admin::add_tier(&rig.admin, &tier("back 16", None)).unwrap();
    rig.client().write(0, &pattern(8, MIB), false).unwrap();
    gate.shut();
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| admin::remove_tier(&rig.admin, 1));
        gate.wait_for(1);
        refused(admin::add_tier(&rig.admin, &tier("back 8", None)), "try again when that is done");
        rig.tell_to_end();
        gate.open();
        // It may have gone before the end began, or stays because of it.
        let ended = removal.join().unwrap();
        assert!(
            !matches!(ended, Err(AdminError::Unreachable { .. } | AdminError::Strange { .. })),
            "{ended:?}"
        );
    });
    let (result, volume) = rig.join();
    result.unwrap();
    assert!(volume[..MIB] == pattern(8, MIB));
}
