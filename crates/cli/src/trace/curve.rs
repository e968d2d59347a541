//! The miss ratios of LRU in `floe trace info`.

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
    /// A point for each size, in the order of the sizes.
    lru_miss_ratios: Vec<LruPoint>,
    #[serde(skip)]
    kind: Kind,
    #[serde(skip)]
    touches: u64,
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
        Self {
            lru_sample: curve.sampled_share(),
            lru_miss_ratios: points.collect(),
            kind,
            touches: curve.touches(),
        }
    }

    /// Returns the names and values of a table's rows.
    pub(super) fn rows(&self, sizes: &Sizes) -> impl Iterator<Item = (String, String)> {
        let row = |(size, point): (&CacheSize, &LruPoint)| {
            let count = match self.kind {
                Kind::Block => output::bytes(point.size * BLOCK_BYTES),
                Kind::Object | Kind::Key => point.size.to_string(),
            };
            let error = match point.miss_ratio_ci95 {
                0.0 => String::new(),
                error => format!(" ± {error:.4}"),
            };
            let ratio = match self.touches {
                0 => "–".to_owned(),
                _ => format!("{count}: {:.4}{error}", point.miss_ratio),
            };
            (format!("LRU of {size}"), ratio)
        };
        sizes.0.iter().zip(&self.lru_miss_ratios).map(row)
    }
}
