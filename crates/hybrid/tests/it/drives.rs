//! A cache that is striped over several drives.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use floe_hybrid::{Hybrid, OpenError, Opened, Removed, Reopened, info, prometheus, saved_stats};

use crate::{block_on, value};

type Cache = Hybrid<u64, Vec<u8>>;

const KEYS: u64 = 4000;
/// With a page for the statistics.
const DRIVE: u64 = (8 << 20) + 4096;

fn try_open(paths: &[&Path]) -> Result<Cache, OpenError> {
    let builder = Hybrid::builder().memory(2 << 20).object_bytes(1000);
    paths.iter().fold(builder, |builder, path| builder.flash(path, DRIVE)).open()
}

fn refused(paths: &[&Path]) -> String {
    let line = try_open(paths).unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

fn fill(cache: &Cache) {
    for key in 0..KEYS {
        cache.insert(key, value(key, 1000));
    }
}

/// Makes a cache of three drives that has all keys.
fn filled(folder: &Path) -> (Cache, [PathBuf; 3]) {
    let paths = ["a", "b", "c"].map(|name| folder.join(name));
    let cache = try_open(&[&paths[0], &paths[1], &paths[2]]).unwrap();
    assert_eq!(cache.opened(), Opened::New);
    fill(&cache);
    (cache, paths)
}

fn found(cache: &Cache) -> u64 {
    let is_there = |key: &u64| match cache.get_blocking(key) {
        Some(found) => {
            assert_eq!(found, value(*key, 1000), "{key}");
            true
        }
        None => false,
    };
    (0..KEYS).filter(is_there).count() as u64
}

#[test]
fn all_drives_together_are_one_cache() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, [a, b, c]) = filled(folder.path());
    assert_eq!(found(&cache) + cache.stats().flash.collided, KEYS);
    let keys: Vec<u64> = (0..KEYS).collect();
    let many = block_on(cache.get_many(&keys.iter().collect::<Vec<_>>()));
    assert_eq!(many.iter().flatten().count() as u64, found(&cache));
    cache.remove(&7);
    assert!(matches!(cache.remove_durably(&8), Removed::Durable));
    let removed = cache.remove_if(|key| (100..200).contains(key)).unwrap();
    assert!((98..=100).contains(&removed.removed), "{removed:?}");
    cache.sync().unwrap();
    let stats = cache.stats();
    assert_eq!(stats.drives.len(), 3);
    for drive in &stats.drives {
        assert!((500..1800).contains(&drive.flash.objects), "{drive:?}");
    }
    let sum: u64 = stats.drives.iter().map(|drive| drive.flash.objects).sum();
    assert_eq!((stats.flash.objects, stats.flash.failure), (sum, None));
    cache.close().unwrap();
    drop(cache);

    // Each drive knows its place.
    let cache = try_open(&[&c, &a, &b]).unwrap();
    assert_eq!(cache.opened(), Opened::Clean);
    let warmed = block_on(cache.warm(&keys[1000..1500].iter().collect::<Vec<_>>()));
    assert!(warmed.brought + warmed.in_memory >= 495, "{warmed:?}");
    let left = found(&cache);
    assert!((KEYS - 105..=KEYS - 102).contains(&left), "{left}");
    let drive = info(&b).unwrap().drive.unwrap();
    assert_eq!((drive.place, drive.drives, drive.replacements), (2, 3, 0));
    cache.clear().unwrap();
    assert_eq!(found(&cache), 0);
    cache.close().unwrap();
    drop(cache);
    for path in [&a, &b, &c] {
        let saved = saved_stats(path).unwrap().unwrap();
        assert_eq!((saved.closed, saved.get("drives")), (true, Some(3)));
    }
    assert_eq!(found(&try_open(&[&a, &b, &c]).unwrap()), 0);
}

