//! Metrics of the cache, its tiers and its devices.

use floe_block::Stats;
use floe_device::MirrorWatch;

use super::page::{Kind, Page};
use crate::status::{Report, TierFacts};

pub(super) fn cache(page: &mut Page, report: &Report) {
    let stats = &report.sum.stats;
    let (requests, counters) = (&stats.requests, &stats.counters);
    let name = "floe_cache_requests_total";
    page.family(
        name,
        Kind::Counter,
        "Reads and writes by whether all of their blocks were cached.",
    );
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
    page.family(name, Kind::Gauge, "Blocks in the cache, by their size in bytes.");
    for (block_bytes, blocks) in &stats.blocks {
        page.sample(name, &[("block_bytes", &block_bytes.to_string())], *blocks);
    }
    let name = "floe_cache_blocks_allocated_total";
    page.family(name, Kind::Counter, "Blocks made, by their size in bytes.");
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
        "1 for a cache that outlives the server.",
        u64::from(report.facts.top().session.is_some()),
    );
    page.gauge(
        "floe_degraded",
        "1 when the cache device of some tier, or a part of it, has failed and been given up, or a \
         mirror lacks a half.",
        u64::from(report.is_degraded()),
    );
}

/// Writes the admission's metrics, for a server whose cache does not admit everything.
pub(super) fn admission(page: &mut Page, report: &Report) {
    let Some(admission) = &report.facts.top().admission else { return };
    let counters = &report.sum.stats.counters;
    page.family(
        "floe_cache_admission_info",
        Kind::Gauge,
        "The admission, which decides what comes into the cache; always 1.",
    );
    page.sample("floe_cache_admission_info", &[("admission", admission)], 1);
    let name = "floe_cache_offered_blocks_total";
    page.family(
        name,
        Kind::Counter,
        "Smallest blocks read or written and not cached, by whether they came in.",
    );
    let bypassed = counters.offered_blocks - counters.admitted_blocks;
    page.sample(name, &[("result", "admitted")], counters.admitted_blocks);
    page.sample(name, &[("result", "bypassed")], bypassed);
}

/// Writes the metrics of load shedding, where it is enabled.
pub(super) fn shedding(page: &mut Page, report: &Report) {
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

/// Each tier of the cache, by its number from the top.
pub(super) fn tiers(page: &mut Page, report: &Report) {
    let each = || {
        report
            .sum
            .tiers()
            .enumerate()
            .map(|(number, (stats, errors))| (number.to_string(), stats, errors))
    };
    let name = "floe_tier_requests_total";
    page.family(
        name,
        Kind::Counter,
        "Reads and writes a tier was asked for, by whether all was cached.",
    );
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
        Kind::Counter,
        "Bytes a tier moved from and to its own device, and what is below it.",
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
    gauge("floe_tier_valid_bytes", Kind::Gauge, "Bytes of valid data in a tier.", &|stats, _| {
        stats.valid_bytes
    });
    gauge(
        "floe_tier_dirty_bytes",
        Kind::Gauge,
        "Bytes in a tier that what is below it does not have yet.",
        &|stats, _| stats.dirty_bytes,
    );
    gauge(
        "floe_tier_degraded",
        Kind::Gauge,
        "1 when the device of a tier, or a part of it, has been given up.",
        &|stats, _| u64::from(stats.degraded_shards > 0),
    );
    gauge(
        "floe_tier_device_errors_total",
        Kind::Counter,
        "Failed operations of a tier's device.",
        &|_, errors| errors,
    );
    let name = "floe_tier_size_bytes";
    page.family(name, Kind::Gauge, "Bytes a tier may hold.");
    for (number, facts) in report.facts.tiers.iter().enumerate() {
        page.sample(name, &[("tier", &number.to_string())], facts.size_bytes);
    }
    mirrors(page, report);
}

/// The halves of tiers that are mirrors.
fn mirrors(page: &mut Page, report: &Report) {
    let status = |facts: &TierFacts| facts.mirror.as_ref().and_then(MirrorWatch::status);
    let tiers = report.facts.tiers.iter().enumerate();
    let mirrors: Vec<_> =
        tiers.filter_map(|(at, it)| Some((at.to_string(), status(it)?))).collect();
    if mirrors.is_empty() {
        return;
    }
    let name = "floe_mirror_half_in_sync";
    page.family(name, Kind::Gauge, "1 for a half of a mirror that is in sync, 0 for another one.");
    for (tier, mirror) in &mirrors {
        for (half, status) in mirror.halves.iter().enumerate() {
            let labels = [("tier", tier.as_str()), ("half", &half.to_string())];
            page.sample(name, &labels, u64::from(status.state == "in-sync"));
        }
    }
    let name = "floe_mirror_mended_bytes_total";
    page.family(
        name,
        Kind::Counter,
        "Bytes of a half that were not what was stored, and were written anew from another half.",
    );
    for (tier, mirror) in &mirrors {
        for (half, status) in mirror.halves.iter().enumerate() {
            let labels = [("tier", tier.as_str()), ("half", &half.to_string())];
            page.sample(name, &labels, status.mended_bytes);
        }
    }
    let name = "floe_mirror_resync_bytes";
    page.family(name, Kind::Gauge, "Bytes that are still to be copied between halves of a mirror.");
    for (tier, mirror) in &mirrors {
        page.sample(name, &[("tier", tier)], mirror.resync_bytes);
    }
    let name = "floe_mirror_generation";
    page.family(
        name,
        Kind::Gauge,
        "The generation of a mirror, which a change of its halves raises.",
    );
    for (tier, mirror) in &mirrors {
        page.sample(name, &[("tier", tier)], mirror.generation);
    }
}

pub(super) fn devices(page: &mut Page, report: &Report) {
    let (counters, lowest) = (&report.sum.stats.counters, &report.sum.lowest().counters);
    let name = "floe_device_bytes_total";
    page.family(name, Kind::Counter, "Bytes read from and written to devices.");
    for (device, direction, bytes) in [
        ("backing", "read", lowest.backing_read_bytes),
        ("backing", "write", lowest.backing_write_bytes),
        ("cache", "read", counters.cache_read_bytes),
        ("cache", "write", counters.cache_write_bytes),
    ] {
        page.sample(name, &[("device", device), ("direction", direction)], bytes);
    }
    let name = "floe_device_errors_total";
    page.family(name, Kind::Counter, "Failed operations of devices.");
    page.sample(name, &[("device", "backing")], report.sum.backing_errors);
    page.sample(name, &[("device", "cache")], report.sum.cache_errors);
}
