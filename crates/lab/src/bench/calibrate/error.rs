//! Reasons for which nothing can be calibrated.

use floe_memory::BuildError;
use floe_model::ModelError;
use floe_policy::registry::ChoiceError;

use super::KEYS_MIN;
use crate::bench::load::LoadError;
use crate::simulate::stream::StreamError;

/// Why nothing can be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The model has no such policy, or it is too different from the cache's.
    #[error("{policy} cannot be calibrated for floe model; there are: {known}")]
    Policy {
        /// Its name.
        policy: String,
        /// The known names.
        known: String,
    },
    /// Too few keys.
    #[error("calibration takes a load of at least {KEYS_MIN} keys; this one has {keys}")]
    Keys {
        /// The number of distinct keys.
        keys: usize,
    },
    /// A name that should be right is not.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// No cache can be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// No circle of keys can be made.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Nor a load of it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A run did nothing.
    #[error("{policy}: nothing was done in one of the runs; a larger --seconds leaves time for it")]
    Nothing {
        /// The policy.
        policy: String,
    },
    /// The measured times make no model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Requests that should all hit, or all miss, did not.
    #[error("{policy}: {share:.4} of the requests hit where {wanted} should; more --keys may help")]
    Impure {
        /// The policy.
        policy: String,
        /// The share of requests that hit.
        share: f64,
        /// The share of requests that should have hit.
        wanted: f64,
    },
}
