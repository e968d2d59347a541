//! What was measured, as a table for people or a line of JSON for each cache.

use std::io::Write;

use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde_json::{Value, json};

use crate::latency::{PERCENTILES, timer_ns};
use crate::measure::{Median, Turn};
use crate::roster::Kind;
use crate::workload::Row;

/// One cache in one row.
pub struct Measured {
    pub name: &'static str,
    pub kind: Kind,
    pub capacity: usize,
    /// In each round, of the same requests for all, on one thread.
    pub hit_ratios: Vec<f64>,
    /// In each round, of a cache built for it, with a hash seed of its own.
    pub turns: Vec<Turn>,
}

impl Measured {
    fn hit_ratio(&self) -> f64 {
        Median::of(self.hit_ratios.iter().copied()).middle
    }

    fn cpu_ns(&self) -> Median {
        Median::of(self.turns.iter().map(Turn::cpu_ns))
    }

    /// Percentiles of single requests without the timer, in all and as multiples of another's; none
    /// where they were not timed.
    fn latencies(&self, base: &Measured) -> Option<Value> {
        if self.turns.iter().any(|turn| turn.latencies.is_empty()) {
            return None;
        }
        let mut all = json!({ "timer": timer_ns() });
        for (name, share) in PERCENTILES {
            let cost = |turn: &Turn| turn.latencies.percentile_ns(share);
            all[name] = ratio(Median::of(self.turns.iter().map(cost)));
            all[format!("{name}_to_base")] = ratio(self.times(base, cost));
        }
        Some(all)
    }

    /// How many times as long it takes as another one, round by round.
    fn times(&self, other: &Measured, cost: impl Fn(&Turn) -> f64) -> Median {
        Median::of(self.turns.iter().zip(&other.turns).map(|(own, other)| cost(own) / cost(other)))
    }
}

/// A row with everyone who took part.
pub struct Outcome<'a> {
    pub row: Row,
    pub caches: Vec<Measured>,
    /// Whom the others are compared with.
    pub base: &'a str,
}

impl Outcome<'_> {
    /// The one that was asked for where it takes part, else the first.
    fn base(&self) -> &Measured {
        self.caches.iter().find(|cache| cache.name == self.base).unwrap_or(&self.caches[0])
    }

    /// The faster one.
    fn floor(&self) -> Option<&Measured> {
        let floors = self.caches.iter().filter(|cache| cache.kind == Kind::Floor);
        floors.min_by(|a, b| a.cpu_ns().middle.total_cmp(&b.cpu_ns().middle))
    }

    /// Whether threads that had a core each waited even where nothing makes them: then other work
    /// took the cores, and they met each other less than they should have.
    pub fn was_disturbed(&self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let waiting = |cache: &Measured| {
            Median::of(cache.turns.iter().map(|turn| turn.wall_ns() / turn.cpu_ns()))
        };
        self.row.threads <= cores && self.caches.iter().all(|cache| waiting(cache).middle > 1.1)
    }

    pub fn print_json(&self) -> std::io::Result<()> {
        let (base, floor, load) = (self.base(), self.floor(), &self.row.load);
        let mut out = std::io::stdout().lock();
        for cache in &self.caches {
            let middle = |cost: fn(&Turn) -> f64| Median::of(cache.turns.iter().map(cost)).middle;
            let line = json!({
                "row": self.row.name(),
                "load": load.name,
                "keys": load.keys,
                "value_bytes": load.value_bytes,
                "ops": self.row.ops.name(),
                "threads": self.row.threads,
                "cache": cache.name,
                "capacity": cache.capacity,
                "rounds": cache.turns.len(),
                "hash_seeds": cache.turns.len(),
                "cpu_ns": ratio(cache.cpu_ns()),
                "wall_ns": middle(Turn::wall_ns),
                "requests_per_second": middle(Turn::requests_per_second),
                "hit_ratio": cache.hit_ratio(),
                "base": base.name,
                "cpu_to_base": ratio(cache.times(base, Turn::cpu_ns)),
                "wall_to_base": ratio(cache.times(base, Turn::wall_ns)),
                "floor": floor.map(|floor| floor.name),
                "cpu_ns_by_round": cache.turns.iter().map(Turn::cpu_ns).collect::<Vec<_>>(),
                "latency_ns": cache.latencies(base),
                "cpu_to_floor": floor.map(|floor| ratio(cache.times(floor, Turn::cpu_ns))),
            });
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    pub fn print_table(&self) -> std::io::Result<()> {
        let (base, floor) = (self.base(), self.floor());
        let to_base = format!("× {}", base.name);
        let to_floor = floor.map_or("× floor".into(), |floor| format!("× {}", floor.name));
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
            table.set_style(line, '─');
        }
        let mut heads = vec!["cache", "CPU ns", "wall ns", "M/s", "hit ratio", &to_base, &to_floor];
        if self.row.is_timed() {
            heads.extend(PERCENTILES.map(|(name, _)| name));
        }
        table.set_header(heads);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for cache in &self.caches {
            let middle = |cost: fn(&Turn) -> f64| Median::of(cache.turns.iter().map(cost)).middle;
            let mut cells = vec![
                cache.name.to_owned(),
                format!("{:.1}", cache.cpu_ns().middle),
                format!("{:.1}", middle(Turn::wall_ns)),
                format!("{:.2}", middle(Turn::requests_per_second) / 1e6),
                format!("{:.4}", cache.hit_ratio()),
                text(cache.times(base, Turn::cpu_ns)),
                floor.map_or("–".into(), |floor| text(cache.times(floor, Turn::cpu_ns))),
            ];
            if self.row.is_timed() {
                let of = |share| {
                    let each = cache.turns.iter().map(|turn| turn.latencies.percentile_ns(share));
                    format!("{:.0} ns", Median::of(each).middle)
                };
                cells.extend(PERCENTILES.map(|(_, share)| of(share)));
            }
            table.add_row(cells);
        }
        writeln!(std::io::stdout(), "{}\n{table}\n", self.row.name())
    }
}

fn ratio(median: Median) -> Value {
    json!({ "median": median.middle, "low": median.low, "high": median.high })
}

fn text(median: Median) -> String {
    format!("{:.2} ({:.2}–{:.2})", median.middle, median.low, median.high)
}
