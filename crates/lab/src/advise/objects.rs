//! Recommends sizes of memory and flash for a trace of objects, from simulations of
//! [the cache in memory and on flash](crate::simulate::hybrid).

use floe_hybrid::Admission;
use serde::Serialize;

use crate::report::Unit;
use crate::simulate::hybrid::{HybridResult, Limits};

/// Shares of the footprint that are tried as sizes of memory, in percent.
const MEMORY_PERCENT: [u64; 3] = [1, 3, 10];
/// Shares of the footprint that are tried as sizes of flash, in percent.
const FLASH_PERCENT: [u64; 4] = [10, 25, 50, 100];
/// Smallest sizes that are tried, in bytes.
const LEAST_BYTES: u64 = 4 << 20;
/// Difference of hit ratios that a larger cache must gain to be recommended.
const WORTH: f64 = 0.01;
/// Time of a trace, in seconds, below which its writes a day are doubtful.
const SHORT_SECONDS: f64 = 3600.0;
/// Number of requests below which hits are doubtful.
const FEW_REQUESTS: u64 = 10_000;

/// Sizes recommended for a trace of objects: the output fields of `floe advise --objects`.
#[derive(Debug, Clone, Serialize)]
pub struct ObjectAdvice {
    /// Name of the trace.
    pub trace: String,
    /// Bytes of all objects of the trace at their largest size.
    pub footprint_bytes: u64,
    /// The recommendation in a few sentences.
    pub verdict: String,
    /// Reasons to doubt the recommendation, a sentence each.
    pub warnings: Vec<String>,
    /// The simulation of the recommended sizes.
    pub best: HybridResult,
    /// All simulations, by memory and then by flash.
    pub simulations: Vec<HybridResult>,
}

/// Returns the sizes to simulate for a trace with this footprint in bytes, by memory and then by
/// flash.
pub fn sizes_for(footprint_bytes: u64) -> Vec<Limits> {
    let of = |percent: &u64| (footprint_bytes / 100).saturating_mul(*percent).max(LEAST_BYTES);
    let mut limits = Vec::new();
    for memory in MEMORY_PERCENT.iter().map(of) {
        limits.extend(FLASH_PERCENT.iter().map(of).map(|flash| Limits { memory, flash }));
    }
    // Of a small footprint, several are the smallest.
    limits.sort_by_key(|it| (it.memory, it.flash));
    limits.dedup();
    limits
}

/// Recommends one of the simulated sizes: the least memory, and then the least flash, whose hit
/// ratio is within a point of the best. Returns `None` without simulations.
pub fn advise_objects(
    trace: &str,
    footprint_bytes: u64,
    simulations: Vec<HybridResult>,
) -> Option<ObjectAdvice> {
    let most = simulations.iter().map(|result| result.hit_ratio).fold(0.0, f64::max);
    let good = simulations.iter().filter(|result| result.hit_ratio >= most - WORTH);
    let best = good.min_by_key(|result| (result.memory, result.flash))?.clone();
    Some(ObjectAdvice {
        trace: trace.to_owned(),
        footprint_bytes,
        verdict: verdict(&best, most),
        warnings: warnings(&best),
        best,
        simulations,
    })
}

/// Returns the settings of what is written to flash, as a part of a sentence that ends with a
/// comma.
fn settings(best: &HybridResult) -> String {
    let everything = Admission::Everything.to_string();
    let admission =
        (best.admission != everything).then(|| format!(", admission {}", best.admission));
    let budget = best.write_budget.as_ref().map(|budget| format!(", a write budget of {budget}"));
    format!("{}{},", admission.unwrap_or_default(), budget.unwrap_or_default())
}

fn verdict(best: &HybridResult, most: f64) -> String {
    let bytes = |bytes: u64| Unit::Bytes.value(bytes as f64);
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let on_flash = best.flash_hits as f64 / best.requests.max(1) as f64;
    let mut text = format!(
        "With {} of memory and {} of flash{} {} of the reads hit, {} on flash. The largest sizes \
         that were tried reach {}. The source is spared {} reads of {}.",
        bytes(best.memory),
        bytes(best.flash),
        settings(best),
        percent(best.hit_ratio),
        percent(on_flash),
        percent(most),
        Unit::Count.value((best.memory_hits + best.flash_hits) as f64),
        bytes(best.hit_bytes),
    );
    if let (Some(rate), Some(writes)) = (best.written_bytes_per_second, best.writes_per_day) {
        let a_day = bytes((rate * 86_400.0) as u64);
        text += &format!(" {a_day} a day are written to flash, {writes:.2} drive writes a day.");
    }
    text
}

fn warnings(best: &HybridResult) -> Vec<String> {
    let mut warnings = Vec::new();
    if best.requests < FEW_REQUESTS {
        warnings.push(format!("only {} reads count, too few to trust.", best.requests));
    }
    match best.trace_seconds {
        None => warnings.push("the trace has no times, so writes a day are not known.".to_owned()),
        Some(seconds) if seconds < SHORT_SECONDS => warnings.push(
            "the trace is shorter than an hour, so writes a day are those of a short time."
                .to_owned(),
        ),
        Some(_) => {}
    }
    if best.flash_evicted == 0 {
        warnings
            .push("the flash never filled up, so the trace is too short to judge it.".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use floe_trace::{Kind, Trace};

    use super::*;
    use crate::simulate::hybrid::{Writes, simulate};
    use crate::simulate::stream::{Builder, Keep};

    #[test]
    fn sizes_are_distinct_and_in_order() {
        let sizes = sizes_for(10 << 30);
        assert_eq!(sizes.len(), 12);
        assert!(sizes.is_sorted_by(|a, b| (a.memory, a.flash) < (b.memory, b.flash)));
        let least = Limits { memory: LEAST_BYTES, flash: LEAST_BYTES };
        assert_eq!(sizes_for(1000), [least]);
    }

    #[test]
    fn the_smallest_sizes_within_a_point_of_the_best_are_recommended() {
        let keep = Keep { rate: 1.0, sizes: true, next_use: false };
        let mut builder = Builder::new(Kind::Object, keep, 1);
        let spec = "zipf:keys=20000,theta=0.9,requests=40000".parse().unwrap();
        for request in Trace::generate(&spec).unwrap() {
            builder.add(&floe_trace::Request { bytes: 4000, ..request.unwrap() }).unwrap();
        }
        let stream = builder.finish().unwrap();
        let run = |limits: &Limits| {
            simulate("t", (&stream, &[]), (*limits, Writes::default()), &AtomicU64::new(0))
        };
        let results: Vec<HybridResult> =
            sizes_for(stream.footprint).iter().map(|limits| run(limits).unwrap()).collect();
        let advice = advise_objects("t", stream.footprint, results).unwrap();
        let most = advice.simulations.iter().map(|it| it.hit_ratio).fold(0.0, f64::max);
        assert!(advice.best.hit_ratio >= most - WORTH);
        for other in &advice.simulations {
            let is_smaller = (other.memory, other.flash) < (advice.best.memory, advice.best.flash);
            assert!(!is_smaller || other.hit_ratio < most - WORTH, "{other:?}");
        }
        assert!(advice.verdict.contains("of flash"), "{}", advice.verdict);
        assert!(advice.warnings.iter().any(|warning| warning.contains("no times")));
        assert!(advise_objects("t", 0, Vec::new()).is_none());
    }
}
