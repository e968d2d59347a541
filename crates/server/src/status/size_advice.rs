//! Advice on the size of the first tier, from the live miss-ratio curve.

use serde::{Deserialize, Serialize};

/// Gains below this share of the reads are noise, and not worth a sentence.
pub(super) const NOTABLE: f64 = 0.005;

/// Largest slowdown of the mean read, as a factor, that does not count as slower.
const AS_FAST: f64 = 1.01;

/// The estimated effect of another size of the first tier on reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeAdvice {
    /// The smallest larger size that would be notably better, as a multiple of the present one;
    /// `None` if none would.
    pub larger: Option<f64>,
    /// True if half the size would do as well.
    pub half_is_enough: bool,
    /// True if the load has not filled the sizes yet that were compared.
    pub is_filling: bool,
    /// The advice in a sentence.
    pub text: String,
}

/// The estimate for one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SizeEstimate {
    /// The size as a multiple of the present one.
    pub(crate) factor: f64,
    /// Estimated share of reads that hit; a lower bound while the size is filling.
    pub(crate) hit_ratio: f64,
    /// Half width of the 95 % confidence interval of `hit_ratio`.
    pub(crate) ci95: f64,
    /// Estimated mean latency of reads in microseconds, if hits and misses have been measured.
    pub(crate) mean_us: Option<f64>,
    pub(crate) is_filling: bool,
}

impl SizeEstimate {
    /// Returns whether reads are notably faster with this size than with another, as far as is
    /// estimated, whatever the error.
    fn seems_better_than(&self, other: &Self) -> bool {
        match (self.mean_us, other.mean_us) {
            (Some(mean), Some(than)) => than > mean * AS_FAST,
            _ => self.hit_ratio - other.hit_ratio > NOTABLE,
        }
    }

    /// Returns whether reads are notably faster with this size than with another, beyond the error.
    fn is_better_than(&self, other: &Self) -> bool {
        self.seems_better_than(other) && self.hit_ratio - other.hit_ratio > self.ci95 + other.ci95
    }
}

impl SizeAdvice {
    /// Creates the advice from estimates by increasing size. Returns `None` without one for the
    /// present size.
    pub(crate) fn of(sizes: &[SizeEstimate]) -> Option<Self> {
        let now = sizes.iter().find(|size| size.factor == 1.0)?;
        let mut above = sizes.iter().filter(|size| size.factor > 1.0);
        let larger = above.clone().find(|size| size.is_better_than(now));
        let may_gain = above.clone().any(|size| size.seems_better_than(now));
        let is_filling = now.is_filling || larger.is_none() && above.any(|size| size.is_filling);
        let larger = larger.filter(|_| !is_filling);
        let half = sizes.iter().find(|size| size.factor == 0.5 && !size.is_filling);
        let half_is_enough =
            !is_filling && !may_gain && half.is_some_and(|half| !now.seems_better_than(half));
        let text = match larger {
            _ if is_filling => {
                "It is too early to tell what a larger cache would gain: the reads so far would \
                 not fill it."
                    .to_owned()
            }
            Some(larger) => with_larger(now, larger),
            None if may_gain => {
                "Too few reads were sampled to tell whether a larger cache would make them faster."
                    .to_owned()
            }
            None if half_is_enough => {
                "Reads would be no faster with a larger cache, and no slower with half of it."
                    .to_owned()
            }
            None => "Reads would be no faster with a larger cache.".to_owned(),
        };
        Some(Self { larger: larger.map(|size| size.factor), half_is_enough, is_filling, text })
    }
}

