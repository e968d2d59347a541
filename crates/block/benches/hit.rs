//! What the cache itself costs: nanoseconds for a 4 KiB read that hits, and for the same read passed through, with
//! every ordered operation completed at once. The difference is the overhead of caching.
//!
//! Both caches take turns, so that a machine that wanders does so for both; the median of all rounds is printed.

use std::time::Instant;

use floe_block::{BlockCache, Config, Evict, Gate, Kind, Memory, Order, Request, RequestId, WriteMode};

const BLOCKS: u64 = 16_384;
const ROUNDS: usize = 31;
const REQUESTS_PER_ROUND: u64 = 100_000;
const MIB: u64 = 1 << 20;

/// A cache of small and large blocks that holds the first `BLOCKS` sectors of its volume, read in a mixed order.
struct Subject {
    cache: BlockCache,
    orders: Vec<Order>,
    at: u64,
}

impl Subject {
    fn new(mode: WriteMode) -> Self {
        let sizes = "4KiB,32KiB,64KiB,128KiB,256KiB".parse().expect("the sizes are well-formed");
        let config = Config {
            sizes,
            cache_bytes: 2 * BLOCKS * 4096,
            mode,
            shards: Some(1),
            gate: Gate::default(),
            evict: Evict::default(),
            memory: Memory::None,
            kept: false,
        };
        let mut cache = BlockCache::new(config).expect("the configuration is sound");
        cache.add_volume(1024 * MIB);
        let mut subject = Self { cache, orders: Vec::new(), at: 0 };
        for block in 0..BLOCKS {
            subject.read(block * 4096);
        }
        subject
    }

    fn read(&mut self, offset: u64) {
        let request = Request { volume: floe_block::VolumeId(0), kind: Kind::Read, offset, len: 4096 };
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
            self.at = (self.at + 7919) % BLOCKS; // a prime: every block in turn, neighbours far apart
            self.read(self.at * 4096);
        }
        start.elapsed().as_nanos() as f64 / REQUESTS_PER_ROUND as f64
    }
}

fn main() {
    let (mut cached, mut passed) = (Subject::new(WriteMode::Through), Subject::new(WriteMode::Pass));
    let mut rounds: Vec<[f64; 3]> = Vec::new();
    for _ in 0..ROUNDS {
        let (hit, pass) = (cached.round(), passed.round());
        rounds.push([hit, pass, hit - pass]);
    }
    let stats = cached.cache.stats().requests;
    assert_eq!(stats.reads - stats.read_hits, BLOCKS, "every block is missed once and then hit");
    for (what, column) in [("hit", 0), ("pass-through request", 1), ("overhead of caching", 2)] {
        let mut column: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        column.sort_by(f64::total_cmp);
        println!("{what}: {:.0} ns", column[column.len() / 2]);
    }
}
