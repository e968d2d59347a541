//! The figures of a cache, each declared once: its name, its metric, its meaning and its value.
//!
//! The statistics page of the file, `floe hybrid stats`, the text for Prometheus, the recorder of
//! the crate `metrics` and the table in docs/hybrid.md come from these declarations.

use std::fmt::Write as _;

use crate::stats::Stats;

/// The type of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureType {
    /// A count that only grows while the cache is open.
    Counter,
    /// A level that goes up and down.
    Gauge,
}

impl FigureType {
    /// Returns the name of the type as Prometheus has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// The declaration of a figure.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Figure {
    /// The figure's name in JSON. Names stay.
    pub name: &'static str,
    /// The name of its metric. Figures with one name differ in their labels.
    pub metric: &'static str,
    /// Names and values of the metric's labels.
    pub labels: &'static [(&'static str, &'static str)],
    /// Its type.
    pub kind: FigureType,
    /// Its meaning, a sentence.
    pub help: &'static str,
    /// Its value in these statistics.
    pub value: fn(&Stats) -> u64,
}

impl Figure {
    /// Returns the name of the metric of a single drive, for a cache on several: that of the
    /// figure with `drive_` in it. `None` if the figure is not one of a drive.
    pub fn drive_metric(&self) -> Option<String> {
        let is_of_a_drive = !self.name.starts_with("memory_") && self.name != "drives";
        let rest = self.metric.strip_prefix(PREFIX).filter(|_| is_of_a_drive)?;
        Some(format!("{PREFIX}drive_{rest}"))
    }
}

/// The start of the names of metrics.
const PREFIX: &str = "floe_hybrid_";

macro_rules! figures {
    ($($kind:ident $metric:literal { $($label:ident: $of:literal),* } $name:literal, $help:literal,
        $value:expr;)*) => {
        &[$(Figure {
            name: $name,
            metric: concat!("floe_hybrid_", $metric),
            labels: &[$((stringify!($label), $of)),*],
            kind: FigureType::$kind,
            help: $help,
            value: $value,
        }),*]
    };
}

