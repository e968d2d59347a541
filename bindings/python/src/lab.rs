//! The Python module `floe_cache.lab`: traces, simulations, replays and models.
//!
//! Long operations release the interpreter's lock. Results are JSON objects, one per line, with the
//! fields that `floe` prints with `--json`. The Python side turns them into columns.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use floe_lab::model::{Curve, Demand, Line, Star};
use floe_lab::replay::{Feed, Fit, Layout, Pace, Plan, ReplayResult, Setup, Stage, Survey, run};
use floe_lab::simulate::objects::{self, Latency, Run, SimulationResult};
use floe_lab::simulate::stream::{Builder, Keep, Stream};
use floe_lab::simulate::{BLOCK_BYTES, Grid, Reading, on_all_cores};
use floe_lab::sizes::Sizes;
use floe_model::events::{Distributions, Effort};
use floe_model::policies::POLICIES;
use floe_model::{Policy, Service};
use floe_policy::admission::registry::choices;
use floe_server::config::{
    Given, Percent, ServerConfig, Setting, TierConfig, VolumeConfig, read_given, read_times,
};
use floe_trace::{Columns, Filter, Kind, Op, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;

/// Converts an error of the lab into a Python exception.
fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Serializes each result to a line of JSON.
fn lines<T: Serialize>(results: &[T]) -> PyResult<Vec<String>> {
    results.iter().map(|result| serde_json::to_string(result).map_err(invalid)).collect()
}

/// Number of requests between two checks for signals.
const LOOK_FOR_SIGNALS_EVERY: usize = 1 << 20;

/// A trace: a file, or a generator such as "zipf:keys=1000,requests=100000".
#[pyclass(frozen, module = "floe_cache.lab")]
#[derive(Debug)]
pub(crate) struct Trace {
    name: String,
    options: OpenOptions,
    /// The `columns` argument as given, for a copy in another process.
    columns: Option<String>,
    filter: Option<String>,
    kind: Kind,
    format: String,
    /// The stream that was read last, with its options.
    read: Mutex<Option<(Keep, Arc<Stream>)>>,
}

/// Returns the name of a kind of keys, as in `floe trace formats --json`.
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Block => "block",
        Kind::Object => "object",
        Kind::Key => "key",
    }
}

#[pymethods]
impl Trace {
    #[new]
    #[pyo3(signature = (
        source, *, format=None, columns=None, skip_bad=false, as_blocks=false, filter=None
    ))]
    fn new(
        source: String,
        format: Option<&str>,
        columns: Option<String>,
        skip_bad: bool,
        as_blocks: bool,
        filter: Option<String>,
    ) -> PyResult<Self> {
        let format = format.map(|name| name.parse().map_err(invalid)).transpose()?;
        let of_table: Option<Columns> =
            columns.as_ref().map(|text| text.parse().map_err(invalid)).transpose()?;
        let kept: Option<Filter> =
            filter.as_ref().map(|text| text.parse().map_err(invalid)).transpose()?;
        let options = OpenOptions { format, skip_bad, as_blocks, columns: of_table, filter: kept };
        let opened = floe_trace::Trace::open_source(&source, &options).map_err(invalid)?;
        let (kind, format) = (opened.kind(), opened.format().to_string());
        let read = Mutex::new(None);
        Ok(Self { name: source, options, columns, filter, kind, format, read })
    }

    /// Returns the name by which the trace was opened.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of the trace's format.
    #[getter]
    fn format(&self) -> &str {
        &self.format
    }

    /// The meaning of keys: "block", "object" or "key".
    #[getter]
    fn kind(&self) -> &'static str {
        name_of(self.kind)
    }

    /// Reads all requests, or the first `limit`, as columns of bytes in native byte order: time in
    /// nanoseconds, key, bytes, volume (4 bytes each), and the operation (a byte each: 0 reads, 1
    /// writes, 2 deletes).
    #[pyo3(signature = (limit=None))]
    fn _columns<'py>(&self, py: Python<'py>, limit: Option<usize>) -> PyResult<Bound<'py, PyDict>> {
        let mut columns: [Vec<u8>; 5] = Default::default();
        let limit = limit.unwrap_or(usize::MAX);
        let mut trace =
            floe_trace::Trace::open_source(&self.name, &self.options).map_err(invalid)?.take(limit);
        loop {
            let ended = py.detach(|| -> Result<bool, floe_trace::Error> {
                let [times, keys, bytes, volumes, operations] = &mut columns;
                for _ in 0..LOOK_FOR_SIGNALS_EVERY {
                    let Some(request) = trace.next().transpose()? else { return Ok(true) };
                    times.extend(request.time_ns.to_ne_bytes());
                    keys.extend(request.key.to_ne_bytes());
                    bytes.extend(request.bytes.to_ne_bytes());
                    volumes.extend(request.volume.to_ne_bytes());
                    operations.push(match request.op {
                        Op::Read => 0,
                        Op::Write => 1,
                        Op::Delete => 2,
                    });
                }
                Ok(false)
            });
            if ended.map_err(invalid)? {
                break;
            }
            py.check_signals()?;
        }
        let dict = PyDict::new(py);
        for (name, column) in ["time_ns", "key", "bytes", "volume", "op"].into_iter().zip(&columns)
        {
            dict.set_item(name, PyBytes::new(py, column))?;
        }
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!("Trace('{}', format='{}', kind='{}')", self.name, self.format, self.kind())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        let format = own.options.format.as_ref().map(ToString::to_string);
        let (skip_bad, as_blocks) = (own.options.skip_bad, own.options.as_blocks);
        let arguments = (&own.name, format, &own.columns, skip_bad, as_blocks, &own.filter);
        let make = slf.py().import("floe_cache.lab")?.getattr("_trace")?;
        Ok((make, arguments).into_pyobject(slf.py())?.into_any())
    }
}

