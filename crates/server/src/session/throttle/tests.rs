//! Tests of the lines.

mod total;

use std::net::Ipv4Addr;
use std::time::Duration;

use floe_testkit::Random;

use super::*;
use crate::named_clients::ClientLimit;

fn limit(requests: u64) -> Arc<VolumeLimit> {
    limits(Some(requests), None)
}

/// Limits a volume, and each of its clients.
fn limits(requests: Option<u64>, of_client: Option<u64>) -> Arc<VolumeLimit> {
    Arc::new(VolumeLimit::new(RequestLimit {
        requests_per_second: requests,
        client_requests_per_second: of_client,
        limit_burst_ms: 1,
        ..RequestLimit::NONE
    }))
}

/// Limits as of [`limits`], with clients that have names.
fn limits_with(
    requests: Option<u64>,
    of_client: Option<u64>,
    clients: NamedClients,
) -> Arc<VolumeLimit> {
    Arc::new(VolumeLimit::new(RequestLimit { clients, ..limits(requests, of_client).limit() }))
}

/// Gives clients these weights, and the same limit as all others.
fn weights(weights: &[(u32, u64)], of_client: Option<u64>) -> NamedClients {
    let client = |&(connection, weight): &(u32, u64)| {
        let limit = ClientLimit { requests_per_second: of_client, weight, bytes_per_second: None };
        (name(connection), limit)
    };
    weights.iter().map(client).collect()
}

/// The client that a connection belongs to: connections 0, 2, 4 and so on are of one, the
/// others of another.
fn name(connection: u32) -> ClientName {
    ClientName::Host(["even", "odd"][connection as usize % 2].into())
}

fn take(throttle: &Throttle, connection: u32, volume: VolumeId, now: Instant) -> bool {
    let client = name(connection);
    throttle.take(connection, || &client, volume, 0, now)
}

fn wait(throttle: &Throttle, connection: u32, volume: VolumeId, now: Instant) {
    let client = name(connection);
    throttle.wait(connection, || &client, volume, 0, now);
}

impl Throttle {
    /// Checks that all lines are ordered by their starts, and that places are known by line.
    fn check(&self) {
        let state = self.state.borrow();
        let mut dues = BTreeSet::new();
        let mut places = BTreeMap::new();
        let mut looks = BTreeSet::new();
        for (volume, lines) in state.volumes.iter().enumerate() {
            let (volume, Some(lines)) = (volume as u16, lines) else { continue };
            let clients = lines.clients.iter().map(|(client, line)| (Some(client), line));
            for (client, line) in [(None, &lines.volume)].into_iter().chain(clients) {
                assert_eq!(line.start.is_some(), !line.waiting.is_empty());
                assert!(client.is_none() || line.start.is_some(), "an empty line is kept");
                dues.extend(line.start.map(|start| (start, (volume, client.cloned()))));
                for place in &line.waiting {
                    let standing = Standing::Limit(client.cloned());
                    let before = places.insert((place.connection, volume), standing);
                    assert!(before.is_none(), "a connection stands in two lines of a volume");
                }
            }
            let weighted = lines.by_weight.check();
            assert!(weighted.is_empty() || lines.look_at.is_some(), "nothing ends the wait");
            looks.extend(lines.look_at.map(|at| (at, volume)));
            for (flow, connection) in weighted {
                let before = places.insert((connection, volume), Standing::Weighted(flow.client));
                assert!(before.is_none(), "a connection stands in two lines of a volume");
            }
        }
        for (Flow { volume, client }, connection) in state.total.check() {
            let before = places.insert((connection, volume), Standing::Total(client));
            assert!(before.is_none(), "a connection stands in two lines of a volume");
        }
        assert_eq!((&state.dues, &state.places), (&dues, &places));
        assert_eq!(state.looks, looks);
    }
}

#[test]
fn a_client_is_asked_for_its_name_only_if_it_has_a_limit_or_waits() {
    let (throttle, begun) = (Throttle::default(), Instant::now());
    let unasked = || -> &'static ClientName { panic!("the name is asked for") };
    assert!(throttle.take(0, unasked, VolumeId(0), 0, begun), "the volume has no limit");
    let connections = RequestLimit { connections: Some(5), ..RequestLimit::NONE };
    throttle.set(VolumeId(0), Some(Arc::new(VolumeLimit::new(connections))), begun);
    assert!(throttle.take(0, unasked, VolumeId(0), 0, begun));
    throttle.set(VolumeId(0), Some(limit(1)), begun);
    assert!(throttle.take(0, unasked, VolumeId(0), 0, begun));
    assert!(!take(&throttle, 0, VolumeId(0), begun));
}

