//! Open networks: response times of requests that arrive at a given rate, and the rate at which
//! they pile up.
//!
//! Arrivals are random (Poisson), so that each station is a queue by itself (Jackson, "Jobshop-Like
//! Queueing Systems", Management Science 10, 1963): M/M/1, M/M/c, or a birth-death process where
//! times depend on the queue. Any number of requests can look up keys or wait for the disk in
//! parallel. With a number of cores, all steps that need one are a station by themselves, as in
//! [`crate::convolution`], which is approximate.

use crate::convolution::{Closed, Serving};
use crate::{Load, ModelError, Network, convolution};

/// The solution of a network at an arrival rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Open {
    /// Arrival rate at which requests pile up, in million requests a second; infinite when requests
    /// wait for nothing.
    pub saturation_mrps: f64,
    /// Mean time from arrival to end, in microseconds; `None` when requests pile up.
    pub response_us: Option<f64>,
}

/// Returns the arrival rate at which requests begin to pile up, in million requests a second.
///
/// # Errors
/// When there are 0 cores, or a request takes no time at all.
pub fn saturation(network: &Network, cores: Option<u32>) -> Result<f64, ModelError> {
    match cores {
        Some(cores) => {
            Load { mpl: cores, cores: Some(cores) }.check()?;
            Ok(convolution::rates(network, cores)?[cores as usize - 1])
        }
        None => {
            let limits = (0..network.stations().len()).map(|station| network.limit_us(station));
            Ok(1.0 / limits.fold(0.0, f64::max))
        }
    }
}

/// Solves a network for an arrival rate in million requests a second.
///
/// # Errors
/// When the rate is not above 0, there are 0 cores, or a request takes no time at all.
pub fn open(network: &Network, arrival_mrps: f64, cores: Option<u32>) -> Result<Open, ModelError> {
    if !(arrival_mrps > 0.0 && arrival_mrps.is_finite()) {
        return Err(ModelError::Rate { mrps: arrival_mrps });
    }
    let saturation_mrps = saturation(network, cores)?;
    if arrival_mrps >= saturation_mrps {
        return Ok(Open { saturation_mrps, response_us: None });
    }
    let response_us = match cores {
        Some(cores) => {
            let rates = convolution::rates(network, cores)?;
            let demand_us = |queue: u32| 1.0 / rates[queue.min(cores) as usize - 1];
            network.disk_us() + present(arrival_mrps, demand_us, cores) / arrival_mrps
        }
        None => {
            let closed = Closed::of(network, network.compute_us() + network.disk_us());
            let at_station = |(serving, copies): &(Serving<'_>, u32)| {
                let present = match serving {
                    Serving::Steady { demand_us } => present(arrival_mrps, |_| *demand_us, 1),
                    Serving::Changing { demand_us, steady_from } => {
                        present(arrival_mrps, demand_us, *steady_from)
                    }
                };
                f64::from(*copies) * present / arrival_mrps
            };
            closed.think_us + closed.stations.iter().map(at_station).sum::<f64>()
        }
    };
    Ok(Open { saturation_mrps, response_us: Some(response_us) })
}

/// Returns the mean number of requests at a station, by the birth-death process: arrivals at a
/// rate, departures by the service time at each queue length.
fn present(arrival_mrps: f64, demand_us: impl Fn(u32) -> f64, steady_from: u32) -> f64 {
    // Logarithms of how probable each number is, but for a factor; the last stands for it and all
    // above.
    let mut logs = vec![0.0];
    for queue in 1..=steady_from {
        logs.push(logs[queue as usize - 1] + (arrival_mrps * demand_us(queue)).ln());
    }
    let ratio = arrival_mrps * demand_us(steady_from);
    let largest = logs.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let (mut all, mut weighed) = (0.0, 0.0);
    for (queue, log) in logs.iter().enumerate() {
        let (weight, queue) = ((log - largest).exp(), queue as f64);
        // A geometric series from the last one on: its sum, and the mean of what it adds to the
        // queue.
        let (sum, more) = if queue == f64::from(steady_from) {
            (1.0 / (1.0 - ratio), ratio / (1.0 - ratio))
        } else {
            (1.0, 0.0)
        };
        all += weight * sum;
        weighed += weight * sum * (queue + more);
    }
    weighed / all
}
