//! `floe status`, `flush`, `restore` and `stop`: asking a running server.

use clap::Args;
use std::path::PathBuf;

use floe_export::admin::client::{self, Endpoint};
use floe_export::admin::{AdminAddress, Token};
use floe_export::status::{Latency, Status, TierStatus};

use crate::error::CliError;
use crate::{OrFail, output, volume};

const STATUS_EXAMPLES: &str = "\
Examples:
  floe status
  floe status --json --admin /run/floe-2/admin.sock | jq .read_hit_ratio";

const FLUSH_EXAMPLES: &str = "\
Examples:
  floe flush
  floe flush --admin storage1:10810 --admin-token-file ~/.floe-token";

const RESTORE_EXAMPLES: &str = "\
Examples:
  floe restore";

const STOP_EXAMPLES: &str = "\
Examples:
  floe stop
  floe flush && floe stop         # with nothing left in the cache that the volumes do not have
  floe stop --admin /run/floe-2/admin.sock";

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The server's admin address, unix:PATH or HOST:PORT [default: unix:/run/floe/admin.sock, or
    /// $XDG_RUNTIME_DIR/floe/admin.sock]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<AdminAddress>,
    /// The file with the server's admin token, for changes over TCP
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl Server {
    /// The server to ask.
    ///
    /// # Errors
    /// When it is not said which and there is no default one, or the token cannot be read.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, CliError> {
        let address = match &self.admin {
            Some(address) => address.clone(),
            None => AdminAddress::of_client().or_usage()?,
        };
        let token = self.admin_token_file.as_deref().map(Token::read).transpose().or_usage()?;
        Ok(Endpoint { address, token })
    }
}

