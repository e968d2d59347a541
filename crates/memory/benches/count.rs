//! Counts what a hit does: instructions, fences, atomic read-modify-writes, locks, and lines
//! written that other threads read. What is asked of FIFO-like policies is 0, 0, 0 and at most
//! 0.05; of hits on frozen entries 0 throughout, under any policy, and that is checked. And how
//! many instructions an insertion takes that evicts another entry. The same of caches with an
//! admission, whose hits are to cost what they do without. It takes a quarter of an hour; with a
//! word such as `qd-clock`, only rows whose name has that are counted. With `--check` only that the
//! default policy's hits write nothing shared where all keys are in, and no more do LRU's on frozen
//! entries: that takes a minute or two.
//!
//! Nothing is built in for it: valgrind's lackey runs this program again and says the address of
//! every instruction and of every store. Between two marks around a hit, a store counts unless it
//! is to the stack or to the thread's own record; what an instruction is, its bytes say. The load
//! is Zipf 0.99 on one thread, at steady state: a miss inserts its key.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use floe_memory::policy::{
    Clock, Fifo, Hyperbolic, Lfru, Lfu, Lhd, Lru, QdClock, Qdlp, Replacement, S3Fifo, Sampled,
    Sieve,
};
use floe_memory::{Cache, hits_are_fenceless, own_record};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// All FIFO-like ones, and two LRU-like ones.
const POLICIES: [&str; 12] = [
    "qd-clock",
    "s3-fifo",
    "qdlp",
    "sieve",
    "clock",
    "fifo",
    "lfru",
    "sampled",
    "hyperbolic",
    "lhd",
    "lru",
    "lfu",
];
/// Those whose entries are also all frozen.
const FROZEN: [&str; 3] = ["qd-clock", "lru", "lfu"];
/// Those that are also asked whom they let in, and by whom: of FIFO-like and LRU-like ones one.
/// What memory can have.
const ASKED: [&str; 2] = ["qd-clock", "lru"];
const ADMISSIONS: [&str; 4] = ["always", "second-access", "duel", "obp"];
const KEYS: usize = 10_000;
/// So that most keys are missed by, and so that none is.
const CAPACITIES: [usize; 2] = [1_000, 2 * KEYS];
const WARM_UP: usize = 20_000;
const COUNTED: usize = 5_000;
/// More than the stack ever takes here.
const STACK: usize = 1 << 18;

/// Stores to them stand before each lookup and after each hit, and before and after each insertion,
/// in what lackey says.
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static INSERT: AtomicU64 = AtomicU64::new(0);
static INSERTED: AtomicU64 = AtomicU64::new(0);

fn mark(place: &AtomicU64) {
    compiler_fence(Ordering::SeqCst); // nothing moves past the mark
    place.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst); // as above
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().position(|word| word == "--one") {
        Some(at) => one(&words[at + 1], words[at + 2].parse().expect("a capacity"), &words[at + 3]),
        None => {
            let only = words.iter().skip(1).find(|word| !word.starts_with('-'));
            table(only.map_or("", |word| word), words.iter().any(|word| word == "--check"));
        }
    }
}

/// The program that is looked at: says where things are, then asks for keys. `how` is `plain`,
/// `frozen` or an admission.
fn one(policy: &str, capacity: usize, how: &str) {
    match policy {
        "qd-clock" => ask(QdClock::default(), capacity, how),
        "s3-fifo" => ask(S3Fifo::default(), capacity, how),
        "qdlp" => ask(Qdlp::default(), capacity, how),
        "lfru" => ask(Lfru::default(), capacity, how),
        "sampled" => ask(Sampled::default(), capacity, how),
        "hyperbolic" => ask(Hyperbolic::default(), capacity, how),
        "lhd" => ask(Lhd::default(), capacity, how),
        "sieve" => ask(Sieve::default(), capacity, how),
        "clock" => ask(Clock::default(), capacity, how),
        "fifo" => ask(Fifo::default(), capacity, how),
        "lru" => ask(Lru::default(), capacity, how),
        "lfu" => ask(Lfu::default(), capacity, how),
        other => panic!("no such policy here: {other}"),
    }
}

