//! Mirrors by the hundred thousand on simulated disks, crashed between any two steps.
//!
//! One seed makes a [world](world). Nothing in it waits, reads a clock or starts a thread, so a
//! seed that fails once fails always. The [oracle](oracle) knows which contents each sector may
//! have: nothing flushed is lost, no stale content is read, halves are equal after a resync.
//!
//! ```text
//! FLOE_MIRROR_SEED=17 cargo test -p floe-device --lib mirror::sim::one_world -- --ignored
//! FLOE_MIRROR_WORLDS=100000 cargo test -p floe-device --lib mirror::sim
//! ```

mod client;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::client::PLANTS;
use self::world::Seldom;
use super::state::Plant;
use world::World;

/// Worlds of a test, unless FLOE_MIRROR_WORLDS says how many.
const WORLDS: u64 = 10_000;

/// Worlds in which a planted fault has to show.
const WORLDS_FOR_PLANT: u64 = 50_000;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn run_one(seed: u64, plant: Option<Plant>) -> Result<Seldom, String> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, plant);
        world.run().map(|()| world.seldom)
    }));
    run.unwrap_or_else(|_| Err("it panics".to_owned()))
}

/// Runs worlds; an error names the seed of the first that fails.
fn run(seeds: std::ops::Range<u64>) -> Result<Seldom, String> {
    let mut sum = Seldom::default();
    for seed in seeds {
        let why = |why| format!("world {seed}: {why}");
        sum += run_one(seed, None).map_err(why)?;
    }
    Ok(sum)
}

#[test]
fn what_was_flushed_is_there_while_one_half_in_sync_survives() {
    let worlds = setting("FLOE_MIRROR_WORLDS").unwrap_or(WORLDS);
    let seldom = run(0..worlds).unwrap_or_else(|why| panic!("{why}"));
    println!("{seldom:?}");
    for (what, count) in seldom.counts() {
        assert!(count > worlds / 50, "{what} happened {count} times only");
    }
}

#[test]
#[ignore = "one seed, FLOE_MIRROR_SEED, again"]
fn one_world() {
    let seed = setting("FLOE_MIRROR_SEED").unwrap_or(0);
    run_one(seed, None).unwrap_or_else(|why| panic!("world {seed}: {why}"));
}

#[test]
fn each_planted_fault_is_found() {
    for plant in PLANTS {
        let found = (0..WORLDS_FOR_PLANT)
            .find_map(|seed| run_one(seed, Some(plant)).err().map(|why| (seed, why)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        println!("{plant:?}: world {seed}: {}", why.chars().take(100).collect::<String>());
    }
}
