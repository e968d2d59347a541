//! Tests of the simulation of cache lines, by cases whose times are known by hand.

use super::*;

const MACHINE: Machine = Machine { transfer_ns: 50.0, far_ns: 50.0, group: 8, pause_ns: 10.0 };

fn setting(cache: &str, cores: u32) -> Setting {
    Setting {
        cache: SharedCache::named(cache).expect("the tests name caches"),
        machine: MACHINE,
        cores,
        keys: 1_000,
        theta: 0.99,
        hit_ratio: 1.0,
        shards: None,
        hit_ns: None,
        retries: true,
        requests: 20_000,
        seed: 1,
    }
}

fn run(setting: &Setting) -> Coherence {
    simulate(setting).expect("the settings are in range")
}

#[test]
fn one_core_transfers_nothing_and_takes_the_time_of_a_hit() {
    for cache in &CACHES {
        let found = run(&setting(cache.name, 1));
        assert_eq!(found.transfers_per_request, 0.0, "{}", cache.name);
        assert_eq!(found.retries_per_request, 0.0, "{}", cache.name);
        let off = found.request_ns / cache.hit_ns - 1.0;
        assert!(off.abs() < 0.02, "{}: {} ns", cache.name, found.request_ns);
    }
}

#[test]
fn hits_that_write_nothing_scale_with_the_cores() {
    let [one, many] = [1, 72].map(|cores| run(&setting("floe", cores)));
    assert_eq!(many.transfers_per_request, 0.0);
    assert!((many.mrps / one.mrps / 72.0 - 1.0).abs() < 0.02, "{} {}", one.mrps, many.mrps);
}

#[test]
fn a_lock_around_all_of_a_hit_bounds_the_rate_by_its_transfers() {
    let found = run(&setting("mutex-lru", 72));
    // The lock, the head and what was the head pass on with each request; other lines often do.
    assert!(found.transfers_per_request > 3.0, "{found:?}");
    assert!(found.mrps < 1000.0 / (3.0 * MACHINE.transfer_ns), "{found:?}");
    let free = Setting {
        machine: Machine { transfer_ns: 0.0, far_ns: 0.0, ..MACHINE },
        ..setting("mutex-lru", 72)
    };
    assert!(run(&free).mrps > 5.0 * found.mrps);
}

#[test]
fn readers_of_one_lock_stay_flat_and_the_channel_loses() {
    let rate = |cache: &str, cores| run(&Setting { shards: Some(1), ..setting(cache, cores) }).mrps;
    let bound = |cores| {
        run(&Setting { shards: Some(1), retries: false, ..setting("quick_cache", cores) }).mrps
    };
    let [quick_2, quick_64] = [2, 64].map(bound);
    assert!((0.8..1.25).contains(&(quick_64 / quick_2)), "{quick_2} {quick_64}");
    let [moka_1, moka_64] = [1, 64].map(|cores| rate("moka", cores));
    assert!(moka_64 < moka_1, "{moka_1} {moka_64}");
}

#[test]
fn without_retries_no_swap_fails_and_more_requests_end() {
    let fair = Setting { shards: Some(1), ..setting("quick_cache", 64) };
    let [fair, bound] = [run(&fair), run(&Setting { retries: false, ..fair.clone() })];
    assert!(fair.retries_per_request > 1.0, "{fair:?}");
    assert_eq!(bound.retries_per_request, 0.0);
    assert!(bound.mrps > fair.mrps, "{fair:?} {bound:?}");
}

#[test]
fn misses_cost_transfers_and_all_caches_end_their_requests() {
    for cache in &CACHES {
        let found = run(&Setting { hit_ratio: 0.7, ..setting(cache.name, 8) });
        assert!(found.transfers_per_request > 0.5, "{found:?}");
        assert!(found.mrps > 0.0, "{found:?}");
    }
}

#[test]
fn a_run_repeats_and_another_seed_differs() {
    let first = run(&setting("moka", 4));
    assert_eq!(first.mrps, run(&setting("moka", 4)).mrps);
    assert_ne!(first.mrps, run(&Setting { seed: 2, ..setting("moka", 4) }).mrps);
}

#[test]
fn a_line_goes_to_one_core_at_a_time() {
    let setting = setting("floe", 3);
    let mut simulation = CoreSimulation::new(&setting);
    assert_eq!(simulation.take(0, 7, 0), 0);
    assert_eq!(simulation.take(1, 7, 0), 50_000);
    assert_eq!(simulation.take(2, 7, 0), 100_000);
    // The writer passes it on, then readers fetch it side by side.
    assert_eq!(simulation.read(0, 7, 200_000), 250_000);
    assert_eq!(simulation.read(1, 7, 260_000), 310_000);
    assert_eq!(simulation.read(1, 7, 400_000), 400_000);
    assert_eq!(simulation.take(2, 7, 400_000), 450_000);
    assert_eq!(simulation.transfers, 5);
}

#[test]
fn a_line_of_another_group_takes_longer() {
    let machine = Machine { far_ns: 100.0, group: 2, ..MACHINE };
    let setting = Setting { machine, ..setting("floe", 5) };
    let mut simulation = CoreSimulation::new(&setting);
    assert_eq!(simulation.take(0, 7, 0), 0);
    assert_eq!(simulation.read(1, 7, 0), 50_000);
    assert_eq!(simulation.read(2, 7, 100_000), 200_000);
    // It has to be taken from a core of its own group and from two others.
    assert_eq!(simulation.take(3, 7, 300_000), 400_000);
    assert_eq!(simulation.take(2, 7, 400_000), 450_000);
}

#[test]
fn settings_out_of_range_are_refused() {
    let wrong = [
        Setting { cores: 0, ..setting("floe", 1) },
        Setting { keys: 0, ..setting("floe", 1) },
        Setting { hit_ratio: 1.5, ..setting("floe", 1) },
        Setting { shards: Some(0), ..setting("floe", 1) },
        Setting { hit_ns: Some(0.0), ..setting("floe", 1) },
        Setting { requests: 1, ..setting("floe", 1) },
    ];
    for setting in wrong {
        assert!(simulate(&setting).is_err(), "{setting:?}");
    }
    assert!(SharedCache::named("no").is_err());
}

#[test]
fn a_machine_has_positive_times_or_is_busy() {
    match measure() {
        Ok(machine) => {
            assert!(machine.pause_ns > 0.0 && machine.transfer_ns >= 0.0, "{machine:?}")
        }
        Err(error) => assert!(matches!(error, CoherenceError::Busy), "{error}"),
    }
}
