//! The block cache in a machine that crashes: power cuts, kills and failing disks, by the ten
//! thousand.
//!
//! One seed makes a [`world`]: a cache with its [disks](disk), clients, and one crash after the
//! other. An [`oracle`] knows what every 512 bytes may hold. Nothing here waits, reads a clock or
//! starts a thread within a world, so a seed that fails once fails always:
//!
//! ```text
//! FLOE_CRASH_SEED=17 cargo test -p floe-block --test crash one_world -- --ignored --nocapture
//! FLOE_CRASHES=1000000 make soak
//! ```
//!
//! A binary of its own, since `--cfg floe_crash` builds it with faults planted.

#![allow(unreachable_pub)] // modules of one test

mod boot;
mod disk;
mod history;
mod machine;
mod oracle;
mod outage;
mod peers;
mod rot;
mod runner;
mod stamp;
mod world;

use floe_device::Pool;

use disk::Lie;
use runner::{run, run_one};
use world::{Options, Where};

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn whatever_was_flushed_is_there_after_any_crash() {
    match run(0, setting("FLOE_CRASHES").unwrap_or(30_000), Options::default()) {
        Ok(survived) => {
            eprintln!("{survived}");
            assert!(survived.crashes() < 1_000 || survived.smaller > 10, "sizes change");
        }
        Err(fallen) => panic!("{fallen}"),
    }
}

#[test]
#[ignore = "as long as one likes: FLOE_CRASHES of them, from FLOE_CRASH_SEED on"]
fn soak() {
    let first = setting("FLOE_CRASH_SEED").unwrap_or(1 << 32);
    match run(first, setting("FLOE_CRASHES").unwrap_or(100_000), Options::default()) {
        Ok(survived) => eprintln!("{survived}"),
        Err(fallen) => panic!("{fallen}"),
    }
}

#[test]
#[ignore = "one seed, FLOE_CRASH_SEED, again"]
fn one_world() {
    let seed = setting("FLOE_CRASH_SEED").expect("FLOE_CRASH_SEED says which");
    let mirror = setting("FLOE_CRASH_MIRROR").is_some();
    match run_one(seed, &Pool::new(0), Options { mirror, ..Options::default() }) {
        Ok((survived, _)) => eprintln!("{survived}"),
        Err(fallen) => panic!("{fallen}"),
    }
}

/// Each is to be found before as many crashes as fit in a minute; `FLOE_PLANTED` names one.
#[cfg(floe_crash)]
#[test]
#[ignore = "scripts/planted"]
fn every_planted_fault_is_found() {
    use floe_block::planted::Planted;
    let only = std::env::var("FLOE_PLANTED").ok();
    let is_meant = |fault: &Planted| only.as_ref().is_none_or(|only| *only == format!("{fault:?}"));
    for fault in Planted::ALL.into_iter().filter(is_meant) {
        let begun = std::time::Instant::now();
        let options = Options { planted: Some(fault), ..Options::default() };
        let fallen = run(0, 200_000, options).expect_err(&format!("{fault:?} is not noticed"));
        let (worlds, seconds) = (fallen.seed + 1, begun.elapsed().as_secs_f64());
        let what = fallen.why.lines().rfind(|line| !line.starts_with(' ')).unwrap_or_default();
        eprintln!(
            "{fault:?}: in life {} of world {worlds}, after {seconds:.2} s: {what}",
            fallen.life
        );
    }
}

#[test]
fn a_seed_gives_the_same_world_again() {
    let pool = Pool::new(0);
    for (seed, mirror) in (0..5).flat_map(|seed| [(seed, false), (seed, true)]) {
        let options = Options { mirror, ..Options::default() };
        let digests = [(); 2].map(|()| run_one(seed, &pool, options).unwrap().1);
        assert_eq!(digests[0], digests[1]);
    }
}

#[test]
fn with_one_intact_half_nothing_is_lost_and_nothing_wrong_is_served() {
    let options = Options { mirror: true, ..Options::default() };
    match run(0, setting("FLOE_MIRROR_CRASHES").unwrap_or(6_000), options) {
        Ok(survived) => {
            eprintln!("{survived}");
            assert!(survived.rotten_bits > 300 && survived.mended_bytes > 300_000);
        }
        Err(fallen) => panic!("{fallen}, with FLOE_CRASH_MIRROR=1"),
    }
}

#[test]
fn a_cache_that_reads_what_may_still_be_lost_is_found_out() {
    let fallen = run(0, 2_000, Options { hasty: true, ..Options::default() })
        .expect_err("it is not noticed");
    eprintln!("in life {} of world {}", fallen.life, fallen.seed);
}

/// What a disk does wrong behind a good cache looks just like what a bad cache does on a good disk.
#[test]
fn every_lie_of_a_disk_is_found_out() {
    use Lie::{
        DurableIsNot, FailsForNoReason, FlipsBits, FlushDoesNothing, Forgets, LosesWrites,
        MisplacesWrites, ReadsStale, TearsWrites,
    };
    let lies = [
        LosesWrites,
        TearsWrites,
        MisplacesWrites,
        ReadsStale,
        FlipsBits,
        FailsForNoReason,
        Forgets,
        FlushDoesNothing,
        DurableIsNot,
    ];
    for lie in lies.into_iter().flat_map(|lie| [(Where::Cache, lie), (Where::Backing, lie)]) {
        let fallen = run(0, 2_000, Options { lie: Some(lie), ..Options::default() })
            .expect_err(&format!("{lie:?} is not noticed"));
        eprintln!("{lie:?}: in life {} of world {}", fallen.life, fallen.seed);
    }
}
