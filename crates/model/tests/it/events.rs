//! Simulation by events against exact analysis, and against what it must agree with.

use floe_model::events::{Distribution, Distributions, Effort, Simulated, simulate};
use floe_model::policies::POLICIES;
use floe_model::{
    Load, Network, Policy, RequestOutcome, RouteStep, Service, Setting, Station, Time, Visit, mva,
};

/// Exponential disks as well: those that always take the same bring requests into step with one
/// another.
const RANDOM: Distributions =
    Distributions { service: Distribution::Exponential, disk: Distribution::Exponential };

fn network(policy: &str, setting: Setting) -> Network {
    Policy::named(policy)
        .expect("a policy")
        .network(&Service::paper(), &setting)
        .expect("a network")
}

fn run(network: &Network, load: Load, distributions: Distributions) -> Simulated {
    simulate(network, &load, &distributions, &Effort::default()).expect("a model")
}

fn exact(network: &Network, load: Load) -> f64 {
    mva::throughput(network, &load).expect("a load")
}

/// Within a share of what is expected, or within its own error: one in twenty 95 % intervals
/// misses, one in ten thousand twice as wide.
#[track_caller]
fn agrees(found: Simulated, expected: f64, share: f64, what: &str) {
    let allowed = (share * expected).max(2.0 * found.ci95_mrps);
    let off = (found.throughput_mrps - expected).abs();
    assert!(off <= allowed && found.is_settled, "{what}: {expected}, {found:?}");
}

