//! `floe status`: prints the state and the counters of a running server.

use clap::Args;
use floe_server::admin::client::{self, AnyStatus};
use floe_server::status::{
    AdmissionStatus, ByProtocol, FreezingStatus, Latency, MemoryStatus, MirrorDeviceStatus,
    SheddingStatus, Status, ThreadStatus, TierStatus,
};

use crate::admin::Server;
use crate::error::{CliError, OrFail};
use crate::{output, pair, volume};

const EXAMPLES: &str = "\
Examples:
  floe status
  floe status --json --admin /run/floe-2/admin.sock | jq .read_hit_ratio";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    server: Server,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Counters that the tables show. The list of counters omits them.
const PRINTED: [&str; 12] = [
    "read_requests",
    "read_hits",
    "read_bytes",
    "write_requests",
    "write_hits",
    "write_bytes",
    "cache_read_bytes",
    "cache_write_bytes",
    "backing_read_bytes",
    "backing_write_bytes",
    "valid_bytes",
    "dirty_bytes",
];

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    match client::any_status(&arguments.server.endpoint()?)? {
        AnyStatus::Serving(status) if arguments.json => {
            return output::json_line(&status).or_failure();
        }
        AnyStatus::Standby(status) if arguments.json => {
            return output::json_line(&status).or_failure();
        }
        AnyStatus::Serving(status) => {
            status.pair.iter().for_each(pair::print);
            print(&status);
        }
        AnyStatus::Standby(status) => pair::print(&status.pair),
    }
    Ok(())
}

fn print(status: &Status) {
    print_server(status);
    if let Some(opened) = status.opened.as_ref().filter(|opened| opened.ended == "unclean") {
        output::say!(
            "started after an unclean end: {} of dirty data recovered, {} of cached data in all",
            output::bytes(opened.dirty_bytes),
            output::bytes(opened.valid_bytes)
        );
    }
    for (number, tier) in status.tiers.iter().enumerate() {
        print_failure(number, tier);
    }
    if status.tiers.iter().any(|tier| tier.degraded) && !status.journal_lost {
        output::say!(
            "DEGRADED: the cache device failed and {} bypassed it; replace or repair it, then run \
             floe restore",
            output::bytes(status.cache.counters.bypassed_bytes)
        );
    }
    output::say!();
    volume::print(&status.volumes);
    output::say!();
    print_requests(status);
    output::say!();
    print_devices(status);
    output::say!();
    if status.tiers.len() > 1 {
        print_tiers(&status.tiers);
        output::say!();
    }
    for (number, tier) in status.tiers.iter().enumerate() {
        if let Some(adaptation) = &tier.adaptation {
            output::say!(" tier {number}, evict {}: {adaptation}", tier.evict);
        }
    }
    status.tiers.iter().filter_map(|tier| tier.mirror.as_ref()).for_each(print_mirror);
    print_content(status);
    output::say!();
    print_counters(status);
    status.admission.iter().for_each(print_admission);
    status.shedding.iter().for_each(print_shedding);
    match status.session {
        Some(session) => {
            output::say!(" the cache is persistent; this is its session {session}")
        }
        None => output::say!(" the cache is volatile: it ends with the server"),
    }
    status.memory.iter().for_each(print_memory);
    print_advice(status);
    if status.threads.len() > 1 {
        output::say!();
        print_threads(&status.threads);
    }
    if status.server.spun_seconds > 0.0 {
        output::say!(
            " processor time spent on imitating fast media: {:.1} s",
            status.server.spun_seconds
        );
    }
}

/// Prints the advice on the size of the cache, and that on what limits reads.
fn print_advice(status: &Status) {
    let size = status.size_advice.iter().map(|advice| &advice.text);
    let texts: Vec<&String> = size.chain(status.advice.iter().map(|advice| &advice.text)).collect();
    if !texts.is_empty() {
        output::say!();
        output::say!(" advice:");
    }
    texts.into_iter().for_each(|text| output::say!("  {text}"));
}

fn print_server(status: &Status) {
    let up = std::time::Duration::from_secs(status.server.uptime_seconds as u64);
    output::say!(
        "up {}, write {}, evict {}, {}{}, {}",
        humantime::format_duration(up),
        status.server.write_mode,
        status.server.evict,
        output::counted(status.connections as usize, "client"),
        protocols(status.connections_by_protocol),
        output::counted(status.threads.len(), "thread"),
    );
    if status.total_limit.is_any() {
        let limits = volume::limit::shown_total(&status.total_limit);
        output::say!("all volumes together: at most {limits}");
    }
}

/// Formats the number of clients by protocol, in parentheses; empty without clients.
fn protocols(clients: ByProtocol) -> String {
    if clients.total() == 0 { String::new() } else { format!(" ({clients})") }
}

