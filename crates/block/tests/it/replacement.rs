//! Which blocks are there after which requests, seen from outside: a read of a cached sector orders
//! nothing from the backing device.

use std::collections::HashMap;

use crate::common::*;
use floe_block::{Config, Evict, WriteMode};
use floe_policy::{Access, AnyPolicy, Eviction, Slot, mix};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const VOLUME: u64 = 1 << 20;

/// Reads a range of sectors, and answers whether it was a hit.
fn hits(bench: &mut Bench, start: u64, sectors: u64) -> bool {
    let before = bench.cache.stats().requests.read_hits;
    bench.ask(read(start * SECTOR, sectors * SECTOR), 0).unwrap();
    bench.cache.stats().requests.read_hits > before
}

/// Live blocks by size.
fn blocks(bench: &Bench) -> Vec<u64> {
    bench.cache.stats().blocks.iter().map(|(_, blocks)| *blocks).collect()
}

/// A cache whose blocks leave by a policy.
fn by(evict: &str, sizes: &str, cache_bytes: u64) -> Config {
    let evict = evict.parse().expect("a block cache can have it");
    Config { evict, ..config(sizes, cache_bytes, WriteMode::Through) }
}

/// One block size against a plain list of block numbers, the next to leave in front.
fn compare_with_a_list(evict: &str, a_hit_promotes: bool) {
    let mut bench = Bench::new(by(evict, "8KiB", 16 * 8192), &[VOLUME]);
    let mut model: Vec<u64> = Vec::new();
    let mut rng = SmallRng::seed_from_u64(7);
    for _ in 0..5_000 {
        let sector = rng.random_range(0..64u64);
        let block = sector / 2;
        let hit = model.contains(&block);
        if hit && a_hit_promotes {
            model.retain(|other| *other != block);
        }
        if !hit && model.len() == 16 {
            model.remove(0);
        }
        if !hit || a_hit_promotes {
            model.push(block);
        }
        assert_eq!(hits(&mut bench, sector, 1), hit, "sector {sector}");
    }
    bench.check_idle();
}

#[test]
fn one_block_size_is_plain_lru() {
    compare_with_a_list("lru", true);
}

#[test]
fn one_block_size_over_fifo_is_first_in_first_out() {
    compare_with_a_list("fifo", false);
}

/// Groups of 32 KiB for blocks of 4, 16 and 32 KiB.
fn grouped(groups: u64) -> Bench {
    Bench::new(config("4KiB,16KiB,32KiB", groups * 32768, WriteMode::Through), &[VOLUME])
}

#[test]
fn a_block_goes_to_the_open_group_of_its_size_and_then_to_a_free_group() {
    let mut bench = grouped(3);
    for block in 0..8 {
        assert!(!hits(&mut bench, 16 * block, 1)); // one group of small blocks
    }
    assert!(!hits(&mut bench, 8, 4)); // opens a group of middle ones
    assert!(!hits(&mut bench, 24, 4)); // fills it
    assert!(!hits(&mut bench, 40, 8)); // takes the last free group
    assert_eq!(blocks(&bench), [8, 2, 1]);
    assert!((0..8).all(|block| hits(&mut bench, 16 * block, 1)), "nothing had to leave");
    assert!(hits(&mut bench, 8, 4) && hits(&mut bench, 24, 4) && hits(&mut bench, 40, 8));
}

#[test]
fn the_coldest_block_of_the_wanted_size_is_replaced_in_place_and_its_group_promoted() {
    let mut bench = grouped(2);
    for block in 0..8 {
        hits(&mut bench, 8 * block, 1); // group 0: blocks at sectors 0, 8, … 56
    }
    hits(&mut bench, 64, 4); // group 1
    hits(&mut bench, 68, 4);
    assert!(!hits(&mut bench, 72, 1), "a small block is wanted, and the coldest block is small");
    assert_eq!(blocks(&bench), [8, 2, 0]);
    // Group 0 is now the hotter one, though the coldest block, at sector 8, is in it: a large block
    // empties group 1.
    assert!(!hits(&mut bench, 80, 8));
    assert_eq!(blocks(&bench), [8, 0, 1]);
    assert!((1..8).all(|block| hits(&mut bench, 8 * block, 1)) && hits(&mut bench, 72, 1));
    assert!(!hits(&mut bench, 0, 1), "the coldest block had been replaced");
}

#[test]
fn the_coldest_group_is_emptied_when_the_coldest_block_has_another_size() {
    let mut bench = grouped(2);
    for block in 0..8 {
        hits(&mut bench, 8 * block, 1);
    }
    hits(&mut bench, 64, 8);
    assert!(
        hits(&mut bench, 56, 1),
        "a hit promotes the group of small blocks, not its other blocks"
    );
    assert!(
        !hits(&mut bench, 72, 4),
        "the coldest block is small; the coldest group is that of the large block"
    );
    assert_eq!(blocks(&bench), [8, 1, 0]);
    assert!((0..8).all(|block| hits(&mut bench, 8 * block, 1)));
    assert!(!hits(&mut bench, 64, 8));
}

