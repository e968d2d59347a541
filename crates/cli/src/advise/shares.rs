//! `floe advise` with several traces: proposes shares of one cache for their volumes.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use comfy_table::Table;
use floe_block::{MOST_VOLUMES, WriteMode};
use floe_lab::advise::{
    AdviseError, Backing, Goal, ShareAdvice, ShareQuestion, SharingVolume, advise_shares,
};
use floe_lab::replay::{ReplayResult, VolumeOutcome};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Arguments, CacheMedium, read, wrapped};
use crate::error::{CliError, OrFail};
use crate::output;

/// Most characters of a volume's name in a table.
const NAME: usize = 14;

/// A trace, and the name of its volume.
#[derive(Debug, Clone, PartialEq)]
struct Named {
    name: String,
    trace: String,
}

/// Returns whether a text can be the name of a volume in a command and in floe.toml without quotes.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !text.is_empty() && text.chars().all(is_plain)
}

/// Splits `NAME=TRACE`. Without a name, that of the file up to its first dot is taken, or that of
/// the generator.
fn named(text: &str) -> Result<Named, CliError> {
    let is_file = Path::new(text).exists();
    if let Some((name, trace)) = text.split_once('=').filter(|(name, _)| !is_file && is_name(name))
    {
        if trace.is_empty() {
            return Err(CliError::usage(format!("{text}: the trace of volume {name} is missing")));
        }
        return Ok(Named { name: name.to_owned(), trace: trace.to_owned() });
    }
    let generator = text.find([':', '+']).filter(|_| !is_file);
    let whole = generator.map_or(text, |end| &text[..end]);
    let file = whole.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stem = file.split('.').find(|part| !part.is_empty()).unwrap_or("volume");
    let plain = |c: char| if is_name(c.encode_utf8(&mut [0; 4])) { c } else { '-' };
    Ok(Named { name: stem.chars().map(plain).collect(), trace: text.to_owned() })
}

/// Names all volumes.
///
/// # Errors
/// When there are too many, a trace is given twice, or two volumes would have the same name.
fn all_named(texts: &[String]) -> Result<Vec<Named>, CliError> {
    if texts.len() > MOST_VOLUMES {
        let given = texts.len();
        return Err(CliError::usage(format!(
            "{given} traces: a cache has at most {MOST_VOLUMES} volumes"
        )));
    }
    let all: Vec<Named> = texts.iter().map(|text| named(text)).collect::<Result<_, _>>()?;
    let place = |trace: &str| std::fs::canonicalize(trace).unwrap_or_else(|_| PathBuf::from(trace));
    for (at, it) in all.iter().enumerate() {
        let before = &all[..at];
        if let Some(other) = before.iter().find(|other| place(&other.trace) == place(&it.trace)) {
            let problem = if other.trace == it.trace {
                format!("{}: it is given twice; each volume needs a trace of its own", it.trace)
            } else {
                format!("{}: it is the same file as {}", it.trace, other.trace)
            };
            return Err(CliError::usage(problem));
        }
        if let Some(other) = before.iter().find(|other| other.name == it.name) {
            let (name, one, two) = (&it.name, &other.trace, &it.trace);
            return Err(CliError::usage(format!(
                "{two}: its volume and that of {one} are both named {name:?}; name them, as in \
                 a={one} b={two}"
            )));
        }
    }
    Ok(all)
}

/// Checks that no option is given that applies to one trace only.
fn refuse_others(arguments: &Arguments) -> Result<(), CliError> {
    let others = [
        (arguments.objects, "--objects"),
        (arguments.goal != Goal::Mean, "--goal"),
        (arguments.price.is_some(), "--price"),
        (arguments.s3_prices.is_some(), "--s3-prices"),
        (arguments.object_size.is_some(), "--object-size"),
        (arguments.files.any(), "--report, --png or --svg"),
    ];
    match others.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => {
            Err(CliError::usage(format!("{option} applies to one trace; several are given")))
        }
        None => Ok(()),
    }
}

/// Returns the one write mode; the server's default where none is given.
fn write_mode(given: &[WriteMode]) -> Result<WriteMode, CliError> {
    match given {
        [] => Ok(WriteMode::default()),
        [mode] => Ok(*mode),
        _ => Err(CliError::usage("--write: with several traces give one write mode")),
    }
}

