//! Models of caches over many hit ratios: the output of `floe model`.
//!
//! A [`Curve`] is one policy on one machine under one load. Its lines are the results at hit
//! ratios, and [`Star`] describes its peak.

use floe_model::events::{Distributions, Effort, Simulated, simulate};
use floe_model::open::{Open, open};
use floe_model::peak::{Peak, peak, saturation_peak};
use floe_model::{Load, ModelError, Network, Policy, Service, Setting, bound, mva};
use serde::Serialize;

/// Model of a policy under a load, to be solved at any hit ratio.
#[derive(Debug, Clone)]
pub struct Curve {
    /// The modelled policy.
    pub policy: Policy,
    /// Service times of the policy's operations.
    pub service: std::sync::Arc<Service>,
    /// Disk latency, `q` and shares of frozen entries and written marks. The hit ratio in it is
    /// ignored.
    pub setting: Setting,
    /// The arrival of requests.
    pub demand: Demand,
    /// Number of cores that requests share; `None` for no limit.
    pub cores: Option<u32>,
}

/// Arrival of requests: a closed or an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Demand {
    /// A closed loop with this number of requests in flight.
    Closed(u32),
    /// An open loop, in which this many million requests arrive a second.
    Open(f64),
}

/// The settings of a curve, which each output line repeats.
#[derive(Debug, Clone, Serialize)]
pub struct Identity {
    /// Name of the policy.
    pub policy: &'static str,
    /// Share of hits that do not change the list; `None` where the policy has no such choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q: Option<f64>,
    /// Share of hits on frozen entries; `None` without freezing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<f64>,
    /// Share of marking hits that write their mark, because it was not set; `None` where none do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<f64>,
    /// Requests in flight; `None` in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpl: Option<u32>,
    /// Arrival rate in million requests a second; `None` in a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival_mrps: Option<f64>,
    /// Number of cores; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Disk latency of a miss in microseconds.
    pub disk_us: f64,
}

/// Results at a hit ratio. Throughputs are in million requests a second.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The settings of the curve.
    #[serde(flatten)]
    pub identity: Identity,
    /// The hit ratio at which the model was solved.
    pub hit_ratio: f64,
    /// The solution of the model at the hit ratio.
    #[serde(flatten)]
    pub answer: Answer,
    /// The bottleneck when everything waits: the name of a station, or `cores`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<&'static str>,
}

/// Solution of a model at one hit ratio.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Throughput of a closed loop.
    Closed {
        /// Upper bound of the throughput.
        bound_mrps: f64,
        /// Throughput by mean value analysis: exact, or approximate with fewer cores than requests.
        mva_mrps: f64,
        /// Throughput by simulation; `None` if none was run.
        #[serde(skip_serializing_if = "Option::is_none")]
        sim_mrps: Option<f64>,
        /// Half the width of the 95 % confidence interval of `sim_mrps`.
        #[serde(skip_serializing_if = "Option::is_none")]
        sim_ci95: Option<f64>,
    },
    /// Saturation rate and response time of an open loop.
    Open {
        /// Arrival rate above which the queue grows without limit; `None` if no rate does that.
        #[serde(skip_serializing_if = "Option::is_none")]
        saturation_mrps: Option<f64>,
        /// Mean response time of a request in microseconds; `None` if the queue grows without
        /// limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        response_us: Option<f64>,
    },
}

/// Peak of a curve, and the reason why throughput falls after it.
#[derive(Debug, Clone, Serialize)]
pub struct Star {
    /// The settings of the curve.
    #[serde(flatten)]
    pub identity: Identity,
    /// Hit ratio above which throughput falls; 1 if it never does.
    pub p_star: f64,
    /// Throughput at `p_star`, or the saturation rate in an open loop, in million requests a
    /// second. `None` when nothing limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_mrps: Option<f64>,
    /// Throughput, or the saturation rate in an open loop, at a hit ratio of 1, in million requests
    /// a second. `None` when nothing limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_hits_mrps: Option<f64>,
    /// Class of the policy: `LRU-like` or `FIFO-like`.
    pub classification: &'static str,
    /// The station that limits throughput as the hit ratio goes to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<&'static str>,
}

impl Curve {
    /// Returns the settings of the curve, as output lines repeat them.
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
    /// The settings form no valid model.
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

    /// Simulates the model and adds the throughput to `line`. Does nothing in an open loop.
    ///
    /// # Errors
    /// The settings form no valid model.
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

    /// Computes the peak of the curve.
    ///
    /// # Errors
    /// The settings form no valid model.
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

/// Returns the number, or `None` for infinity, which JSON cannot express.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}
