//! `floe simulate --memory --flash`: the cache of objects in memory and on flash.

use clap::Args;
use floe_hybrid::{Admission, AdmissionError, WriteBudget};
use floe_lab::report::hybrid_report;
use floe_lab::simulate::hybrid::{HybridResult, Limits, Writes, simulate};
use floe_lab::simulate::on_all_cores;
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_lab::sizes::{CacheSize, Sizes};
use floe_server::config::Bytes;
use floe_trace::{Kind, Op, Request};

use super::Arguments;
use super::objects::with_progress;
use crate::error::{CliError, OrFail};
use crate::output;
use crate::trace::{TraceArguments, read_all};

pub(super) fn run(arguments: &Arguments, memory: &Sizes, flash: &Sizes) -> Result<(), CliError> {
    let several = arguments.traces.len() > 1;
    let mut all = Vec::new();
    for trace in &arguments.traces {
        let mut objects = Objects::read(trace, &arguments.open, arguments.object_size)?;
        let requests = objects.stream.keys.len() as u64;
        let in_trace = |problem| CliError::usage(format!("{trace}: {problem}"));
        let warmup = arguments.warmup.of(requests).map_err(in_trace)?;
        objects.stream.count_from(warmup as usize, None);
        let limits = limits(&objects.stream, memory, flash)?;
        let results = objects.simulate(trace, &limits, arguments.writes.settings())?;
        if !(arguments.json || arguments.csv) {
            if several {
                output::say!("{trace}");
            }
            print(&results);
            if several {
                output::say!();
            }
        }
        all.extend(results);
    }
    arguments.files.write(|command| hybrid_report(&arguments.traces[0], command, &all))?;
    match (arguments.csv, arguments.json) {
        (true, _) => output::csv(&all).or_failure(),
        (_, true) => all.iter().try_for_each(output::json_line).or_failure(),
        _ => Ok(()),
    }
}

/// Options that decide what a cache of objects writes to flash.
#[derive(Debug, Clone, Args)]
pub(crate) struct WriteArguments {
    /// Admission of the objects that memory evicts: everything, popularity, small-bypass or
    /// tinylfu [default: everything]
    #[arg(long, value_name = "NAME", value_parser = admission)]
    admission: Option<Admission>,
    /// Limit of the bytes written to flash by the trace's clock, such as "1 DWPD", "50 TB/year" or
    /// "40 MB/s"
    #[arg(long, value_name = "RATE")]
    write_budget: Option<WriteBudget>,
}

