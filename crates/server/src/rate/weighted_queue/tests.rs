//! Tests of the queue in simulated time.

use floe_testkit::Random;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// The level at which numbered flows share a rate.
type Level = fn(u16) -> Flow;

/// Flows of different volumes, and those of different clients of one volume.
const LEVELS: [Level; 2] = [volume, |client| Flow { volume: 0, client }];

fn volume(volume: u16) -> Flow {
    Flow { volume, client: 0 }
}

fn queue(level: Level, requests: u64, weights: &[u64]) -> WeightedQueue {
    let rates = Rates { requests: Some(requests), bytes: None, burst_ns: 1_000_000 };
    with_weights(level, rates, weights)
}

fn with_weights(level: Level, rates: Rates, weights: &[u64]) -> WeightedQueue {
    let mut queue = WeightedQueue::new(rates);
    for (number, weight) in weights.iter().enumerate() {
        set_weight(&mut queue, level(number as u16), *weight, 0);
    }
    queue
}

/// Sets the weight of a client of volume 0, or that of another volume.
fn set_weight(queue: &mut WeightedQueue, flow: Flow, weight: u64, now: u64) {
    let mut clients = queue.volume(flow.volume).clients.weights.clone();
    *entry_of(&mut clients, flow.client.into(), WEIGHT) = weight;
    queue.set_weights(flow.volume, weight, clients, now);
}

/// A client of the simulation.
#[derive(Debug, Clone)]
struct Asker {
    flow: Flow,
    weight: u64,
    /// Largest request in bytes.
    most: usize,
    /// The client asks between these times.
    busy: (u64, u64),
    /// Threads on which it asks.
    threads: Vec<usize>,
    /// When its requests started, the time of the rate that they used, and their bytes.
    served: Vec<(u64, u64, u64)>,
}

impl Asker {
    /// Time of the rate that the client has used between two times, over its weight.
    fn part(&self, from: u64, to: u64) -> f64 {
        let of_time = self.served.iter().filter(|(at, ..)| (from..to).contains(at));
        of_time.map(|(_, cost, _)| *cost).sum::<u64>() as f64 / self.weight as f64
    }

    /// Time of the rate by which the client may be ahead or behind, over its weight.
    fn bound(&self, ahead_ns: u64) -> f64 {
        let largest = self.served.iter().map(|(_, cost, _)| *cost).max().unwrap_or(0);
        (largest + ahead_ns) as f64 / self.weight as f64
    }
}

/// Asserts that these starts exceed neither rate by more than the burst and `more` requests.
fn assert_rate_holds(rates: &Rates, askers: &[Asker], more: u64) {
    let mut all: Vec<_> = askers.iter().flat_map(|it| it.served.clone()).collect();
    all.sort_unstable();
    let costs = |bytes| rates.costs_ns(bytes).map(|cost| cost.unwrap_or(0));
    let largest = all
        .iter()
        .map(|it| costs(it.2))
        .fold([0; 2], |most, it| [most[0].max(it[0]), most[1].max(it[1])]);
    for from in (0..all.len()).step_by(1 + all.len() / 50) {
        let mut sums = [0; 2];
        for &(at, _, bytes) in &all[from..] {
            for ((sum, cost), largest) in sums.iter_mut().zip(costs(bytes)).zip(largest) {
                *sum += cost;
                let most = at - all[from].0 + rates.burst_ns + more * largest;
                let rounding = all.len() as u64;
                assert!(*sum <= most + rounding, "{sum} over {most}");
            }
        }
    }
}

