//! `floe hybrid`: inspects the file of a cache in memory and on flash (`floe::hybrid`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use floe_hybrid::{ContentInfo, Contents, Damage, DriveInfo, Info, OpenError, Opened, SavedStats};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{CliError, OrFail};
use crate::output;

/// Time after which a check shows its progress.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Subcommand)]
pub(crate) enum HybridCommand {
    /// Show what a cache's file holds, and what the next open will do
    Info(InfoArguments),
    /// Read every record of a cache that no process uses, and report damage
    Check(CheckArguments),
    /// Show the statistics of the process that uses a cache, or of the last one that did
    Stats(StatsArguments),
}

const INFO_EXAMPLES: &str = "\
Examples:
  floe hybrid info /mnt/nvme/cache
  floe hybrid info /dev/nvme0n1 --json | jq .objects
  floe hybrid info /mnt/nvme

The command reads what the next open will read, and needs the memory of the index for it. While a
process uses the cache it shows only what the superblock has. It writes nothing.";

const CHECK_EXAMPLES: &str = "\
Examples:
  floe hybrid check /mnt/nvme/cache
  floe hybrid check /mnt/nvme/cache --json | jq .damage

The exit code is 0 when no problems are found, 1 when there is damage, and 2 when there is no cache
or a process uses it. Nothing is written. No process can open the cache meanwhile.";

const STATS_EXAMPLES: &str = "\
Examples:
  floe hybrid stats /mnt/nvme/cache
  floe hybrid stats /mnt/nvme/cache --json | jq .flash_hits

A process that uses a cache writes its statistics to the file every ten seconds, if they have
changed. They count from the time it opened the cache.";

#[derive(Debug, Args)]
#[command(after_help = INFO_EXAMPLES)]
pub(crate) struct InfoArguments {
    /// The file or block device, as Builder::flash takes it, or a folder of such files
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArguments {
    /// The file or block device, as Builder::flash takes it, or a folder of such files
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = STATS_EXAMPLES)]
pub(crate) struct StatsArguments {
    /// The file or block device, as Builder::flash takes it, or a folder of such files
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &HybridCommand) -> Result<(), CliError> {
    match command {
        HybridCommand::Info(InfoArguments { path, json }) => each_cache(path, *json, info),
        HybridCommand::Check(CheckArguments { path, json }) => each_cache(path, *json, check),
        HybridCommand::Stats(StatsArguments { path, json }) => each_cache(path, *json, stats),
    }
}

/// The output for a cache.
struct CacheOutput<'a> {
    json: bool,
    /// The name of the file, if others follow or precede.
    file: Option<&'a Path>,
}

/// The JSON output for a cache, with its path if it is in a folder.
#[derive(Debug, Serialize)]
struct JsonOutput<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(flatten)]
    result: &'a T,
}

impl CacheOutput<'_> {
    /// Prints the JSON, or what `text` prints.
    fn print<T: Serialize>(&self, result: &T, text: impl FnOnce()) -> Result<(), CliError> {
        let path = self.file.map(|path| path.display().to_string());
        if self.json {
            return output::json_line(&JsonOutput { path, result }).or_failure();
        }
        if let Some(path) = path {
            output::say!("{path}:");
        }
        text();
        if self.file.is_some() {
            output::say!();
        }
        Ok(())
    }
}

/// Runs a command for the cache at a path, or for each cache in a folder.
///
/// # Errors
/// The error, or the number of caches with an error and the first of them.
fn each_cache(
    path: &Path,
    json: bool,
    command: impl Fn(&Path, &CacheOutput<'_>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    if !path.is_dir() {
        return command(path, &CacheOutput { json, file: None });
    }
    let in_folder = |error| CliError::usage(format!("{}: {error}", path.display()));
    let caches = floe_hybrid::caches_in(path).map_err(in_folder)?;
    if caches.is_empty() {
        return Err(CliError::usage(format!("{} has no hybrid cache in it", path.display())));
    }
    let run = |file: &PathBuf| command(file, &CacheOutput { json, file: Some(file) }).err();
    let errors: Vec<CliError> = caches.iter().filter_map(run).collect();
    match &errors[..] {
        [] => Ok(()),
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                more => format!("; {more} more of {} caches have errors", caches.len()),
            };
            // Damage counts as damage though another cache is in use.
            let is_failure = errors.iter().any(|error| error.code() == 1);
            let line = format!("{}{more}", first.line());
            Err(if is_failure { CliError::failure(line) } else { CliError::usage(line) })
        }
    }
}