#[test]
fn a_connection_that_waits_for_its_client_has_nothing_of_the_volumes_limit() {
    let (throttle, shared) = (Throttle::default(), limits(Some(10), Some(1)));
    let (second, volume, begun) = (Duration::from_secs(1), VolumeId(0), Instant::now());
    throttle.set(volume, Some(shared), begun);
    assert!(take(&throttle, 0, volume, begun));
    (1..5).for_each(|at| assert!(!take(&throttle, 2 * at, volume, begun)));
    // The volume's next request is the other client's.
    assert!(take(&throttle, 1, volume, begun + second / 10));
    assert_eq!(throttle.next_due(), Some(begun + second));
}

#[test]
fn a_connection_that_leaves_the_volumes_line_gives_its_clients_share_back() {
    let (second, volume) = (Duration::from_secs(1), VolumeId(0));
    for from_line in [false, true] {
        let (throttle, shared) = (Throttle::default(), limits(Some(1), Some(10)));
        let begun = Instant::now();
        throttle.set(volume, Some(Arc::clone(&shared)), begun);
        assert!(take(&throttle, 0, volume, begun));
        // The limit of its client lets it through at once, or after it has waited.
        let asked = if from_line { begun } else { begun + second / 10 };
        assert!(!take(&throttle, 2, volume, asked));
        let now = begun + second / 10;
        assert_eq!(throttle.next_in_turn(now), None);
        assert_eq!(throttle.next_due(), Some(begun + second), "it waits for the volume");
        throttle.leave(2, now);
        shared.change(RequestLimit { requests_per_second: None, ..shared.limit() }, now);
        throttle.set(volume, Some(shared), now);
        assert!(take(&throttle, 4, volume, now));
        assert!(!take(&throttle, 4, volume, now));
    }
}

#[test]
fn a_change_of_other_limits_leaves_those_that_wait_where_they_are() {
    let (throttle, shared) = (Throttle::default(), limits(Some(10), Some(10)));
    let (tenth, volume, begun) = (Duration::from_millis(100), VolumeId(0), Instant::now());
    throttle.set(volume, Some(Arc::clone(&shared)), begun);
    assert!(take(&throttle, 0, volume, begun));
    // One waits for its client, and one for the volume.
    assert!(!take(&throttle, 2, volume, begun) && !take(&throttle, 1, volume, begun));
    let before = shared.limit();
    for connections in 1..50 {
        let limit = RequestLimit { connections: Some(connections), ..before.clone() };
        shared.change(limit, begun);
        throttle.set(volume, Some(Arc::clone(&shared)), begun);
    }
    assert_eq!(throttle.next_in_turn(begun + tenth), Some((1, volume)));
    assert_eq!(throttle.next_in_turn(begun + tenth), None);
    assert_eq!(throttle.next_due(), Some(begun + 2 * tenth), "none has two shares");
    // A change of the volume's own limit is no concern of the clients'.
    assert!(!take(&throttle, 1, volume, begun + tenth));
    shared.change(RequestLimit { requests_per_second: Some(1000), ..before }, begun + tenth);
    throttle.set(volume, Some(shared), begun + tenth);
    assert_eq!(throttle.next_in_turn(begun + tenth), Some((2, volume)));
    assert!(!take(&throttle, 4, volume, begun + tenth));
    let next = begun + tenth + Duration::from_millis(1);
    assert_eq!(throttle.next_in_turn(next), Some((1, volume)));
    assert_eq!(throttle.next_due(), Some(begun + 2 * tenth));
}