/// All figures; those with one metric follow each other.
const FIGURES: &[Figure] = figures! {
    Counter "hits_total" { place: "memory" } "memory_hits",
        "Lookups that found the object in memory.", |it| it.memory.hits;
    Counter "hits_total" { place: "flash" } "flash_hits",
        "Lookups that found the object on flash.", |it| it.flash.hits;
    Counter "misses_total" {} "misses",
        "Lookups that found the object neither in memory nor on flash.", |it| it.flash.misses;
    Counter "insertions_total" { place: "memory" } "memory_insertions",
        "Objects stored in memory, copies from flash included.", |it| it.memory.insertions;
    Counter "insertions_total" { place: "flash" } "flash_insertions",
        "Objects written to flash after leaving memory.", |it| it.flash.inserted;
    Counter "evictions_total" { place: "memory", cause: "size" } "memory_evictions",
        "Objects that left memory for others; flash may have them.", |it| it.memory.evictions;
    Counter "evictions_total" { place: "memory", cause: "expired" } "memory_expirations",
        "Objects that expired in memory.", |it| it.memory.expirations;
    Counter "evictions_total" { place: "flash", cause: "unused" } "flash_evictions",
        "Objects evicted with their segment, because they had not been used.",
        |it| it.flash.evicted;
    Counter "evictions_total" { place: "flash", cause: "no_room" } "flash_used_evictions",
        "Used objects evicted with their segment, because there was no room to keep them.",
        |it| it.flash.dropped_used;
    Counter "evictions_total" { place: "flash", cause: "collision" } "flash_collisions",
        "Objects lost to a newer object whose key has the same tag in the index.",
        |it| it.flash.collided;
    Counter "reinsertions_total" {} "reinsertions",
        "Objects appended again when their segment was evicted, because they had been used.",
        |it| it.flash.kept;
    Counter "declined_total" { reason: "options" } "declined_by_options",
        "Objects that memory evicted and whose options keep them off flash.",
        |it| it.flash.declined_by_options;
    Counter "declined_total" { reason: "behind" } "declined_behind",
        "Objects not written to flash because the drive was too slow.",
        |it| it.flash.declined_behind;
    Counter "declined_total" { reason: "too_large" } "declined_too_large",
        "Objects not written to flash because they were too large.",
        |it| it.flash.declined_too_large;
    Counter "declined_total" { reason: "failed" } "declined_failed",
        "Objects not written to flash because the flash had failed.",
        |it| it.flash.declined_failed;
    Counter "declined_total" { reason: "over_budget" } "declined_over_budget",
        "Objects not written to flash because the write budget was short.",
        |it| it.flash.declined_over_budget;
    Counter "declined_total" { reason: "unpopular" } "declined_unpopular",
        "Objects not written to flash because they were requested too seldom.",
        |it| it.flash.declined_unpopular;
    Counter "declined_total" { reason: "write_cost" } "declined_write_cost",
        "Objects not written to flash because writes slowed reads too much.",
        |it| it.flash.declined_write_cost;
    Counter "declined_total" { reason: "fits_memory" } "declined_fits_memory",
        "Objects not written to flash because the objects in use fit into memory.",
        |it| it.flash.declined_fits_memory;
    Counter "superseded_total" {} "superseded",
        "Objects not written to flash because their key was changed meanwhile.",
        |it| it.flash.superseded;
    Counter "reads_total" {} "flash_reads",
        "Reads of flash for lookups.", |it| it.flash.reads;
    Counter "read_bytes_total" {} "flash_read_bytes",
        "Bytes read from flash for lookups, and for objects that are kept.",
        |it| it.flash.read_bytes;
    Counter "read_errors_total" { error: "failed" } "failed_reads",
        "Reads of flash that failed.", |it| it.flash.failed_reads;
    Counter "read_errors_total" { error: "damaged" } "damaged_records",
        "Records read whose checksum did not match.", |it| it.flash.damaged;
    Counter "read_errors_total" { error: "undecoded" } "undecoded_values",
        "Values read that could not be decoded.", |it| it.flash.undecoded;
    Counter "mistaken_reads_total" {} "mistaken_reads",
        "Reads of flash that found the record of another key.", |it| it.flash.mistaken;
    Counter "appended_bytes_total" {} "appended_bytes",
        "Bytes of records that producers appended to the log.", |it| it.flash.appended_bytes;
    Counter "reinserted_bytes_total" {} "reinserted_bytes",
        "Bytes of records appended again when their segment was evicted.",
        |it| it.flash.kept_bytes;
    Counter "written_bytes_total" {} "written_bytes",
        "Bytes written to flash, with footers, padding and the saved index.",
        |it| it.flash.written_bytes;
    Gauge "objects" { place: "memory" } "memory_objects",
        "Objects in memory.", |it| it.memory.entries;
    Gauge "objects" { place: "flash" } "flash_objects",
        "Objects on flash.", |it| it.flash.objects;
    Gauge "memory_bytes" {} "memory_bytes",
        "Bytes of the objects in memory.", |it| it.memory.weight;
    Gauge "memory_limit_bytes" {} "memory_limit_bytes",
        "Limit of the bytes of the objects in memory, which falls as the index grows.",
        |it| it.memory.weight_capacity.unwrap_or(0);
    Gauge "index_bytes" {} "index_bytes",
        "Memory of the index in bytes.", |it| it.flash.index_bytes;
    Gauge "admission_bytes" {} "admission_bytes",
        "Memory of the admission in bytes.", |it| it.flash.admission_bytes;
    Gauge "flash_bytes" {} "flash_bytes",
        "Size of the flash in bytes.", |it| it.flash.capacity_bytes;
    Gauge "segments" {} "segments",
        "Number of segments of the flash.", |it| it.flash.segments;
    Gauge "drives" {} "drives",
        "Number of drives.", |it| it.drives.len() as u64;
    Gauge "flash_failed" {} "flash_failed",
        "Number of drives whose part a failure has ended.",
        |it| it.drives.iter().filter(|drive| drive.flash.failure.is_some()).count() as u64;
};

/// Name and meaning of the histogram of read times.
pub(crate) const READ_TIMES: (&str, &str) = (
    "floe_hybrid_flash_read_seconds",
    "Time of a read of flash, from its start to the checked bytes; one read in 16 is measured.",
);
/// Name and meaning of the write amplification.
pub(crate) const AMPLIFICATION: (&str, &str) = (
    "floe_hybrid_write_amplification",
    "Bytes written to flash for each byte that producers appended; 0 before the first.",
);

/// Returns the declarations of all figures, in the order in which they are listed.
pub fn figures() -> &'static [Figure] {
    FIGURES
}

impl Stats {
    /// Returns names and values of all figures.
    pub(crate) fn figures(&self) -> Vec<(String, u64)> {
        let times = self.flash.read_times.buckets().map(|(bound_us, count)| {
            let bound = bound_us.map_or("max".to_owned(), |bound| format!("{bound}_us"));
            (format!("flash_reads_to_{bound}"), count)
        });
        let figures = FIGURES.iter().map(|it| (it.name.to_owned(), (it.value)(self)));
        figures.chain(times).collect()
    }
}

