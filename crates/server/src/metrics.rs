//! The metrics of a server for Prometheus: the text format, version 0.0.4, rendered from a
//! [`Report`].
//!
//! Counters of one value are written from their declarations ([`floe_block::counters!`]). The
//! metrics here have labels, or are not counted.
//!
//! Names follow Prometheus' rules: base units (seconds, bytes), `_total` on what only grows, labels
//! instead of names that differ in a word. Source:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/practices/naming/>. Client libraries keep counters of their own,
//! shared by all threads; here each thread counts for itself, and what is written is their sum.

mod cache;
mod memory;
mod page;
mod process;

use std::time::Duration;

use crate::pair::{PairStatus, Role};
use crate::status::{Latencies, Operation, Report, Snapshot, VolumeFacts};
use cache::{admission, cache, devices, shedding, tiers};
use memory::memory;
use page::{Kind, Page};

/// The content type of [`render`]'s text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the latency buckets in microseconds: from a hit in memory to a disk that hangs.
const BUCKETS_US: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// All metrics of a server.
pub(crate) fn render(report: &Report) -> String {
    let mut page = Page::default();
    page.family("floe_build_info", Kind::Gauge, "The version of floe; always 1.");
    page.sample("floe_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("floe_write_mode_info", Kind::Gauge, "The write mode; always 1.");
    page.sample("floe_write_mode_info", &[("mode", &report.facts.top().mode.to_string())], 1);
    page.family(
        "floe_cache_evict_info",
        Kind::Gauge,
        "The policy that decides what leaves the cache; always 1.",
    );
    page.sample("floe_cache_evict_info", &[("policy", &report.facts.top().evict)], 1);
    volumes(&mut page, report);
    clients(&mut page, report);
    latencies(&mut page, report);
    page.declared(&report.sum.tally.clients, &[]);
    page.declared(&report.cache(), &settings(report));
    cache(&mut page, report);
    admission(&mut page, report);
    tiers(&mut page, report);
    shedding(&mut page, report);
    memory(&mut page, report);
    advice(&mut page, report);
    devices(&mut page, report);
    threads(&mut page, report);
    report.facts.pair.iter().for_each(|status| pair(&mut page, status));
    process::write(&mut page, report.facts.started);
    page.text()
}

/// All metrics of a server that stands by.
pub(crate) fn of_standby(status: &PairStatus) -> String {
    let mut page = Page::default();
    pair(&mut page, status);
    page.text()
}

fn pair(page: &mut Page, status: &PairStatus) {
    let name = "floe_pair_active";
    page.family(name, Kind::Gauge, "1 for the server of a pair that serves, 0 for the standby.");
    page.sample(name, &[], u64::from(status.role == Role::Active));
    let name = "floe_pair_generation";
    page.family(name, Kind::Gauge, "The number of servers of the pair that have served so far.");
    page.sample(name, &[], status.generation);
    let name = "floe_pair_standbys";
    page.family(
        name,
        Kind::Gauge,
        "Standbys that the active server has seen within a lease: 0, 1.",
    );
    page.sample(name, &[], u64::from(status.standby.is_some()));
    let name = "floe_pair_lease_age_seconds";
    page.family(name, Kind::Gauge, "Time since the lease was last seen to be renewed.");
    page.sample(name, &[], status.renewed_seconds);
}

/// The settings given, of those without which some metrics are left out.
fn settings(report: &Report) -> Vec<&'static str> {
    let facts = &report.facts;
    let given = [
        ("admit", facts.top().admission.is_some()),
        ("memory", facts.memory.is_some()),
        ("shed", facts.shedding.is_some()),
        ("standby", facts.pair.is_some()),
    ];
    given.into_iter().filter_map(|(setting, given)| given.then_some(setting)).collect()
}

