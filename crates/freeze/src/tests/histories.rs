//! Histories of the freeze controller on a simulated machine: its behaviour under each load, and
//! cases in which the controller of the paper's authors failed.

use super::simulation::{Keys, Machine, World};
use crate::{Freezing, Phase};

/// A machine on which freezing pays: promotions are expensive, the index is fast.
const LRU_LIKE: Machine = Machine::LRU_LIKE;
/// A machine on which hits only leave a mark, without a promotion.
const FIFO_LIKE: Machine = Machine { promotion: 0.0, ..LRU_LIKE };
const ENTRIES: usize = 1000;

fn zipf() -> Keys {
    Keys::zipf(5 * ENTRIES, 1.0)
}

fn adaptive(policy: &str, keys: Keys, machine: Machine) -> World {
    World::new(policy, ENTRIES, keys, machine, Freezing::adaptive())
}

/// Runs a history without freezing, for its requests per second.
fn unfrozen(policy: &str, keys: Keys, machine: Machine) -> World {
    let mut world = World::new(policy, ENTRIES, keys, machine, Freezing::fixed(0.0));
    world.run(5.0);
    world
}

/// Checks that the phases of a history follow each other as in the diagram of the controller.
fn check_order(world: &World) {
    use Phase::{
        Constructing, Frozen, Learning, Measuring, Proving, TryingAll, Waiting, WarmingUp,
    };
    for pair in world.phases.windows(2) {
        let ((at, from), (_, to)) = (pair[0], pair[1]);
        let may = match from {
            WarmingUp => matches!(to, Measuring | Proving | Constructing | Waiting),
            Measuring => matches!(to, Learning | Constructing | Waiting),
            Learning => matches!(to, TryingAll | Measuring | Waiting),
            TryingAll => matches!(to, WarmingUp | Waiting),
            Proving => matches!(to, Constructing | Waiting),
            Constructing => matches!(to, Frozen | Waiting),
            Frozen => matches!(to, Constructing | WarmingUp | Measuring | Waiting),
            Waiting => matches!(to, Measuring | WarmingUp),
        };
        assert!(may, "{from} went over to {to} at {at:?}\n{}", world.story());
    }
}

#[test]
fn where_freezing_pays_it_is_learned_frozen_confirmed_and_refreshed_with_the_same_ratio() {
    for (policy, machine, gain) in [
        ("lru", LRU_LIKE, 1.15),
        ("lfu", LRU_LIKE, 1.15),
        ("s3-fifo", FIFO_LIKE, 1.0),
        ("qd-clock", FIFO_LIKE, 1.0),
    ] {
        let base = unfrozen(policy, zipf(), machine).run(20.0);
        let mut world = adaptive(policy, zipf(), machine);
        world.run(20.0);
        let rate = world.run(40.0);
        assert!(
            rate > gain * base,
            "{policy}: {rate:.0} requests/s against {base:.0}\n{}",
            world.story()
        );
        let stats = world.controller.stats();
        assert!(stats.refreshed >= 2 && stats.learned <= 3, "{policy}: {stats:?}");
        assert!(stats.ratio > 0.3, "{policy}: {stats:?}");
        check_order(&world);
    }
}

#[test]
fn the_costs_that_are_told_are_those_of_the_machine() {
    let mut world = World::new("lru", ENTRIES, zipf(), LRU_LIKE, Freezing::fixed(0.3));
    world.run(40.0);
    let stats = world.controller.stats();
    // The clock adds 2 µs to each.
    let near = |ns: Option<f64>, us: f64| (ns.unwrap() / 1e3 / (us + 2.0) - 1.0).abs() < 0.15;
    assert!(near(stats.frozen_ns, 10.0), "{stats:?}");
    assert!(near(stats.dynamic_ns, 32.0), "{stats:?}");
    assert!(near(stats.miss_ns, 237.0), "{stats:?}");
    let mut world = adaptive("lru", zipf(), LRU_LIKE);
    world.run(40.0);
    let stats = world.controller.stats();
    assert!(stats.baseline_ns > stats.freezing_ns && stats.frozen_share > Some(0.5), "{stats:?}");
}

#[test]
fn a_hit_ratio_of_one_neither_hangs_learning_nor_warming_up() {
    // Nothing is ever evicted, so the authors' controller waited for ever.
    let mut world = adaptive("lru", Keys::Uniform(900), LRU_LIKE);
    world.run(15.0);
    let stats = world.controller.stats();
    assert_eq!((stats.phase, stats.ratio), (Phase::Frozen, 1.0), "{}", world.story());
    world.take_hit_ratio();
    let rate = world.run(30.0);
    assert_eq!(world.take_hit_ratio(), 1.0);
    let base = unfrozen("lru", Keys::Uniform(900), LRU_LIKE).run(10.0);
    assert!(rate > 2.0 * base, "{rate:.0} requests/s against {base:.0}");
}

