//! The `floe` program: arguments in, tables or JSON out.
//!
//! All of it but `main`, so that its documentation does not replace that of the library `floe`.

mod admin;
mod advise;
mod attach;
mod bench;
mod beside;
mod calibrate;
mod check;
mod csv;
mod demo;
mod descriptors;
mod error;
mod export_dirty;
mod half;
mod list;
mod log;
mod man;
mod model;
mod output;
mod pair;
mod registered;
mod replay;
mod report;
mod serve;
mod settings;
mod simulate;
mod size;
mod state_dir;
mod status;
mod tier;
mod trace;
mod upgrade;
mod volume;
mod warmup;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use error::CliError;

/// A cache for storage that is nearly as fast as memory.
#[derive(Debug, Parser)]
#[command(name = "floe", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  floe demo
  floe serve --backing file:/dev/vdb --cache file:/var/cache/floe.img --cache-size 10GiB
  floe serve --backing file:disk.img --cache memory:256MiB --listen \
                        'nbd+unix:///?socket=/run/floe.sock'
  floe attach --backing file:/dev/vdb --cache file:/dev/nvme0n1
  floe status --json
  floe volume add pictures file:/dev/vdc
  floe tier add file:/dev/nvme1n1
  floe check /var/cache/floe.img
  floe simulate P3.lis.zst --policy lru,s3-fifo,arc,belady --size 1%,10%,30% --report P3.html
  floe simulate src1_0.csv.gz --blocks 32KiB,64KiB,128KiB,256KiB --blocks 32KiB --size 10%
  floe replay disk.vscsi --config floe.toml --in-flight 16
  floe advise disk.vscsi --backing hdd --cache nvme
  floe bench memory --policy s3-fifo,lru --capacity 10% --threads 1,2
  floe calibrate file:/mnt/pmem/scratch --into pmem.json
  floe model --policy lru,fifo --mpl 16,72,144 --disk-us 5,100
  floe trace info *.vscsi";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a volume through a cache, over NBD
    Serve(Box<serve::Arguments>),
    /// Make a block device of this machine of a volume, through a cache
    Attach(Box<serve::AttachArguments>),
    /// Remove a block device of floe attach that is not in use, and end its server
    Detach(attach::DetachArguments),
    /// Show the counters of a running server
    Status(status::Arguments),
    /// Write all dirty data of a running server to its volumes
    Flush(admin::FlushArguments),
    /// Use a failed cache device again
    Restore(admin::RestoreArguments),
    /// List and change the volumes of a running server
    #[command(subcommand)]
    Volume(volume::Command),
    /// List, attach and detach the tiers of a running server
    #[command(subcommand)]
    Tier(tier::Command),
    /// Shut down a running server after making all written data durable
    Stop(admin::StopArguments),
    /// Replace the program of a running server, whose attached devices stay in use
    Upgrade(upgrade::UpgradeArguments),
    /// End the active server of a pair, so that the standby takes over
    Handover(pair::HandoverArguments),
    /// Have a standby take over from the active server of its pair
    Takeover(pair::TakeoverArguments),
    /// Check a cache that no server uses, and repair it
    Check(check::Arguments),
    /// Write a cache's dirty data to its volumes, without a server
    ExportDirty(export_dirty::Arguments),
    /// Compare eviction policies or block sizes on a trace
    Simulate(Box<simulate::Arguments>),
    /// List the eviction policies that --policy and --evict take
    Policies(registered::PoliciesArguments),
    /// List the admissions that --admit takes
    Admissions(registered::AdmissionsArguments),
    /// Replay a trace through a cache, on its devices or in virtual time
    Replay(Box<replay::Arguments>),
    /// Find the settings of a cache for a trace and two media
    Advise(Box<advise::Arguments>),
    /// Measure caches under load
    #[command(subcommand)]
    Bench(bench::Command),
    /// Measure the slowdown of a device's reads by writes, for admission
    Calibrate(Box<calibrate::Arguments>),
    /// Compute throughput from the hit ratio, and the hit ratio past which it falls
    Model(Box<model::Arguments>),
    /// Inspect and convert traces
    #[command(subcommand)]
    Trace(trace::Command),
    /// Compare a slow volume without and with a cache, in one self-contained run
    Demo(demo::Arguments),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Arguments),
    /// Print the completion script of a shell
    #[command(hide = true)]
    Completions(man::CompletionsArguments),
}

