//! `floe demo`: runs the same requests on a slow volume, first directly and then through a cache.
//!
//! By default the demo runs in virtual time: figures are the same on every machine, and appear
//! within seconds. With `--real`, it measures servers on real files over NBD.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io};

use clap::Args;
use floe_block::WriteMode;
use floe_lab::demo::{self, CACHE_BYTES, RUNS, Row, VOLUME_BYTES, VOLUME_MEDIUM};
use floe_lab::interference::{MeasureError, Plan, Point, TestBed, measure};
use floe_lab::load::{self, LoadError, Measured};
use floe_nbd::uri::Uri;
use floe_server::ServeError;
use floe_server::admin::client::{self, Endpoint};
use floe_server::config::{
    AdminConfig, Bytes, ListenConfig, ServerConfig, TierConfig, VolumeConfig,
};
use floe_server::persistent::ForceFlags;
use floe_server::status::Status;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use crate::error::{CliError, OrFail};
use crate::output;
use crate::output::microseconds;
use crate::serve::{Prepared, prepare};

/// Number of steps of the progress bar.
const STEPS: u64 = 1000;

const EXAMPLES: &str = "\
Examples:
  floe demo
  floe demo --json
  floe demo --real
  floe demo --real --volume /mnt/slow --cache /mnt/fast --time 10s

In virtual time the block cache of the server works on simulated devices, and prints the same
figures on every machine. With --real, servers in this process use new files, which are removed at
the end, and are asked over NBD. Without --volume, the volume imitates a cloud disk.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Measure real files, through a server
    #[arg(long)]
    real: bool,
    /// Folder for the volume's file of 2 GiB, on a slow disk
    #[arg(long, value_name = "FOLDER", requires = "real")]
    volume: Option<PathBuf>,
    /// Folder for the cache's file of 256 MiB, on a fast disk
    #[arg(long, value_name = "FOLDER", requires = "real")]
    cache: Option<PathBuf>,
    /// Time for each run, and for the warm-up before it [default: 4s]
    #[arg(long, value_name = "DURATION", requires = "real")]
    time: Option<humantime::Duration>,
    /// One JSON object per run instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let rows = match arguments.real {
        true => rows(arguments)?,
        false => simulated(arguments.json)?,
    };
    if arguments.json {
        return rows.iter().try_for_each(output::json_line).or_failure();
    }
    output::say!("{}", demo::text(&rows));
    Ok(())
}

fn simulated(json: bool) -> Result<Vec<Row>, CliError> {
    if !json {
        output::say!("{}\n", demo::introduction());
    }
    let bar = output::progress(STEPS, "simulating");
    let rows = demo::run(|share| bar.set_position((share * STEPS as f64) as u64));
    bar.finish_and_clear();
    rows.or_failure()
}

/// Returns the disk of a file system: its folder in sysfs. For a file system without a block
/// device, returns a name derived from the file system's number.
fn disk(folder: &Path) -> io::Result<PathBuf> {
    let number = fs::metadata(folder)?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let name = format!("{major}:{minor}");
    let Ok(device) = fs::canonicalize(Path::new("/sys/dev/block").join(&name)) else {
        return Ok(name.into());
    };
    // A partition is a folder within that of its disk.
    let is_partition = device.join("partition").exists();
    Ok(device.parent().filter(|_| is_partition).unwrap_or(&device).to_path_buf())
}

/// Duration of a run without `--time`.
const TIME: Duration = Duration::from_secs(4);

/// Size of the range of each device that is measured, and of the data in one round.
const PROBE_BYTES: u64 = 128 << 20;
const PROBE_TIME: Duration = Duration::from_millis(700);
const PROBE_BLOCK_BYTES: u64 = 4096;

/// Bytes written at a time when the volume is filled.
const STRIDE_BYTES: usize = 1 << 20;

/// Paths of the demo's devices and sockets.
struct Places {
    sockets: PathBuf,
    volume: String,
    cache: String,
}

struct Demo<'a> {
    time: Duration,
    places: Places,
    interrupted: &'a AtomicBool,
}