#[test]
fn an_emptied_open_group_is_open_no_more() {
    let mut bench = grouped(2);
    hits(&mut bench, 0, 1); // opens a group of small blocks
    hits(&mut bench, 8, 8);
    hits(&mut bench, 16, 8); // empties it
    assert_eq!(blocks(&bench), [0, 0, 2]);
    assert!(!hits(&mut bench, 0, 1));
    assert_eq!(blocks(&bench), [1, 0, 1]);
    assert!(hits(&mut bench, 16, 8) && !hits(&mut bench, 8, 8));
    bench.check_idle();
}

#[test]
fn blocks_are_as_large_as_what_is_missing_allows() {
    let mut bench = grouped(16);
    hits(&mut bench, 2, 1);
    assert!(
        !hits(&mut bench, 0, 16),
        "around sector 2: three small blocks, a middle and a large one"
    );
    assert_eq!(blocks(&bench), [4, 1, 1]);
}

fn metadata_per_block(sizes: &str, mean_sectors: u64, seed: u64) -> f64 {
    let mut bench = Bench::new(config(sizes, 64 << 20, WriteMode::Through), &[512 << 20]);
    bench.keep_log = false;
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..60_000 / mean_sectors {
        let len = rng.random_range(1..=2 * mean_sectors);
        let start = rng.random_range(0..(512u64 << 20) / SECTOR - len);
        let request = read(start * SECTOR, len * SECTOR);
        assert!(bench.cache_only(request));
    }
    let stats = bench.cache.stats();
    let blocks: u64 = stats.blocks.iter().map(|(_, blocks)| blocks).sum();
    stats.block_metadata_bytes as f64 / blocks as f64
}

#[test]
fn a_block_takes_at_most_forty_bytes_of_metadata() {
    for (sizes, mean_sectors) in [
        ("4KiB", 2),
        ("4KiB,8KiB,16KiB,32KiB,64KiB", 4),
        ("4KiB,8KiB,16KiB,32KiB,64KiB", 16),
        ("32KiB,64KiB,128KiB,256KiB", 8),
        ("32KiB,64KiB,128KiB,256KiB", 32),
    ] {
        let bytes = metadata_per_block(sizes, mean_sectors, mean_sectors);
        println!("{sizes}, requests of {} KiB: {bytes:.1} bytes a block", mean_sectors * 4);
        assert!(
            bytes <= 40.0,
            "{sizes}, requests of {} KiB: {bytes:.1} bytes a block",
            mean_sectors * 4
        );
    }
}

/// What a policy by itself has cached after the same requests, where every block weighs one.
struct ByItself {
    order: AnyPolicy,
    slots: HashMap<u64, Slot>,
    blocks: Vec<u64>,
}

impl ByItself {
    fn new(evict: &Evict, blocks: usize) -> Self {
        let mut order = AnyPolicy::new(evict.choice());
        order.set_capacity(blocks as u64);
        Self { order, slots: HashMap::new(), blocks: Vec::with_capacity(blocks) }
    }

    fn hits(&mut self, block: u64) -> bool {
        if let Some(&slot) = self.slots.get(&block) {
            self.order.access(slot);
            return true;
        }
        // as the cache names a block of two sectors of its first volume
        let access = Access::new(mix(4 * block + 2));
        let slot = if self.blocks.len() < self.blocks.capacity() {
            self.blocks.push(block);
            // a cache grows, and some policies forget by that
            self.order.reserve(self.blocks.len());
            Slot(self.blocks.len() as u32 - 1)
        } else {
            let victim = self.order.evict(Some(&access)).expect("somebody can go");
            self.slots.remove(&std::mem::replace(&mut self.blocks[victim.index()], block));
            victim
        };
        self.slots.insert(block, slot);
        self.order.insert(slot, &access);
        false
    }
}

#[test]
fn every_policy_evicts_from_the_cache_as_it_does_by_itself() {
    // One that fetches ahead has other blocks than asked for.
    for evict in Evict::all().filter(|evict| evict.fetches_ahead().is_none()) {
        let mut bench = Bench::new(by(&evict.to_string(), "8KiB", 16 * 8192), &[VOLUME]);
        let mut by_itself = ByItself::new(&evict, 16);
        let mut rng = SmallRng::seed_from_u64(7);
        for at in 0..5_000 {
            let block = rng.random_range(0..8u64) * rng.random_range(1..=8u64);
            assert_eq!(
                hits(&mut bench, 2 * block, 1),
                by_itself.hits(block),
                "{evict}: request {at}"
            );
        }
        bench.check_idle();
    }
}

#[test]
fn a_policy_that_has_to_know_the_future_is_refused_and_the_others_are_named() {
    let error = "belady".parse::<Evict>().unwrap_err().to_string();
    assert!(error.contains("asked for next") && error.contains("lru, "), "{error}");
    assert!(error.ends_with("sarc, auto"), "{error}");
    let error = "sarc:threshold=1".parse::<Evict>().unwrap_err().to_string();
    assert!(error.contains("threshold") && error.contains("from 2 to 64"), "{error}");
}
