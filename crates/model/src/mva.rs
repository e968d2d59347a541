//! Exact throughput of a closed network, by mean value analysis.
//!
//! With exponential service at first come, first served stations the network has product form, and
//! then a request that comes to a station finds there what an outsider would see with one request
//! fewer in the network (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing
//! Networks", JACM 27, 1980). So `R_k(n) = D_k (1 + Q_k(n − 1))`, and `X(n) = n / (Z + Σ R_k(n))`:
//! a handful of additions for each request in flight, and nothing that cancels. Times spent side by
//! side matter by their means only.
//!
//! Stations that serve several at a time, or whose times depend on the queue, go by
//! [`crate::convolution`]. Where requests with different outcomes are served differently at one
//! station, its mean is taken for all; that is exact only when they are alike.

use crate::convolution::{Closed, Serving};
use crate::{Load, ModelError, Network, convolution};

/// A network's throughput, in million requests a second.
///
/// With fewer cores than requests in flight that is approximate.
///
/// # Errors
/// The load is none, or a request takes no time at all.
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

/// The recursion; for each kind of station its demand and how many there are of the kind.
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
    /// The demands on single servers whose times do not change, if there are no others.
    fn steady_demands(&self) -> Option<Vec<(f64, f64)>> {
        let demand = |(serving, copies): &(Serving<'_>, u32)| match serving {
            Serving::Steady { demand_us } => Some((*demand_us, f64::from(*copies))),
            Serving::Changing { .. } => None,
        };
        self.stations.iter().map(demand).collect()
    }
}
