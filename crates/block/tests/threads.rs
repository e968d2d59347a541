//! Parts of one cache on threads of their own, over files: what is written on one thread is read on all.
//!
//! Each thread owns every third 16 KiB of the volume and checks what it reads there; the regions that shards own are
//! twice as long, so that threads meet in all of them.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use floe_block::{
    Answer, BlockCache, Config, Driver, Exchange, Gate, Kind, Memory, Request, RequestId, VolumeId, WriteMode,
};
use floe_device::{Buffer, Pool, Ring, Role, Sockets, Spec};
use floe_policy::Lru;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const THREADS: usize = 3;
const VOLUME: u64 = 3 << 20;
const CACHE: u64 = 512 << 10;
const OWNED: u64 = 16 << 10;
const UNIT: u64 = 512;
const REQUESTS: usize = 3_000;
const AT_ONCE: usize = 12;

/// So long without an answer is a hang on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One thread with its part of the cache, and what it knows of the volume.
struct Member {
    number: usize,
    driver: Driver,
    ring: Ring,
    sockets: Sockets,
    bell: Rc<std::os::fd::OwnedFd>,
    pending: Vec<(RequestId, Request, Buffer)>,
    rng: SmallRng,
    slept: usize,
    patience: Instant,
}

impl Member {
    fn turn(&mut self, model: &mut [u8], may_sleep: bool) {
        assert!(Instant::now() < self.patience, "{} requests hang", self.pending.len());
        self.driver.advance();
        let mut answers = Vec::new();
        self.driver.take_answers(&mut answers);
        let quiet = answers.is_empty();
        if !quiet {
            self.patience = Instant::now() + PATIENCE;
        }
        for Answer { request: id, result } in answers {
            assert_eq!(result, Ok(()));
            let at = self.pending.iter().position(|(pending, ..)| *pending == id).expect("answered once");
            let (_, request, buffer) = self.pending.swap_remove(at);
            let units = (request.offset / UNIT) as usize..((request.offset + request.len) / UNIT) as usize;
            let bytes = |request: &Request| Driver::<Lru>::payload(request, &buffer).to_vec();
            match request.kind {
                Kind::Read if self.owns(request.offset) => {
                    for (unit, found) in model[units].iter().zip(bytes(&request).chunks(UNIT as usize)) {
                        assert!(
                            found.iter().all(|byte| byte == unit),
                            "{request:?}: {} not {unit}",
                            found[0]
                        );
                    }
                }
                Kind::Write { .. } => model[units].fill(bytes(&request)[0]),
                Kind::Zero { .. } => model[units].fill(0),
                _ => {}
            }
        }
        let exchange = self.driver.exchange().expect("it is one of several parts");
        let there_is_nothing = || may_sleep && quiet && exchange.is_empty();
        let due = Instant::now() + PATIENCE;
        self.slept += usize::from(exchange.bell().wait(&self.ring, Some(due), there_is_nothing).unwrap());
        let mut rung = Vec::new();
        self.sockets.poll(&mut rung);
        if !rung.is_empty() {
            self.driver.exchange().expect("as above").bell().heard();
            self.sockets.readable(0, &self.bell);
        }
    }

    fn owns(&self, offset: u64) -> bool {
        (offset / OWNED) as usize % THREADS == self.number
    }

    fn submit_one(&mut self) {
        let kind = match self.rng.random_range(0..40) {
            0 => Kind::Flush,
            1 => Kind::Zero { durable: false, may_unmap: true, fast: false },
            2 => Kind::Write { durable: true },
            3..20 => Kind::Write { durable: false },
            _ => Kind::Read,
        };
        let mut request = Request { volume: VolumeId(0), kind, offset: 0, len: 0 };
        if kind == Kind::Read && self.rng.random_bool(0.2) {
            // Anywhere and over many regions; its content is others' affair.
            request.len = UNIT * self.rng.random_range(1..500);
            request.offset = UNIT * self.rng.random_range(0..=(VOLUME - request.len) / UNIT);
            request.offset = if self.owns(request.offset) { 0 } else { request.offset };
            if self.owns(request.offset) {
                return;
            }
        } else if kind != Kind::Flush {
            let mine = self.rng.random_range(0..VOLUME / OWNED / THREADS as u64) * THREADS as u64;
            request.len = UNIT * self.rng.random_range(1..=OWNED / UNIT);
            let within = UNIT * self.rng.random_range(0..=(OWNED - request.len) / UNIT);
            request.offset = (mine + self.number as u64) * OWNED + within;
            let overlaps = |other: &Request| {
                other.offset < request.offset + request.len && request.offset < other.offset + other.len
            };
            if self.pending.iter().any(|(_, other, _)| overlaps(other)) {
                return;
            }
        }
        let buffer = self.driver.buffer(&request);
        if let Kind::Write { .. } = kind {
            let stamp = self.rng.random_range(1..=255u8);
            Driver::<Lru>::payload(&request, &buffer).copy_from(&vec![stamp; request.len as usize]);
        }
        let id = self.driver.submit(request, Some(buffer.clone()));
        self.pending.push((id, request, buffer));
    }
}

