//! Replays: the same as simulations where devices take no time, the same again in virtual time, and
//! never wrong bytes.

use std::time::Duration;

use floe_block::{AdmissionConfig, Config, Evict, Memory, WriteMode};
use floe_device::{Action, Device, MemoryDevice, Pool};
use floe_lab::replay::{
    Clock, Content, Feed, Fit, Layout, Pace, Plan, ReplayError, ReplayResult, Setup, Stage, Survey,
    Tier, VirtualClock, Volume, run,
};
use floe_lab::simulate::blocks;
use floe_testkit::Intercepted;
use floe_trace::{OpenOptions, Request, Trace};

const ALL_MODES: [WriteMode; 5] =
    [WriteMode::Through, WriteMode::Around, WriteMode::Back, WriteMode::Only, WriteMode::Pass];

pub(crate) fn requests(spec: &str) -> Vec<Request> {
    let trace = Trace::open_source(spec, &OpenOptions::default()).expect("a generator");
    trace.collect::<Result<_, _>>().expect("a generator makes no mistakes")
}

/// Requests that are not aligned, of many lengths, some of them trims; a millisecond apart.
pub(crate) fn ragged(count: u64, span: u64) -> Vec<Request> {
    let mut state = 7u64;
    let mut draw = |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let ops =
        [floe_trace::Op::Read, floe_trace::Op::Write, floe_trace::Op::Read, floe_trace::Op::Delete];
    let request = |number: u64| {
        let bytes = 1 + draw(20_000);
        let op = ops[if draw(20) == 0 { 3 } else { draw(3) as usize }];
        Request { time_ns: number * 1_000_000, key: draw(span - bytes), bytes, volume: 0, op }
    };
    (0..count).map(request).collect()
}

pub(crate) fn plan(mode: WriteMode, cache: &str, volume: &str) -> Plan {
    let cache: floe_device::Spec = cache.parse().expect("a device");
    let config = Config {
        adapts_fetches: false,
        sizes: "4KiB,16KiB,64KiB".parse().expect("sizes"),
        cache_bytes: cache.size_bytes().expect("a size"),
        mode,
        shards: Some(1),
        gate: AdmissionConfig::default(),
        evict: Evict::default(),
        memory: Memory::None,
        kept: false,
    };
    Plan {
        tiers: vec![Tier { config, most_dirty_bytes: None, device: cache }],
        volumes: vec![Volume::new("floe", volume.parse().expect("a device"))],
    }
}

pub(crate) fn setup(in_flight: usize, verify: bool) -> Setup {
    Setup {
        pace: Pace::Closed { in_flight },
        warmup: 0,
        verify,
        flush_interval: Duration::from_millis(20),
        shed_most: None,
        interval: None,
    }
}

pub(crate) fn replay_on(
    stage: Stage,
    setup: &Setup,
    requests: &[Request],
    sizes: &[u64],
) -> Result<ReplayResult, ReplayError> {
    let survey = Survey::of(requests.iter().copied().map(Ok)).expect("requests are sound");
    let layout = Layout::new(&survey, sizes, Fit::default()).expect("the trace fits");
    run("test", requests.iter().copied().map(Ok), &layout, setup, stage, |_| ())
}

pub(crate) fn simulated(plan: &Plan, setup: &Setup, requests: &[Request]) -> ReplayResult {
    simulated_inserting(plan, setup, requests, Duration::ZERO)
}

/// Replays in virtual time; each write into a tier occupies the processor for `insert`.
fn simulated_inserting(
    plan: &Plan,
    setup: &Setup,
    requests: &[Request],
    insert: Duration,
) -> ReplayResult {
    let stage = Stage::simulated(plan, setup.verify, insert).expect("a stage");
    replay_on(stage, setup, requests, &plan.volume_sizes().expect("sizes"))
        .expect("the replay ends well")
}

/// All fields but those that are measured.
fn figures(outcome: &ReplayResult) -> ReplayResult {
    ReplayResult { processing_us: 0.0, wall_seconds: 0.0, verified_bytes: 0, ..outcome.clone() }
}

/// A plan with a tier below, that writes like this and is on this device.
pub(crate) fn above(mut plan: Plan, mode: WriteMode, cache: &str) -> Plan {
    plan.tiers.extend(self::plan(mode, cache, "memory:4KiB").tiers);
    plan
}