impl WriteArguments {
    /// Refuses the options where `wanted`, the option that they belong to, is not given.
    pub(crate) fn need(&self, wanted: &str) -> Result<(), CliError> {
        let given = self.admission.map(|_| "--admission");
        match given.or(self.write_budget.map(|_| "--write-budget")) {
            Some(option) => Err(CliError::usage(format!("{option} needs {wanted}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn settings(&self) -> Writes {
        Writes { admission: self.admission.unwrap_or_default(), budget: self.write_budget }
    }
}

fn admission(text: &str) -> Result<Admission, String> {
    match text.parse() {
        Ok(Admission::Obp) => {
            Err("obp measures the latencies of a drive, which a simulation does not have".into())
        }
        parsed => parsed.map_err(|error: AdmissionError| error.to_string()),
    }
}

/// A trace of objects with sizes.
pub(crate) struct Objects {
    pub(crate) stream: Stream,
    /// Time of each request in nanoseconds; empty if the trace has no times.
    times: Vec<u64>,
}

impl Objects {
    /// Reads a trace. `size` is the size of the objects where the trace has none.
    pub(crate) fn read(
        path: &str,
        open: &TraceArguments,
        size: Option<Bytes>,
    ) -> Result<Self, CliError> {
        let mut trace = open.open(path, false)?;
        let refused = |problem: &str| Err(CliError::usage(format!("{path}: {problem}")));
        match (trace.kind(), size) {
            (Kind::Block, _) => {
                return refused(
                    "it is disk I/O; --flash simulates objects, --blocks a disk's cache",
                );
            }
            (Kind::Key, None) => {
                return refused("a trace of keys has no sizes; give one, as --object-size 4KiB");
            }
            (Kind::Object, Some(_)) => {
                return refused("its objects have sizes, so --object-size is not for it");
            }
            _ => {}
        }
        let keep = Keep { rate: 1.0, sizes: true, next_use: false };
        let mut builder = Builder::new(trace.kind(), keep, 1);
        let (mut times, mut has_times) = (Vec::new(), false);
        read_all(path, &mut trace, "reading", |request| {
            has_times |= request.time_ns > 0;
            if request.op != Op::Delete {
                times.push(request.time_ns);
            }
            let bytes = size.map_or(request.bytes, |Bytes(bytes)| bytes);
            builder.add(&Request { bytes, ..*request }).or_usage()
        })?;
        let times = if has_times { times } else { Vec::new() };
        Ok(Self { stream: builder.finish().or_usage()?, times })
    }

    /// Simulates caches with these limits, on all cores.
    pub(crate) fn simulate(
        &self,
        trace: &str,
        limits: &[Limits],
        writes: Writes,
    ) -> Result<Vec<HybridResult>, CliError> {
        if writes.budget.is_some() && self.times.is_empty() {
            return Err(CliError::usage(format!(
                "{trace}: it has no times; --write-budget needs them"
            )));
        }
        let requests = (self.stream.keys.len() * limits.len()) as u64;
        let results = with_progress(requests, |done| {
            on_all_cores(limits, |limits| {
                simulate(trace, (&self.stream, &self.times), (*limits, writes), done)
                    .map_err(|error| CliError::usage(format!("{}: {error}", limits_text(limits))))
            })
        });
        results.into_iter().collect()
    }
}

fn limits_text(limits: &Limits) -> String {
    format!("--memory {} --flash {}", output::bytes(limits.memory), output::bytes(limits.flash))
}

/// Returns all pairs of sizes of memory and flash.
fn limits(stream: &Stream, memory: &Sizes, flash: &Sizes) -> Result<Vec<Limits>, CliError> {
    let of = |name: &str, size: &CacheSize| match size {
        CacheSize::Count(count) => Err(CliError::usage(format!(
            "{name} {count}: it has no unit; write 10GiB, or a share such as 10%"
        ))),
        CacheSize::Bytes(_) | CacheSize::Percent(_) => Ok(size.of(stream.footprint)),
    };
    let mut limits = Vec::new();
    for memory in &memory.0 {
        let memory = of("--memory", memory)?;
        for flash in &flash.0 {
            limits.push(Limits { memory, flash: of("--flash", flash)? });
        }
    }
    Ok(limits)
}

/// Prints a table of the hits and one of the writes to flash.
pub(crate) fn print(results: &[HybridResult]) {
    let share = |part: u64, of: u64| output::percent(part as f64 / of.max(1) as f64);
    let columns = ["memory", "flash", "reads", "hits", "in memory", "on flash", "hits of bytes"];
    let mut table = output::table(&columns, 0);
    for result in results {
        table.add_row([
            output::bytes(result.memory),
            output::bytes(result.flash),
            result.requests.to_string(),
            output::percent(result.hit_ratio),
            share(result.memory_hits, result.requests),
            share(result.flash_hits, result.requests),
            output::percent(result.byte_hit_ratio),
        ]);
    }
    output::print_table(&table);
    output::say!();
    let columns = ["memory", "flash", "written", "a byte in", "again", "a day", "DWPD"];
    let has_times = results.iter().any(|result| result.writes_per_day.is_some());
    let columns = if has_times { &columns[..] } else { &columns[..5] };
    let mut table = output::table(columns, 0);
    for result in results {
        let mut cells = vec![
            output::bytes(result.memory),
            output::bytes(result.flash),
            output::bytes(result.flash_written_bytes),
            format!("{:.3}", result.written_per_inserted_byte),
            share(result.reinserted_bytes, result.flash_written_bytes),
        ];
        if has_times {
            let rate = result.written_bytes_per_second.unwrap_or(0.0);
            cells.push(output::bytes((rate * 86_400.0) as u64));
            cells.push(result.writes_per_day.map_or("–".into(), |writes| format!("{writes:.2}")));
        }
        table.add_row(cells);
    }
    output::print_table(&table);
    let too_large = results.iter().map(|result| result.too_large).max().unwrap_or(0);
    let declined = results.iter().map(|result| result.flash_declined).max().unwrap_or(0);
    if declined > 0 {
        output::say!("\nUp to {declined} objects that memory evicted were not admitted to flash.");
    }
    if too_large > 0 {
        output::say!("\nUp to {too_large} insertions were declined: too large.");
    }
}
