//! Exact throughput of a closed network, by mean value analysis.
//!
//! With exponential service in first-come, first-served stations the network has product form. Then
//! a request that arrives at a station finds the mean queue of a network with one request fewer
//! (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing Networks", JACM 27,
//! 1980). So `R_k(n) = D_k (1 + Q_k(n − 1))`, and `X(n) = n / (Z + Σ R_k(n))`: a few additions for
//! each request in flight, and no cancellation. Times spent in parallel matter only by their means.
//!
//! Stations with several servers or with queue-dependent times are solved by
//! [`crate::convolution`]. Where requests with different outcomes have different service times at
//! one station, the mean is taken for all; that is exact only when they are equal.

use crate::convolution::{Closed, Serving};
use crate::{Load, ModelError, Network, convolution};

/// Returns a network's throughput, in million requests a second.
///
/// The result is approximate if there are fewer cores than requests in flight.
///
/// # Errors
/// When the load is invalid, or a request takes no time at all.
pub fn throughput(network: &Network, load: &Load) -> Result<f64, ModelError> {
    load.check()?;
    if load.computing_max() < load.mpl {
        return convolution::throughput(network, load);
    }
    let closed = Closed::of(network, network.compute_us() + network.disk_us());
    if closed.takes_no_time() {
        return Err(ModelError::NoWork);
    }
    match closed.steady_demands() {
        Some(demands) => Ok(steady(&demands, closed.think_us, load.mpl)),
        None => Ok(closed.throughputs(load.mpl)[load.mpl as usize - 1]),
    }
}

/// Computes the throughput by the recursion; `demands` has the demand in microseconds and the
/// number of copies of each station.
fn steady(demands: &[(f64, f64)], think_us: f64, mpl: u32) -> f64 {
    let mut queues = vec![0.0; demands.len()];
    let mut throughput = 0.0;
    for n in 1..=mpl {
        let response =
            |(&(demand, copies), queue): (&(f64, f64), &f64)| copies * demand * (1.0 + queue);
        let response_us: f64 = demands.iter().zip(&queues).map(response).sum();
        throughput = f64::from(n) / (think_us + response_us);
        for (&(demand, _), queue) in demands.iter().zip(&mut queues) {
            *queue = throughput * demand * (1.0 + *queue);
        }
    }
    throughput
}

impl Closed<'_> {
    /// Returns the demands on single servers with constant times; `None` if there are other
    /// stations.
    fn steady_demands(&self) -> Option<Vec<(f64, f64)>> {
        let demand = |(serving, copies): &(Serving<'_>, u32)| match serving {
            Serving::Steady { demand_us } => Some((*demand_us, f64::from(*copies))),
            Serving::Changing { .. } => None,
        };
        self.stations.iter().map(demand).collect()
    }
}
