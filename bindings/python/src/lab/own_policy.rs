//! Simulation of policies written in Python, for study.
//!
//! The simulator tracks which keys are in the cache, and asks the policy only for victims. So an
//! incorrect policy is detected, and cannot exceed the capacity.

use floe_lab::simulate::Grid;
use floe_lab::sizes::Sizes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::invalid;
use super::trace::Trace;

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