/// Runs clients on threads until `end`. Each thread looks `early_ns` to `late_ns` after it is due.
fn simulate(
    queue: &mut WeightedQueue,
    askers: &mut [Asker],
    random: &mut Random,
    (threads, early_ns, late_ns, end): (usize, usize, usize, u64),
) {
    let rates = queue.rates;
    let cost = |bytes| rates.costs_ns(bytes).into_iter().flatten().max().unwrap_or(0);
    let mut wakes: Vec<u64> = vec![0; threads];
    loop {
        let (thread, now) = (0..threads).map(|at| (at, wakes[at])).min_by_key(|it| it.1).unwrap();
        if now > end {
            return;
        }
        for it in askers.iter_mut() {
            let line = (thread, it.flow);
            let is_busy = (it.busy.0..it.busy.1).contains(&now);
            let asks = is_busy && it.threads.contains(&thread);
            while asks && !queue.tags.contains_key(&line) {
                let bytes = 512 + random.below(it.most) as u64;
                if queue.take_or_enter(line, bytes, now).is_some() {
                    it.served.push((now, cost(bytes), bytes));
                }
            }
        }
        while let Some(grant) = queue.grant(thread, now) {
            let it = askers.iter_mut().find(|it| it.flow == grant.flow).unwrap();
            it.served.push((now, cost(grant.bytes), grant.bytes));
            if now < it.busy.1 {
                let bytes = 512 + random.below(it.most) as u64;
                queue.enter((thread, grant.flow), bytes, now);
            }
        }
        let begins = askers.iter().map(|it| it.busy.0).filter(|begin| *begin > now).min();
        let next = queue.next_due(thread, now);
        assert!(
            next.is_none_or(|next| next > now),
            "thread {thread} has nothing to start at {now}"
        );
        let due = next.into_iter().chain(begins).min();
        let due = due.unwrap_or(u64::MAX).clamp(now + 1, end + 1);
        wakes[thread] = due + (early_ns + random.below(late_ns - early_ns + 1)) as u64;
    }
}

fn random_rates(random: &mut Random) -> Rates {
    Rates {
        requests: [Some(50), Some(2000), Some(20_000), None][random.below(4)],
        bytes: Some([1 << 20, 100 << 20][random.below(2)]),
        burst_ns: [5, 100][random.below(2)] * 1_000_000,
    }
}

/// Returns one that asks all the time if `is_steady`, or from some time on, or until some time.
fn random_asker(random: &mut Random, flow: Flow, threads: usize, is_steady: bool) -> Asker {
    let busy = match random.below(3) {
        _ if is_steady => (0, u64::MAX),
        0 => (random.below(SECOND as usize) as u64, u64::MAX),
        1 => (0, random.below(SECOND as usize) as u64),
        _ => (0, u64::MAX),
    };
    let first = random.below(threads);
    Asker {
        flow,
        weight: [1, 10, 100, 333, 1000][random.below(5)],
        most: [1, 4096, 64 << 10][random.below(3)],
        busy,
        threads: (first..threads).collect(),
        served: Vec::new(),
    }
}

/// Asserts that two that ask all the time differ by no more than a request of each, and by what
/// they may go ahead.
fn assert_shared(one: &Asker, other: &Asker, end: u64, seed: u64) {
    let (from, to) = (one.busy.0.max(other.busy.0), one.busy.1.min(other.busy.1).min(end));
    // A whole burst goes as it comes.
    let from = if from == 0 { 300_000_000 } else { from + 1_000_000 };
    for part in 1..=4 {
        let to = from + to.saturating_sub(from) / part;
        let (a, b) = (one.part(from, to), other.part(from, to));
        let bound = 1.01 * (one.bound(AHEAD_NS) + other.bound(AHEAD_NS));
        let flows = (one.flow, other.flow);
        assert!((a - b).abs() <= bound, "seed {seed}, {flows:?}: {a} and {b}, not {bound}");
    }
}

#[test]
fn those_that_are_busy_use_the_whole_rate_in_proportion_to_their_weights() {
    for (seed, level) in (0..40).flat_map(|seed| LEVELS.map(|level| (seed, level))) {
        let mut random = Random(seed);
        let rates = random_rates(&mut random);
        let threads = 1 + random.below(4);
        let late_ns = [0, 50_000, 500_000][random.below(3)];
        let end = SECOND;
        let count = 2 + random.below(6) as u16;
        let mut askers: Vec<Asker> = (0..count)
            .map(|number| random_asker(&mut random, level(number), threads, number == 0))
            .collect();
        let weights: Vec<u64> = askers.iter().map(|it| it.weight).collect();
        let mut queue = with_weights(level, rates, &weights);
        simulate(&mut queue, &mut askers, &mut random, (threads, 0, late_ns, end));

        for (at, one) in askers.iter().enumerate() {
            askers[..at].iter().for_each(|other| assert_shared(one, other, end, seed));
        }
        // Together they use the rate, and not more.
        assert_rate_holds(&rates, &askers, 1);
        if rates.requests.is_none() {
            let all = || askers.iter().flat_map(|it| &it.served).map(|(_, cost, _)| *cost);
            let (used, largest) = (all().sum::<u64>(), all().max().unwrap_or(0));
            let least = end.saturating_sub(late_ns as u64 + largest);
            assert!(used >= least, "seed {seed}: {used} of {least}");
        }
    }
}

