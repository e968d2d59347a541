//! `floe volume warm`: brings parts of a volume into the cache of a running server, before anybody
//! reads them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use clap::Args;
use floe_server::admin::{VolumePart, client};
use floe_server::config::Bytes;
use floe_trace::Op;
use serde::Serialize;

use crate::admin::Answer;
use crate::error::CliError;
use crate::output;
use crate::trace::{TraceArguments, read_all};
use crate::volume::parts::{ByteRange, counted, in_parts, ranges, since, volume_bytes};

const EXAMPLES: &str = "\
Examples:
  floe volume warm pictures
  floe volume warm pictures --range 0..10GiB --range 1TiB..1100GiB
  floe volume warm pictures --from-trace yesterday.vscsi.zst --up-to 200GiB";

const NOTES: &str = "\
The server reads the parts from the volume as fast as it can and keeps them, whatever the admission
says. It does not read what the cache has. Clients go on meanwhile. What does not fit evicts what
was there, as reads would. The bytes read are in whole blocks, and of all warm-ups meanwhile.

A trace shows what to bring in: the parts of 1 MiB that it reads most often, up to the size of the
cache.";

/// Bytes of the parts whose requests in a trace are counted.
const PART_BYTES: u64 = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = format!("{NOTES}\n\n{EXAMPLES}"))]
pub(crate) struct Warm {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: String,
    /// The part to bring in; may be repeated [default: all of the volume]
    #[arg(long, value_name = "START..END", conflicts_with_all = ["from_trace", "up_to"])]
    range: Vec<ByteRange>,
    /// A trace of the volume's requests, which shows the parts to bring in
    #[arg(long, value_name = "FILE")]
    from_trace: Option<String>,
    /// Bring in so much of what a trace reads, at most [default: the size of the cache]
    #[arg(long, value_name = "SIZE", requires = "from_trace")]
    up_to: Option<Bytes>,
    #[command(flatten)]
    open: TraceArguments,
    #[command(flatten)]
    answer: Answer,
}

/// The result of a warm-up.
#[derive(Serialize)]
struct Warmed<'a> {
    volume: &'a str,
    /// Bytes of the parts that were brought in or were cached before.
    bytes: u64,
    /// Bytes that were read into the cache from below it, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    seconds: f64,
}

impl Warm {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if self.from_trace.is_none() && self.open.is_told() {
            return Err(CliError::usage("the options of traces need --from-trace"));
        }
        let server = self.answer.endpoint()?;
        let end = volume_bytes(&server, &self.name)?;
        let parts = match &self.from_trace {
            Some(trace) => {
                let room = match self.up_to {
                    Some(Bytes(bytes)) => bytes,
                    None => client::tiers(&server)?.iter().map(|tier| tier.size_bytes).sum(),
                };
                self.most_read(trace, room, end)?
            }
            None => ranges(&self.range, &self.name, end)?,
        };
        let (begun, before) = (Instant::now(), counted(&server, |tier| tier.warmed_bytes));
        let bytes = in_parts(parts, VolumePart::WARM_BYTES_MAX, "warming", |part| {
            client::warm_volume(&server, &self.name, part)
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let read_bytes = since(before, counted(&server, |tier| tier.warmed_bytes));
        let read = read_bytes.map(|read| format!(": {} read into the cache", output::bytes(read)));
        let warmed = Warmed { volume: &self.name, bytes, read_bytes, seconds };
        let line =
            format!("warmed {} of {}{}", output::bytes(bytes), self.name, read.unwrap_or_default());
        self.answer.print(&warmed, &line)
    }

    /// Returns the parts of the volume that a trace reads most often, in the order of the volume,
    /// up to `room` bytes.
    fn most_read(&self, file: &str, room: u64, end: u64) -> Result<Vec<Range<u64>>, CliError> {
        let mut trace = self.open.open_disk(file, "--from-trace")?;
        let (mut reads, mut disk) = (BTreeMap::<u64, u64>::new(), None);
        read_all(file, &mut trace, "reading", |request| {
            if *disk.get_or_insert(request.volume) != request.volume {
                return Err(CliError::usage(format!(
                    "{file} has requests to several disks; keep one with --filter volume=N"
                )));
            }
            if request.op == Op::Read && request.bytes > 0 && request.key < end {
                let last = (request.key.saturating_add(request.bytes).min(end) - 1) / PART_BYTES;
                (request.key / PART_BYTES..=last).for_each(|part| {
                    *reads.entry(part).or_default() += 1;
                });
            }
            Ok(())
        })?;
        if reads.is_empty() {
            return Err(CliError::usage(format!("{file} reads nothing of {}", self.name)));
        }
        Ok(most_read(reads, room, end))
    }
}

/// Returns the parts with the most reads, joined with their neighbours and in order, up to `room`
/// bytes.
fn most_read(reads: BTreeMap<u64, u64>, room: u64, end: u64) -> Vec<Range<u64>> {
    let mut by_reads: Vec<(u64, u64)> = reads.into_iter().collect();
    by_reads.sort_by_key(|&(part, reads)| (std::cmp::Reverse(reads), part));
    by_reads.truncate((room / PART_BYTES) as usize);
    by_reads.sort_unstable();
    let mut parts: Vec<Range<u64>> = Vec::new();
    for (part, _) in by_reads {
        let range = part * PART_BYTES..((part + 1) * PART_BYTES).min(end);
        match parts.last_mut() {
            Some(before) if before.end == range.start => before.end = range.end,
            _ => parts.push(range),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_with_the_most_reads_come_in_order_and_joined() {
        let reads = BTreeMap::from([(0, 1), (3, 5), (4, 2), (9, 7), (10, 1)]);
        let most = |parts: u64, end| most_read(reads.clone(), parts * PART_BYTES, end);
        let of = |range: Range<u64>| range.start * PART_BYTES..range.end * PART_BYTES;
        let end = 11 * PART_BYTES;
        assert_eq!(most(0, end), []);
        assert_eq!(most(3, end), [of(3..5), of(9..10)]);
        // Of parts that are read alike the first comes in.
        assert_eq!(most(4, end), [of(0..1), of(3..5), of(9..10)]);
        let whole = most(99, end - 5);
        assert_eq!(whole, [of(0..1), of(3..5), 9 * PART_BYTES..end - 5]);
    }
}
