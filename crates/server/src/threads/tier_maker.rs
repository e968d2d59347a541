//! Makes the tiers that are added to a running server, in the same way as those of the start.

use std::fmt;

use super::tier::Tier;
use crate::admin::AllowedPaths;
use crate::kept::Consent;
use crate::volume::Volume;

/// A tier that is to be made for a running server.
#[derive(Debug, Clone)]
pub struct TierOrder {
    /// Its device and settings, as users write them.
    pub spec: String,
    /// The user's permissions to lose or overwrite data on its device.
    pub consent: Consent,
    /// Number of worker threads: it needs as many parts.
    pub threads: usize,
    /// Bytes that the tiers above it hold.
    pub above_bytes: u64,
    /// The limit on files and devices that it may name.
    pub paths: AllowedPaths,
    /// The volumes. The tier numbers them in this order, or returns its own numbers.
    pub volumes: Vec<Volume>,
}

/// Makes tiers.
pub trait TierMaker: fmt::Debug + Send + Sync {
    /// Opens the tier's device and makes its parts, empty. The server calls it on a separate
    /// thread, so that it may take long.
    ///
    /// # Errors
    /// The reason for which there can be no such tier.
    fn make(&self, order: &TierOrder) -> Result<Tier, TierRefused>;
}

/// The reason for which a tier cannot be made, in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRefused {
    /// The line.
    pub problem: String,
    /// The cause is a failure, so that a retry may succeed, and not a wrong setting.
    pub is_failure: bool,
}
