//! Exact throughput of a closed network with queue-dependent stations, by its normalising
//! constants.
//!
//! `X(n) = G(n − 1) / G(n)`, where `G` is the convolution over stations of `f_k(i) = Π_{j ≤ i}
//! D_k(j)` (Buzen, "Computational Algorithms for Closed Queueing Networks with Exponential
//! Servers", CACM 16, 1973). Mean value analysis covers such stations too, but computes the
//! probability of an idle station as 1 minus the others and loses all its digits under load; here
//! every term is positive. The constants span thousands of orders of magnitude, so their logarithms
//! are stored.

use crate::{Load, ModelError, Network};

/// The service times of a station.
pub(crate) enum Serving<'a> {
    /// A single server whose service time does not depend on the queue.
    Steady {
        /// Service time of a request at the station, in microseconds.
        demand_us: f64,
    },
    /// A service time that depends on the queue length.
    Changing {
        /// Service time for a queue length, in microseconds, divided by the number of requests
        /// served in parallel.
        demand_us: Box<dyn Fn(u32) -> f64 + 'a>,
        /// Queue length from which the service time stays constant.
        steady_from: u32,
    },
}

/// A closed network in the form that is solved: the demand of a request at each station.
pub(crate) struct Closed<'a> {
    /// Time that a request spends without waiting for others, in microseconds.
    pub(crate) think_us: f64,
    /// Stations, each with the number of its equal copies.
    pub(crate) stations: Vec<(Serving<'a>, u32)>,
}

impl<'a> Closed<'a> {
    /// Creates the form to solve from a network's stations and a think time.
    pub(crate) fn of(network: &'a Network, think_us: f64) -> Self {
        let serving = |(at, station): (usize, &crate::Station)| {
            let (servers, copies) = (station.servers, f64::from(station.copies));
            let serving = if servers == 1 && network.steady_from(at) == 1 {
                Serving::Steady { demand_us: network.demand_us(at, 1) / copies }
            } else {
                Serving::Changing {
                    demand_us: Box::new(move |queue| {
                        network.demand_us(at, queue) / (copies * f64::from(queue.min(servers)))
                    }),
                    steady_from: network.steady_from(at).max(servers),
                }
            };
            (serving, station.copies)
        };
        Self { think_us, stations: network.stations().iter().enumerate().map(serving).collect() }
    }

    /// Returns whether a request takes no time at all.
    pub(crate) fn takes_no_time(&self) -> bool {
        let none = |(serving, _): &(Serving<'_>, u32)| match serving {
            Serving::Steady { demand_us } => *demand_us == 0.0,
            Serving::Changing { demand_us, .. } => demand_us(1) == 0.0,
        };
        self.think_us == 0.0 && self.stations.iter().all(none)
    }

    /// Returns the throughput with 1 to `mpl` requests in flight, in million requests a second.
    pub(crate) fn throughputs(&self, mpl: u32) -> Vec<f64> {
        let constants = self.log_constants(mpl);
        constants.windows(2).map(|pair| (pair[0] - pair[1]).exp()).collect()
    }

    /// Returns the logarithms of the normalising constants for 0 to `mpl` requests.
    fn log_constants(&self, mpl: u32) -> Vec<f64> {
        // Everybody by himself: Zⁿ/n!.
        let mut constants = products(mpl, |n| self.think_us / f64::from(n));
        for (serving, copies) in &self.stations {
            match serving {
                Serving::Steady { demand_us } => {
                    (0..*copies)
                        .for_each(|_| constants = convolved(&constants, &[0.0], *demand_us));
                }
                Serving::Changing { demand_us, steady_from } => {
                    let factors = products(*steady_from.min(&mpl), demand_us);
                    let last = demand_us(*steady_from);
                    (0..*copies).for_each(|_| constants = convolved(&constants, &factors, last));
                }
            }
        }
        constants
    }
}

/// Returns the logarithms of the products of the first 0 to `count` factors.
fn products(count: u32, factor: impl Fn(u32) -> f64) -> Vec<f64> {
    let sums = (1..=count).scan(0.0, |sum, n| {
        *sum += factor(n).ln();
        Some(*sum)
    });
    std::iter::once(0.0).chain(sums).collect()
}

/// Returns the logarithm of the sum of two numbers given by their logarithms.
fn log_sum(a: f64, b: f64) -> f64 {
    let (large, small) = if a > b { (a, b) } else { (b, a) };
    // Nothing at all plus nothing at all.
    if large == f64::NEG_INFINITY { large } else { large + (small - large).exp().ln_1p() }
}

/// Returns the convolution of two sequences in logarithms. Past its end, the second continues with
/// a ratio of `factor` between neighbours.
fn convolved(a: &[f64], b: &[f64], factor: f64) -> Vec<f64> {
    let last = b.len() - 1;
    let step = factor.ln();
    // What the last number of `b` and all after it contribute.
    let mut rest = f64::NEG_INFINITY;
    let term = |n: usize| {
        rest += step;
        if n >= last {
            rest = log_sum(rest, a[n - last] + b[last]);
        }
        let terms = || b[..last.min(n + 1)].iter().zip(a[..=n].iter().rev()).map(|(b, a)| a + b);
        let largest = terms().fold(rest, f64::max);
        if largest == f64::NEG_INFINITY {
            return largest;
        }
        largest
            + (terms().map(|term| (term - largest).exp()).sum::<f64>() + (rest - largest).exp())
                .ln()
    };
    (0..a.len()).map(term).collect()
}

/// Returns the throughput in million requests a second; cores must be fewer than requests.
///
/// A request that looks up or changes a list holds a core, also while it waits for a lock; one that
/// waits for the disk does not. Two resources held at once have no product form. So the part that
/// needs a core is solved separately with 1, 2, … up to `c` requests. Then it is replaced by one
/// station beside the disk, which is as fast with `n` requests as that part was with `min(n, c)`
/// (Lavenberg, "Computer Performance Modeling Handbook", 1983, on memory constraints; the
/// equivalence itself is Chandy, Herzog and Woo, IBM J. R&D 19, 1975). `docs/model.md` has the size
/// of the error.
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
