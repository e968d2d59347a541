//! Parts of one cache on threads of their own, over files, alone or as a tier above another: what
//! is written on one thread is read on all.
//!
//! Each thread owns every third 16 KiB of the volume and checks what it reads there; the regions
//! that shards own are twice as long, so that threads meet in all of them.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use floe_block::{
    AdmissionConfig, Answer, BlockCache, Config, Driver, Evict, Exchange, Memory, Request,
    RequestId, RequestKind, Tier, VolumeId, WriteMode,
};
use floe_device::{Buffer, Pool, Ring, Role, Sockets, Spec};
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
        for Answer { request: id, result, .. } in answers {
            assert_eq!(result, Ok(()));
            let at = self
                .pending
                .iter()
                .position(|(pending, ..)| *pending == id)
                .expect("answered once");
            let (_, request, buffer) = self.pending.swap_remove(at);
            let units =
                (request.offset / UNIT) as usize..((request.offset + request.len) / UNIT) as usize;
            let bytes = |request: &Request| Driver::payload(request, &buffer).to_vec();
            match request.kind {
                RequestKind::Read if self.owns(request.offset) => {
                    for (unit, found) in
                        model[units].iter().zip(bytes(&request).chunks(UNIT as usize))
                    {
                        assert!(
                            found.iter().all(|byte| byte == unit),
                            "{request:?}: {} not {unit}",
                            found[0]
                        );
                    }
                }
                RequestKind::Write { .. } => model[units].fill(bytes(&request)[0]),
                RequestKind::Zero { .. } => model[units].fill(0),
                _ => {}
            }
        }
        let exchange = self.driver.top().exchange().expect("it is one of several parts");
        let there_is_nothing = || may_sleep && quiet && !self.driver.has_mail();
        let due = Instant::now() + PATIENCE;
        self.slept +=
            usize::from(exchange.bell().wait(&self.ring, Some(due), there_is_nothing).unwrap());
        let mut rung = Vec::new();
        self.sockets.poll(&mut rung);
        if !rung.is_empty() {
            self.driver.top().exchange().expect("as above").bell().heard();
            self.sockets.readable(0, &self.bell);
        }
    }

    fn owns(&self, offset: u64) -> bool {
        (offset / OWNED) as usize % THREADS == self.number
    }

    fn submit_one(&mut self) {
        let kind = match self.rng.random_range(0..40) {
            0 => RequestKind::Flush,
            1 => RequestKind::Zero { durable: false, may_unmap: true, fast: false },
            2 => RequestKind::Write { durable: true },
            3..20 => RequestKind::Write { durable: false },
            _ => RequestKind::Read,
        };
        let mut request = Request { volume: VolumeId(0), kind, offset: 0, len: 0 };
        if kind == RequestKind::Read && self.rng.random_bool(0.2) {
            // Anywhere and over many regions; its content is others' affair.
            request.len = UNIT * self.rng.random_range(1..500);
            request.offset = UNIT * self.rng.random_range(0..=(VOLUME - request.len) / UNIT);
            request.offset = if self.owns(request.offset) { 0 } else { request.offset };
            if self.owns(request.offset) {
                return;
            }
        } else if kind != RequestKind::Flush {
            let mine = self.rng.random_range(0..VOLUME / OWNED / THREADS as u64) * THREADS as u64;
            request.len = UNIT * self.rng.random_range(1..=OWNED / UNIT);
            let within = UNIT * self.rng.random_range(0..=(OWNED - request.len) / UNIT);
            request.offset = (mine + self.number as u64) * OWNED + within;
            let overlaps = |other: &Request| {
                other.offset < request.offset + request.len
                    && request.offset < other.offset + other.len
            };
            if self.pending.iter().any(|(_, other, _)| overlaps(other)) {
                return;
            }
        }
        let buffer = self.driver.buffer(&request);
        if let RequestKind::Write { .. } = kind {
            let stamp = self.rng.random_range(1..=255u8);
            Driver::payload(&request, &buffer).copy_from(&vec![stamp; request.len as usize]);
        }
        let id = self.driver.submit(request, Some(buffer.clone()));
        self.pending.push((id, request, buffer));
    }
}