impl Trace {
    pub(crate) fn kind_of_keys(&self) -> Kind {
        self.kind
    }

    pub(crate) fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Reads the trace, unless the last reading had the same options.
    ///
    /// # Errors
    /// When the trace cannot be read, or no request is left of it.
    pub(crate) fn stream(&self, keep: Keep) -> Result<Arc<Stream>, String> {
        let alike = |other: &Keep| {
            (other.rate, other.sizes, other.next_use) == (keep.rate, keep.sizes, keep.next_use)
        };
        let last = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = last().as_ref().filter(|(other, _)| alike(other)) {
            return Ok(Arc::clone(stream));
        }
        let in_trace = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        let trace = floe_trace::Trace::open_source(&self.name, &self.options)
            .map_err(|error| error.to_string())?;
        let mut builder = Builder::new(self.kind, keep, BLOCK_BYTES);
        for request in trace {
            let request = request.map_err(|error| error.to_string())?;
            builder.add(&request).map_err(|error| in_trace(&error))?;
        }
        let stream = Arc::new(builder.finish().map_err(|error| in_trace(&error))?);
        *last() = Some((keep, Arc::clone(&stream)));
        Ok(stream)
    }

    /// Releases the stream that was read last.
    pub(crate) fn forget(&self) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns the names of the policies, each with its description.
#[pyfunction]
pub(crate) fn policies() -> Vec<(&'static str, &'static str)> {
    floe_policy::POLICIES.iter().map(|entry| (entry.info.name, entry.info.idea)).collect()
}

/// Simulates each policy at each size over each trace, and returns a line of JSON for each run. As
/// many traces are in memory at a time as there are cores. A trace whose `keep` is false is
/// released after its runs. With `some_sizes`, sizes too small for a single object are skipped.
#[pyfunction]
#[pyo3(signature = (
    traces, policies, sizes, *, admit, in_bytes, sample, hit_us, miss_us, insert_us, keep,
    some_sizes
))]
#[expect(clippy::too_many_arguments, reason = "the options of one call, a name each")]
pub(crate) fn simulate(
    py: Python<'_>,
    traces: Vec<Py<Trace>>,
    policies: Vec<String>,
    sizes: &str,
    admit: Vec<String>,
    in_bytes: bool,
    sample: f64,
    hit_us: f64,
    miss_us: Option<f64>,
    insert_us: f64,
    keep: Vec<bool>,
    some_sizes: bool,
) -> PyResult<Vec<String>> {
    let grid = Grid {
        policies: policies
            .iter()
            .map(|name| name.parse().map_err(invalid))
            .collect::<PyResult<_>>()?,
        admissions: match &admit[..] {
            [] => vec![Vec::new()],
            _ => {
                admit.iter().map(|text| choices(text).map_err(invalid)).collect::<PyResult<_>>()?
            }
        },
        sizes: sizes.parse::<Sizes>().map_err(invalid)?,
        objects_min: 0,
        in_bytes,
        rate: sample,
    };
    let latency = miss_us.map(|miss_us| Latency { hit_us, miss_us, insert_us });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results = Vec::new();
    let traces: Vec<(&Trace, bool)> = traces.iter().map(Py::get).zip(keep).collect();
    for some in traces.chunks(cores) {
        py.check_signals()?;
        let simulated = py.detach(|| simulate_some(&grid, some, latency, some_sizes));
        results.extend(simulated.map_err(invalid)?);
    }
    lines(&results)
}