#[test]
fn tiers_that_stand_on_each_other_are_replayed_and_counted_apart() {
    let requests = ragged(6_000, 4 << 20);
    for (upper, lower) in
        ALL_MODES.into_iter().flat_map(|upper| ALL_MODES.map(|lower| (upper, lower)))
    {
        let one = plan(upper, "memory:256KiB,medium=optane", "memory:4MiB,medium=cloud");
        let plan = above(one, lower, "memory:2MiB,medium=nvme");
        let outcome = simulated(&plan, &setup(8, true), &requests);
        assert!(outcome.verified_bytes > 0);
        let [first, second] = &outcome.tiers[..] else { panic!("{:?}", outcome.tiers) };
        assert_eq!((first.reads, first.read_hits), (outcome.reads, outcome.read_hits));
        assert_eq!(
            (first.write.as_str(), second.write.as_str()),
            (&*upper.to_string(), &*lower.to_string())
        );
        // All that the first tier moves below it, the second is asked for.
        assert_eq!(first.below_read_bytes > 0, second.reads > 0);
        assert_eq!(
            (second.below_read_bytes, second.below_write_bytes),
            (outcome.backing_read_bytes, outcome.backing_write_bytes)
        );
        assert!(
            first.below_write_bytes > 0 && second.below_write_bytes > 0,
            "the flush at the end reaches the volume"
        );
        assert_eq!(second.cache_read_bytes > 0, lower != WriteMode::Pass, "{upper} {lower}");
        assert_eq!(figures(&outcome).tiers, simulated(&plan, &setup(8, true), &requests).tiers);
    }
}

#[test]
fn what_may_not_be_dirty_is_written_at_the_pace_of_the_volume() {
    let requests = requests("uniform:keys=1000,read=0,block=4KiB,requests=3000");
    let write_us = |most_dirty_bytes: Option<u64>| {
        let mut plan = plan(WriteMode::Back, "memory:8MiB,medium=dram", "memory:4MiB,medium=nvme");
        plan.tiers[0].most_dirty_bytes = most_dirty_bytes;
        simulated(&plan, &setup(1, true), &requests).write_us_mean.expect("writes")
    };
    let (all, half, none) = (write_us(None), write_us(Some(64 << 10)), write_us(Some(0)));
    assert!(10.0 * all < none, "{all} and {none} us");
    assert!(all < half && half < none, "{all}, {half} and {none} us");
}

#[test]
fn an_insertion_occupies_the_processor_and_a_hit_does_not() {
    let insert = Duration::from_micros(10);
    let plan = plan(WriteMode::Back, "memory:8MiB,medium=dram", "memory:4MiB,medium=nvme");
    let run =
        |load: &str, insert| simulated_inserting(&plan, &setup(1, true), &requests(load), insert);
    let writes = "loop:keys=500,read=0,block=4KiB,requests=500";
    let [free, charged] = [Duration::ZERO, insert]
        .map(|insert| run(writes, insert).write_us_mean.expect("there are writes"));
    assert!(free < 1.0 && (10.0..11.0).contains(&charged), "{free} and {charged} us");
    // What a miss reads is inserted, and the read behind it waits for that. Hits insert nothing.
    let reads = "loop:keys=500,read=1,block=4KiB,requests=5000";
    let [free, charged] = [Duration::ZERO, insert].map(|insert| run(reads, insert));
    let misses = (free.reads - free.read_hits) as f64;
    let sum_us = |of: &ReplayResult| of.read_us_mean.expect("there are reads") * of.reads as f64;
    let each_us = (sum_us(&charged) - sum_us(&free)) / misses;
    assert!(misses > 0.0 && (8.0..10.5).contains(&each_us), "{misses} misses, {each_us} us each");
}

#[test]
fn a_larger_tier_below_is_worth_its_latency() {
    let requests = requests("zipf:keys=4000,theta=0.6,read=1,block=8KiB,requests=12000");
    let small = || plan(WriteMode::Through, "memory:1MiB,medium=optane", "memory:64MiB,medium=hdd");
    let warm = Setup { warmup: 6_000, ..setup(1, false) };
    let alone = simulated(&small(), &warm, &requests);
    let tiered = simulated(
        &above(small(), WriteMode::Through, "memory:32MiB,medium=nvme"),
        &warm,
        &requests,
    );
    assert_eq!(tiered.read_hits, alone.read_hits, "the first tier does not know what it stands on");
    let (with, without) = (tiered.read_us_mean.expect("reads"), alone.read_us_mean.expect("reads"));
    assert!(with * 3.0 < without, "{with} us instead of {without}");
    assert!(tiered.tiers[1].read_hit_ratio > 0.5 && alone.tiers.is_empty());
}

