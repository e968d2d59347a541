//! The miss ratios of LRU in `floe trace info`.

use comfy_table::Table;
use floe_trace::{Info, Kind, LruCurve, LruPoint};
use serde::Serialize;

use crate::error::CliError;
use crate::output;
use crate::size::{CacheSize, Sizes};

/// Bytes in a block of a trace of disk I/O.
const BLOCK_BYTES: u64 = 4096;

/// The miss ratios of LRU in JSON.
#[derive(Serialize)]
pub(super) struct Curve {
    /// Share of keys whose reuse was measured: 1 if all.
    lru_sample: f64,
    /// A point for each size.
    lru_miss_ratios: Vec<LruPoint>,
    #[serde(skip)]
    kind: Kind,
}

/// Refuses sizes that a trace of this kind does not have.
pub(super) fn check(sizes: &Sizes, file: &str, kind: Kind) -> Result<(), CliError> {
    let in_bytes = sizes.0.iter().any(|size| matches!(size, CacheSize::Bytes(_)));
    if in_bytes && kind != Kind::Block {
        return Err(CliError::usage(format!(
            "{file}: miss ratios by bytes are for disk I/O; give --size as a count or a share"
        )));
    }
    Ok(())
}

impl Curve {
    pub(super) fn of(curve: &LruCurve, sizes: &Sizes, kind: Kind, info: &Info) -> Self {
        let size = |size: &CacheSize| match size {
            CacheSize::Bytes(bytes) => bytes / BLOCK_BYTES,
            size => size.of(info.unique),
        };
        let points = sizes.0.iter().map(|wanted| curve.at(size(wanted).max(1)));
        let mut lru_miss_ratios: Vec<LruPoint> = points.collect();
        lru_miss_ratios.sort_by_key(|point| point.size);
        lru_miss_ratios.dedup_by_key(|point| point.size);
        if curve.touches() == 0 {
            lru_miss_ratios.clear();
        }
        Self { lru_sample: curve.sampled_share(), lru_miss_ratios, kind }
    }

    /// Adds the points of a trace to a table of all.
    pub(super) fn add_to(&self, table: &mut Table, info: &Info) {
        for (point, row) in self.lru_miss_ratios.iter().zip(0..) {
            let size = match self.kind {
                Kind::Block => output::bytes(point.size * BLOCK_BYTES),
                Kind::Object | Kind::Key => point.size.to_string(),
            };
            let share = point.size as f64 / info.unique.max(1) as f64;
            let error = match point.miss_ratio_ci95 {
                0.0 => String::new(),
                error => format!(" ± {error:.4}"),
            };
            table.add_row([
                if row == 0 { info.trace.clone() } else { String::new() },
                size,
                output::percent(share),
                format!("{:.4}{error}", point.miss_ratio),
            ]);
        }
    }
}

/// Makes the table for the points of all traces.
pub(super) fn table() -> Table {
    output::table(&["trace", "LRU cache", "of footprint", "miss ratio"], 1)
}