/// Simulates over traces that fit in memory together.
fn simulate_some(
    grid: &Grid,
    traces: &[(&Trace, bool)],
    latency: Option<Latency>,
    some_sizes: bool,
) -> Result<Vec<SimulationResult>, String> {
    let read = on_all_cores(traces, |(trace, _)| read(grid, trace, some_sizes));
    let mut jobs: Vec<(&Trace, Arc<Stream>, Run)> = Vec::new();
    for ((trace, _), read) in traces.iter().zip(read) {
        let (stream, runs) = read?;
        jobs.extend(runs.into_iter().map(|run| (*trace, Arc::clone(&stream), run)));
    }
    let unseen = AtomicU64::new(0);
    let results = on_all_cores(&jobs, |(trace, stream, run)| {
        objects::simulate(trace.name(), stream, run, latency, &unseen)
    });
    traces.iter().filter(|(_, keep)| !keep).for_each(|(trace, _)| trace.forget());
    Ok(results)
}

/// Reads a trace and plans its runs.
fn read(grid: &Grid, trace: &Trace, some_sizes: bool) -> Result<(Arc<Stream>, Vec<Run>), String> {
    let in_trace = |error: &dyn std::fmt::Display| format!("{}: {error}", trace.name());
    let Reading { keep, unit } =
        grid.reading(trace.kind_of_keys()).map_err(|error| in_trace(&error))?;
    let stream = trace.stream(keep)?;
    let mut grid = grid.clone();
    if some_sizes {
        let footprint = (stream.footprint as f64 / stream.rate) as u64 * unit;
        grid.sizes.0.retain(|size| size.of(footprint) >= unit);
    }
    let runs = grid.runs(&stream, unit).map_err(|error| in_trace(&error))?;
    Ok((stream, runs))
}

/// Mask of the request number: the simulation checks for signals whenever all its bits are set.
const LOOK_FOR_SIGNALS_MASK: usize = (1 << 12) - 1;

/// Simulates a policy written in Python at each size. `make` creates the policy for a capacity.
/// Returns the capacity, the requests and the hits for each size.
#[pyfunction]
pub(crate) fn simulate_own(
    py: Python<'_>,
    trace: Py<Trace>,
    make: &Bound<'_, PyAny>,
    sizes: &str,
) -> PyResult<Vec<(u64, u64, u64)>> {
    let grid = Grid {
        policies: vec!["lru".parse().map_err(invalid)?], // a place for the caller's
        admissions: vec![Vec::new()],
        sizes: sizes.parse::<Sizes>().map_err(invalid)?,
        objects_min: 0,
        in_bytes: false,
        rate: 1.0,
    };
    if grid.counts_bytes() {
        return Err(PyValueError::new_err("a policy of one's own counts objects, not bytes"));
    }
    let trace = trace.get();
    let reading = grid.reading(trace.kind_of_keys()).map_err(invalid)?;
    let stream = py.detach(|| trace.stream(reading.keep)).map_err(invalid)?;
    let runs = grid.runs(&stream, reading.unit).map_err(invalid)?;
    let mut results = Vec::new();
    for run in runs {
        let policy = make.call1((run.size,))?;
        let hits = count_hits(&policy, &stream.keys, stream.distinct, run.size)?;
        results.push((run.size, stream.requests, hits));
    }
    Ok(results)
}