#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    server: Server,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = FLUSH_EXAMPLES)]
pub(crate) struct FlushArguments {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct StopArguments {
    #[command(flatten)]
    server: Server,
}

pub(crate) fn status(arguments: &StatusArguments) -> Result<(), CliError> {
    let status = client::status(&arguments.server.endpoint()?)?;
    if arguments.json {
        return output::json_line(&status).or_failure();
    }
    print(&status);
    Ok(())
}

pub(crate) fn flush(arguments: &FlushArguments) -> Result<(), CliError> {
    Ok(client::flush(&arguments.server.endpoint()?)?)
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<(), CliError> {
    Ok(client::restore(&arguments.server.endpoint()?)?)
}

pub(crate) fn stop(arguments: &StopArguments) -> Result<(), CliError> {
    Ok(client::stop(&arguments.server.endpoint()?)?)
}

/// Each tier, from the top; the figures of the whole cache are of the first.
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

/// What a tier refuses and why, and how far it is from being used as it was.
fn print_failure(number: usize, tier: &TierStatus) {
    let (dirty, refused) = (output::bytes(tier.dirty_bytes), output::bytes(tier.refused_bytes));
    if tier.refused_bytes > 0 {
        output::say!(
            "REFUSING: reads or writes of up to {refused} are refused, for tier {number} has \
             dirty data there that cannot be read or replaced; mend its cache device, then floe \
             restore"
        );
    }
    match tier.bypass.as_str() {
        "" => {}
        "emptying" => output::say!(
            "JOURNAL LOST: tier {number} takes no more records, and nothing is cached there any \
             more; {dirty} of dirty data are being written back, and writes to them wait for that"
        ),
        "stuck" => output::say!(
            "JOURNAL LOST: tier {number} takes no more records, and nothing is cached there any \
             more; {dirty} of dirty data could not be written back, which is tried again and again"
        ),
        "ended" => output::say!(
            "CACHE ENDED: the journal of tier {number} could not be written; the volumes have \
             everything, requests go past it, and the next start of floe makes a new cache there"
        ),
        _ => output::say!(
            "CACHE ENDED: the journal of tier {number} could not be written, and its device \
             cannot be told so; the volumes have everything, and requests go past it; do not \
             start floe with it again without --initialise"
        ),
    }
}

fn print(status: &Status) {
    let up = std::time::Duration::from_secs(status.uptime_seconds as u64);
    output::say!(
        "up {}, write {}, evict {}, {} client(s), {} thread(s)",
        humantime::format_duration(up),
        status.write_mode,
        status.evict,
        status.connections,
        status.threads.len(),
    );
    for (number, tier) in status.tiers.iter().enumerate() {
        print_failure(number, tier);
    }
    if status.degraded && !status.journal_lost {
        output::say!(
            "DEGRADED: the cache device failed and {} went past it; replace or mend it, then floe \
             restore",
            output::bytes(status.bypassed_bytes)
        );
    }
    output::say!();
    volume::print(&status.volumes);
    output::say!();
    let mut requests =
        output::table(&["", "requests", "hits", "bytes", "mean", "p50", "p99", "p99.9"], 1);
    let mut row = |name: &str, count: u64, hit_ratio: f64, bytes: u64, latency: &Latency| {
        let times = [latency.mean_us, latency.p50_us, latency.p99_us, latency.p999_us];
        let mut cells = vec![
            name.to_owned(),
            count.to_string(),
            output::percent(hit_ratio),
            output::bytes(bytes),
        ];
        cells.extend(times.map(output::microseconds));
        requests.add_row(cells);
    };
    row(
        "reads",
        status.read_requests,
        status.read_hit_ratio,
        status.read_bytes,
        &status.read_latency,
    );
    row(
        "writes",
        status.write_requests,
        status.write_hit_ratio,
        status.write_bytes,
        &status.write_latency,
    );
    output::print_table(&requests);
    output::say!(
        " flushes {}, trims {}, errors {}, reads joined to another client's fetch {}",
        status.flush_requests,
        status.trim_requests,
        status.errors,
        status.joined_reads
    );
    output::say!();
    let mut devices = output::table(&["device", "read", "written", "errors"], 1);
    let device = |name: &str, read: u64, written: u64, errors: u64| {
        vec![name.to_owned(), output::bytes(read), output::bytes(written), errors.to_string()]
    };
    devices.add_row(device(
        "cache",
        status.cache_read_bytes,
        status.cache_write_bytes,
        status.cache_errors,
    ));
    devices.add_row(device(
        "backing",
        status.backing_read_bytes,
        status.backing_write_bytes,
        status.backing_errors,
    ));
    output::print_table(&devices);
    output::say!();
    if status.tiers.len() > 1 {
        print_tiers(&status.tiers);
        output::say!();
    }
    let mut blocks = output::table(&["block size", "blocks", "bytes"], 1);
    for count in &status.blocks {
        let total = output::bytes(count.block_bytes * count.blocks);
        blocks.add_row(vec![output::bytes(count.block_bytes), count.blocks.to_string(), total]);
    }
    output::print_table(&blocks);
    output::say!(
        " replaced {} blocks in place, emptied {} groups",
        status.blocks_replaced,
        status.groups_emptied
    );
    output::say!(
        " valid {} of {}, dirty {}, metadata {}",
        output::bytes(status.valid_bytes),
        output::bytes(status.cache_size_bytes),
        output::bytes(status.dirty_bytes),
        output::bytes(status.metadata_bytes)
    );
    match status.seconds_to_clean {
        _ if status.dirty_bytes == 0 => {}
        Some(seconds) => output::say!(" clean in {seconds:.0} s, if cleaned as fast as lately"),
        None => output::say!(" nothing was cleaned lately"),
    }
    if status.corrupt_sectors > 0 {
        output::say!(
            " {} sectors of the cache device were not what had been stored there; what was clean \
             was read anew",
            status.corrupt_sectors
        );
    }
    if status.lost.bytes > 0 {
        output::say!(" DATA LOST: {}", status.lost);
    }
    if status.prefetched_blocks > 0 {
        let used = status.prefetched_used_blocks as f64 / status.prefetched_blocks as f64;
        output::say!(
            " fetched ahead {}, of which {} was read",
            output::bytes(status.prefetched_bytes),
            output::percent(used)
        );
    }
    if let Some(admission) = &status.admission {
        output::say!(
            " admission {}: {} of {} smallest blocks came in, {} blocks were not made as nothing \
             was to leave, {} fetched as ordered",
            admission.admission,
            admission.admitted_blocks,
            admission.offered_blocks,
            admission.stores_withheld,
            admission.ordered_blocks
        );
    }
    if let Some(shedding) = &status.shedding {
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
    match status.session {
        Some(session) => {
            output::say!(" the cache outlives the server; it was opened {session} time(s)")
        }
        None => output::say!(" the cache ends with the server"),
    }
    if let Some(memory) = &status.memory {
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
                " admission {}: {} of {} pages came in",
                admission.admission,
                admission.admitted_pages,
                admission.offered_pages
            );
        }
        if let Some(freezing) = &memory.freezing {
            output::say!(
                " freezing: {}, {} of the pages with {} of the hits, frozen {} times, given up {} \
                 times",
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
    }
    if let Some(advice) = &status.advice {
        output::say!();
        output::say!(" advice for {}", advice.text);
    }
    if status.threads.len() > 1 {
        output::say!();
        let mut threads = output::table(
            &["thread", "clients", "requests", "messages", "wakes", "valid", "dirty"],
            1,
        );
        for (number, thread) in status.threads.iter().enumerate() {
            threads.add_row(vec![
                number.to_string(),
                thread.connections.to_string(),
                thread.requests.to_string(),
                thread.messages.to_string(),
                thread.wakes.to_string(),
                output::bytes(thread.valid_bytes),
                output::bytes(thread.dirty_bytes),
            ]);
        }
        output::print_table(&threads);
    }
    if status.spun_seconds > 0.0 {
        output::say!(" processor time burnt in imitating fast media: {:.1} s", status.spun_seconds);
    }
}
