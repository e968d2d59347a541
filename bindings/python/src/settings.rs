//! Arguments that describe a cache.

use std::time::Duration;

use pyo3::Borrowed;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Reads a time, in seconds or as `timedelta`.
///
/// # Errors
/// When it is neither, or not positive.
pub(crate) fn time(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = match given.extract() {
        Ok(seconds) => seconds,
        Err(_) => {
            given.call_method0("total_seconds").and_then(|seconds| seconds.extract()).map_err(
                |_| PyTypeError::new_err(format!("{name} is a number of seconds or a timedelta")),
            )?
        }
    };
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| PyValueError::new_err(format!("{name} is more than 0 s, not {seconds}")))
}

/// An argument that may be missing, which is not the same as `None`.
#[derive(Debug, Clone)]
pub(crate) struct OrMissing<'py>(pub(crate) Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'_, 'py> for OrMissing<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(object.to_owned())))
    }
}
