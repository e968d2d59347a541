//! What a share of the cache is worth to a volume: its hit ratio alone, beside neighbours, and
//! beside them with a guaranteed part or with a largest part of the neighbour. Counts of simulated
//! requests, the same in every run. Before them the processor time that requests take while shares
//! change, which depends on the machine.
//!
//! The victim reads pieces of 16 KiB of its first GiB, the piece `n·u³` of `n` for a uniform `u`,
//! so that half of its reads are in an eighth of them. Each neighbour sends ten requests for one of
//! the victim's. The cache has 256 MiB.

use floe_block::{
    AdmissionConfig, BlockCache, BlockSizes, CacheShare, Config, Memory, Order, Request, RequestId,
    RequestKind, VolumeId, WriteMode,
};
use floe_policy::mix;
use floe_testkit::thread_time;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const CACHE_BYTES: u64 = 256 * MIB;
const VICTIM: VolumeId = VolumeId(0);
const NEIGHBOUR: VolumeId = VolumeId(1);
/// Requests of the victim; those of the first half warm the cache.
const ROUNDS: u64 = 100_000;
/// Requests of the neighbour for one of the victim's.
const PRESSURE: u64 = 10;
const POLICIES: [&str; 3] = ["lru", "arc", "s3-fifo"];

/// A neighbour: its name, and its request of a number.
type Neighbour = (&'static str, fn(u64) -> Request);

const NEIGHBOURS: [Neighbour; 4] = [
    ("scans: reads of 256 KiB, in order", |number| {
        of(NEIGHBOUR, RequestKind::Read, number * 256 * KIB % (64 * GIB), 256 * KIB)
    }),
    ("writes: 64 KiB, at random", |number| {
        let write = RequestKind::Write { durable: false };
        of(NEIGHBOUR, write, mix(number) % (64 * GIB / (64 * KIB)) * 64 * KIB, 64 * KIB)
    }),
    ("floods: reads of 16 KiB, at random", |number| {
        of(NEIGHBOUR, RequestKind::Read, mix(number) % (64 * GIB / (16 * KIB)) * 16 * KIB, 16 * KIB)
    }),
    ("reuses: as the victim reads, 4 GiB", |number| {
        of(NEIGHBOUR, RequestKind::Read, skewed(mix(number), 4 * GIB), 16 * KIB)
    }),
];

fn of(volume: VolumeId, kind: RequestKind, offset: u64, len: u64) -> Request {
    Request { volume, kind, offset, len }
}

/// Returns the offset of a piece of 16 KiB of a volume, for a number with random bits.
fn skewed(random: u64, bytes: u64) -> u64 {
    let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
    (unit.powi(3) * (bytes / (16 * KIB)) as f64) as u64 * 16 * KIB
}

/// A cache whose operations end at once.
struct Subject {
    cache: BlockCache,
    orders: Vec<Order>,
}

impl Subject {
    fn new(evict: &str, cache_bytes: u64) -> Self {
        Self::of(evict, cache_bytes, BlockSizes::automatic(CACHE_BYTES), 4)
    }

    fn of(evict: &str, cache_bytes: u64, sizes: BlockSizes, shards: u64) -> Self {
        let config = Config {
            adapts_fetches: false,
            sizes,
            cache_bytes,
            mode: WriteMode::Back,
            shards: Some(shards),
            gate: AdmissionConfig::default(),
            evict: evict.parse().expect("the policy is registered"),
            memory: Memory::None,
            kept: false,
        };
        let mut cache = BlockCache::new(config).expect("the configuration is sound");
        cache.add_volume(GIB);
        cache.add_volume(64 * GIB);
        Self { cache, orders: Vec::new() }
    }

    /// Serves a request to its end, and returns whether it was a hit.
    fn hits(&mut self, request: Request) -> bool {
        let mut was_hit = false;
        self.cache.submit(RequestId(0), request, &mut self.orders);
        while let Some(order) = self.orders.pop() {
            match order {
                Order::Read { op, .. } | Order::Write { op, .. } | Order::Flush { op, .. } => {
                    self.cache.completed(op, Ok(()), &mut self.orders);
                }
                Order::Answer { hit, .. } => was_hit = hit,
                _ => {}
            }
        }
        was_hit
    }

    /// Returns the share of hits of the victim's reads, and the bytes that it has in the end.
    fn run(mut self, neighbour: Option<fn(u64) -> Request>) -> (f64, u64) {
        let mut hits = 0;
        for round in 0..ROUNDS {
            let read = of(VICTIM, RequestKind::Read, skewed(mix(!round), GIB), 16 * KIB);
            let hit = self.hits(read);
            hits += u64::from(hit && round >= ROUNDS / 2);
            if let Some(request) = neighbour {
                for at in 0..PRESSURE {
                    self.hits(request(round * PRESSURE + at));
                }
            }
        }
        let used = self.cache.stats().volume_bytes[usize::from(VICTIM.0)];
        (hits as f64 / (ROUNDS - ROUNDS / 2) as f64, used)
    }

    fn shared(mut self, volume: VolumeId, share: CacheShare) -> Self {
        self.cache.set_share(volume, share);
        self
    }
}

/// Prints the processor times of misses while a share is set, holds and is lifted, in a shard of
/// 1 GiB whose 262,144 blocks belong half to the victim: of the first miss after each change, and
/// the median and the longest of 100,000. With several block sizes groups change their owners.
fn print_times_of_changes(sizes: &str) {
    println!("\nmisses in a shard of 1 GiB with blocks of {sizes}, in µs:");
    println!("  {:8} {:24} {:>8} {:>8} {:>8}", "", "", "first", "median", "longest");
    for policy in POLICIES {
        let mut subject = Subject::of(policy, GIB, sizes.parse().expect("sizes"), 1);
        let read = |volume, number| of(volume, RequestKind::Read, number * 4 * KIB, 4 * KIB);
        for number in 0..GIB / 2 / (4 * KIB) {
            subject.hits(read(VICTIM, number));
        }
        let mut next = 0;
        let all = CacheShare { guaranteed_bytes: GIB / 2, most_bytes: None };
        let less = CacheShare { guaranteed_bytes: GIB / 4, most_bytes: None };
        let small = CacheShare { guaranteed_bytes: 0, most_bytes: Some(GIB / 8) };
        for (change, volume, share) in [
            ("no share", NEIGHBOUR, CacheShare::default()),
            ("half guaranteed", VICTIM, all),
            ("a quarter guaranteed", VICTIM, less),
            ("share lifted", VICTIM, CacheShare::default()),
            ("neighbour at most 1/8", NEIGHBOUR, small),
            ("share lifted", NEIGHBOUR, CacheShare::default()),
        ] {
            subject.cache.set_share(volume, share);
            let times = (0..100_000).map(|_| {
                next += 1;
                let begun = thread_time();
                subject.hits(read(NEIGHBOUR, next));
                thread_time() - begun
            });
            let mut times: Vec<Duration> = times.collect();
            let first = times[0];
            times.sort_unstable();
            let shown = [first, times[times.len() / 2], times[times.len() - 1]];
            let [first, median, longest] = shown.map(|time| time.as_secs_f64() * 1e6);
            println!("  {policy:8} {change:24} {first:8.1} {median:8.1} {longest:8.1}");
        }
    }
}

fn main() {
    ["4KiB", "4KiB,16KiB,64KiB"].into_iter().for_each(print_times_of_changes);
    println!("hit ratio of the victim's reads (and MiB of its blocks)\n");
    println!("alone, in 256 MiB and in 128 MiB of cache:");
    for policy in POLICIES {
        let alone = |bytes| Subject::new(policy, bytes).run(None).0;
        println!("  {policy:8} {:.3} {:.3}", alone(CACHE_BYTES), alone(CACHE_BYTES / 2));
    }
    let half = CACHE_BYTES / 2;
    let guaranteed = CacheShare { guaranteed_bytes: half, most_bytes: None };
    let bounded = CacheShare { guaranteed_bytes: 0, most_bytes: Some(half) };
    for (name, neighbour) in NEIGHBOURS {
        println!("\nbeside a neighbour that {name}:");
        println!(
            "  {:8} {:>14} {:>14} {:>14}",
            "", "no share", "half guaranteed", "neighbour half"
        );
        for policy in POLICIES {
            let plain = Subject::new(policy, CACHE_BYTES).run(Some(neighbour));
            let kept = Subject::new(policy, CACHE_BYTES).shared(VICTIM, guaranteed);
            let left = Subject::new(policy, CACHE_BYTES).shared(NEIGHBOUR, bounded);
            let cells = [plain, kept.run(Some(neighbour)), left.run(Some(neighbour))];
            let cells = cells.map(|(ratio, used)| format!("{ratio:.3} ({:3})", used / MIB));
            println!("  {policy:8} {:>14} {:>14} {:>14}", cells[0], cells[1], cells[2]);
        }
    }
}
