//! The `floe` program, which turns arguments into tables or JSON.
//!
//! Everything except `main` is in this library, so that its documentation does not replace that of
//! the library `floe`.

mod admin;
mod advise;
mod attach;
mod bench;
mod calibrate;
mod check;
mod coherence;
mod demo;
#[cfg(test)]
mod documented {
    mod tests;
}
mod draining;
mod error;
mod hybrid;
mod log;
mod man;
mod model;
mod numbers;
mod output;
mod pair;
mod registered;
mod replay;
mod serve;
mod settings;
mod simulate;
mod status;
mod tier;
mod trace;
mod volume;
mod warmup;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use clap::error::{ContextKind, ContextValue};
use floe_server::admin::client;

use admin::Server;
use error::{CliError, OrFail, USAGE};
use settings::refused_by_replay;

/// A cache for storage that is nearly as fast as memory.
#[derive(Debug, Parser)]
#[command(name = "floe", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: FloeCommand,
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
  floe limit --total-requests-per-second 20000
  floe tier add file:/dev/nvme1n1
  floe check /var/cache/floe.img
  floe hybrid info /mnt/nvme/cache
  floe simulate P3.lis.zst --policy lru,s3-fifo,arc,belady --size 1%,10%,30% --report P3.html
  floe simulate src1_0.csv.gz --blocks 32KiB,64KiB,128KiB,256KiB --blocks 32KiB --size 10%
  floe replay disk.vscsi --config floe.toml --in-flight 16
  floe advise disk.vscsi --backing hdd --cache nvme
  floe bench memory --policy s3-fifo,lru --capacity 10% --threads 1,2
  floe calibrate file:/mnt/pmem/scratch --into pmem.json
  floe model --policy lru,fifo --mpl 16,72,144 --disk-us 5,100
  floe trace info *.vscsi";

