//! What the loop of `floe bench memory` costs by itself: a subject that does nothing, which always
//! hits or never does.
//!
//! `cargo run --release -p floe-lab --example bench_loop`

use floe_lab::bench::{
    CacheCompetitor, Competitor, Disk, Load, PassOrder, Plan, Setup, Subject, measure,
};
use floe_lab::simulate::stream::{Builder, Keep};
use floe_trace::{GeneratorSpec, Trace};

/// Does nothing.
struct Nothing {
    hits: bool,
}

impl Subject for Nothing {
    #[inline]
    fn lookup(&self, key: u64) -> bool {
        std::hint::black_box(key);
        self.hits
    }

    fn fill(&self, _: u64) {}

    fn update(&self, _: u64) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut trace =
        Trace::generate(&"zipf:keys=1000000,requests=10000000".parse::<GeneratorSpec>()?)?;
    let mut builder =
        Builder::new(trace.kind(), Keep { rate: 1.0, sizes: false, next_use: false }, 4096);
    trace.by_ref().try_for_each(|request| -> Result<(), Box<dyn std::error::Error>> {
        Ok(builder.add(&request?)?)
    })?;
    let load = Load::new(&builder.finish()?, None, PassOrder::Drawn)?;
    let disk = |us: u64| Disk { mean_ns: us * 1000, exponential: false };
    let rows = [
        ("a hit", true, 1, disk(0)),
        ("a hit, with a disk that is never asked", true, 1, disk(5)),
        ("a miss that nobody waits for", false, 1, disk(0)),
        ("a parked miss, 5 µs, 1000 clients", false, 1000, disk(5)),
        ("a parked miss, 100 µs, 5000 clients", false, 5000, disk(100)),
    ];
    let plan = Plan {
        repetitions: 11,
        seconds: 0.2,
        warm_up_seconds_max: 2.0,
        in_step: false,
        disturbed_max: None,
    };
    for (what, hits, mpl, disk) in rows {
        let setup = Setup { threads: 1, mpl, disk };
        let competitor: Box<dyn Competitor> =
            Box::new(CacheCompetitor::new(Nothing { hits }, 1, setup));
        let measured = &measure(&load, &[competitor], &plan, |_| {})[0];
        let mut times: Vec<f64> =
            measured.repetitions.iter().map(|repetition| repetition.cpu_ns_per_op).collect();
        times.sort_unstable_by(f64::total_cmp);
        let idle = measured.total.idle_ns as f64 / measured.total.wall_ns as f64;
        println!("{what}: {:.1} ns, {:.0} % idle", times[times.len() / 2], 100.0 * idle);
    }
    Ok(())
}
