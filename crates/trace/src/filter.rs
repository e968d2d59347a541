//! Filters of a trace's requests by time, volume, operation and offset.
//!
//! A filter is written `time=1h..2h,volume=3,op=write,range=0..10GiB`. Volumes and operations may
//! be repeated: a request that matches any of them is kept. Ranges include their start but not
//! their end; either may be left out.

use std::ops::Range;
use std::str::FromStr;

use crate::request::{Op, Request};

/// Conditions on the requests of a trace that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    time_ns: Option<Range<u64>>,
    range: Option<Range<u64>>,
    volumes: Vec<u32>,
    ops: Vec<Op>,
}

/// The error of a text that is not a valid filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// No condition has this name.
    #[error("there is no {name:?} to filter by; there are time, volume, op and range")]
    Unknown {
        /// Name that was given.
        name: String,
    },
    /// The value of a condition is invalid.
    #[error("{name}: expected {expected}, found {found:?}")]
    Value {
        /// Name of the condition.
        name: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// A range is given more than once.
    #[error("{name} is given twice")]
    Twice {
        /// Name of the condition.
        name: &'static str,
    },
}

impl Filter {
    /// Returns the request if the filter keeps it, with its time counted from the start of the kept
    /// time range.
    #[inline]
    pub(crate) fn keep(&self, request: Request) -> Option<Request> {
        let time_ns = match &self.time_ns {
            Some(span) if span.contains(&request.time_ns) => request.time_ns - span.start,
            Some(_) => return None,
            None => request.time_ns,
        };
        let in_range = self.range.as_ref().is_none_or(|range| range.contains(&request.key));
        let of_volume = self.volumes.is_empty() || self.volumes.contains(&request.volume);
        let of_op = self.ops.is_empty() || self.ops.contains(&request.op);
        (in_range && of_volume && of_op).then_some(Request { time_ns, ..request })
    }

    /// Returns whether the filter uses volumes or offsets, which traces of keys do not have.
    pub(crate) fn needs_disks(&self) -> bool {
        self.range.is_some() || !self.volumes.is_empty()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), FilterError> {
        let wrong = |name, expected| FilterError::Value { name, expected, found: value.to_owned() };
        match name {
            "time" => {
                let span = span(value, nanoseconds).ok_or_else(|| wrong("time", TIMES))?;
                if self.time_ns.replace(span).is_some() {
                    return Err(FilterError::Twice { name: "time" });
                }
            }
            "range" => {
                let range = span(value, bytes).ok_or_else(|| wrong("range", PLACES))?;
                if self.range.replace(range).is_some() {
                    return Err(FilterError::Twice { name: "range" });
                }
            }
            "volume" => {
                let volume = value.parse().map_err(|_| wrong("volume", "a number"))?;
                self.volumes.push(volume);
            }
            "op" => self.ops.push(match value {
                "read" => Op::Read,
                "write" => Op::Write,
                "delete" => Op::Delete,
                _ => return Err(wrong("op", "read, write or delete")),
            }),
            _ => return Err(FilterError::Unknown { name: name.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = Self { time_ns: None, range: None, volumes: Vec::new(), ops: Vec::new() };
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            filter.set(name.trim(), value.trim())?;
        }
        Ok(filter)
    }
}

const TIMES: &str = "two times such as 90s..2h, with ns, us, ms, s, min, h or d";
const PLACES: &str = "two places in bytes such as 512KiB..10GiB";

/// Parses two numbers with `..` between them, the first below the second.
fn span(text: &str, number: impl Fn(&str) -> Option<u64>) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..")?;
    let start = if start.is_empty() { 0 } else { number(start.trim())? };
    let end = if end.is_empty() { u64::MAX } else { number(end.trim())? };
    (start < end && text != "..").then_some(start..end)
}

const TIME_UNITS_NS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("min", 60e9),
    ("s", 1e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

fn nanoseconds(text: &str) -> Option<u64> {
    scaled(text, &TIME_UNITS_NS)
}

const KIB: f64 = 1024.0;

/// Units of bytes. A single letter is a power of two, as in other sizes of Floe.
const BYTE_UNITS: [(&str, f64); 12] = [
    ("KiB", KIB),
    ("MiB", KIB * KIB),
    ("GiB", KIB * KIB * KIB),
    ("TiB", KIB * KIB * KIB * KIB),
    ("K", KIB),
    ("M", KIB * KIB),
    ("G", KIB * KIB * KIB),
    ("T", KIB * KIB * KIB * KIB),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
];

fn bytes(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| scaled(text, &BYTE_UNITS))
}

/// Parses a number with one of these units; 0 needs none.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let split =
        |&(suffix, unit): &(&str, f64)| text.strip_suffix(suffix).map(|number| (number, unit));
    let (number, unit) = units.iter().find_map(split)?;
    let number: f64 = number.trim_end().parse().ok()?;
    let scaled = number * unit;
    (number >= 0.0 && scaled < u64::MAX as f64).then_some(scaled.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Filter {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn request(time_ns: u64, key: u64, volume: u32, op: Op) -> Request {
        Request { time_ns, key, bytes: 4096, volume, op }
    }

    #[test]
    fn a_request_is_kept_if_all_conditions_hold() {
        let filter = filter("time=1.5s..2min, range=4KiB..1MiB,volume=3,volume=4,op=write");
        let kept = request(1_500_000_000, 4096, 3, Op::Write);
        assert_eq!(filter.keep(kept), Some(Request { time_ns: 0, ..kept }));
        let last = request(119_999_999_999, (1 << 20) - 1, 4, Op::Write);
        assert!(filter.keep(last).is_some());
        for dropped in [
            Request { time_ns: 1_499_999_999, ..kept },
            Request { time_ns: 120_000_000_000, ..kept },
            Request { key: 4095, ..kept },
            Request { key: 1 << 20, ..kept },
            Request { volume: 2, ..kept },
            Request { op: Op::Read, ..kept },
        ] {
            assert_eq!(filter.keep(dropped), None, "{dropped:?}");
        }
    }

    #[test]
    fn places_have_the_units_of_other_sizes() {
        assert_eq!(filter("range=1K..64M"), filter("range=1KiB..64MiB"));
        assert_eq!(filter("range=1kB..64MB"), filter("range=1000..64000000"));
    }

    #[test]
    fn an_open_range_has_no_end() {
        let late = request(u64::MAX - 1, 0, 0, Op::Delete);
        assert_eq!(filter("time=1h..").keep(late).map(|kept| kept.volume), Some(0));
        assert_eq!(filter("time=..1h").keep(late), None);
        assert_eq!(filter("op=read,op=delete").keep(late), Some(late));
    }

    #[test]
    fn malformed_filters_are_refused() {
        for wrong in [
            "",
            "time",
            "time=1h",
            "time=..",
            "time=2h..1h",
            "time=1..2",
            "time=-1s..2s",
            "time=nans..2s",
            "range=1h..2h",
            "range=5..5",
            "volume=-1",
            "volume=sda",
            "op=trim",
            "size=1..2",
            "op=read,",
            "time=1s..2s,time=3s..4s",
            "range=..1,range=5..",
        ] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
    }
}
