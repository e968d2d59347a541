//! Replays of traces through the block cache, on simulated devices in virtual time.

use floe_lab::replay::{Feed, Fit, Layout, Pace, Plan, ReplayResult, Setup, Stage, Survey, run};
use floe_server::config::{
    Given, Percent, ServerConfig, Setting, TierConfig, VolumeConfig, read_given,
};
use floe_trace::{Kind, OpenOptions};
use pyo3::prelude::*;

use super::trace::Trace;
use super::{invalid, lines};

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
    let plan = Plan::of(settings, survey.changes == 0);
    let sizes = plan.volume_sizes().map_err(|error| error.to_string())?;
    let layout = Layout::new(&survey, &sizes, fit).map_err(|error| in_trace(&error))?;
    let stage = Stage::simulated(&plan, setup.verify).map_err(|error| error.to_string())?;
    let feed = Feed::start(open()?, limit);
    run(trace.name(), feed, &layout, &setup, stage, |_| ()).map_err(|error| error.to_string())
}
