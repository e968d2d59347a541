//! Counts the accesses of a request to cache lines that other threads use, too: what
//! `floe coherence` simulates. `cargo run --release --bin shared_lines [CACHE…]` prints a line of
//! JSON for each cache and outcome; `--sequences` adds the commonest orders of accesses.
//!
//! valgrind's lackey runs this program again and prints the address of every instruction, load and
//! store. Two threads take turns with the same keys, by Zipf's law, between two marks each. A line
//! counts where both threads touched it and one of them wrote it; so stacks, records of threads and
//! lines that are only read fall away. A read-modify-write is an instruction with a lock prefix, or
//! an exchange with memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use foldhash::fast::RandomState;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const CACHES: [&str; 6] = ["floe", "floe-lru", "quick_cache", "scc", "moka", "mutex-lru"];
const KEYS: usize = 1_000;
/// With room for all keys, so that every lookup hits, and for a tenth of them. With room for all,
/// every other request replaces a value.
const CAPACITIES: [usize; 2] = [2 * KEYS, KEYS / 10];
const WARM_UP: usize = 4_000;
/// Requests of a thread that are counted, and those that it makes in one turn.
const COUNTED: usize = 4_000;
const TURN: usize = 50;
/// Time in which the thread whose turn has ended goes to sleep.
const REST: Duration = Duration::from_millis(2);

/// Stores to them stand around each request of the two threads in what lackey says, between the
/// lookup and the insertion of what missed, and before the insertion of what is in the cache.
static BEGIN: Marks = [const { AtomicU64::new(0) }; 2];
static MISSED: Marks = [const { AtomicU64::new(0) }; 2];
static REPLACES: Marks = [const { AtomicU64::new(0) }; 2];
static END: Marks = [const { AtomicU64::new(0) }; 2];

/// One for each thread.
type Marks = [AtomicU64; 2];

type Value = [u64; 8];

fn mark(place: &AtomicU64) {
    compiler_fence(Ordering::SeqCst); // nothing moves past the mark
    place.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst); // as above
}

/// A cache of values of 64 bytes, which are read as the benchmark beside this one reads them.
trait Asked: Send + Sync {
    fn get(&self, key: u64) -> Option<u64>;
    fn insert(&self, key: u64);
}

struct Floe<P: floe_memory::policy::Replacement>(floe_memory::Cache<u64, Value, P>);

impl<P: floe_memory::policy::Replacement + 'static> Asked for Floe<P> {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value[0] + value[7])
    }

    fn insert(&self, key: u64) {
        self.0.insert(key, [key; 8]);
    }
}

impl Asked for quick_cache::sync::Cache<u64, Value, quick_cache::UnitWeighter, RandomState> {
    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|value| value[0] + value[7])
    }

    fn insert(&self, key: u64) {
        self.insert(key, [key; 8]);
    }
}

impl Asked for scc::HashCache<u64, Value, RandomState> {
    fn get(&self, key: u64) -> Option<u64> {
        self.get_sync(&key).map(|entry| entry[0] + entry[7])
    }

    fn insert(&self, key: u64) {
        match self.entry_sync(key) {
            scc::hash_cache::Entry::Occupied(mut entry) => drop(entry.put([key; 8])),
            scc::hash_cache::Entry::Vacant(entry) => drop(entry.put_entry([key; 8])),
        }
    }
}

impl Asked for moka::sync::Cache<u64, Value, RandomState> {
    fn get(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|value| value[0] + value[7])
    }

    fn insert(&self, key: u64) {
        self.insert(key, [key; 8]);
    }
}

impl Asked for Mutex<lru::LruCache<u64, Value, RandomState>> {
    fn get(&self, key: u64) -> Option<u64> {
        self.lock().expect("no thread panics").get(&key).map(|value| value[0] + value[7])
    }

    fn insert(&self, key: u64) {
        self.lock().expect("no thread panics").push(key, [key; 8]);
    }
}