#[test]
fn clients_share_the_part_of_their_volume_whatever_others_have() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let rates = random_rates(&mut random);
        let (threads, end) = (1 + random.below(4), SECOND);
        let mut queue = WeightedQueue::new(rates);
        let (mut askers, mut weights) = (Vec::new(), Vec::new());
        for volume in 0..2 + random.below(3) as u16 {
            let clients = 1 + random.below(5) as u16;
            for client in 0..clients {
                let flow = Flow { volume, client };
                askers.push(random_asker(&mut random, flow, threads, client == 0));
            }
            let of_clients = askers.iter().filter(|it| it.flow.volume == volume);
            let of_clients: Vec<u64> = of_clients.map(|it| it.weight).collect();
            weights.push([1, 10, 100, 333, 1000][random.below(5)]);
            queue.set_weights(volume, *weights.last().unwrap(), of_clients, 0);
        }
        simulate(&mut queue, &mut askers, &mut random, (threads, 0, 50_000, end));

        let clients_of = |volume: u16| askers.iter().filter(move |it| it.flow.volume == volume);
        let volumes: Vec<Asker> = (0..)
            .zip(&weights)
            .map(|(number, weight)| Asker {
                weight: *weight,
                flow: volume(number),
                busy: (0, u64::MAX),
                served: clients_of(number).flat_map(|it| it.served.clone()).collect(),
                ..askers[0].clone()
            })
            .collect();
        for (at, one) in volumes.iter().enumerate() {
            volumes[..at].iter().for_each(|other| assert_shared(one, other, end, seed));
            let clients: Vec<&Asker> = clients_of(one.flow.volume).collect();
            for (at, one) in clients.iter().enumerate() {
                clients[..at].iter().for_each(|other| assert_shared(one, other, end, seed));
            }
        }
        assert_rate_holds(&rates, &askers, 1);
    }
}

#[test]
fn a_thread_whose_large_request_is_first_looks_in_time_for_another_volumes() {
    let rates = Rates { requests: None, bytes: Some(1 << 20), burst_ns: 100_000_000 };
    let mut queue = with_weights(volume, rates, &[]);
    let line = |thread, volume, client| (thread, Flow { volume, client });
    assert!(queue.take_or_enter(line(0, 2, 0), (1 << 20) / 10, 0).is_some());
    // The large request waits for the bucket until 62 ms.
    queue.enter(line(0, 0, 1), 64 << 10, 0);
    queue.enter(line(0, 1, 0), 512, 0);
    queue.enter(line(1, 0, 0), 512, 0);
    let now = 10_000_000;
    assert_eq!(queue.grant(0, now), None);
    let due = queue.next_due(0, now).unwrap();
    assert!(due < now + AHEAD_NS, "{due}");
    // A small one goes ahead of it, and uses the turn of their volume.
    assert_eq!(queue.grant(1, now).unwrap().flow, volume(0));
    assert_eq!(queue.grant(1, now), None);
    assert_eq!(queue.grant(0, due).unwrap().flow, volume(1));
}

#[test]
fn threads_that_look_late_get_their_parts_and_lose_no_rate() {
    for (seed, level) in (0..12).flat_map(|seed| LEVELS.map(|level| (seed, level))) {
        let mut random = Random(seed);
        let requests = [500, 5000][random.below(2)];
        let rates = Rates { requests: Some(requests), bytes: None, burst_ns: 100_000_000 };
        let threads = 2 + random.below(3);
        let weights: Vec<u64> = (0..threads).map(|_| [100, 300, 1000][random.below(3)]).collect();
        let asker = |(thread, weight): (usize, &u64)| Asker {
            flow: level(thread as u16),
            weight: *weight,
            most: 1,
            busy: (0, u64::MAX),
            threads: vec![thread],
            served: Vec::new(),
        };
        let mut askers: Vec<Asker> = weights.iter().enumerate().map(asker).collect();
        let mut queue = with_weights(level, rates, &weights);
        let late = (threads, 3_000_000, 5_000_000, 2 * SECOND);
        simulate(&mut queue, &mut askers, &mut random, late);

        for (at, one) in askers.iter().enumerate() {
            for other in &askers[..at] {
                let (from, to) = (SECOND / 2, 2 * SECOND);
                let (a, b) = (one.part(from, to), other.part(from, to));
                let bound = one.bound(GRACE_NS) + other.bound(GRACE_NS);
                assert!((a - b).abs() <= bound, "seed {seed}: {a} and {b}, not {bound}");
            }
        }
        assert_rate_holds(&rates, &askers, 1);
        let used: u64 = askers.iter().flat_map(|it| &it.served).map(|it| it.1).sum();
        assert!(used >= 2 * SECOND, "seed {seed}: {used}");
    }
}

