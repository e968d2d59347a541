//! `floe demo`: a slow volume, first bare and then through a cache, asked for the same requests.
//!
//! Virtual time is the default: the same figures on every machine, in seconds. With `--real`,
//! servers on real files are spoken to over NBD.

mod disks;
mod real;

use std::path::PathBuf;

use clap::Args;
use floe_lab::demo::{self, Row};

use crate::error::CliError;
use crate::{OrFail, output};

/// Steps of the progress bar.
const STEPS: u64 = 1000;

const EXAMPLES: &str = "\
Examples:
  floe demo
  floe demo --json
  floe demo --real
  floe demo --real --volume /mnt/slow --cache /mnt/fast --time 10s

In virtual time the block cache of the server works on simulated devices, and prints the same
figures on every machine. With --real, servers in this process use new files, which are removed at
the end, and are asked over NBD. Without --volume, the volume imitates a cloud disk.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Measure real files, through a server
    #[arg(long)]
    real: bool,
    /// Folder for the volume's file of 2 GiB, on a slow disk
    #[arg(long, value_name = "FOLDER", requires = "real")]
    volume: Option<PathBuf>,
    /// Folder for the cache's file of 256 MiB, on a fast disk
    #[arg(long, value_name = "FOLDER", requires = "real")]
    cache: Option<PathBuf>,
    /// Time for each run, and for the warm-up before it [default: 4s]
    #[arg(long, value_name = "DURATION", requires = "real")]
    time: Option<humantime::Duration>,
    /// One JSON object per run instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let rows = match arguments.real {
        true => real::rows(arguments)?,
        false => simulated(arguments.json)?,
    };
    if arguments.json {
        return rows.iter().try_for_each(output::json_line).or_failure();
    }
    output::say!("{}", demo::text(&rows));
    Ok(())
}

fn simulated(json: bool) -> Result<Vec<Row>, CliError> {
    if !json {
        output::say!("{}\n", demo::introduction());
    }
    let bar = output::progress(STEPS, "simulating");
    let rows = demo::run(|share| bar.set_position((share * STEPS as f64) as u64));
    bar.finish_and_clear();
    rows.or_failure()
}