fn volumes(page: &mut Page, report: &Report) {
    let mut each = |name, kind, help, value: &dyn Fn(&VolumeFacts) -> u64| {
        page.family(name, kind, help);
        for volume in &report.facts.volumes {
            page.sample(name, &[("volume", &volume.name)], value(volume));
        }
    };
    each("floe_volume_size_bytes", Kind::Gauge, "Size of a volume.", &|volume| volume.bytes);
    each(
        "floe_volume_read_only",
        Kind::Gauge,
        "1 for a volume clients cannot write to.",
        &|volume| u64::from(volume.read_only),
    );
    each("floe_volume_connections", Kind::Gauge, "Clients connected to a volume.", &|volume| {
        report.sum.users(volume.id).total()
    });
    let answered = report.facts.volumes.iter().flat_map(|volume| {
        let answered = report.sum.tally.volume(volume.id).answered;
        Operation::ALL.into_iter().zip(answered).map(|(operation, answered)| {
            (vec![("volume", volume.name.as_str()), ("operation", operation.name())], answered)
        })
    });
    page.declared_by(&answered.collect::<Vec<_>>());
}

fn clients(page: &mut Page, report: &Report) {
    page.gauge("floe_connections", "Clients connected.", report.sum.connections.total());
    page.counter(
        "floe_log_lines_dropped_total",
        "Lines of the log that were dropped because nobody read them in time.",
        report.facts.log_lines_dropped,
    );
}

fn latencies(page: &mut Page, report: &Report) {
    let name = "floe_request_duration_seconds";
    page.family(
        name,
        Kind::Histogram,
        "From the arrival of a whole request to its reply being queued.",
    );
    for operation in Operation::ALL {
        histogram(page, name, operation.name(), report.sum.tally.latencies(operation));
    }
}

fn histogram(page: &mut Page, name: &str, operation: &str, latencies: &Latencies) {
    let bucket = format!("{name}_bucket");
    for us in BUCKETS_US {
        let bound = Duration::from_micros(us);
        let labels = [("operation", operation), ("le", &bound.as_secs_f64().to_string())];
        page.sample(&bucket, &labels, latencies.within(bound));
    }
    page.sample(&bucket, &[("operation", operation), ("le", "+Inf")], latencies.count());
    let labels = [("operation", operation)];
    page.sample(&format!("{name}_sum"), &labels, latencies.sum().as_secs_f64());
    page.sample(&format!("{name}_count"), &labels, latencies.count());
}

fn advice(page: &mut Page, report: &Report) {
    let Some(advice) = &report.advice else { return };
    if let Some(bottleneck) = &advice.bottleneck {
        let name = "floe_bottleneck_info";
        page.family(
            name,
            Kind::Gauge,
            "The list operation that is busiest by the model, or cores; always 1.",
        );
        page.sample(name, &[("tier", &advice.tier), ("station", bottleneck)], 1);
        let help = "The share of time for which it is busy.";
        page.gauge("floe_bottleneck_utilisation", help, advice.utilisation);
    }
    let help =
        "The hit ratio past which more hits cost throughput, by the model; 1 where they never do.";
    page.gauge("floe_p_star", help, advice.p_star);
    let help = "1 when the hit ratio is past it.";
    page.gauge("floe_past_p_star", help, u64::from(advice.past_p_star));
}

fn threads(page: &mut Page, report: &Report) {
    page.gauge("floe_threads", "Threads that serve.", report.threads.len() as u64);
    for (name, kind, help, value) in [
        (
            "floe_thread_connections",
            Kind::Gauge,
            "Clients connected to a thread.",
            (|thread| thread.connections.total()) as fn(&Snapshot) -> u64,
        ),
        ("floe_thread_requests_total", Kind::Counter, "Requests answered by a thread.", |thread| {
            thread.tally.requests()
        }),
        (
            "floe_thread_messages_total",
            Kind::Counter,
            "Messages a thread has sent to others.",
            |thread| thread.traffic.messages,
        ),
        (
            "floe_thread_wakes_total",
            Kind::Counter,
            "Sleeping threads a thread has woken.",
            |thread| thread.traffic.wakes,
        ),
    ] {
        page.family(name, kind, help);
        for (number, thread) in report.threads.iter().enumerate() {
            page.sample(name, &[("thread", &number.to_string())], value(thread));
        }
    }
}

#[cfg(test)]
mod packaged;
#[cfg(test)]
mod tests;
