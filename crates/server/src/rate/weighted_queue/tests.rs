//! Tests of the queue in simulated time.

use floe_testkit::Random;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn queue(requests: u64, weights: &[u64]) -> WeightedQueue {
    let rates = Rates { requests: Some(requests), bytes: None, burst_ns: 1_000_000 };
    with_weights(rates, weights)
}

fn with_weights(rates: Rates, weights: &[u64]) -> WeightedQueue {
    let mut queue = WeightedQueue::new(rates);
    for (volume, weight) in weights.iter().enumerate() {
        queue.set_weight(volume as u16, *weight, 0);
    }
    queue
}

/// A volume of the simulation.
#[derive(Debug, Clone)]
struct Flow {
    weight: u64,
    /// Largest request in bytes.
    most: usize,
    /// The volume asks between these times.
    busy: (u64, u64),
    /// Threads on which it asks.
    threads: Vec<usize>,
    /// When its requests started, the time of the rate that they used, and their bytes.
    served: Vec<(u64, u64, u64)>,
}

impl Flow {
    /// Time of the rate that the volume has used between two times, over its weight.
    fn part(&self, from: u64, to: u64) -> f64 {
        let of_time = self.served.iter().filter(|(at, ..)| (from..to).contains(at));
        of_time.map(|(_, cost, _)| *cost).sum::<u64>() as f64 / self.weight as f64
    }

    /// Time of the rate by which the volume may be ahead or behind, over its weight.
    fn bound(&self, ahead_ns: u64) -> f64 {
        let largest = self.served.iter().map(|(_, cost, _)| *cost).max().unwrap_or(0);
        (largest + ahead_ns) as f64 / self.weight as f64
    }
}

/// Asserts that these starts exceed neither rate by more than the burst and `more` requests.
fn assert_rate_holds(rates: &Rates, flows: &[Flow], more: u64) {
    let mut all: Vec<_> = flows.iter().flat_map(|flow| flow.served.clone()).collect();
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

/// Runs volumes on threads until `end`. Each thread looks `early_ns` to `late_ns` after it is due.
fn simulate(
    queue: &mut WeightedQueue,
    flows: &mut [Flow],
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
        for (volume, flow) in flows.iter_mut().enumerate() {
            let line = (thread, volume as u16);
            let is_busy = (flow.busy.0..flow.busy.1).contains(&now);
            let asks = is_busy && flow.threads.contains(&thread);
            while asks && !queue.tags.contains_key(&line) {
                let bytes = 512 + random.below(flow.most) as u64;
                if queue.take_or_enter(line, bytes, now).is_some() {
                    flow.served.push((now, cost(bytes), bytes));
                }
            }
        }
        while let Some(grant) = queue.grant(thread, now) {
            let flow = &mut flows[usize::from(grant.volume)];
            flow.served.push((now, cost(grant.bytes), grant.bytes));
            if now < flow.busy.1 {
                let bytes = 512 + random.below(flow.most) as u64;
                queue.enter((thread, grant.volume), bytes, now);
            }
        }
        let begins = flows.iter().map(|flow| flow.busy.0).filter(|begin| *begin > now).min();
        let due = queue.next_due(thread, now).into_iter().chain(begins).min();
        let due = due.unwrap_or(u64::MAX).clamp(now + 1, end + 1);
        wakes[thread] = due + (early_ns + random.below(late_ns - early_ns + 1)) as u64;
    }
}

#[test]
fn busy_volumes_use_the_whole_rate_in_proportion_to_their_weights() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let rates = Rates {
            requests: [Some(50), Some(2000), Some(20_000), None][random.below(4)],
            bytes: Some([1 << 20, 100 << 20][random.below(2)]),
            burst_ns: [5, 100][random.below(2)] * 1_000_000,
        };
        let threads = 1 + random.below(4);
        let late_ns = [0, 50_000, 500_000][random.below(3)];
        let end = SECOND;
        let mut flows: Vec<Flow> = Vec::new();
        for number in 0..2 + random.below(6) {
            let busy = match random.below(3) {
                _ if number == 0 => (0, u64::MAX), // so that some volume is always busy
                0 => (random.below(SECOND as usize) as u64, u64::MAX),
                1 => (0, random.below(SECOND as usize) as u64),
                _ => (0, u64::MAX),
            };
            let first = random.below(threads);
            flows.push(Flow {
                weight: [1, 10, 100, 333, 1000][random.below(5)],
                most: [1, 4096, 64 << 10][random.below(3)],
                busy,
                threads: (first..threads).collect(),
                served: Vec::new(),
            });
        }
        let weights: Vec<u64> = flows.iter().map(|flow| flow.weight).collect();
        let mut queue = with_weights(rates, &weights);
        simulate(&mut queue, &mut flows, &mut random, (threads, 0, late_ns, end));

        // No two volumes that ask all the time differ by more than a request of each, and by what
        // they may go ahead.
        for (at, one) in flows.iter().enumerate() {
            for other in &flows[..at] {
                let (from, to) =
                    (one.busy.0.max(other.busy.0), one.busy.1.min(other.busy.1).min(end));
                // A whole burst goes as it comes.
                let from = if from == 0 { 300_000_000 } else { from + 1_000_000 };
                for part in 1..=4 {
                    let to = from + to.saturating_sub(from) / part;
                    let (a, b) = (one.part(from, to), other.part(from, to));
                    let bound = 1.01 * (one.bound(AHEAD_NS) + other.bound(AHEAD_NS));
                    assert!((a - b).abs() <= bound, "seed {seed}: {a} and {b}, not {bound}");
                }
            }
        }
        // Together they use the rate, and not more.
        assert_rate_holds(&rates, &flows, 1);
        if rates.requests.is_none() {
            let all = || flows.iter().flat_map(|flow| &flow.served).map(|(_, cost, _)| *cost);
            let (used, largest) = (all().sum::<u64>(), all().max().unwrap_or(0));
            let least = end.saturating_sub(late_ns as u64 + largest);
            assert!(used >= least, "seed {seed}: {used} of {least}");
        }
    }
}