#[test]
fn connections_of_a_client_share_its_limit_over_all_threads() {
    let (shared, begun) = (limits(None, Some(10)), Instant::now());
    let threads = [Throttle::default(), Throttle::default()];
    threads.iter().for_each(|it| it.set(VolumeId(0), Some(Arc::clone(&shared)), begun));
    let take = |at: usize, connection, now| take(&threads[at], connection, VolumeId(0), now);
    assert!(take(0, 0, begun), "the burst");
    assert!(!take(0, 2, begun) && !take(1, 4, begun) && !take(1, 6, begun));
    assert!(take(1, 1, begun), "another client");
    assert!(!take(1, 1, begun));
    let second = Duration::from_secs(1);
    let next = |at: usize, after| threads[at].next_in_turn(begun + after);
    let of = |connection| Some((connection, VolumeId(0)));
    assert_eq!((next(0, second / 11), next(1, second / 11)), (None, None));
    // The two clients go on side by side, and the threads of each take turns.
    assert_eq!((next(0, second / 10), next(0, second / 10)), (of(2), None));
    assert_eq!((next(1, second / 10), next(1, second / 10)), (of(1), None));
    assert_eq!((next(1, second / 5), next(1, second / 5)), (of(4), None));
    assert_eq!(threads[1].next_due(), Some(begun + second * 3 / 10));
    threads[1].leave(6, begun);
    assert!(!threads[1].is_waited_for());
}

#[test]
fn a_flooding_client_leaves_the_rest_of_the_volumes_limit_to_others() {
    let (throttle, begun) = (Throttle::default(), Instant::now());
    throttle.set(VolumeId(0), Some(limits(Some(100), Some(50))), begun);
    let take = |connection, now| take(&throttle, connection, VolumeId(0), now);
    let (mut started, mut waiting) = ([0; 2], [false; 21]);
    // Ten connections of one client always ask; the other has one, which asks as often.
    for step in 0..2000 {
        let now = begun + step * Duration::from_millis(1);
        while let Some((connection, _)) = throttle.next_in_turn(now) {
            started[connection as usize % 2] += 1;
            waiting[connection as usize] = false;
        }
        for connection in (0..20).step_by(2).chain([1]) {
            if !waiting[connection as usize] {
                let starts = take(connection, now);
                started[connection as usize % 2] += u32::from(starts);
                waiting[connection as usize] = !starts;
            }
        }
    }
    assert!(started.iter().all(|count| (95..=101).contains(count)), "{started:?}");
}

#[test]
fn threads_and_clients_take_turns_and_other_volumes_go_on() {
    let (shared, begun) = (limit(10), Instant::now());
    let threads = [Throttle::default(), Throttle::default()];
    let volume = VolumeId(3);
    threads.iter().for_each(|it| it.set(volume, Some(Arc::clone(&shared)), begun));
    assert!(take(&threads[0], 7, volume, begun));
    for client in 0..3 {
        assert!(threads.iter().all(|it| !take(it, client, volume, begun)));
        assert!(take(&threads[0], client, VolumeId(0), begun), "no limit there");
    }
    // Client 1 of the first thread goes, and client 0 waits again after each turn.
    threads[0].leave(1, begun);
    let (mut order, mut now) = ([Vec::new(), Vec::new()], begun);
    while let Some(due) = threads.iter().filter_map(Throttle::next_due).min() {
        now = due.max(now);
        for (throttle, order) in threads.iter().zip(&mut order) {
            while let Some((client, of)) = throttle.next_in_turn(now) {
                assert_eq!(of, volume);
                order.push(client);
                if client == 0 && order.len() < 4 {
                    wait(throttle, 0, volume, now);
                }
            }
        }
    }
    assert_eq!(order, [vec![0, 2, 0, 0], vec![0, 1, 2, 0]]);
    let time = now - begun;
    assert!(time >= Duration::from_millis(799) && time <= Duration::from_millis(801), "{time:?}");
}

#[test]
fn a_client_that_leaves_and_comes_back_delays_nobody() {
    let (throttle, limit, begun) = (Throttle::default(), limit(1), Instant::now());
    throttle.set(VolumeId(0), Some(limit), begun);
    assert!(take(&throttle, 0, VolumeId(0), begun));
    let second = Duration::from_secs(1);
    for tries in 0..100 {
        let now = begun + tries * second / 100;
        assert!(!take(&throttle, 1, VolumeId(0), now));
        assert!(throttle.next_due() <= Some(begun + second), "{tries}");
        throttle.leave(1, now);
    }
    // Nor does one that has left when its turn came.
    assert!(!take(&throttle, 1, VolumeId(0), begun) && !take(&throttle, 2, VolumeId(0), begun));
    assert_eq!(throttle.first_due(begun + second), Some((1, VolumeId(0))));
    throttle.leave(1, begun + second);
    assert_eq!(throttle.next_in_turn(begun + second), Some((2, VolumeId(0))));
    assert!(!throttle.is_waited_for());
}

