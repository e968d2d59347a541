//! `floe advise --objects`: sizes of memory and flash for a trace of objects.

use floe_lab::advise::objects::{advise_objects, sizes_for};
use floe_lab::report::hybrid_report;

use super::{Arguments, wrapped};
use crate::error::{CliError, OrFail};
use crate::output;
use crate::simulate::{Objects, print_hybrids};

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let trace = &arguments.trace;
    let mut objects = Objects::read(trace, &arguments.open, arguments.object_size)?;
    let requests = objects.stream.keys.len() as u64;
    let warmup = requests * u64::from(arguments.warmup) / 100;
    objects.stream.count_from(warmup as usize, None);
    let footprint_bytes = objects.stream.footprint;
    let results =
        objects.simulate(trace, &sizes_for(footprint_bytes), arguments.writes.settings())?;
    let advice = advise_objects(trace, footprint_bytes, results);
    let advice = advice.ok_or_else(|| {
        CliError::failure(format!(
            "{trace}: no setting could be \
                                                                 tried"
        ))
    })?;
    output::write_report(arguments.report.as_deref(), None, |command| {
        let title = format!("{trace}: memory and flash for it");
        let mut report = hybrid_report(&title, command, &advice.simulations);
        if let Some(section) = report.sections.first_mut() {
            section.lead = [&[advice.verdict.clone()][..], &advice.warnings].concat().join(" ");
        }
        report
    })?;
    if arguments.json {
        return output::json_line(&advice).or_failure();
    }
    output::say!("{}\n", wrapped(&advice.verdict));
    print_hybrids(&advice.simulations);
    let touched = output::bytes(advice.footprint_bytes);
    output::say!("\n{requests} requests touch {touched}; the first {warmup} do not count.");
    for warning in &advice.warnings {
        output::say!("\n{}", wrapped(&format!("Warning: {warning}")));
    }
    Ok(())
}
