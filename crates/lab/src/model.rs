//! Models of caches over many hit ratios: what `floe model` prints.
//!
//! A [`Curve`] is one policy on one machine under one load; its lines are hit ratios, and [`Star`]
//! says where its peak is.

use floe_model::events::{Distributions, Effort, Simulated, simulate};
use floe_model::open::{Open, open};
use floe_model::peak::{Peak, peak, saturation_peak};
use floe_model::{Load, ModelError, Network, Policy, Service, Setting, bound, mva};
use serde::Serialize;

/// A policy under a load, at any hit ratio.
#[derive(Debug, Clone)]
pub struct Curve {
    /// The policy.
    pub policy: Policy,
    /// The times of its operations.
    pub service: std::sync::Arc<Service>,
    /// Disk, q and frozen share; its hit ratio does not count.
    pub setting: Setting,
    /// The arrival of requests.
    pub demand: Demand,
    /// Cores that requests share; `None` when there are enough.
    pub cores: Option<u32>,
}

/// The arrival of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Demand {
    /// So many are in flight at all times.
    Closed(u32),
    /// So many million arrive in a second.
    Open(f64),
}

/// The subject of a curve.
#[derive(Debug, Clone, Serialize)]
pub struct Identity {
    /// The policy.
    pub policy: &'static str,
    /// Share of hits that skips the list, where there is a list to skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<f64>,
    /// Share of hits on frozen entries, where some are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<f64>,
    /// Share of marks that hits write, where some do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<f64>,
    /// Requests in flight, in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpl: Option<u32>,
    /// Million requests that arrive in a second, otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_mrps: Option<f64>,
    /// Cores, where said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The disk that a miss waits for.
    pub disk_us: f64,
}

/// The results at a hit ratio; throughputs are in million requests a second.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The curve it is on.
    #[serde(flatten)]
    pub identity: Identity,
    /// The hit ratio.
    pub hit_ratio: f64,
    /// The answers.
    #[serde(flatten)]
    pub answer: Answer,
    /// The bottleneck when everything waits: a station, or `cores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<&'static str>,
}

/// The answer of a model.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Of a closed loop.
    Closed {
        /// No more than that.
        bound_mrps: f64,
        /// Exactly, or with fewer cores than requests approximately.
        mva_mrps: f64,
        /// By simulation.
        #[serde(skip_serializing_if = "Option::is_none")]
        sim_mrps: Option<f64>,
        /// Half of the simulation's 95 % interval.
        #[serde(skip_serializing_if = "Option::is_none")]
        sim_ci95: Option<f64>,
    },
    /// Of arrivals.
    Open {
        /// The rate at which they pile up, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        saturation_mrps: Option<f64>,
        /// Mean time of a request, unless they pile up.
        #[serde(skip_serializing_if = "Option::is_none")]
        response_us: Option<f64>,
    },
}

/// Where a curve is highest, and why it does not stay there.
#[derive(Debug, Clone, Serialize)]
pub struct Star {
    /// The curve.
    #[serde(flatten)]
    pub identity: Identity,
    /// The hit ratio past which throughput falls; 1 if it never does.
    pub p_star: f64,
    /// Throughput there, or with arrivals the rate at which they pile up, in million requests a
    /// second; none when nothing is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_mrps: Option<f64>,
    /// The same when everything hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_hits_mrps: Option<f64>,
    /// `LRU-like` or `FIFO-like`.
    pub classification: &'static str,
    /// The station that limits throughput as the hit ratio goes to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<&'static str>,
}

impl Curve {
    /// Returns the subject of the curve.
    pub fn identity(&self) -> Identity {
        Identity {
            policy: self.policy.name,
            q: self.policy.q(&self.service, self.setting.q),
            frozen: self.setting.frozen,
            written: (self.setting.written > 0.0).then_some(self.setting.written),
            mpl: if let Demand::Closed(mpl) = self.demand { Some(mpl) } else { None },
            arrival_mrps: if let Demand::Open(mrps) = self.demand { Some(mrps) } else { None },
            cores: self.cores,
            disk_us: self.setting.disk_us,
        }
    }

    /// Computes the results at a hit ratio, without simulating.
    ///
    /// # Errors
    /// There is no such model.
    pub fn line(&self, hit_ratio: f64) -> Result<Line, ModelError> {
        let network = self.network(hit_ratio)?;
        let (answer, mpl) = match self.demand {
            Demand::Closed(mpl) => {
                let load = self.load(mpl);
                let mva_mrps = mva::throughput(&network, &load)?;
                let bound_mrps = bound(&network, &load);
                (Answer::Closed { bound_mrps, mva_mrps, sim_mrps: None, sim_ci95: None }, mpl)
            }
            Demand::Open(arrival_mrps) => {
                let Open { saturation_mrps, response_us } =
                    open(&network, arrival_mrps, self.cores)?;
                (Answer::Open { saturation_mrps: finite(saturation_mrps), response_us }, u32::MAX)
            }
        };
        let bottleneck = network.bottleneck(&self.load(mpl));
        Ok(Line { identity: self.identity(), hit_ratio, answer, bottleneck })
    }

    /// Adds what a simulation says, if it is a closed loop's line.
    ///
    /// # Errors
    /// There is no such model.
    pub fn simulate(
        &self,
        line: &mut Line,
        distributions: &Distributions,
        effort: &Effort,
    ) -> Result<(), ModelError> {
        let (Demand::Closed(mpl), Answer::Closed { sim_mrps, sim_ci95, .. }) =
            (self.demand, &mut line.answer)
        else {
            return Ok(());
        };
        let network = self.network(line.hit_ratio)?;
        let Simulated { throughput_mrps, ci95_mrps, .. } =
            simulate(&network, &self.load(mpl), distributions, effort)?;
        (*sim_mrps, *sim_ci95) = (Some(throughput_mrps), Some(ci95_mrps));
        Ok(())
    }

    /// Where it is highest.
    ///
    /// # Errors
    /// There is no such model.
    pub fn star(&self) -> Result<Star, ModelError> {
        let (policy, service, setting) = (&self.policy, &*self.service, &self.setting);
        let Peak { hit_ratio, throughput_mrps, all_hits_mrps, class, bottleneck } =
            match self.demand {
                Demand::Closed(mpl) => peak(policy, service, setting, &self.load(mpl))?,
                Demand::Open(_) => saturation_peak(policy, service, setting, self.cores)?,
            };
        Ok(Star {
            identity: self.identity(),
            p_star: hit_ratio,
            peak_mrps: finite(throughput_mrps),
            all_hits_mrps: finite(all_hits_mrps),
            classification: class.name(),
            bottleneck,
        })
    }

    fn network(&self, hit_ratio: f64) -> Result<Network, ModelError> {
        self.policy.network(&self.service, &self.setting.at(hit_ratio))
    }

    fn load(&self, mpl: u32) -> Load {
        Load { mpl, cores: self.cores }
    }
}

/// JSON has no infinity.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}
