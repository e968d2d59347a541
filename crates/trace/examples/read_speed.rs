//! How fast a trace can be read: requests per second, best and median of several passes.
//!
//! `cargo run --release -p floe-trace --example read_speed -- [--as-blocks] FILE…`

use std::time::Instant;

use floe_trace::{Error, OpenOptions, Trace};

const PASSES: usize = 7;

fn main() -> Result<(), Error> {
    let mut options = OpenOptions::default();
    for argument in std::env::args().skip(1) {
        if argument == "--as-blocks" {
            options.as_blocks = true;
            continue;
        }
        let mut passes = Vec::new();
        let mut shown = String::new();
        for _ in 0..PASSES {
            let start = Instant::now();
            let mut trace = Trace::open_source(&argument, &options)?;
            let (mut requests, mut check) = (0u64, 0u64);
            for request in trace.by_ref() {
                let request = request?;
                requests += 1;
                check = check
                    .wrapping_mul(31)
                    .wrapping_add(request.key ^ request.bytes ^ request.time_ns);
            }
            let seconds = start.elapsed().as_secs_f64();
            passes.push(requests as f64 / seconds / 1e6);
            shown = format!("{} {requests} requests, check {check:016x}", trace.format());
        }
        passes.sort_by(f64::total_cmp);
        let (best, median) = (passes[PASSES - 1], passes[PASSES / 2]);
        println!("{argument}: {median:.1} million requests/s (best {best:.1}); {shown}");
    }
    Ok(())
}