#[test]
fn large_requests_of_a_slow_thread_are_not_starved_by_small_ones() {
    for (burst_ms, level) in [5, 100].into_iter().flat_map(|ms| LEVELS.map(|level| (ms, level))) {
        let bytes = 100 << 20;
        let rates = Rates { requests: None, bytes: Some(bytes), burst_ns: burst_ms * 1_000_000 };
        let mut queue = with_weights(level, rates, &[100, 100]);
        let (slow, quick) = ((0, level(0)), (1, level(1)));
        let (large, small) = (1 << 20, 4096);
        let mut askers = [0, 1].map(|thread| Asker {
            flow: level(thread as u16),
            weight: 100,
            most: 1,
            busy: (0, u64::MAX),
            threads: vec![thread],
            served: Vec::new(),
        });
        assert!(queue.take_or_enter(quick, large, 0).is_some());
        queue.enter(slow, large, 0);
        queue.enter(quick, small, 0);
        for now in (0..2 * SECOND).step_by(20_000) {
            for (line, bytes) in [(slow, large), (quick, small)] {
                let looks = line == quick || now % 20_000_000 == 0;
                while looks && let Some(grant) = queue.grant(line.0, now) {
                    askers[line.0].served.push((now, 1, grant.bytes));
                    queue.enter(line, bytes, now);
                }
            }
        }
        let starts = askers.each_ref().map(|it| it.served.len());
        // One each time that it looks, but for those that the rate delays.
        assert!(starts[0] >= 40, "{starts:?}");
        assert!(starts[1] >= 10_000, "{starts:?}");
        assert_rate_holds(&rates, &askers, 2);
    }
}

#[test]
fn one_busy_volume_of_two_hundred_has_the_whole_rate() {
    let mut queue = queue(volume, 1000, &[1; 200]);
    let asker = |number| Asker {
        flow: volume(number),
        weight: 1,
        most: 1,
        busy: (if number == 77 { 0 } else { u64::MAX }, u64::MAX),
        threads: vec![0, 1],
        served: Vec::new(),
    };
    let mut askers: Vec<Asker> = (0..200).map(asker).collect();
    simulate(&mut queue, &mut askers, &mut Random(1), (2, 0, 1000, SECOND));
    let served = askers[77].served.len();
    assert!((1000..=1003).contains(&served), "{served}");
}

#[test]
fn a_light_volume_does_not_slip_in_while_a_heavy_ones_thread_takes_its_next_request() {
    let rates = Rates { requests: Some(1), bytes: None, burst_ns: 100 * SECOND };
    for level in LEVELS {
        let mut queue = with_weights(level, rates, &[1000, 1]);
        let (heavy, light) = ((0, level(0)), (1, level(1)));
        (0..100).for_each(|_| assert!(queue.take_or_enter(light, 0, 0).is_some()));
        assert!(queue.take_or_enter(heavy, 0, 0).is_none());
        assert!(queue.take_or_enter(light, 0, 0).is_none());
        // There is enough for all of these.
        let now = 60 * SECOND;
        for _ in 0..50 {
            assert_eq!(queue.grant(0, now).unwrap().flow, level(0));
            assert_eq!(queue.grant(1, now), None, "the heavy volume's next is first");
            assert!(queue.next_due(1, now).unwrap() > now);
            queue.enter(heavy, 0, now);
        }
        // Without a next request the place is given up.
        assert_eq!(queue.grant(0, now).unwrap().flow, level(0));
        assert_eq!(queue.grant(0, now), None);
        assert_eq!(queue.grant(1, now + SECOND).unwrap().flow, level(1));
        assert_eq!(queue.next_due(0, now), None);
    }
}

