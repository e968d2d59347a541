//! Sizes and times in a device's text.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;

use super::error::SpecError;

pub(super) fn parse_size(spec: &str, text: &str, unit: u64) -> Result<u64, SpecError> {
    let ByteSize(size) = text
        .parse()
        .map_err(|_| SpecError::Size { spec: spec.to_owned(), size: text.to_owned() })?;
    // Fractions and overflow are cut off without a word by the parser; the largest size stands for
    // overflow.
    if size == 0 || size == u64::MAX || !size.is_multiple_of(unit) {
        return Err(SpecError::SizeUnit { spec: spec.to_owned(), size, unit });
    }
    Ok(size)
}

pub(super) fn parse_time(spec: &str, text: &str) -> Result<Duration, SpecError> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(SpecError::Time { spec: spec.to_owned(), time: text.to_owned() }),
    }
}

/// Parses a number of operations a second.
pub(super) fn parse_iops(spec: &str, text: &str) -> Result<u64, SpecError> {
    match text.parse() {
        Ok(iops) if iops > 0 => Ok(iops),
        _ => Err(SpecError::Iops { spec: spec.to_owned(), found: text.to_owned() }),
    }
}

/// A size in the largest unit that expresses it exactly.
pub(super) struct Exact(pub(super) u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

pub(super) fn write_timeout(f: &mut fmt::Formatter<'_>, timeout: Option<Duration>) -> fmt::Result {
    let timeout = timeout.map(humantime::format_duration);
    timeout.map_or(Ok(()), |timeout| write!(f, ",timeout={}", timeout.to_string().replace(' ', "")))
}