#[inline(never)] // else the policies share their registers
fn ask<P: Replacement>(policy: P, capacity: usize, how: &str) {
    let described = Cache::<u64, u64>::builder().capacity(capacity).policy(policy);
    let described = match how {
        "plain" | "frozen" => described,
        admission => described.admission_named(admission).expect("the admission is registered"),
    };
    let cache: Cache<u64, u64, P> = described.build();
    let mut sums = Vec::with_capacity(KEYS);
    let mut sum = 0.0;
    for rank in 1..=KEYS {
        sum += (rank as f64).powf(-0.99);
        sums.push(sum);
    }
    let mut random = SmallRng::seed_from_u64(1);
    let mut next = || {
        let drawn = random.random::<f64>() * sum; // once: a search compares it many times
        sums.partition_point(|&up_to| up_to < drawn).min(KEYS - 1) as u64
    };
    for _ in 0..WARM_UP {
        let key = next();
        if cache.get(&key).is_none() {
            cache.insert(key, key);
        }
    }
    if capacity > KEYS {
        // Every key in, and hit as often as any policy counts.
        for key in (0..8).flat_map(|_| 0..KEYS as u64) {
            if cache.get(&key).is_none() {
                cache.insert(key, key);
            }
        }
    }
    if how == "frozen" {
        cache.freeze(1.0);
    }
    let local = 0u8;
    let stack = &raw const local as usize;
    let record = own_record(&cache);
    let [begin, end, insert, inserted] =
        [&raw const BEGIN, &raw const END, &raw const INSERT, &raw const INSERTED]
            .map(|mark| mark as usize);
    println!("marks {begin:x} {end:x} {insert:x} {inserted:x}");
    println!("stack {:x} {:x}", stack - STACK, stack + STACK);
    println!("record {:x} {:x}", record.start, record.end);
    println!("fenceless {}", hits_are_fenceless());
    print!("{}", std::fs::read_to_string("/proc/self/maps").expect("Linux says what is where"));
    println!("begin");
    for _ in 0..COUNTED {
        let key = next();
        mark(&BEGIN);
        let value = cache.get(&key).map(|value| *value);
        match std::hint::black_box(value) {
            Some(_) => mark(&END),
            None => {
                mark(&INSERT);
                cache.insert(key, key);
                mark(&INSERTED);
            }
        }
    }
}

/// Holds what is known of the program that is looked at.
#[derive(Default)]
struct Places {
    begin: usize,
    end: usize,
    insert: usize,
    inserted: usize,
    stack: Range<usize>,
    record: Range<usize>,
    fenceless: bool,
    /// Where instructions are, and their bytes.
    code: Vec<(Range<usize>, Vec<u8>)>,
}

impl Places {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |word: &str| usize::from_str_radix(word, 16).expect("an address");
        match words[..] {
            ["marks", begin, end, insert, inserted] => {
                (self.begin, self.end) = (address(begin), address(end));
                (self.insert, self.inserted) = (address(insert), address(inserted));
            }
            ["stack", from, to] => self.stack = address(from)..address(to),
            ["record", from, to] => self.record = address(from)..address(to),
            ["fenceless", is] => self.fenceless = is == "true",
            [range, "r-xp", offset, _, _, file] if file.starts_with('/') => {
                let (from, to) = range.split_once('-').expect("two addresses");
                let (range, offset) = (address(from)..address(to), address(offset));
                let bytes = std::fs::read(file).expect("what is mapped can be read");
                self.code.push((
                    range.clone(),
                    bytes[offset..bytes.len().min(offset + range.len())].to_vec(),
                ));
            }
            _ => {}
        }
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let (range, bytes) = self
            .code
            .iter()
            .find(|(range, _)| range.contains(&at))
            .expect("instructions are in mapped files");
        &bytes[at - range.start..][..length]
    }
}

/// Holds what an instruction does to other threads, by its bytes.
#[derive(PartialEq)]
enum Effect {
    None,
    Fence,
    ReadModifyWrite,
    /// That is how a lock of the standard library's is taken, and nothing else here.
    CompareAndSwap,
}

fn effect(mut bytes: &[u8]) -> Effect {
    let mut locked = false;
    while let [
        prefix @ (0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64 | 0x65 | 0x40..=0x4f),
        rest @ ..,
    ] = bytes
    {
        locked |= *prefix == 0xf0;
        bytes = rest;
    }
    match bytes {
        [0x0f, 0xae, 0xf0 | 0xf8 | 0xe8, ..] => Effect::Fence,
        [0x0f, 0xb0 | 0xb1, ..] if locked => Effect::CompareAndSwap,
        _ if locked => Effect::ReadModifyWrite,
        // xchg with memory
        [0x86 | 0x87, operands, ..] if *operands < 0xc0 => Effect::ReadModifyWrite,
        _ => Effect::None,
    }
}

/// Sums over hits.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    hits: u64,
    instructions: u64,
    fences: u64,
    read_modify_writes: u64,
    locks: u64,
    shared_lines: u64,
    insertions: u64,
    insertion_instructions: u64,
}

