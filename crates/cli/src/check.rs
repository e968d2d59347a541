//! `floe check` and `floe export-dirty`: check a cache, repair damage that can be repaired without
//! loss, and write dirty data to the volumes.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use floe_block::{Calibrated, SECTOR_BYTES, Salvage, Sectors, WrongCopy};
use floe_device::{KnownWitness, Role, Spec, Witness};
use floe_server::DeviceSource;
use floe_server::persistent::{
    Checked, Holds, Refusal, StartError, StateDir, Target, WrittenBack, check, holds, repair,
    write_back,
};
use serde::Serialize;

use crate::error::{CliError, OrFail};
use crate::output;
use crate::settings::state_dir;

const EXAMPLES: &str = "\
Examples:
  floe check /var/cache/floe.img
  floe check stripe:/dev/nvme0n1+/dev/nvme1n1 --json | jq .problems
  floe check /dev/nvme0n1 --repair

The exit code is 0 when all is well or was repaired without loss, otherwise 1, also when there is no
cache. Dirty data is never touched, except where the journal that records it is damaged: --repair
writes the journal anew with all records it can trust, and lists what is lost.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The cache device, as for floe serve, or its path alone; no server may be using it
    #[arg(value_name = "CACHE", value_parser = cache)]
    cache: Spec,
    /// Repair superblocks, damaged clean data and damaged journals; lists the data that is lost
    #[arg(long)]
    repair: bool,
    /// Folder with the notes of mirrors' states, as for floe serve
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// The JSON output of `floe check`.
#[derive(Debug, Serialize)]
struct CheckResult {
    /// The device contains a cache.
    cache: bool,
    session: u64,
    /// The last session ended with a clean shutdown.
    clean: bool,
    shards: u64,
    block_sizes: String,
    /// Bytes of the device that the cache takes after `floe tier resize`.
    resized_to_bytes: Option<u64>,
    /// Result of `floe calibrate` that is recorded in the cache.
    calibration: Option<OfCalibration>,
    volumes: Vec<OfVolume>,
    /// Peer tiers that may hold dirty data.
    companions: Vec<String>,
    blocks: u64,
    valid_bytes: u64,
    dirty_bytes: u64,
    log_pages: u64,
    /// Number of clean copies that a crash left half overwritten. The cache does not use them.
    half_overwritten: usize,
    /// Lost data of which only the cache had a copy. With a damaged journal, these are the data
    /// that a repair would give up.
    lost: Vec<Lost>,
    problems: Vec<String>,
    /// Findings that are not necessarily problems.
    notes: Vec<String>,
    repaired: bool,
}

#[derive(Debug, Serialize)]
struct OfCalibration {
    write_cost: f64,
    target: f64,
    target_bytes: f64,
}

#[derive(Debug, Serialize)]
struct Lost {
    volume: String,
    #[serde(flatten)]
    range: Range,
}

#[derive(Debug, Serialize)]
struct OfVolume {
    name: String,
    bytes: u64,
}

/// A range of bytes in a volume.
#[derive(Debug, Serialize)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Range {
    pub(crate) fn of(run: &Sectors) -> Self {
        Self { offset: run.start * SECTOR_BYTES, length: (run.end - run.start) * SECTOR_BYTES }
    }
}

/// Parses a cache device. A path without a prefix is a file or block device.
pub(crate) fn cache(text: &str) -> Result<Spec, String> {
    let text = if text.contains(':') { text.to_owned() } else { format!("file:{text}") };
    let spec: Spec = text.parse().map_err(|error: floe_device::SpecError| error.to_string())?;
    match spec.missing_path() {
        _ if spec.is_memory() => {
            Err("a cache in memory ends with its server; give a file or disk".into())
        }
        Some(path) => Err(format!("{} does not exist", path.display())),
        None => Ok(spec),
    }
}

/// Opens an existing cache device. The state folder acts as the witness of a mirror about which it
/// has notes.
pub(crate) fn open(
    cache: &Spec,
    read_only: bool,
    state: Option<&StateDir>,
) -> Result<Arc<dyn DeviceSource>, CliError> {
    let witness = state.map(|state| Arc::new(KnownWitness::new(state.path())) as Arc<dyn Witness>);
    let role = Role::Backing { read_only };
    Ok(Arc::new(cache.prepare_witnessed(role, witness.as_ref()).or_usage()?))
}

