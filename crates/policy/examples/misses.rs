//! What each policy misses: `FLOE_TRACES=… cargo run --release -p floe-policy --example misses -- TRACE SIZE POLICY…`
//! with one of the ARC traces (`OLTP`, `P3`, …) and a size in entries.

#[path = "../tests/support/mod.rs"]
mod support;

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Policy, with};
use support::{Cache, Dense};

struct MissRatio<'a> {
    trace: &'a Dense,
    next_uses: &'a [u64],
    size: usize,
}

impl Visitor for MissRatio<'_> {
    type Out = f64;

    fn visit<P: Policy>(self, make: impl Fn() -> P) -> f64 {
        let mut cache = Cache::new(make(), self.size, self.trace);
        let requests = self.trace.keys.iter().zip(self.next_uses);
        let misses = requests.filter(|&(&key, &next_use)| !cache.request(key, next_use)).count();
        misses as f64 / self.trace.keys.len() as f64
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(size)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: misses TRACE SIZE POLICY…");
        std::process::exit(2);
    };
    let Some(trace) = Dense::arc(&name) else { return };
    let (next_uses, size) = (trace.next_uses(), size.parse().expect("SIZE is a number of entries"));
    for policy in arguments {
        let choice: Choice = policy.parse().unwrap_or_else(|error| panic!("{error}"));
        println!(
            "{name} {size} {policy} {:.4}",
            with(&choice, MissRatio { trace: &trace, next_uses: &next_uses, size })
        );
    }
}
