//! The metrics of a server for Prometheus: the text format, version 0.0.4, rendered from a
//! [`Report`].
//!
//! Counters of one value are written from their declarations ([`floe_block::counters!`]). This
//! module writes those that have labels or are not counters.
//!
//! Names follow Prometheus' rules: base units (seconds, bytes), `_total` on counters that only
//! grow, labels instead of names that differ in a word. Source:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/practices/naming/>. Client libraries keep counters of their own,
//! shared by all threads; here each thread counts for itself, and the sum is written.

use std::fmt::{Display, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use floe_block::{CounterType, Counts, Declaration, Stats};
use floe_device::MirrorWatch;
use floe_policy::Setting;
use rustix::process::{Resource, getrlimit};

use crate::named_clients::ClientLimit;
use crate::pair::{PairStatus, Role};
use crate::status::{
    CacheFacts, CacheUse, Latencies, MemoryFacts, Operation, Report, Snapshot, VolumeFacts,
};

use self::MetricType::{Counter, Gauge, Histogram};

/// Content type of the text that [`render`] returns.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the latency buckets in microseconds: from a hit in memory to a disk that hangs.
const BUCKETS_US: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Returns all metrics of a serving server, in Prometheus' text format.
pub(crate) fn render(report: &Report) -> String {
    let mut page = Page::default();
    page.family("floe_build_info", Gauge, "The version of floe; always 1.");
    page.sample("floe_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("floe_write_mode_info", Gauge, "The write mode; always 1.");
    page.sample(
        "floe_write_mode_info",
        &[("mode", &report.facts.top().config.mode.to_string())],
        1,
    );
    page.family("floe_cache_evict_info", Gauge, "The eviction policy of the cache; always 1.");
    page.sample(
        "floe_cache_evict_info",
        &[("policy", &report.facts.top().config.evict.to_string())],
        1,
    );
    volumes(&mut page, report);
    clients(&mut page, report);
    latencies(&mut page, report);
    page.declared(&report.sum.counters.clients, &[]);
    page.declared(&report.cache(), &settings(report));
    cache(&mut page, report);
    adaptation(&mut page, report);
    admission(&mut page, report);
    tiers(&mut page, report);
    shedding(&mut page, report);
    memory(&mut page, report);
    advice(&mut page, report);
    devices(&mut page, report);
    threads(&mut page, report);
    report.facts.pair.iter().for_each(|status| pair(&mut page, status));
    write(&mut page, report.facts.started);
    page.text()
}

/// Returns all metrics of a standby server, in Prometheus' text format.
pub(crate) fn of_standby(status: &PairStatus) -> String {
    let mut page = Page::default();
    pair(&mut page, status);
    page.text()
}

fn pair(page: &mut Page, status: &PairStatus) {
    let name = "floe_pair_active";
    page.family(name, Gauge, "1 for the server of a pair that serves, 0 for the standby.");
    page.sample(name, &[], u64::from(status.role == Role::Active));
    let name = "floe_pair_generation";
    page.family(name, Gauge, "The number of servers of the pair that have served so far.");
    page.sample(name, &[], status.generation);
    let name = "floe_pair_standbys";
    page.family(name, Gauge, "Standbys that the active server has seen within a lease: 0, 1.");
    page.sample(name, &[], u64::from(status.standby.is_some()));
    let name = "floe_pair_lease_age_seconds";
    page.family(name, Gauge, "Time since the lease was last seen to be renewed.");
    page.sample(name, &[], status.renewed_seconds);
}

/// Returns the settings that enable certain metrics, as far as they are given.
fn settings(report: &Report) -> Vec<&'static str> {
    let facts = &report.facts;
    let given = [
        ("admit", !facts.top().config.gate.admission.is_always()),
        ("memory", facts.memory.is_some()),
        ("shed", facts.shedding.is_some()),
        ("standby", facts.pair.is_some()),
    ];
    given.into_iter().filter_map(|(setting, given)| given.then_some(setting)).collect()
}

fn volumes(page: &mut Page, report: &Report) {
    let total = report.facts.total_limit;
    let name = "floe_limit_requests_per_second";
    page.family(name, Gauge, "Most requests per second of all volumes together, 0 for no limit.");
    page.sample(name, &[], total.total_requests_per_second.unwrap_or(0));
    let name = "floe_limit_bytes_per_second";
    page.family(name, Gauge, "Most bytes per second of all volumes together, 0 for no limit.");
    page.sample(name, &[], total.total_bytes_per_second.unwrap_or(0));
    let mut each = |name, kind, help, value: &dyn Fn(&VolumeFacts) -> u64| {
        page.family(name, kind, help);
        for volume in &report.facts.volumes {
            page.sample(name, &[("volume", &volume.name)], value(volume));
        }
    };
    each("floe_volume_size_bytes", Gauge, "Size of a volume.", &|volume| volume.bytes);
    each("floe_volume_read_only", Gauge, "1 for a volume clients cannot write to.", &|volume| {
        u64::from(volume.read_only)
    });
    each("floe_volume_connections", Gauge, "Clients connected to a volume.", &|volume| {
        report.sum.users(volume.id).total()
    });
    let name = "floe_volume_limit_requests_per_second";
    each(name, Gauge, "Most requests per second of a volume, 0 for no limit.", &|volume| {
        volume.limit.requests_per_second.unwrap_or(0)
    });
    let name = "floe_volume_limit_bytes_per_second";
    each(name, Gauge, "Most bytes per second of a volume, 0 for no limit.", &|volume| {
        volume.limit.bytes_per_second.unwrap_or(0)
    });
    let name = "floe_volume_limit_client_requests_per_second";
    let help = "Most requests per second of each client of a volume, 0 for no limit.";
    each(name, Gauge, help, &|volume| volume.limit.client_requests_per_second.unwrap_or(0));
    let name = "floe_volume_limit_client_bytes_per_second";
    let help = "Most bytes per second of each client of a volume, 0 for no limit.";
    each(name, Gauge, help, &|volume| volume.limit.client_bytes_per_second.unwrap_or(0));
    let name = "floe_volume_limit_connections";
    each(name, Gauge, "Most connections of a volume, 0 for no limit.", &|volume| {
        volume.limit.connections.unwrap_or(0)
    });
    let name = "floe_volume_weight";
    let help = "Weight of a volume while volumes compete for the limits of the server. \
                That of an attached volume, 100, has no effect on its device.";
    each(name, Gauge, help, &|volume| volume.limit.weight);
    let name = "floe_volume_connections_refused_total";
    each(name, Counter, "Clients refused because of their volume's limit.", &|volume| {
        volume.refused
    });
    let name = "floe_volume_delayed_requests_total";
    let help = "Requests of a volume that have waited for limits, or found others waiting.";
    each(name, Counter, help, &|volume| report.sum.counters.volume(volume.id).delayed.requests);
    let mut of_named = |name, help, value: &dyn Fn(&ClientLimit) -> u64| {
        page.family(name, Gauge, help);
        for volume in &report.facts.volumes {
            for (client, limit) in volume.limit.clients.iter() {
                let labels = [("volume", volume.name.as_str()), ("client", &client.to_string())];
                page.sample(name, &labels, value(limit));
            }
        }
    };
    let name = "floe_volume_client_limit_requests_per_second";
    let help = "Most requests per second of a client that the volume names, 0 for no limit.";
    of_named(name, help, &|limit| limit.requests_per_second.unwrap_or(0));
    let name = "floe_volume_client_limit_bytes_per_second";
    let help = "Most bytes per second of a client that the volume names, 0 for no limit.";
    of_named(name, help, &|limit| limit.bytes_per_second.unwrap_or(0));
    let name = "floe_volume_client_weight";
    let help = "Weight of a client that the volume names, while clients compete for its limits.";
    of_named(name, help, &|limit| limit.weight);
    let names = report.facts.volumes.iter().flat_map(|volume| {
        volume.limit.clients.iter().map(move |(client, _)| (volume, client, client.to_string()))
    });
    let names: Vec<_> = names.collect();
    let of_clients = names.iter().map(|(volume, client, text)| {
        let labels = vec![("volume", volume.name.as_str()), ("client", text.as_str())];
        (labels, report.sum.client_use(volume.id, client))
    });
    let of_clients: Vec<_> = of_clients.collect();
    page.declared_by(&of_clients);
    let name = "floe_volume_client_delayed_seconds_total";
    let help = "Time that requests of a client that the volume names have waited for limits.";
    page.family(name, Counter, help);
    for (labels, counts) in &of_clients {
        page.sample(name, labels, counts.delayed.as_secs_f64());
    }
    let name = "floe_volume_counted_connections";
    page.family(name, Gauge, "Clients that count against the limit of connections.");
    for VolumeFacts { name: volume, counted, .. } in &report.facts.volumes {
        for (protocol, clients) in [("nbd", counted.nbd), ("nvme-tcp", counted.nvme_tcp)] {
            page.sample(name, &[("volume", volume.as_str()), ("protocol", protocol)], clients);
        }
    }
    let name = "floe_volume_delayed_seconds_total";
    page.family(name, Counter, "Time that requests of a volume have waited for limits.");
    for volume in &report.facts.volumes {
        let delayed = report.sum.counters.volume(volume.id).delayed;
        page.sample(name, &[("volume", &volume.name)], delayed.time.as_secs_f64());
    }
    let mut of_tiers = |name, help, value: &dyn Fn(CacheUse, u64) -> u64| {
        page.family(name, Gauge, help);
        for volume in &report.facts.volumes {
            let tiers = report.volume_use(volume).zip(&report.facts.tiers).enumerate();
            for (tier, (used, facts)) in tiers {
                let labels = [("volume", volume.name.as_str()), ("tier", &tier.to_string())];
                page.sample(name, &labels, value(used, facts.size_bytes));
            }
        }
    };
    let name = "floe_volume_cache_bytes";
    of_tiers(name, "Bytes of a tier that a volume's blocks take.", &|used, _| used.used_bytes);
    let name = "floe_volume_cache_guaranteed_bytes";
    of_tiers(name, "Bytes of a volume in a tier that others do not evict.", &|used, _| {
        used.guaranteed_bytes
    });
    let name = "floe_volume_cache_most_bytes";
    of_tiers(name, "Most bytes of a tier that a volume uses.", &|used, tier_bytes| {
        used.most_bytes.map_or(tier_bytes, |most| most.min(tier_bytes))
    });
    let answered = report.facts.volumes.iter().flat_map(|volume| {
        let answered = report.sum.counters.volume(volume.id).answered;
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
        "Lines of the log dropped because its reader was too slow.",
        report.facts.log_lines_dropped,
    );
}

fn latencies(page: &mut Page, report: &Report) {
    let name = "floe_request_duration_seconds";
    page.family(name, Histogram, "From the arrival of a whole request to its reply being queued.");
    for operation in Operation::ALL {
        histogram(page, name, operation.name(), report.sum.counters.latencies(operation));
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
            Gauge,
            "The list operation that is busiest by the model, or cores; always 1.",
        );
        page.sample(name, &[("tier", &advice.tier), ("station", bottleneck)], 1);
        let help = "The share of time for which the bottleneck (floe_bottleneck_info) is busy.";
        page.gauge("floe_bottleneck_utilisation", help, advice.utilisation);
    }
    let help =
        "The hit ratio past which more hits cost throughput, by the model; 1 where they never do.";
    page.gauge("floe_p_star", help, advice.p_star);
    let help = "1 when the hit ratio is past floe_p_star, else 0.";
    page.gauge("floe_past_p_star", help, u64::from(advice.past_p_star));
}

fn threads(page: &mut Page, report: &Report) {
    page.gauge("floe_threads", "Threads that serve.", report.threads.len() as u64);
    for (name, kind, help, value) in [
        (
            "floe_thread_connections",
            Gauge,
            "Clients connected to a thread.",
            (|thread| thread.connections.total()) as fn(&Snapshot) -> u64,
        ),
        ("floe_thread_requests_total", Counter, "Requests answered by a thread.", |thread| {
            thread.counters.requests()
        }),
        (
            "floe_thread_messages_total",
            Counter,
            "Messages a thread has sent to others.",
            |thread| thread.traffic.messages,
        ),
        (
            "floe_thread_wakes_total",
            Counter,
            "Times that the thread woke another one for its messages.",
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
mod tests;

/// Writes the metrics of the memory tier, if the server has one.
fn memory(page: &mut Page, report: &Report) {
    let Some(MemoryFacts { write, usage, freezing }) = &report.facts.memory else { return };
    page.family("floe_memory_write_mode_info", Gauge, "The write mode of memory; always 1.");
    page.sample("floe_memory_write_mode_info", &[("mode", &write.to_string())], 1);
    page.gauge("floe_memory_size_bytes", "Bytes the tier in memory may take.", usage.size_bytes);
    page.gauge("floe_memory_page_bytes", "Bytes of pages in memory.", usage.page_bytes);
    page.counter("floe_memory_pages_evicted_total", "Pages evicted from memory.", usage.evictions);
    if let Some(admission) = &usage.admission {
        let name = "floe_memory_admission_info";
        page.family(name, Gauge, "The admission of memory; always 1.");
        page.sample(name, &[("admission", &admission.name)], 1);
        let name = "floe_memory_offered_pages_total";
        page.family(
            name,
            Counter,
            "Pages read or written that were not in memory, by whether they were admitted.",
        );
        page.sample(name, &[("result", "admitted")], admission.admitted);
        page.sample(name, &[("result", "bypassed")], admission.bypassed);
    }
    let Some(freezing) = freezing else { return };
    page.family("floe_memory_freezing_phase_info", Gauge, "The phase of freezing; always 1.");
    page.sample("floe_memory_freezing_phase_info", &[("phase", freezing.phase.name())], 1);
    page.gauge(
        "floe_memory_frozen_ratio",
        "The share of pages that freezing aims at.",
        freezing.ratio,
    );
    let share = freezing.frozen_share.unwrap_or_default();
    page.gauge("floe_memory_frozen_share", "The share of hits that frozen pages had last.", share);
    page.counter("floe_memory_freezings_total", "Times pages were frozen.", freezing.constructed);
    page.counter(
        "floe_memory_freezings_given_up_total",
        "Times that freezing was given up because it was not faster.",
        freezing.given_up,
    );
}

/// Declaration of a struct of counters, whose fields have declarations of their own.
const WHOLE: &Declaration = &Declaration::internal("");

/// The type of a family of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

impl MetricType {
    fn of(declared: CounterType) -> Self {
        match declared {
            CounterType::Counter => Self::Counter,
            CounterType::Gauge => Self::Gauge,
        }
    }
}

/// A page of metrics, written family by family.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    /// Begins a family by writing its help and type. Its samples must follow.
    fn family(&mut self, name: &str, kind: MetricType, help: &str) {
        let kind = match kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
        };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Writes a sample of the family that was begun last.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.put(format_args!("{name}"));
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.put(format_args!("{before}{label}=\"{}\"", escaped(value)));
        }
        self.put(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    /// Writes a family with a single sample that may rise and fall.
    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Gauge, help);
        self.sample(name, &[], value);
    }

    /// Writes a family with a single sample that only grows.
    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Counter, help);
        self.sample(name, &[], value);
    }

    /// Writes the published counters of a struct, each as a family with one sample. Leaves out
    /// counters that need a setting not in `settings`.
    fn declared(&mut self, counts: &impl Counts, settings: &[&str]) {
        counts.each(WHOLE, &mut |field, value| {
            let is_there = field.with.is_empty() || settings.contains(&field.with);
            if is_there && !field.metric.is_empty() {
                self.family(field.metric, MetricType::of(field.kind), field.meaning());
                self.sample(field.metric, &[], value);
            }
        });
    }

    /// Writes the published counters of several structs, each counter as a family with a sample for
    /// each struct and its labels.
    fn declared_by<T: Counts + Default>(&mut self, all: &[(Vec<(&str, &str)>, T)]) {
        T::default().each(WHOLE, &mut |field, _| {
            if field.metric.is_empty() {
                return;
            }
            self.family(field.metric, MetricType::of(field.kind), field.meaning());
            for (labels, counts) in all {
                counts.each(WHOLE, &mut |other, value| {
                    if other.metric == field.metric {
                        self.sample(field.metric, labels, value);
                    }
                });
            }
        });
    }

    fn text(self) -> String {
        self.text
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("writing to a string succeeds");
    }
}

