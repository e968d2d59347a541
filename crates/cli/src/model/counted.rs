//! `floe model --trace`: counts the operations of each policy's code over a trace and models them
//! as networks.

use std::sync::Arc;

use floe_lab::classes::{Conditions, Point, Verdict};
use floe_lab::simulate::operations::{Candidate, Operations};
use floe_lab::simulate::stream::{Keep, Stream};
use floe_model::{Load, Locks, Service};
use floe_server::config::read_times;

use super::{Arguments, print};
use crate::error::CliError;
use crate::simulate::{on_all_cores, read_stream};
use crate::size::{CacheSize, Sizes};
use crate::{OrFail, output};

/// Sizes that cover most hit ratios.
const SIZES: &str =
    "0.1%,0.3%,1%,2%,4%,7%,10%,15%,20%,30%,40%,50%,60%,70%,80%,90%,95%,98%,99%,100%";

pub(super) fn run(arguments: &Arguments, trace: &str) -> Result<(), CliError> {
    let candidates: Vec<Candidate> = arguments
        .policy
        .iter()
        .map(|policy| policy.parse().or_usage())
        .collect::<Result<_, _>>()?;
    let conditions = conditions(arguments)?;
    let opened = arguments.open.open(trace, false)?;
    let stream = read_stream(trace, opened, Keep { rate: 1.0, sizes: false, next_use: false })?;
    let sizes = sizes(arguments, stream.footprint)?;
    for (candidate, runs) in candidates.iter().zip(count(&candidates, &stream, &sizes)) {
        for conditions in &conditions {
            let point = |(size, operations): &(u64, Operations)| {
                conditions.point(trace, candidate, *size, operations)
            };
            let mut points: Vec<Point> =
                runs.iter().map(|run| point(run).or_usage()).collect::<Result<_, _>>()?;
            let Some(verdict) = Verdict::of(candidate.name(), &mut points) else { continue };
            if arguments.json {
                points.iter().try_for_each(output::json_line).or_failure()?;
                output::json_line(&verdict).or_failure()?;
            } else {
                print::counted(&points, &verdict);
            }
        }
    }
    Ok(())
}

/// Returns every combination of load and locking.
fn conditions(arguments: &Arguments) -> Result<Vec<Conditions>, CliError> {
    let service = Arc::new(
        arguments
            .service
            .as_ref()
            .map_or_else(|| Ok(Service::paper()), |file| read_times(file))
            .or_usage()?,
    );
    let cores = arguments
        .cores
        .as_ref()
        .map_or(vec![None], |cores| cores.0.iter().map(|&count| Some(count as u32)).collect());
    let mut all = Vec::new();
    for locks in [Locks::Operation, Locks::List] {
        for &disk_us in &arguments.disk_us.0 {
            for &mpl in &arguments.mpl.0 {
                for &cores in &cores {
                    let load = Load { mpl: mpl as u32, cores };
                    all.push(Conditions { service: service.clone(), load, disk_us, locks });
                }
            }
        }
    }
    Ok(all)
}

/// Returns the distinct sizes in entries.
fn sizes(arguments: &Arguments, footprint: u64) -> Result<Vec<u64>, CliError> {
    let usual = || SIZES.parse::<Sizes>().expect("the usual sizes are sizes");
    let Sizes(given) = arguments.size.clone().unwrap_or_else(usual);
    if given.iter().any(|size| matches!(size, CacheSize::Bytes(_))) {
        return Err(CliError::usage(
            "--size counts entries here: a number, or a share such as 10%",
        ));
    }
    let mut sizes: Vec<u64> = given.iter().map(|size| size.of(footprint).max(1)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// Counts each candidate's operations at each size.
fn count(candidates: &[Candidate], stream: &Stream, sizes: &[u64]) -> Vec<Vec<(u64, Operations)>> {
    let runs: Vec<(&Candidate, u64)> = candidates
        .iter()
        .flat_map(|candidate| sizes.iter().map(move |&size| (candidate, size)))
        .collect();
    let bar = output::progress(runs.len() as u64, "counting");
    let counted = on_all_cores(&runs, |&(candidate, size)| {
        let operations = candidate.count(stream, size);
        bar.inc(1);
        (size, operations)
    });
    bar.finish_and_clear();
    counted.chunks(sizes.len()).map(<[_]>::to_vec).collect()
}