#[test]
fn simulation_agrees_with_exact_analysis() {
    for policy in &POLICIES {
        for (mpl, disk_us, hit_ratio) in [
            (1, 5.0, 0.7),
            (72, 5.0, 0.5),
            (72, 100.0, 0.75),
            (72, 500.0, 0.99),
            (72, 100.0, 1.0),
            (200, 20.0, 0.9),
        ] {
            let network = network(policy.name, Setting::new(hit_ratio, disk_us));
            let load = Load::of(mpl);
            let what = format!("{} MPL {mpl}, {disk_us} µs, {hit_ratio}", policy.name);
            agrees(
                run(&network, load, Distributions::default()),
                exact(&network, load),
                0.005,
                &what,
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let network = network("slru", Setting::new(0.8, 20.0));
    let with_seed = |seed| {
        let effort = Effort { precision: 0.02, seed, ..Effort::default() };
        simulate(&network, &Load::of(30), &Distributions::default(), &effort).expect("a model")
    };
    assert_eq!(with_seed(5), with_seed(5));
    assert_ne!(with_seed(5), with_seed(6));
}

#[test]
fn throughput_hardly_depends_on_the_distribution_as_the_paper_finds() {
    let load = Load::of(72);
    for (policy, hit_ratio) in [("lru", 0.9), ("fifo", 0.9), ("slru", 0.95)] {
        let network = network(policy, Setting::new(hit_ratio, 100.0));
        let exact = exact(&network, load);
        for service in [Distribution::Deterministic, Distribution::Hyperexponential(2.0)] {
            let found = run(&network, load, Distributions { service, ..Distributions::default() });
            agrees(found, exact, 0.03, &format!("{policy}, {service:?}"));
        }
    }
}

fn closed(stations: &[(u32, u32)], steps: Vec<RouteStep>) -> Network {
    let station = |&(servers, copies): &(u32, u32)| Station { name: "station", servers, copies };
    let outcome = RequestOutcome { name: "all", probability: 1.0, is_miss: false, steps };
    Network::new(stations.iter().map(station).collect(), vec![outcome]).expect("a network")
}

fn visit(station: usize, time: Time) -> RouteStep {
    RouteStep::Visit(Visit { station, time, is_limit: false })
}

#[test]
fn stations_with_several_servers_and_copies_are_as_exact_analysis_has_them() {
    let steps = vec![
        RouteStep::Disk(8.0),
        visit(0, Time::of(2.0)),
        RouteStep::Compute(1.0),
        visit(1, Time::of(3.0)),
    ];
    let network = closed(&[(3, 1), (1, 4)], steps);
    for mpl in [1, 5, 40] {
        agrees(
            run(&network, Load::of(mpl), RANDOM),
            exact(&network, Load::of(mpl)),
            0.005,
            &format!("MPL {mpl}"),
        );
    }
}

#[test]
fn deterministic_stations_in_a_row_run_like_an_assembly_line() {
    // The slowest is always busy, or nobody waits.
    let network = closed(
        &[(1, 1), (1, 1)],
        vec![RouteStep::Disk(6.0), visit(0, Time::of(1.0)), visit(1, Time::of(2.0))],
    );
    let fixed =
        Distributions { service: Distribution::Deterministic, disk: Distribution::Deterministic };
    for (mpl, expected) in [(1, 1.0 / 9.0), (4, 4.0 / 9.0), (5, 0.5), (30, 0.5)] {
        let found = run(&network, Load::of(mpl), fixed);
        assert!((found.throughput_mrps / expected - 1.0).abs() < 1e-3, "MPL {mpl}: {found:?}");
    }
}

#[test]
fn times_that_grow_with_the_queue_are_those_of_the_queue() {
    // One station and nothing else: all requests are always there.
    let time = Time { contended: vec![(4, 1.0), (8, 3.0)], ..Time::of(0.4) };
    let network = closed(&[(1, 1)], vec![visit(0, time)]);
    for (mpl, us) in [(1, 0.4), (2, 0.6), (6, 2.0), (50, 3.0)] {
        agrees(run(&network, Load::of(mpl), RANDOM), 1.0 / us, 0.005, &format!("MPL {mpl}"));
    }
}

#[test]
fn measured_histograms_are_drawn_from() {
    // Two stations in balance: how times vary shows in throughput.
    let time = Time { histogram: vec![(0.1, 95.0), (20.0, 5.0)], ..Time::of(1.0) };
    let network = closed(&[(1, 1), (1, 1)], vec![visit(0, time.clone()), visit(1, time)]);
    let at =
        |service| run(&network, Load::of(2), Distributions { service, ..RANDOM }).throughput_mrps;
    let (measured, exponential) = (at(Distribution::Measured), at(Distribution::Exponential));
    assert!((exponential / (2.0 / 3.0) - 1.0).abs() < 0.01, "{exponential}");
    assert!(measured < 0.95 * exponential, "{measured}, {exponential}");
}

#[test]
fn with_fewer_cores_than_requests_the_approximation_is_close() {
    let mut off = Vec::new();
    for policy in ["lru", "fifo", "prob-lru", "clock", "slru", "s3-fifo"] {
        for (cores, mpl) in [(1, 16), (2, 3), (2, 72), (8, 72)] {
            for (disk_us, hit_ratio) in [(5.0, 0.6), (100.0, 0.4), (100.0, 0.9), (5.0, 1.0)] {
                let network = network(policy, Setting::new(hit_ratio, disk_us));
                let load = Load { mpl, cores: Some(cores) };
                let effort = Effort { precision: 0.01, ..Effort::default() };
                let found = simulate(&network, &load, &RANDOM, &effort).expect("a model");
                let expected = exact(&network, load);
                let what = format!("{policy}, {cores} cores, MPL {mpl}, {disk_us} µs, {hit_ratio}");
                agrees(found, expected, 0.03, &what);
                off.push((expected / found.throughput_mrps - 1.0).abs());
            }
        }
    }
    off.sort_by(f64::total_cmp);
    let (median, largest) = (off[off.len() / 2], off[off.len() - 1]);
    println!(
        "{} networks: off by {:.2} % at the median, {:.2} % at most",
        off.len(),
        100.0 * median,
        100.0 * largest
    );
    assert!(median < 0.01, "{median}");
}

#[test]
fn as_many_cores_as_requests_are_as_good_as_any_number() {
    let network = network("lru", Setting::new(0.8, 20.0));
    for cores in [Some(30), Some(1000)] {
        let load = Load { mpl: 30, cores };
        assert_eq!(exact(&network, load), exact(&network, Load::of(30)));
        assert_eq!(run(&network, load, RANDOM), run(&network, Load::of(30), RANDOM));
    }
}
