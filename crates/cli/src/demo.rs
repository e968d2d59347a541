//! `floe demo`: a slow volume, first bare and then through a cache, under the same load.
//!
//! The servers run in threads of this process and are spoken to over NBD sockets, as any client
//! would. All files are in a temporary folder that is removed at the end, also on an interrupt.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use comfy_table::Table;
use floe_block::WriteMode;
use floe_lab::load::{self, Load, LoadError, Measured};
use floe_nbd::uri::Uri;
use floe_server::ServeError;
use floe_server::admin::client::{self, Endpoint};
use floe_server::config::{
    AdminConfig, Bytes, ListenConfig, ServerConfig, TierConfig, VolumeConfig,
};
use floe_server::kept::Consent;
use floe_server::status::Status;
use serde::Serialize;

use crate::error::CliError;
use crate::serve::{Prepared, prepare};
use crate::{OrFail, output};

/// The slow volume, of which only what is written takes space.
const VOLUME_BYTES: u64 = 2 << 30;
const CACHE_BYTES: u64 = 256 << 20;
const MEDIUM: &str = "cloud";

const EXAMPLES: &str = "\
Examples:
  floe demo
  floe demo --time 2s --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Time for each of the four runs
    #[arg(long, value_name = "DURATION", default_value = "6s")]
    time: humantime::Duration,
    /// One JSON object per run instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of the result.
#[derive(Debug, Serialize)]
struct Row {
    run: &'static str,
    requests_per_second: f64,
    mebibytes_per_second: f64,
    mean_us: f64,
    p99_us: f64,
    read_mean_us: f64,
    write_mean_us: f64,
    /// Share of reads that found everything cached.
    read_hit_ratio: f64,
    backing_read_bytes: u64,
    backing_write_bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let folder = tempfile::Builder::new().prefix("floe-demo-").tempdir().or_failure()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).or_failure()?;
    }
    let demo = Demo { time: *arguments.time, folder: folder.path(), interrupted: &interrupted };
    if !arguments.json {
        output::say!(
            "A {} volume on a simulated {MEDIUM} disk (about 1 ms), 70 % reads and 30 % writes\nof \
             4 to 32 KiB, 16 in flight, Zipf 1.1; then the same through {} of cache in a\nfile.\n",
            output::bytes(VOLUME_BYTES),
            output::bytes(CACHE_BYTES)
        );
    }
    let rows = demo.rows()?;
    let spinner = output::spinner("removing the demo's files");
    folder.close().or_failure()?;
    spinner.finish_and_clear();
    if arguments.json {
        return rows.iter().try_for_each(output::json_line).or_failure();
    }
    print(&rows);
    Ok(())
}

struct Demo<'a> {
    time: Duration,
    folder: &'a Path,
    interrupted: &'a AtomicBool,
}

impl Demo<'_> {
    fn rows(&self) -> Result<Vec<Row>, CliError> {
        let mut rows = Vec::new();
        let bare = Running::start(self.folder, WriteMode::Pass)?;
        rows.push(self.row(&bare, "bare volume")?);
        bare.stop()?;
        let through = Running::start(self.folder, WriteMode::Through)?;
        rows.push(self.row(&through, "cold cache")?);
        rows.push(self.row(&through, "warm cache")?);
        through.stop()?;
        let back = Running::start(self.folder, WriteMode::Back)?;
        rows.push(self.row(&back, "write-back cache")?);
        back.stop()?;
        Ok(rows)
    }

    /// Runs the load against a server, and takes what its counters gained meanwhile.
    fn row(&self, server: &Running, run: &'static str) -> Result<Row, CliError> {
        let load = Load {
            read_share: 0.7,
            theta: 1.1,
            sizes: vec![4 << 10, 8 << 10, 16 << 10, 32 << 10],
            depth: 16,
            seed: 1,
        };
        let bar = output::progress(self.time.as_millis() as u64, run);
        let before = server.status()?;
        let measured = load::run(&server.uri, &load, self.time, |passed| {
            bar.set_position(passed.as_millis() as u64);
            !self.interrupted.load(Relaxed) // a flag of its own: nothing else is read by it
        });
        bar.finish_and_clear();
        let after = server.status()?;
        match measured {
            Ok(measured) => Ok(Row::new(run, &measured, &before, &after)),
            Err(LoadError::Interrupted) => {
                Err(CliError::failure("interrupted; nothing is left behind"))
            }
            Err(error) => Err(CliError::failure(error.to_string())),
        }
    }
}

impl Row {
    fn new(run: &'static str, measured: &Measured, before: &Status, after: &Status) -> Self {
        let all = measured.all_ns();
        let seconds = measured.elapsed.as_secs_f64();
        let gained = after.cache.since(&before.cache);
        let (requests, counters) = (gained.requests, gained.counters);
        Self {
            run,
            requests_per_second: all.len() as f64 / seconds,
            mebibytes_per_second: measured.bytes as f64 / seconds / f64::from(1 << 20),
            mean_us: all.mean() / 1e3,
            p99_us: all.value_at_quantile(0.99) as f64 / 1e3,
            read_mean_us: measured.read_ns.mean() / 1e3,
            write_mean_us: measured.write_ns.mean() / 1e3,
            read_hit_ratio: requests.read_hits as f64 / requests.reads.max(1) as f64,
            backing_read_bytes: counters.backing_read_bytes,
            backing_write_bytes: counters.backing_write_bytes,
        }
    }
}

