//! A process that uses the cache and is killed at any moment.
//!
//! The child draws its operations from a seed and says after which of them it has synced. The
//! parent draws the same operations and knows what must not come back.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{open, value};
use floe_hybrid::{Opened, Removed};

const KEYS: u64 = 3000;
const MEMORY: u64 = 1 << 20;
const FLASH: u64 = 12 << 20;
/// Versions of a round; far more than a round has time for.
const ROUND: u64 = 1 << 32;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Insert { key: u64, len: usize },
    Remove { key: u64 },
    RemoveDurably { key: u64 },
    Get { key: u64 },
    Sync,
}

/// The operations of a round, without end.
fn operations(seed: u64) -> impl Iterator<Item = Operation> {
    let mut random = SmallRng::seed_from_u64(seed);
    std::iter::repeat_with(move || {
        let key = random.random_range(0..KEYS);
        match random.random_range(0..1000) {
            0..500 => Operation::Insert { key, len: random.random_range(16..4000) },
            500..600 => Operation::Remove { key },
            600..603 => Operation::RemoveDurably { key },
            603..606 => Operation::Sync,
            _ => Operation::Get { key },
        }
    })
}

fn versioned(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = value(key, len);
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The child's part; it does nothing where no parent started it.
#[test]
fn the_process_that_is_killed() {
    let Ok(path) = std::env::var("FLOE_KILLED_CACHE") else { return };
    let round: u64 = std::env::var("FLOE_KILLED_ROUND").unwrap().parse().unwrap();
    let seed: u64 = std::env::var("FLOE_KILLED_SEED").unwrap().parse().unwrap();
    let cache = open(Path::new(&path), MEMORY, FLASH);
    for (operation, at) in operations(seed).zip(0..) {
        let version = round * ROUND + at;
        match operation {
            Operation::Insert { key, len } => drop(cache.insert(key, versioned(key, version, len))),
            Operation::Remove { key } => cache.remove(&key),
            Operation::RemoveDurably { key } => match cache.remove_durably(&key) {
                Removed::Durable => println!("removed {key} {at}"),
                other => panic!("{other:?}"),
            },
            Operation::Get { key } => drop(cache.get_blocking(&key)),
            Operation::Sync => {
                cache.sync().unwrap();
                println!("synced {at}");
            }
        }
    }
}

#[test]
fn no_kill_brings_back_what_was_durably_changed() {
    let kills = std::env::var("FLOE_HYBRID_KILLS").map_or(8, |kills| kills.parse().unwrap());
    let first = std::env::var("FLOE_SEED").map_or(1, |seed| seed.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    // The version below which no value of a key may be found.
    let mut floors: HashMap<u64, u64> = HashMap::new();
    let mut found_in_all = 0;
    for round in 1..=kills {
        let seed = first * 1_000_000 + round;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kills::the_process_that_is_killed", "--exact", "--nocapture"])
            .env("FLOE_KILLED_CACHE", &path)
            .env("FLOE_KILLED_ROUND", round.to_string())
            .env("FLOE_KILLED_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed between two syncs, and in the middle of one.
        let mut random = SmallRng::seed_from_u64(seed ^ 77);
        let syncs = random.random_range(1..40);
        let mut durable = Vec::new();
        let mut ended = false;
        for line in lines {
            let Ok(line) = line else { break };
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["synced", at] => durable.push((None, at.parse::<u64>().unwrap())),
                ["removed", key, at] => {
                    durable.push((Some(key.parse::<u64>().unwrap()), at.parse().unwrap()));
                }
                _ => continue, // the test harness
            }
            if durable.len() >= syncs && !ended {
                std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
                child.kill().unwrap();
                ended = true; // what the child had said before is still read
            }
        }
        assert!(ended, "round {round}: the child ended by itself");
        child.wait().unwrap();

        // What was durable, by drawing the operations again.
        let last_sync = durable.iter().filter(|(key, _)| key.is_none()).map(|(_, at)| *at).max();
        let last = durable.iter().map(|(_, at)| *at).max().unwrap();
        for (operation, at) in operations(seed).zip(0..=last) {
            let version = round * ROUND + at;
            let is_synced = last_sync.is_some_and(|sync| at <= sync);
            match operation {
                Operation::Insert { key, .. } if is_synced => {
                    floors.insert(key, version);
                }
                Operation::Remove { key } if is_synced => {
                    floors.insert(key, version + 1);
                }
                Operation::RemoveDurably { key } if durable.contains(&(Some(key), at)) => {
                    floors.insert(key, version + 1);
                }
                _ => {}
            }
        }
        let cache = open(&path, MEMORY, FLASH);
        assert_eq!(cache.opened(), Opened::Recovered);
        for key in 0..KEYS {
            let Some(bytes) = cache.get_blocking(&key) else { continue };
            let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            assert_eq!(bytes, versioned(key, version, bytes.len()), "round {round}, key {key}");
            let floor = floors.get(&key).copied().unwrap_or(0);
            assert!(version >= floor, "seed {seed}, key {key}: {version:#x} below {floor:#x}");
            found_in_all += 1;
        }
        assert_eq!(cache.stats().flash.damaged, 0, "round {round}");
        cache.close().unwrap();
    }
    assert!(
        found_in_all > 100 * kills,
        "only {found_in_all} objects were found after {kills} kills"
    );
}