/// Returns the statistics of caches in Prometheus' text format, version 0.0.4. The name of each
/// cache is the label `cache` of its metrics. A cache on several drives has the metrics of
/// [`Figure::drive_metric`], too, with the path of the drive as the label `drive`.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cache");
/// # use floe_hybrid::{Hybrid, prometheus};
/// # let cache: Hybrid<String, Vec<u8>> =
/// #     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
/// let text = prometheus(&[("pages", &cache.stats())]);
/// assert!(text.contains("\nfloe_hybrid_hits_total{cache=\"pages\",place=\"flash\"} 0\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prometheus(caches: &[(&str, &Stats)]) -> String {
    let mut text = String::new();
    for family in FIGURES.chunk_by(|one, next| one.metric == next.metric) {
        let first = &family[0];
        // A family has one help: that of its only figure, or what its figures have in common.
        let help = if family.len() == 1 { first.help } else { family_help(first.metric) };
        begin(&mut text, first.metric, help, first.kind.name());
        for (cache, stats) in caches {
            for figure in family {
                let labels = labels(&[("cache", *cache)], figure.labels);
                let value = (figure.value)(stats);
                let _ = writeln!(text, "{}{{{labels}}} {value}", figure.metric); // cannot fail
            }
        }
    }
    drive_families(&mut text, caches);
    let (name, help) = AMPLIFICATION;
    begin(&mut text, name, help, "gauge");
    for (cache, stats) in caches {
        let value = stats.flash.write_amplification().unwrap_or(0.0);
        let _ = writeln!(text, "{name}{{{}}} {value}", labels(&[("cache", *cache)], &[]));
    }
    let (name, help) = READ_TIMES;
    begin(&mut text, name, help, "histogram");
    for (cache, stats) in caches {
        let (times, cache) = (&stats.flash.read_times, labels(&[("cache", *cache)], &[]));
        let mut below = 0;
        for (bound_us, count) in times.buckets() {
            below += count;
            let bound = bound_us.map_or("+Inf".to_owned(), |us| (us as f64 / 1e6).to_string());
            let _ = writeln!(text, "{name}_bucket{{{cache},le=\"{bound}\"}} {below}");
        }
        let seconds = times.sum().as_secs_f64();
        let _ = writeln!(text, "{name}_sum{{{cache}}} {seconds}\n{name}_count{{{cache}}} {below}");
    }
    text
}

/// Writes the metrics of the drives of caches on several.
fn drive_families(text: &mut String, caches: &[(&str, &Stats)]) {
    let drives = |(cache, stats): &(&str, &Stats)| {
        let of = |(path, stats)| (cache.to_string(), path, stats);
        stats.by_drive().into_iter().map(of).collect::<Vec<_>>()
    };
    let drives: Vec<(String, String, Stats)> = caches.iter().flat_map(drives).collect();
    if drives.is_empty() {
        return;
    }
    for family in FIGURES.chunk_by(|one, next| one.metric == next.metric) {
        let figures: Vec<_> =
            family.iter().filter_map(|it| Some((it, it.drive_metric()?))).collect();
        let Some((first, metric)) = figures.first() else { continue };
        let help = format!("By drive: {}", first.help);
        let help = if figures.len() == 1 { &help } else { family_help(first.metric) };
        begin(text, metric, help, first.kind.name());
        for (cache, path, stats) in &drives {
            for (figure, metric) in &figures {
                let labels = labels(&[("cache", cache), ("drive", path)], figure.labels);
                let value = (figure.value)(stats);
                let _ = writeln!(text, "{metric}{{{labels}}} {value}"); // cannot fail
            }
        }
    }
}

fn begin(text: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Returns the labels of a sample, without braces.
fn labels(names: &[(&str, &str)], labels: &[(&str, &str)]) -> String {
    let escaped = |of: &str| of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    names.iter().chain(labels).map(label).collect::<Vec<_>>().join(",")
}

/// Returns the meaning of a metric with several figures.
fn family_help(metric: &str) -> &'static str {
    match metric {
        "floe_hybrid_hits_total" => "Lookups that found the object, by its place.",
        "floe_hybrid_insertions_total" => "Objects stored in memory, and written to flash.",
        "floe_hybrid_evictions_total" => "Objects that left memory or flash, by the cause.",
        "floe_hybrid_declined_total" => "Objects not written to flash, by the reason.",
        "floe_hybrid_read_errors_total" => "Reads of flash without a valid record, by the error.",
        "floe_hybrid_objects" => "Objects in the cache, by their place.",
        _ => "Figures of a hybrid cache.",
    }
}