fn count_hits(
    policy: &Bound<'_, PyAny>,
    keys: &[u32],
    distinct: usize,
    capacity: u64,
) -> PyResult<u64> {
    let (hit, insert) = (policy.getattr("hit")?, policy.getattr("insert")?);
    let evict = policy.getattr("evict")?;
    let mut is_in = vec![false; distinct];
    let (mut count, mut hits) = (0, 0);
    for (at, &key) in keys.iter().enumerate() {
        if at & LOOK_FOR_SIGNALS_MASK == LOOK_FOR_SIGNALS_MASK {
            policy.py().check_signals()?;
        }
        if is_in[key as usize] {
            hits += 1;
            hit.call1((key,))?;
            continue;
        }
        if count == capacity {
            let victim: usize = evict.call0()?.extract()?;
            if !is_in.get(victim).is_some_and(|is_in| *is_in) {
                let problem = format!("evict() returned {victim}, which is not in the cache");
                return Err(PyValueError::new_err(problem));
            }
            is_in[victim] = false;
            count -= 1;
        }
        insert.call1((key,))?;
        is_in[key as usize] = true;
        count += 1;
    }
    Ok(hits)
}

/// Maximum requests in flight at recorded times: the limit of a server for one client.
const IN_FLIGHT_RECORDED: usize = 256;

/// Replays a trace of disk I/O. `settings` maps names of server settings to values; `tiers`
/// describe tiers as on the command line. With a `speed`, requests start at their recorded times,
/// accelerated by that factor. Returns a line of JSON.
#[pyfunction]
#[pyo3(signature = (
    trace, settings, tiers, *, in_flight, speed, warmup, verify, wrap, concatenate, limit
))]
#[expect(clippy::too_many_arguments, reason = "the options of one call, a name each")]
pub(crate) fn replay(
    py: Python<'_>,
    trace: Py<Trace>,
    settings: Vec<Given>,
    tiers: Vec<String>,
    in_flight: Option<usize>,
    speed: Option<f64>,
    warmup: f64,
    verify: bool,
    wrap: bool,
    concatenate: bool,
    limit: Option<u64>,
) -> PyResult<String> {
    let settings = config(settings, &tiers).map_err(invalid)?;
    let limit = limit.unwrap_or(u64::MAX);
    let setup = |survey: &Survey| {
        let pace = match speed {
            Some(speed) => {
                Pace::Recorded { speed, in_flight: in_flight.unwrap_or(IN_FLIGHT_RECORDED) }
            }
            None => Pace::Closed { in_flight: in_flight.unwrap_or(1) },
        };
        // A share below 1, or a number of requests.
        let warmup = if warmup < 1.0 { warmup * survey.requests as f64 } else { warmup };
        Setup {
            pace,
            warmup: warmup as u64,
            verify,
            flush_interval: settings.serving.flush_interval(),
            shed_most: settings.serving.shed.map(Percent::share),
            interval: None,
        }
    };
    let fit = Fit { wrap, concatenate };
    let trace = trace.get();
    let result = py.detach(|| replayed(trace, &settings, setup, fit, limit)).map_err(invalid)?;
    Ok(lines(&[result])?.remove(0))
}

/// Builds a configuration from settings given by name.
fn config(given: Vec<Given>, tiers: &[String]) -> Result<ServerConfig, String> {
    let is_of_volume = |(name, _): &Given| {
        let mut settings = VolumeConfig::settings().filter(|setting| setting.is_option);
        settings.any(|setting: &Setting| setting.name() == *name)
    };
    let (volume, server): (Vec<_>, Vec<_>) = given.into_iter().partition(is_of_volume);
    let mut config: ServerConfig = read_given(server)?;
    let volume: VolumeConfig = read_given(volume)?;
    let name = volume.name.or_else(|| Some("floe".into()));
    config.volume = vec![VolumeConfig { name, ..volume }];
    config.tier = tiers.iter().map(|text| TierConfig::parse(text)).collect::<Result<_, _>>()?;
    config.validated().map_err(|error| error.to_string())
}