fn made(cache: &str, capacity: usize) -> Arc<dyn Asked> {
    let floe = floe_memory::Cache::<u64, Value>::builder().capacity(capacity);
    let hasher = RandomState::default();
    match cache {
        "floe" => Arc::new(Floe(floe.build())),
        "floe-lru" => Arc::new(Floe(floe.policy(floe_memory::policy::Lru::default()).build())),
        "quick_cache" => {
            let lifecycle = quick_cache::sync::DefaultLifecycle::default();
            let weigher = quick_cache::UnitWeighter;
            let size = capacity as u64;
            Arc::new(quick_cache::sync::Cache::with(capacity, size, weigher, hasher, lifecycle))
        }
        "scc" => Arc::new(scc::HashCache::with_capacity_and_hasher(capacity, capacity, hasher)),
        "moka" => {
            let builder = moka::sync::Cache::builder().max_capacity(capacity as u64);
            Arc::new(builder.initial_capacity(capacity).build_with_hasher(hasher))
        }
        "mutex-lru" => {
            let capacity = NonZeroUsize::new(capacity).expect("a cache has room");
            Arc::new(Mutex::new(lru::LruCache::with_hasher(capacity, hasher)))
        }
        other => panic!("no such cache here: {other}"),
    }
}

/// Keys by Zipf's law.
struct Zipf {
    sums: Vec<f64>,
    random: SmallRng,
}

impl Zipf {
    fn new(seed: u64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self { sums: sums.collect(), random: SmallRng::seed_from_u64(seed) }
    }

    fn next(&mut self) -> u64 {
        let drawn = self.random.random::<f64>() * self.sums[KEYS - 1];
        self.sums.partition_point(|&up_to| up_to < drawn).min(KEYS - 1) as u64
    }
}

/// The program that is looked at.
fn one(cache: &str, capacity: usize) {
    let cache = made(cache, capacity);
    let mut keys = Zipf::new(1);
    if capacity >= KEYS {
        (0..KEYS as u64).for_each(|key| cache.insert(key));
    }
    for _ in 0..WARM_UP {
        let key = keys.next();
        if cache.get(key).is_none() {
            cache.insert(key);
        }
    }
    let marks = [("begin", &BEGIN), ("miss", &MISSED), ("replacement", &REPLACES), ("end", &END)];
    for (name, marks) in marks {
        let [first, second] = marks.each_ref().map(|mark| &raw const *mark as usize);
        println!("mark {name} {first:x} {second:x}");
    }
    print!("{}", std::fs::read_to_string("/proc/self/maps").expect("Linux says what is where"));
    println!("counted");
    let (first, first_turn) = mpsc::channel();
    let (second, second_turn) = mpsc::channel();
    first.send(()).expect("it is received below");
    std::thread::scope(|scope| {
        for (thread, own, other) in [(0, first_turn, second), (1, second_turn, first)] {
            let cache = &cache;
            scope.spawn(move || {
                let mut keys = Zipf::new(2);
                for _ in 0..COUNTED / TURN {
                    if own.recv().is_err() {
                        return;
                    }
                    std::thread::sleep(REST);
                    for number in 0..TURN {
                        let key = keys.next();
                        mark(&BEGIN[thread]);
                        if capacity >= KEYS && number % 2 == 1 {
                            mark(&REPLACES[thread]);
                            cache.insert(key);
                        } else if std::hint::black_box(cache.get(key)).is_none() {
                            mark(&MISSED[thread]);
                            cache.insert(key);
                        }
                        mark(&END[thread]);
                    }
                    let _ = other.send(()); // the other thread has ended
                }
            });
        }
    });
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Load,
    Store,
    Update,
}

/// Accesses of one request: the line and its kind, in order.
#[derive(Default)]
struct Request {
    thread: usize,
    /// The mark within it; without one it hit.
    outcome: Option<String>,
    instructions: u64,
    accesses: Vec<(usize, Kind)>,
}

/// Where instructions are, and their bytes.
#[derive(Default)]
struct Code(Vec<(Range<usize>, Vec<u8>)>);