/// Returns the sentence on a larger size that is notably better than the present one.
fn with_larger(now: &SizeEstimate, larger: &SizeEstimate) -> String {
    let times = if larger.factor == 2.0 {
        "twice as large".to_owned()
    } else {
        format!("{} times as large", larger.factor)
    };
    let least = if larger.is_filling { "at least " } else { "" };
    let [share, share_now] = [larger, now].map(|size| 100.0 * size.hit_ratio);
    let time = match (larger.mean_us, now.mean_us) {
        (Some(mean), Some(mean_now)) => {
            format!(", and a read would take {mean:.0} µs instead of {mean_now:.0} µs on average")
        }
        _ => String::new(),
    };
    format!(
        "With a cache {times}, {least}{share:.1} % of the reads would hit instead of \
         {share_now:.1} %{time}, by an estimate."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns estimates for half, one, two and four times the size, with these hit ratios.
    fn sizes(hits: [f64; 4]) -> [SizeEstimate; 4] {
        let mut factors = [0.5, 1.0, 2.0, 4.0].into_iter();
        hits.map(|hit_ratio| SizeEstimate {
            factor: factors.next().expect("one for each"),
            hit_ratio,
            ci95: 0.001,
            mean_us: Some(100.0 * hit_ratio + 1000.0 * (1.0 - hit_ratio)),
            is_filling: false,
        })
    }

    fn text(sizes: &[SizeEstimate]) -> String {
        SizeAdvice::of(sizes).expect("the present size is among them").text
    }

    #[test]
    fn the_smallest_size_that_gains_is_named() {
        let twice = text(&sizes([0.5, 0.6, 0.7, 0.9]));
        assert_eq!(
            twice,
            "With a cache twice as large, 70.0 % of the reads would hit instead of 60.0 %, and a \
             read would take 370 µs instead of 460 µs on average, by an estimate."
        );
        let cliff = text(&sizes([0.5, 0.6, 0.6, 0.9]));
        assert!(cliff.starts_with("With a cache 4 times as large, 90.0 %"), "{cliff}");
    }

    #[test]
    fn where_no_size_gains_a_larger_cache_is_called_useless() {
        assert_eq!(
            text(&sizes([0.5, 0.6, 0.603, 0.604])),
            "Reads would be no faster with a larger cache."
        );
        let advice = SizeAdvice::of(&sizes([0.598, 0.6, 0.6, 0.6])).expect("a present size");
        assert!(advice.half_is_enough && advice.larger.is_none());
        assert!(advice.text.ends_with("and no slower with half of it."), "{}", advice.text);
    }

    #[test]
    fn a_gain_within_the_error_is_left_open_and_one_that_takes_no_time_off_is_none() {
        let mut noisy = sizes([0.53, 0.6, 0.67, 0.67]);
        noisy.iter_mut().for_each(|size| size.ci95 = 0.04);
        assert!(text(&noisy).starts_with("Too few reads were sampled"), "{}", text(&noisy));
        let advice = SizeAdvice::of(&noisy).expect("the present size is among them");
        assert!(!advice.half_is_enough && advice.larger.is_none());
        let mut slow = sizes([0.5, 0.6, 0.7, 0.7]);
        slow.iter_mut().for_each(|size| size.mean_us = Some(500.0));
        assert!(text(&slow).starts_with("Reads would be no faster"), "hits are no faster");
    }

    #[test]
    fn few_misses_less_count_where_misses_are_slow() {
        let mut slow = sizes([0.986, 0.99, 0.9945, 0.9945]);
        for size in &mut slow {
            size.mean_us = Some(10.0 * size.hit_ratio + 10_000.0 * (1.0 - size.hit_ratio));
        }
        assert!(text(&slow).starts_with("With a cache twice as large"), "{}", text(&slow));
    }

    #[test]
    fn a_load_that_has_not_filled_the_sizes_gives_no_verdict() {
        let mut filling = sizes([0.5, 0.6, 0.6, 0.6]);
        filling[3].is_filling = true;
        assert!(text(&filling).starts_with("It is too early"), "{}", text(&filling));
        let mut least = sizes([0.5, 0.6, 0.7, 0.7]);
        least[2].is_filling = true;
        assert!(text(&least).contains("at least 70.0 %"), "{}", text(&least));
    }
}
