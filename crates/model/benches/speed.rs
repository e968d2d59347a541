//! How fast networks are solved: a whole curve by bound and exact analysis, and visits to stations
//! simulated in a second.
//!
//! `make bench`, or `cargo bench -p floe-model --bench speed -- [POLICY…]`. Beside each policy: its
//! goal, or that it is missed. Time is processor time of the thread. Requests that visit no station
//! count as one visit, so only the LRU-like policies show what visits cost. The authors' own script
//! simulates about 0.1 million visits a second.

use std::hint::black_box;
use std::time::Duration;

use floe_model::events::{Distributions, Effort, simulate};
use floe_model::policies::POLICIES;
use floe_model::{Load, Service, Setting, bound, mva};
use floe_testkit::thread_time;

/// A curve as the paper draws it.
const HIT_RATIOS: std::ops::RangeInclusive<u32> = 40..=100;
/// What a curve may take, and the visits to be simulated in a microsecond.
const CURVE_MAX: Duration = Duration::from_millis(1);
const VISITS_MIN: f64 = 10.0;
/// Curves are solved again and again.
const ROUNDS: u32 = 20;

fn main() {
    let service = Service::paper();
    println!("{:<16} {:>10}  {:<14} {:>10}", "", "a curve", "", "visits/s");
    let chosen: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    for policy in POLICIES
        .iter()
        .filter(|policy| chosen.is_empty() || chosen.iter().any(|name| name == policy.name))
    {
        let setting = Setting::new(0.9, 100.0);
        let load = Load::of(72);
        let start = thread_time();
        for _ in 0..ROUNDS {
            for percent in HIT_RATIOS.step_by(5) {
                let setting = setting.at(f64::from(percent) / 100.0);
                let network = policy.network(&service, &setting).expect("a network");
                black_box(
                    (bound(&network, &load), mva::throughput(&network, &load)).1.expect("a load"),
                );
            }
        }
        let curve = (thread_time() - start) / ROUNDS;
        let network = policy.network(&service, &setting).expect("a network");
        let effort = Effort { precision: 0.0, visits_max: 10_000_000, seed: 1 };
        let start = thread_time();
        let simulated =
            simulate(&network, &load, &Distributions::default(), &effort).expect("a simulation");
        let visits_per_us = simulated.visits as f64 / (thread_time() - start).as_secs_f64() / 1e6;
        println!(
            "{:<16} {:>7.3} ms  {:<14} {:>8.1} M  {}",
            policy.name,
            curve.as_secs_f64() * 1e3,
            goal("1 ms", curve <= CURVE_MAX),
            visits_per_us,
            goal("10 M", visits_per_us >= VISITS_MIN),
        );
    }
}

fn goal(goal: &str, is_met: bool) -> String {
    format!("goal {goal}{}", if is_met { "" } else { " MISSED" })
}
