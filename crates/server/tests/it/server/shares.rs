//! Shares of volumes: what a neighbour cannot evict, over sockets, and what operators see.

use floe_block::WriteMode;
use floe_device::{Device, MemoryDevice};
use floe_server::admin::client as admin;
use floe_server::admin::{NewTier, NewVolume, ShareChange};
use floe_server::config::CachePortion;
use floe_server::nbd_client::Client;
use floe_server::status::VolumeStatus;

use super::mood::Mood;
use super::restack::with_newcomers;
use super::volumes::{in_file, refused};
use crate::rig::{Rig, Setup, Wrapped};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// A server with a cache of 4 MiB of `floe` and of `scan`, its neighbour.
fn setup(threads: usize, mode: WriteMode) -> Setup {
    let scan = Wrapped::source(MemoryDevice::new(SIZE), |memory| Box::new(memory));
    Setup::new(mode).threads(threads).volume("scan", scan)
}

fn portion(text: &str) -> Option<Option<CachePortion>> {
    (!text.is_empty()).then(|| (text != "none").then(|| text.parse().unwrap()))
}

fn change(guaranteed: &str, most: &str) -> ShareChange {
    ShareChange { guaranteed: portion(guaranteed), most: portion(most) }
}

fn status(rig: &Rig, name: &str) -> VolumeStatus {
    rig.status().volumes.into_iter().find(|volume| volume.name == name).unwrap()
}

/// Reads so many pieces of 64 KiB from the start of a volume.
fn read_all(client: &mut Client, pieces: u64) {
    (0..pieces).for_each(|at| client.read(at << 16, &mut [0; 64 << 10]).unwrap());
}

/// Reads 1 MiB in pieces of 16 KiB, which lie 64 KiB apart, and after each lets the neighbour go on
/// by `kib` of its volume, with reads or with writes. Returns the reads that were hits.
fn round(rig: &Rig, victim: &mut Client, scan: &mut Client, at: &mut u64, kib: u64) -> u64 {
    let before = status(rig, "floe").read_hits;
    for piece in 0..64 {
        victim.read(piece << 16, &mut [0; 16 << 10]).unwrap();
        for _ in 0..kib / 64 {
            *at = (*at + (64 << 10)) % SIZE;
            if at.is_multiple_of(128 << 10) {
                scan.write(*at, &[7; 64 << 10], false).unwrap();
            } else {
                scan.read(*at, &mut [0; 64 << 10]).unwrap();
            }
        }
    }
    status(rig, "floe").read_hits - before
}

#[test]
fn a_volume_keeps_its_hits_beside_a_neighbour_that_scans_and_writes() {
    for threads in 1..=2 {
        for mode in [WriteMode::Through, WriteMode::Back] {
            let rig = setup(threads, mode).start().unwrap();
            let mut victim = rig.client();
            let (mut scan, mut at) = (rig.client_of("scan").unwrap(), 0);
            let mut round = |kib| round(&rig, &mut victim, &mut scan, &mut at, kib);
            round(0);
            assert_eq!(round(0), 64, "alone it has all of its data cached");
            round(256);
            let beside = round(256);
            assert!(beside < 8, "16 MiB of the neighbour come between two reads: {beside} hits");

            let shared = admin::share_volume(&rig.admin, "floe", &change("75%", "")).unwrap();
            assert_eq!(shared.cached[0].guaranteed_bytes, 3 * MIB);
            round(256);
            let guaranteed = (0..3).map(|_| round(256)).min().unwrap();
            assert!(guaranteed >= 60, "{guaranteed} hits of 64, {mode:?}, {threads} threads");
            assert!(status(&rig, "floe").cached[0].used_bytes >= 15 * MIB / 16);

            // Without the guarantee, but with a bound on the neighbour, as well.
            admin::share_volume(&rig.admin, "floe", &change("none", "")).unwrap();
            assert!(round(256) < 56 && round(256) < 8, "nothing is left of the guarantee");
            admin::share_volume(&rig.admin, "scan", &change("", "1MiB")).unwrap();
            round(256);
            round(256);
            let bounded = round(256);
            assert!(bounded >= 60, "{bounded} hits of 64, {mode:?}, {threads} threads");
            let used = status(&rig, "scan").cached[0];
            assert!(used.used_bytes <= MIB && used.most_bytes == Some(MIB), "{used:?}");
            drop((victim, scan));
            rig.end();
        }
    }
}

