//! A search for the cached blocks of a volume, in steps. A volume may be much larger than the
//! cache, and a step must be short, or clients would wait.
//!
//! A step visits a number of slots, in all tiers of a part one after the other. Blocks that stay
//! are found exactly once. Blocks that come or go between two steps may be found or not.

use crate::cache::BlockCache;
use crate::driver::Driver;
use crate::geometry::{Sectors, VolumeId};
use crate::mapping::directory::{of_volume, slots};

/// The place at which a search goes on; the default is its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SearchPlace {
    /// Number of tiers in which the search began; 0 before that.
    tiers: usize,
    tier: usize,
    shard: usize,
    slot: u32,
}

/// Visits up to `most` slots of a driver's tiers from `from` on, and passes the sectors of the
/// volume's blocks there that touch `sectors` to `found`. Returns the place to go on from, or
/// `None` at the end. The search begins anew where a tier was attached or detached since the last
/// step. A volume that does not exist has no blocks.
///
/// # Panics
/// When `most` is 0.
pub fn search(
    driver: &Driver,
    volume: VolumeId,
    sectors: &Sectors,
    from: SearchPlace,
    most: u32,
    found: &mut impl FnMut(Sectors),
) -> Option<SearchPlace> {
    assert!(most > 0, "a search goes on with each step");
    driver.top().cache().volume_bytes(volume)?;
    let ids = driver.volume_ids(volume);
    let tiers = ids.len();
    let begun = SearchPlace { tiers, ..SearchPlace::default() };
    let mut place = if from.tiers == tiers { from } else { begun };
    let mut left = most;
    for (tier, id) in driver.tiers().zip(ids).skip(place.tier) {
        let begun = (place.shard, place.slot);
        match search_tier(tier.cache(), id, sectors, begun, left, found) {
            Ok(visited) => left -= visited,
            Err((shard, slot)) => return Some(SearchPlace { shard, slot, ..place }),
        }
        place = SearchPlace { tiers, tier: place.tier + 1, shard: 0, slot: 0 };
    }
    None
}

