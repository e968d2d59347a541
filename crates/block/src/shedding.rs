//! The search for the share of the hits that should go past the cache device
//! ([`BlockCache::shed`](crate::BlockCache::shed)).

use std::time::Duration;

use floe_policy::shedding::SheddingOptions;
use floe_policy::trial::TrialOptions;

/// Returns the options of trials for devices, with at most this share of the hits shed, above 0 and
/// not above 1. Windows are long enough for a disk to answer the requests from before them, and for
/// enough requests of a slow disk.
///
/// ```
/// let shedder = floe_block::Shedder::new(floe_block::shedding_options(0.5));
/// assert_eq!(shedder.share(), 0.0);
/// ```
pub fn shedding_options(most: f64) -> SheddingOptions {
    let default = SheddingOptions::default();
    let (window, settle) = (Duration::from_millis(50), Duration::from_millis(20));
    SheddingOptions {
        step: default.step.min(most), // or less than a step would be nothing
        max: most,
        trial: TrialOptions { window, settle, ..default.trial },
    }
}