/// Advises on the shares of the volumes of several traces.
pub(super) fn advise_volumes(
    arguments: &Arguments,
    backing: &Backing,
    cache: &CacheMedium,
) -> Result<(), CliError> {
    refuse_others(arguments)?;
    let Backing::Medium(medium) = backing else {
        return Err(CliError::usage(
            "--backing s3: shares are proposed above a medium; give for example --backing cloud",
        ));
    };
    let Some(cache_bytes) = cache.bytes else {
        let medium = &cache.medium;
        return Err(CliError::usage(format!(
            "--cache: with several traces give the size that they share, as in {medium}=10GiB"
        )));
    };
    let write = write_mode(&arguments.write)?;
    let volume = |Named { name, trace }: Named| {
        let workload = read(arguments, &trace)?;
        Ok(SharingVolume { name, trace, workload })
    };
    let named = all_named(&arguments.trace)?;
    let volumes: Vec<SharingVolume> =
        named.into_iter().map(volume).collect::<Result<_, CliError>>()?;
    let question = ShareQuestion {
        backing: medium.clone(),
        cache: cache.medium.clone(),
        cache_bytes,
        write,
        in_flight: arguments.in_flight as usize,
        warmup: f64::from(arguments.warmup) / 100.0,
    };
    let interrupted = crate::flag_of_signals(&[SIGINT, SIGTERM])?;
    let bar = output::progress(0, "replaying");
    let advice = advise_shares(&question, &volumes, &|done, expected| {
        bar.set_length(expected as u64);
        bar.set_position(done as u64);
        !interrupted.load(Relaxed) // a flag of its own: nothing else is read by it
    });
    bar.finish_and_clear();
    let advice = advice.map_err(|error| match error {
        AdviseError::Config(_) => CliError::usage(format!("--cache: {error}")),
        AdviseError::Replay(_) | AdviseError::Interrupted => CliError::failure(error.to_string()),
        _ => CliError::usage(error.to_string()),
    })?;
    if arguments.json {
        return output::json_line(&advice).or_failure();
    }
    print(&advice);
    Ok(())
}

fn print(advice: &ShareAdvice) {
    let size = output::bytes(advice.cache_bytes);
    let even = 100.0 / advice.volumes.len() as f64;
    let write = &advice.write;
    let text = format!(
        "Shares of a cache of {size}, write {write}. An even part is {even:.2} %. Last, the misses \
         of an LRU cache of an even part, and of the guaranteed part:"
    );
    output::say!("{}\n", wrapped(&text));
    output::print_table(&proposals(advice));
    output::say!("\n{}\n", wrapped(&advice.verdict));
    output::print_table(&replayed(advice));
    let counted = advice.requests - advice.warmup_requests;
    let text = format!(
        "{} requests, of which {counted} count. Each volume asks at an even pace, and all end \
         together.",
        advice.requests
    );
    output::say!("\n{}", wrapped(&text));
    for warning in &advice.warnings {
        output::say!("\n{}", wrapped(&format!("Warning: {warning}")));
    }
    output::say!("\nfloe.toml:\n\n{}", advice.toml.trim_end());
    if !advice.commands.is_empty() {
        output::say!("\nWhile a server runs:\n\n{}", advice.commands.join("\n"));
    }
}

/// Returns the table of the shares, with the misses of an LRU cache of each part.
fn proposals(advice: &ShareAdvice) -> Table {
    let columns = ["volume", "requests", "touch", "guaranteed", "most", "even", "own"];
    let mut table = output::table(&columns, 1);
    for it in &advice.volumes {
        table.add_row(vec![
            output::beginning(&it.volume, NAME),
            it.requests.to_string(),
            output::bytes(it.footprint_bytes),
            it.guaranteed.clone().unwrap_or_else(|| "–".to_owned()),
            it.most.clone().unwrap_or_else(|| "–".to_owned()),
            output::percent(it.even_miss_ratio),
            it.miss_ratio.map_or_else(|| "–".to_owned(), output::percent),
        ]);
    }
    table
}

/// The figures of a volume, or of all, in one replay.
struct Figures {
    reads: u64,
    hit_ratios: [f64; 2],
    us_mean: Option<f64>,
    us_p99: Option<f64>,
    backing_read_bytes: u64,
}

