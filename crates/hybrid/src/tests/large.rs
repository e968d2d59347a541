//! Objects in parts, compared with a map through crashes of the process and losses of power.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::builder::Builder;
use crate::flash::{Flash, FlashSwitch};
use crate::hybrid::Hybrid;
use crate::insertion::{Declined, Inserted};
use crate::options::InsertOptions;
use crate::tests::simulated::SimulatedFlash;
use crate::tests::store::value_of;

type Cache = Hybrid<u64, Vec<u8>>;

fn open(flash: &Arc<SimulatedFlash>) -> Cache {
    let builder: Builder<u64, Vec<u8>> =
        Hybrid::builder().memory(1 << 20).flash("simulated", flash.size_bytes());
    let make = |_: &_, _| Ok(FlashSwitch::simulated(Arc::clone(flash) as Arc<dyn Flash>));
    builder.open_on(make).unwrap()
}

/// The newest version of a key, and the one below which none may come back.
type Versions = HashMap<u64, (Option<u64>, u64)>;

fn world(seed: u64) -> u64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let bytes = 64 * 1024 * random.random_range(32..80) + (64 << 10);
    let mut flash = Arc::new(SimulatedFlash::new(bytes, seed));
    let mut versions = Versions::new();
    let (mut version, mut found_large) = (1, 0);
    for _ in 0..3 {
        let cache = open(&flash);
        let mut check = |versions: &mut Versions, key: u64, crashed: bool| {
            let found = cache.get_blocking(&key).map(|value| {
                let found = u64::from_le_bytes(value[8..16].try_into().unwrap());
                assert!(value == value_of(key, found, value.len()), "seed {seed}: {key} not whole");
                found_large += u64::from(value.len() > 64 << 10);
                found
            });
            let (newest, floor) = versions.entry(key).or_default();
            if crashed {
                *newest = found;
            }
            assert!(found.is_none() || found == *newest, "seed {seed}: {key} has {found:?}");
            assert!(found.is_none_or(|found| found >= *floor), "seed {seed}: {key} came back");
        };
        (0..12).for_each(|key| check(&mut versions, key, true));
        if random.random_bool(0.5) {
            flash.lose_power_after(random.random_range(0..400));
        }
        let raise = |versions: &mut Versions, version: u64| {
            for (newest, floor) in versions.values_mut() {
                *floor = newest.unwrap_or(version).max(*floor);
            }
        };
        let alive = || cache.stats().flash.failure.is_none();
        for _ in 0..60 {
            let key = random.random_range(0..12);
            version += 1;
            match random.random_range(0..20) {
                0..10 => {
                    let len = match random.random_range(0..3) {
                        0 => random.random_range(16..4_000),
                        // Equal lengths, so that parts of several objects could be mixed.
                        _ => [60_000, 120_000, 240_000][random.random_range(0..3)],
                    };
                    let hints = [InsertOptions::new(), InsertOptions::new().to_flash()];
                    let hint = hints[random.random_range(0..2)];
                    let inserted = cache.insert_with(key, value_of(key, version, len), hint);
                    let is_declined = matches!(inserted, Inserted::Declined(_));
                    assert!(!is_declined || !alive(), "seed {seed}: {inserted:?}");
                    versions.entry(key).or_default().0 = (!is_declined).then_some(version);
                }
                10..12 => {
                    cache.remove(&key);
                    versions.entry(key).or_default().0 = None;
                }
                12 => {
                    if cache.sync().is_ok() {
                        raise(&mut versions, version);
                    }
                }
                _ => check(&mut versions, key, false),
            }
            if !alive() {
                break;
            }
        }
        let loses_power = random.random_bool(0.5);
        if !loses_power && alive() {
            raise(&mut versions, version); // the end of the process undoes nothing
        }
        flash.lose_power_after(0);
        drop(cache);
        let image = if loses_power { flash.after_power_loss() } else { flash.written() };
        flash = Arc::new(SimulatedFlash::from_image(image, seed ^ version));
    }
    found_large
}

#[test]
fn objects_in_parts_are_whole_or_gone_after_any_crash() {
    // A twentieth of the worlds of small objects: each takes longer.
    let all = std::env::var("FLOE_HYBRID_WORLDS").map_or(300, |worlds| worlds.parse().unwrap());
    let worlds = u64::max(all / 20, 1);
    let first = std::env::var("FLOE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let found: u64 = (first..first + worlds).map(world).sum();
    assert!(found > worlds, "{found} large objects found");
}

#[test]
fn an_object_without_one_of_its_parts_is_gone() {
    let flash = Arc::new(SimulatedFlash::new(8 << 20, 1));
    let cache = open(&flash);
    let to_flash = InsertOptions::new().to_flash();
    for key in 0..4 {
        let inserted = cache.insert_with(key, value_of(key, 1, 400_000), to_flash);
        assert_eq!(inserted, Inserted::ToFlash);
    }
    let too_large = cache.insert_with(9, vec![0; 2 << 20], to_flash);
    assert_eq!(too_large, Inserted::Declined(Declined::TooLarge));
    cache.sync().unwrap();
    let objects = cache.stats().flash.objects;
    // A page in the middle of the second object.
    flash.flip(((64 << 10) + 600_000) * 8);
    let found = (0..4).map(|key| cache.get_blocking(&key) == Some(value_of(key, 1, 400_000)));
    assert_eq!(found.collect::<Vec<_>>(), [true, false, true, true]);
    assert!(!cache.contains(&1));
    assert_eq!(cache.stats().flash.damaged, 1);
    assert_eq!(cache.stats().flash.objects, objects - 2, "the part and the list of parts");
    assert!(cache.insert_with(1, value_of(1, 2, 300_000), to_flash) == Inserted::ToFlash);
    assert_eq!(cache.get_blocking(&1), Some(value_of(1, 2, 300_000)));
}
