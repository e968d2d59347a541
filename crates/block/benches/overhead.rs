//! What caching costs a request, carried out: processor time and instructions of a 4 KiB request
//! that hits, against the same request passed through, on devices in memory, with the buffers and
//! the driver that serve. What is asked for is under 0.5 µs. Then the same of a cache that outlives
//! the program, with its checksums and its journal, and of caches with an admission, which is told
//! of hits, and for which operations are timed.
//!
//! All take turns, so that a machine that wanders does so for both; medians of all rounds are
//! printed, the overhead with its 95 % interval. Instructions are counted by valgrind's callgrind,
//! which runs this program again for the difference between some requests and twice as many.

use std::process::Command;
use std::time::Instant;

use floe_block::{
    AdmissionConfig, Answer, Begun, BlockCache, BlockSizes, Config, Driver, Evict, Io, KeptCache,
    Layout, Memory, NewCache, Request, RequestKind, Tier, Volume, VolumeId, WriteMode,
};
use floe_device::{MemoryDevice, Pool};
use floe_testkit::thread_time;

const MIB: u64 = 1 << 20;
const SECTORS: u64 = 16_384;
const CACHE_BYTES: u64 = 2 * SECTORS * 4096;
const VOLUME_BYTES: u64 = 256 * MIB;
const ROUNDS: usize = 41;
const REQUESTS_PER_ROUND: u64 = 64_000;
const REQUESTS_COUNTED: u64 = 32_000;
const IN_FLIGHT: u64 = 32;

/// What is asked of the cache: a name, and how many of ten requests write.
const LOADS: [(&str, u64); 2] = [("reads", 0), ("70 % reads, 30 % writes", 3)];

/// What is compared, write-back being what hits with writes too: how it is called, the mode,
/// whether the cache outlives the program, and who is asked what comes in. The first is what
/// caching costs beside the second, which the others are measured against.
const SUBJECTS: [(&str, WriteMode, bool, &str); 7] = [
    ("cached", WriteMode::Back, false, "always"),
    ("passed through", WriteMode::Pass, false, "always"),
    ("in a kept cache", WriteMode::Back, true, "always"),
    ("asking second-access", WriteMode::Back, false, "second-access"),
    ("asking obp", WriteMode::Back, false, "obp"),
    ("asking fussy:tune=1", WriteMode::Back, false, "fussy:tune=1"),
    ("asking duel", WriteMode::Back, false, "duel"),
];

/// That which hits nothing, for the rest of what a request costs.
const PASSED: usize = 1;

/// Times all is asked for until it is cached: some let in a little at a time.
const MOST_FILLINGS: usize = 64;

/// A driver whose cache holds the part of the volume that is asked for.
struct Subject {
    driver: Driver,
    answers: Vec<Answer>,
    at: u64,
}

impl Subject {
    fn new((name, mode, kept, admit): (&str, WriteMode, bool, &str)) -> Self {
        let pool = Pool::new(16 << 20);
        let gate = AdmissionConfig::new(admit.parse().expect("the admission is registered"));
        let driver =
            if kept { kept_driver(mode, gate, pool) } else { volatile_driver(mode, gate, pool) };
        let mut subject = Self { driver, answers: Vec::new(), at: 0 };
        for _ in 0..MOST_FILLINGS {
            let before = subject.misses();
            subject.ask(SECTORS, 0);
            if mode == WriteMode::Pass || subject.misses() == before {
                return subject; // all hits from now on
            }
        }
        panic!("{name}: never cached as a whole");
    }

    /// Asks for so many sectors, all in turn but neighbours far apart.
    fn ask(&mut self, requests: u64, writes_of_ten: u64) {
        for first in (0..requests).step_by(IN_FLIGHT as usize) {
            for number in first..requests.min(first + IN_FLIGHT) {
                self.at = (self.at + 7919) % SECTORS; // a prime
                let writes = number * 7 % 10 < writes_of_ten;
                let kind =
                    if writes { RequestKind::Write { durable: false } } else { RequestKind::Read };
                let request =
                    Request { volume: VolumeId(0), kind, offset: self.at * 4096, len: 4096 };
                let buffer = self.driver.buffer(&request);
                self.driver.submit(request, Some(buffer));
            }
            self.driver.advance();
            while !self.driver.is_idle() {
                self.driver.advance(); // a checkpoint, which takes a step at a time
            }
            self.driver.take_answers(&mut self.answers);
            self.answers.drain(..).for_each(|answer| answer.result.expect("nothing fails"));
        }
    }

    fn misses(&self) -> u64 {
        let requests = self.driver.top().stats().requests;
        requests.reads + requests.writes - requests.read_hits - requests.write_hits
    }

    /// Nanoseconds of processor time a request, of a round.
    fn round(&mut self, writes_of_ten: u64) -> f64 {
        let begun = thread_time();
        self.ask(REQUESTS_PER_ROUND, writes_of_ten);
        (thread_time() - begun).as_nanos() as f64 / REQUESTS_PER_ROUND as f64
    }
}

