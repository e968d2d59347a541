//! `--calibrate`: measures service times for `floe model`.

use std::path::Path;

use floe_lab::bench::{
    CALIBRATED_POLICIES, Calibrate, Calibration, Figure, Load, MeasureStep, PassOrder, Plan,
    calibrate,
};

use super::{Arguments, plan};
use crate::error::CliError;
use crate::{OrFail, output};

/// The default plan for measurements of operations: many short runs, because the times of all are
/// compared.
const PLAN: Plan =
    Plan { repetitions: 21, seconds: 0.05, warm_up_seconds_max: 60.0, in_step: false };

pub(super) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let how = super::plan(arguments, &PLAN)?;
    let policies = plan::policies(arguments, CALIBRATED_POLICIES)?;
    let threads = match &arguments.threads {
        None => plan::cores(),
        Some(counts) => match counts.0[..] {
            [threads] => threads,
            _ => {
                return Err(CliError::usage(
                    "--threads: to calibrate takes one number, the most there are to be",
                ));
            }
        },
    };
    let value_bytes = arguments.value.0 as usize;
    plan::check_threads(threads)
        .and_then(|()| plan::check_value(value_bytes))
        .map_err(CliError::usage)?;
    let stream = super::read(arguments, 0)?;
    let load = Load::new(&stream, None, PassOrder::Drawn).or_usage()?;
    let what = Calibrate {
        load: &load,
        stream: &stream,
        policies: &policies,
        threads,
        value_bytes,
        plan: how,
    };
    what.check().or_usage()?;
    if let Some(file) = &arguments.service_out {
        // Opened before the measurement, so that an unwritable file is found early.
        std::fs::OpenOptions::new().append(true).create(true).open(file).map_err(refused(file))?;
    }
    let bar = output::progress(0, "calibrating");
    let calibrated = calibrate(&what, |step| match step {
        MeasureStep::WarmingUp(at) => bar.set_message(format!("warming up cache {}", at + 1)),
        MeasureStep::PlayingOn => {} // does not come: they are not kept in step
        MeasureStep::Run(done, runs) => {
            bar.set_length(runs as u64);
            bar.set_position(done as u64);
            bar.set_message("calibrating");
        }
    });
    bar.finish_and_clear();
    let Calibration { service, figures } = calibrated.or_failure()?;
    if let Some(file) = &arguments.service_out {
        let text = serde_json::to_string_pretty(&service).or_failure()?;
        std::fs::write(file, text + "\n").map_err(refused(file))?;
    }
    if arguments.json {
        figures.iter().try_for_each(output::json_line).or_failure()
    } else {
        print(&figures);
        Ok(())
    }
}

fn refused(file: &Path) -> impl Fn(std::io::Error) -> CliError {
    move |error| CliError::usage(format!("--service-out {}: {error}", file.display()))
}

fn print(figures: &[Figure]) {
    let mut table = output::table(&["policy", "operation", "threads", "ns", "from", "to"], 2);
    for Figure { policy, operation, threads, ns, ns_low, ns_high, .. } in figures {
        let ns = [ns, ns_low, ns_high].map(|ns| format!("{ns:.1}"));
        let [ns, low, high] = ns;
        table.add_row([
            policy.clone(),
            (*operation).to_owned(),
            threads.to_string(),
            ns,
            low,
            high,
        ]);
    }
    output::print_table(&table);
}
