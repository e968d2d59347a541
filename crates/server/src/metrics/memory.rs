//! Metrics of the tier in memory.

use super::page::{Kind, Page};
use crate::status::{MemoryFacts, Report};

/// Writes the metrics of the tier in memory, where there is one.
pub(super) fn memory(page: &mut Page, report: &Report) {
    let Some(MemoryFacts { write, usage, freezing }) = &report.facts.memory else { return };
    page.family("floe_memory_write_mode_info", Kind::Gauge, "The write mode of memory; always 1.");
    page.sample("floe_memory_write_mode_info", &[("mode", &write.to_string())], 1);
    page.gauge("floe_memory_size_bytes", "Bytes the tier in memory may take.", usage.size_bytes);
    page.gauge("floe_memory_page_bytes", "Bytes of pages in memory.", usage.page_bytes);
    page.counter(
        "floe_memory_pages_evicted_total",
        "Pages that left memory to make room for others.",
        usage.evictions,
    );
    if let Some(admission) = &usage.admission {
        let name = "floe_memory_admission_info";
        page.family(name, Kind::Gauge, "The admission of memory; always 1.");
        page.sample(name, &[("admission", &admission.name)], 1);
        let name = "floe_memory_offered_pages_total";
        page.family(
            name,
            Kind::Counter,
            "Pages read or written and not in memory, by whether they came in.",
        );
        page.sample(name, &[("result", "admitted")], admission.admitted);
        page.sample(name, &[("result", "bypassed")], admission.bypassed);
    }
    let Some(freezing) = freezing else { return };
    page.family("floe_memory_freezing_phase_info", Kind::Gauge, "The phase of freezing; always 1.");
    page.sample("floe_memory_freezing_phase_info", &[("phase", freezing.phase.name())], 1);
    page.gauge(
        "floe_memory_frozen_ratio",
        "The share of pages that is to be frozen.",
        freezing.ratio,
    );
    let share = freezing.frozen_share.unwrap_or_default();
    page.gauge("floe_memory_frozen_share", "The share of hits that frozen pages had last.", share);
    page.counter("floe_memory_freezings_total", "Times pages were frozen.", freezing.constructed);
    page.counter(
        "floe_memory_freezings_given_up_total",
        "Times freezing did not pay.",
        freezing.given_up,
    );
}