#[test]
fn a_lifted_limit_lets_all_go() {
    let (throttle, begun) = (Throttle::default(), Instant::now());
    throttle.set(VolumeId(0), Some(limit(1)), begun);
    assert!(take(&throttle, 0, VolumeId(0), begun));
    (1..100).for_each(|client| assert!(!take(&throttle, client, VolumeId(0), begun)));
    assert!(throttle.next_in_turn(begun).is_none());
    throttle.set(VolumeId(0), None, begun);
    let gone: Vec<u32> =
        std::iter::from_fn(|| throttle.next_in_turn(begun)).map(|(client, _)| client).collect();
    assert_eq!(gone, (1..100).collect::<Vec<_>>());
    assert!(take(&throttle, 0, VolumeId(0), begun) && throttle.next_due().is_none());
}

#[test]
fn a_client_whose_name_is_removed_while_it_waits_goes_on() {
    let begun = Instant::now();
    let second = Duration::from_secs(1);
    let slow = |requests| ClientLimit {
        requests_per_second: Some(requests),
        weight: 1000,
        ..ClientLimit::default()
    };
    for (of_volume, is_removed) in [(None, true), (Some(1), true), (None, false), (Some(1), false)]
    {
        let throttles = two_threads(begun);
        let clients: NamedClients = [(name(0), slow(1)), (name(1), slow(1))].into_iter().collect();
        let shared = limits_with(of_volume, None, clients);
        let volume = VolumeId(0);
        let set = || throttles.iter().for_each(|it| it.set(volume, Some(shared.clone()), begun));
        set();
        assert!(take(&throttles[0], 0, volume, begun));
        let mut started = 1;
        for (at, throttle) in throttles.iter().enumerate() {
            // Of both clients, and so many that some wait for the volume as well.
            for it in 1..5 {
                started += usize::from(take(throttle, 10 * at as u32 + it, volume, begun));
            }
            throttle.check();
        }
        assert!(started <= 2);
        let left = if is_removed {
            NamedClients::NONE
        } else {
            [(name(1), slow(1_000_000))].into_iter().collect()
        };
        shared.change(RequestLimit { clients: left, ..shared.limit() }, begun);
        set();
        throttles.iter().for_each(Throttle::check);
        let mut now = begun;
        while let Some(due) = throttles.iter().filter_map(Throttle::next_due).min() {
            now = due.max(now);
            for throttle in &throttles {
                started += std::iter::from_fn(|| throttle.next_in_turn(now)).count();
                throttle.check();
            }
            assert!(now < begun + 10 * second, "a request waits for ever");
        }
        assert_eq!(started, 9);
        let time = (now - begun).as_secs_f64();
        assert!(time < if of_volume.is_some() { 9.0 } else { 1.1 }, "{time}");
    }
}

#[test]
fn clients_of_a_removed_network_do_not_wait_for_the_limit_of_one_client() {
    let slow = |requests| ClientLimit { requests_per_second: Some(requests), ..Default::default() };
    let machine = |number| ClientName::of_machine(Ipv4Addr::new(10, 0, 0, number as u8).into());
    for (name, is_machine) in [("10.0.0.0/8", false), ("others", false), ("10.0.0.0", true)] {
        let (throttle, volume, begun) = (Throttle::default(), VolumeId(0), Instant::now());
        let take = |connection: u32| {
            let client = machine(if is_machine { 0 } else { connection % 10 });
            throttle.take(connection, || &client, volume, 0, begun)
        };
        let named = [(name.parse().unwrap(), slow(1))].into_iter().collect();
        let shared = limits_with(None, None, named);
        throttle.set(volume, Some(Arc::clone(&shared)), begun);
        assert_eq!((0..9).filter(|&connection| take(connection)).count(), 1, "{name}");
        let each = limits(None, Some(1)).limit();
        shared.change(each, begun);
        throttle.set(volume, Some(shared), begun);
        throttle.check();
        let started = std::iter::from_fn(|| throttle.next_in_turn(begun)).count();
        assert_eq!(started, if is_machine { 1 } else { 8 }, "{name}");
        // From then on each has its own limit.
        let started = (10..30).filter(|&connection| take(connection)).count();
        assert_eq!(started, if is_machine { 0 } else { 10 }, "{name}");
        throttle.check();
    }
}

