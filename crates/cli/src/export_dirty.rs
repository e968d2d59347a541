//! `floe export-dirty`: writes dirty data back to its volumes without a server.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use floe_device::{Role, Spec};
use floe_server::DeviceSource;
use floe_server::kept::{Target, WrittenBack, write_back};
use serde::Serialize;

use crate::check::{Range, cache, open, refused};
use crate::error::CliError;
use crate::state_dir::state_dir;
use crate::{OrFail, output};

const EXAMPLES: &str = "\
Examples:
  floe export-dirty /var/cache/floe.img --backing /dev/vdb
  floe export-dirty /dev/nvme0n1 --backing pictures=/dev/vdb --backing \
                        archive=/srv/archive.img
  floe export-dirty /dev/nvme0n1 /dev/sdc --backing /dev/vdb     # two tiers

Of several tiers the lowest one's data is written first. The cache's data of other volumes stays as
it is. Nothing is written when a device is not its volume's. The exit code is 1 when dirty data is
lost; the command lists it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The cache device, as for floe serve, or its path alone; for tiers that were served together,
    /// all that write back, in any order. No server may be using them
    #[arg(value_name = "CACHE", value_parser = cache, required = true)]
    caches: Vec<Spec>,
    /// A backing device, with the name of its volume where the cache has several; may be repeated
    #[arg(long, value_name = "[NAME=]SPEC", required = true)]
    backing: Vec<String>,
    /// Write also to devices that differ from the cache's records, and without a lower tier that
    /// may hold older data
    #[arg(long)]
    accept_backing: bool,
    /// Folder with the notes of caches' states, as for floe serve
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// One JSON object a volume
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    volume: &'a str,
    written_bytes: u64,
    /// Lost runs, of which only the cache had the data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<Range>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let targets =
        arguments.backing.iter().map(|text| target(text)).collect::<Result<Vec<_>, _>>()?;
    let (accept, state) = (arguments.accept_backing, state_dir(arguments.state_dir.as_deref()));
    let sources = arguments.caches.iter().map(|cache| open(cache, false, state.as_ref()));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let mut bar = None;
    let written = write_back(&sources, &targets, accept, state.as_ref(), &mut |written, all| {
        bar.get_or_insert_with(|| output::progress(all, "writing back")).set_position(written);
    });
    bar.into_iter().for_each(|bar| bar.finish_and_clear());
    let mut lost_bytes = 0;
    for WrittenBack { volume, bytes, lost } in written.map_err(refused)? {
        let lost: Vec<Range> = lost.iter().map(Range::of).collect();
        lost_bytes += lost.iter().map(|range| range.length).sum::<u64>();
        if arguments.json {
            output::json_line(&Row { volume: &volume, written_bytes: bytes, lost }).or_failure()?;
        } else {
            output::say!("{} written back to volume {volume:?}", output::bytes(bytes));
            for Range { offset, length } in lost {
                output::say!("lost: volume {volume:?}, offset {offset}, {length} bytes");
            }
        }
    }
    if lost_bytes > 0 {
        return Err(CliError::failure(format!(
            "{lost_bytes} bytes of dirty data are lost and were not written back; restore them \
             from a backup or write them anew"
        )));
    }
    Ok(())
}

/// Splits a backing device from the name of its volume, if that is given: the device is at the
/// front, or after the first `=` that it can follow.
fn split(text: &str) -> (Option<&str>, &str) {
    let mut ends = text.match_indices('=').filter(|(at, _)| Spec::begins(&text[at + 1..]));
    match ends.next() {
        Some((at, _)) if !Spec::begins(text) => (Some(&text[..at]), &text[at + 1..]),
        _ => (None, text),
    }
}

/// Opens a backing device, with the name of its volume if that is given.
fn target(text: &str) -> Result<Target, CliError> {
    let (volume, spec) = split(text);
    let volume = volume.map(str::to_owned);
    let refuse = |error: String| CliError::usage(format!("backing: {error}"));
    let spec: Spec =
        spec.parse().map_err(|error: floe_device::SpecError| refuse(error.to_string()))?;
    if let Some(path) = spec.missing_path() {
        return Err(refuse(format!("{} does not exist", path.display())));
    }
    let backing: Arc<dyn DeviceSource> =
        Arc::new(spec.prepare(Role::Backing { read_only: false }).or_usage()?);
    Ok(Target { volume, backing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_name_ends_where_its_device_begins() {
        for (text, volume, device) in [
            ("/dev/vdb", None, "/dev/vdb"),
            ("./a=/b", None, "./a=/b"),
            ("file:/a=/b", None, "file:/a=/b"),
            ("pictures=/dev/vdb", Some("pictures"), "/dev/vdb"),
            ("a=b=./c,size=1MiB", Some("a=b"), "./c,size=1MiB"),
            ("a=file:/x=/y", Some("a"), "file:/x=/y"),
            ("a=memory:1MiB", Some("a"), "memory:1MiB"),
            ("a=vdb", None, "a=vdb"),
        ] {
            assert_eq!(split(text), (volume, device), "{text}");
        }
    }
}
