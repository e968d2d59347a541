//! Compression of values on flash.

use std::path::Path;
use std::time::Duration;

use floe_hybrid::{Compression, Hybrid, InsertOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const KEYS: u64 = 600;

fn open(path: &Path, compression: Compression) -> Hybrid<u64, Vec<u8>> {
    let built = Hybrid::builder().memory(1 << 20).flash(path, 32 << 20);
    built.compression(compression).open().unwrap()
}

/// Returns text-like values, and noise for some keys.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(key << 8 | version);
    let len = random.random_range(1..6000);
    let letters = if key.is_multiple_of(5) { 0..=255 } else { b'a'..=b'd' };
    (0..len).map(|_| random.random_range(letters.clone())).collect()
}

#[test]
fn objects_are_read_whatever_the_setting_was_and_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let settings = [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 0 },
        Compression::None,
        Compression::Zstd { level: 12 },
    ];
    let mut versions = vec![0; KEYS as usize];
    let mut appended = Vec::new();
    for (version, setting) in settings.into_iter().enumerate() {
        let cache = open(&path, setting);
        let check = |versions: &[u64]| {
            for key in 0..KEYS {
                let wanted = value(key, versions[key as usize]);
                let found = match key % 3 {
                    0 => cache.get_blocking(&key),
                    1 => super::block_on(cache.get(&key)),
                    _ => super::block_on(cache.get_many(&[&key])).pop().unwrap(),
                };
                assert_eq!(found, (version > 0).then_some(wanted), "key {key} by {setting:?}");
            }
        };
        check(&versions);
        // Each setting writes a part of the keys anew, the first one all.
        for key in (0..KEYS).filter(|key| version == 0 || key % 5 == version as u64) {
            versions[key as usize] = version as u64;
            let to_flash = InsertOptions::new().to_flash();
            cache.insert_with(key, value(key, version as u64), to_flash);
        }
        appended.push(cache.stats().flash.appended_bytes);
        assert_eq!(cache.stats().flash.undecoded, 0);
        cache.close().unwrap();
    }
    let cache = open(&path, Compression::Lz4);
    for key in 0..KEYS {
        assert_eq!(cache.get_blocking(&key), Some(value(key, versions[key as usize])));
    }
    // Four letters are two bits of eight.
    assert!(appended[2] * 2 < appended[3], "{appended:?}");
}

#[test]
fn a_file_of_the_first_version_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, Compression::None);
    for key in 0..KEYS {
        cache.insert(key, value(key, 0));
    }
    cache.close().unwrap();
    drop(cache);
    // Without flags, records are those of version 1.
    let mut file = std::fs::read(&path).unwrap();
    for page in file[..8192].chunks_mut(4096) {
        assert_eq!(page[16], 3);
        page[16] = 1;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &page[4..]) as u32;
        page[..4].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(&path, file).unwrap();
    let cache = open(&path, Compression::Lz4);
    for key in 0..KEYS {
        assert_eq!(cache.get_blocking(&key), Some(value(key, 0)));
    }
    let newer = std::fs::read(&path).unwrap();
    assert!(newer[16] == 3 && newer[4096 + 16] == 3, "both superblocks were written since");
}

#[test]
fn compressed_objects_that_are_used_stay_when_the_log_goes_round() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let built = Hybrid::builder().memory(1 << 20).flash(&path, 2 << 20);
    let cache: Hybrid<u64, Vec<u8>> = built.compression(Compression::Lz4).open().unwrap();
    let (fresh, stale) = (Duration::from_secs(1000), Duration::from_secs(1000));
    let options = InsertOptions::new().to_flash().stale_while_revalidate(fresh, stale);
    let hot: Vec<u64> = (0..20).collect();
    for key in 0..20_000 {
        cache.insert_with(key, value(key, 0), options);
        if key > 20 && key % 50 == 0 {
            let found = super::block_on(cache.get_many(&hot.iter().collect::<Vec<_>>()));
            for (key, found) in hot.iter().zip(found) {
                assert!(found.is_none_or(|found| found == value(*key, 0)), "{key}");
            }
        }
    }
    let stats = cache.stats().flash;
    assert!(stats.kept > 50 && stats.evicted > 10_000, "{stats:?}");
    assert_eq!((stats.damaged, stats.undecoded), (0, 0));
}