#[test]
fn a_thread_that_hangs_delays_others_once() {
    for level in LEVELS {
        let mut queue = queue(level, 100, &[100; 3]);
        let interval = SECOND / 100;
        assert!(queue.take_or_enter((1, level(1)), 0, 0).is_some());
        assert!(queue.take_or_enter((2, level(2)), 0, interval).is_some());
        for thread in 0..3 {
            let line = (thread, level(thread as u16));
            assert!(queue.take_or_enter(line, 0, interval).is_none());
        }
        // Thread 0 does not look. The others wait for it, and then go on without it.
        let mut now = 2 * interval;
        assert_eq!(queue.grant(1, now + GRACE_NS / 2), None);
        now += GRACE_NS + 1;
        let mut starts = Vec::new();
        while starts.len() < 100 {
            for thread in [1, 2] {
                while let Some(grant) = queue.grant(thread, now) {
                    starts.push(grant.flow);
                    queue.enter((thread, grant.flow), 0, now);
                }
            }
            now += 100_000;
        }
        assert!(now <= 104 * interval, "{now}");
        assert!(
            starts.iter().filter(|flow| **flow == level(1)).count().abs_diff(50) <= 2,
            "{starts:?}"
        );
        now += interval;
        assert_eq!(queue.grant(0, now).unwrap().flow, level(0), "it was first");
        queue.enter((0, level(0)), 0, now);
        now += interval;
        assert_eq!(queue.grant(1, now + GRACE_NS / 2), None, "it is waited for again");
    }
}

#[test]
fn a_change_holds_for_requests_that_wait() {
    for level in LEVELS {
        let mut queue = queue(level, 1, &[1, 1]);
        assert!(queue.take_or_enter((0, level(0)), 0, 0).is_some());
        let line = |number| (usize::from(number), level(number));
        for number in [0, 1] {
            assert!(queue.take_or_enter(line(number), 0, 0).is_none());
        }
        // The second one gets more weight while its request waits, and then most of the starts.
        set_weight(&mut queue, level(1), 9, 0);
        let mut counts = [0_u64; 2];
        for second in 1..=100 {
            let granted: Vec<u16> = (0..2)
                .filter(|thread| queue.grant(usize::from(*thread), second * SECOND).is_some())
                .collect();
            for number in granted {
                counts[usize::from(number)] += 1;
                queue.enter(line(number), 0, second * SECOND);
            }
        }
        assert!(counts[0].abs_diff(10) <= 2 && counts[1].abs_diff(90) <= 2, "{counts:?}");
        // A rate that is lifted lets all go at once.
        let now = 100 * SECOND;
        assert!(queue.next_due(0, now).unwrap() > now);
        let lifted = Rates { requests: None, bytes: None, burst_ns: 1 };
        queue.set_rates(lifted, now);
        let all: Vec<Option<Grant>> = [0, 1, 0, 1].map(|it| queue.grant(it, now)).into();
        assert_eq!(all.iter().flatten().count(), 2);
    }
}

#[test]
fn a_request_that_leaves_gives_back_its_part() {
    for level in LEVELS {
        let mut queue = queue(level, 10, &[100, 100]);
        let [one, other] = [0, 1].map(|number| (0, level(number)));
        assert!(queue.take_or_enter(other, 0, 0).is_some());
        for _ in 0..100 {
            assert!(queue.take_or_enter(one, 0, 0).is_none());
            queue.leave(one, 0);
        }
        assert_eq!(queue.len(), 0);
        assert!(queue.take_or_enter(one, 0, 0).is_none());
        assert!(queue.take_or_enter(other, 0, 0).is_none());
        // Those that have left have not put it back, nor moved the bucket.
        let now = SECOND / 10;
        let grant = queue.grant(0, now).unwrap();
        assert_eq!(grant.flow, level(0));
        // One that has its turn, and is gone, gives its share of the rate back.
        queue.give_back(grant, now);
        assert!(queue.grant(0, now).is_some());
        assert_eq!(queue.grant(0, now), None);
        assert_eq!(queue.len(), 0);
    }
}