/// Searches one tier. Returns the number of slots visited, or the place to go on from.
fn search_tier(
    cache: &BlockCache,
    volume: VolumeId,
    sectors: &Sectors,
    (first, mut slot): (usize, u32),
    most: u32,
    found: &mut impl FnMut(Sectors),
) -> Result<u32, (usize, u32)> {
    let mut left = most;
    for (number, shard) in cache.shards.iter().enumerate().skip(first) {
        let blocks = &shard.parts.map.directory.blocks;
        let end = slots(blocks).min(slot.saturating_add(left));
        let touches = |run: &Sectors| run.start < sectors.end && sectors.start < run.end;
        of_volume(blocks, volume, slot..end).filter(touches).for_each(&mut *found);
        left -= end.saturating_sub(slot);
        if end < slots(blocks) {
            return Err((number, end));
        }
        slot = 0;
    }
    Ok(most - left)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use floe_device::{MemoryDevice, Pool};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::geometry::SECTOR_BYTES;
    use crate::{AdmissionConfig, Config, Evict, Memory, Request, RequestKind, Tier, WriteMode};

    const VOLUME: u64 = 64 << 20;

    fn tier(sizes: &str, cache_bytes: u64, pool: &Pool) -> Tier {
        let config = Config {
            adapts_fetches: false,
            sizes: sizes.parse().unwrap(),
            cache_bytes,
            mode: WriteMode::Through,
            shards: Some(3),
            gate: AdmissionConfig::default(),
            evict: Evict::default(),
            memory: Memory::None,
            kept: false,
        };
        let device = Box::new(MemoryDevice::new(cache_bytes));
        Tier::new(BlockCache::new(config).unwrap(), device, pool.clone())
    }

    fn ask(driver: &mut Driver, volume: VolumeId, kind: RequestKind, offset: u64, len: u64) {
        let request = Request { volume, kind, offset, len };
        let buffer = driver.buffer(&request);
        driver.submit(request, Some(buffer));
        while !driver.is_idle() {
            driver.advance();
        }
        driver.take_answers(&mut Vec::new());
    }

    /// The sectors of blocks found in steps of `most` slots.
    fn found(driver: &Driver, volume: VolumeId, sectors: &Sectors, most: u32) -> BTreeSet<u64> {
        let (mut all, mut place, mut steps) = (BTreeSet::new(), SearchPlace::default(), 0);
        loop {
            let next = search(driver, volume, sectors, place, most, &mut |run| all.extend(run));
            let Some(next) = next else { return all };
            assert_ne!(next, place, "it goes on");
            (place, steps) = (next, steps + 1);
            assert!(steps < 100_000);
        }
    }

    #[test]
    fn a_search_finds_what_is_cached_and_nothing_else_of_the_volume() {
        for seed in 0..20 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let pool = Pool::new(0);
            let lower = tier("4KiB,16KiB", 2 << 20, &pool);
            let mut driver = Driver::on(tier("8KiB", 192 << 10, &pool), Driver::new(lower));
            let ids = [[VolumeId(1), VolumeId(0)], [VolumeId(0), VolumeId(5)]];
            for ids in &ids {
                driver.add_volume_in(ids, "test", Box::new(MemoryDevice::new(VOLUME)));
            }
            // All that a volume reads fits into the lower tier, in aligned blocks of 4 or 16 KiB.
            let mut read = [BTreeSet::new(), BTreeSet::new()];
            for _ in 0..30 {
                let which = rng.random_range(0..2);
                let sector = rng.random_range(0..VOLUME / SECTOR_BYTES / 4) * 4;
                ask(&mut driver, ids[which][0], RequestKind::Read, sector * SECTOR_BYTES, 16384);
                read[which].extend(sector..sector + 4);
            }
            let (end, part) = (VOLUME / SECTOR_BYTES, 1000..9000);
            for most in [1, 7, 50, u32::MAX] {
                for (ids, read) in ids.iter().zip(&read) {
                    assert_eq!(found(&driver, ids[0], &(0..end), most), *read, "seed {seed}");
                    let some = found(&driver, ids[0], &part, most);
                    let wanted: BTreeSet<u64> = read.range(part.clone()).copied().collect();
                    assert!(some.is_superset(&wanted), "seed {seed}");
                    // A block is found whole.
                    assert!(some.range(..part.start - 3).next().is_none(), "seed {seed}");
                    assert!(some.range(part.end + 3..).next().is_none(), "seed {seed}");
                }
            }
            assert!(found(&driver, VolumeId(9), &(0..end), 5).is_empty());
            ask(&mut driver, ids[0][0], RequestKind::Evict, 0, VOLUME);
            assert!(found(&driver, ids[0][0], &(0..end), 5).is_empty(), "seed {seed}");
            assert_eq!(found(&driver, ids[1][0], &(0..end), 5), read[1], "seed {seed}");
        }
    }

    #[test]
    fn a_search_begins_anew_in_other_tiers() {
        let pool = Pool::new(0);
        let mut driver = Driver::new(tier("4KiB", 1 << 20, &pool));
        driver.add_volume_in(&[VolumeId(0)], "test", Box::new(MemoryDevice::new(VOLUME)));
        ask(&mut driver, VolumeId(0), RequestKind::Read, 0, 256 << 10);
        let sectors = 0..VOLUME / SECTOR_BYTES;
        let (mut first, mut second) = (0, 0);
        let begun = SearchPlace::default();
        let place = search(&driver, VolumeId(0), &sectors, begun, 30, &mut |_| first += 1);
        assert!(first > 0 && first <= 30, "{first}");
        let other = SearchPlace { tiers: 2, ..place.unwrap() };
        let next = search(&driver, VolumeId(0), &sectors, other, u32::MAX, &mut |_| second += 1);
        assert_eq!((next, second), (None, 64));
    }
}