pub(crate) fn refused(error: StartError) -> CliError {
    let line = error.to_string();
    if error.is_failure() { CliError::failure(line) } else { CliError::usage(line) }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let state = state_dir(arguments.state_dir.as_deref());
    let source = open(&arguments.cache, !arguments.repair, state.as_ref())?;
    let mut bar: Option<(&str, indicatif::ProgressBar)> = None;
    let checked = check(&source, &mut |what, read, all| {
        let is_other = bar.as_ref().is_none_or(|(of, _)| *of != what);
        if is_other && let Some((_, old)) = bar.replace((what, output::progress(all, what))) {
            old.finish_and_clear();
        }
        bar.iter().for_each(|(_, bar)| bar.set_position(read));
    });
    bar.into_iter().for_each(|(_, bar)| bar.finish_and_clear());
    let checked = checked.map_err(refused)?;
    let repaired =
        arguments.repair && checked.has_problems() && repair(&source, &checked).map_err(refused)?;
    let mirror = source.mirror().and_then(|watch| watch.status());
    let half = |copy: usize| {
        let half = mirror.as_ref().and_then(|mirror| mirror.halves.get(copy));
        half.map_or_else(|| format!("half {copy}"), |half| half.name.clone())
    };
    let outcome = CheckResult::of(&checked, repaired, half);
    let is_missing = !outcome.cache && outcome.problems.is_empty();
    if arguments.json {
        output::json_line(&outcome).or_failure()?
    } else if !is_missing {
        outcome.print()
    }
    if is_missing {
        let instead = match holds(&source).map_err(refused)? {
            Holds::Data => "holds other data",
            Holds::Nothing | Holds::Cache => "is empty",
        };
        return Err(CliError::failure(format!(
            "{}: there is no Floe cache; it {instead}",
            arguments.cache
        )));
    }
    match outcome.problems.len() {
        problems if problems > 0 && !repaired => {
            let cut_short = checked.report.cut_short_of.map(|bytes| {
                format!(
                    "; it was cut short: make it {bytes} bytes long again, which brings back what \
                     it still has, also dirty data, and check it again to learn what is lost; \
                     --initialise would lose all of it"
                )
            });
            let way = match (arguments.repair, outcome.cache) {
                _ if let Some(way) = &cut_short => way,
                _ if checked.spoiled().next().is_some() => {
                    "; the data listed as lost has no other copy and cannot be repaired: reads of \
                     it fail until it is written anew; floe export-dirty writes the rest back"
                }
                (true, _) | (_, false) => {
                    "; they cannot be repaired: floe serve --initialise makes a new cache"
                }
                (false, true) if checked.gives_up() => {
                    "; --repair repairs them, and gives up the data listed as lost"
                }
                (false, true) => "; --repair repairs them, and nothing is lost",
            };
            Err(CliError::failure(format!(
                "{}: {}{way}",
                arguments.cache,
                output::counted(problems, "problem")
            )))
        }
        _ if repaired && checked.gives_up() => Err(CliError::failure(format!(
            "{}: repaired, but the dirty data listed is lost: reads of it fail until it is written \
             anew; floe export-dirty writes the rest back",
            arguments.cache
        ))),
        _ => Ok(()),
    }
}

impl CheckResult {
    /// Summarizes a check. `half` returns the name of a mirror's half.
    fn of(checked: &Checked, repaired: bool, half: impl Fn(usize) -> String) -> Self {
        let (report, superblock) = (&checked.report, checked.report.superblock.as_ref());
        let mut problems = report.problems.clone();
        problems.extend(report.shards.iter().flat_map(|shard| shard.problems.iter().cloned()));
        for Salvage { shard, mended, gone, .. } in
            report.shards.iter().filter_map(|it| it.salvage.as_ref())
        {
            problems.extend(
                mended
                    .iter()
                    .map(|what| format!("shard {shard}: {what}, can be rebuilt from other pages")),
            );
            problems.extend(gone.iter().map(|what| {
                format!(
                    "shard {shard}: {what}, is lost; writes recorded only there are lost, and \
                     reads return the older data of the volume"
                )
            }));
        }
        let name = |id| {
            let volume =
                superblock.into_iter().flat_map(|it| &it.volumes).find(|volume| volume.id == id);
            volume.map_or("?", |volume| volume.name.as_str())
        };
        problems.extend(checked.spoiled().map(|rotten| {
            format!(
                "{} bytes at offset {} of the cache device {}: volume {:?} from {} on, which has \
                 no other copy",
                (rotten.run.end - rotten.run.start) * SECTOR_BYTES,
                rotten.offset,
                if rotten.unreadable { "cannot be read" } else { "are not what was stored" },
                name(rotten.volume),
                rotten.run.start * SECTOR_BYTES
            )
        }));
        problems.extend(checked.wrong_copies.iter().map(|WrongCopy { copy, offset, bytes }| {
            let half = half(*copy);
            format!(
                "{bytes} bytes at offset {offset} of the cache on {half} are not what was stored; \
                 another half has them"
            )
        }));
        problems.extend(checked.rotted().map(|rotten| {
            let bytes = (rotten.run.end - rotten.run.start) * floe_block::SECTOR_BYTES;
            format!(
                "{bytes} bytes at offset {} of the cache device are not what was stored: volume \
                 {:?} from {} on, which its backing device also has",
                rotten.offset,
                name(rotten.volume),
                rotten.run.start * floe_block::SECTOR_BYTES
            )
        }));
        let sum = |of: fn(&floe_block::ShardReport) -> u64| report.shards.iter().map(of).sum();
        Self {
            cache: superblock.is_some(),
            session: superblock.map_or(0, |superblock| superblock.session),
            clean: superblock.is_some_and(|superblock| superblock.clean),
            shards: superblock.map_or(0, |superblock| superblock.layout.shards()),
            block_sizes: superblock
                .map_or_else(String::new, |superblock| superblock.layout.sizes().to_string()),
            resized_to_bytes: superblock.and_then(|superblock| superblock.cache_bytes),
            calibration: superblock.and_then(|superblock| superblock.calibrated).map(
                |Calibrated { write_cost, target, target_bytes }| OfCalibration {
                    write_cost,
                    target,
                    target_bytes,
                },
            ),
            volumes: superblock
                .into_iter()
                .flat_map(|it| &it.volumes)
                .map(|volume| OfVolume { name: volume.name.clone(), bytes: volume.bytes })
                .collect(),
            companions: superblock
                .into_iter()
                .flat_map(|it| &it.companions)
                .map(|companion| companion.name.clone())
                .collect(),
            blocks: sum(|shard| shard.blocks),
            valid_bytes: sum(|shard| shard.valid_bytes),
            dirty_bytes: sum(|shard| shard.dirty_bytes),
            log_pages: sum(|shard| shard.log_pages),
            half_overwritten: checked.half_overwritten(),
            lost: checked
                .lost
                .iter()
                .map(|(volume, run)| Lost {
                    volume: name(*volume).to_owned(),
                    range: Range::of(run),
                })
                .collect(),
            problems,
            notes: report.shards.iter().filter_map(|shard| shard.untold.clone()).collect(),
            repaired,
        }
    }

