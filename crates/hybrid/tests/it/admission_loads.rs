//! The loads on which admissions are compared.

use floe_policy::mix;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::world::{Request, Zipf, size_of_key};

/// Names of all loads.
pub(crate) const LOADS: [&str; 12] = [
    "zipf 0.8",
    "zipf 0.99",
    "zipf 1.2",
    "scan",
    "loop, fits",
    "loop, too large",
    "half once",
    "zipf and scan",
    "zipf, shifts",
    "loop, then zipf",
    "written, read later",
    "overwritten",
];

/// Returns the requests of a load. Its popular keys take about four times `flash_objects`.
pub(crate) fn load(name: &str, requests: usize, flash_objects: usize, seed: u64) -> Vec<Request> {
    let mut random = SmallRng::seed_from_u64(seed);
    let keys = flash_objects * 4;
    let exponent = match name {
        "zipf 0.8" => 0.8,
        "zipf 1.2" => 1.2,
        _ => 0.99,
    };
    let zipf = Zipf::new(keys, exponent);
    let fresh = |at: usize| 1 << 40 | at as u64;
    let popular = |rank: u64, phase: u64| mix(rank << 8 | phase) >> 24;
    let mut list = Vec::with_capacity(requests);
    let read = |key: u64| Request { key, bytes: size_of_key(key), is_insert: false };
    for at in 0..requests {
        let looped = |objects: usize| popular((at % objects) as u64, 9);
        let request = match name {
            "scan" => read(fresh(at)),
            "loop, fits" => read(looped(flash_objects * 8 / 10)),
            "loop, too large" => read(looped(flash_objects * 3 / 2)),
            "half once" if random.random_bool(0.5) => read(fresh(at)),
            "zipf and scan" if at / (flash_objects / 2) % 3 == 2 => read(fresh(at)),
            "zipf, shifts" => read(popular(zipf.rank(&mut random), (at * 6 / requests) as u64)),
            "loop, then zipf" if at < requests / 2 => read(looped(flash_objects * 8 / 10)),
            // Each object is written, and read once about half the flash later.
            "written, read later" if at % 2 == 0 => Request { is_insert: true, ..read(fresh(at)) },
            "written, read later" => {
                let lag = random.random_range(flash_objects / 4..flash_objects);
                read(fresh((at - 1).saturating_sub(lag & !1)))
            }
            "overwritten" if random.random_bool(0.3) => {
                Request { is_insert: true, ..read(popular(zipf.rank(&mut random), 0)) }
            }
            _ => read(popular(zipf.rank(&mut random), 0)),
        };
        list.push(request);
    }
    list
}
