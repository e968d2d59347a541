//! Fewer cores than requests in flight: an approximation.
//!
//! A request that looks up or changes a list holds a core, also while it waits for a lock; one that
//! waits for the disk does not. Two resources held at once have no product form. So the part that
//! needs a core is solved by itself with 1, 2, … up to `c` requests, and then stands, as one
//! station that is as fast with `n` requests as that part was with `min(n, c)`, beside the disk
//! (Lavenberg, "Computer Performance Modeling Handbook", 1983, on memory constraints; the
//! equivalence itself is Chandy, Herzog and Woo, IBM J. R&D 19, 1975). How far that is off is in
//! `docs/model.md`.

use crate::convolution::{Closed, Serving};
use crate::{Load, ModelError, Network};

/// Throughput in million requests a second; cores must be fewer than requests.
pub(crate) fn throughput(network: &Network, load: &Load) -> Result<f64, ModelError> {
    let rates = rates(network, load.computing_max())?;
    let part = Serving::Changing {
        demand_us: Box::new(|queue| 1.0 / rates[(queue as usize).min(rates.len()) - 1]),
        steady_from: rates.len() as u32,
    };
    let outside = Closed { think_us: network.disk_us(), stations: vec![(part, 1)] };
    Ok(outside.throughputs(load.mpl)[load.mpl as usize - 1])
}

/// Returns the throughput of the part that needs cores with 1 to `cores` requests in it, in million
/// requests a second.
pub(crate) fn rates(network: &Network, cores: u32) -> Result<Vec<f64>, ModelError> {
    let inside = Closed::of(network, network.compute_us());
    if inside.takes_no_time() {
        return Err(ModelError::NoWork);
    }
    Ok(inside.throughputs(cores))
}
