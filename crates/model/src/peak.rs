//! The hit ratio p* past which throughput falls, and the bottleneck there.

use crate::{Load, ModelError, Policy, Service, Setting, mva, open};

/// Classes of policies by the effect of hits on throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Throughput falls past some hit ratio.
    LruLike,
    /// Throughput never falls as the hit ratio rises.
    FifoLike,
}

impl Class {
    /// Returns the class's name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Class::LruLike => "LRU-like",
            Class::FifoLike => "FIFO-like",
        }
    }
}

/// The highest throughput over all hit ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Hit ratio at the peak; 1 when throughput never falls.
    pub hit_ratio: f64,
    /// Throughput at the peak, in million requests a second.
    pub throughput_mrps: f64,
    /// Throughput at a hit ratio of 1, in million requests a second.
    pub all_hits_mrps: f64,
    /// Class of the policy: whether throughput falls past the peak.
    pub class: Class,
    /// Bottleneck as the hit ratio approaches 1: a station, or `cores`; `None` if requests visit
    /// none.
    pub bottleneck: Option<&'static str>,
}

/// Number of equal steps of the hit ratio in the coarse search for the peak.
const STEPS: u32 = 100;
/// Precision to which the fine search finds p*.
const EXACT_TO: f64 = 1e-4;
/// Relative difference below which saturation rates count as equal, because they have corners and
/// level parts.
const ROUNDING: f64 = 1e-12;
/// Relative fall in throughput below which it is ignored: it comes from rounding and from imprecise
/// fits.
const FALL_MIN: f64 = 1e-3;

/// Returns the peak of a policy's throughput over all hit ratios.
///
/// # Errors
/// When the policy's network cannot be built or solved.
pub fn peak(
    policy: &Policy,
    service: &Service,
    setting: &Setting,
    load: &Load,
) -> Result<Peak, ModelError> {
    let network = |hit_ratio: f64| policy.network(service, &setting.at(hit_ratio));
    let bottleneck = network(1.0 - EXACT_TO)?.bottleneck(load);
    highest(|hit_ratio| mva::throughput(&network(hit_ratio)?, load), 0.0, bottleneck)
}

/// Returns the peak, over all hit ratios, of the arrival rate that a policy can sustain.
///
/// # Errors
/// When the policy's network cannot be built or solved.
pub fn saturation_peak(
    policy: &Policy,
    service: &Service,
    setting: &Setting,
    cores: Option<u32>,
) -> Result<Peak, ModelError> {
    let network = |hit_ratio: f64| policy.network(service, &setting.at(hit_ratio));
    let load = Load { mpl: u32::MAX, cores };
    let bottleneck = network(1.0 - EXACT_TO)?.bottleneck(&load);
    highest(|hit_ratio| open::saturation(&network(hit_ratio)?, cores), ROUNDING, bottleneck)
}

fn highest(
    at: impl Fn(f64) -> Result<f64, ModelError>,
    rounding: f64,
    bottleneck: Option<&'static str>,
) -> Result<Peak, ModelError> {
    let step = 1.0 / f64::from(STEPS);
    // With some rounding, of a plateau the last: past it throughput falls.
    let is_higher = |throughput: f64, than: f64| throughput > than * (1.0 - rounding);
    let mut highest = (0.0, at(0.0)?);
    for place in 1..=STEPS {
        let hit_ratio = f64::from(place) / f64::from(STEPS);
        let throughput = at(hit_ratio)?;
        if is_higher(throughput, highest.1) {
            highest = (hit_ratio, throughput);
        }
    }
    let all_hits_mrps = at(1.0)?;
    // Between its neighbours the peak is alone: a third of what is left is cut off at the lower
    // side.
    let (mut low, mut high) = ((highest.0 - step).max(0.0), (highest.0 + step).min(1.0));
    while high - low > EXACT_TO {
        let third = (high - low) / 3.0;
        if is_higher(at(high - third)?, at(low + third)?) { low += third } else { high -= third }
    }
    let middle = (low + high) / 2.0;
    let throughput = at(middle)?;
    if is_higher(throughput, highest.1) {
        highest = (middle, throughput);
    }
    let falls = all_hits_mrps < highest.1 * (1.0 - FALL_MIN);
    Ok(Peak {
        hit_ratio: if falls { highest.0 } else { 1.0 },
        throughput_mrps: if falls { highest.1 } else { all_hits_mrps },
        all_hits_mrps,
        class: if falls { Class::LruLike } else { Class::FifoLike },
        bottleneck,
    })
}