#[test]
fn a_low_hit_ratio_is_lived_with() {
    let base = unfrozen("lru", Keys::Uniform(3333), LRU_LIKE).run(20.0);
    let mut world = adaptive("lru", Keys::Uniform(3333), LRU_LIKE);
    let rate = world.run(120.0);
    let stats = world.controller.stats();
    assert!(stats.learned >= 1, "{stats:?}");
    assert!(rate > 0.98 * base, "{rate:.0} requests/s against {base:.0}\n{}", world.story());
}

#[test]
fn a_loop_is_frozen_whole_and_hits_where_it_never_did() {
    let mut world = adaptive("lru", Keys::Loop(2 * ENTRIES as u64), LRU_LIKE);
    world.run(20.0);
    world.take_hit_ratio();
    world.run(60.0);
    let hits = world.take_hit_ratio();
    assert!(hits > 0.4, "{hits}\n{}", world.story());
    assert!(world.controller.stats().ratio > 0.9);
}

#[test]
fn a_scan_that_never_hits_costs_little() {
    let base = unfrozen("lru", Keys::Scan, LRU_LIKE).run(20.0);
    let rate = adaptive("lru", Keys::Scan, LRU_LIKE).run(90.0);
    assert!(rate > 0.98 * base, "{rate:.0} requests/s against {base:.0}");
}

#[test]
fn under_a_drift_the_index_is_refreshed_often_and_the_ratio_stays_between_none_and_all() {
    let drifting = || Keys::drifting(5 * ENTRIES, 1.0, 1, 20_000);
    let base = unfrozen("lru", drifting(), LRU_LIKE).run(30.0);
    let mut world = adaptive("lru", drifting(), LRU_LIKE);
    world.run(20.0);
    let rate = world.run(60.0);
    let stats = world.controller.stats();
    assert!(rate > 1.05 * base, "{rate:.0} requests/s against {base:.0}\n{}", world.story());
    assert!(stats.refreshed >= 3 && stats.ratio > 0.0, "{stats:?}\n{}", world.story());
    check_order(&world);
}

#[test]
fn a_fast_drift_does_no_harm() {
    let drifting = || Keys::drifting(5 * ENTRIES, 1.0, 1, 200);
    let base = unfrozen("lru", drifting(), LRU_LIKE).run(30.0);
    let mut world = adaptive("lru", drifting(), LRU_LIKE);
    let rate = world.run(120.0);
    assert!(rate > 0.97 * base, "{rate:.0} requests/s against {base:.0}\n{}", world.story());
}

#[test]
fn whatever_the_drift_it_does_no_harm_in_the_long_run() {
    // Of misses that are dear, of those that cost no more than hits, and with a machine that
    // changes its pace all the time.
    let cheap = Machine { load: 0.0, insertion: 15.0, promotion: 0.5, frozen: 14.0, ..LRU_LIKE };
    let restless = Machine { wander: (0.2, 3.7), ..cheap };
    for (name, machine) in [("dear", LRU_LIKE), ("cheap", cheap), ("restless", restless)] {
        for every in [20, 500] {
            let drifting = || Keys::drifting(5 * ENTRIES, 1.0, 1, every);
            let base = unfrozen("lru", drifting(), machine).run(20.0);
            let mut world = adaptive("lru", drifting(), machine);
            let rate = world.run(60.0);
            let what = format!(
                "{rate:.0} requests/s against {base:.0}, {name} misses, shifts every {every}"
            );
            assert!(rate > 0.97 * base, "{what}\n{}", world.story());
        }
    }
}

/// Returns the requests served in some seconds after learning, as a share of those that the cache
/// without freezing served, over some histories; and the histories. The machine has another speed
/// while the baseline is measured.
fn share_just_after_learning(
    keys: impl Fn() -> Keys,
    machine: Machine,
    at_first: Machine,
) -> (f64, String) {
    let (mut without, mut with, mut stories) = (0.0, 0.0, String::new());
    for seed in 1..=SEEDS {
        let mut world = adaptive("lru", keys(), machine);
        world.seed(seed);
        while world.controller.stats().learned == 0 {
            world.machine =
                if world.controller.phase() == Phase::Measuring { at_first } else { machine };
            world.run(0.01);
        }
        let learned = world.now.as_secs_f64();
        let mut base = World::new("lru", ENTRIES, keys(), machine, Freezing::fixed(0.0));
        base.seed(seed);
        base.run(learned);
        let (one, other) = (base.run(2.0), world.run(2.0));
        (without, with) = (without + one, with + other);
        stories +=
            &format!("seed {seed}: {:.3} after {learned:.2} s\n{}", other / one, world.story());
    }
    (with / without, stories)
}

