//! `floe trace`: what traces hold.

use clap::{Args, Subcommand};
use floe_trace::{Format, Info, OpenOptions, Trace};

use crate::error::CliError;
use crate::{OrFail, output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Requests, footprint and time span of traces
    Info(InfoArguments),
}

/// Requests between two looks at the progress.
pub(crate) const PROGRESS_EVERY: u64 = 1 << 16;

/// How to open a trace; shared by every command that reads one.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArguments {
    /// Format of the trace, where its content does not tell
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// Count and pass over bad records instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
}

impl TraceArguments {
    pub(crate) fn open(&self, path: &str, as_blocks: bool) -> Result<Trace, CliError> {
        let options = OpenOptions { format: self.format, skip_bad: self.skip_bad, as_blocks };
        Trace::open_source(path, &options).or_usage()
    }
}

const EXAMPLES: &str = "\
Examples:
  floe trace info disk.vscsi src1_0.csv.gz
  floe trace info --as-blocks --json P2.lis.zst
  floe trace info --format le64 --skip-bad keys.bin";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArguments {
    /// Trace files, compressed or not
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    #[command(flatten)]
    trace: TraceArguments,
    /// Read traces of page numbers as disk I/O
    #[arg(long)]
    as_blocks: bool,
    /// One JSON object per trace instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<(), CliError> {
    let Command::Info(arguments) = command;
    let columns =
        ["trace", "format", "requests", "reads", "writes", "unique", "footprint", "mean", "seconds"];
    let mut table = output::table(&columns, 2);
    for file in &arguments.files {
        let info = info(file, arguments)?;
        if arguments.json {
            output::json_line(&info).or_failure()?;
            continue;
        }
        table.add_row(vec![
            file.clone(),
            info.format.to_owned(),
            info.requests.to_string(),
            info.reads.to_string(),
            info.writes.to_string(),
            info.unique.to_string(),
            output::bytes(info.footprint_bytes),
            output::bytes(info.mean_bytes as u64),
            format!("{:.1}", info.seconds),
        ]);
    }
    if !arguments.json {
        output::print_table(&table);
    }
    Ok(())
}

fn info(file: &str, arguments: &InfoArguments) -> Result<Info, CliError> {
    let mut trace = arguments.trace.open(file, arguments.as_blocks)?;
    let bar = output::progress(trace.total_bytes().unwrap_or(0), file);
    let progress = trace.progress();
    let mut stats = floe_trace::Stats::new(trace.kind());
    for (request, count) in trace.by_ref().zip(0u64..) {
        stats.add(&request.or_usage()?);
        if count.is_multiple_of(PROGRESS_EVERY) {
            bar.set_position(progress.bytes_read());
        }
    }
    bar.finish_and_clear();
    if trace.skipped() > 0 {
        eprintln!("floe: {file}: {} bad record(s) passed over", trace.skipped());
    }
    Ok(stats.info(trace.name(), trace.format().name()))
}