fn print_requests(status: &Status) {
    let columns = ["", "requests", "hits", "bytes", "mean", "p50", "p99", "p99.9"];
    let mut table = output::table(&columns, 1);
    let mut row = |name: &str, count: u64, hit_ratio: f64, bytes: u64, latency: &Latency| {
        let times = [latency.mean_us, latency.p50_us, latency.p99_us, latency.p999_us];
        let mut cells = vec![
            name.to_owned(),
            count.to_string(),
            output::percent(hit_ratio),
            output::bytes(bytes),
        ];
        cells.extend(times.map(output::microseconds));
        table.add_row(cells);
    };
    let (shares, counts) = (&status.requests, &status.cache.requests);
    row("reads", counts.reads, shares.read_hit_ratio, counts.read_bytes, &shares.read_latency);
    row("writes", counts.writes, shares.write_hit_ratio, counts.write_bytes, &shares.write_latency);
    output::print_table(&table);
}

fn print_devices(status: &Status) {
    let mut table = output::table(&["device", "read", "written", "errors"], 1);
    let (errors, counts) = (&status.devices, &status.cache.counters);
    for (name, read, written, errors) in [
        ("cache", counts.cache_read_bytes, counts.cache_write_bytes, errors.cache_errors),
        ("backing", counts.backing_read_bytes, counts.backing_write_bytes, errors.backing_errors),
    ] {
        let (read, written) = (output::bytes(read), output::bytes(written));
        table.add_row(vec![name.to_owned(), read, written, errors.to_string()]);
    }
    output::print_table(&table);
}

fn print_content(status: &Status) {
    let mut blocks = output::table(&["block size", "blocks", "bytes"], 1);
    for count in status.devices.blocks.iter().filter(|count| count.blocks > 0) {
        let total = output::bytes(count.block_bytes * count.blocks);
        blocks.add_row(vec![output::bytes(count.block_bytes), count.blocks.to_string(), total]);
    }
    if !blocks.is_empty() {
        output::print_table(&blocks);
    }
    output::say!(
        " {} of {} are in use, {} are dirty; metadata takes {}",
        output::bytes(status.cache.valid_bytes),
        output::bytes(status.devices.cache_size_bytes),
        output::bytes(status.cache.dirty_bytes),
        output::bytes(status.devices.metadata_bytes)
    );
    match status.devices.seconds_to_clean {
        _ if status.cache.dirty_bytes == 0 => {}
        Some(seconds) => output::say!(
            " all dirty data is written back in about {seconds:.0} s at the current rate"
        ),
        None => output::say!(" no dirty data was written back recently"),
    }
    if status.devices.lost.bytes > 0 {
        output::say!(" DATA LOST: {}", status.devices.lost);
    }
}

/// Prints each counter that is not 0 and not in a table, with its description.
fn print_counters(status: &Status) {
    let mut table = output::table(&["counter", "value", "meaning"], 1);
    output::align_left(&mut table, 2);
    let fields = status.cache.fields().into_iter().chain(status.clients.fields());
    for (field, value) in fields {
        if value > 0 && !PRINTED.contains(&field.json) {
            let name = field.json.strip_suffix("_bytes");
            let value = if name.is_some() { output::bytes(value) } else { value.to_string() };
            let name = name.unwrap_or(field.json).replace('_', " ");
            table.add_row(vec![name, value, field.meaning().to_owned()]);
        }
    }
    if table.row_count() > 0 {
        output::print_list(table, &[2]);
    }
}

fn print_admission(admission: &AdmissionStatus) {
    output::say!(
        " admission {}: {} of {} smallest blocks admitted, {} blocks not created because nothing \
         was to be evicted, {} fetched because the admission asked for them",
        admission.admission,
        admission.admitted_blocks,
        admission.offered_blocks,
        admission.stores_withheld,
        admission.ordered_blocks
    );
}

fn print_shedding(shedding: &SheddingStatus) {
    let trying = if shedding.share_now == shedding.share {
        String::new()
    } else {
        format!(", trying {}", output::percent(shedding.share_now))
    };
    output::say!(
        " shedding {} of the hits, at most {}{trying}: {} read from the backing device instead",
        output::percent(shedding.share),
        output::percent(shedding.most),
        output::bytes(shedding.shed_bytes)
    );
    if let Some(last) = shedding.decisions.last() {
        output::say!(" {}", last.reason);
    }
}

fn print_memory(memory: &MemoryStatus) {
    output::say!();
    output::say!(
        " memory, write {}: {} reads, {} of all, {}",
        memory.write_mode,
        memory.read_hits,
        output::percent(memory.read_hit_ratio),
        output::bytes(memory.read_bytes)
    );
    output::say!(
        " pages {} of {}, dirty {}, evicted {} pages",
        output::bytes(memory.page_bytes),
        output::bytes(memory.size_bytes),
        output::bytes(memory.dirty_bytes),
        memory.pages_evicted
    );
    if let Some(admission) = &memory.admission {
        output::say!(
            " admission {}: {} of {} pages admitted",
            admission.admission,
            admission.admitted_pages,
            admission.offered_pages
        );
    }
    memory.freezing.iter().for_each(print_freezing);
}