fn refused(error: OpenError) -> CliError {
    match error {
        OpenError::Io { .. } => CliError::failure(error.to_string()),
        _ => CliError::usage(error.to_string()),
    }
}

/// The JSON output of `floe hybrid info`.
#[derive(Debug, Serialize)]
struct InfoResult {
    version: u32,
    id: String,
    session: u64,
    state: &'static str,
    file_bytes: u64,
    segment_bytes: u64,
    segments: u64,
    saved_index_bytes: u64,
    /// Identity of the cache on all its drives, and this drive's place in it; absent for one drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    drive: Option<DriveResult>,
    used_segments: Option<u64>,
    used_bytes: Option<u64>,
    objects: Option<u64>,
    oldest_segment: Option<u64>,
    newest_segment: Option<u64>,
    /// Seconds since 1970.
    oldest_seconds: Option<u64>,
    newest_seconds: Option<u64>,
    index_bytes: Option<u64>,
    next_open: Option<&'static str>,
    interrupted_removals: Option<u64>,
    open_seconds: Option<f64>,
}

/// The place of a drive in a cache of several drives.
#[derive(Debug, Serialize)]
struct DriveResult {
    cache: String,
    /// From 1 on.
    place: u64,
    drives: u64,
    part: f64,
    replacements: u64,
}

impl DriveResult {
    fn of(drive: &DriveInfo) -> Self {
        let DriveInfo { cache, place, drives, part, replacements, .. } = *drive;
        Self { cache: format!("{cache:016x}"), place, drives, part, replacements }
    }
}

/// Returns the state of a cache in one word.
fn state(in_use: bool, closed: bool) -> &'static str {
    match (in_use, closed) {
        (true, _) => "in use",
        (false, true) => "closed",
        (false, false) => "crashed",
    }
}

fn info(path: &Path, output: &CacheOutput<'_>) -> Result<(), CliError> {
    let info = floe_hybrid::info(path).map_err(refused)?;
    // A cache of very small objects is closed without a saved index; its statistics say so.
    let stats = floe_hybrid::saved_stats(path).map_err(refused)?;
    let closed = stats.is_some_and(|it| it.closed && it.session == it.latest_session);
    let result = InfoResult::of(&info, info.clean || closed);
    output.print(&result, || result.print())
}

impl InfoResult {
    fn of(info: &Info, closed: bool) -> Self {
        let content = info.content.as_ref();
        let of = |value: fn(&ContentInfo) -> u64| content.map(value);
        Self {
            version: info.version,
            id: format!("{:016x}", info.id),
            session: info.session,
            state: state(info.in_use, closed),
            file_bytes: info.file_bytes,
            segment_bytes: info.segment_bytes,
            segments: info.segments,
            saved_index_bytes: info.saved_index_bytes,
            drive: info.drive.as_ref().map(DriveResult::of),
            used_segments: of(|it| it.used_segments),
            used_bytes: content.map(|it| it.used_segments * info.segment_bytes),
            objects: of(|it| it.objects),
            oldest_segment: content.and_then(|it| it.oldest_segment),
            newest_segment: content.and_then(|it| it.newest_segment),
            oldest_seconds: content.and_then(|it| it.oldest_seconds),
            newest_seconds: content.and_then(|it| it.newest_seconds),
            index_bytes: of(|it| it.index_bytes),
            next_open: content.map(|it| match it.next_open {
                Opened::Clean => "clean",
                _ => "recovered",
            }),
            interrupted_removals: of(|it| it.interrupted_removals),
            open_seconds: content.map(|it| it.open_time.as_secs_f64()),
        }
    }

