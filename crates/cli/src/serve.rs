//! `floe serve`: settings from the command line or a file, devices opened, the server run.

use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use floe_block::{BlockCache, BlockSizes, Config, Driver, WriteMode};
use floe_device::{Device, Pool, Ring, Role, Spec};
use floe_export::admin::DEFAULT_ADDRESS;
use floe_export::server::{Bound, Server, ServerConfig};
use floe_export::uri::Uri;
use serde::{Deserialize, Serialize};

use crate::OrFail;
use crate::admin::address;
use crate::error::CliError;
use crate::size::Bytes;

/// Submissions the ring takes at a time.
const RING_ENTRIES: u32 = 512;

/// Memory for requests under way, registered with the kernel; more is taken as needed.
const ARENA_BYTES: usize = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  floe serve --backing file:/dev/vdb --cache file:/var/cache/floe.img --cache-size 10GiB
  floe serve --backing file:disk.img --cache memory:256MiB --write back --listen 'nbd+unix:///?socket=/run/floe.sock'
  floe serve --backing file:disk.img,medium=cloud --cache file:cache.img,size=1GiB,medium=nvme
  floe serve --config floe.toml

floe.toml has the same settings without the dashes:
  backing = \"file:/dev/vdb\"
  cache = \"file:/var/cache/floe.img\"
  cache-size = \"10GiB\"
  listen = [\"nbd://127.0.0.1:10809\"]";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A file with the settings, instead of giving them here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// The settings, the same on the command line and in a file.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Settings {
    // Not a doc comment: rustdoc would see links in it.
    #[arg(long, value_name = "SPEC")]
    #[arg(
        help = "The slow volume: file:PATH[,size=SIZE], memory:SIZE or stripe:PATH+PATH[,chunk=SIZE][,size=SIZE]; each may end in ,medium=NAME"
    )]
    pub(crate) backing: Option<String>,
    /// The fast device, given as the volume is; a missing file is created
    #[arg(long, value_name = "SPEC")]
    pub(crate) cache: Option<String>,
    /// Size of the cache; by default that of the cache device
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<String>,
    /// When writes reach which device: through (default), around, back or pass
    #[arg(long, value_name = "MODE")]
    pub(crate) write: Option<String>,
    /// Sizes of cached blocks, powers of two from 4KiB to 1MiB [default: 32KiB,64KiB,128KiB,256KiB]
    #[arg(long, value_name = "LIST")]
    pub(crate) block_sizes: Option<String>,
    /// Number of shards; by default one for each GiB of cache, up to 128
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<u64>,
    /// Name of the volume for clients [default: floe]
    #[arg(long, value_name = "NAME")]
    pub(crate) volume: Option<String>,
    /// Where to listen: nbd://HOST:PORT or nbd+unix:///?socket=PATH; may be repeated [default: nbd://127.0.0.1:10809]
    #[arg(long, value_name = "URI")]
    #[serde(default)]
    pub(crate) listen: Vec<String>,
    /// Where the admin interface listens [default: 127.0.0.1:10810]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) admin: Option<String>,
    /// How long written data stays in the cache only, with --write back [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub(crate) flush_interval: Option<String>,
    /// Allow listening on addresses that other machines can reach
    #[arg(long)]
    #[serde(default)]
    pub(crate) insecure: bool,
}

/// The settings understood.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) backing: Spec,
    pub(crate) cache: Spec,
    pub(crate) cache_bytes: u64,
    pub(crate) mode: WriteMode,
    pub(crate) sizes: BlockSizes,
    pub(crate) shards: Option<u64>,
    pub(crate) server: ServerConfig,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    let plan = match &arguments.config {
        Some(file) => from_file(file, &arguments.settings)?.plan().map_err(|problem| in_file(file, &problem)),
        None => arguments.settings.plan().map_err(CliError::usage),
    }?;
    log_to_stderr();
    let (stop, signals) = signal_pipe()?;
    let server = prepare(plan, signals)?;
    let mut out = std::io::stdout();
    for uri in server.uris() {
        writeln!(out, "{uri}").or_failure()?;
    }
    out.flush().or_failure()?;
    tracing::info!(admin = %server.admin_address(), "serving");
    let ended = server.run().or_failure();
    drop(stop); // the signal handlers write to it
    ended
}

/// Binds addresses and opens devices. `signals` becomes readable when the server is to end.
///
/// What can fail without a trace comes first: opening devices may create files.
pub(crate) fn prepare(plan: Plan, signals: OwnedFd) -> Result<Server, CliError> {
    let cache = BlockCache::new(Config {
        sizes: plan.sizes,
        cache_bytes: plan.cache_bytes,
        mode: plan.mode,
        shards: plan.shards,
    })
    .or_usage()?;
    let volume = plan.server.volume.clone();
    let bound = Bound::bind(plan.server).or_usage()?;
    let ring = Ring::new(RING_ENTRIES).or_failure()?;
    let pool = Pool::new(ARENA_BYTES);
    if let Err(error) = ring.register_pool(&pool) {
        tracing::info!(%error, "buffers are not registered with the kernel; I/O costs a little more");
    }
    let backing = plan.backing.open(&ring, &pool, Role::Backing { read_only: false }).or_usage()?;
    let cache_device = plan.cache.open(&ring, &pool, Role::Cache { size: plan.cache_bytes }).or_usage()?;
    let volume_bytes = backing.size_bytes();
    let mut driver = Driver::new(cache, cache_device, pool.clone());
    driver.add_volume(&volume, backing);
    bound.serve(ring, pool, driver, volume_bytes, signals).or_usage()
}

