//! Admission to flash in virtual time: hits, bytes written and memory of each rule on each load,
//! the price of writes, and the deviation of a write budget over days. Everything follows from
//! seeds. Prints the tables of docs/results/hybrid.md.
//!
//! `cargo run -p floe-hybrid --example admission`, or with one of `rules`, `price`, `budget` and
//! `memory` after `--`

#[path = "../tests/it/admission_loads.rs"]
mod admission_loads;
#[path = "../tests/it/world.rs"]
mod world;

use admission_loads::{LOADS, load};
use floe_hybrid::{Admission, WriteBudget};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use world::{Counts, Request, World, WorldOptions, Zipf};

const OBJECTS: usize = 20_000;
/// Mean of the sizes, which are log-uniform from 100 bytes to 100 KB.
const MEAN_BYTES: u64 = 14_500;
const REQUESTS: usize = 1_200_000;
const HOUR_NS: u64 = 3_600_000_000_000;

fn options(admission: Admission) -> WorldOptions {
    WorldOptions {
        admission,
        budget: None,
        memory_bytes: OBJECTS as u64 * MEAN_BYTES / 10,
        flash_bytes: OBJECTS as u64 * MEAN_BYTES,
        object_bytes: MEAN_BYTES,
        fixed: None,
        read_ns: (80_000, 80_000),
    }
}

/// Returns the counts of the second half, and the mean nanoseconds of a read of flash in it.
fn second_half(list: &[Request], options: &WorldOptions) -> (Counts, f64) {
    let mut world = World::new(options);
    let (first, second) = list.split_at(list.len() / 2);
    first.iter().for_each(|request| world.request(request));
    let (counts, reads, ns) = (world.counts, world.reads, world.reads_ns);
    second.iter().for_each(|request| world.request(request));
    let mean = (world.reads_ns - ns) as f64 / (world.reads - reads).max(1) as f64;
    (world.counts.since(counts), mean)
}

fn rules() {
    println!("Second half: hit ratio in %, and bytes written a byte inserted");
    print!(" {:20}", "load");
    Admission::all().iter().for_each(|rule| print!("{:>16}", rule.to_string()));
    println!();
    for name in LOADS {
        print!(" {name:20}");
        let list = load(name, REQUESTS, OBJECTS, 1);
        for admission in Admission::all() {
            let (found, _) = second_half(&list, &options(admission));
            let hits = found.hit_ratio() * 100.0;
            let written = match found.inserted_bytes {
                0 => "–".to_owned(),
                _ => format!("{:.3}", found.written_per_inserted()),
            };
            print!("{:>16}", format!("{hits:.2}  {written}"));
        }
        println!();
    }
}

fn price() {
    println!("\nReads of 80 µs that take 400 µs beside a write, zipf 0.99, second half");
    println!(" {:14}{:>10}{:>10}{:>20}", "rule", "hits %", "written", "read of flash, µs");
    let list = load("zipf 0.99", REQUESTS, OBJECTS, 1);
    for admission in Admission::all() {
        let options = WorldOptions { read_ns: (80_000, 400_000), ..options(admission) };
        let (found, ns) = second_half(&list, &options);
        let (hits, written) = (found.hit_ratio() * 100.0, found.written_per_inserted());
        println!(" {admission:14}{hits:>10.2}{written:>10.3}{:>20.1}", ns / 1000.0);
    }
}

/// Requests by hour of the day, in thousands: two peaks a day, without and with idle nights.
const BUSY: [u64; 24] = [
    10, 10, 10, 10, 10, 10, 10, 20, 30, 40, 40, 30, 30, 30, 30, 30, 30, 40, 60, 80, 80, 60, 30, 10,
];
const IDLE: [u64; 24] =
    [0, 0, 0, 0, 0, 0, 10, 20, 30, 40, 40, 30, 30, 30, 30, 30, 30, 40, 60, 80, 80, 60, 30, 10];

fn budget() {
    println!("\nA budget of 1 DWPD over three days, zipf 0.99: bytes written over those allowed");
    println!(" {:24}{:>8}{:>8}{:>8}{:>10}", "rule", "day 1", "day 2", "day 3", "hits %");
    let capacity = OBJECTS as u64 * MEAN_BYTES;
    let dwpd = Some(WriteBudget::drive_writes_per_day(1.0));
    for (name, admission, budget, hours) in [
        ("everything, no budget", Admission::Everything, None, BUSY),
        ("everything", Admission::Everything, dwpd, BUSY),
        ("popularity", Admission::Popularity, dwpd, BUSY),
        ("everything, idle nights", Admission::Everything, dwpd, IDLE),
    ] {
        let mut world = World::new(&WorldOptions { budget, ..options(admission) });
        let mut list = load("zipf 0.99", 3 * 800_000, OBJECTS, 2).into_iter();
        print!(" {name:24}");
        let mut before = world.counts;
        for _ in 0..3 {
            before = world.counts;
            for thousands in hours {
                let requests = (thousands * 1000).max(1);
                for request in list.by_ref().take(thousands as usize * 1000) {
                    world.now_ns += HOUR_NS / requests;
                    world.request(&request);
                }
                if thousands == 0 {
                    world.now_ns += HOUR_NS;
                }
            }
            let written = world.counts.since(before).written_bytes;
            print!("{:>8.3}", written as f64 / capacity as f64);
        }
        println!("{:>10.2}", world.counts.since(before).hit_ratio() * 100.0);
    }
}

fn memory() {
    println!("\nMemory of the admission, objects of 1,000 bytes: bytes an object on flash");
    let objects = 1_000_000;
    let (zipf, mut random) = (Zipf::new(objects * 2, 0.8), SmallRng::seed_from_u64(3));
    for admission in Admission::all() {
        let mut world = World::new(&WorldOptions {
            memory_bytes: objects as u64 * 100,
            flash_bytes: objects as u64 * 1024,
            object_bytes: 1024,
            ..options(admission)
        });
        for _ in 0..4 * objects {
            let key = zipf.rank(&mut random);
            world.request(&Request { key, bytes: 1000, is_insert: false });
        }
        let (bytes, on_flash) = world.memory_and_objects();
        println!(" {admission:14}{:.2} ({on_flash} objects)", bytes as f64 / on_flash as f64);
    }
}

fn main() {
    let section = std::env::args().nth(1);
    let is_wanted = |name: &str| section.as_ref().is_none_or(|section| section == name);
    for (name, run) in [("rules", rules as fn()), ("price", price), ("budget", budget)] {
        if is_wanted(name) {
            run();
        }
    }
    if is_wanted("memory") {
        memory();
    }
}
