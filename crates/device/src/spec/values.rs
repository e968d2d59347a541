//! Sizes and times in a device's text.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;

use super::error::SpecError;

/// Reads a size in bytes: `4096`, `64KiB`, `1.5GiB`.
///
/// A letter alone is a power of two, as dd, fio and qemu have it: `64M` is `64MiB`. `64MB` is
/// 64,000,000 bytes. `None` for other texts, and for sizes of 2⁶⁴ − 1 bytes and more.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_prefix = |letter: &char| "kmgtpe".contains(letter.to_ascii_lowercase());
    let size = match text.chars().next_back().filter(is_prefix) {
        Some(_) => format!("{text}iB").parse(),
        None => text.parse(),
    };
    // The parser turns a value that is too large into the largest size without an error.
    size.ok().map(|ByteSize(bytes)| bytes).filter(|&bytes| bytes < u64::MAX)
}

pub(super) fn parse_size(spec: &str, text: &str, unit: u64) -> Result<u64, SpecError> {
    let too_large = |text: &str| text.parse::<ByteSize>().is_ok();
    let size = match parse_bytes(text) {
        Some(size) => size,
        None if too_large(text) => u64::MAX,
        None => return Err(SpecError::Size { spec: spec.to_owned(), size: text.to_owned() }),
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_a_power_of_two_and_a_unit_is_what_it_says() {
        let mebibytes = [("64M", 64), ("64m", 64), ("64MiB", 64), ("64 MiB", 64), ("1.5G", 1536)];
        for (text, size) in mebibytes {
            assert_eq!(parse_bytes(text), Some(size << 20), "{text}");
        }
        for (text, size) in [("4096", 4096), ("64MB", 64_000_000), ("4k", 4096), ("2kB", 2000)] {
            assert_eq!(parse_bytes(text), Some(size), "{text}");
        }
        for text in ["", "M", "64X", "64MM", "-1", "64Mi B", "16E", "99999999999999999999"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
