//! Arrivals at a rate, against the textbook.

use floe_model::open::{open, saturation};
use floe_model::peak::{Class, saturation_peak};
use floe_model::{
    ModelError, Network, Policy, RequestOutcome, RouteStep, Service, Setting, Station, Time, Visit,
};

fn one_station(servers: u32, copies: u32, us: f64) -> Network {
    let visit = RouteStep::Visit(Visit { station: 0, time: Time::of(us), is_limit: false });
    let steps = vec![RouteStep::Compute(0.5), RouteStep::Disk(3.0), visit];
    let outcome = RequestOutcome { name: "all", probability: 1.0, is_miss: true, steps };
    Network::new(vec![Station { name: "station", servers, copies }], vec![outcome])
        .expect("a network")
}

/// Erlang's C formula, and the response time of an M/M/c queue by it.
fn erlang(arrivals: f64, us: f64, servers: u32) -> f64 {
    let offered = arrivals * us;
    let blocked = (1..=servers)
        .fold(1.0, |blocked, n| offered * blocked / (f64::from(n) + offered * blocked));
    let busy = offered / f64::from(servers);
    let waits = blocked / (1.0 - busy * (1.0 - blocked));
    us + waits * us / (f64::from(servers) - offered)
}

#[test]
fn queues_are_as_long_as_erlang_says() {
    for servers in [1, 2, 8, 200] {
        let network = one_station(servers, 1, 0.8);
        let limit = saturation(&network, None).expect("a rate");
        assert!((limit - f64::from(servers) / 0.8).abs() < 1e-9 * limit);
        for share in [0.1, 0.5, 0.9, 0.999] {
            let found =
                open(&network, share * limit, None).expect("a rate").response_us.expect("no pile");
            let expected = 3.5 + erlang(share * limit, 0.8, servers);
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{servers} at {share}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn copies_share_what_arrives() {
    let found =
        open(&one_station(1, 5, 0.8), 4.0, None).expect("a rate").response_us.expect("no pile");
    assert!((found - (3.5 + erlang(0.8, 0.8, 1))).abs() < 1e-9);
}

#[test]
fn a_core_for_all_is_a_queue_of_its_own() {
    // What needs a core is the lookup and the station: with one core, one request at a time.
    let found = open(&one_station(1, 1, 0.8), 0.5, Some(1)).expect("a rate");
    assert!((found.saturation_mrps - 1.0 / 1.3).abs() < 1e-12);
    assert!((found.response_us.expect("no pile") - (3.0 + erlang(0.5, 1.3, 1))).abs() < 1e-9);
}

#[test]
fn past_saturation_requests_pile_up() {
    let lru = Policy::named("lru").expect("a policy");
    let network = lru.network(&Service::paper(), &Setting::new(1.0, 100.0)).expect("a network");
    assert!((saturation(&network, None).expect("a rate") - 1.0 / 0.7).abs() < 1e-12);
    assert_eq!(open(&network, 1.43, None).expect("a rate").response_us, None);
    assert!(open(&network, 1.42, None).expect("a rate").response_us.is_some());
    assert_eq!(open(&network, 0.0, None), Err(ModelError::Rate { mrps: 0.0 }));
}

#[test]
fn the_rate_that_lru_can_bear_falls_from_the_corner_of_the_bound_on() {
    let lru = Policy::named("lru").expect("a policy");
    let peak =
        saturation_peak(&lru, &Service::paper(), &Setting::new(1.0, 100.0), None).expect("a model");
    // Below it the head limits, which all requests visit.
    assert!((peak.hit_ratio - 0.59 / 0.7).abs() < 1e-3, "{peak:?}");
    assert!((peak.throughput_mrps - 1.0 / 0.59).abs() < 1e-3, "{peak:?}");
    assert_eq!((peak.class, peak.bottleneck), (Class::LruLike, Some("delink")));
    let fifo = Policy::named("fifo").expect("a policy");
    let peak = saturation_peak(&fifo, &Service::paper(), &Setting::new(1.0, 100.0), None)
        .expect("a model");
    assert_eq!(
        (peak.class, peak.hit_ratio, peak.throughput_mrps),
        (Class::FifoLike, 1.0, f64::INFINITY)
    );
}