fn replayed(
    trace: &Trace,
    settings: &ServerConfig,
    setup: impl Fn(&Survey) -> Setup,
    fit: Fit,
    limit: u64,
) -> Result<ReplayResult, String> {
    let in_trace = |error: &dyn std::fmt::Display| format!("{}: {error}", trace.name());
    let options = OpenOptions { as_blocks: true, ..trace.options().clone() };
    let open = || {
        floe_trace::Trace::open_source(trace.name(), &options).map_err(|error| error.to_string())
    };
    let requests = open()?;
    if requests.kind() != Kind::Block {
        return Err(in_trace(&"it has no disk addresses, which a replay needs"));
    }
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let survey = Survey::of(requests.take(most)).map_err(|error| error.to_string())?;
    let setup = setup(&survey);
    if setup.warmup >= survey.requests {
        return Err(in_trace(&format!(
            "it has {} requests, and the first {} do not count",
            survey.requests, setup.warmup
        )));
    }
    if matches!(setup.pace, Pace::Recorded { .. }) && !survey.has_times {
        return Err(in_trace(&"it has no times, which a speed needs"));
    }
    let plan = Plan::of(settings, survey.changes == 0)?;
    let sizes = plan.volume_sizes().map_err(|error| error.to_string())?;
    let layout = Layout::new(&survey, &sizes, fit).map_err(|error| in_trace(&error))?;
    let stage = Stage::simulated(&plan, setup.verify, std::time::Duration::ZERO)
        .map_err(|error| error.to_string())?;
    let feed = Feed::start(open()?, limit);
    run(trace.name(), feed, &layout, &setup, stage, |_| ()).map_err(|error| error.to_string())
}

/// Returns the names of the policies that have a model.
#[pyfunction]
pub(crate) fn model_policies() -> Vec<&'static str> {
    POLICIES.iter().map(|policy| policy.name).collect()
}

/// Solves each policy's network at each hit ratio, for each number of requests in flight and each
/// disk time. Returns lines of JSON: the points, and the peak of each curve. A `precision` above 0
/// simulates each point, too.
#[pyfunction]
#[pyo3(signature = (policies, hit_ratios, mpl, disk_us, *, cores, service, precision))]
#[expect(clippy::too_many_arguments, reason = "the options of one call, a name each")]
pub(crate) fn model(
    py: Python<'_>,
    policies: Vec<String>,
    hit_ratios: Vec<f64>,
    mpl: Vec<u32>,
    disk_us: Vec<f64>,
    cores: Option<u32>,
    service: Option<String>,
    precision: f64,
) -> PyResult<(Vec<String>, Vec<String>)> {
    if !(0.0..=0.5).contains(&precision) {
        let problem = format!("a precision of {precision} is not a share from 0 to 0.5");
        return Err(PyValueError::new_err(problem));
    }
    let service = match service {
        Some(file) => read_times(Path::new(&file)).map_err(invalid)?,
        None => Service::paper(),
    };
    let service = Arc::new(service);
    let mut curves = Vec::new();
    for name in &policies {
        let policy = Policy::named(name).map_err(invalid)?;
        for &disk_us in &disk_us {
            for &mpl in &mpl {
                let setting = floe_model::Setting::new(1.0, disk_us);
                let (service, demand) = (Arc::clone(&service), Demand::Closed(mpl));
                curves.push(Curve { policy, service, setting, demand, cores });
            }
        }
    }
    let solve = |curve: &Curve| -> Result<(Vec<Line>, Star), String> {
        let point = |&at: &f64| {
            let mut line = curve.line(at)?;
            if precision > 0.0 {
                let effort = Effort { precision, ..Effort::default() };
                curve.simulate(&mut line, &Distributions::default(), &effort)?;
            }
            Ok(line)
        };
        let points: Result<_, floe_model::ModelError> = hit_ratios.iter().map(point).collect();
        let points = points.map_err(|error| error.to_string())?;
        Ok((points, curve.star().map_err(|error| error.to_string())?))
    };
    let solved = py.detach(|| on_all_cores(&curves, solve));
    let (mut points, mut stars) = (Vec::new(), Vec::new());
    for curve in solved {
        let (of_curve, star) = curve.map_err(invalid)?;
        points.extend(of_curve);
        stars.push(star);
    }
    Ok((lines(&points)?, lines(&stars)?))
}