/// Measures the devices and runs the load on them. Returns a row for each run.
fn rows(arguments: &Arguments) -> Result<Vec<Row>, CliError> {
    let interrupted = crate::flag_of_signals(&[SIGINT, SIGTERM, SIGHUP])?;
    let temporary = std::env::temp_dir();
    let on_volume = arguments.volume.as_deref().unwrap_or(&temporary);
    let on_cache = arguments.cache.as_deref().unwrap_or(&temporary);
    let made = |folder: &Path| -> Result<TempDir, CliError> {
        tempfile::Builder::new().prefix("floe-demo-").tempdir_in(folder).or_usage()
    };
    let (volume, cache, sockets) = (made(on_volume)?, made(on_cache)?, made(&temporary)?);
    let medium = match arguments.volume {
        Some(_) => String::new(),
        None => format!(",medium={VOLUME_MEDIUM}"),
    };
    let file = |folder: &TempDir| format!("file:{}", folder.path().join("demo").display());
    let demo = Demo {
        time: arguments.time.map_or(TIME, |time| *time),
        places: Places {
            sockets: sockets.path().to_path_buf(),
            volume: format!("{},size={VOLUME_BYTES}{medium}", file(&volume)),
            cache: file(&cache),
        },
        interrupted: &interrupted,
    };
    let what = match &arguments.volume {
        Some(_) => on_volume.display().to_string(),
        None => format!("{} as a {VOLUME_MEDIUM} disk", on_volume.display()),
    };
    let volume_spec = format!("{}.probe,size={PROBE_BYTES}{medium}", file(&volume));
    let cache_spec = format!("{}.probe,size={PROBE_BYTES}", file(&cache));
    for (device, name, spec) in
        [("volume", what, volume_spec), ("cache", on_cache.display().to_string(), cache_spec)]
    {
        let point = demo.probe(&spec)?;
        if !arguments.json {
            output::say!("{}", measured(device, &name, &point));
        }
    }
    if !arguments.json {
        if disk(on_volume).or_usage()? == disk(on_cache).or_usage()? {
            output::say!("{}", shared(arguments.volume.is_some()));
        }
        output::say!("\n{}\n", demo::real_introduction());
    }
    if arguments.volume.is_some() {
        demo.fill(&volume.path().join("demo"))?;
    }
    let rows = demo.rows()?;
    let spinner = output::spinner("removing the demo's files");
    for folder in [volume, cache, sockets] {
        folder.close().or_failure()?;
    }
    spinner.finish_and_clear();
    Ok(rows)
}

/// Formats the performance of a device by itself.
fn measured(device: &str, name: &str, point: &Point) -> String {
    format!(
        "{device:6} {name}: 4 KiB reads take {} (p99 {}), writes {}",
        microseconds(point.read_us_mean),
        microseconds(point.read_us_p99),
        point.write_us_mean.map_or("–".to_owned(), microseconds),
    )
}

/// Returns the warning that volume and cache share a disk.
fn shared(is_volume_real: bool) -> &'static str {
    match is_volume_real {
        true => {
            "Volume and cache share one disk: a cache cannot make a disk faster than itself,\n\
             and their requests wait for each other."
        }
        false => {
            "Volume and cache share one disk; the volume waits longer, as its medium would.\n\
             Name folders on two disks with --volume and --cache."
        }
    }
}