    fn print(&self) {
        output::say!("hybrid cache {}, format {}", self.id, self.version);
        if let Some(DriveResult { cache, place, drives, part, .. }) = &self.drive {
            output::say!(
                "drive {place} of {drives} of the cache {cache}, with {:.1} % of the keys",
                part * 100.0
            );
        }
        output::say!("session {}, {}", self.session, self.state);
        output::say!(
            "{}: {} segments of {}",
            output::bytes(self.file_bytes),
            self.segments,
            output::bytes(self.segment_bytes)
        );
        let (Some(objects), Some(used), Some(used_bytes)) =
            (self.objects, self.used_segments, self.used_bytes)
        else {
            return output::say!("the content is not shown while a process uses the cache");
        };
        output::say!("{objects} objects in {used} segments, {}", output::bytes(used_bytes));
        for (which, number, seconds) in [
            ("oldest", self.oldest_segment, self.oldest_seconds),
            ("newest", self.newest_segment, self.newest_seconds),
        ] {
            if let Some(number) = number {
                let begun = seconds.map_or("an unknown time".to_owned(), ago);
                output::say!("{which} segment {number}, begun {begun} ago");
            }
        }
        let way = match self.next_open {
            Some("clean") => format!("the saved index, {}", output::bytes(self.saved_index_bytes)),
            _ => "the footers of all segments".to_owned(),
        };
        output::say!("the next open reads {way}");
        output::say!(
            "which took {} just now, and needs {} of memory",
            output::microseconds(self.open_seconds.unwrap_or(0.0) * 1e6),
            output::bytes(self.index_bytes.unwrap_or(0))
        );
        if let Some(removals @ 1..) = self.interrupted_removals {
            output::say!("it then completes the removals that a crash interrupted: {removals}");
        }
    }
}

/// Formats the time from a second since 1970 until now.
fn ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    humantime::format_duration(Duration::from_secs(now.saturating_sub(seconds))).to_string()
}

/// The JSON output of `floe hybrid check`.
#[derive(Debug, Serialize)]
struct CheckResult {
    segments: u64,
    open_segments: u64,
    objects: u64,
    parts: u64,
    live_objects: u64,
    live_parts: u64,
    lost_objects: u64,
    expired: u64,
    removals: u64,
    object_bytes: u64,
    damaged_places: u64,
    /// The first thousand damaged places.
    damage: Vec<OfDamage>,
}

#[derive(Debug, Serialize)]
struct OfDamage {
    kind: &'static str,
    segment: Option<u64>,
    offset: u64,
}

impl CheckResult {
    fn of(contents: &Contents) -> Self {
        let of =
            |it: &Damage| OfDamage { kind: it.kind.name(), segment: it.segment, offset: it.offset };
        Self {
            segments: contents.segments,
            open_segments: contents.open_segments,
            objects: contents.objects,
            parts: contents.parts,
            live_objects: contents.live_objects,
            live_parts: contents.live_parts,
            lost_objects: contents.lost_objects,
            expired: contents.expired,
            removals: contents.removals,
            object_bytes: contents.object_bytes,
            damaged_places: contents.damaged_places,
            damage: contents.damage.iter().map(of).collect(),
        }
    }
}

fn check(path: &Path, output: &CacheOutput<'_>) -> Result<(), CliError> {
    let (begun, mut bar) = (Instant::now(), None);
    let contents = floe_hybrid::check(path, |read, all| {
        if bar.is_none() && begun.elapsed() >= PATIENCE {
            bar = Some(output::progress(all, "checking segments"));
        }
        bar.iter().for_each(|bar| bar.set_position(read));
    });
    bar.into_iter().for_each(|bar| bar.finish_and_clear());
    let contents = contents.map_err(refused)?;
    output.print(&CheckResult::of(&contents), || print_check(&contents))?;
    match contents.damaged_places {
        0 => Ok(()),
        places => Err(CliError::failure(format!(
            "{}: damaged places: {places}, objects lost: {}; lookups of these objects miss, and \
             the cache can be used",
            path.display(),
            contents.lost_objects
        ))),
    }
}

fn print_check(contents: &Contents) {
    output::say!(
        "{} objects in {} segments, {} of them without a footer",
        contents.live_objects,
        contents.segments,
        contents.open_segments
    );
    output::say!(
        "{} records of objects, {} of keys and values; {} expired",
        contents.objects,
        output::bytes(contents.object_bytes),
        contents.expired
    );
    if contents.parts > 0 {
        output::say!("{} records of parts of large objects", contents.parts);
    }
    output::say!("{} records of removals", contents.removals);
    contents.damage.iter().for_each(|damage| output::say!("damage: {damage}"));
    let more = contents.damaged_places - contents.damage.len() as u64;
    if more > 0 {
        output::say!("damage: {more} more places");
    }
    if contents.damaged_places == 0 {
        output::say!("no problems found");
    }
}

