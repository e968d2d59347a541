//! A replay as tables.

use floe_lab::replay::{IntervalResult, LatencyStep, ReplayResult, TierOutcome};

use crate::output;

/// Width of a histogram's longest bar.
const BAR_MOST: f64 = 40.0;

pub(super) fn print(outcome: &ReplayResult) {
    requests(outcome);
    output::say!();
    devices(outcome);
    if !outcome.tiers.is_empty() {
        output::say!();
        tiers(&outcome.tiers);
    }
    output::say!();
    rest(outcome);
    if !outcome.series.is_empty() {
        output::say!();
        series(&outcome.series);
    }
    for (what, steps) in [("reads", &outcome.read_histogram), ("writes", &outcome.write_histogram)]
    {
        if let Some(steps) = steps.as_ref().filter(|steps| !steps.is_empty()) {
            output::say!();
            histogram(what, steps);
        }
    }
}

fn requests(outcome: &ReplayResult) {
    // Of what the first tier misses, each other has its own hits.
    let hits = if outcome.tiers.is_empty() { "hits" } else { "hits in tier 0" };
    let columns = ["", "requests", "bytes", hits, "mean", "median", "p99", "p99.9"]; // 80 columns
    let mut table = output::table(&columns, 1);
    let us = |us: Option<f64>| us.map_or("–".into(), output::microseconds);
    let o = outcome;
    let latencies = [
        [o.read_us_mean, o.read_us_p50, o.read_us_p99, o.read_us_p999],
        [o.write_us_mean, o.write_us_p50, o.write_us_p99, o.write_us_p999],
    ];
    for (what, requests, bytes, hits, latencies) in [
        ("reads", o.reads, o.read_bytes, o.read_hit_ratio, latencies[0]),
        ("writes", o.writes, o.write_bytes, o.write_hit_ratio, latencies[1]),
    ] {
        if requests > 0 {
            let mut row = vec![
                what.to_owned(),
                requests.to_string(),
                output::bytes(bytes),
                output::percent(hits),
            ];
            row.extend(latencies.map(us));
            table.add_row(row);
        }
    }
    if o.trims > 0 {
        table.add_row(vec!["trims".to_owned(), o.trims.to_string()]);
    }
    output::print_table(&table);
}

/// Prints the intervals: reads where there are any, else writes.
fn series(intervals: &[IntervalResult]) {
    let reads = intervals.iter().any(|interval| interval.read_us_mean.is_some());
    let of = if reads { "reads:" } else { "writes:" };
    let hits = format!("{of} hits");
    let columns = ["requests", "end", "requests/s", &hits, "mean", "p99", "p99.9"]; // 80 columns
    let mut table = output::table(&columns, 0);
    let us = |us: Option<f64>| us.map_or("–".into(), output::microseconds);
    for it in intervals {
        let (hits, latencies) = match reads {
            true => (it.read_hit_ratio, [it.read_us_mean, it.read_us_p99, it.read_us_p999]),
            false => (it.write_hit_ratio, [it.write_us_mean, it.write_us_p99, it.write_us_p999]),
        };
        let mut row = vec![
            it.requests.to_string(),
            format!("{:.2} s", it.seconds),
            it.requests_per_second.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
            hits.map_or("–".to_owned(), output::percent),
        ];
        row.extend(latencies.map(us));
        table.add_row(row);
    }
    output::print_table(&table);
}

fn devices(outcome: &ReplayResult) {
    let mut table = output::table(&["", "read", "written"], 1);
    let cache = ("cache device", outcome.cache_read_bytes, outcome.cache_write_bytes);
    let backing = ("backing devices", outcome.backing_read_bytes, outcome.backing_write_bytes);
    let cache = outcome.tiers.is_empty().then_some(cache);
    for (device, read, written) in cache.into_iter().chain([backing]) {
        table.add_row(vec![device.to_owned(), output::bytes(read), output::bytes(written)]);
    }
    output::print_table(&table);
}

fn tiers(tiers: &[TierOutcome]) {
    let columns = [
        "tier",
        "size",
        "write",
        "evict",
        "admission",
        "reads",
        "hits",
        "writes",
        "read",
        "written",
        "from below",
        "to below",
        "metadata",
    ];
    let mut table = output::table(&columns, 1);
    for (number, tier) in tiers.iter().enumerate() {
        let mut row = vec![number.to_string(), output::bytes(tier.cache_bytes), tier.write.clone()];
        row.push(tier.evict.clone());
        row.push(tier.admission.as_ref().map_or("always", |asked| &asked.admission).to_owned());
        row.extend([
            tier.reads.to_string(),
            output::percent(tier.read_hit_ratio),
            tier.writes.to_string(),
        ]);
        row.extend(
            [
                tier.cache_read_bytes,
                tier.cache_write_bytes,
                tier.below_read_bytes,
                tier.below_write_bytes,
            ]
            .map(output::bytes),
        );
        row.push(output::bytes(tier.metadata_bytes));
        table.add_row(row);
    }
    output::print_table(&table);
}

