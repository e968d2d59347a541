//! What the cache itself costs: nanoseconds for a 4 KiB read that hits, and for the same read
//! passed through, with every ordered operation completed at once. The difference is the overhead
//! of caching. The same of caches with an admission.
//!
//! The caches take turns, so that a machine that wanders does so for all; the median of all rounds
//! is printed.

use std::time::Instant;

use floe_block::{
    AdmissionConfig, BlockCache, Config, Evict, Memory, Order, Request, RequestId, RequestKind,
    WriteMode,
};

const BLOCKS: u64 = 16_384;
const ROUNDS: usize = 31;
const REQUESTS_PER_ROUND: u64 = 100_000;
const MIB: u64 = 1 << 20;
/// Times every block is asked for until all are cached: some let in a little at a time.
const MOST_FILLINGS: usize = 64;
const ADMISSIONS: [&str; 5] = ["always", "second-access", "obp", "fussy:tune=1", "duel"];

/// A cache of small and large blocks that holds the first `BLOCKS` sectors of its volume, read in a
/// mixed order.
struct Subject {
    cache: BlockCache,
    orders: Vec<Order>,
    at: u64,
}

impl Subject {
    fn new(mode: WriteMode, admit: &str) -> Self {
        let sizes = "4KiB,32KiB,64KiB,128KiB,256KiB".parse().expect("the sizes are well-formed");
        let config = Config {
            adapts_fetches: false,
            sizes,
            cache_bytes: 2 * BLOCKS * 4096,
            mode,
            shards: Some(1),
            gate: AdmissionConfig::new(admit.parse().expect("the admission is registered")),
            evict: Evict::default(),
            memory: Memory::None,
            kept: false,
        };
        let mut cache = BlockCache::new(config).expect("the configuration is sound");
        cache.add_volume(1024 * MIB);
        let mut subject = Self { cache, orders: Vec::new(), at: 0 };
        for _ in 0..MOST_FILLINGS {
            let before = subject.misses();
            for block in 0..BLOCKS {
                subject.read(block * 4096);
            }
            if mode == WriteMode::Pass || subject.misses() == before {
                return subject; // every block hits from now on
            }
        }
        panic!("{admit}: never cached as a whole");
    }

    fn misses(&self) -> u64 {
        let requests = self.cache.stats().requests;
        requests.reads - requests.read_hits
    }

    fn read(&mut self, offset: u64) {
        let request =
            Request { volume: floe_block::VolumeId(0), kind: RequestKind::Read, offset, len: 4096 };
        self.cache.submit(RequestId(0), request, &mut self.orders);
        let mut next = 0;
        while next < self.orders.len() {
            if let Order::Read { op, .. } | Order::Write { op, .. } = self.orders[next] {
                self.cache.completed(op, Ok(()), &mut self.orders);
            }
            next += 1;
        }
        self.orders.clear();
    }

    /// Nanoseconds a request, of a round.
    fn round(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..REQUESTS_PER_ROUND {
            // a prime: every block in turn, neighbours far apart
            self.at = (self.at + 7919) % BLOCKS;
            self.read(self.at * 4096);
        }
        start.elapsed().as_nanos() as f64 / REQUESTS_PER_ROUND as f64
    }
}

fn main() {
    let mut passed = Subject::new(WriteMode::Pass, "always");
    let mut cached = ADMISSIONS.map(|admit| Subject::new(WriteMode::Through, admit));
    let misses = cached.each_ref().map(Subject::misses);
    let rounds: Vec<_> =
        (0..ROUNDS).map(|_| (passed.round(), cached.each_mut().map(Subject::round))).collect();
    assert_eq!(cached.each_ref().map(Subject::misses), misses, "what is measured hits");
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "pass-through request: {:.0} ns",
        median(rounds.iter().map(|(pass, _)| *pass).collect())
    );
    for (at, admit) in ADMISSIONS.into_iter().enumerate() {
        let hit = median(rounds.iter().map(|(_, hits)| hits[at]).collect());
        let over = median(rounds.iter().map(|(pass, hits)| hits[at] - pass).collect());
        println!("hit, {admit}: {hit:.0} ns; overhead of caching: {over:.0} ns");
    }
}