/// Returns the command line: the derived one without the arguments that a command shares with
/// another and does not use.
fn command() -> clap::Command {
    Cli::command().mut_subcommand("replay", settings::without_server)
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(refusal) => return report::explain(&refusal),
    };
    let result = match cli.command {
        Command::Serve(arguments) => serve::told(serve::run(*arguments)),
        Command::Attach(arguments) => serve::told(serve::attach(*arguments)),
        Command::Detach(arguments) => attach::detach(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Flush(arguments) => admin::flush(&arguments),
        Command::Restore(arguments) => admin::restore(&arguments),
        Command::Volume(command) => volume::run(&command),
        Command::Tier(command) => tier::run(&command),
        Command::Stop(arguments) => admin::stop(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Handover(arguments) => pair::hand_over(&arguments),
        Command::Takeover(arguments) => pair::take_over(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::ExportDirty(arguments) => export_dirty::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Policies(arguments) => registered::policies(&arguments),
        Command::Admissions(arguments) => registered::admissions(&arguments),
        Command::Replay(arguments) => replay::run(*arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Bench(command) => bench::run(&command),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::Model(arguments) => model::run(&arguments),
        Command::Trace(command) => trace::run(&command),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Man(arguments) => man::run(&arguments, command()),
        Command::Completions(arguments) => man::completions(&arguments, command()),
    };
    match result {
        Ok(()) => {
            log::end();
            ExitCode::SUCCESS
        }
        Err(error) => report::report(&error),
    }
}

/// Makes one line of a failure in any part of the program.
trait OrFail<T> {
    /// The command line, a file or a packet was wrong: exit code 2.
    fn or_usage(self) -> Result<T, CliError>;
    /// Something failed while running: exit code 1.
    fn or_failure(self) -> Result<T, CliError>;
}

impl<T, E: std::fmt::Display> OrFail<T> for Result<T, E> {
    fn or_usage(self) -> Result<T, CliError> {
        self.map_err(|error| CliError::usage(error.to_string()))
    }

    fn or_failure(self) -> Result<T, CliError> {
        self.map_err(|error| CliError::failure(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use floe_trace::{GeneratorSpec, Kind, Trace};

    use super::*;

    /// The lines of help that are commands, with `'` around words that have blanks.
    fn examples(command: &clap::Command, found: &mut Vec<Vec<String>>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|line| line.strip_prefix("  floe ")) {
            let line = line.split(['|', '>', '#', '&']).next().unwrap_or(line);
            let in_quotes = line.split('\'').enumerate();
            let words = in_quotes.flat_map(|(at, part)| match at % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            });
            found.push(std::iter::once("floe".to_owned()).chain(words).collect());
        }
        command.get_subcommands().for_each(|command| examples(command, found));
    }

    #[test]
    fn every_example_of_every_help_can_be_typed() {
        let mut found = Vec::new();
        examples(&command(), &mut found);
        assert!(found.len() > 50, "{} examples", found.len());
        for words in found {
            let parsed = command().try_get_matches_from(&words);
            let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
            // Some arguments are looked up, and the files of examples are not here.
            let refused = parsed.err().map(|refusal| refusal.to_string());
            let refused = refused.filter(|line| !line.contains("does not exist"));
            assert_eq!(refused, None, "{words:?}");
            let of_disk = words[1] == "replay" || words.iter().any(|word| word == "--blocks");
            for spec in words.iter().filter_map(|word| word.parse::<GeneratorSpec>().ok()) {
                let trace =
                    Trace::generate(&spec).unwrap_or_else(|error| panic!("{words:?}: {error}"));
                assert!(!of_disk || trace.kind() == Kind::Block, "{words:?}: add block=4KiB");
            }
        }
    }
}