    fn print(&self) {
        if self.cache {
            output::say!(
                "session {}, {}; {}, blocks of {}",
                self.session,
                if self.clean { "closed cleanly" } else { "ended by a crash, or still in use" },
                output::counted(self.shards as usize, "shard"),
                self.block_sizes
            );
            if let Some(bytes) = self.resized_to_bytes {
                output::say!("resized to {}", output::bytes(bytes));
            }
            if let Some(OfCalibration { write_cost, target, .. }) = &self.calibration {
                output::say!(
                    "calibrated: a write costs {write_cost:.2} reads, obp's target is {target:.3}"
                );
            }
            for OfVolume { name, bytes } in &self.volumes {
                output::say!("volume {name:?} of {}", output::bytes(*bytes));
            }
            for companion in &self.companions {
                output::say!("served together with {companion}, which may hold dirty data");
            }
            output::say!(
                "{} blocks, valid {}, dirty {}, {} log pages",
                self.blocks,
                output::bytes(self.valid_bytes),
                output::bytes(self.dirty_bytes),
                self.log_pages
            );
        }
        if self.half_overwritten > 0 {
            output::say!(
                "clean copies that a crash left half overwritten, and that are not used: {}",
                self.half_overwritten
            );
        }
        for Lost { volume, range: Range { offset, length } } in &self.lost {
            output::say!("lost: volume {volume:?}, offset {offset}, {length} bytes");
        }
        self.notes.iter().for_each(|note| output::say!("note: {note}"));
        self.problems.iter().for_each(|problem| output::say!("problem: {problem}"));
        match (self.problems.is_empty(), self.repaired) {
            (true, _) => output::say!("no problems found"),
            (false, true) => output::say!("all problems are repaired"),
            (false, false) => {}
        }
    }
}

const EXPORT_EXAMPLES: &str = "\
Examples:
  floe export-dirty /var/cache/floe.img --backing /dev/vdb
  floe export-dirty /dev/nvme0n1 --backing pictures=/dev/vdb --backing \
                        archive=/srv/archive.img
  floe export-dirty /dev/nvme0n1 /dev/sdc --backing /dev/vdb     # two tiers

Of several tiers the lowest one's data is written first. The cache's data of other volumes stays as
it is. Nothing is written when a device is not its volume's. The exit code is 1 when dirty data is
lost, which the command lists, or when there is no cache.";

#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportDirtyArguments {
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
    /// Lost ranges, of which only the cache had the data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<Range>,
}

pub(crate) fn export_dirty(arguments: &ExportDirtyArguments) -> Result<(), CliError> {
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
    let written = written.map_err(|error| match error {
        StartError::Refused(Refusal::NoCache { .. }) => CliError::failure(error.to_string()),
        error => refused(error),
    });
    for WrittenBack { volume, bytes, lost } in written? {
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

/// Splits an argument into the name of a volume, if given, and a backing device. The device is the
/// whole text, or follows the first `=` after which a device can begin.
fn split(text: &str) -> (Option<&str>, &str) {
    let mut ends = text.match_indices('=').filter(|(at, _)| Spec::begins(&text[at + 1..]));
    match ends.next() {
        Some((at, _)) if !Spec::begins(text) => (Some(&text[..at]), &text[at + 1..]),
        _ => (None, text),
    }
}

/// Opens a backing device, which a volume name may precede.
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
mod export_dirty_tests {
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