/// Number of histories of each kind.
const SEEDS: u64 = 3;

#[test]
fn under_a_drift_it_does_no_harm_just_after_learning_whatever_was_predicted() {
    let dear = LRU_LIKE.faster(10.0);
    let cheap = Machine { load: 0.0, insertion: 1.5, promotion: 0.05, frozen: 1.4, ..dear };
    // A machine that changes its pace, and one that is busy with something else while the baseline
    // is measured: hits take three times as long, so that freezing whatever part seems to be a
    // gain.
    let restless = |machine| Machine { wander: (0.15, 2.9), ..machine };
    let busy = |machine: Machine| Machine { lookup: 3.0 * machine.lookup, ..machine };
    for (what, machine, at_first) in [
        ("dear misses, restless", restless(dear), restless(dear)),
        ("cheap misses, restless", restless(cheap), restless(cheap)),
        ("dear misses, busy at first", dear, busy(dear)),
        ("cheap misses, busy at first", cheap, busy(cheap)),
    ] {
        for every in [30, 300] {
            let drifting = || Keys::drifting(5 * ENTRIES, 1.0, 1, every);
            let (share, stories) = share_just_after_learning(drifting, machine, at_first);
            println!("{share:.3} of the requests with {what}, shifts every {every}");
            assert!(share >= 0.98, "{share:.3} with {what}, shifts every {every}\n{stories}");
        }
    }
}

#[test]
fn hardly_a_request_is_timed_while_nothing_is_frozen() {
    let machine = Machine { frozen: FIFO_LIKE.lookup, failing: 0.0, insertion: 0.0, ..FIFO_LIKE };
    let mut world = adaptive("fifo", zipf(), machine);
    while world.controller.phase() != Phase::Waiting {
        assert_eq!(world.controller.timed_one_in(), 100);
        world.run(0.1);
    }
    assert_eq!(world.controller.timed_one_in(), 10_000);
}

#[test]
fn where_the_index_is_no_faster_it_gives_up_and_waits_twice_as_long_each_time() {
    let machine = Machine { frozen: FIFO_LIKE.lookup, failing: 0.0, insertion: 0.0, ..FIFO_LIKE };
    let mut world = adaptive("fifo", zipf(), machine);
    world.run(200.0);
    let stats = world.controller.stats();
    assert!(stats.given_up >= 3, "{}", world.story());
    let waits = world.lengths(Phase::Waiting);
    assert!(waits.len() >= 3, "{waits:?}");
    for pair in waits[..waits.len() - 1].windows(2) {
        assert!(
            (1.5..2.5).contains(&(pair[1] / pair[0])),
            "waits of {waits:?} s\n{}",
            world.story()
        );
    }
    let base = unfrozen("fifo", zipf(), machine).run(20.0);
    let rate = world.run(100.0);
    assert!(rate > 0.98 * base, "{rate:.0} requests/s against {base:.0}");
}

#[test]
fn where_the_index_is_slower_nothing_is_frozen_for_long() {
    let machine = Machine { frozen: 25.0, failing: 8.0, ..FIFO_LIKE };
    let mut world = adaptive("fifo", zipf(), machine);
    world.run(120.0);
    assert!(world.served.as_secs_f64() < 3.0, "{:?}\n{}", world.served, world.story());
    assert!(world.controller.stats().given_up >= 2);
    check_order(&world);
}

#[test]
fn stalls_of_milliseconds_do_not_end_frozen_phases() {
    // In 7 of 11 runs of the authors' code noise did, and the next try came 16 s later.
    let noisy = Machine { noise: 1.0, stalls: 10.0, ..LRU_LIKE };
    let base = unfrozen("lru", zipf(), noisy).run(30.0);
    let mut world = adaptive("lru", zipf(), noisy);
    world.run(20.0);
    let served = world.served;
    let rate = world.run(120.0);
    let share = (world.served - served).as_secs_f64() / 120.0;
    assert!(share > 0.75, "the index served {share} of the time\n{}", world.story());
    assert_eq!(world.controller.stats().given_up, 0, "{}", world.story());
    assert!(rate > 1.1 * base, "{rate:.0} requests/s against {base:.0}");
}