fn rest(outcome: &ReplayResult) {
    let mut table = output::table(&["", ""], 2);
    let mut add = |name: &str, value: String| {
        table.add_row(vec![name.to_owned(), value]);
    };
    let time = format!("{:.3} s of {} time", outcome.seconds, outcome.time);
    let per_second = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.0}"));
    add("throughput", format!("{} requests/s in {time}", per_second(outcome.requests_per_second)));
    if let Some(rate) = outcome.bytes_per_second {
        add("", format!("{}/s", output::bytes(rate as u64)));
    }
    if let Some(cost) = &outcome.cost {
        let each = format!("{} requests/s for each", per_second(cost.requests_per_second_per_gib));
        add("cost", format!("as {:.3} GiB of DRAM; {each}", cost.gib));
    }
    if outcome.late_us_max > 0.0 {
        add("latest beginning", output::microseconds(outcome.late_us_max));
    }
    add("processing of a request", output::microseconds(outcome.processing_us));
    let several = !outcome.tiers.is_empty();
    add(
        if several { "metadata of all tiers" } else { "metadata" },
        output::bytes(outcome.metadata_bytes),
    );
    if !several {
        add("mean block", output::bytes(outcome.mean_block_bytes as u64));
        add("mean missed request", output::bytes(outcome.mean_missed_bytes as u64));
    }
    if let Some(amplification) = outcome.write_amplification.filter(|_| !several) {
        add("written to the cache", format!("{amplification:.2} bytes for each byte written"));
    }
    if let Some(it) = outcome.endurance.as_ref().filter(|it| !several && it.bytes_per_day > 0.0) {
        let (day, drive) = (output::bytes(it.bytes_per_day as u64), it.drive_writes_per_day);
        add("endurance it needs", format!("{day} a day, {drive:.2} drive writes a day"));
        let year = it.terabytes_per_year;
        add("", format!("{year:.1} TB a year, by the times of the {}", it.clock));
    }
    if outcome.warmup_requests > 0 {
        add("warm-up, not counted", format!("{} requests", outcome.warmup_requests));
    }
    let fetched = |bytes: u64, blocks: u64, used: u64| {
        let share = output::percent(used as f64 / blocks as f64);
        format!("{} fetched ahead, {share} of it read then", output::bytes(bytes))
    };
    if !several {
        add("evict", outcome.evict.clone());
    }
    if outcome.prefetched_blocks > 0 && !several {
        let (bytes, blocks) = (outcome.prefetched_bytes, outcome.prefetched_blocks);
        add("", fetched(bytes, blocks, outcome.prefetched_used_blocks));
    }
    for (number, tier) in
        outcome.tiers.iter().enumerate().filter(|(_, tier)| tier.prefetched_blocks > 0)
    {
        let (bytes, blocks) = (tier.prefetched_bytes, tier.prefetched_blocks);
        add(&format!("tier {number}"), fetched(bytes, blocks, tier.prefetched_used_blocks));
    }
    let alone = outcome
        .admission
        .as_ref()
        .filter(|_| !several)
        .map(|asked| ("admission".to_owned(), asked));
    let each = outcome.tiers.iter().enumerate();
    let each = each.filter_map(|(number, tier)| {
        Some((format!("admission of tier {number}"), tier.admission.as_ref()?))
    });
    for (name, admission) in alone.into_iter().chain(each) {
        let share = admission.admitted_blocks as f64 / admission.offered_blocks.max(1) as f64;
        add(&name, admission.admission.clone());
        add(
            "",
            format!(
                "{} of {} smallest blocks offered",
                output::percent(share),
                admission.offered_blocks
            ),
        );
        for declined in &admission.declined {
            add("", format!("{} declined by {}", declined.blocks, declined.by));
        }
        if admission.ordered_blocks > 0 {
            add("", format!("{} fetched as it ordered", admission.ordered_blocks));
        }
        if admission.stores_withheld > 0 {
            add(
                "",
                format!("{} blocks not made, as nothing was to leave", admission.stores_withheld),
            );
        }
        if admission.declined_overwrites > 0 {
            add("", format!("{} overwrites declined", admission.declined_overwrites));
        }
    }
    if let Some(shed) = &outcome.shed {
        let share = output::percent(shed.share);
        add(
            "shed in the end",
            format!("{share} of the hits; {} in all", output::bytes(shed.bytes)),
        );
        if let Some(last) = shed.decisions.last() {
            add("", last.reason.clone());
        }
    }
    let verified = match outcome.verified_bytes {
        0 => "nothing".to_owned(),
        bytes => output::bytes(bytes),
    };
    add("verified", verified);
    output::print_table(&table);
}

fn histogram(what: &str, steps: &[LatencyStep]) {
    let all: u64 = steps.iter().map(|step| step.count).sum();
    let most = steps.iter().map(|step| step.count).max().unwrap_or(0).max(1);
    let mut table = output::table(&[what, "up to", "share", "together", ""], 0);
    if let Some(column) = table.column_mut(4) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let mut together = 0;
    for step in steps {
        together += step.count;
        table.add_row(vec![
            step.count.to_string(),
            output::microseconds(step.up_to_us),
            output::percent(step.count as f64 / all as f64),
            output::percent(together as f64 / all as f64),
            "▇".repeat((step.count as f64 / most as f64 * BAR_MOST).ceil() as usize),
        ]);
    }
    output::print_table(&table);
}