#[derive(Debug, Subcommand)]
enum FloeCommand {
    /// Serve volumes through a cache to clients, over NBD and NVMe/TCP
    Serve(Box<serve::Arguments>),
    /// Attach a volume to this machine as a block device, through a cache
    Attach(Box<serve::AttachArguments>),
    /// Detach a block device that is not in use, and end its server
    Detach(attach::DetachArguments),
    /// Show the counters of a running server
    Status(status::Arguments),
    /// Write all dirty data of a running server to its volumes
    #[command(after_help = admin::FLUSH_EXAMPLES)]
    Flush(Server),
    /// Use a failed cache device again
    #[command(after_help = admin::RESTORE_EXAMPLES)]
    Restore(Server),
    /// Limit the requests of all volumes of a running server together
    Limit(volume::limit::LimitTotal),
    /// List and change the volumes of a running server
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// List, attach and detach the tiers of a running server
    #[command(subcommand)]
    Tier(tier::TierCommand),
    /// Shut down a running server after making all written data durable
    #[command(after_help = admin::STOP_EXAMPLES)]
    Stop(Server),
    /// Replace the program of a running server, whose attached devices stay in use
    #[command(after_help = admin::UPGRADE_EXAMPLES)]
    Upgrade(Server),
    /// End the active server of a pair, so that the standby takes over
    #[command(after_help = pair::HANDOVER_EXAMPLES)]
    Handover(Server),
    /// Have a standby take over from the active server of its pair
    #[command(after_help = pair::TAKEOVER_EXAMPLES)]
    Takeover(Server),
    /// Check a cache that no server uses, and repair it
    Check(check::Arguments),
    /// Inspect the file of a cache in memory and on flash, of the library floe::hybrid
    #[command(subcommand)]
    Hybrid(hybrid::HybridCommand),
    /// Write a cache's dirty data to its volumes, without a server
    ExportDirty(check::ExportDirtyArguments),
    /// Compare eviction policies or block sizes on a trace
    Simulate(Box<simulate::Arguments>),
    /// List the eviction policies that --policy and --evict take
    Policies(registered::PoliciesArguments),
    /// List the admissions that --admit takes
    Admissions(registered::AdmissionsArguments),
    /// Replay a trace through a cache, on its devices or in virtual time
    Replay(Box<replay::Arguments>),
    /// Find the best cache settings for a trace and two kinds of devices
    Advise(Box<advise::Arguments>),
    /// Measure caches under load
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Measure how much writes slow down a device's reads, to set an admission
    Calibrate(Box<calibrate::Arguments>),
    /// Compute throughput by hit ratio, and the hit ratio past which it falls
    Model(Box<model::Arguments>),
    /// Simulate the cache lines that requests pass between many cores
    Coherence(coherence::Arguments),
    /// Inspect and convert traces
    #[command(subcommand)]
    Trace(trace::TraceCommand),
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

/// Runs the command that the command line asks for. Returns the exit code.
pub fn run() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(refusal) => return explain(&refusal),
    };
    let result = match cli.command {
        FloeCommand::Serve(arguments) => serve::told(serve::run(*arguments)),
        FloeCommand::Attach(arguments) => serve::told(serve::attach(*arguments)),
        FloeCommand::Detach(arguments) => attach::detach(&arguments),
        FloeCommand::Status(arguments) => status::run(&arguments),
        FloeCommand::Flush(server) => admin::flush(&server),
        FloeCommand::Restore(server) => admin::send(&server, client::restore),
        FloeCommand::Limit(arguments) => arguments.run(),
        FloeCommand::Volume(command) => volume::run(&command),
        FloeCommand::Tier(command) => tier::run(&command),
        FloeCommand::Stop(server) => admin::send(&server, client::stop),
        FloeCommand::Upgrade(server) => admin::send(&server, client::upgrade),
        FloeCommand::Handover(server) => admin::send(&server, client::hand_over),
        FloeCommand::Takeover(server) => admin::send(&server, client::take_over),
        FloeCommand::Check(arguments) => check::run(&arguments),
        FloeCommand::Hybrid(command) => hybrid::run(&command),
        FloeCommand::ExportDirty(arguments) => check::export_dirty(&arguments),
        FloeCommand::Simulate(arguments) => simulate::run(&arguments),
        FloeCommand::Policies(arguments) => registered::policies(&arguments),
        FloeCommand::Admissions(arguments) => registered::admissions(&arguments),
        FloeCommand::Replay(arguments) => replay::run(*arguments),
        FloeCommand::Advise(arguments) => advise::run(&arguments),
        FloeCommand::Bench(command) => bench::run(&command),
        FloeCommand::Calibrate(arguments) => calibrate::run(&arguments),
        FloeCommand::Model(arguments) => model::run(&arguments),
        FloeCommand::Coherence(arguments) => coherence::run(&arguments),
        FloeCommand::Trace(command) => trace::run(&command),
        FloeCommand::Demo(arguments) => demo::run(&arguments),
        FloeCommand::Man(arguments) => man::run(&arguments, command()),
        FloeCommand::Completions(arguments) => man::completions(&arguments, command()),
    };
    match result {
        Ok(()) => {
            log::end();
            ExitCode::SUCCESS
        }
        Err(error) => log::report(&error),
    }
}

/// Prints help if the user asked for it, and else the first line of clap's error.
fn explain(refusal: &clap::Error) -> ExitCode {
    if !refusal.use_stderr() {
        let _ = refusal.print(); // a reader who has seen enough and closed the pipe is no error
        return ExitCode::SUCCESS;
    }
    let text = refusal.render().to_string();
    if refusal.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{text}");
        return ExitCode::from(USAGE);
    }
    if let Some(line) = refused_by_replay(refusal) {
        return log::report(&CliError::usage(line));
    }
    // clap lists what is missing on lines of their own.
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    let hint = meant(refusal).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    log::report(&CliError::usage(format!("{}{hint}", line.trim_start_matches("error: "))))
}

/// Returns clap's suggestion for a mistyped word, if it has one.
fn meant(refusal: &clap::Error) -> Option<&str> {
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    match suggested.into_iter().find_map(|kind| refusal.get(kind))? {
        ContextValue::String(one) => Some(one),
        ContextValue::Strings(some) => some.first().map(String::as_str),
        _ => None,
    }
}

/// Returns a flag that each of these signals sets.
fn flag_of_signals(signals: &[i32]) -> Result<Arc<AtomicBool>, CliError> {
    let flag = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&flag)).or_failure()?;
    }
    Ok(flag)
}

#[cfg(test)]
mod tests {
    use floe_trace::{GeneratorSpec, Kind, Trace};

    use super::*;

    /// Collects the example commands in help texts. Words with blanks get single quotes.
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