#[test]
fn threads_that_look_late_get_their_parts_and_lose_no_rate() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let requests = [500, 5000][random.below(2)];
        let rates = Rates { requests: Some(requests), bytes: None, burst_ns: 100_000_000 };
        let threads = 2 + random.below(3);
        let weights: Vec<u64> = (0..threads).map(|_| [100, 300, 1000][random.below(3)]).collect();
        let flow = |(thread, weight): (usize, &u64)| Flow {
            weight: *weight,
            most: 1,
            busy: (0, u64::MAX),
            threads: vec![thread],
            served: Vec::new(),
        };
        let mut flows: Vec<Flow> = weights.iter().enumerate().map(flow).collect();
        let mut queue = with_weights(rates, &weights);
        let late = (threads, 3_000_000, 5_000_000, 2 * SECOND);
        simulate(&mut queue, &mut flows, &mut random, late);

        for (at, one) in flows.iter().enumerate() {
            for other in &flows[..at] {
                let (from, to) = (SECOND / 2, 2 * SECOND);
                let (a, b) = (one.part(from, to), other.part(from, to));
                let bound = one.bound(GRACE_NS) + other.bound(GRACE_NS);
                assert!((a - b).abs() <= bound, "seed {seed}: {a} and {b}, not {bound}");
            }
        }
        assert_rate_holds(&rates, &flows, 1);
        let used: u64 = flows.iter().flat_map(|flow| &flow.served).map(|it| it.1).sum();
        assert!(used >= 2 * SECOND, "seed {seed}: {used}");
    }
}

#[test]
fn large_requests_of_a_slow_thread_are_not_starved_by_small_ones() {
    for burst_ms in [5, 100] {
        let bytes = 100 << 20;
        let rates = Rates { requests: None, bytes: Some(bytes), burst_ns: burst_ms * 1_000_000 };
        let mut queue = with_weights(rates, &[100, 100]);
        let (slow, quick) = ((0, 0), (1, 1));
        let (large, small) = (1 << 20, 4096);
        let mut flows = [0, 1].map(|thread| Flow {
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
                    flows[line.0].served.push((now, 1, grant.bytes));
                    queue.enter(line, bytes, now);
                }
            }
        }
        let starts = flows.each_ref().map(|flow| flow.served.len());
        // One each time that it looks, but for those that the rate delays.
        assert!(starts[0] >= 40, "{starts:?}");
        assert!(starts[1] >= 10_000, "{starts:?}");
        assert_rate_holds(&rates, &flows, 2);
    }
}

#[test]
fn one_busy_volume_of_two_hundred_has_the_whole_rate() {
    let mut queue = queue(1000, &[1; 200]);
    let flow = |busy| Flow { weight: 1, most: 1, busy, threads: vec![0, 1], served: Vec::new() };
    let mut flows = vec![flow((u64::MAX, u64::MAX)); 200];
    flows[77] = flow((0, u64::MAX));
    simulate(&mut queue, &mut flows, &mut Random(1), (2, 0, 1000, SECOND));
    let served = flows[77].served.len();
    assert!((1000..=1003).contains(&served), "{served}");
}

