//! The cache in memory and on flash beside foyer with its disk, and beside bare reads of the disk.
//!
//! Reads and insertions are paired: all subjects are open at once, and their batches take turns in
//! each round. The table shows medians of the rounds. Other figures open one subject after another.
//! Processor time is that of all threads of this process.
//!
//! A subject may have settings behind its name: `foyer/flushers=4/buffer=16M`. `foyer` alone has
//! the settings that measured best: O_DIRECT, `pread` on tokio's blocking threads, S3-FIFO in
//! memory, writing on insertion, one flusher, buffers of 64 MiB twice. The threads of its rings
//! (`foyer-uring`) do not rest: that subject is open in its turns only.

mod figures;
mod load;
mod roster;
mod subjects;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use figures::{FIGURES, Plan, fill_and_die};
use roster::{Named, roster};
use subjects::Settings;
use table::Results;

/// Measures caches in memory and on flash beside each other and beside bare reads.
#[derive(Parser)]
#[command(about, long_about = None)]
struct Arguments {
    /// Figures to measure, all unless given; --list names them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Subjects, all unless given, with settings behind a slash: foyer/engine=uring/flushers=2
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    subjects: Vec<String>,
    /// Rounds in which subjects take turns
    #[arg(long, value_name = "N", default_value = "9",
          value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Objects of 1 KB; there are fewer of larger ones. 100,000 take 3 GiB of disk,
    /// and 17 GiB for recovery of every subject
    #[arg(long, value_name = "N", default_value = "40000",
          value_parser = clap::value_parser!(u32).range(10_000..=400_000))]
    objects: u32,
    /// Folder for the files of the caches, on the disk to measure
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// Fill the cache in the folder and end without closing it: memory and flash in bytes,
    /// bytes of a value, objects. For the figure recovery
    #[arg(long, num_args = 4, value_names = ["MEMORY", "FLASH", "VALUE", "OBJECTS"], hide = true)]
    fill: Vec<usize>,
    /// One JSON object for each figure and subject, a line each
    #[arg(long)]
    json: bool,
    /// Only say which figures and subjects there are
    #[arg(long)]
    list: bool,
}

/// The subjects of the command line for a figure.
fn participants(arguments: &Arguments, figure: &str) -> Result<Vec<Named>, String> {
    let all = roster();
    if arguments.subjects.is_empty() {
        return Ok(all.into_iter().filter(|named| named.takes(figure)).collect());
    }
    let mut chosen = Vec::new();
    for wanted in &arguments.subjects {
        let mut parts = wanted.split('/');
        let name = parts.next().unwrap_or_default();
        let Some(named) = all.iter().find(|named| named.name == name) else {
            let names: Vec<_> = all.iter().map(|named| &*named.name).collect();
            return Err(format!("there is no subject {name}; there are {}", names.join(", ")));
        };
        let mut named = named.clone();
        named.name.clone_from(wanted);
        named.words.extend(parts.map(str::to_owned));
        if !named.is_floor() || named.figures.contains(&figure) {
            chosen.push(named);
        }
    }
    Ok(chosen)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        FIGURES.iter().for_each(|(name, about, _)| println!("{name:8} {about}"));
        let names: Vec<_> = roster().into_iter().map(|named| named.name).collect();
        println!("subjects: {}", names.join(", "));
        return ExitCode::SUCCESS;
    }
    let is_unknown = |name: &&String| !FIGURES.iter().any(|figure| figure.0 == name.as_str());
    if let Some(unknown) = arguments.only.iter().find(is_unknown) {
        eprintln!("rivals: there is no figure {unknown}; --list names them");
        return ExitCode::from(2);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("rivals: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if let [memory, flash, value_bytes, objects] = arguments.fill[..] {
        let subjects = participants(arguments, "recovery")?;
        let folder = arguments.dir.clone().unwrap_or_default();
        let settings = Settings { folder, memory, flash, value_bytes, words: Vec::new() };
        return fill_and_die(&subjects[0], settings, objects);
    }
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = Scratch(parent.join(format!("floe-rivals-flash-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0)
        .map_err(|error| format!("cannot use {}: {error}", parent.display()))?;
    for (name, about, measure) in FIGURES {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| only == name) {
            continue;
        }
        let subjects = participants(arguments, name)?;
        let plan = Plan {
            subjects: &subjects,
            folder: scratch.0.join(name),
            rounds: arguments.rounds.into(),
            objects: arguments.objects as usize,
        };
        let mut results = Results::new(name, about, &subjects);
        eprintln!("measuring {name}");
        measure(&plan, &mut results)?;
        let _ = std::fs::remove_dir_all(&plan.folder);
        let printed = if arguments.json { results.print_json() } else { results.print_table() };
        printed.map_err(|error| format!("cannot print: {error}"))?;
    }
    Ok(())
}
