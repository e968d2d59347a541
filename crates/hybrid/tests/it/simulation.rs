//! The simulation of the cache against the running cache, request by request.

use floe_hybrid::simulation::{Part, Simulation};
use floe_hybrid::{Admission, Hybrid, Stats};
use floe_testkit::traces_folder;
use floe_trace::{Op, OpenOptions, Request, Trace};

const MEMORY: u64 = 8 << 20;
const FLASH: u64 = 40 << 20;

/// The running cache on a file.
struct Running {
    cache: Hybrid<u64, Vec<u8>>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn new(admission: Admission) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let builder = Hybrid::builder().memory(MEMORY).flash(folder.path().join("cache"), FLASH);
        let cache = builder.admission(admission).reproducible().open().unwrap();
        Self { cache, _folder: folder }
    }

    fn get(&self, key: u64) -> Option<(Part, u64)> {
        let before = self.cache.stats().flash.hits;
        let value = self.cache.get_blocking(&key)?;
        let is_on_flash = self.cache.stats().flash.hits > before;
        Some((if is_on_flash { Part::Flash } else { Part::Memory }, value.len() as u64))
    }
}

/// Returns the figures that must agree.
fn figures(stats: &Stats) -> [u64; 15] {
    let flash = &stats.flash;
    [
        stats.memory.insertions,
        stats.memory.weight,
        stats.memory.evictions,
        flash.hits,
        flash.misses,
        flash.objects,
        flash.inserted,
        flash.evicted,
        flash.kept,
        flash.dropped_used,
        flash.collided,
        flash.appended_bytes,
        flash.kept_bytes,
        flash.written_bytes,
        flash.declined_unpopular,
    ]
}

/// Compares both caches over requests: a miss is inserted, a write replaces the object. Returns the
/// numbers of hits in memory, of hits on flash, of misses, and of objects that flash evicted.
fn compare(requests: impl Iterator<Item = Request>) -> [u64; 4] {
    compare_with(Admission::Everything, requests)
}

fn compare_with(admission: Admission, requests: impl Iterator<Item = Request>) -> [u64; 4] {
    let running = Running::new(admission);
    let simulation = Simulation::with_admission(MEMORY, FLASH, admission, None).unwrap();
    let mut counts = [0; 4];
    for (at, request) in requests.enumerate() {
        let Request { key, bytes, .. } = request;
        let insert = || {
            let value = vec![at as u8 | 1; bytes as usize];
            assert_eq!(running.cache.insert(key, value), simulation.insert(key, bytes));
        };
        match request.op {
            Op::Read => {
                let (real, simulated) = (running.get(key), simulation.get(key));
                assert_eq!(real, simulated, "request {at}: {request:?}");
                match real {
                    Some((Part::Memory, _)) => counts[0] += 1,
                    Some((Part::Flash, _)) => counts[1] += 1,
                    None => counts[2] += 1,
                }
                if real.is_none() {
                    insert();
                }
            }
            Op::Write => insert(),
            Op::Delete => {
                running.cache.remove(&key);
                simulation.remove(key);
            }
        }
    }
    let (real, simulated) = (running.cache.stats(), simulation.stats());
    assert_eq!(figures(&real), figures(&simulated), "{real:?}\n{simulated:?}");
    counts[3] = real.flash.evicted;
    counts
}

/// Returns the requests of a generator of keys for objects of 100 to 9,000 bytes. Every twentieth
/// write deletes instead.
fn generated(text: &str) -> impl Iterator<Item = Request> {
    let trace = Trace::generate(&text.parse().unwrap()).unwrap();
    trace.map(Result::unwrap).enumerate().map(|(at, request)| {
        let bytes = 100 + request.key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 8900;
        let deletes = request.op == Op::Write && at % 20 == 0;
        Request { bytes, op: if deletes { Op::Delete } else { request.op }, ..request }
    })
}

#[test]
fn zipf_hits_where_the_running_cache_does() {
    let requests = generated("zipf:keys=30000,theta=0.8,requests=60000,read=0.9");
    let [memory, flash, misses, evicted] = compare(requests);
    assert!(memory > 5000 && flash > 5000 && misses > 5000 && evicted > 5000);
}

#[test]
fn an_admission_admits_what_that_of_the_running_cache_does() {
    let requests = generated("zipf:keys=30000,theta=0.8,requests=60000,read=0.9");
    let [memory, flash, misses, _] = compare_with(Admission::TinyLfu, requests);
    assert!(memory > 5000 && flash > 3000 && misses > 5000, "{memory} {flash} {misses}");
    assert!(Simulation::with_admission(MEMORY, FLASH, Admission::Obp, None).is_err());
}

#[test]
fn a_scan_through_a_loop_hits_where_the_running_cache_does() {
    let text = "mix:requests=40000+zipf:keys=5000,theta=0.9,weight=2+scan+loop:keys=4000";
    let [memory, flash, misses, evicted] = compare(generated(text));
    assert!(memory > 2000 && flash > 2000 && misses > 2000 && evicted > 2000);
}

#[test]
fn a_real_trace_hits_where_the_running_cache_does() {
    let Some(folder) = traces_folder() else { return };
    let path = folder.join("adaptsize_request.trace.xz");
    let trace = Trace::open(path, &OpenOptions::default()).unwrap();
    let [memory, flash, misses, evicted] = compare(trace.map(Result::unwrap).take(20_000));
    assert!(memory > 0 && flash > 100 && misses > 5000 && evicted > 500, "{memory} {flash}");
}
