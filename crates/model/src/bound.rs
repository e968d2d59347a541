//! The asymptotic bound on throughput: `X ≤ min(N / (D + Z), 1 / D_max)`.
//!
//! `N` requests in flight cannot each take less than all their own time, and no station can give
//! more than all of its time. Section 3.2 of "Can Increasing the Hit Ratio Hurt Cache Throughput?",
//! with its choice of taking tail updates as 0.

use crate::{Load, Network};

/// The most that a network can do, in million requests a second.
///
/// With fewer cores than requests in flight they are a resource like any other: no request takes
/// less of them than its own computing and list operations.
pub fn bound(network: &Network, load: &Load) -> f64 {
    let stations = || (0..network.stations().len()).map(|at| (at, network.least_demand_us(at)));
    let demand: f64 = stations().map(|(_, us)| us).sum();
    let longest = stations().map(|(at, us)| {
        let station = network.stations()[at];
        us / (f64::from(station.servers) * f64::from(station.copies))
    });
    let on_cores =
        load.cores.map_or(0.0, |cores| (demand + network.compute_us()) / f64::from(cores));
    let alone = demand + network.compute_us() + network.disk_us();
    (f64::from(load.mpl) / alone).min(1.0 / longest.fold(on_cores, f64::max))
}