fn volatile_driver(mode: WriteMode, gate: AdmissionConfig, pool: Pool) -> Driver {
    let (sizes, shards, memory) = (BlockSizes::default(), Some(1), Memory::None);
    let config = Config {
        adapts_fetches: false,
        sizes,
        cache_bytes: CACHE_BYTES,
        mode,
        shards,
        gate,
        evict: Evict::default(),
        memory,
        kept: false,
    };
    let cache = BlockCache::new(config).expect("the configuration is sound");
    let tier = Tier::new(cache, Box::new(MemoryDevice::new(CACHE_BYTES)), pool);
    let mut driver = Driver::new(tier.with_clock(Instant::now));
    driver.add_volume("volume", Box::new(MemoryDevice::new(VOLUME_BYTES)));
    driver
}

fn kept_driver(mode: WriteMode, gate: AdmissionConfig, pool: Pool) -> Driver {
    let mut device = MemoryDevice::new(2 * CACHE_BYTES);
    let layout = Layout::new(&BlockSizes::default(), 2 * CACHE_BYTES, 1).expect("there is room");
    let volume = Volume::new(VolumeId(0), "volume", VOLUME_BYTES);
    let begun: Begun = {
        let mut io = Io { device: &mut device, pool: &pool, wait: &mut || Ok(()) };
        let new = NewCache { id: [1; 16], layout, volumes: vec![volume.clone()] };
        let config = Config { mode, gate, ..Config::default() };
        let kept = KeptCache::create(&mut io, new).expect("devices in memory do not fail");
        kept.begin(&mut io, vec![volume], &config, 1).expect("devices in memory do not fail")
    };
    let (cache, journal) = begun.parts.into_iter().next().expect("a cache has a part");
    let tier = Tier::new(cache, Box::new(device), pool).with_journal(Some(journal));
    let mut driver = Driver::new(tier.with_clock(Instant::now));
    driver.add_volume_at(VolumeId(0), "volume", Box::new(MemoryDevice::new(VOLUME_BYTES)));
    driver
}

/// The median, and the interval that holds the median of all possible rounds in 95 of 100 cases.
fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let (count, middle) = (values.len() as f64, values.len() / 2);
    let reach = (0.98 * count.sqrt()).ceil() as usize;
    (
        values[middle],
        values[middle.saturating_sub(reach)],
        values[(middle + reach).min(values.len() - 1)],
    )
}

/// Instructions of a request, counted; `None` without valgrind.
fn instructions(load: usize, mode: usize) -> Option<f64> {
    let of = |requests: u64| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args(["--count", &load.to_string(), &mode.to_string(), &requests.to_string()])
            .output()
            .ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "valgrind: {said}");
        let count = said.split_once("Collected : ").expect("callgrind says what it collected").1;
        count.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((of(2 * REQUESTS_COUNTED)? - of(REQUESTS_COUNTED)?) as f64 / REQUESTS_COUNTED as f64)
}

fn main() {
    let words: Vec<String> =
        std::env::args().skip_while(|word| word != "--count").skip(1).collect();
    if let [load, mode, requests] =
        words.iter().map(|word| word.parse().expect("a number")).collect::<Vec<u64>>()[..]
    {
        Subject::new(SUBJECTS[mode as usize]).ask(requests, LOADS[load as usize].1);
        return;
    }
    for (load, (name, writes_of_ten)) in LOADS.into_iter().enumerate() {
        let mut subjects = SUBJECTS.map(Subject::new);
        let misses = subjects.each_ref().map(Subject::misses);
        let rounds: Vec<[f64; SUBJECTS.len()]> = (0..ROUNDS)
            .map(|_| subjects.each_mut().map(|subject| subject.round(writes_of_ten)))
            .collect();
        let counted: Vec<Option<f64>> =
            (0..SUBJECTS.len()).map(|subject| instructions(load, subject)).collect();
        for (at, (subject, _, _, _)) in SUBJECTS.into_iter().enumerate() {
            let of = |what: &dyn Fn(&[f64; SUBJECTS.len()]) -> f64| {
                median(rounds.iter().map(what).collect())
            };
            let (ns, ..) = of(&|round| round[at]);
            let (over, low, high) = of(&|round| round[at] - round[PASSED]);
            if at != PASSED {
                assert_eq!(subjects[at].misses(), misses[at], "what is measured hits");
            }
            let counted = counted[at].zip(counted[PASSED]).map_or_else(
                || "instructions not counted: valgrind is not installed".to_owned(),
                |(here, passed)| format!("{here:.0} instructions, {:.0} more", here - passed),
            );
            println!(
                "{name}, {subject}: {ns:.0} ns, {over:.0} more ({low:.0} to {high:.0}); {counted}"
            );
        }
    }
}