fn run(mode: WriteMode, seed: u64) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let sizes = "4KiB,16KiB,32KiB".parse().unwrap();
    let config = Config {
        sizes,
        cache_bytes: CACHE,
        mode,
        shards: Some(5),
        gate: Gate::default(),
        memory: Memory::None,
        kept: false,
    };
    let parts = BlockCache::<Lru>::parts(config, THREADS).unwrap();
    let exchanges = Exchange::family(THREADS).unwrap();
    let seeds = Pool::family(THREADS, 4 << 20);
    let busy = Arc::new(AtomicUsize::new(THREADS));
    let models = Arc::new(Mutex::new(vec![0u8; (VOLUME / UNIT) as usize]));
    let files = ["cache", "backing"].map(|name| folder.path().join(name));
    let source = |file: &std::path::Path, bytes: u64, role| {
        let spec: Spec = format!("file:{},size={bytes}", file.display()).parse().unwrap();
        spec.prepare(role).unwrap()
    };
    let sources = (
        source(&files[0], CACHE, Role::Cache { size: CACHE }),
        source(&files[1], VOLUME, Role::Backing { read_only: false }),
    );
    let members = parts.into_iter().zip(exchanges).zip(seeds).enumerate();
    let threads: Vec<_> = members
        .map(|(number, ((cache, exchange), pool))| {
            let (busy, models, sources) = (busy.clone(), models.clone(), sources.clone());
            std::thread::spawn(move || {
                let Ok(ring) = Ring::new(256) else { return None };
                let pool = pool.pool();
                let bell = exchange.bell().descriptor().unwrap();
                let cache_device = sources.0.open(&ring, &pool).unwrap();
                let mut driver = Driver::of_part(cache, cache_device, pool.clone(), Some(exchange));
                driver.add_volume("test", sources.1.open(&ring, &pool).unwrap());
                let mut sockets = Sockets::new(&ring);
                sockets.readable(0, &bell);
                let rng = SmallRng::seed_from_u64(seed + number as u64);
                let pending = Vec::new();
                let patience = Instant::now() + PATIENCE;
                let mut member =
                    Member { number, driver, ring, sockets, bell, pending, rng, slept: 0, patience };
                let mut model = vec![0; (VOLUME / UNIT) as usize];
                for _ in 0..REQUESTS {
                    while member.pending.len() >= AT_ONCE {
                        member.turn(&mut model, true);
                    }
                    member.submit_one();
                    member.turn(&mut model, false);
                }
                // Others may still need this part of the cache.
                let mut finished = false;
                while busy.load(Ordering::SeqCst) > 0 {
                    member.turn(&mut model, false);
                    if member.pending.is_empty() && !std::mem::replace(&mut finished, true) {
                        busy.fetch_sub(1, Ordering::SeqCst);
                    }
                    finished &= member.pending.is_empty();
                }
                while !member.driver.is_idle() {
                    member.turn(&mut model, false);
                }
                let mut models = models.lock().unwrap();
                for (at, byte) in model.iter().enumerate() {
                    if member.owns(at as u64 * UNIT) {
                        models[at] = *byte;
                    }
                }
                Some(member.slept)
            })
        })
        .collect();
    let slept: Option<Vec<usize>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    if mode != WriteMode::Back {
        let found = std::fs::read(&files[1]).unwrap();
        for (at, (unit, byte)) in found.chunks(UNIT as usize).zip(models.lock().unwrap().iter()).enumerate() {
            assert!(unit.iter().all(|found| found == byte), "unit {at} of the backing device");
        }
    }
    slept.map(|slept| slept.into_iter().sum())
}

#[test]
fn parts_on_threads_read_what_was_written() {
    for (seed, mode) in (1..).zip([WriteMode::Through, WriteMode::Around, WriteMode::Back]) {
        match run(mode, 100 * seed) {
            Some(slept) => assert!(slept > 0, "nobody ever slept, so nobody was woken"),
            None => return eprintln!("skipped: no io_uring here"),
        }
    }
}