/// Runs tiers with these write modes, from the top. Says how often threads slept.
fn run(modes: &[WriteMode], seed: u64) -> Option<usize> {
    let folder = tempfile::tempdir().unwrap();
    let tier = |(at, &mode): (usize, &WriteMode)| {
        let config = Config {
            adapts_fetches: false,
            sizes: "4KiB,16KiB,32KiB".parse().unwrap(),
            cache_bytes: CACHE << at,
            mode,
            shards: Some(5 - at as u64),
            gate: AdmissionConfig::default(),
            evict: Evict::default(),
            memory: Memory::None,
            kept: false,
        };
        BlockCache::parts(config, THREADS).unwrap()
    };
    // By part, from the lowest tier up.
    let mut parts: Vec<Vec<BlockCache>> = (0..THREADS).map(|_| Vec::new()).collect();
    for tier in modes.iter().enumerate().rev().map(tier) {
        parts.iter_mut().zip(tier).for_each(|(part, cache)| part.push(cache));
    }
    let exchanges = Exchange::families(modes.len(), THREADS).unwrap();
    let seeds = Pool::family(THREADS, 4 << 20);
    let busy = Arc::new(AtomicUsize::new(THREADS));
    let models = Arc::new(Mutex::new(vec![0u8; (VOLUME / UNIT) as usize]));
    let backing = folder.path().join("backing");
    let source = |file: &std::path::Path, bytes: u64, role| {
        let spec: Spec = format!("file:{},size={bytes}", file.display()).parse().unwrap();
        spec.prepare(role).unwrap()
    };
    let cache = |at: usize| {
        let size = CACHE << at;
        source(&folder.path().join(format!("cache{at}")), size, Role::Cache { size })
    };
    let caches: Vec<_> = (0..modes.len()).rev().map(cache).collect();
    let sources = (caches, source(&backing, VOLUME, Role::Backing { read_only: false }));
    let members = parts.into_iter().zip(exchanges).zip(seeds).enumerate();
    let threads: Vec<_> = members
        .map(|(number, ((caches, exchanges), pool))| {
            let (busy, models, sources) = (busy.clone(), models.clone(), sources.clone());
            std::thread::spawn(move || {
                let Ok(ring) = Ring::new(256) else { return None };
                let pool = pool.pool();
                let bell = exchanges[0].bell().descriptor().unwrap();
                let tiers = caches.into_iter().zip(exchanges).zip(&sources.0);
                let driver =
                    tiers.fold(None, |below: Option<Driver>, ((cache, exchange), source)| {
                        let device = source.open(&ring, &pool).unwrap();
                        let tier = Tier::of_part(cache, device, pool.clone(), Some(exchange));
                        Some(match below {
                            Some(below) => Driver::on(tier, below),
                            None => Driver::new(tier),
                        })
                    });
                let mut driver = driver.expect("there is a tier");
                driver.add_volume("test", sources.1.open(&ring, &pool).unwrap());
                let mut sockets = Sockets::new(&ring);
                sockets.readable(0, &bell);
                let rng = SmallRng::seed_from_u64(seed + number as u64);
                let pending = Vec::new();
                let patience = Instant::now() + PATIENCE;
                let mut member = Member {
                    number,
                    driver,
                    ring,
                    sockets,
                    bell,
                    pending,
                    rng,
                    slept: 0,
                    patience,
                };
                let mut model = vec![0; (VOLUME / UNIT) as usize];
                for _ in 0..REQUESTS {
                    while member.pending.len() >= AT_ONCE {
                        member.turn(&mut model, true);
                    }
                    member.submit_one();
                    member.turn(&mut model, false);
                }
                while !member.pending.is_empty() {
                    member.turn(&mut model, true);
                }
                let drain =
                    Request { volume: VolumeId(0), kind: RequestKind::Drain, offset: 0, len: 0 };
                let id = member.driver.submit(drain, None);
                member.pending.push((id, drain, member.driver.buffer(&drain)));
                // Others may still need this part of the cache.
                let mut finished = false;
                while busy.load(Ordering::SeqCst) > 0 {
                    member.turn(&mut model, false);
                    if member.pending.is_empty() && !std::mem::replace(&mut finished, true) {
                        busy.fetch_sub(1, Ordering::SeqCst);
                    }
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
    let slept: Option<Vec<usize>> =
        threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let found = std::fs::read(&backing).unwrap();
    for (at, (unit, byte)) in
        found.chunks(UNIT as usize).zip(models.lock().unwrap().iter()).enumerate()
    {
        assert!(unit.iter().all(|found| found == byte), "unit {at} of the backing device");
    }
    slept.map(|slept| slept.into_iter().sum())
}

#[test]
fn parts_on_threads_read_what_was_written() {
    for (seed, mode) in (1..).zip([WriteMode::Through, WriteMode::Around, WriteMode::Back]) {
        match run(&[mode], 100 * seed) {
            Some(slept) => assert!(slept > 0, "nobody ever slept, so nobody was woken"),
            None => return eprintln!("skipped: no io_uring here"),
        }
    }
}

#[test]
fn parts_of_several_tiers_on_threads_read_what_was_written() {
    use WriteMode::{Around, Back, Through};
    for (seed, modes) in (10..).zip([&[Through, Back][..], &[Back, Back], &[Back, Around, Through]])
    {
        match run(modes, 100 * seed) {
            Some(slept) => assert!(slept > 0, "nobody ever slept, so nobody was woken"),
            None => return eprintln!("skipped: no io_uring here"),
        }
    }
}
