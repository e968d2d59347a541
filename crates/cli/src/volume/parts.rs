//! Parts of a volume, and requests to a server that handle them one by one.

use std::ops::Range;
use std::str::FromStr;

use floe_server::admin::VolumePart;
use floe_server::admin::client::{self, AdminError, Endpoint};
use floe_server::config::Bytes;
use floe_server::status::TierStatus;

use crate::error::CliError;
use crate::output;

/// A part of a volume, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ByteRange(Range<u64>);

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (start, end) =
            text.split_once("..").ok_or("a range is START..END, such as 0..10GiB")?;
        let start = if start == "0" { 0 } else { start.parse::<Bytes>()?.0 };
        let end = end.parse::<Bytes>()?.0;
        if start >= end {
            return Err(format!("{text} is empty"));
        }
        Ok(Self(start..end))
    }
}

/// Returns the size of a volume of the server.
pub(super) fn volume_bytes(server: &Endpoint, name: &str) -> Result<u64, CliError> {
    let volumes = client::volumes(server)?;
    let volume = volumes.into_iter().find(|volume| volume.name == name);
    let missing = || CliError::usage(format!("the server has no volume {name:?}"));
    volume.map(|volume| volume.bytes).ok_or_else(missing)
}

/// Returns the given ranges of the volume `name` of `end` bytes, or all of it if there are none.
pub(super) fn ranges(
    given: &[ByteRange],
    name: &str,
    end: u64,
) -> Result<Vec<Range<u64>>, CliError> {
    if let Some(ByteRange(range)) = given.iter().find(|ByteRange(range)| range.end > end) {
        return Err(CliError::usage(format!(
            "the range {}..{} exceeds the volume: {name} ends at {end} bytes",
            range.start, range.end
        )));
    }
    Ok(match given {
        [] => std::iter::once(0..end).collect(),
        _ => given.iter().map(|ByteRange(range)| range.clone()).collect(),
    })
}

/// Calls `act` for parts of at most `most` bytes, with a progress bar; returns the bytes of all.
pub(super) fn in_parts(
    parts: Vec<Range<u64>>,
    most: u64,
    label: &'static str,
    act: impl Fn(VolumePart) -> Result<(), AdminError>,
) -> Result<u64, CliError> {
    let all = parts.iter().map(|part| part.end - part.start).sum();
    let bar = output::progress(all, label);
    for part in parts {
        for offset in part.clone().step_by(most as usize) {
            let bytes = (part.end - offset).min(most);
            act(VolumePart { offset, bytes })?;
            bar.inc(bytes);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Returns the count that each tier of a server has; `None` if the server does not answer, or is of
/// an earlier version, which does not count.
pub(super) fn counted(
    server: &Endpoint,
    of: impl Fn(&TierStatus) -> Option<u64>,
) -> Option<Vec<(String, u64)>> {
    let tiers = client::tiers(server).ok()?;
    tiers.iter().map(|tier| Some((tier.name.clone(), of(tier)?))).collect()
}

/// Returns by how much the counts of all tiers have grown; `None` if they are unknown, or the tiers
/// have changed.
pub(super) fn since(
    before: Option<Vec<(String, u64)>>,
    now: Option<Vec<(String, u64)>>,
) -> Option<u64> {
    let (before, now) = (before?, now?);
    let is_same = before.len() == now.len() && before.iter().zip(&now).all(|(a, b)| a.0 == b.0);
    let grown = now.iter().zip(&before).map(|(now, before)| now.1.checked_sub(before.1));
    if is_same { grown.sum() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_a_start_and_an_end_after_it() {
        assert_eq!("0..10KiB".parse(), Ok(ByteRange(0..10 << 10)));
        for wrong in ["", "5", "5..", "..5", "5..5", "6..5", "a..b"] {
            assert!(wrong.parse::<ByteRange>().is_err(), "{wrong}");
        }
    }
}