/// A server in a thread of this process.
struct Running {
    uri: Uri,
    admin: Endpoint,
    thread: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn start(folder: &Path, mode: WriteMode) -> Result<Self, CliError> {
        let place = |name: &str| folder.join(name).display().to_string();
        let file = |name: &str| format!("file:{}", place(name));
        let volume = format!("{},size={VOLUME_BYTES},medium={MEDIUM}", file("volume"));
        let config = ServerConfig {
            first: TierConfig {
                cache: Some(file("cache").parse().or_usage()?),
                cache_size: Some(Bytes(CACHE_BYTES)),
                volatile: true,
                write: Some(mode),
                ..TierConfig::default()
            },
            listen: ListenConfig {
                listen: vec![
                    format!("nbd+unix:///?socket={}", place("socket")).parse().or_usage()?,
                ],
                ..ListenConfig::default()
            },
            admin: AdminConfig {
                admin: vec![format!("unix:{}", place("admin.sock")).parse().or_usage()?],
                ..AdminConfig::default()
            },
            volume: vec![VolumeConfig {
                name: Some("floe".into()),
                backing: Some(volume.parse().or_usage()?),
                ..VolumeConfig::default()
            }],
            ..ServerConfig::default()
        };
        let config = config.validated().or_usage()?;
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // The other end is kept open until the server has ended by itself.
            let (_keep, signals) =
                std::os::unix::net::UnixStream::pair().expect("a socket pair can be had");
            match prepare(&config, Consent::default(), None, signals.into()) {
                Ok(None) => Ok(()), // it is none of a pair
                Ok(Some(Prepared { server, .. })) => {
                    let uri = server.uris().next().expect("the server listens");
                    let admin =
                        server.admin_addresses().next().expect("there is an admin interface");
                    let _ = tell.send(Ok((uri, Endpoint::from(admin.clone()))));
                    server.run().map(drop)
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    Ok(())
                }
            }
        });
        let (uri, admin) = told.recv().or_failure()??;
        Ok(Self { uri, admin, thread })
    }

    fn status(&self) -> Result<Status, CliError> {
        client::status(&self.admin).or_failure()
    }

    fn stop(self) -> Result<(), CliError> {
        client::stop(&self.admin).or_failure()?;
        self.thread.join().expect("the server does not panic").or_failure()
    }
}

/// Makes a table with a column for each run.
fn table(rows: &[Row]) -> Table {
    type Cell = fn(&Row) -> String;
    let lines: [(&str, Cell); 9] = [
        ("requests/s", |row| format!("{:.0}", row.requests_per_second)),
        ("MiB/s", |row| format!("{:.1}", row.mebibytes_per_second)),
        ("mean", |row| output::microseconds(row.mean_us)),
        ("p99", |row| output::microseconds(row.p99_us)),
        ("mean read", |row| output::microseconds(row.read_mean_us)),
        ("mean write", |row| output::microseconds(row.write_mean_us)),
        ("read hits", |row| output::percent(row.read_hit_ratio)),
        ("from disk", |row| output::bytes(row.backing_read_bytes)),
        ("to disk", |row| output::bytes(row.backing_write_bytes)),
    ];
    let columns: Vec<&str> = [""].into_iter().chain(rows.iter().map(|row| row.run)).collect();
    let mut table = output::table(&columns, 1);
    for (name, cell) in lines {
        table.add_row([name.to_owned()].into_iter().chain(rows.iter().map(cell)));
    }
    table
}

fn print(rows: &[Row]) {
    output::print_table(&table(rows));
    let (bare, last) = (&rows[0], &rows[rows.len() - 1]);
    output::say!(
        "\nThrough the warm cache reads take {} instead of {};\nwith write-back, the same load \
         runs {:.1} times as fast.",
        output::microseconds(rows[2].read_mean_us),
        output::microseconds(bare.read_mean_us),
        last.requests_per_second / bare.requests_per_second
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The widest figures that a run can show.
    fn row(run: &'static str) -> Row {
        Row {
            run,
            requests_per_second: 1_234_567.8,
            mebibytes_per_second: 12_345.6,
            mean_us: 12_345.6,
            p99_us: 1_234_567.8,
            read_mean_us: 999.9,
            write_mean_us: 12_345.6,
            read_hit_ratio: 0.999,
            backing_read_bytes: 1023 << 20,
            backing_write_bytes: (999 << 30) + (512 << 20),
        }
    }

    #[test]
    fn the_table_fits_into_80_columns() {
        let rows = ["bare volume", "cold cache", "warm cache", "write-back cache"].map(row);
        for line in table(&rows).to_string().lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
    }
}
