//! Throughput as a function of the hit ratio, from queueing networks.

use std::path::Path;
use std::sync::Arc;

use floe_lab::model::{Curve, Demand, Line, Star};
use floe_lab::simulate::on_all_cores;
use floe_model::events::{Distributions, Effort};
use floe_model::policies::POLICIES;
use floe_model::{Policy, Service, Setting};
use floe_server::config::read_times;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::{invalid, lines};

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
                let setting = Setting::new(1.0, disk_us);
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
