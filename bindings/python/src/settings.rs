//! Conversion of the arguments that describe a cache.

use std::time::Duration;

use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Converts a time in seconds, or a `timedelta`. Infinite times, and those too long for a
/// `Duration`, mean never.
///
/// # Errors
/// When the argument has another type or is not positive.
pub(crate) fn time(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = match given.extract::<f64>() {
        Ok(seconds) => seconds,
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
            if given.lt(0)? {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            }
        }
        Err(_) => {
            given.call_method0("total_seconds").and_then(|seconds| seconds.extract()).map_err(
                |_| PyTypeError::new_err(format!("{name} is a number of seconds or a timedelta")),
            )?
        }
    };
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(PyValueError::new_err(format!("{name} is more than 0 s, not {seconds}")));
    }
    // Less than a nanosecond is one.
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Ok(time.max(Duration::from_nanos(1)))
}

/// An optional argument for which omission differs from `None`.
#[derive(Debug, Clone)]
pub(crate) struct OrMissing<'py>(pub(crate) Option<Bound<'py, PyAny>>);

impl<'py> FromPyObject<'_, 'py> for OrMissing<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(object.to_owned())))
    }
}
