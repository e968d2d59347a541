//! Admission to flash in virtual time: hits, bytes written and memory of each rule on each load,
//! and the deviation of a write budget over days. Prints the tables of docs/results/hybrid.md.
//!
//! `cargo run --release -p floe-hybrid --example admission`

#[path = "../tests/it/admission_loads.rs"]
mod admission_loads;
#[path = "../tests/it/world.rs"]
mod world;

use admission_loads::{LOADS, load};
use floe_hybrid::Admission;
use world::{World, WorldOptions};

fn main() {
    let scale = std::env::args().nth(1).map_or(1, |text| text.parse().expect("a number"));
    let objects = 20_000 * scale;
    let requests = 1_500_000 * scale;
    let mean = 14_500; // log-uniform from 100 bytes to 100 KB
    println!("load                 rule           hits%  late%  written late  B/object");
    for name in LOADS {
        let list = load(name, requests, objects, 1);
        for admission in Admission::all() {
            let mut world = World::new(&WorldOptions {
                admission,
                budget: None,
                memory_bytes: objects as u64 * mean / 10,
                flash_bytes: objects as u64 * mean,
                object_bytes: mean,
                fixed: None,
                read_ns: (80_000, 80_000),
            });
            let mut half = world.counts;
            for (at, request) in list.iter().enumerate() {
                if at == requests / 2 {
                    half = world.counts;
                }
                world.request(request);
            }
            let (memory, on_flash) = world.memory_and_objects();
            let (all, late) = (world.counts, world.counts.since(half));
            println!(
                "{name:20} {:13} {:6.2} {:6.2}  {:6.3} {:6.3}  {:5.2}",
                admission.to_string(),
                all.hit_ratio() * 100.0,
                late.hit_ratio() * 100.0,
                all.written_per_inserted(),
                late.written_per_inserted(),
                memory as f64 / on_flash as f64,
            );
        }
    }
}