/// Runs a policy under lackey; `None` without valgrind.
fn count(policy: &str, capacity: usize, how: &str) -> Option<(Counts, bool)> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"])
        .arg(std::env::current_exe().ok()?)
        .args(["--one", policy, &capacity.to_string(), how])
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let (mut places, mut has_begun) = (Places::default(), false);
    let (mut sum, mut hit, mut lines) = (Counts::default(), None::<Counts>, HashSet::new());
    let said = BufReader::with_capacity(1 << 20, child.stdout.take().expect("piped"));
    for line in said.lines() {
        let line = line.expect("what valgrind says is text");
        if !has_begun {
            has_begun = line.ends_with("begin");
            if !line.starts_with(['I', ' ']) {
                places.note(&line);
            }
            continue;
        }
        let Some((kind, place)) = line.trim_start().split_once(' ') else { continue };
        let Some((address, length)) = place.trim_start().split_once(',') else { continue };
        let Ok(address) = usize::from_str_radix(address, 16) else { continue };
        match kind {
            "I" => {
                let Some(hit) = &mut hit else { continue };
                hit.instructions += 1;
                match effect(places.bytes(address, length.parse().expect("a length"))) {
                    Effect::None => {}
                    Effect::Fence => hit.fences += 1,
                    Effect::ReadModifyWrite => hit.read_modify_writes += 1,
                    Effect::CompareAndSwap => {
                        hit.read_modify_writes += 1;
                        hit.locks += 1;
                    }
                }
            }
            "S" if address == places.begin || address == places.insert => {
                hit = Some(Counts::default());
                lines.clear();
            }
            "S" if address == places.inserted => {
                let Some(insertion) = hit.take() else { continue };
                sum.insertions += 1;
                sum.insertion_instructions += insertion.instructions - 1; // the mark
            }
            "S" if address == places.end => {
                let Some(hit) = hit.take() else { continue };
                sum.hits += 1;
                sum.instructions += hit.instructions - 1; // the mark
                sum.fences += hit.fences;
                sum.read_modify_writes += hit.read_modify_writes;
                sum.locks += hit.locks;
                sum.shared_lines += lines.len() as u64;
            }
            "S" | "M" if !places.stack.contains(&address) && !places.record.contains(&address) => {
                lines.insert(address / 64);
            }
            _ => {}
        }
    }
    assert!(child.wait().expect("valgrind ends").success(), "valgrind: {policy}, {how}");
    Some((sum, places.fenceless))
}

/// The rows whose name contains `only`.
fn table(only: &str, checks: bool) {
    println!("a hit of Zipf 0.99 over {KEYS} keys, one thread, counted");
    println!(
        "{:<24} {:>9} {:>8} {:>13} {:>8} {:>19} {:>8} {:>21} {:>28}",
        "policy",
        "capacity",
        "hits",
        "instructions",
        "fences",
        "read-modify-writes",
        "locks",
        "shared lines written",
        "insertions: instructions"
    );
    let rows = CAPACITIES.into_iter().flat_map(|capacity| {
        let plain = POLICIES.map(|policy| (capacity, policy, "plain"));
        let frozen = FROZEN.map(|policy| (capacity, policy, "frozen"));
        let asked =
            ASKED.into_iter().flat_map(move |policy| ADMISSIONS.map(|who| (capacity, policy, who)));
        plain.into_iter().chain(frozen).chain(asked)
    });
    for (capacity, policy, how) in rows {
        let name = if how == "plain" { policy.to_owned() } else { format!("{policy}, {how}") };
        let is_checked =
            capacity > KEYS && [("qd-clock", "plain"), ("lru", "frozen")].contains(&(policy, how));
        if !name.contains(only) || checks && !is_checked {
            continue;
        }
        let Some((sum, fenceless)) = count(policy, capacity, how) else {
            println!("not counted: valgrind is not installed");
            return;
        };
        let each = |count: u64| count as f64 / sum.hits as f64;
        let insertions = match sum.insertions {
            0 => "–".to_owned(),
            insertions => {
                format!(
                    "{insertions}: {:.1}",
                    sum.insertion_instructions as f64 / insertions as f64
                )
            }
        };
        println!(
            "{name:<24} {capacity:>9} {:>8} {:>13.1} {:>8.3} {:>19.3} {:>8.3} {:>21.3} \
             {insertions:>28}{}",
            sum.hits,
            each(sum.instructions),
            each(sum.fences),
            each(sum.read_modify_writes),
            each(sum.locks),
            each(sum.shared_lines),
            if fenceless { "" } else { " (this system has no membarrier)" }
        );
        let harm = sum.fences + sum.read_modify_writes + sum.locks + sum.shared_lines;
        assert!(
            !(how == "frozen" || is_checked) || !fenceless || (harm == 0 && sum.hits > 0),
            "a hit of {name} at {capacity} entries is not free: {sum:?}"
        );
    }
}