#[test]
fn a_thread_asks_the_shared_limit_only_for_clients_that_have_one() {
    let slow = ClientLimit { requests_per_second: Some(1), ..ClientLimit::default() };
    let named = |number| [(name(number), slow)].into_iter().collect();
    let (throttle, volume, begun) = (Throttle::default(), VolumeId(0), Instant::now());
    let shared = limits_with(None, None, named(0));
    throttle.set(volume, Some(Arc::clone(&shared)), begun);
    // A change that the thread does not know yet shows whether it asks.
    shared.change(RequestLimit { clients: named(1), ..shared.limit() }, begun);
    (0..9).for_each(|_| assert!(take(&throttle, 1, volume, begun)));
    throttle.set(volume, Some(shared), begun);
    assert!(take(&throttle, 1, volume, begun) && !take(&throttle, 1, volume, begun));
    (0..9).for_each(|_| assert!(take(&throttle, 0, volume, begun)));
}

#[test]
fn a_place_that_is_kept_for_a_client_ends_with_it() {
    let begun = Instant::now();
    let (throttles, volume) = (two_threads(begun), VolumeId(0));
    let shared = limits_with(Some(10), None, weights(&[(0, 300)], None));
    throttles.iter().for_each(|it| it.set(volume, Some(Arc::clone(&shared)), begun));
    assert!(take(&throttles[0], 0, volume, begun) && !take(&throttles[0], 0, volume, begun));
    let now = begun + Duration::from_millis(200);
    assert_eq!(throttles[0].next_in_turn(now), Some((0, volume)));
    // A request that comes and goes while the thread is busy does not put off its next look.
    let later = now + Duration::from_millis(1);
    wait(&throttles[0], 1, volume, later);
    assert!(!take(&throttles[0], 3, volume, later));
    throttles[0].leave(1, later);
    throttles[0].leave(3, later);
    assert_eq!(throttles[0].next_in_turn(now), None);
    throttles[0].check();
    assert!(!throttles[0].is_waited_for() && throttles[0].next_due().is_none());
    let much_later = begun + Duration::from_secs(1);
    assert!(take(&throttles[1], 1, volume, much_later), "a place is kept for nobody");
}

#[test]
fn clients_share_the_limit_of_their_volume_by_weight() {
    for seed in 0..40 {
        let (mut random, begun) = (Random(seed), Instant::now());
        let (throttles, volume) = (two_threads(begun), VolumeId(1));
        // Connections of two clients with names, and of others, on both threads or on one.
        let clients = ["a", "b", "c", "d"].map(|it| ClientName::Host(it.into()));
        let weights = [0; 3].map(|_| 1 + random.below(300) as u64);
        let limit = |weight| ClientLimit { weight, ..ClientLimit::default() };
        let others = [(ClientName::Others, limit(weights[2]))];
        let named = (0..2).map(|at| (clients[at].clone(), limit(weights[at]))).chain(others);
        let shared = limits_with(Some(1000), None, named.collect());
        throttles.iter().for_each(|it| it.set(volume, Some(Arc::clone(&shared)), begun));
        let connections: Vec<(u32, usize, usize)> = (0..4)
            .flat_map(|client| {
                let (count, first) = (1 + random.below(4), random.below(2));
                (0..count)
                    .map(move |it| (10 * client + it as u32, client as usize, (first + it) % 2))
            })
            .collect();
        let of = |connection: u32| connection as usize / 10;
        let mut started = [0u64; 3];
        let mut waiting = std::collections::BTreeSet::new();
        for step in 0..4000 {
            let now = begun + step * Duration::from_micros(500);
            for (thread, throttle) in throttles.iter().enumerate() {
                while let Some((connection, _)) = throttle.next_in_turn(now) {
                    started[of(connection).min(2)] += 1;
                    throttle.wait(connection, || &clients[of(connection)], volume, 0, now);
                }
                for (connection, client, _) in connections.iter().filter(|it| it.2 == thread) {
                    while !waiting.contains(connection) {
                        if throttle.take(*connection, || &clients[*client], volume, 0, now) {
                            started[of(*connection).min(2)] += 1;
                        } else {
                            waiting.insert(*connection);
                        }
                    }
                }
                throttle.check();
            }
        }
        let all: u64 = started.iter().sum();
        assert!((1990..=2005).contains(&all), "seed {seed}: {started:?}");
        // By at most one request of each, and 1 ms of the rate for each.
        let parts = [0, 1, 2].map(|at| started[at] as f64 / weights[at] as f64);
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let most = 3.0 / weights[one] as f64 + 3.0 / weights[other] as f64;
            let difference = (parts[one] - parts[other]).abs();
            assert!(difference <= most, "seed {seed}: {started:?} by {weights:?}");
        }
    }
}

