//! Networks small or even enough to be solved by hand.

use floe_model::{Load, ModelError, Network, RequestOutcome, RouteStep, Station, Time, Visit, mva};

fn visit(station: usize, us: f64) -> RouteStep {
    RouteStep::Visit(Visit { station, time: Time::of(us), is_limit: false })
}

fn network(stations: &[(u32, u32)], steps: Vec<RouteStep>) -> Network {
    let station = |&(servers, copies): &(u32, u32)| Station { name: "station", servers, copies };
    let outcome = RequestOutcome { name: "all", probability: 1.0, is_miss: false, steps };
    Network::new(stations.iter().map(station).collect(), vec![outcome]).expect("a network")
}

fn throughput(network: &Network, mpl: u32) -> f64 {
    mva::throughput(network, &Load::of(mpl)).expect("a load")
}

#[track_caller]
fn equal(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-10, "{found} is not {expected}");
}

#[test]
fn without_stations_nobody_waits() {
    let network = network(&[], vec![RouteStep::Compute(0.5), RouteStep::Disk(2.0)]);
    for mpl in [1, 7, 5000] {
        equal(throughput(&network, mpl), f64::from(mpl) / 2.5);
    }
}

#[test]
fn a_single_station_is_always_busy() {
    let network = network(&[(1, 1)], vec![visit(0, 0.4)]);
    for mpl in [1, 7, 5000] {
        equal(throughput(&network, mpl), 2.5);
    }
}

#[test]
fn one_request_takes_its_own_time() {
    let network = network(
        &[(1, 1), (2, 1)],
        vec![RouteStep::Disk(3.0), visit(0, 0.5), visit(1, 1.0), visit(0, 0.5)],
    );
    equal(throughput(&network, 1), 1.0 / 5.0);
}

#[test]
fn a_balanced_network_has_the_known_throughput() {
    // K stations with demand D each: N / (D (N + K − 1)).
    for stations in [2u32, 3, 8] {
        let steps = (0..stations as usize).map(|at| visit(at, 0.25)).collect();
        let one_by_one = network(&vec![(1, 1); stations as usize], steps);
        let alike = network(&[(1, stations)], vec![visit(0, 0.25 * f64::from(stations))]);
        for mpl in [1, 2, 5, 72, 4000] {
            let expected = f64::from(mpl) / (0.25 * f64::from(mpl + stations - 1));
            equal(throughput(&one_by_one, mpl), expected);
            equal(throughput(&alike, mpl), expected);
        }
    }
}

/// The throughput of machines that break down and wait for one of `servers`, from the balance of
/// births and deaths.
fn repaired(think_us: f64, service_us: f64, servers: u32, mpl: u32) -> f64 {
    // Relative to the most probable state: products of thousands of ratios would leave the range.
    let ratio = |broken: u32| {
        f64::from(mpl - broken) / think_us * service_us / f64::from((broken + 1).min(servers))
    };
    let mut logs = vec![0.0f64];
    for broken in 0..mpl {
        logs.push(logs[broken as usize] + ratio(broken).ln());
    }
    let largest = logs.iter().fold(f64::MIN, |a, &b| a.max(b));
    let weights = || logs.iter().map(|log| (log - largest).exp());
    let working: f64 = weights()
        .enumerate()
        .map(|(broken, weight)| (f64::from(mpl) - broken as f64) * weight)
        .sum();
    working / think_us / weights().sum::<f64>()
}

#[test]
fn machines_are_repaired_as_often_as_birth_and_death_say() {
    for servers in [1, 2, 5, 16] {
        let network = network(&[(servers, 1)], vec![RouteStep::Disk(20.0), visit(0, 3.0)]);
        for mpl in [1, 2, 6, 40, 300, 3000] {
            equal(throughput(&network, mpl), repaired(20.0, 3.0, servers, mpl));
        }
    }
}

#[test]
fn a_server_for_each_request_is_as_good_as_time_spent_alone() {
    let served = network(&[(16, 1), (1, 1)], vec![visit(0, 5.0), visit(1, 0.3)]);
    let alone = network(&[(1, 1)], vec![RouteStep::Disk(5.0), visit(0, 0.3)]);
    for mpl in [1, 3, 16] {
        equal(throughput(&served, mpl), throughput(&alone, mpl));
    }
}

#[test]
fn times_that_grow_with_the_queue_are_taken_at_its_length() {
    // One station, all requests always there.
    let time = Time { contended: vec![(4, 1.0), (8, 3.0)], ..Time::of(0.4) };
    let step = RouteStep::Visit(Visit { station: 0, time, is_limit: false });
    let network = network(&[(1, 1)], vec![step]);
    for (mpl, us) in [(1, 0.4), (2, 0.6), (4, 1.0), (6, 2.0), (8, 3.0), (500, 3.0)] {
        equal(throughput(&network, mpl), 1.0 / us);
    }
}

#[test]
fn the_same_times_at_every_length_change_nothing() {
    let steps = |time: Time| {
        vec![
            RouteStep::Disk(40.0),
            RouteStep::Visit(Visit { station: 0, time, is_limit: false }),
            visit(1, 0.5),
        ]
    };
    let plain = network(&[(1, 1), (1, 3)], steps(Time::of(0.7)));
    let listed =
        network(&[(1, 1), (1, 3)], steps(Time { contended: vec![(9, 0.7)], ..Time::of(0.7) }));
    for mpl in [1, 2, 72, 1000] {
        equal(throughput(&listed, mpl), throughput(&plain, mpl));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let outcome = |probability, us| {
        let steps = vec![RouteStep::Compute(us)];
        vec![RequestOutcome { name: "all", probability, is_miss: false, steps }]
    };
    assert!(matches!(Network::new(vec![], outcome(1.5, 1.0)), Err(ModelError::Share { .. })));
    assert!(matches!(
        Network::new(vec![], outcome(0.5, 1.0)),
        Err(ModelError::Probabilities { .. })
    ));
    assert!(matches!(Network::new(vec![], outcome(1.0, -1.0)), Err(ModelError::Time { .. })));
    assert!(matches!(Network::new(vec![], outcome(1.0, f64::NAN)), Err(ModelError::Time { .. })));
    let nothing = Network::new(vec![], outcome(1.0, 0.0)).expect("a network");
    assert_eq!(mva::throughput(&nothing, &Load::of(1)), Err(ModelError::NoWork));
    assert!(matches!(mva::throughput(&nothing, &Load::of(0)), Err(ModelError::Zero { .. })));
    let cores = Load { mpl: 1, cores: Some(0) };
    assert!(matches!(mva::throughput(&nothing, &cores), Err(ModelError::Zero { .. })));
}
