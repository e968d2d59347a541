//! Simulates the cache of objects in memory and on flash over a trace, with the code of the running
//! cache.
//!
//! A read looks its object up, and a miss inserts it. A read that finds another size, and a write,
//! insert the object anew. A deletion removes it. Values are zeros of the object's size, and keys
//! take 8 bytes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use floe_hybrid::simulation::{Part, Simulation};
use floe_hybrid::{Admission, Declined, FlashStats, Inserted, OpenError, WriteBudget};
use serde::Serialize;

use super::stream::Stream;

/// Requests between two reports of progress, as a mask.
const PROGRESS_MASK: usize = (1 << 12) - 1;
const DAY_SECONDS: f64 = 86_400.0;

/// The limits of a simulated cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, as in the builder of the cache.
    pub memory: u64,
    /// Bytes of flash.
    pub flash: u64,
}

/// The settings that decide what is written to flash.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Writes {
    /// The admission of objects that memory evicts.
    pub admission: Admission,
    /// The budget of writes by the trace's clock.
    pub budget: Option<WriteBudget>,
}

/// The results of a run: the output fields of `floe simulate --flash`.
#[derive(Debug, Clone, Serialize)]
pub struct HybridResult {
    /// Name of the trace.
    pub trace: String,
    /// Limit of memory in bytes: objects, index and buffers.
    pub memory: u64,
    /// Size of the flash in bytes.
    pub flash: u64,
    /// The admission to flash.
    pub admission: String,
    /// The write budget, if there is one.
    pub write_budget: Option<String>,
    /// Number of reads that count.
    pub requests: u64,
    /// Number of requests of the warm-up, not counted elsewhere.
    pub warmup_requests: u64,
    /// Number of writes.
    pub writes: u64,
    /// Reads whose object was in memory.
    pub memory_hits: u64,
    /// Reads whose object was on flash.
    pub flash_hits: u64,
    /// Reads whose object was in neither.
    pub misses: u64,
    /// Share of the reads that hit.
    pub hit_ratio: f64,
    /// Share of the bytes read that hit.
    pub byte_hit_ratio: f64,
    /// Bytes of the reads that hit.
    pub hit_bytes: u64,
    /// Number of objects inserted after misses and by writes.
    pub inserted: u64,
    /// Bytes of these objects.
    pub inserted_bytes: u64,
    /// Number of objects that were appended to the log on flash after they had left memory.
    pub flash_inserted: u64,
    /// Number of objects that memory evicted and the admission or the write budget declined.
    pub flash_declined: u64,
    /// Bytes written to flash, headers, padding and footers included.
    pub flash_written_bytes: u64,
    /// Bytes written to flash for each byte inserted.
    pub written_per_inserted_byte: f64,
    /// Number of objects appended again when flash evicted their segment, because they were used.
    pub reinserted: u64,
    /// Bytes of these objects in the log, part of `flash_written_bytes`.
    pub reinserted_bytes: u64,
    /// Number of objects that flash evicted.
    pub flash_evicted: u64,
    /// Number of objects too large for a segment.
    pub too_large: u64,
    /// Number of objects on flash at the end.
    pub flash_objects: u64,
    /// Memory of the index in bytes at the end, part of `memory`.
    pub index_bytes: u64,
    /// Time by the trace's clock of the requests that count, in seconds; `None` without times.
    pub trace_seconds: Option<f64>,
    /// Bytes written to flash a second by the trace's clock.
    pub written_bytes_per_second: Option<f64>,
    /// Drive writes per day: how often a day the whole flash is written, by the trace's clock.
    pub writes_per_day: Option<f64>,
    /// Real time that the run took, in seconds.
    pub seconds: f64,
    /// Simulated requests a second, on one core.
    pub requests_per_second: f64,
}

/// Counts of the requests since the end of the warm-up.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    reads: u64,
    read_bytes: u64,
    memory_hits: u64,
    flash_hits: u64,
    hit_bytes: u64,
    inserted: u64,
    inserted_bytes: u64,
    too_large: u64,
    writes: u64,
}

