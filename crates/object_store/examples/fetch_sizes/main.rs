//! Compares fetches of fixed and of learned sizes on a store with the latency of S3, in virtual
//! time: the figures are the same on every machine. The times of warm reads are measured.
//!
//! `cargo run -p floe-object-store --example fetch_sizes`

#![allow(clippy::single_range_in_vec_init)] // lists of ranges may have one

mod loads;

use std::time::Instant;

use floe_object_store::FetchSize;
use loads::{Load, Outcome, Scale, run};
use object_store::ObjectStoreExt;
use object_store::path::Path;

/// All that a load reads fits into memory: the drive has no virtual time.
const MEMORY: u64 = 3 << 29;
const SCALE: Scale = Scale { points: 100, scans: 4, files: 8, other_files: 10 };

const LOADS: [(&str, Load); 5] = [
    ("points", Load::Points),
    ("scans", Load::Scans),
    ("columns", Load::Columns),
    ("other columns", Load::OtherColumns),
    ("all at once", Load::All),
];

fn main() {
    let sizes: [(&str, Option<FetchSize>); 8] = [
        ("no cache", None),
        ("64 KiB", Some(FetchSize::Fixed(64 << 10))),
        ("1 MiB", Some(FetchSize::Fixed(1 << 20))),
        ("4 MiB", Some(FetchSize::Fixed(4 << 20))),
        ("64 KiB, ahead", Some(FetchSize::FixedAhead(64 << 10))),
        ("1 MiB, ahead", Some(FetchSize::FixedAhead(1 << 20))),
        ("4 MiB, ahead", Some(FetchSize::FixedAhead(4 << 20))),
        ("adaptive", Some(FetchSize::Adaptive)),
    ];
    for is_shared in [false, true] {
        let outcomes = sizes.map(|(name, fetch)| {
            (name, LOADS.map(|(_, load)| run(load, fetch, is_shared, MEMORY, SCALE)))
        });
        let link =
            if is_shared { "One link for all connections" } else { "A link for each connection" };
        let seconds = |it: &Outcome| format!("{:.2} s", it.time.as_secs_f64());
        print_table(&format!("{link}, time"), &outcomes, seconds);
        let traffic = |it: &Outcome| format!("{}, {:.0} MB", it.requests, it.bytes as f64 / 1e6);
        print_table(&format!("{link}, requests and bytes"), &outcomes, traffic);
    }
    let [memory, flash] = [MEMORY, 8 << 20].map(warm_read);
    println!("A warm read of 4 KB: {memory:.1} µs from memory, {flash:.1} µs from flash.");
}

/// Prints a table with a row for each size of fetches and a column for each load.
fn print_table(
    title: &str,
    rows: &[(&str, [Outcome; LOADS.len()])],
    cell: impl Fn(&Outcome) -> String,
) {
    println!("{title}:\n\n| fetch | {} |", LOADS.map(|(name, _)| name).join(" | "));
    println!("|---|{}", "---:|".repeat(LOADS.len()));
    for (name, outcomes) in rows {
        println!("| {name} | {} |", outcomes.each_ref().map(&cell).join(" | "));
    }
    println!();
}

/// Returns the median time of a read of 4 KB that the cache has, in microseconds. With little
/// memory, most reads come from flash.
fn warm_read(memory: u64) -> f64 {
    let folder = tempfile::tempdir_in(".").unwrap();
    let remote = loads::Remote::default();
    let store = loads::caching(&remote, FetchSize::Exact, memory, folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let path = Path::from("warm-67108864");
    let reads: Vec<u64> = (0..2000).map(|at| at * 7919 % 16384 * 4096).collect();
    let mut times: Vec<f64> = runtime.block_on(async {
        store.prefetch(&path, &[0..64 << 20]).await.unwrap();
        let mut times = Vec::new();
        for at in reads {
            let begun = Instant::now();
            store.get_range(&path, at..at + 4096).await.unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        times
    });
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