#[test]
fn impossible_shares_are_refused_and_change_nothing() {
    let rig = setup(2, WriteMode::Through).start().unwrap();
    let share = |name: &str, change: &ShareChange| admin::share_volume(&rig.admin, name, change);
    share("floe", &change("3MiB", "")).unwrap();
    refused(share("scan", &change("30%", "")), "in all");
    refused(share("floe", &change("5MiB", "")), "has 4MiB");
    refused(share("floe", &change("", "2MiB")), "more than cache-most = 2MiB");
    refused(share("floe", &change("", "50%")), "more than cache-most = 50%");
    refused(share("none", &change("1%", "")), "no volume");
    let floe = status(&rig, "floe");
    assert_eq!(floe.cache_share.to_string(), "at least 3MiB");
    assert!(!status(&rig, "scan").cache_share.is_any());
    share("scan", &change("25%", "40%")).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let add = |share: ShareChange| {
        let volume = NewVolume { share, ..in_file("more", &path, Some(SIZE as usize)) };
        admin::add_volume(&rig.admin, &volume)
    };
    refused(add(change("1%", "")), "in all");
    refused(add(change("50%", "10%")), "more than");
    assert!(!rig.status().volumes.iter().any(|volume| volume.name == "more"));
    let added = add(change("", "512KiB")).unwrap();
    assert_eq!(added.cached[0].most_bytes, Some(512 << 10));
    let mut client = rig.client_of("more").unwrap();
    read_all(&mut client, 64);
    drop(client);
    let used = status(&rig, "more").cached[0].used_bytes;
    assert!((256 << 10..=512 << 10).contains(&used), "{used}");

    // The next volume with its number has neither its share nor its blocks.
    admin::remove_volume(&rig.admin, "more", true).unwrap(); // the client may not be gone yet
    add(ShareChange::default()).unwrap();
    let more = status(&rig, "more");
    assert_eq!((more.cache_share.is_any(), more.cached[0].used_bytes), (false, 0));
    let mut client = rig.client_of("more").unwrap();
    read_all(&mut client, 64);
    drop(client);
    assert!(status(&rig, "more").cached[0].used_bytes > 512 << 10);
    rig.end();
}

/// A percentage is one of each tier, also of one that comes later.
#[test]
fn each_tier_has_its_part() {
    let lower = |memory: MemoryDevice| Box::new(memory) as Box<dyn Device>;
    let rig = setup(2, WriteMode::Back).tier(WriteMode::Through, 16 * MIB, lower).start().unwrap();
    admin::share_volume(&rig.admin, "floe", &change("50%", "3MiB")).unwrap_err();
    admin::share_volume(&rig.admin, "floe", &change("25%", "75%")).unwrap();
    let parts = || -> Vec<_> {
        let cached = status(&rig, "floe").cached;
        cached.iter().map(|it| (it.guaranteed_bytes / MIB, it.most_bytes.unwrap() / MIB)).collect()
    };
    assert_eq!(parts(), [(1, 3), (4, 12)]);
    let tier = |spec: &str| NewTier {
        tier: spec.into(),
        at: Some(1),
        initialise: false,
        discard_dirty: false,
    };
    admin::add_tier(&rig.admin, &tier("memory:32MiB")).unwrap();
    let [first, middle, last] = parts()[..] else { panic!("{:?}", parts()) };
    assert_eq!((first, last), ((1, 3), (4, 12)));
    assert!((7..=8).contains(&middle.0), "{middle:?}");
    let mut client = rig.client();
    read_all(&mut client, 1024);
    drop(client);
    let used: Vec<u64> = status(&rig, "floe").cached.iter().map(|it| it.used_bytes).collect();
    for (used, most) in used.iter().zip([3 * MIB, 24 * MIB, 12 * MIB]) {
        assert!(*used <= most && *used > most / 2, "{used} of {most}");
    }
    admin::remove_tier(&rig.admin, 1).unwrap();
    assert_eq!(parts(), [(1, 3), (4, 12)]);
    admin::share_volume(&rig.admin, "floe", &change("3MiB", "4MiB")).unwrap();
    refused(admin::add_tier(&rig.admin, &tier("memory:2MiB")), "cache-guaranteed");
    assert_eq!(parts(), [(3, 4), (3, 4)]);
    rig.end();
}

/// A tier that is too small for all shares guarantees a part of each, and more once it has room.
#[test]
fn reduced_guarantees_rise_with_the_tier_and_when_a_volume_leaves() {
    let mut setup = setup(2, WriteMode::Through);
    for volume in &mut setup.volumes {
        volume.share.guaranteed = Some("3MiB".parse().unwrap());
    }
    let rig = with_newcomers(setup, &Mood::default());
    let guaranteed = |name: &str| status(&rig, name).cached[0].guaranteed_bytes;
    assert_eq!((guaranteed("floe"), guaranteed("scan")), (2 * MIB, 2 * MIB));
    admin::resize_tier(&rig.admin, 0, 5 * MIB).unwrap();
    assert_eq!((guaranteed("floe"), guaranteed("scan")), (5 * MIB / 2, 5 * MIB / 2));
    admin::remove_volume(&rig.admin, "scan", true).unwrap();
    assert_eq!(guaranteed("floe"), 3 * MIB);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    admin::add_volume(&rig.admin, &in_file("more", &path, Some(SIZE as usize))).unwrap();
    let (mut client, mut more) = (rig.client(), rig.client_of("more").unwrap());
    read_all(&mut client, 256);
    read_all(&mut more, 512);
    drop((client, more));
    let used = status(&rig, "floe").cached[0].used_bytes;
    assert_eq!(used, 3 * MIB, "all threads keep it");
    rig.end();
}
