//! Admission to flash: the real cache on a file, and all rules in virtual time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use floe_hybrid::{Admission, Declined, Hybrid, Inserted, WriteBudget};

use crate::admission_loads::{LOADS, load};
use crate::value;
use crate::world::{Counts, Request, World, WorldOptions};

type Reasons = Arc<Mutex<HashMap<Declined, u64>>>;

fn open(
    path: &std::path::Path,
    admission: Admission,
    budget: Option<WriteBudget>,
) -> (Hybrid<u64, Vec<u8>>, Reasons) {
    let reasons = Reasons::default();
    let told = Arc::clone(&reasons);
    let mut built = Hybrid::builder()
        .memory(1 << 20)
        .flash(path, 16 << 20)
        .object_bytes(1000)
        .admission(admission)
        .on_declined(move |_: &u64, reason| *told.lock().unwrap().entry(reason).or_default() += 1);
    if let Some(budget) = budget {
        built = built.write_budget(budget);
    }
    (built.open().unwrap(), reasons)
}

#[test]
fn a_write_budget_declines_objects_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let began = Instant::now();
    let budget = WriteBudget::bytes_per_second(2000);
    let (cache, reasons) = open(&path, Admission::Everything, Some(budget));
    for key in 0..12_000 {
        cache.insert(key, value(key, 1000));
    }
    cache.close().unwrap();
    let stats = cache.stats().flash;
    assert!(stats.declined_over_budget > 5000, "{stats:?}");
    let told = reasons.lock().unwrap().clone();
    assert_eq!(told[&Declined::OverBudget], stats.declined_over_budget);
    assert!(told.keys().all(|it| matches!(it, Declined::OverBudget | Declined::Superseded)));
    // Half an hour's budget, the time that has passed, footers, and the index that is saved.
    let most = 2000 * (900 + began.elapsed().as_secs() + 1) + (512 << 10);
    assert!(stats.written_bytes < most, "{} of {most}", stats.written_bytes);
    assert!(stats.written_bytes > 500_000, "{stats:?}");
}

#[test]
fn an_object_too_large_for_memory_is_declined_by_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let budget = WriteBudget::bytes_per_second(1);
    let (cache, reasons) = open(&folder.path().join("cache"), Admission::Everything, Some(budget));
    let mut seen = Vec::new();
    for key in 0..40 {
        seen.push(cache.insert(key, value(key, 60_000)));
    }
    assert!(seen.contains(&Inserted::ToFlash) || seen.contains(&Inserted::InMemory), "{seen:?}");
    assert_eq!(cache.insert(1, value(1, 9 << 20)), Inserted::Declined(Declined::TooLarge));
    assert_eq!(reasons.lock().unwrap()[&Declined::TooLarge], 1);
    let stats = cache.stats().flash;
    assert_eq!(stats.declined_too_large, 1);
    assert!(stats.declined_over_budget > 0, "{stats:?}");
}

#[test]
fn objects_that_nobody_asks_for_again_stay_out_of_flash() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, reasons) = open(&folder.path().join("cache"), Admission::Popularity, None);
    let mut hits = 0;
    for round in 0..150_000u64 {
        // Half of the lookups are for 2,000 keys, the others for keys that never come again.
        let key = if round % 2 == 0 { floe_policy::mix(round) % 2000 } else { 1 << 32 | round };
        match cache.get_blocking(&key) {
            Some(found) => {
                assert_eq!(found, value(key, 1000));
                hits += 1;
            }
            None => drop(cache.insert(key, value(key, 1000))),
        }
    }
    let stats = cache.stats().flash;
    assert!(hits > 65_000, "{hits}");
    assert!(stats.declined_unpopular > 30_000, "{stats:?}");
    assert_eq!(reasons.lock().unwrap()[&Declined::Unpopular], stats.declined_unpopular);
    assert!(stats.admission_bytes > 0);
}

/// The loads of a usual run. `FLOE_HYBRID_LOADS=all` runs the others, too.
const SHORT: [&str; 4] = ["zipf 0.99", "zipf and scan", "zipf, shifts", "loop, then zipf"];
const OBJECTS: usize = 6000;
const MEAN_BYTES: u64 = 14_500;
const REQUESTS: usize = 300_000;

/// Returns the counts of the second half, since the rules learn in the first.
fn run(list: &[Request], admission: Admission, fixed: Option<u64>) -> Counts {
    let mut world = World::new(&WorldOptions {
        admission,
        budget: None,
        memory_bytes: OBJECTS as u64 * MEAN_BYTES / 10,
        flash_bytes: OBJECTS as u64 * MEAN_BYTES,
        object_bytes: MEAN_BYTES,
        fixed,
        read_ns: (80_000, 80_000),
    });
    let (learning, rest) = list.split_at(list.len() / 2);
    learning.iter().for_each(|request| world.request(request));
    let learned = world.counts;
    rest.iter().for_each(|request| world.request(request));
    let (memory, _) = world.memory_and_objects();
    assert!(memory < 1 << 20, "{memory} bytes of memory");
    world.counts.since(learned)
}

/// Compares a rule with each fixed choice of it, and with admitting everything.
fn does_no_harm(admission: Admission) {
    let all = std::env::var("FLOE_HYBRID_LOADS").is_ok_and(|loads| loads == "all");
    for name in LOADS.into_iter().filter(|name| all || SHORT.contains(name)) {
        let list = load(name, REQUESTS, OBJECTS, 7);
        let choices = if admission == Admission::Popularity { 0..=4 } else { 0..=1 };
        let best =
            choices.map(|choice| run(&list, admission, Some(choice))).max_by_key(|it| it.hits);
        let (best, found) = (best.expect("a choice"), run(&list, admission, None));
        println!(
            "{name}, {admission}: {:.4}, {:.3} written a byte inserted; best {:.4}",
            found.hit_ratio(),
            found.written_per_inserted(),
            best.hit_ratio()
        );
        assert!(
            found.hits as f64 >= 0.98 * best.hits as f64,
            "{name}, {admission}: {found:?} {best:?}"
        );
    }
}

#[test]
fn popularity_loses_less_than_two_percent_of_the_hits_of_its_best_level() {
    does_no_harm(Admission::Popularity);
}

#[test]
fn obp_loses_less_than_two_percent_of_the_hits_of_the_best_choice() {
    does_no_harm(Admission::Obp);
}

#[test]
fn small_bypass_loses_less_than_two_percent_of_the_hits_of_the_best_choice() {
    does_no_harm(Admission::SmallBypass);
}

#[test]
fn tinylfu_loses_less_than_two_percent_of_the_hits_of_the_best_choice() {
    does_no_harm(Admission::TinyLfu);
}
