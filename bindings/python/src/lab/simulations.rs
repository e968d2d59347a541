//! Simulations of policies over traces, on all cores.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use floe_lab::simulate::objects::{self, Latency, Run, SimulationResult};
use floe_lab::simulate::on_all_cores;
use floe_lab::simulate::stream::Stream;
use floe_lab::simulate::{Grid, Reading};
use floe_lab::sizes::Sizes;
use floe_policy::admission::registry::choices;
use pyo3::prelude::*;

use super::trace::Trace;
use super::{invalid, lines};

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