/// Simulates a cache over a stream with sizes. `times` has the time of each request in nanoseconds,
/// or nothing; a write budget needs it. `progress` grows by the number of requests done.
///
/// # Errors
/// When a limit is too small or too large, or the admission needs the latencies of a drive.
pub fn simulate(
    trace: &str,
    (stream, times): (&Stream, &[u64]),
    (limits, writes): (Limits, Writes),
    progress: &AtomicU64,
) -> Result<HybridResult, OpenError> {
    let begun = Instant::now();
    let Writes { admission, budget } = writes;
    let cache = Simulation::with_admission(limits.memory, limits.flash, admission, budget)?;
    let sizes = stream.sizes.as_deref().unwrap_or(&[]);
    let (mut counts, mut before) = (Counts::default(), cache.stats().flash);
    let mut changes = stream.changes.iter().peekable();
    let requests = stream.keys.len();
    for (at, (&key, &bytes)) in stream.keys.iter().zip(sizes).enumerate() {
        // Changes of sizes show in the sizes of the requests.
        while let Some(change) = changes.next_if(|change| change.at as usize <= at) {
            if change.size.is_none() {
                cache.remove(stream.numbers[change.key as usize]);
            }
        }
        if at == stream.warmup {
            (counts, before) = (Counts::default(), cache.stats().flash);
        }
        if let Some(time) = times.get(at) {
            cache.advance_to(*time);
        }
        counts.request(&cache, (stream.numbers[key as usize], bytes), stream.writes(at));
        if at & PROGRESS_MASK == PROGRESS_MASK {
            progress.fetch_add(PROGRESS_MASK as u64 + 1, Relaxed);
        }
    }
    progress.fetch_add((requests & PROGRESS_MASK) as u64, Relaxed);
    let span = times.get(stream.warmup).zip(times.last());
    let trace_seconds = span.map(|(first, last)| last.saturating_sub(*first) as f64 / 1e9);
    let seconds = begun.elapsed().as_secs_f64();
    let result = counts.result(limits, [&before, &cache.stats().flash], trace_seconds);
    Ok(HybridResult {
        trace: trace.to_owned(),
        admission: admission.to_string(),
        write_budget: budget.map(|budget| budget.to_string()),
        warmup_requests: stream.warmup as u64,
        seconds,
        requests_per_second: requests as f64 / seconds,
        ..result
    })
}

impl Counts {
    fn request(&mut self, cache: &Simulation, (key, bytes): (u64, u64), writes: bool) {
        if writes {
            self.writes += 1;
            return self.insert(cache, key, bytes);
        }
        self.reads += 1;
        self.read_bytes += bytes;
        let found = cache.get(key);
        match found {
            Some((Part::Memory, _)) => self.memory_hits += 1,
            Some((Part::Flash, _)) => self.flash_hits += 1,
            None => {}
        }
        self.hit_bytes += found.map_or(0, |_| bytes);
        if found.is_none_or(|(_, cached)| cached != bytes) {
            self.insert(cache, key, bytes);
        }
    }

    fn insert(&mut self, cache: &Simulation, key: u64, bytes: u64) {
        self.inserted += 1;
        self.inserted_bytes += bytes;
        let inserted = cache.insert(key, bytes);
        if inserted == Inserted::Declined(Declined::TooLarge) {
            self.too_large += 1;
        }
    }

    /// Returns the results, with statistics of flash at the end of the warm-up and of the trace.
    fn result(
        &self,
        limits: Limits,
        [before, after]: [&FlashStats; 2],
        trace_seconds: Option<f64>,
    ) -> HybridResult {
        let Limits { memory, flash } = limits;
        let since = |figure: fn(&FlashStats) -> u64| figure(after) - figure(before);
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let flash_written_bytes = since(|stats| stats.written_bytes);
        let hits = self.memory_hits + self.flash_hits;
        let rate = trace_seconds
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| flash_written_bytes as f64 / seconds);
        HybridResult {
            trace: String::new(),
            memory,
            flash,
            admission: String::new(),
            write_budget: None,
            requests: self.reads,
            warmup_requests: 0,
            writes: self.writes,
            memory_hits: self.memory_hits,
            flash_hits: self.flash_hits,
            misses: self.reads - hits,
            hit_ratio: share(hits, self.reads),
            byte_hit_ratio: share(self.hit_bytes, self.read_bytes),
            hit_bytes: self.hit_bytes,
            inserted: self.inserted,
            inserted_bytes: self.inserted_bytes,
            flash_inserted: since(|stats| stats.inserted),
            flash_declined: since(|stats| {
                stats.declined_unpopular
                    + stats.declined_fits_memory
                    + stats.declined_write_cost
                    + stats.declined_over_budget
            }),
            flash_written_bytes,
            written_per_inserted_byte: share(flash_written_bytes, self.inserted_bytes),
            reinserted: since(|stats| stats.kept),
            reinserted_bytes: since(|stats| stats.kept_bytes),
            flash_evicted: since(|stats| stats.evicted),
            too_large: self.too_large,
            flash_objects: after.objects,
            index_bytes: after.index_bytes,
            trace_seconds,
            written_bytes_per_second: rate,
            writes_per_day: rate.map(|rate| rate * DAY_SECONDS / flash as f64),
            seconds: 0.0,
            requests_per_second: 0.0,
        }
    }
}
