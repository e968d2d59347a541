//! Hit ratios on traces, counted in objects: one thread asks for every key in turn and inserts what
//! was missing.
//!
//! Every cache keeps its defaults, shards too, and starts empty. Sizes are shares of a trace's
//! distinct keys; those that come to fewer than `CAPACITY_MIN` entries are left out, since a dozen
//! entries over shards say nothing about a policy. A trace that asks for nothing twice is left out
//! as a whole.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use floe_trace::{DenseKeys, OpenOptions};
use serde_json::json;

use crate::subjects::{Cache, floe, foyer, lru, moka, quick_cache, tinyufo};

const CAPACITY_MIN: usize = 100;
const PERCENT: [usize; 3] = [1, 10, 30];
/// What misses are put in relation to.
const BASE: &str = "mutex-lru";

type Value = [u64; 1];
type Misses = fn(usize, &[u32]) -> usize;

/// What takes part on traces.
const CACHES: [(&str, Misses); 8] = [
    ("floe", misses::<floe::Floe<Value, floe::ByDefault>>),
    ("floe-qdlp", misses::<floe::Floe<Value, floe::OneHit>>),
    ("floe-s3-fifo", misses::<floe::Floe<Value, floe::TwoHits>>),
    ("quick_cache", misses::<quick_cache::Quick<Value>>),
    ("moka", misses::<moka::Moka<Value>>),
    ("foyer", misses::<foyer::Foyer<Value>>),
    ("tinyufo", misses::<tinyufo::Tiny<Value>>),
    (BASE, misses::<lru::MutexLru<Value>>),
];

fn misses<C: Cache>(capacity: usize, keys: &[u32]) -> usize {
    let cache = C::new(capacity);
    let missed = |key: &&u32| {
        let key = u64::from(**key);
        let missed = cache.get(key).is_none();
        if missed {
            cache.insert(key);
        }
        missed
    };
    keys.iter().filter(missed).count()
}

/// The names of all that can take part.
pub fn names() -> impl Iterator<Item = &'static str> {
    CACHES.iter().map(|(name, _)| *name)
}

/// What came of a trace at a size.
struct Cell {
    trace: String,
    percent: usize,
    capacity: usize,
    requests: usize,
    /// Of each cache, by name.
    misses: Vec<(&'static str, usize)>,
}

impl Cell {
    fn miss_ratios(&self) -> impl Iterator<Item = f64> {
        self.misses.iter().map(|&(_, misses)| misses as f64 / self.requests as f64)
    }

    fn to_base(&self) -> impl Iterator<Item = f64> {
        let (_, base) =
            self.misses.iter().find(|(name, _)| *name == BASE).expect("the base takes part");
        self.misses.iter().map(|&(_, misses)| misses as f64 / *base as f64)
    }

    fn print_json(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        for (((name, _), miss_ratio), to_base) in
            self.misses.iter().zip(self.miss_ratios()).zip(self.to_base())
        {
            let line = json!({
                "trace": self.trace,
                "size": format!("{}%", self.percent),
                "capacity": self.capacity,
                "requests": self.requests,
                "cache": name,
                "miss_ratio": miss_ratio,
                "base": BASE,
                "misses_to_base": to_base,
            });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

/// Counts misses of the chosen caches, all unless chosen, on all traces (files, or generators in
/// words) and prints them, as they come or as a table at the end.
pub fn run(sources: &[String], chosen: &[String], as_json: bool) -> Result<(), String> {
    let takes_part = |(name, _): &&(&str, Misses)| {
        *name == BASE || chosen.is_empty() || chosen.iter().any(|chosen| chosen == name)
    };
    let caches: Vec<_> = CACHES.iter().filter(takes_part).copied().collect();
    let printing = |error| format!("cannot print: {error}");
    let mut cells = Vec::new();
    for (name, source) in named(sources)? {
        let trace = DenseKeys::load(&source, &OpenOptions::default());
        let trace = match trace {
            Ok(trace) => trace,
            Err(error) if sources.is_empty() => {
                eprintln!("left out: {error}");
                continue;
            }
            Err(error) => return Err(error.to_string()),
        };
        let distinct = trace.distinct as usize;
        if trace.keys.len() == distinct {
            eprintln!("left out: {name} asks for nothing twice");
            continue;
        }
        for percent in PERCENT {
            let capacity = distinct * percent / 100;
            if capacity < CAPACITY_MIN {
                continue;
            }
            eprintln!("{name} at {percent}%: {capacity} of {distinct} keys");
            let misses = caches
                .iter()
                .map(|&(name, misses)| (name, misses(capacity, &trace.keys)))
                .collect();
            let cell =
                Cell { trace: name.clone(), percent, capacity, requests: trace.keys.len(), misses };
            if as_json {
                cell.print_json().map_err(printing)?;
            }
            cells.push(cell);
        }
    }
    if cells.is_empty() {
        return Err(format!("no trace has room for a cache of {CAPACITY_MIN} entries"));
    }
    if as_json { Ok(()) } else { print_table(&cells).map_err(printing) }
}

/// Names and places of traces: those given, or all in the folder that FLOE_TRACES names, by name.
fn named(sources: &[String]) -> Result<BTreeMap<String, String>, String> {
    let name = |path: &PathBuf| {
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into())
    };
    if !sources.is_empty() {
        let short = |source: &String| {
            let path = PathBuf::from(source);
            if path.exists() { name(&path) } else { source.clone() }
        };
        return Ok(sources.iter().map(|source| (short(source), source.clone())).collect());
    }
    let folder = std::env::var_os("FLOE_TRACES")
        .ok_or("FLOE_TRACES names no folder, and no trace is given")?;
    let reading = |error| format!("cannot read {}: {error}", PathBuf::from(&folder).display());
    let files = std::fs::read_dir(&folder).map_err(reading)?;
    files
        .map(|file| {
            let path = file.map_err(reading)?.path();
            Ok((name(&path), path.to_string_lossy().into_owned()))
        })
        .collect()
}

fn print_table(cells: &[Cell]) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
        table.set_style(line, '─');
    }
    table.set_header(
        ["trace", "size"].into_iter().chain(cells[0].misses.iter().map(|&(name, _)| name)),
    );
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let row = |name: &str, size: String, values: Vec<String>| {
        [name.to_owned(), size].into_iter().chain(values)
    };
    for cell in cells {
        let ratios = cell.miss_ratios().map(|ratio| format!("{ratio:.4}")).collect();
        table.add_row(row(&cell.trace, format!("{}%", cell.percent), ratios));
    }
    let caches = cells[0].misses.len();
    let (mut logarithms, mut fewest) = (vec![0.0; caches], vec![0; caches]);
    for cell in cells {
        let least = cell.misses.iter().map(|&(_, misses)| misses).min().expect("caches take part");
        for (at, to_base) in cell.to_base().enumerate() {
            logarithms[at] += to_base.ln();
            fewest[at] += usize::from(cell.misses[at].1 == least);
        }
    }
    let mean = |sum: &f64| format!("{:.4}", (sum / cells.len() as f64).exp());
    table.add_row(row(
        &format!("geometric mean to {BASE}"),
        String::new(),
        logarithms.iter().map(mean).collect(),
    ));
    table.add_row(row(
        &format!("fewest misses, of {} times", cells.len()),
        String::new(),
        fewest.iter().map(ToString::to_string).collect(),
    ));
    writeln!(std::io::stdout(), "{table}")
}
