//! The answer in a sentence, and the settings that go with it.

use floe_block::format_size;

use super::{Question, Trial};
use crate::report::Unit;

/// Differences below this share decide nothing.
const MARGIN: f64 = 0.05;

/// Returns the sentence, and the floe.toml if a cache pays.
pub(super) fn of(
    question: &Question,
    best: &Trial,
    default: &Trial,
    bare: &Trial,
) -> (String, Option<String>) {
    let us = |trial: &Trial| Unit::Microseconds.value(trial.mean_us);
    let gain = |trial: &Trial| 1.0 - best.mean_us / trial.mean_us;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    if gain(bare) < MARGIN {
        let margin = percent(gain(bare).max(0.0));
        return (
            format!(
                "No cache pays: requests take {} on the bare volume, and the best cache gains \
                 {margin}.",
                us(bare)
            ),
            None,
        );
    }
    let is_default = gain(default) < MARGIN;
    let chosen = if is_default { default } else { best };
    let beside = if is_default {
        format!("the best settings gain {} more", percent(gain(default).max(0.0)))
    } else {
        format!("{} less than with the defaults ({})", percent(gain(default)), us(default))
    };
    let verdict = format!(
        "With {} of {}{} a request takes {} on average instead of {} bare, {:.1} times as fast; \
         {beside}.",
        format_size(chosen.candidate.cache_bytes),
        question.cache,
        if is_default { " and the defaults" } else { "" },
        us(chosen),
        us(bare),
        bare.mean_us / chosen.mean_us,
    );
    let disk = |name: &str| format!("file:/dev/disk/by-id/{name}");
    (verdict, Some(chosen.candidate.toml(&disk("CACHE"), &disk("VOLUME"))))
}