impl Demo<'_> {
    /// Measures a device by itself, with half reads and half writes.
    fn probe(&self, spec: &str) -> Result<Point, CliError> {
        let spec = spec.parse().or_usage()?;
        let spinner = output::spinner("measuring the devices");
        let plan = Plan {
            block_bytes: vec![PROBE_BLOCK_BYTES],
            write_shares: vec![0.5],
            depth: demo::load().depth,
            rounds: 1,
            round: PROBE_TIME,
        };
        let mut bed = TestBed::to_write(&spec, PROBE_BYTES, PROBE_BLOCK_BYTES, false).or_usage()?;
        let points = measure(&mut bed, &plan, |_| self.goes_on());
        bed.restore().or_failure()?;
        spinner.finish_and_clear();
        match points {
            Ok(points) => Ok(points.into_iter().next().expect("one size and share is a point")),
            Err(MeasureError::Interrupted) => Err(interrupted()),
            Err(error) => Err(CliError::failure(error.to_string())),
        }
    }

    /// Writes the whole volume, because a disk may read never-written blocks faster.
    fn fill(&self, path: &Path) -> Result<(), CliError> {
        let bar = output::progress(VOLUME_BYTES, "filling the volume");
        let words =
            (0..STRIDE_BYTES as u64 / 8).flat_map(|word| floe_policy::mix(word).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        let failed = |error| CliError::failure(format!("{}: {error}", path.display()));
        let mut file = File::create(path).map_err(failed)?;
        for _ in 0..VOLUME_BYTES / STRIDE_BYTES as u64 {
            file.write_all(&bytes).map_err(failed)?;
            bar.inc(STRIDE_BYTES as u64);
            if !self.goes_on() {
                return Err(interrupted());
            }
        }
        file.sync_all().map_err(failed)?;
        bar.finish_and_clear();
        Ok(())
    }

    fn goes_on(&self) -> bool {
        !self.interrupted.load(Relaxed) // a flag of its own: nothing else is read by it
    }

    fn rows(&self) -> Result<Vec<Row>, CliError> {
        let row = |(run, mode): (&'static str, WriteMode)| {
            let server = Running::start(&self.places, mode)?;
            if mode != WriteMode::Pass {
                self.load(&server, &format!("{run}, warming up"))?;
            }
            let before = server.status()?;
            let measured = self.load(&server, run)?;
            let row = row(run, &measured, &before, &server.status()?);
            server.stop()?;
            Ok(row)
        };
        RUNS.into_iter().map(row).collect()
    }

    /// Runs the load against a server.
    fn load(&self, server: &Running, what: &str) -> Result<Measured, CliError> {
        let bar = output::progress(self.time.as_millis() as u64, what);
        let measured = load::run(&server.uri, &demo::load(), self.time, |passed| {
            bar.set_position(passed.as_millis() as u64);
            self.goes_on()
        });
        bar.finish_and_clear();
        measured.map_err(|error| match error {
            LoadError::Interrupted => interrupted(),
            error => CliError::failure(error.to_string()),
        })
    }
}

fn interrupted() -> CliError {
    CliError::failure("interrupted; its files are removed")
}

/// Builds a result row from a measurement and from the change of the server's counters during it.
fn row(run: &'static str, measured: &Measured, before: &Status, after: &Status) -> Row {
    let seconds = measured.elapsed.as_secs_f64();
    let gained = after.cache.since(&before.cache);
    let (requests, counters) = (gained.requests, gained.counters);
    Row {
        run,
        requests_per_second: measured.all_ns().len() as f64 / seconds,
        mebibytes_per_second: measured.bytes as f64 / seconds / f64::from(1 << 20),
        read_us_mean: measured.read_ns.mean() / 1e3,
        read_us_p99: measured.read_ns.value_at_quantile(0.99) as f64 / 1e3,
        write_us_mean: measured.write_ns.mean() / 1e3,
        write_us_p99: measured.write_ns.value_at_quantile(0.99) as f64 / 1e3,
        read_hit_ratio: requests.read_hits as f64 / requests.reads.max(1) as f64,
        backing_read_bytes: counters.backing_read_bytes,
        backing_write_bytes: counters.backing_write_bytes,
    }
}

/// A server that runs in a thread of this process.
struct Running {
    uri: Uri,
    admin: Endpoint,
    thread: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    fn start(places: &Places, mode: WriteMode) -> Result<Self, CliError> {
        let place = |name: &str| places.sockets.join(name).display().to_string();
        let config = ServerConfig {
            first: TierConfig {
                cache: Some(places.cache.parse().or_usage()?),
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
                backing: Some(places.volume.parse().or_usage()?),
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
            match prepare(&config, ForceFlags::default(), None, signals.into()) {
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

#[cfg(test)]
mod disks_tests {
    use super::*;

    #[test]
    fn folders_of_one_file_system_are_on_one_disk_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().join("within");
        fs::create_dir(&within).unwrap();
        assert_eq!(disk(folder.path()).unwrap(), disk(&within).unwrap());
        assert_ne!(disk(folder.path()).unwrap(), disk(Path::new("/proc")).unwrap());
        assert!(disk(&folder.path().join("missing")).is_err());
    }
}