#[test]
fn without_device_time_a_replay_finds_what_a_simulation_finds() {
    let requests = requests("zipf:keys=4000,theta=0.8,read=0.7,block=8KiB,requests=20000");
    let all = ALL_MODES
        .into_iter()
        .flat_map(|mode| ["always", "second-access"].map(|admit| (mode, admit)));
    for (mode, admit) in all {
        let mut plan = plan(mode, "memory:2MiB", "memory:64MiB");
        let config = &mut plan.tiers[0].config;
        config.gate = AdmissionConfig::new(admit.parse().expect("it is registered"));
        let same = blocks::Setup {
            cache: Config { shards: Some(1), ..config.clone() },
            warmup: 0,
            interval: None,
            clean_every_ns: u64::MAX,
        };
        let replayed = simulated(&plan, &setup(1, false), &requests);
        let simulated = blocks::simulate("test", &requests, &same).expect("a simulation");
        let ours = [
            replayed.reads,
            replayed.read_hits,
            replayed.writes,
            replayed.write_hits,
            replayed.backing_read_bytes,
            replayed.backing_write_bytes,
            replayed.cache_read_bytes,
            replayed.cache_write_bytes,
            replayed.blocks_allocated,
            replayed.metadata_bytes,
        ];
        let theirs = [
            simulated.read_requests,
            simulated.read_hits,
            simulated.write_requests,
            simulated.write_hits,
            simulated.backing_read_bytes,
            simulated.backing_write_bytes,
            simulated.cache_read_bytes,
            simulated.cache_write_bytes,
            simulated.blocks_allocated,
            simulated.metadata_bytes,
        ];
        assert_eq!(ours, theirs, "{mode}, {admit}");
        assert_eq!(replayed.mean_missed_bytes, simulated.mean_missed_bytes, "{mode}, {admit}");
        let offered = |outcome: &floe_lab::admission::AdmissionOutcome| outcome.offered_blocks;
        assert_eq!(
            replayed.admission.as_ref().map(offered),
            simulated.admission.as_ref().map(offered),
            "{mode}, {admit}"
        );
    }
}

#[test]
fn a_copy_on_write_store_inserts_and_removes_each_block_once() {
    const CHURN: &str = "churn:keys=200,block=4KiB,requests=20000,read=0.5";
    for (spec, admit) in [
        (CHURN.to_owned(), "probability:p=1"),
        (format!("{CHURN},trim=no"), "probability:p=1"),
        (CHURN.to_owned(), "obp:target=0.2:invalidate=1"),
    ] {
        let requests = requests(&spec);
        let mut plan = plan(WriteMode::Through, "memory:8MiB", "memory:1MiB");
        plan.tiers[0].config.sizes = "4KiB".parse().unwrap();
        plan.tiers[0].config.gate = AdmissionConfig::new(admit.parse().unwrap());
        let outcome = simulated(&plan, &setup(1, false), &requests);
        let counted = outcome.admission.expect("an admission");
        let (inserted, removed) = (counted.inserted_blocks, counted.removed_blocks);
        assert_eq!(counted.evicted_blocks, 0, "there is room for all");
        if admit.starts_with("probability") {
            // All that is read or written is held until it is trimmed; overwrites add nothing.
            let (mut held, mut expected) = (std::collections::HashSet::new(), (0, 0));
            for request in &requests {
                if request.op == floe_trace::Op::Delete {
                    expected.1 += u64::from(held.remove(&request.key));
                } else {
                    expected.0 += u64::from(held.insert(request.key));
                }
            }
            assert_eq!((inserted, removed), expected, "{spec}");
            assert_eq!(removed > 5_000, !spec.contains("trim=no"), "{removed}");
        } else {
            assert!(counted.declined_overwrites > 0 && inserted < 8_000, "{counted:?}");
            assert!((removed..=removed + 221).contains(&inserted), "{counted:?}");
        }
    }
}

#[test]
fn a_virtual_replay_is_the_same_every_time_and_with_verification() {
    let requests = ragged(2_000, 8 << 20);
    let plan = plan(WriteMode::Back, "memory:1MiB,medium=nvme", "memory:8MiB,medium=cloud");
    let print = |outcome: &ReplayResult| format!("{:?}", figures(outcome));
    let first = simulated(&plan, &setup(8, false), &requests);
    assert!(first.read_us_mean > Some(100.0), "a slow volume takes its time: {first:?}");
    assert_eq!(print(&first), print(&simulated(&plan, &setup(8, false), &requests)));
    let verified = simulated(&plan, &setup(8, true), &requests);
    assert_eq!(print(&first), print(&verified));
    assert!(verified.verified_bytes > 0);
}