fn stats(path: &Path, output: &CacheOutput<'_>) -> Result<(), CliError> {
    let Some(stats) = floe_hybrid::saved_stats(path).map_err(refused)? else {
        return Err(CliError::failure(format!(
            "{}: no statistics are recorded: the file has no room for them behind its last \
             segment, or an earlier version of Floe used it",
            path.display()
        )));
    };
    output.print(&json_of(&stats), || print_stats(&stats))
}

/// Returns written bytes for each byte appended.
fn write_amplification(stats: &SavedStats) -> Option<f64> {
    let (written, appended) = (stats.get("written_bytes")?, stats.get("appended_bytes")?);
    (appended > 0).then(|| written as f64 / appended as f64)
}

fn json_of(stats: &SavedStats) -> Map<String, Value> {
    let is_latest = stats.session == stats.latest_session;
    let mut object = Map::new();
    object.insert("session".into(), stats.session.into());
    object.insert("latest_session".into(), stats.latest_session.into());
    object.insert("state".into(), state(stats.in_use && is_latest, stats.closed).into());
    object.insert("written_seconds".into(), stats.written_seconds.into());
    object.insert("write_amplification".into(), write_amplification(stats).into());
    object.extend(stats.figures.iter().map(|(name, value)| (name.clone(), (*value).into())));
    object
}

fn print_stats(stats: &SavedStats) {
    let (session, written) = (stats.session, ago(stats.written_seconds));
    match (stats.in_use && session == stats.latest_session, stats.closed) {
        (true, _) => output::say!("session {session}, in use; figures of {written} ago"),
        (false, true) => output::say!("session {session}, closed {written} ago"),
        (false, false) => output::say!(
            "session {session}, which was not closed; figures of {written} ago, before it ended"
        ),
    }
    if session != stats.latest_session {
        output::say!(
            "session {}, the latest one, has recorded no statistics",
            stats.latest_session
        );
    }
    let mut table = output::table(&["figure", "value", "meaning"], 1);
    output::align_left(&mut table, 2);
    let width = 38; // of the meaning: the table fits 80 columns
    for figure in floe_hybrid::figures() {
        let Some(value) = stats.get(figure.name).filter(|value| *value > 0) else { continue };
        let name = figure.name.strip_suffix("_bytes");
        let value = if name.is_some() { output::bytes(value) } else { value.to_string() };
        let name = name.unwrap_or(figure.name).replace('_', " ");
        for (at, line) in wrapped(figure.help, width).into_iter().enumerate() {
            let first = |text: &str| if at == 0 { text.to_owned() } else { String::new() };
            table.add_row(vec![first(&name), first(&value), line]);
        }
    }
    if table.row_count() > 0 {
        output::print_table(&table);
    }
    if let Some(amplification) = write_amplification(stats) {
        output::say!(" {amplification:.3} bytes written for each byte appended");
    }
    let times = read_times(stats);
    let share = |share| quantile(&times, share);
    if let (Some(half), Some(most)) = (share(0.5), share(0.99)) {
        output::say!(" reads of flash: half take at most {half}, 99 % at most {most}");
    }
}

/// Returns the upper bounds of the buckets of read times in microseconds, and their counts.
fn read_times(stats: &SavedStats) -> Vec<(Option<f64>, u64)> {
    let bucket = |(name, count): &(String, u64)| {
        let bound = name.strip_prefix("flash_reads_to_")?;
        Some((bound.strip_suffix("_us").and_then(|us| us.parse().ok()), *count))
    };
    stats.figures.iter().filter_map(bucket).collect()
}

/// Returns the upper bound of the bucket in which this share of the reads ends.
fn quantile(times: &[(Option<f64>, u64)], share: f64) -> Option<String> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * share).ceil() as u64;
    let mut below = 0;
    let reaches = |(_, count): &&(Option<f64>, u64)| {
        below += count;
        below >= wanted
    };
    let (bound, _) = times.iter().find(reaches).filter(|_| all > 0)?;
    Some(bound.map_or("more than 10 s".to_owned(), output::microseconds))
}

/// Splits a text into lines of at most this many characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.len() + 1 + word.len() <= width) {
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
