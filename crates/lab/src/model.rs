//! Models of caches over many hit ratios: what `floe model` prints.
//!
//! A [`Curve`] is one policy on one machine under one load; its lines are hit ratios, and [`Star`] says where its peak is.

use floe_model::peak::{Peak, peak};
use floe_model::{Load, ModelError, Policy, Service, Setting, bound::bound, mva};
use serde::Serialize;

/// A policy under a load, at any hit ratio.
#[derive(Debug, Clone)]
pub struct Curve {
    /// The policy.
    pub policy: Policy,
    /// What its operations take.
    pub service: std::sync::Arc<Service>,
    /// Disk, q and frozen share; its hit ratio does not count.
    pub setting: Setting,
    /// Requests in flight, and cores.
    pub load: Load,
}

/// What a curve is of.
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
    /// Requests in flight.
    pub mpl: u32,
    /// Cores, where said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// What a miss waits for.
    pub disk_us: f64,
}

/// Throughput at a hit ratio, by one method beside the other, in million requests a second.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What curve it is on.
    #[serde(flatten)]
    pub identity: Identity,
    /// The hit ratio.
    pub hit_ratio: f64,
    /// No more than that.
    pub bound_mrps: f64,
    /// Exactly, or with fewer cores than requests approximately.
    pub mva_mrps: f64,
}

/// Where a curve is highest, and why it does not stay there.
#[derive(Debug, Clone, Serialize)]
pub struct Star {
    /// What curve.
    #[serde(flatten)]
    pub identity: Identity,
    /// The hit ratio past which throughput falls; 1 if it never does.
    pub p_star: f64,
    /// Throughput there, in million requests a second.
    pub peak_mrps: f64,
    /// Throughput when everything hits.
    pub all_hits_mrps: f64,
    /// `LRU-like` or `FIFO-like`.
    pub classification: &'static str,
    /// The station that limits throughput as the hit ratio goes to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<&'static str>,
}

impl Curve {
    /// What it is of.
    pub fn identity(&self) -> Identity {
        Identity {
            policy: self.policy.name,
            q: self.policy.q(&self.service, self.setting.q),
            frozen: self.setting.frozen,
            mpl: self.load.mpl,
            cores: self.load.cores,
            disk_us: self.setting.disk_us,
        }
    }

    /// Throughput at a hit ratio.
    ///
    /// # Errors
    /// There is no such model.
    pub fn line(&self, hit_ratio: f64) -> Result<Line, ModelError> {
        let network = self.policy.network(&self.service, &self.setting.at(hit_ratio))?;
        Ok(Line {
            identity: self.identity(),
            hit_ratio,
            mva_mrps: mva::throughput(&network, &self.load)?,
            bound_mrps: bound(&network, &self.load),
        })
    }

    /// Where it is highest.
    ///
    /// # Errors
    /// There is no such model.
    pub fn star(&self) -> Result<Star, ModelError> {
        let Peak { hit_ratio, throughput_mrps, all_hits_mrps, class, bottleneck } =
            peak(&self.policy, &self.service, &self.setting, &self.load)?;
        Ok(Star {
            identity: self.identity(),
            p_star: hit_ratio,
            peak_mrps: throughput_mrps,
            all_hits_mrps,
            classification: class.name(),
            bottleneck,
        })
    }
}