#[test]
fn requests_without_length_reach_no_cache() {
    use floe_trace::Op;
    let sound = ragged(2_000, 4 << 20);
    let mixed: Vec<Request> = sound
        .iter()
        .zip([Op::Read, Op::Write, Op::Delete].into_iter().cycle())
        .flat_map(|(request, op)| [Request { bytes: 0, op, ..*request }, *request])
        .collect();
    let plan = plan(WriteMode::Back, "memory:256KiB,medium=nvme", "memory:4MiB,medium=hdd");
    let [sound, mixed] =
        [&sound, &mixed].map(|requests| figures(&simulated(&plan, &setup(1, true), requests)));
    assert_eq!(format!("{mixed:?}"), format!("{sound:?}"));
}

#[test]
fn requests_in_flight_over_each_other_read_what_they_may() {
    // A volume so small that nearly all requests overlap others.
    let requests = ragged(3_000, 200_000);
    for mode in ALL_MODES {
        for in_flight in [1, 3, 32] {
            let plan = plan(mode, "memory:128KiB,medium=optane", "memory:256KiB,medium=nvme");
            let outcome = simulated(&plan, &setup(in_flight, true), &requests);
            assert_eq!(outcome.requests, 3_000, "{mode}");
            assert!(outcome.verified_bytes > outcome.read_bytes / 2, "{mode}: {outcome:?}");
        }
    }
}

/// A device that says of every fiftieth write that it has done it and has not.
fn forgetful(device: MemoryDevice) -> impl Device {
    let mut writes = 0;
    Intercepted::new(device, move |operation| {
        writes += u32::from(matches!(operation.action, Action::Write { .. }));
        let forgets = matches!(operation.action, Action::Write { .. }) && writes % 50 == 0;
        forgets.then_some(Ok(()))
    })
}

#[test]
fn forgotten_writes_are_noticed() {
    let requests = requests("uniform:keys=200,read=0.5,block=4KiB,requests=3000");
    for (mode, on_cache) in
        ALL_MODES.map(|mode| (mode, false)).into_iter().chain([(WriteMode::Back, true)])
    {
        let plan = plan(mode, "memory:256KiB", "memory:1MiB");
        let device = |size, forgets: bool| -> Box<dyn Device> {
            let device = MemoryDevice::new(size);
            match forgets {
                true => Box::new(forgetful(device)),
                false => Box::new(device),
            }
        };
        let clock = Clock::Virtual(VirtualClock::default());
        let config = plan.tiers[0].config.clone();
        let tier = Tier { config, most_dirty_bytes: None, device: device(256 << 10, on_cache) };
        let mut stage = Stage::new(clock, Pool::new(1 << 20), vec![tier]).expect("a stage");
        stage.add_volume("floe", device(1 << 20, !on_cache), Content::Zero);
        let ended = replay_on(stage, &setup(1, true), &requests, &[1 << 20]);
        assert!(
            matches!(ended, Err(ReplayError::Mismatch { .. })),
            "{mode}, on cache: {on_cache}: {ended:?}"
        );
    }
}

#[test]
fn recorded_times_take_as_long_as_they_say() {
    let requests = ragged(1_000, 1 << 20);
    let plan = plan(WriteMode::Through, "memory:256KiB,medium=nvme", "memory:1MiB,medium=nvme");
    for (speed, seconds) in [(1.0, 0.999), (10.0, 0.0999)] {
        let pace = Pace::Recorded { speed, in_flight: 256 };
        let outcome = simulated(&plan, &Setup { pace, ..setup(1, true) }, &requests);
        assert!((seconds..seconds + 0.002).contains(&outcome.seconds), "{outcome:?}");
        assert_eq!(outcome.late_us_max, 0.0);
    }
    let pace = Pace::Recorded { speed: 1e6, in_flight: 4 };
    let hurried = simulated(&plan, &Setup { pace, ..setup(1, true) }, &requests);
    assert!(hurried.late_us_max > 1e3, "a disk that falls behind shows: {hurried:?}");
    assert!(hurried.read_us_max.unwrap_or(0.0) >= hurried.late_us_max * 0.99, "{hurried:?}");
}

#[test]
fn a_last_flush_that_takes_longer_than_the_flush_interval_ends() {
    let requests = requests("uniform:keys=200,read=0,block=4KiB,requests=500");
    let plan = plan(WriteMode::Back, "memory:1MiB,medium=nvme", "memory:1MiB,medium=hdd");
    let flush_interval = Duration::from_millis(50);
    let outcome = simulated(&plan, &Setup { flush_interval, ..setup(4, false) }, &requests);
    assert!(outcome.flush_seconds > 0.1, "{outcome:?}");
    assert!(outcome.backing_write_bytes >= 200 * 4096 / 2, "{outcome:?}");
}