#[test]
fn a_light_volume_does_not_slip_in_while_a_heavy_ones_thread_takes_its_next_request() {
    let rates = Rates { requests: Some(1), bytes: None, burst_ns: 100 * SECOND };
    let mut queue = with_weights(rates, &[1000, 1]);
    let (heavy, light) = ((0, 0), (1, 1));
    (0..100).for_each(|_| assert!(queue.take_or_enter(light, 0, 0).is_some()));
    assert!(queue.take_or_enter(heavy, 0, 0).is_none());
    assert!(queue.take_or_enter(light, 0, 0).is_none());
    // There is enough for all of these.
    let now = 60 * SECOND;
    for _ in 0..50 {
        assert_eq!(queue.grant(0, now).unwrap().volume, 0);
        assert_eq!(queue.grant(1, now), None, "the heavy volume's next is first");
        assert!(queue.next_due(1, now).unwrap() > now);
        queue.enter(heavy, 0, now);
    }
    // Without a next request the place is given up.
    assert_eq!(queue.grant(0, now).unwrap().volume, 0);
    assert_eq!(queue.grant(0, now), None);
    assert_eq!(queue.grant(1, now + SECOND).unwrap().volume, 1);
    assert_eq!(queue.next_due(0, now), None);
}

#[test]
fn a_thread_that_hangs_delays_others_once() {
    let mut queue = queue(100, &[100; 3]);
    let interval = SECOND / 100;
    assert!(queue.take_or_enter((1, 1), 0, 0).is_some());
    assert!(queue.take_or_enter((2, 2), 0, interval).is_some());
    for line in [(0, 0), (1, 1), (2, 2)] {
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
                starts.push(grant.volume);
                queue.enter((thread, grant.volume), 0, now);
            }
        }
        now += 100_000;
    }
    assert!(now <= 104 * interval, "{now}");
    assert!(starts.iter().filter(|volume| **volume == 1).count().abs_diff(50) <= 2, "{starts:?}");
    now += interval;
    assert_eq!(queue.grant(0, now).unwrap().volume, 0, "it was first");
    queue.enter((0, 0), 0, now);
    now += interval;
    assert_eq!(queue.grant(1, now + GRACE_NS / 2), None, "it is waited for again");
}

#[test]
fn a_change_holds_for_requests_that_wait() {
    let mut queue = queue(1, &[1, 1]);
    assert!(queue.take_or_enter((0, 0), 0, 0).is_some());
    let line = |volume| (usize::from(volume), volume);
    for volume in [0, 1] {
        assert!(queue.take_or_enter(line(volume), 0, 0).is_none());
    }
    // Volume 1 gets more weight while its request waits, and then most of the starts.
    queue.set_weight(1, 9, 0);
    let mut counts = [0_u64; 2];
    for second in 1..=100 {
        let granted: Vec<u16> = (0..2)
            .filter_map(|thread| queue.grant(thread, second * SECOND))
            .map(|grant| grant.volume)
            .collect();
        for volume in granted {
            counts[usize::from(volume)] += 1;
            queue.enter(line(volume), 0, second * SECOND);
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

#[test]
fn a_request_that_leaves_gives_back_its_part() {
    let mut queue = queue(10, &[100, 100]);
    assert!(queue.take_or_enter((0, 1), 0, 0).is_some());
    for _ in 0..100 {
        assert!(queue.take_or_enter((0, 0), 0, 0).is_none());
        queue.leave((0, 0), 0);
    }
    assert_eq!(queue.len(), 0);
    assert!(queue.take_or_enter((0, 0), 0, 0).is_none());
    assert!(queue.take_or_enter((0, 1), 0, 0).is_none());
    // Those that have left have not put the volume back, nor moved the bucket.
    let now = SECOND / 10;
    let grant = queue.grant(0, now).unwrap();
    assert_eq!(grant.volume, 0);
    // One that has its turn, and is gone, gives its share of the rate back.
    queue.give_back(grant);
    assert!(queue.grant(0, now).is_some());
    assert_eq!(queue.grant(0, now), None);
    assert_eq!(queue.len(), 0);
}

#[test]
fn a_share_that_is_prepaid_is_given_back_once() {
    for step in 0..4 {
        let mut queue = queue(10, &[100; 2]);
        assert!(queue.take_or_enter((1, 1), 0, 0).is_some());
        assert!(queue.take_or_enter((0, 0), 0, 0).is_none());
        assert!(queue.take_or_enter((1, 1), 0, 0).is_none());
        let now = SECOND / 10 + GRACE_NS;
        assert_eq!(queue.grant(1, now), None, "the late thread has the share");
        assert!(queue.next_due(1, now).unwrap() > now + SECOND / 20);
        assert_eq!(queue.next_due(0, now), Some(now));
        match step {
            0 => queue.leave((0, 0), now),
            1 => queue.set_weight(0, 99, now),
            2 => {
                let grant = prepaid_grant(&mut queue, now);
                queue.give_back(grant);
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
    let mut queue = with_weights(rates, &[1]);
    assert!(queue.take_or_enter((0, 0), u32::MAX.into(), 0).is_some());
    for _ in 0..100 {
        assert!(queue.take_or_enter((0, 0), u32::MAX.into(), 0).is_none());
        let due = queue.next_due(0, 0).unwrap();
        assert!(due > 1_000_000 * SECOND && queue.grant(0, due).is_some());
        queue.grant(0, 0);
    }
}
