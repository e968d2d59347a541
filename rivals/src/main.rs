//! The cache in memory beside those of others, and beside what a lookup costs at least.
//!
//! In each round every cache is built anew, with another seed of its hash function, filled and made
//! steady; then all have their turns (`measure`). Rows of the same load share their caches. What is
//! printed: processor time of a request on its thread, its time with waiting, requests a second of
//! all threads, the share of hits, and how many times as long it takes as Floe and as the floor,
//! the median of the rounds with its 95 % interval. Rows of up to 256 threads have latencies of
//! single requests, too (`latency`). Apart from that, hit ratios are counted on traces (`traces`).

mod contender;
mod latency;
mod measure;
mod roster;
mod subjects;
mod table;
mod traces;
mod workload;

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Parser;

use contender::Contender;
use measure::{Plan, Turn};
use roster::Subject;
use table::{Measured, Outcome};
use workload::{Keys, Load, Row};

/// Measures caches in memory beside each other and beside the least a lookup can cost.
#[derive(Parser)]
#[command(about, long_about = None)]
struct Arguments {
    /// Rows to measure, all unless given: names as --list prints them, parts of names as
    /// `hits-1k/2t`, `goals`, or `goals-frozen`
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    only: Vec<String>,
    /// Caches that take part, all unless given; the floor always does
    #[arg(long, value_name = "CACHE", value_delimiter = ',')]
    caches: Vec<String>,
    /// Whose time the others' are compared with; the first cache of the roster where it does not
    /// take part
    #[arg(long, value_name = "CACHE", default_value = "floe")]
    base: String,
    /// Turns that each cache has, each after it was built anew, with another seed of its hash
    #[arg(long, value_name = "N", default_value = "31",
          value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of a turn; its first half is not counted, and is longer where it takes longer to ask
    /// for three times as many keys as there are
    #[arg(long, value_name = "S", default_value = "0.05", value_parser = seconds)]
    seconds: f64,
    /// Counts misses on traces in place of measuring: files or generators in words, all in the
    /// folder that FLOE_TRACES names unless given
    #[arg(long, value_name = "TRACE", num_args = 0.., conflicts_with = "only")]
    traces: Option<Vec<String>>,
    /// One JSON object for each row and cache, a line each
    #[arg(long)]
    json: bool,
    /// Only counts the bytes that an entry of Floe takes beside key and value
    #[arg(long)]
    bytes: bool,
    /// Only say which rows and caches there are
    #[arg(long)]
    list: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.001..=60.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be 0.001 to 60".to_owned())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let subjects = Subject::all(64, false);
    let names: BTreeSet<_> = match arguments.traces {
        Some(_) => traces::names().collect(),
        None => subjects
            .iter()
            .filter(|subject| subject.is_cache())
            .map(|subject| subject.name)
            .collect(),
    };
    if arguments.list {
        for row in Row::all() {
            println!("{}", row.name());
        }
        eprintln!("caches: {}", Vec::from_iter(names).join(", "));
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) =
        arguments.only.iter().find(|wanted| !Row::all().iter().any(|row| row.is(wanted)))
    {
        eprintln!("rivals: there is no row {unknown}; --list names them");
        return ExitCode::from(2);
    }
    if let Some(unknown) = arguments.caches.iter().find(|wanted| !names.contains(wanted.as_str())) {
        eprintln!(
            "rivals: there is no cache {unknown}; there are {}",
            Vec::from_iter(names).join(", ")
        );
        return ExitCode::from(2);
    }
    if !names.contains(arguments.base.as_str()) {
        eprintln!(
            "rivals: there is no cache {}; there are {}",
            arguments.base,
            Vec::from_iter(names).join(", ")
        );
        return ExitCode::from(2);
    }
    if arguments.bytes {
        println!("{:.2}", subjects::floe::bytes_an_entry());
        return ExitCode::SUCCESS;
    }
    let done = match &arguments.traces {
        Some(sources) => traces::run(sources, &arguments.caches, arguments.json),
        None => run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("rivals: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let wanted =
        |row: &Row| arguments.only.is_empty() || arguments.only.iter().any(|only| row.is(only));
    let has_caches = |row: &Row| {
        let subjects = Subject::all(row.load.value_bytes, row.load.is_shared);
        let has = subjects.iter().any(|subject| {
            subject.takes(&row.load, row.ops) && is_chosen(subject, &arguments.caches)
        });
        if !has {
            eprintln!("left out: none of these caches takes part in {}", row.name());
        }
        has
    };
    let rows: Vec<Row> = Row::all().into_iter().filter(wanted).filter(has_caches).collect();
    if rows.is_empty() {
        return Err("there is no row to measure".to_owned());
    }
    let mut keys = Keys::none();
    for group in rows.chunk_by(|a, b| a.load == b.load) {
        let load = group[0].load;
        if keys.ranked.len() != load.keys {
            eprintln!("drawing keys: {}", load.keys);
            let same = rows.iter().filter(|row| row.load.keys == load.keys);
            keys = Keys::new(load.keys, same.map(|row| row.threads).max().unwrap_or(1));
        }
        measure_group(arguments, &load, group, &keys)?;
    }
    Ok(())
}

/// Whether it is to take part: tables always are.
fn is_chosen(subject: &Subject, caches: &[String]) -> bool {
    !subject.is_cache() || caches.is_empty() || caches.iter().any(|name| name == subject.name)
}

/// How many times as many requests as a cache holds entries are not counted in a turn.
const WARM_PASSES: usize = 3;

/// A cache that takes part in a group.
struct Entrant {
    subject: Subject,
    contender: Box<dyn Contender>,
    hit_ratio: f64,
}

fn measure_group(
    arguments: &Arguments,
    load: &Load,
    group: &[Row],
    keys: &Keys,
) -> Result<(), String> {
    let chosen = |subject: &Subject| {
        let needed = group.iter().any(|row| subject.takes(load, row.ops));
        needed && is_chosen(subject, &arguments.caches)
    };
    let fill = |subject: Subject, round: usize| {
        if round == 0 {
            eprintln!("filling {} for {} of {} bytes", subject.name, load.name, load.value_bytes);
        }
        // On a thread, as requests are later: allocators keep the memory of the first thread apart
        // from that of others.
        std::thread::scope(|scope| {
            let filled = scope.spawn(|| {
                let contender = subject.fill(load, keys);
                let hit_ratio = contender::hit_ratio(&*contender, &keys.streams[0]);
                Entrant { subject, contender, hit_ratio }
            });
            filled.join().expect("no cache panics")
        })
    };
    let mut measured: Vec<Vec<Measured>> = group.iter().map(|_| Vec::new()).collect();
    for round in 0..=usize::from(arguments.rounds) {
        let subjects = Subject::all(load.value_bytes, load.is_shared).into_iter().filter(chosen);
        let entrants: Vec<Entrant> = subjects.map(|subject| fill(subject, round)).collect();
        for (row, caches) in group.iter().zip(&mut measured) {
            measure_row(arguments, row, keys, &entrants, round, caches);
        }
    }
    for (row, caches) in group.iter().zip(measured) {
        print_row(arguments, row, caches)?;
    }
    Ok(())
}

/// Adds the turns of a round to what was measured of each cache; the first round is for practice.
fn measure_row(
    arguments: &Arguments,
    row: &Row,
    keys: &Keys,
    entrants: &[Entrant],
    round: usize,
    caches: &mut Vec<Measured>,
) {
    let entrants: Vec<_> =
        entrants.iter().filter(|entrant| entrant.subject.takes(&row.load, row.ops)).collect();
    let contenders: Vec<_> = entrants.iter().map(|entrant| &*entrant.contender).collect();
    let plan = Plan {
        round,
        seconds: arguments.seconds,
        warm_requests: WARM_PASSES * row.load.capacity.unwrap_or(row.load.keys),
        is_timed: row.is_timed(),
    };
    let turns = measure::round(&contenders, row.ops, &keys.streams[..row.threads], plan);
    if round == 0 {
        eprintln!("measuring {}", row.name());
        caches.extend(entrants.iter().map(|entrant| Measured {
            name: entrant.subject.name,
            kind: entrant.subject.kind,
            capacity: entrant.contender.capacity(),
            hit_ratios: Vec::new(),
            turns: Vec::new(),
        }));
        return;
    }
    for ((cache, entrant), turn) in caches.iter_mut().zip(entrants).zip(turns) {
        cache.hit_ratios.push(entrant.hit_ratio);
        cache.turns.push(turn);
    }
}

fn print_row(arguments: &Arguments, row: &Row, caches: Vec<Measured>) -> Result<(), String> {
    for Measured { name, turns, .. } in &caches {
        if turns.iter().any(|turn| turn.counts.wrong != 0) {
            return Err(format!("{name} answered with another key's value in {}", row.name()));
        }
        let missed = |turn: &Turn| turn.counts.requests - turn.counts.writes - turn.counts.hits;
        let missed: u64 = turns.iter().map(missed).sum();
        if row.load.capacity.is_none() && missed > 0 {
            eprintln!("{name} missed {missed} times in {}, where all should hit", row.name());
        }
    }
    let outcome = Outcome { row: *row, caches, base: &arguments.base };
    if outcome.was_disturbed() {
        eprintln!("other work disturbed {}: measure it again on a quiet machine", row.name());
    }
    let printed = if arguments.json { outcome.print_json() } else { outcome.print_table() };
    printed.map_err(|error| format!("cannot print: {error}"))
}