/// A volume has its part back while other requests of it wait.
#[test]
fn another_request_of_the_volume_has_the_turn_that_was_given_back() {
    for is_prepaid in [false, true] {
        let mut queue = queue(volume, 10, &[1, 1000]);
        let [gone, next, heavy] = [(0, volume(0)), (1, volume(0)), (2, volume(1))];
        assert!(queue.take_or_enter(heavy, 0, 0).is_some());
        for line in [gone, next, heavy] {
            assert!(queue.take_or_enter(line, 0, 0).is_none());
        }
        let mut now = SECOND / 10;
        if is_prepaid {
            now += GRACE_NS;
            assert_eq!(queue.grant(2, now), None, "thread 0 is late, and has the share");
            queue.leave(gone, now);
        } else {
            let grant = queue.grant(0, now).unwrap();
            queue.give_back(grant, now);
        }
        assert_eq!(queue.grant(2, now), None, "it waits for the light volume");
        assert!(queue.grant(1, now).is_some(), "{is_prepaid}");
    }
}

/// A thread sleeps until the rate suffices, however many volumes wait.
#[test]
fn a_thread_looks_seldom_while_many_volumes_wait() {
    let mut queue = queue(volume, 1, &[]);
    assert!(queue.take_or_enter((0, volume(0)), 0, 0).is_some());
    for number in 0..4 * FORESEEN as u16 {
        assert!(queue.take_or_enter((usize::from(number) % 4, volume(number)), 0, 0).is_none());
    }
    for thread in 0..4 {
        assert_eq!(queue.grant(thread, SECOND / 2), None);
        assert!(queue.next_due(thread, SECOND / 2).unwrap() >= SECOND / 2 + LOOK_MOST_NS);
    }
}

/// A thread that alone has requests sleeps until the first of them may start.
#[test]
fn a_thread_without_others_sleeps_until_its_first_request_may_start() {
    let rates = Rates { requests: None, bytes: Some(1 << 20), burst_ns: 1_000_000 };
    let mut queue = with_weights(volume, rates, &[1, 1]);
    for number in 0..2 {
        queue.enter((0, volume(number)), [32 << 20, 512][usize::from(number)], 0);
    }
    queue.bucket.take(&rates, 1 << 20, 0);
    assert_eq!(queue.grant(0, SECOND / 2), None);
    assert!(queue.next_due(0, SECOND / 2).unwrap() > SECOND * 9 / 10);
}

#[test]
fn a_share_that_is_prepaid_is_given_back_once() {
    for (step, level) in (0..4).flat_map(|step| LEVELS.map(|level| (step, level))) {
        let mut queue = queue(level, 10, &[100; 2]);
        let [late, other] = [0, 1].map(|number| (usize::from(number), level(number)));
        assert!(queue.take_or_enter(other, 0, 0).is_some());
        assert!(queue.take_or_enter(late, 0, 0).is_none());
        assert!(queue.take_or_enter(other, 0, 0).is_none());
        let now = SECOND / 10 + GRACE_NS;
        assert_eq!(queue.grant(1, now), None, "the late thread has the share");
        assert!(queue.next_due(1, now).unwrap() > now + SECOND / 20);
        assert_eq!(queue.next_due(0, now), Some(now));
        match step {
            0 => queue.leave(late, now),
            1 => set_weight(&mut queue, level(0), 99, now),
            2 => {
                let grant = prepaid_grant(&mut queue, now);
                queue.give_back(grant, now);
            }
            _ => {
                prepaid_grant(&mut queue, now);
            }
        }
        if step == 1 {
            assert!(queue.grant(0, now).is_some(), "it is first, and has its share again");
        }
        let starts = [0, 1].map(|thread| queue.grant(thread, now).is_some());
        assert_eq!(starts, [false, step == 0 || step == 2], "{step}");
    }
}

/// The request of thread 0 that is prepaid.
fn prepaid_grant(queue: &mut WeightedQueue, now: u64) -> Grant {
    let grant = queue.grant(0, now).unwrap();
    assert_eq!(queue.grant(0, now), None, "it is granted once");
    grant
}

#[test]
fn nothing_overflows() {
    let rates = Rates { requests: Some(1), bytes: Some(4096), burst_ns: 1_000_000 };
    let mut queue = with_weights(volume, rates, &[1]);
    assert!(queue.take_or_enter((0, volume(0)), u32::MAX.into(), 0).is_some());
    for _ in 0..100 {
        assert!(queue.take_or_enter((0, volume(0)), u32::MAX.into(), 0).is_none());
        let due = queue.next_due(0, 0).unwrap();
        assert!(due > 1_000_000 * SECOND && queue.grant(0, due).is_some());
        queue.grant(0, 0);
    }
}
