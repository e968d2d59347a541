//! Checks of the numbers that models are made of.

use crate::ModelError;

/// Refuses a share that is not from 0 to 1.
pub(crate) fn share(what: &'static str, share: f64) -> Result<(), ModelError> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(ModelError::Share { what, share }) }
}

/// Refuses a time that is negative or no number.
pub(crate) fn time(what: &'static str, us: f64) -> Result<(), ModelError> {
    if us >= 0.0 && us.is_finite() { Ok(()) } else { Err(ModelError::Time { what, us }) }
}
