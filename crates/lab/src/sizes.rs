//! Cache sizes as users write them: counts, bytes with units, or shares of a trace's footprint.

use std::fmt;
use std::str::FromStr;

use floe_block::format_size;
use floe_server::config::Bytes;

/// A cache size: objects, bytes, or a share of the footprint such as `10%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// A number without a unit: objects where objects are counted, else bytes.
    Count(u64),
    /// A number of bytes, written with a unit.
    Bytes(u64),
    /// A share of the footprint in percent.
    Percent(f64),
}

impl CacheSize {
    /// Returns the size for a trace with this footprint in objects or bytes.
    pub fn of(self, footprint: u64) -> u64 {
        match self {
            Self::Count(size) | Self::Bytes(size) => size,
            Self::Percent(percent) => (footprint as f64 * percent / 100.0) as u64,
        }
    }

    /// Returns the number in a size, and the constructor of sizes of its kind.
    fn parts(self) -> (f64, fn(f64) -> Self) {
        match self {
            Self::Count(count) => (count as f64, |number| Self::Count(number as u64)),
            Self::Bytes(bytes) => (bytes as f64, |number| Self::Bytes(number as u64)),
            Self::Percent(percent) => (percent, Self::Percent),
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Bytes(bytes) => f.write_str(&format_size(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(Self::Percent(percent)),
                _ => Err(format!("`{text}` is not a share; write 10% or 0.5%")),
            };
        }
        match text.parse::<u64>() {
            Ok(count) if count > 0 => Ok(Self::Count(count)),
            _ => text.parse().map(|Bytes(bytes)| Self::Bytes(bytes)),
        }
    }
}

/// A list of sizes: `a,b,c`, each possibly a range `from..=to:step`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes(pub Vec<CacheSize>);

/// Largest number of sizes in a range, so that a mistyped step does not run for a week.
const SIZES_MAX: f64 = 10_000.0;

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.split_once("..=") {
                Some((from, rest)) => sizes.extend(range(part, from, rest)?),
                None => sizes.push(part.trim().parse()?),
            }
        }
        Ok(Self(sizes))
    }
}

fn range(text: &str, from: &str, rest: &str) -> Result<Vec<CacheSize>, String> {
    let (to, step) =
        rest.split_once(':').ok_or(format!("`{text}` has no step; write {text}:STEP"))?;
    let sizes: [CacheSize; 3] = [from.trim().parse()?, to.trim().parse()?, step.trim().parse()?];
    let [(from, make), (to, _), (step, _)] = sizes.map(CacheSize::parts);
    if sizes.iter().any(|size| std::mem::discriminant(size) != std::mem::discriminant(&sizes[0])) {
        return Err(format!("`{text}` mixes units; write all three as counts, bytes or shares"));
    }
    let steps = ((to - from) / step + 1e-9).floor();
    if !(0.0..SIZES_MAX).contains(&steps) {
        return Err(format!("`{text}` holds no size, or more than {SIZES_MAX}"));
    }
    Ok((0..=steps as u64).map(|at| make(from + at as f64 * step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_told_apart() {
        assert_eq!("64KiB".parse(), Ok(CacheSize::Bytes(65536)));
        assert_eq!("1000".parse(), Ok(CacheSize::Count(1000)));
        assert_eq!("2.5%".parse(), Ok(CacheSize::Percent(2.5)));
        assert_eq!(CacheSize::Percent(2.5).of(1 << 20), 26214);
        for text in ["64KiB", "1000", "2.5%", "10%"] {
            assert_eq!(text.parse::<CacheSize>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn ranges_hold_their_ends() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        let percent = [1.0, 3.0, 5.0].map(CacheSize::Percent).to_vec();
        assert_eq!(sizes("1%..=5%:2%"), Ok(percent));
        assert_eq!(sizes("10,20..=40:10").map(|sizes| sizes.len()), Ok(4));
        for wrong in ["1..=5", "1%..=5:1", "5..=1:1", "1..=5:0", "1..=1000000:1"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "0", "lots", "-1", "99999999999999999999", "0%", "-5%", "nan%", "%"] {
            assert!(text.parse::<CacheSize>().is_err(), "{text}");
        }
    }
}
