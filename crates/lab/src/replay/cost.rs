//! The price of the tiers of a replay, and the performance per price.
//!
//! A price is that of a byte beside a byte of DRAM, so a cost is so many GiB of DRAM, and setups of
//! any media can be compared by what they do for the money ("Writes Hurt", the NVCache paper,
//! section 6). Volumes are not counted: they are the same in each.

use serde::Serialize;

/// The price of the cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CostOutcome {
    /// The price of a byte of each tier, from the top, in bytes of DRAM.
    pub prices: Vec<f64>,
    /// The price of all tiers, in GiB of DRAM.
    pub gib: f64,
    /// Requests a second for each of these; none where no time passed.
    pub requests_per_second_per_gib: Option<f64>,
}

impl CostOutcome {
    /// The cost of tiers of these sizes at these prices, from the top.
    ///
    /// # Panics
    /// When there are not as many prices as tiers.
    pub(super) fn of(sizes: &[u64], requests_per_second: Option<f64>, prices: Vec<f64>) -> Self {
        assert_eq!(sizes.len(), prices.len(), "each tier has a price");
        let bytes: f64 =
            sizes.iter().zip(&prices).map(|(bytes, price)| *bytes as f64 * price).sum();
        let gib = bytes / (1u64 << 30) as f64;
        Self {
            prices,
            gib,
            requests_per_second_per_gib: requests_per_second.map(|rate| rate / gib),
        }
    }
}