#[test]
fn a_world_that_becomes_slower_is_not_taken_for_the_fault_of_freezing() {
    let mut world = adaptive("lru", zipf(), LRU_LIKE);
    world.run(30.0);
    let learned = world.controller.stats().learned;
    world.machine.load *= 3.0;
    world.run(30.0);
    let stats = world.controller.stats();
    assert_eq!((stats.given_up, stats.learned), (0, learned), "{}", world.story());
    assert!(stats.ratio > 0.0);
    assert!(world.story().contains("no faster without freezing"), "{}", world.story());
}

#[test]
fn another_workload_is_soon_served_by_another_index() {
    let keys = || Keys::zipf(ENTRIES * 3 / 2, 1.0);
    let base = unfrozen("lru", keys(), LRU_LIKE).run(20.0);
    let mut world = adaptive("lru", keys(), LRU_LIKE);
    world.run(30.0);
    assert!(world.controller.stats().ratio > 0.0, "{}", world.story());
    let constructed = world.controller.stats().constructed;
    world.other_keys = 1 << 40;
    world.run(10.0);
    assert!(world.controller.stats().constructed > constructed, "{}", world.story());
    world.take_hit_ratio();
    let rate = world.run(20.0);
    assert!(rate > 1.2 * base, "{rate:.0} requests/s against {base:.0}\n{}", world.story());
    assert!(world.take_hit_ratio() > 0.85);
    check_order(&world);
}

#[test]
fn a_workload_for_which_freezing_is_wrong_ends_it() {
    let fast_drift = || Keys::drifting(5 * ENTRIES, 1.0, 1, 50);
    let base = unfrozen("lru", fast_drift(), LRU_LIKE).run(30.0);
    let mut world = adaptive("lru", zipf(), LRU_LIKE);
    world.run(30.0);
    assert!(world.controller.stats().ratio > 0.0, "{}", world.story());
    world.keys = fast_drift();
    world.run(30.0);
    let rate = world.run(60.0);
    assert!(rate > 0.95 * base, "{rate:.0} requests/s against {base:.0}\n{}", world.story());
    check_order(&world);
}

#[test]
fn an_idle_cache_is_left_as_it_is() {
    let mut world = adaptive("lru", zipf(), LRU_LIKE);
    world.idle(100.0);
    assert_eq!(world.phases.len(), 1, "{:?}", world.phases);
    world.run(30.0);
    while world.controller.phase() != Phase::Frozen {
        world.run(0.05); // an index was just being replaced
    }
    let (phases, stats) = (world.phases.len(), world.controller.stats());
    world.idle(3600.0);
    let later = world.controller.stats();
    assert_eq!(later.learned, stats.learned);
    assert!(world.phases.len() <= phases + 2, "a refresh may have been due\n{}", world.story());
}

#[test]
fn a_cache_that_falls_idle_while_it_learns_is_thawed() {
    let mut world = adaptive("lru", zipf(), LRU_LIKE);
    while world.controller.phase() != Phase::Learning {
        world.run(0.05);
    }
    world.run(0.5);
    assert_eq!(world.controller.phase(), Phase::Learning);
    world.idle(10.0);
    assert_eq!(world.controller.phase(), Phase::Measuring, "{}", world.story());
    world.run(30.0);
    assert!(world.times(Phase::Frozen) >= 1, "{}", world.story());
}

#[test]
fn a_fixed_ratio_is_frozen_and_refreshed_whatever_it_costs() {
    let machine = Machine { frozen: 25.0, failing: 8.0, ..FIFO_LIKE };
    let second = std::time::Duration::from_secs(1);
    for ratio in [0.3, 1.0] {
        let options = Freezing::fixed(ratio).lifetime(2 * second);
        let mut world = World::new("fifo", ENTRIES, zipf(), machine, options);
        world.run(30.0);
        let stats = world.controller.stats();
        assert_eq!((stats.ratio, stats.learned, stats.given_up), (ratio, 0, 0));
        assert!(stats.refreshed >= 8, "{stats:?}");
        assert!(world.times(Phase::Frozen) >= 8 && world.times(Phase::Learning) == 0);
        check_order(&world);
    }
}

#[test]
fn a_cache_of_which_nothing_can_be_frozen_is_left_alone() {
    let mut world = adaptive("lru", zipf(), Machine { freezes: false, ..LRU_LIKE });
    world.run(30.0);
    assert_eq!(world.times(Phase::Frozen), 0, "{}", world.story());
    assert!(world.story().contains("nothing that can be frozen"), "{}", world.story());
    check_order(&world);
}

#[test]
fn nothing_is_frozen_if_the_fixed_ratio_is_none() {
    let mut world = unfrozen("lru", zipf(), LRU_LIKE);
    world.run(30.0);
    assert_eq!((world.served.as_secs_f64(), world.controller.stats().constructed), (0.0, 0));
}