#[test]
fn a_client_of_little_weight_waits_for_the_server_with_its_share_and_gives_it_back() {
    let shared = limits_with(Some(10), None, weights(&[(0, 1), (1, 1000)], None));
    let (volume, begun) = (VolumeId(0), Instant::now());
    let flow = |client| Flow { volume: 0, client };
    let (_, [throttle, _]) = with_total(1, begun);
    throttle.set(volume, Some(Arc::clone(&shared)), begun);
    assert!(take(&throttle, 0, volume, begun));
    assert!(!take(&throttle, 2, volume, begun) && !take(&throttle, 3, volume, begun));
    throttle.check();
    let now = begun + Duration::from_millis(100);
    assert_eq!(throttle.first_due(now), None, "the volume lets the heavy one through");
    assert_eq!(throttle.state.borrow().total.check(), [(flow(2), 3)]);
    throttle.leave(3, now);
    assert_eq!(throttle.first_due(now), None);
    assert_eq!(
        throttle.state.borrow().total.check(),
        [(flow(1), 2)],
        "its share goes to the other one"
    );
    throttle.check();
    assert_eq!(throttle.next_in_turn(begun + Duration::from_secs(1)), Some((2, volume)));
    assert!(!throttle.is_waited_for());
}

/// Rates of a volume: of all clients, and of each.
type Rates = [Option<u64>; 2];

/// Requests that wait, by connection and volume.
type Waiting = BTreeMap<(u32, u16), u64>;

/// The connections and times of the starts of a volume since the last change of its rate, and
/// since that of its clients' rate.
#[derive(Default)]
struct Starts([Vec<(u32, Instant)>; 2]);

impl Starts {
    fn started(&mut self, connection: u32, now: Instant, rates: Rates) {
        self.0.iter_mut().for_each(|starts| starts.push((connection, now)));
        // The burst, and one of each thread that is late to look. A connection that its
        // client's limit has let through may wait for the volume's limit.
        for (of_client, (starts, more)) in self.0.iter().zip([3.0, 9.0]).enumerate() {
            let Some(rate) = rates[of_client] else { continue };
            let is_counted = |of: u32| of_client == 0 || of % 2 == connection % 2;
            let starts = starts.iter().rev().filter(|(of, _)| is_counted(*of));
            for (count, (_, first)) in starts.enumerate() {
                let allowed = more + (now - *first).as_secs_f64() * rate as f64;
                assert!(count as f64 <= allowed, "{count} in {:?}", now - *first);
            }
        }
    }
}