fn print_freezing(freezing: &FreezingStatus) {
    output::say!(
        " freezing: {}, {} of the pages with {} of the hits, frozen {} times, given up {} times",
        freezing.phase,
        output::percent(freezing.ratio),
        output::percent(freezing.frozen_share),
        freezing.constructed,
        freezing.given_up
    );
    output::say!(
        " hit frozen {:.0} ns, not frozen {:.0} ns, miss {:.0} ns; {}",
        freezing.frozen_ns,
        freezing.dynamic_ns,
        freezing.miss_ns,
        freezing.reason
    );
}

fn print_threads(threads: &[ThreadStatus]) {
    let columns = ["thread", "clients", "requests", "messages", "wakes", "valid", "dirty"];
    let mut table = output::table(&columns, 1);
    for (number, thread) in threads.iter().enumerate() {
        table.add_row(vec![
            number.to_string(),
            thread.connections.to_string(),
            thread.requests.to_string(),
            thread.messages.to_string(),
            thread.wakes.to_string(),
            output::bytes(thread.valid_bytes),
            output::bytes(thread.dirty_bytes),
        ]);
    }
    output::print_table(&table);
}

/// Prints each tier, from the top. The figures of the whole cache appear at the first tier.
fn print_tiers(tiers: &[TierStatus]) {
    let columns = [
        "tier",
        "size",
        "write",
        "reads",
        "hits",
        "read",
        "written",
        "from below",
        "to below",
        "valid",
        "dirty",
        "",
    ];
    let mut table = output::table(&columns, 1);
    for (number, tier) in tiers.iter().enumerate() {
        let mut row =
            vec![number.to_string(), output::bytes(tier.size_bytes), tier.write_mode.clone()];
        row.extend([tier.read_requests.to_string(), output::percent(tier.read_hit_ratio)]);
        let bytes = [
            tier.cache_read_bytes,
            tier.cache_write_bytes,
            tier.below_read_bytes,
            tier.below_write_bytes,
            tier.valid_bytes,
            tier.dirty_bytes,
        ];
        row.extend(bytes.map(output::bytes));
        row.push(tier.standing().to_owned());
        table.add_row(row);
    }
    output::print_table(&table);
}

fn print_mirror(mirror: &MirrorDeviceStatus) {
    output::say!(" mirror, generation {}", mirror.generation);
    for half in &mirror.halves {
        let error = half.error.iter().map(|error| format!(": {error}")).collect::<String>();
        output::say!("  {} {}{error}", half.name, half.state);
        if half.mended_bytes > 0 {
            let bytes = output::bytes(half.mended_bytes);
            output::say!("    {bytes} of it differed from what was stored, and were repaired");
        }
    }
    if mirror.resync_bytes > 0 {
        output::say!("  {} are still to be copied", output::bytes(mirror.resync_bytes));
    }
    if mirror.fenced {
        output::say!("  ANOTHER SERVER USES THE MIRROR: this one serves nothing from it");
    }
    mirror.witness_error.iter().for_each(|error| output::say!("  WITNESS: {error}"));
}

/// Prints the requests that a failed tier refuses, the reason, and the progress of its recovery.
fn print_failure(number: usize, tier: &TierStatus) {
    let (dirty, refused) = (output::bytes(tier.dirty_bytes), output::bytes(tier.refused_bytes));
    if tier.refused_bytes > 0 {
        output::say!(
            "REFUSING: reads or writes of up to {refused} are refused, because tier {number} has \
             dirty data there that cannot be read or replaced; repair its cache device, then run \
             floe restore"
        );
    }
    match tier.bypass.as_str() {
        "" => {}
        "emptying" => output::say!(
            "JOURNAL LOST: the journal of tier {number} cannot be written, and nothing is cached \
             there any more; {dirty} of dirty data are being written back, and writes to them wait \
             until then"
        ),
        "stuck" => output::say!(
            "JOURNAL LOST: the journal of tier {number} cannot be written, and nothing is cached \
             there any more; {dirty} of dirty data could not be written back, and Floe keeps \
             trying"
        ),
        "ended" => output::say!(
            "CACHE ENDED: the journal of tier {number} could not be written; the volumes have \
             everything, requests bypass it, and the next start of Floe makes a new cache there"
        ),
        _ => output::say!(
            "CACHE ENDED: the journal of tier {number} could not be written, and that could not be \
             recorded on its device; the volumes have everything, and requests bypass it; start \
             Floe with it again only with --initialise"
        ),
    }
}
