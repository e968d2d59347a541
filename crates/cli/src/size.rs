//! Sizes on the command line: bytes with units, or a share of a trace's footprint.

use std::str::FromStr;

use bytesize::ByteSize;

/// A size in bytes, such as `4096`, `64KiB` or `10GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The parser turns what is too large into the largest size without a word.
        match text.parse::<ByteSize>() {
            Ok(ByteSize(bytes)) if bytes > 0 && bytes < u64::MAX => Ok(Self(bytes)),
            _ => Err(format!("`{text}` is not a size; write 4096, 64KiB or 10GiB")),
        }
    }
}

/// A size, or a share of the footprint such as `10%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CacheSize {
    Bytes(u64),
    Percent(f64),
}

impl CacheSize {
    /// The size in bytes for a trace that touches this many.
    pub(crate) fn of_footprint(self, footprint_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (footprint_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(|Bytes(bytes)| Self::Bytes(bytes));
        };
        match percent.parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(Self::Percent(percent)),
            _ => Err(format!("`{text}` is not a share; write 10% or 0.5%")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_told_apart() {
        assert_eq!("64KiB".parse(), Ok(CacheSize::Bytes(65536)));
        assert_eq!("2.5%".parse(), Ok(CacheSize::Percent(2.5)));
        assert_eq!(CacheSize::Percent(2.5).of_footprint(1 << 20), 26214);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "0", "lots", "-1", "99999999999999999999", "0%", "-5%", "nan%", "%"] {
            assert!(text.parse::<CacheSize>().is_err(), "{text}");
        }
    }
}