impl From<&VolumeOutcome> for Figures {
    fn from(it: &VolumeOutcome) -> Self {
        Self {
            reads: it.reads,
            hit_ratios: [it.read_hit_ratio, it.write_hit_ratio],
            us_mean: it.us_mean,
            us_p99: it.us_p99,
            backing_read_bytes: it.backing_read_bytes,
        }
    }
}

impl From<&ReplayResult> for Figures {
    fn from(it: &ReplayResult) -> Self {
        Self {
            reads: it.reads,
            hit_ratios: [it.read_hit_ratio, it.write_hit_ratio],
            us_mean: it.us_mean,
            us_p99: it.us_p99,
            backing_read_bytes: it.backing_read_bytes,
        }
    }
}

/// Returns the table of the replays: four lines for each volume, and for all.
fn replayed(advice: &ShareAdvice) -> Table {
    let names = advice.arrangements.iter().map(|it| it.arrangement);
    let columns: Vec<&str> = ["replayed", ""].into_iter().chain(names).collect();
    let mut table = output::table(&columns, 2);
    let volumes = advice.volumes.iter().enumerate().map(|(at, it)| (Some(at), &*it.volume));
    for (place, name) in volumes.chain([(None, "all")]) {
        let of = |result: &ReplayResult| match place {
            Some(at) => Figures::from(&result.volumes[at]),
            None => Figures::from(result),
        };
        let all: Vec<Figures> = advice.arrangements.iter().map(|it| of(&it.result)).collect();
        let writes_only = all.iter().all(|it| it.reads == 0);
        let us = |us: Option<f64>| us.map_or("–".to_owned(), output::microseconds);
        let of_hits = usize::from(writes_only);
        let lines: [(&str, Vec<String>); 4] = [
            (
                if writes_only { "write hits" } else { "read hits" },
                all.iter().map(|it| output::percent(it.hit_ratios[of_hits])).collect(),
            ),
            ("mean", all.iter().map(|it| us(it.us_mean)).collect()),
            ("p99", all.iter().map(|it| us(it.us_p99)).collect()),
            (
                "read from volume",
                all.iter().map(|it| output::bytes(it.backing_read_bytes)).collect(),
            ),
        ];
        for (at, (what, cells)) in lines.into_iter().enumerate() {
            let name = if at == 0 { output::beginning(name, NAME) } else { String::new() };
            table.add_row([name, what.to_owned()].into_iter().chain(cells));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Result<Vec<String>, String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let all = all_named(&texts).map_err(|error| error.line().to_owned())?;
        Ok(all.into_iter().map(|it| it.name).collect())
    }

    #[test]
    fn volumes_are_named_after_their_traces_or_as_told() {
        let texts = ["vm/disk.vscsi.zst", "db=old/disk.vscsi", "zipf:keys=10,block=4KiB", "a b"];
        assert_eq!(names(&texts).unwrap(), ["disk", "db", "zipf", "a-b"]);
        assert_eq!(names(&["x=zipf:keys=1", "zipf:keys=1,seed=2"]).unwrap(), ["x", "zipf"]);
    }

    #[test]
    fn names_and_traces_are_given_once() {
        for (texts, problem) in [
            (&["a.vscsi", "a.vscsi"][..], "a.vscsi: it is given twice"),
            (&["x=a.vscsi", "y=a.vscsi"], "a.vscsi: it is given twice"),
            (&["Cargo.toml", "../cli/Cargo.toml"], "it is the same file as Cargo.toml"),
            (&["one/a.csv", "two/a.csv"], "both named \"a\"; name them, as in a=one/a.csv"),
            (&["x=a.csv", "x=b.csv"], "b.csv: its volume and that of a.csv are both named \"x\""),
            (&["zipf:keys=1", "zipf:keys=2"], "both named \"zipf\""),
            (&["a.csv", "x="], "x=: the trace of volume x is missing"),
        ] {
            let error = names(texts).unwrap_err();
            assert!(error.contains(problem) && !error.contains('\n'), "{error}");
        }
        let many: Vec<String> = (0..=MOST_VOLUMES).map(|at| format!("t{at}.csv")).collect();
        let error = all_named(&many).unwrap_err();
        assert_eq!(error.line(), "257 traces: a cache has at most 256 volumes");
    }
}
