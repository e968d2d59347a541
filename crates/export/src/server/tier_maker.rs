//! Where tiers come from that are added to a running server: whoever began it makes them, in the
//! same way as those of the start.

use std::fmt;

use super::tier::Tier;
use super::volume::Volume;
use crate::admin::AllowedPaths;
use crate::kept::Consent;

/// A tier that is to be made for a running server.
#[derive(Debug, Clone)]
pub struct TierOrder {
    /// Its device and settings, as people write them.
    pub spec: String,
    /// What may be done to what is on its device.
    pub consent: Consent,
    /// Threads that serve: it needs as many parts.
    pub threads: usize,
    /// Bytes that what is above it holds.
    pub above_bytes: u64,
    /// Where files and devices may be that it names.
    pub paths: AllowedPaths,
    /// The volumes. It numbers them in this order, or says how it does.
    pub volumes: Vec<Volume>,
}

/// Makes tiers.
pub trait TierMaker: fmt::Debug + Send + Sync {
    /// Opens the tier's device and makes its parts, empty. It is called on a thread of its own, and
    /// may take its time.
    ///
    /// # Errors
    /// Why there can be no such tier.
    fn make(&self, order: &TierOrder) -> Result<Tier, TierRefused>;
}

/// Why there can be no such tier, in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierRefused {
    /// The line.
    pub problem: String,
    /// Something failed that may work another time, rather than being wrong.
    pub is_failure: bool,
}