#[test]
fn each_request_starts_once_within_the_limit_whatever_happens() {
    const VOLUMES: usize = 3;
    for seed in 0..200 {
        let (mut random, mut now) = (Random(seed), Instant::now());
        let throttles = two_threads(now);
        let mut rates: [Rates; VOLUMES] = [[None; 2]; VOLUMES];
        let mut shared = [(); VOLUMES].map(|()| limits(None, None));
        // Number of clients with names, which have weights.
        let mut named = [0; VOLUMES];
        let mut models = [Waiting::new(), Waiting::new()];
        let mut starts: [Starts; VOLUMES] = Default::default();
        let go_on = |at: usize,
                     models: &mut [Waiting; 2],
                     starts: &mut [Starts; VOLUMES],
                     rates: &[Rates],
                     now| {
            while let Some((client, volume)) = throttles[at].next_in_turn(now) {
                let left = models[at].get_mut(&(client, volume.0)).expect("it waits");
                *left -= 1;
                match *left {
                    0 => drop(models[at].remove(&(client, volume.0))),
                    _ => wait(&throttles[at], client, volume, now),
                }
                let volume = usize::from(volume.0);
                starts[volume].started(client, now, rates[volume]);
            }
        };
        for _ in 0..400 {
            let (at, client) = (random.below(2), random.below(5) as u32);
            let volume = random.below(VOLUMES);
            let id = VolumeId(volume as u16);
            match random.below(14) {
                0 => {
                    let mut rate = || [None, Some(1), Some(100)][random.below(3)];
                    rates[volume] = [rate(), rate()];
                    let [of_volume, of_client] = rates[volume];
                    shared[volume] = limits(of_volume, of_client);
                    named[volume] = 0;
                    starts[volume] = Starts::default();
                    let limit = &shared[volume];
                    throttles.iter().for_each(|it| it.set(id, Some(Arc::clone(limit)), now));
                }
                1 => {
                    // A rate that stays keeps its debts.
                    let of_client = random.below(3);
                    if let Some(rate) = rates[volume].get_mut(of_client) {
                        let before = *rate;
                        *rate = [None, Some(1), Some(100)][random.below(3)];
                        if before != *rate {
                            starts[volume].0[of_client].clear();
                        }
                    }
                    let names = if random.below(2) == 0 { named[volume] } else { random.below(3) };
                    if std::mem::replace(&mut named[volume], names) != names {
                        starts[volume] = Starts::default();
                    }
                    let [of_volume, of_client] = rates[volume];
                    let clients = [0, 1].map(|it| (it, [1, 7, 300, 1000][random.below(4)]));
                    let clients = weights(&clients[..names], of_client);
                    let limit = limits_with(of_volume, of_client, clients).limit();
                    let connections = Some(random.below(5) as u64);
                    shared[volume].change(RequestLimit { connections, ..limit }, now);
                    let limit = &shared[volume];
                    throttles.iter().for_each(|it| it.set(id, Some(Arc::clone(limit)), now));
                }
                2 => {
                    throttles[at].leave(client, now);
                    models[at].retain(|(of, _), _| *of != client);
                }
                3..6 => {
                    now += Duration::from_millis(random.below(40) as u64);
                    let due = throttles[at].next_due();
                    now = due.filter(|_| random.below(2) == 0).map_or(now, |due| due.max(now));
                    go_on(at, &mut models, &mut starts, &rates, now);
                }
                _ => match models[at].get_mut(&(client, id.0)) {
                    Some(waiting) => *waiting += 1,
                    None if take(&throttles[at], client, id, now) => {
                        starts[volume].started(client, now, rates[volume]);
                    }
                    None => drop(models[at].insert((client, id.0), 1)),
                },
            }
            for (throttle, model) in throttles.iter().zip(&models) {
                assert_eq!(throttle.is_waited_for(), !model.is_empty(), "seed {seed}");
                assert_eq!(throttle.next_due().is_some(), !model.is_empty());
                assert_eq!(throttle.state.borrow().places.len(), model.len());
                throttle.check();
            }
        }
        // In the end, all start by themselves.
        for at in [0, 1] {
            while let Some(due) = throttles[at].next_due() {
                now = due.max(now);
                go_on(at, &mut models, &mut starts, &rates, now);
            }
            assert!(models[at].is_empty(), "seed {seed}");
        }
    }
}

/// The lines of two threads, without a rate of the server.
fn two_threads(begun: Instant) -> [Throttle; 2] {
    let total = Arc::new(SharedRate::since(total_rates(None), begun));
    [0, 1].map(|thread| Throttle::new([].into_iter(), &total, thread))
}

fn total_rates(requests: Option<u64>) -> crate::rate::Rates {
    crate::rate::Rates { requests, bytes: None, burst_ns: 1_000_000 }
}

/// A rate of the server for two threads, and their lines.
fn with_total(requests: u64, begun: Instant) -> (Arc<SharedRate>, [Throttle; 2]) {
    let total = Arc::new(SharedRate::since(total_rates(Some(requests)), begun));
    let throttles = [Throttle::default(), Throttle::default()];
    for (thread, throttle) in throttles.iter().enumerate() {
        throttle.set_total(&total, thread, begun);
    }
    (total, throttles)
}
