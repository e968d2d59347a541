//! Shedding in caches that are queueing networks: at each share, mean times by exact analysis, with
//! noise on top.

use std::time::Duration;

use floe_model::events::{Distributions, Effort, simulate};
use floe_model::{
    Load, Network, Policy, RequestOutcome, RouteStep, Service, Setting, mva, peak::peak,
};
use floe_policy::mix;
use floe_policy::shedding::Shedder;
use floe_policy::shedding::SheddingOptions;

/// A cache under load, of whose requests a share goes straight to the disk.
struct World {
    policy: Policy,
    setting: Setting,
    load: Load,
    /// Throughput by the hundredths that are shed, in million requests a second.
    known: Vec<Option<f64>>,
    state: u64,
    /// By how much a window differs from the next for reasons of its own, as a share.
    noise: f64,
    now: Duration,
    /// Million requests since the start.
    done: f64,
    /// What these took, added up.
    time: Duration,
}

impl World {
    fn new(policy: &str, hit_ratio: f64, disk_us: f64, mpl: u32, seed: u64) -> Self {
        Self {
            policy: Policy::named(policy).unwrap(),
            setting: Setting::new(hit_ratio, disk_us),
            load: Load::of(mpl),
            known: vec![None; 101],
            state: mix(seed),
            noise: 0.02,
            now: Duration::ZERO,
            done: 0.0,
            time: Duration::ZERO,
        }
    }

    fn change(&mut self, hit_ratio: f64) {
        self.setting.hit_ratio = hit_ratio;
        self.known.fill(None);
    }

    fn throughput(&mut self, share: f64) -> f64 {
        let (policy, setting, load) = (self.policy, self.setting, self.load);
        let slot = &mut self.known[(share * 100.0).round() as usize];
        *slot.get_or_insert_with(|| {
            let cached = policy.network(&Service::paper(), &setting).unwrap();
            mva::throughput(&passed_by(&cached, share, setting.disk_us), &load).unwrap()
        })
    }

    /// The most that any hit ratio gives without shedding.
    fn peak(&self) -> f64 {
        peak(&self.policy, &Service::paper(), &self.setting, &self.load).unwrap().throughput_mrps
    }