impl Code {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |word: &str| usize::from_str_radix(word, 16).expect("an address");
        let [range, "r-xp", offset, _, _, file] = words[..] else { return };
        if file.starts_with('/') {
            let (from, to) = range.split_once('-').expect("two addresses");
            let (range, offset) = (address(from)..address(to), address(offset));
            let bytes = std::fs::read(file).expect("what is mapped can be read");
            let end = bytes.len().min(offset + range.len());
            self.0.push((range, bytes[offset..end].to_vec()));
        }
    }

    /// Whether the instruction reads, changes and writes memory as one step.
    fn updates(&self, at: usize, length: usize) -> bool {
        let Some((range, bytes)) = self.0.iter().find(|(range, _)| range.contains(&at)) else {
            return false;
        };
        let mut bytes = &bytes[at - range.start..][..length];
        let mut locked = false;
        while let [
            prefix @ (0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64 | 0x65 | 0x40..=0x4f),
            rest @ ..,
        ] = bytes
        {
            locked |= *prefix == 0xf0;
            bytes = rest;
        }
        locked || matches!(bytes, [0x86 | 0x87, operands, ..] if *operands < 0xc0)
    }
}

/// Runs a cache under lackey and returns the requests of both threads.
fn requests(cache: &str, capacity: usize) -> Vec<Request> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"])
        .arg(std::env::current_exe().expect("this program has a file"))
        .args(["--one", cache, &capacity.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("valgrind is installed");
    let said = BufReader::with_capacity(1 << 20, child.stdout.take().expect("piped"));
    let (mut code, mut marks, mut counts) = (Code::default(), HashMap::new(), false);
    let (mut found, mut current, mut updates) = (Vec::new(), None::<Request>, false);
    for line in said.lines() {
        let line = line.expect("what valgrind says is text");
        if !counts {
            counts = line.ends_with("counted");
            if let Some(words) = line.strip_prefix("mark ") {
                let words: Vec<&str> = words.split_whitespace().collect();
                for (thread, word) in words[1..].iter().enumerate() {
                    let address = usize::from_str_radix(word, 16).expect("an address");
                    marks.insert(address, (words[0].to_owned(), thread));
                }
            } else if !line.starts_with(['I', ' ']) {
                code.note(&line);
            }
            continue;
        }
        let Some((kind, place)) = line.trim_start().split_once(' ') else { continue };
        let Some((address, length)) = place.trim_start().split_once(',') else { continue };
        let Ok(address) = usize::from_str_radix(address, 16) else { continue };
        let length = length.parse().expect("a length");
        if kind == "S"
            && let Some((mark, thread)) = marks.get(&address)
        {
            match (mark.as_str(), &mut current) {
                ("begin", _) => current = Some(Request { thread: *thread, ..Request::default() }),
                ("end", request) => found.extend(request.take()),
                (outcome, Some(request)) => request.outcome = Some(outcome.to_owned()),
                (_, None) => {}
            }
            continue;
        }
        let Some(request) = &mut current else { continue };
        match kind {
            "I" => {
                request.instructions += 1;
                updates = code.updates(address, length);
            }
            "L" | "S" | "M" => {
                let kind = match kind {
                    _ if updates => Kind::Update,
                    "L" => Kind::Load,
                    _ => Kind::Store,
                };
                for line in address >> 6..=(address + length - 1) >> 6 {
                    // A read-modify-write is a load and a store to lackey.
                    if request.accesses.last() != Some(&(line, kind)) {
                        request.accesses.push((line, kind));
                    }
                }
            }
            _ => {}
        }
    }
    child.wait().expect("valgrind ends");
    found
}

/// Requests of one outcome, in shared lines.
fn print(cache: &str, capacity: usize, requests: &[Request], with_sequences: bool) {
    let mut touched: HashMap<usize, (HashSet<usize>, bool)> = HashMap::new();
    for request in requests {
        for (line, kind) in &request.accesses {
            let (threads, written) = touched.entry(*line).or_default();
            threads.insert(request.thread);
            *written |= *kind != Kind::Load;
        }
    }
    let shared = |line: &usize| {
        touched.get(line).is_some_and(|(threads, written)| threads.len() == 2 && *written)
    };
    for outcome in ["hit", "miss", "replacement"] {
        let has_it = |request: &&Request| request.outcome.as_deref().unwrap_or("hit") == outcome;
        let chosen: Vec<&Request> = requests.iter().filter(has_it).collect();
        if chosen.is_empty() {
            continue;
        }
        let mut instructions: Vec<u64> =
            chosen.iter().map(|request| request.instructions).collect();
        instructions.sort_unstable();
        // A line that nearly all requests touch is the cache's or a lock's; others are an entry's.
        let mut users: HashMap<usize, usize> = HashMap::new();
        for request in &chosen {
            let lines: HashSet<usize> = request.accesses.iter().map(|(line, _)| *line).collect();
            lines.into_iter().for_each(|line| *users.entry(line).or_default() += 1);
        }
        let is_common = |line: &usize| users[line] * 5 > chosen.len();
        let (mut sums, mut sequences) =
            (BTreeMap::<(&str, &str), u64>::new(), HashMap::<String, u64>::new());
        for request in &chosen {
            let mut states: BTreeMap<usize, Kind> = BTreeMap::new();
            let (mut updates, mut sequence, mut names) = (Vec::new(), String::new(), Vec::new());
            for (line, kind) in request.accesses.iter().filter(|(line, _)| shared(line)) {
                let state = states.entry(*line).or_insert(*kind);
                *state = (*state).max(*kind);
                if *kind == Kind::Update {
                    updates.push(*line);
                }
                if with_sequences {
                    let at = names.iter().position(|name| name == line).unwrap_or_else(|| {
                        names.push(*line);
                        names.len() - 1
                    });
                    let letter = ["r", "w", "U"][*kind as usize];
                    sequence +=
                        &format!("{letter}{}{at} ", if is_common(line) { "c" } else { "e" });
                }
            }
            for (line, kind) in &states {
                let scope = if is_common(line) { "common" } else { "other" };
                let what = if *kind == Kind::Load { "lines_read" } else { "lines_written" };
                *sums.entry((scope, what)).or_default() += 1;
            }
            for line in updates {
                let scope = if is_common(&line) { "common" } else { "other" };
                *sums.entry((scope, "updates")).or_default() += 1;
            }
            *sequences.entry(sequence).or_default() += 1;
        }
        let mean = |scope, what| {
            sums.get(&(scope, what)).map_or(0.0, |&sum| sum as f64 / chosen.len() as f64)
        };
        let scope = |scope| {
            serde_json::json!({
                "lines_read": mean(scope, "lines_read"),
                "lines_written": mean(scope, "lines_written"),
                "updates": mean(scope, "updates"),
            })
        };
        let all = chosen.iter().map(|request| request.instructions).sum::<u64>();
        println!(
            "{}",
            serde_json::json!({
                "cache": cache,
                "capacity": capacity,
                "outcome": outcome,
                "requests": chosen.len(),
                "instructions": all as f64 / chosen.len() as f64,
                "instructions_median": instructions[instructions.len() / 2],
                "common": scope("common"),
                "other": scope("other"),
            })
        );
        let mut sequences: Vec<_> = sequences.into_iter().collect();
        sequences.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        if with_sequences {
            for (sequence, count) in sequences.iter().take(3) {
                println!("{count:>6} of {}: {sequence}", chosen.len());
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, cache, capacity] = &words[..]
        && mode == "--one"
    {
        return one(cache, capacity.parse().expect("a capacity"));
    }
    let with_sequences = words.iter().any(|word| word == "--sequences");
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    for cache in
        CACHES.iter().filter(|cache| wanted.is_empty() || wanted.iter().any(|word| word == *cache))
    {
        for capacity in CAPACITIES {
            print(cache, capacity, &requests(cache, capacity), with_sequences);
        }
    }
}