#[test]
fn warm_up_is_not_counted() {
    let requests = requests("loop:keys=64,requests=640,block=4KiB");
    let plan = plan(WriteMode::Through, "memory:1MiB", "memory:1MiB");
    let cold = simulated(&plan, &setup(4, false), &requests);
    assert_eq!((cold.reads, cold.read_hits, cold.warmup_requests), (640, 576, 0));
    let warm = simulated(&plan, &Setup { warmup: 64, ..setup(4, false) }, &requests);
    assert_eq!((warm.reads, warm.read_hits, warm.warmup_requests), (576, 576, 64));
    assert_eq!((warm.backing_read_bytes, warm.cache_read_bytes), (0, 576 * 4096));
    assert_eq!(warm.read_latencies.count(), 576);
}

/// Reads of a working set that the cache holds, more at a time than its device can serve.
fn shedding(cache: &str, volume: &str, count: usize, shed_most: Option<f64>) -> ReplayResult {
    let requests = requests(&format!("zipf:keys=200,theta=0.5,read=1,block=4KiB,requests={count}"));
    let plan = plan(WriteMode::Through, cache, volume);
    let setup = Setup { shed_most, warmup: 1_000, ..setup(128, true) };
    let first = simulated(&plan, &setup, &requests);
    let again = simulated(&plan, &setup, &requests);
    assert_eq!(
        format!("{:?}", figures(&first)),
        format!("{:?}", figures(&again)),
        "the same again"
    );
    first
}

#[test]
fn hits_are_shed_where_the_cache_device_is_the_bottleneck() {
    // Two disks serve twice as much as one.
    let disk = "memory:1MiB,medium=hdd";
    let without = shedding(disk, disk, 20_000, None);
    let with = shedding(disk, disk, 20_000, Some(0.6));
    let shed = with.shed.as_ref().expect("it may");
    assert!((0.3..=0.6).contains(&shed.share) && shed.bytes > 0, "{shed:?}");
    assert!(with.read_hit_ratio > 0.99, "{with:?}");
    assert!(
        with.requests_per_second > without.requests_per_second.map(|rate| 1.3 * rate),
        "{with:?}, {without:?}"
    );
    let bounded = shedding(disk, disk, 20_000, Some(0.2)).shed.expect("it may");
    assert!((bounded.share - 0.2).abs() < 1e-9, "{bounded:?}");
}

#[test]
fn nothing_is_shed_where_the_backing_device_is_slower() {
    let (cache, volume) = ("memory:1MiB,medium=cloud", "memory:1MiB,medium=hdd");
    let without = shedding(cache, volume, 200_000, None);
    let with = shedding(cache, volume, 200_000, Some(0.5));
    let shed = with.shed.as_ref().expect("it may");
    assert!(shed.share == 0.0 && !shed.decisions.is_empty(), "{shed:?}");
    assert!(shed.decisions.iter().all(|decision| decision.share == 0.0), "{shed:?}");
    assert!(with.requests_per_second < without.requests_per_second, "trials cost something");
}

#[test]
fn real_files_are_replayed_on_and_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let requests = ragged(2_000, 2 << 20);
    for (mode, pace) in [
        (WriteMode::Back, Pace::Closed { in_flight: 16 }),
        (WriteMode::Through, Pace::Recorded { speed: 1e4, in_flight: 64 }),
    ] {
        let cache = format!("file:{},size=512KiB", at("cache"));
        let plan = plan(mode, &cache, &format!("file:{},size=2MiB", at(&format!("volume-{mode}"))));
        assert_eq!(plan.existing(), None);
        let setup = Setup { pace, ..setup(1, true) };
        let stage = Stage::real(&plan).expect("files can be made");
        let outcome = replay_on(stage, &setup, &requests, &plan.volume_sizes().expect("sizes"))
            .expect("it ends well");
        assert!(outcome.verified_bytes > outcome.read_bytes / 2, "{outcome:?}");
        assert!(outcome.processing_us > 0.0);
        assert!(plan.existing().is_some());
    }
}

#[test]
fn a_feed_gives_a_trace_whole_and_no_more_than_asked() {
    let spec = "uniform:keys=1000,requests=40000,block=4KiB";
    let all = requests(spec);
    for limit in [0, 1, 8192, 8193, 40_000, u64::MAX] {
        let trace = Trace::open_source(spec, &OpenOptions::default()).expect("a generator");
        let fed: Vec<Request> =
            Feed::start(trace, limit).map(|request| request.expect("sound")).collect();
        assert_eq!(fed, all[..all.len().min(usize::try_from(limit).unwrap_or(usize::MAX))]);
    }
}