    fn normal(&mut self) -> f64 {
        let uniform = |state: &mut u64| {
            *state = mix(*state);
            (*state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..12).map(|_| uniform(&mut self.state)).sum::<f64>() - 6.0
    }

    /// Lives with a share that is shed until the shedder is due.
    fn live(&mut self, share: f64, due: Duration) {
        let span = due.saturating_sub(self.now).max(Duration::from_micros(100));
        self.now += span;
        let throughput = self.throughput(share) / (1.0 + self.noise * self.normal()).max(0.1);
        let done = throughput * span.as_secs_f64();
        self.done += done;
        // So many are in flight: each takes so long on average.
        self.time += span * self.load.mpl;
    }

    /// Runs for some time; answers throughput in it, shares that were decided for, and the highest
    /// that was tried.
    fn run(&mut self, shedding: &mut Shedder, time: Duration) -> (f64, Vec<f64>, f64) {
        let (from, done) = (self.now, self.done);
        let (mut shares, mut highest) = (vec![shedding.share()], 0.0);
        while self.now < from + time {
            let share = shedding.step(self.now, (self.done * 1e6) as u64, self.time);
            highest = f64::max(highest, share);
            self.live(share, shedding.due());
            if shares.last() != Some(&shedding.share()) {
                shares.push(shedding.share());
            }
        }
        ((self.done - done) / (self.now - from).as_secs_f64(), shares, highest)
    }
}

/// The network of a cache that a share of the requests passes by.
fn passed_by(network: &Network, share: f64, disk_us: f64) -> Network {
    let cached = network.outcomes().iter().cloned();
    let cached = cached.map(|outcome| RequestOutcome {
        probability: outcome.probability * (1.0 - share),
        ..outcome
    });
    let shed = RequestOutcome {
        name: "shed",
        probability: share,
        is_miss: false,
        steps: vec![RouteStep::Disk(disk_us)],
    };
    Network::new(network.stations().to_vec(), cached.chain([shed]).collect()).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn past_its_peak_lru_stays_as_fast_as_it_was_there() {
    for disk_us in [5.0, 100.0] {
        for seed in 0..5 {
            let mut world = World::new("lru", 0.99, disk_us, 72, seed);
            let mut shedding = Shedder::new(SheddingOptions::default());
            world.run(&mut shedding, MINUTE);
            let (throughput, shares, highest) = world.run(&mut shedding, 4 * MINUTE);
            let (without, peak) = (world.throughput(0.0), world.peak());
            assert!(without < 0.93 * peak, "it falls: {without}, {peak}");
            assert!(
                throughput > 0.97 * peak,
                "{disk_us} µs, {seed}: {throughput}, {peak}, {shares:?}"
            );
            assert!(highest <= 0.5 && shares.iter().all(|&share| share > 0.0), "{shares:?}");
        }
    }
}

#[test]
fn so_says_a_simulation_by_events() {
    for disk_us in [5.0, 100.0] {
        let mut world = World::new("lru", 0.99, disk_us, 72, 1);
        let mut shedding = Shedder::new(SheddingOptions::default());
        world.run(&mut shedding, MINUTE);
        let network = |hit_ratio| {
            world.policy.network(&Service::paper(), &world.setting.at(hit_ratio)).unwrap()
        };
        let throughput = |network: &Network| {
            let effort = Effort { precision: 0.01, ..Effort::default() };
            let simulated =
                simulate(network, &world.load, &Distributions::default(), &effort).unwrap();
            assert!(simulated.is_settled, "{simulated:?}");
            simulated.throughput_mrps
        };
        let p_star =
            peak(&world.policy, &Service::paper(), &world.setting, &world.load).unwrap().hit_ratio;
        let (without, peak) = (throughput(&network(0.99)), throughput(&network(p_star)));
        let with = throughput(&passed_by(&network(0.99), shedding.share(), disk_us));
        println!(
            "{disk_us} µs: {without:.3} at 0.99, {peak:.3} at {p_star:.3}, {with:.3} with {:.2} \
             shed",
            shedding.share()
        );
        assert!(without < 0.95 * peak && with > 0.97 * peak, "{without}, {peak}, {with}");
    }
}

#[test]
fn nothing_is_shed_where_hits_do_not_wait_for_each_other() {
    for (policy, hit_ratio, disk_us, mpl) in [
        ("fifo", 0.99, 5.0, 72),
        ("fifo", 0.99, 100.0, 72),
        ("clock", 0.9, 100.0, 72),
        ("lru", 0.99, 5.0, 1),
        ("lru", 0.99, 100.0, 4),
        ("lru", 0.3, 100.0, 72),
    ] {
        for seed in 0..5 {
            let mut world = World::new(policy, hit_ratio, disk_us, mpl, seed);
            let mut shedding = Shedder::new(SheddingOptions::default());
            let (throughput, shares, highest) = world.run(&mut shedding, 10 * MINUTE);
            let what = format!("{policy} at {hit_ratio}, {disk_us} µs, {mpl}: {shares:?}");
            assert_eq!(shares, [0.0], "{what}");
            assert!(highest <= 0.05 + 1e-9, "{what}: {highest}");
            // What trials cost.
            assert!(throughput > 0.98 * world.throughput(0.0), "{what}: {throughput}");
        }
    }
}

#[test]
fn what_does_not_pay_any_more_is_given_up() {
    for seed in 0..5 {
        let mut world = World::new("lru", 0.99, 100.0, 72, seed);
        let mut shedding = Shedder::new(SheddingOptions::default());
        world.run(&mut shedding, MINUTE);
        assert!(shedding.share() > 0.1, "{seed}");
        world.change(0.4);
        world.run(&mut shedding, MINUTE);
        assert_eq!(shedding.share(), 0.0, "{seed}: {:?}", shedding.decisions().last());
    }
}

#[test]
fn no_more_is_shed_than_allowed() {
    for (max, expected) in [(0.0, 0.0), (0.1, 0.1), (0.12, 0.1)] {
        let mut world = World::new("lru", 0.99, 5.0, 72, 1);
        let mut shedding = Shedder::new(SheddingOptions { max, ..SheddingOptions::default() });
        let (_, _, highest) = world.run(&mut shedding, MINUTE);
        assert!((shedding.share() - expected).abs() < 1e-9 && highest <= max, "{max}: {highest}");
    }
}

#[test]
fn the_same_observations_give_the_same_decisions() {
    let decisions = || {
        let mut world = World::new("lru", 0.99, 100.0, 72, 7);
        let mut shedding = Shedder::new(SheddingOptions::default());
        world.run(&mut shedding, MINUTE);
        shedding.decisions().iter().cloned().collect::<Vec<_>>()
    };
    let first = decisions();
    assert!(!first.is_empty());
    assert_eq!(first, decisions());
}