/// Escapes the value of a label, which may be any text, for use between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Writes the metrics that Prometheus expects of every process, under the names of its client
/// libraries. Most are read from `/proc`.
fn write(page: &mut Page, started: SystemTime) {
    if let Ok(started) = started.duration_since(UNIX_EPOCH) {
        let help = "Start of the server in seconds since 1970.";
        page.gauge("process_start_time_seconds", help, started.as_secs_f64());
    }
    if let Some(seconds) = cpu_seconds() {
        page.counter(
            "process_cpu_seconds_total",
            "Processor time spent, user and system.",
            seconds,
        );
    }
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Resident memory.", bytes);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // The count includes the descriptor that reads the folder.
        page.gauge(
            "process_open_fds",
            "Open file descriptors.",
            descriptors.count().saturating_sub(1),
        );
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        page.gauge("process_max_fds", "Most file descriptors that may be open.", most);
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11);
    let mut next = || ticks.next()?.parse::<u64>().ok();
    Some((next()? + next()?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn cache(page: &mut Page, report: &Report) {
    let stats = &report.sum.stats;
    let (requests, counters) = (&stats.requests, &stats.counters);
    let name = "floe_cache_requests_total";
    page.family(name, Counter, "Reads and writes by whether all of their blocks were cached.");
    for (operation, hits, all) in [
        ("read", requests.read_hits, requests.reads),
        ("write", requests.write_hits, requests.writes),
    ] {
        page.sample(name, &[("operation", operation), ("result", "hit")], hits);
        page.sample(name, &[("operation", operation), ("result", "miss")], all - hits);
    }
    page.gauge("floe_cache_size_bytes", "Bytes the cache may hold.", report.facts.top().size_bytes);
    page.gauge(
        "floe_cache_metadata_bytes",
        "Memory for blocks, groups and bits.",
        stats.metadata_bytes(),
    );
    let name = "floe_cache_blocks";
    page.family(name, Gauge, "Blocks in the cache, by their size in bytes.");
    for (block_bytes, blocks) in &stats.blocks {
        page.sample(name, &[("block_bytes", &block_bytes.to_string())], *blocks);
    }
    let name = "floe_cache_blocks_allocated_total";
    page.family(name, Counter, "Blocks made, by their size in bytes.");
    for ((block_bytes, _), blocks) in stats.blocks.iter().zip(counters.blocks_allocated) {
        page.sample(name, &[("block_bytes", &block_bytes.to_string())], blocks);
    }
    page.gauge(
        "floe_cache_journal_lost",
        "1 when the journal of some tier cannot be written: nothing is cached there any more.",
        u64::from(report.facts.journal_lost()),
    );
    page.gauge(
        "floe_cache_kept",
        "1 for a persistent cache, which outlives the server.",
        u64::from(report.facts.top().session.is_some()),
    );
    page.gauge(
        "floe_degraded",
        "1 when the cache device of some tier, or a part of it, has failed and been given up, or a \
         mirror lacks a half.",
        u64::from(report.is_degraded()),
    );
}

/// Writes the metrics of the first tier's admission, unless it admits everything.
fn admission(page: &mut Page, report: &Report) {
    let Some(admission) = report.facts.top().config.gate.policy() else { return };
    let counters = &report.sum.stats.counters;
    page.family("floe_cache_admission_info", Gauge, "The admission of the cache; always 1.");
    page.sample("floe_cache_admission_info", &[("admission", &admission)], 1);
    let name = "floe_cache_offered_blocks_total";
    page.family(
        name,
        Counter,
        "Smallest blocks read or written that were not cached, by whether they were admitted.",
    );
    let bypassed = counters.offered_blocks - counters.admitted_blocks;
    page.sample(name, &[("result", "admitted")], counters.admitted_blocks);
    page.sample(name, &[("result", "bypassed")], bypassed);
}

/// Writes the estimates of a policy that chooses among settings, for the first tier.
fn adaptation(page: &mut Page, report: &Report) {
    let Some(adaptation) = &report.sum.stats.adaptation else { return };
    let name = "floe_cache_evict_setting_miss_ratio";
    let help = "Estimated share of requests that miss under a setting of the eviction policy.";
    page.family(name, Gauge, help);
    for Setting { name: setting, miss_ratio, .. } in &adaptation.settings {
        page.sample(name, &[("setting", &**setting)], *miss_ratio);
    }
    let name = "floe_cache_evict_setting_shards";
    page.family(name, Gauge, "Number of shards that use a setting of the eviction policy.");
    for Setting { name: setting, orders, .. } in &adaptation.settings {
        page.sample(name, &[("setting", &**setting)], *orders);
    }
    let name = "floe_cache_evict_switches_total";
    page.family(name, Counter, "Changes of the eviction policy's setting, in all shards.");
    page.sample(name, &[], adaptation.switches);
}

/// Writes the metrics of shedding, if it is on.
fn shedding(page: &mut Page, report: &Report) {
    let Some(facts) = &report.facts.shedding else { return };
    let help = "The share of hits on the cache device that was decided to be read from the \
                backing devices.";
    page.gauge("floe_cache_shed_share", help, facts.share);
    page.gauge(
        "floe_cache_shed_share_now",
        "The share of hits that is shed at this moment, trials included.",
        facts.share_now,
    );
}

/// Writes the metrics of each tier, labelled with its number from the top.
fn tiers(page: &mut Page, report: &Report) {
    let each = || {
        report
            .sum
            .tiers()
            .enumerate()
            .map(|(number, (stats, errors))| (number.to_string(), stats, errors))
    };
    let name = "floe_tier_requests_total";
    page.family(name, Counter, "Reads and writes a tier was asked for, by whether all was cached.");
    for (tier, Stats { requests, .. }, _) in each() {
        for (operation, hits, all) in [
            ("read", requests.read_hits, requests.reads),
            ("write", requests.write_hits, requests.writes),
        ] {
            for (result, value) in [("hit", hits), ("miss", all - hits)] {
                page.sample(
                    name,
                    &[("tier", &tier), ("operation", operation), ("result", result)],
                    value,
                );
            }
        }
    }
    let name = "floe_tier_bytes_total";
    page.family(
        name,
        Counter,
        "Bytes that a tier read and wrote, on its own device and on what is below it.",
    );
    for (tier, Stats { counters, .. }, _) in each() {
        for (device, direction, bytes) in [
            ("cache", "read", counters.cache_read_bytes),
            ("cache", "write", counters.cache_write_bytes),
            ("below", "read", counters.backing_read_bytes),
            ("below", "write", counters.backing_write_bytes),
        ] {
            page.sample(
                name,
                &[("tier", &tier), ("device", device), ("direction", direction)],
                bytes,
            );
        }
    }
    let mut gauge = |name, kind, help, value: &dyn Fn(&Stats, u64) -> u64| {
        page.family(name, kind, help);
        for (tier, stats, errors) in each() {
            page.sample(name, &[("tier", &tier)], value(stats, errors));
        }
    };
    gauge("floe_tier_valid_bytes", Gauge, "Bytes of valid data in a tier.", &|stats, _| {
        stats.valid_bytes
    });
    gauge(
        "floe_tier_dirty_bytes",
        Gauge,
        "Bytes of dirty data in a tier: newer than what is below it.",
        &|stats, _| stats.dirty_bytes,
    );
    gauge(
        "floe_tier_degraded",
        Gauge,
        "1 when the device of a tier, or a part of it, has been given up.",
        &|stats, _| u64::from(stats.degraded_shards > 0),
    );
    gauge(
        "floe_tier_device_errors_total",
        Counter,
        "Failed operations of a tier's device.",
        &|_, errors| errors,
    );
    let name = "floe_tier_size_bytes";
    page.family(name, Gauge, "Bytes a tier may hold.");
    for (number, facts) in report.facts.tiers.iter().enumerate() {
        page.sample(name, &[("tier", &number.to_string())], facts.size_bytes);
    }
    mirrors(page, report);
}

/// Writes the metrics of tiers that are on mirrors, and of their halves.
fn mirrors(page: &mut Page, report: &Report) {
    let status = |facts: &CacheFacts| facts.mirror.as_ref().and_then(MirrorWatch::status);
    let tiers = report.facts.tiers.iter().enumerate();
    let mirrors: Vec<_> =
        tiers.filter_map(|(at, it)| Some((at.to_string(), status(it)?))).collect();
    if mirrors.is_empty() {
        return;
    }
    let name = "floe_mirror_half_in_sync";
    page.family(name, Gauge, "1 for a half of a mirror that is in sync, 0 for another one.");
    for (tier, mirror) in &mirrors {
        for (half, status) in mirror.halves.iter().enumerate() {
            let labels = [("tier", tier.as_str()), ("half", &half.to_string())];
            page.sample(name, &labels, u64::from(status.state == "in-sync"));
        }
    }
    let name = "floe_mirror_mended_bytes_total";
    page.family(
        name,
        Counter,
        "Bytes of a half that differed from what was stored, and were rewritten from another half.",
    );
    for (tier, mirror) in &mirrors {
        for (half, status) in mirror.halves.iter().enumerate() {
            let labels = [("tier", tier.as_str()), ("half", &half.to_string())];
            page.sample(name, &labels, status.mended_bytes);
        }
    }
    let name = "floe_mirror_resync_bytes";
    page.family(name, Gauge, "Bytes that are still to be copied between halves of a mirror.");
    for (tier, mirror) in &mirrors {
        page.sample(name, &[("tier", tier)], mirror.resync_bytes);
    }
    let name = "floe_mirror_generation";
    page.family(name, Gauge, "The generation of a mirror, which a change of its halves raises.");
    for (tier, mirror) in &mirrors {
        page.sample(name, &[("tier", tier)], mirror.generation);
    }
}

fn devices(page: &mut Page, report: &Report) {
    let (counters, backing) = (&report.sum.stats.counters, &report.sum.backing);
    let name = "floe_device_bytes_total";
    page.family(name, Counter, "Bytes read from and written to devices.");
    for (device, direction, bytes) in [
        ("backing", "read", backing.read),
        ("backing", "write", backing.written),
        ("cache", "read", counters.cache_read_bytes),
        ("cache", "write", counters.cache_write_bytes),
    ] {
        page.sample(name, &[("device", device), ("direction", direction)], bytes);
    }
    let name = "floe_device_errors_total";
    page.family(name, Counter, "Failed operations of devices.");
    page.sample(name, &[("device", "backing")], report.sum.backing_errors);
    page.sample(name, &[("device", "cache")], report.sum.cache_errors);
}