#[test]
fn drives_that_are_not_those_of_one_cache_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, [a, b, c]) = filled(folder.path());
    assert!(refused(&[&a, &b, &c]).contains("in use"));
    drop(cache);
    let line = refused(&[&a, &b]);
    assert!(line.contains("a is drive 1 of 3 of a cache, and 2 are given"), "{line}");
    let line = refused(&[&b]);
    assert!(line.contains("b is drive 2 of 3 of a cache, and 1 are given"), "{line}");
    let single = folder.path().join("single");
    drop(try_open(&[&single]).unwrap());
    let line = refused(&[&a, &b, &single]);
    assert!(line.contains("single holds a cache of one drive, and 3 are given"), "{line}");
    let others = ["d", "e", "f"].map(|name| folder.path().join(name));
    drop(try_open(&[&others[0], &others[1], &others[2]]).unwrap());
    let line = refused(&[&a, &b, &others[2]]);
    assert!(line.contains("are drives of different caches"), "{line}");
    let missing = folder.path().join("missing");
    let line = refused(&[&a, &b, &missing]);
    assert!(line.contains("missing does not exist, and ") && !missing.exists(), "{line}");
    let copy = folder.path().join("copy");
    std::fs::copy(&b, &copy).unwrap();
    let line = refused(&[&a, &b, &copy]);
    assert!(line.contains("copy have the same drive of a cache"), "{line}");
    // An empty file takes the place of the third drive, which cannot come back then.
    std::fs::write(&missing, []).unwrap();
    let cache = try_open(&[&missing, &b, &a]).unwrap();
    let left = found(&cache);
    assert!((KEYS / 2..KEYS * 5 / 6).contains(&left), "{left}");
    drop(cache);
    let line = refused(&[&a, &b, &c]);
    assert!(line.contains("c was replaced in its cache by another drive"), "{line}");
    let cache = try_open(&[&a, &b, &missing]).unwrap();
    assert_eq!(found(&cache), left);
}

#[test]
fn a_dead_drive_ends_only_its_part_and_can_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, [a, b, c]) = filled(folder.path());
    cache.sync().unwrap();
    let old = folder.path().join("old");
    std::fs::copy(&b, &old).unwrap();
    OpenOptions::new().write(true).open(&b).unwrap().set_len(64 << 10).unwrap();
    let failed = |key: &u64| {
        cache.insert(*key, value(*key, 1000));
        cache.stats().flash.failure.is_some()
    };
    assert!((KEYS..).any(|key| failed(&key)));
    let stats = cache.stats();
    let failures = stats.drives.iter().map(|drive| drive.flash.failure.is_some());
    assert_eq!(failures.collect::<Vec<_>>(), [false, true, false]);
    assert!(stats.flash.failure.unwrap().starts_with(b.to_str().unwrap()));
    let line = cache.sync().unwrap_err().to_string();
    assert!(line.starts_with(b.to_str().unwrap()), "{line}");
    // The others go on.
    let left = found(&cache);
    assert!((KEYS / 2..KEYS * 5 / 6).contains(&left), "{left}");
    let durable =
        (0..300).filter(|key| matches!(cache.remove_durably(key), Removed::Durable)).count();
    assert!((150..250).contains(&durable), "{durable}");
    std::fs::remove_file(&b).unwrap();
    assert!(matches!(cache.reopen_flash().unwrap(), Reopened::New { lost: 1.. }));
    assert_eq!(cache.stats().flash.failure, None);
    fill(&cache);
    cache.sync().unwrap();
    assert_eq!(found(&cache) + cache.stats().flash.collided, KEYS);
    // Without a close, so that the drives are recovered.
    std::mem::forget(cache);
    let copies = ["x", "y", "z"].map(|name| folder.path().join(name));
    [&a, &b, &c].into_iter().zip(&copies).for_each(|(from, to)| drop(std::fs::copy(from, to)));
    let [x, y, z] = &copies;
    let line = refused(&[x, &old, z]);
    assert!(line.contains("old was replaced in its cache by another drive"), "{line}");
    let cache = try_open(&[x, y, z]).unwrap();
    assert_eq!(cache.opened(), Opened::Recovered);
    assert!(found(&cache) > KEYS * 2 / 3);
}

#[test]
fn metrics_by_drive_add_up_to_those_of_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, paths) = filled(folder.path());
    found(&cache);
    let stats = cache.stats();
    let text = prometheus(&[("pages", &stats)]);
    let value = |sample: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        Some(line?.parse().unwrap())
    };
    let path = |at: usize| paths[at].display();
    let on_flash = ",place=\"flash\"";
    let metrics = ["reads_total", "written_bytes_total", "objects", "hits_total"];
    for (metric, place) in metrics.into_iter().zip(["", "", on_flash, on_flash]) {
        let all = value(&format!("floe_hybrid_{metric}{{cache=\"pages\"{place}}}")).unwrap();
        let of_drive = |at: usize| {
            let drive = format!("cache=\"pages\",drive=\"{}\"{place}", path(at));
            value(&format!("floe_hybrid_drive_{metric}{{{drive}}}")).unwrap()
        };
        assert!(all > 0 && (0..3).all(|at| of_drive(at) > 0), "{metric}");
        assert_eq!((0..3).map(of_drive).sum::<u64>(), all, "{metric}");
    }
    assert!(!text.contains("drive_memory") && !text.contains("drive_drives"));
    let alone = Hybrid::<u64, Vec<u8>>::builder()
        .memory(2 << 20)
        .flash(folder.path().join("alone"), DRIVE)
        .open()
        .unwrap();
    assert!(!prometheus(&[("pages", &alone.stats())]).contains("drive="));
}
