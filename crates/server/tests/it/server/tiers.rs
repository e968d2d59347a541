//! Tiers that stand on each other under a running server: right bytes whatever each does, and each
//! told of apart.

use floe_block::WriteMode;
use floe_device::{Device, MemoryDevice};
use floe_server::admin::Resize;
use floe_server::admin::client as admin;
use floe_server::status::Status;
use floe_testkit::{patiently, pattern};

use super::churn;
use super::mood::Mood;
use super::volumes::in_file;
use crate::rig::{Rig, Setup, VOLUME};

const MIB: usize = 1 << 20;

fn plain(memory: MemoryDevice) -> Box<dyn Device> {
    Box::new(memory)
}

/// A server with one tier below its cache, of 16 MiB.
fn two(upper: WriteMode, lower: WriteMode, threads: usize) -> Setup {
    Setup::new(upper).threads(threads).tier(lower, 16 << 20, plain)
}

fn dirty(status: &Status) -> Vec<u64> {
    status.tiers.iter().map(|tier| tier.dirty_bytes).collect()
}

#[test]
fn many_requests_through_several_tiers_find_what_was_written() {
    const SHARE: usize = 3_000_001; // neighbours share sectors
    use WriteMode::{Around, Back, Pass, Through};
    for (at, modes) in
        [(Through, Through), (Back, Back), (Through, Back), (Back, Around), (Pass, Back)]
            .into_iter()
            .enumerate()
    {
        for threads in 1..=2 {
            let mut setup = two(modes.0, modes.1, threads);
            if at % 2 == 1 {
                setup = setup.tier(Back, 24 << 20, plain);
            }
            let rig = setup.start().unwrap();
            let mut volume = vec![0; VOLUME];
            std::thread::scope(|scope| {
                for (number, bytes) in volume.chunks_mut(SHARE).take(4).enumerate() {
                    let mut client = rig.client_on(number);
                    scope.spawn(move || {
                        churn(&mut client, number * SHARE, bytes, 7 + number as u64)
                    });
                }
            });
            assert!(
                rig.end() == volume,
                "{modes:?}, {threads} threads: the backing device holds something else"
            );
        }
    }
}

#[test]
fn a_drain_empties_all_tiers_and_a_flush_those_that_end_with_the_program() {
    for threads in 1..=2 {
        for drains in [false, true] {
            let rig = two(WriteMode::Back, WriteMode::Back, threads).start().unwrap();
            let mut client = rig.client();
            client.write(5000, &pattern(1, MIB), false).unwrap();
            assert!(dirty(&rig.status())[0] > 0);
            if drains {
                admin::flush(&rig.admin).unwrap()
            } else {
                client.flush().unwrap()
            }
            assert_eq!(dirty(&rig.status()), [0, 0]);
            assert!(rig.end()[5000..][..MIB] == pattern(1, MIB));
        }
    }
}

#[test]
fn each_tier_is_told_of_apart() {
    for threads in 1..=2 {
        let rig = two(WriteMode::Through, WriteMode::Through, threads).start().unwrap();
        let mut client = rig.client();
        let mut found = vec![0; 8 * MIB]; // more than the first tier's 4 MiB
        for _ in 0..2 {
            client.read(0, &mut found).unwrap();
        }
        let status = rig.wait_for(|status| status.tiers[1].read_hits > 0);
        let [first, second] = &status.tiers[..] else { panic!("{status:?}") };
        assert_eq!(
            (first.read_requests, first.cache_read_bytes),
            (status.cache.requests.reads, status.cache.counters.cache_read_bytes)
        );
        assert_eq!((first.size_bytes, second.size_bytes), (4 << 20, 16 << 20));
        assert_eq!(second.below_read_bytes, 8 << 20, "the second tier has all from then on");
        assert_eq!(
            status.cache.counters.backing_read_bytes, second.below_read_bytes,
            "backing devices are below the last tier"
        );
        assert!(first.below_read_bytes > second.below_read_bytes);
        let metrics = admin::metrics(&rig.admin).unwrap();
        let sample = format!(
            "floe_tier_bytes_total{{tier=\"1\",device=\"below\",direction=\"read\"}} {}",
            8 << 20
        );
        assert!(metrics.contains(&sample), "{metrics}");
        rig.end();
    }
}

#[test]
fn volumes_come_go_and_grow_in_all_tiers() {
    for threads in 1..=3 {
        let rig = two(WriteMode::Back, WriteMode::Back, threads).start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![0; MIB + 512]).unwrap();
        let mut other = rig.client();
        other.write(0, &pattern(9, 500_000), false).unwrap();
        let mut bytes = vec![0; MIB + 512];
        for round in 0..3 {
            let volume = in_file("comes and goes", &path, None);
            admin::add_volume(&rig.admin, &volume).unwrap();
            let mut client = rig.client_of(&volume.name).unwrap();
            let mut found = vec![0; bytes.len()];
            client.read(0, &mut found).unwrap();
            assert!(found == bytes, "{threads} threads, round {round}");
            let at = bytes.len() - 300_000;
            bytes[at..].copy_from_slice(&pattern(round, 300_000));
            client.write(at as u64, &bytes[at..], false).unwrap();
            bytes.resize(bytes.len() + 700_000 / 512 * 512, 0);
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            admin::resize_volume(&rig.admin, &volume.name, &Resize { size_bytes: None }).unwrap();
            let mut client = rig.client_of(&volume.name).unwrap();
            let at = bytes.len() - 100_001;
            bytes[at..].copy_from_slice(&pattern(50 + round, 100_001));
            client.write(at as u64, &bytes[at..], false).unwrap();
            admin::remove_volume(&rig.admin, &volume.name, true).unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{threads} threads, round {round}");
        }
        assert!(rig.end()[..500_000] == pattern(9, 500_000));
    }
}

#[test]
fn a_tier_below_whose_device_fails_is_done_without_until_it_is_restored() {
    for threads in 1..=2 {
        let mood = Mood::default();
        let lower = mood.clone();
        let setup = Setup::new(WriteMode::Through).threads(threads);
        let rig = setup
            .tier(WriteMode::Through, 16 << 20, move |memory| lower.before(memory))
            .start()
            .unwrap();
        let mut client = rig.client();
        let bytes = pattern(3, 8 * MIB);
        client.write(0, &bytes, false).unwrap();
        let check = |rig: &Rig| {
            let mut client = rig.client_on(1);
            let mut found = vec![0; bytes.len()];
            client.read(0, &mut found).unwrap();
            assert!(found == bytes);
        };
        mood.fail(true);
        patiently(|| {
            check(&rig);
            (admin::health(&rig.admin).unwrap() == "degraded").then_some(())
        });
        let status = rig.wait_for(|status| status.tiers[1].degraded);
        assert!(status.degraded && !status.tiers[0].degraded, "{status:?}");
        let quiet = mood.operations();
        check(&rig);
        assert_eq!(mood.operations(), quiet, "it is not used any more");
        mood.fail(false);
        admin::restore(&rig.admin).unwrap();
        rig.wait_for(|status| !status.degraded);
        check(&rig);
        check(&rig);
        assert!(mood.operations() > quiet, "it is used again");
        assert!(rig.end()[..bytes.len()] == bytes);
    }
}