/// A pipe that SIGTERM and SIGINT write to: the end to keep, and the end to read.
fn signal_pipe() -> Result<(std::os::unix::net::UnixStream, OwnedFd), CliError> {
    let (write, read) = std::os::unix::net::UnixStream::pair().or_failure()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone().or_failure()?).or_failure()?;
    }
    Ok((write, read.into()))
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FLOE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
}

fn in_file(file: &Path, problem: &str) -> CliError {
    CliError::usage(format!("{}: {problem}", file.display()))
}

fn from_file(file: &Path, beside: &Settings) -> Result<Settings, CliError> {
    if let Some(setting) = beside.first_given() {
        let problem = format!("--{setting} cannot be given beside --config; write it in the file");
        return Err(in_file(file, &problem));
    }
    let text = std::fs::read_to_string(file).map_err(|error| in_file(file, &error.to_string()))?;
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
        let place = line.map_or(String::new(), |line| format!("line {line}: "));
        in_file(file, &format!("{place}{}", error.message()))
    })
}

impl Settings {
    /// The name of a setting that was given, if one was.
    fn first_given(&self) -> Option<String> {
        let settings = serde_json::to_value(self).expect("settings are plain values");
        let given = |value: &serde_json::Value| match value {
            serde_json::Value::Null | serde_json::Value::Bool(false) => false,
            serde_json::Value::Array(values) => !values.is_empty(),
            _ => true,
        };
        settings.as_object()?.iter().find(|(_, value)| given(value)).map(|(name, _)| name.clone())
    }

    pub(crate) fn plan(self) -> Result<Plan, String> {
        fn named<T>(name: &str, value: Result<T, impl std::fmt::Display>) -> Result<T, String> {
            value.map_err(|error| format!("{name}: {error}"))
        }
        let required =
            |name: &str, value: Option<String>| value.ok_or(format!("{name} is missing: say which device"));
        let backing: Spec = named("backing", required("backing", self.backing)?.parse())?;
        let cache: Spec = named("cache", required("cache", self.cache)?.parse())?;
        if backing.paths().iter().any(|path| cache.paths().contains(path)) {
            return Err("backing and cache are the same file".into());
        }
        let cache_size =
            self.cache_size.map(|size| named("cache-size", size.parse::<Bytes>())).transpose()?;
        let cache_bytes = cache_bytes(&cache, cache_size.map(|Bytes(bytes)| bytes))?;
        let sizes = self.block_sizes.map(|list| named("block-sizes", list.parse()));
        let listen =
            if self.listen.is_empty() { vec!["nbd://127.0.0.1:10809".to_owned()] } else { self.listen };
        let listen: Vec<Uri> =
            listen.iter().map(|uri| named("listen", uri.parse())).collect::<Result<_, _>>()?;
        let interval = self.flush_interval.map(|text| named("flush-interval", duration(&text)));
        let mode = self.write.map(|mode| named("write", mode.parse())).transpose()?.unwrap_or_default();
        let flush_interval = interval.transpose()?;
        if flush_interval.is_some() && mode != WriteMode::Back {
            return Err(format!("flush-interval is for write = back only; here write is {mode}"));
        }
        if flush_interval.is_some_and(|interval| interval.is_zero()) {
            return Err(
                "flush-interval: 0s is too short; write = through keeps nothing in the cache only".into()
            );
        }
        Ok(Plan {
            backing,
            cache,
            cache_bytes,
            mode,
            sizes: sizes.transpose()?.unwrap_or_default(),
            shards: self.shards,
            server: ServerConfig {
                volume: self.volume.unwrap_or_else(|| "floe".into()),
                listen,
                admin: named("admin", address(self.admin.as_deref().unwrap_or(DEFAULT_ADDRESS)))?,
                insecure: self.insecure,
                tls: None,
                most_connections: floe_export::limits::MOST_CONNECTIONS,
                flush_interval: flush_interval.unwrap_or(Duration::from_secs(5)),
                cache_bytes,
            },
        })
    }
}

/// A time such as `500ms`, `5s` or `1min`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration; write 500ms, 5s or 1min"))
}

/// The size of the cache: what was asked for, what the spec says, or what is there.
fn cache_bytes(cache: &Spec, asked: Option<u64>) -> Result<u64, String> {
    let there = cache.size_found();
    match (asked, there) {
        (Some(asked), Some(there)) if asked != there => Err(format!(
            "cache-size is {}, but the cache device has {}",
            floe_block::format_size(asked),
            floe_block::format_size(there)
        )),
        (Some(bytes), _) | (None, Some(bytes)) => Ok(bytes),
        (None, None) => Err(format!("cache-size is missing: {cache} does not exist yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &Path, cache_size: &str, admin: &str) -> Settings {
        let place = |name: &str| folder.join(name).display().to_string();
        Settings {
            backing: Some(format!("file:{},size=1MiB", place("volume"))),
            cache: Some(format!("file:{}", place("cache"))),
            cache_size: Some(cache_size.into()),
            listen: vec![format!("nbd+unix:///?socket={}", place("socket"))],
            admin: Some(admin.into()),
            ..Settings::default()
        }
    }

    #[test]
    fn a_server_that_cannot_begin_leaves_no_files_behind() {
        let folder = tempfile::tempdir().unwrap();
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().to_string();
        for settings in
            [settings(folder.path(), "1MiB", &taken), settings(folder.path(), "4KiB", "127.0.0.1:0")]
        {
            let (_stop, signals) = std::os::unix::net::UnixStream::pair().unwrap();
            assert!(prepare(settings.plan().unwrap(), signals.into()).is_err());
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
