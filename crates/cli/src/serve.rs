//! `floe serve`: binds addresses, opens devices, and runs the server.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args;
use floe_device::{OpenError, Role, Spec};
use floe_server::admin::Token;
use floe_server::config::{Bytes, Interval, Percent, ServerConfig, TierConfig, VolumeConfig};
use floe_server::limits::Limits;
use floe_server::pair::{Lease, Turn};
use floe_server::persistent::{ForceFlags, StateDir};
use floe_server::tls::{TlsConfig, TlsMode};
use floe_server::{
    AdminSetup, Bound, CacheError, Ended, NamedDevices, NvmeAccess, NvmeSetup, PreparedCache,
    ServeError, Server, ServerSetup, Volume, notify,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::{pipe, raise};

use crate::error::{CliError, OrFail};
use crate::log::{self, Format};
use crate::pair::HalfAwaited;
use crate::settings::{Source, state_dir};
use crate::{admin, attach, output, pair};

/// Time after which a running operation shows progress.
const PATIENCE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  floe serve --backing file:/dev/vdb --cache file:/var/cache/floe.img --cache-size 10GiB
  floe serve --backing file:disk.img --cache memory:256MiB --write back --listen \
                        'nbd+unix:///?socket=/run/floe.sock'
  floe serve --backing file:/dev/vdb --cache file:/dev/nvme0n1 --memory 8GiB --memory-write back
  floe serve --backing file:/dev/vdb --cache file:/dev/nvme0n1 --memory 8GiB --memory-admit \
                        second-access --admit obp
  floe serve --backing file:/dev/nvme0n1 --tier \
                        memory:8GiB,write=back,volatile,admit=fussy:tune=1,block-sizes=4KiB
  floe serve --backing file:disk.img,medium=cloud --cache file:cache.img,size=1GiB,medium=nvme
  floe serve --backing file:/dev/sdb --tier file:/dev/pmem0,write=back,volatile --tier \
                        file:/dev/nvme0n1 --memory 8GiB
  floe serve --backing file:/dev/sdb --cache file:/dev/nvme0n1 --evict sarc
  floe serve --config floe.toml
  floe serve --backing file:disk.img --cache memory:256MiB --print-config > floe.toml

floe.toml has the same settings without the dashes, and a table for each volume and each tier \
                        below the first:
  cache = \"file:/var/cache/floe.img\"
  cache-size = \"10GiB\"
  listen = [\"nbd://127.0.0.1:10809\"]

  [[tier]]
  cache = \"file:/dev/sdc\"
  write = \"back\"

  [[volume]]
  name = \"pictures\"
  backing = \"file:/dev/vdb\"

FLOE_LOG says what is logged: error, warn, info (the default), debug or trace; debug adds an event \
                        for every client.";

const ATTACH_EXAMPLES: &str = "\
Examples:
  floe attach --backing /dev/vdb --cache /dev/nvme0n1
  floe attach --backing /dev/vdb --cache /dev/nvme0n1 --write back --volume pictures
  floe attach --config /etc/floe/attach.toml

It prints the name of the block device, such as /dev/ublkb0, when it is ready, and serves it until \
                               floe detach or floe stop. A device in use stays when its server \
                               ends: its requests wait until the volume is attached again.";

#[derive(Debug, Args)]
#[command(after_help = ATTACH_EXAMPLES)]
pub(crate) struct AttachArguments {
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Print the settings as a file for --config, with defaults, and serve nothing
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    consent: Allowed,
    /// The format of log events on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: Format,
}

/// Serves a volume as a block device of this machine.
pub(crate) fn attach(AttachArguments { arguments }: AttachArguments) -> Result<(), CliError> {
    let Arguments { source, print_config, consent, log_format } = arguments;
    let source = source.attached();
    let config = source.config()?;
    if !config.volume.iter().any(|volume| volume.reach().is_local()) {
        let problem = "no volume of the file has attach = \"ublk\"";
        return Err(CliError::usage(problem));
    }
    serve(config, print_config, consent, log_format)
}

pub(crate) fn run(arguments: Arguments) -> Result<(), CliError> {
    let Arguments { source, print_config, consent, log_format } = arguments;
    serve(source.config()?, print_config, consent, log_format)
}

/// Reports a failed start to the client that asked for this program by `floe upgrade`. Returns the
/// result unchanged.
pub(crate) fn told(result: Result<(), CliError>) -> Result<(), CliError> {
    result.inspect_err(|error| admin::tell_client(Err(error)))
}

fn serve(
    mut config: ServerConfig,
    print_config: bool,
    consent: Allowed,
    log_format: Format,
) -> Result<(), CliError> {
    if print_config {
        return std::io::stdout().write_all(config.to_text().as_bytes()).or_failure();
    }
    admin::note_program();
    log::begin(log_format)?;
    let devices = config.tiers().count() + config.volume.len();
    let asked = config.listen.max_connections as usize;
    let room = make_room(asked, config.threads(), devices)?;
    if room < asked {
        config.listen.max_connections = room as u64;
        tracing::warn!(asked, room, "the limit of open files leaves room for fewer clients");
    }
    if config.volume.iter().any(|volume| volume.reach().is_local()) {
        floe_server::ublk::check_driver().or_failure()?;
        for refused in floe_server::ublk::protect_memory() {
            tracing::warn!(%refused, "the server is less safe when memory is short");
        }
    }
    let (ended, reloading) = catch()?;
    let state = state_dir(config.serving.state_dir.as_deref());
    let Some(prepared) = prepare(&config, consent.into(), state, ended)? else { return Ok(()) };
    let Prepared { mut server, reloadable, lease } = prepared;
    reloadable.whenever(reloading)?;
    log_settings(&config, &server.cache_bytes());
    if config.admin.is_read_only() {
        tracing::warn!(
            "admin has no Unix socket, so admin clients can change nothing: for floe flush, floe \
             stop and the like remove \"none\" from admin, or set admin-token-file"
        );
    }
    let attached = match server.attach() {
        Ok(attached) => attached,
        Err(error) => {
            // With an end in good order go the devices that were made before.
            end_in_good_order().or_failure()?;
            if let Err(error) = server.run() {
                tracing::error!(%error, "the end of the server failed");
            }
            return Err(error).or_failure();
        }
    };
    attach::record(&server, &attached);
    let devices = attached.iter().map(|it| format!("{}\n", it.device.display()));
    let nqn = server.nqn();
    let nvme = server.nvme_addresses().map(|address| format!("{address}/{nqn}\n"));
    print(server.uris().map(|uri| format!("{uri}\n")).chain(nvme).chain(devices).collect())?;
    let admin: Vec<_> = server.admin_addresses().map(ToString::to_string).collect();
    tracing::info!(admin = %admin.join(","), "serving");
    notify::ready();
    admin::tell_client(Ok(()));
    let ended = server.run();
    drop(lease); // with it the last hold on the images, which the other server of a pair waits for
    attach::forget(&attached);
    match ended.or_failure()? {
        Ended::ForGood => Ok(()),
        Ended::Replaced => Err(admin::replace()),
    }
}

/// Prints the addresses on a separate thread. So a stalled reader of standard output, such as a
/// full pipe with an earlier server's log, delays no client.
fn print(uris: String) -> Result<(), CliError> {
    let print = move || {
        let mut out = std::io::stdout();
        if let Err(error) = out.write_all(uris.as_bytes()).and_then(|()| out.flush()) {
            tracing::warn!(%error, "the addresses could not be printed");
        }
    };
    let thread = std::thread::Builder::new().name("floe-uris".into());
    thread
        .spawn(print)
        .map(drop)
        .map_err(|error| CliError::failure(format!("cannot start a thread: {error}")))
}

/// A server that has opened its devices and is ready to run.
pub(crate) struct Prepared {
    pub(crate) server: Server,
    /// Files that the server reads again on SIGHUP.
    pub(crate) reloadable: Reloadable,
    /// Lease of a server in a pair, to be held until the server has ended.
    pub(crate) lease: Option<Lease>,
}

/// Binds addresses, waits for the other server of a pair, and opens devices. `signals` becomes
/// readable when the server is to end. Returns `None` if that happens during the wait.
///
/// Steps that can fail without side effects come first, because opening devices may create files.
pub(crate) fn prepare(
    config: &ServerConfig,
    consent: ForceFlags,
    state: Option<StateDir>,
    signals: OwnedFd,
) -> Result<Option<Prepared>, CliError> {
    let turn = config.serving.standby.then(|| Arc::new(Turn::default()));
    let opening = Opening::begin(&signals)?;
    let usage = |line: String| CliError::usage(line);
    let memory = config.memory.tier().map_err(|wrong| usage(config.wrong(&wrong)))?;
    let cache =
        PreparedCache::new(config, memory.as_ref(), consent, state.clone()).map_err(tier_error)?;
    let devices = config.volume.iter().map(VolumeConfig::backing);
    let devices = devices.chain(config.tiers().map(TierConfig::cache));
    let admin = AdminSetup::of(&config.admin, devices);
    let admin = admin.map_err(|wrong| usage(config.wrong(&wrong)))?;
    let tls = config.listen.certificates();
    let tls = tls.map_err(|error| usage(config.unusable("tls-certificates", error)))?;
    let nvme_access = config.listen.nvme_access();
    let nvme_access = nvme_access.map_err(|wrong| usage(config.wrong(&wrong)))?;
    let reloadable = Reloadable {
        tls: tls.clone(),
        token: admin.token.clone(),
        nvme: Some(nvme_access.clone()).filter(NvmeAccess::has_secrets),
    };
    let bound = Bound::bind(ServerSetup {
        listen: config.listen.listen.clone(),
        admin,
        nvme: NvmeSetup {
            nqn: config.listen.nqn.as_ref().map(|nqn| nqn.as_str().to_owned()),
            access: nvme_access,
            ..NvmeSetup::default()
        },
        insecure: config.listen.insecure,
        tls,
        limits: limits(config),
        total_limit: config.listen.total_limit(),
        flush_interval: config.serving.flush_interval(),
        memory,
        shed_most: config.serving.shed.map(Percent::share),
        service: config.memory.times().map_err(|wrong| usage(config.wrong(&wrong)))?,
        state,
        devices: Arc::new(NamedDevices),
        check_program: admin::check_program,
        turn: turn.clone(),
        log_lines_dropped: log::dropped_lines,
    });
    let bound = bound.map_err(|error| {
        usage(match error.setting() {
            Some(setting) => config.unusable(setting, error),
            None => error.to_string(),
        })
    })?;
    let volume = |(number, volume): (usize, &VolumeConfig)| {
        let (read_only, reach) = (volume.read_only, volume.reach());
        let backing = opened(volume.backing(), Role::Backing { read_only });
        let backing = Arc::new(backing.map_err(|error| (number, error))?);
        let (name, description) = (volume.name().to_owned(), volume.description.clone());
        let description = description.unwrap_or_default();
        let (block_size, limit) = (volume.block_size(), volume.limit());
        let share = volume.cache_share();
        let rest = backing.size_bytes() % block_size.bytes();
        if volume.nvme_block_size.is_some() && rest > 0 {
            let name = volume.name();
            tracing::warn!(
                volume = name,
                bytes = rest,
                "the end of the volume is no whole block of nvme-block-size, and is out of reach \
                 of NVMe hosts"
            );
        }
        Ok(Volume { name, description, backing, read_only, block_size, limit, share, reach })
    };
    // A server of a pair hears signals itself while it waits for the other one.
    let opening = turn.is_none().then_some(opening);
    let open = || {
        let volumes = config.volume.iter().enumerate().map(volume);
        volumes.collect::<Result<Vec<_>, (usize, OpenError)>>()
    };
    let (volumes, lease) = match &turn {
        None => {
            let unusable = |(number, error)| usage(config.unusable_backing(number, error));
            (open().map_err(unusable)?, None)
        }
        Some(turn) => match pair::wait(turn, &bound, config, &signals, open)? {
            Some((volumes, lease)) => (volumes, Some(lease)),
            None => return Ok(None),
        },
    };
    let devices = HalfAwaited::new(turn.as_ref(), &bound, config, &signals)?;
    let tiers = watched(|progress| cache.open(&volumes, &devices, progress));
    if devices.has_ended() {
        return Ok(None);
    }
    drop(devices); // with it the answers of a standby
    let tiers = tiers.map_err(tier_error)?;
    drop(opening);
    let server = bound.serve(tiers, volumes, signals);
    let server = server.map_err(|error| match error {
        ServeError::Open(_) | ServeError::Export(_) => CliError::usage(error.to_string()),
        _ => CliError::failure(error.to_string()), // the system is short of something
    })?;
    Ok(Some(Prepared { server, reloadable, lease }))
}

fn tier_error(error: CacheError) -> CliError {
    let line = error.to_string();
    if error.is_failure { CliError::failure(line) } else { CliError::usage(line) }
}

/// Runs an operation and shows its progress if it takes long.
fn watched<T>(act: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let begun = Instant::now();
    let mut bar = None;
    let done = act(&mut |read, all| {
        if begun.elapsed() >= PATIENCE {
            let bar =
                bar.get_or_insert_with(|| output::progress(all, "reading the cache's journal"));
            bar.set_length(all); // each tier has a journal
            bar.set_position(read);
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    done
}

fn limits(config: &ServerConfig) -> Limits {
    let (connections, usual) = (config.listen.max_connections as usize, Limits::default());
    let stop_timeout = config.serving.stop_timeout.map_or(usual.stop_timeout, |Interval(it)| it);
    Limits { connections, stop_timeout, ..usual }
}

/// Logs the devices and settings. `used` are the bytes that each tier uses of its device.
fn log_settings(config: &ServerConfig, used: &[u64]) {
    for (number, (tier, &cache_bytes)) in config.tiers().zip(used).enumerate() {
        let (cache, kept) = (tier.cache(), tier.is_persistent());
        let (write, evict) = (tier.mode(), tier.evict.clone().unwrap_or_default());
        if number > 0 {
            tracing::info!(tier = number, %cache, cache_bytes, kept, %write, %evict, "tier");
            continue;
        }
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            %cache,
            cache_bytes,
            kept,
            %write,
            admit = %tier.admit.clone().unwrap_or_default(),
            %evict,
            memory_bytes = config.memory.memory.map_or(0, |Bytes(bytes)| bytes),
            threads = config.threads(),
            max_connections = config.listen.max_connections,
            tls = config.listen.tls.unwrap_or_default() != TlsMode::Off,
            "started"
        );
    }
    for volume in &config.volume {
        let (name, backing, read_only) = (volume.name(), volume.backing(), volume.read_only);
        tracing::info!(volume = name, %backing, read_only, "volume");
    }
}

/// Opens a device, and logs a message if opening an image or a bucket takes long.
fn opened(device: &Spec, role: Role) -> Result<floe_device::Source, OpenError> {
    const LONG: Duration = Duration::from_secs(2);
    if !device.is_image() && !device.is_bucket() {
        return device.prepare(role);
    }
    std::thread::scope(|scope| {
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let tell = move || {
            if ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                let seconds = if device.is_bucket() { 45 } else { 30 };
                tracing::info!(
                    %device,
                    "opening; the lock of a killed server lasts up to {seconds} s"
                );
            }
        };
        // Without a thread nothing is told.
        let _ = std::thread::Builder::new().spawn_scoped(scope, tell);
        let opened = device.prepare(role);
        drop(done);
        opened
    })
}

/// The user's permissions to lose or overwrite data. No file has them: they are for one start.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Allowed {
    /// Make a new cache, whatever the cache device holds
    #[arg(long)]
    initialise: bool,
    /// Lose dirty data where the server would otherwise refuse to start; the log says how much
    #[arg(long)]
    discard_dirty: bool,
    /// Use backing devices that were changed without the cache, and discard the cache's clean data
    /// of them
    #[arg(long)]
    accept_backing: bool,
    /// With --accept-backing: write the cache's dirty data to these devices
    #[arg(long, requires = "accept_backing", conflicts_with = "discard_dirty")]
    keep_dirty: bool,
}

impl From<Allowed> for ForceFlags {
    fn from(allowed: Allowed) -> Self {
        let Allowed { initialise, discard_dirty, accept_backing, keep_dirty } = allowed;
        Self { initialise, discard_dirty, accept_backing, keep_dirty }
    }
}

/// Ends the program when a signal arrives while devices are opened. Dropping this stops that.
struct Opening {
    done: Option<UnixStream>,
    listener: Option<JoinHandle<()>>,
}

impl Opening {
    /// Starts watching `signals`, which becomes readable when the server is to end.
    fn begin(signals: &OwnedFd) -> Result<Self, CliError> {
        let (done, finished) = UnixStream::pair().or_failure()?;
        let signals = signals.try_clone().or_failure()?;
        let listen = move || {
            let mut both =
                [PollFd::new(&signals, PollFlags::IN), PollFd::new(&finished, PollFlags::IN)];
            while poll(&mut both, None).is_err() {} // interrupted
            if both[1].revents().is_empty() {
                tracing::info!("ended while devices were being opened: nothing was served");
                log::end();
                std::process::exit(0);
            }
        };
        let listener = Builder::new().name("floe-opening".to_owned()).spawn(listen).or_failure()?;
        Ok(Self { done: Some(done), listener: Some(listener) })
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(listener) = self.listener.take() {
            let _ = listener.join(); // a panic of it has been printed
        }
    }
}

/// The files that the server reads again on SIGHUP.
#[derive(Debug, Clone)]
pub(crate) struct Reloadable {
    tls: Option<TlsConfig>,
    token: Option<Token>,
    /// Secrets of NVMe hosts.
    nvme: Option<NvmeAccess>,
}

/// Starts catching signals. The first result becomes readable when the server is to end, the second
/// when it is to reload.
fn catch() -> Result<(OwnedFd, UnixStream), CliError> {
    let (end, ended) = UnixStream::pair().or_failure()?;
    let (reload, reloading) = UnixStream::pair().or_failure()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, end.try_clone().or_failure()?).or_failure()?;
    }
    let hang_up = if std::io::stderr().is_terminal() { end } else { reload };
    pipe::register(SIGHUP, hang_up).or_failure()?;
    // A file that would grow beyond the process's limit is an error then, as on a full file system,
    // instead of the end.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).or_failure()?;
    Ok((ended.into(), reloading))
}

/// Makes the server of this program shut down, as a termination signal would.
fn end_in_good_order() -> std::io::Result<()> {
    raise(SIGTERM)
}

impl Reloadable {
    /// Starts a thread that reads the files again whenever the pipe has data.
    fn whenever(self, mut reloading: UnixStream) -> Result<(), CliError> {
        let wait = move || {
            let mut signals = [0; 64]; // several that came at once are one
            while reloading.read(&mut signals).is_ok_and(|bytes| bytes > 0) {
                self.reload();
            }
        };
        Builder::new().name("floe-reload".to_owned()).spawn(wait).map(drop).or_failure()
    }

    fn reload(&self) {
        let tls = self.tls.as_ref().map(|tls| tls.reload().map_err(|error| error.to_string()));
        let token =
            self.token.as_ref().map(|token| token.reload().map_err(|error| error.to_string()));
        let nvme =
            self.nvme.as_ref().map(|access| access.reload().map_err(|error| error.to_string()));
        if tls.is_none() && token.is_none() && nvme.is_none() {
            tracing::info!(
                "SIGHUP: there is nothing to read again: no certificates, token or secrets"
            );
        }
        let files = [("TLS certificates", tls), ("admin token", token), ("NVMe secrets", nvme)];
        for (what, read) in files {
            match read {
                None => {}
                Some(Ok(())) => tracing::info!("SIGHUP: {what} read again"),
                Some(Err(error)) => {
                    tracing::error!(
                        %error,
                        "SIGHUP: {what} could not be read again and stay as they were"
                    )
                }
            }
        }
    }
}

/// Number of file descriptors reserved for single uses: standard streams, listeners, admin
/// connections, volumes added later.
const KEPT: usize = 128;

/// Number of file descriptors reserved for each thread: its ring and wake-up. Its handles of the
/// devices are counted separately.
const KEPT_A_THREAD: usize = 4;

/// Raises the limit of open files so that it suffices for `clients`, as far as the system allows.
/// Returns the number of clients for which it suffices.
///
/// # Errors
/// When the limit does not suffice for a single client.
pub(crate) fn make_room(clients: usize, threads: usize, devices: usize) -> Result<usize, CliError> {
    let kept = KEPT + threads * (KEPT_A_THREAD + devices);
    let limit = getrlimit(Resource::Nofile);
    let wanted = (kept + clients) as u64;
    let most = limit.maximum.unwrap_or(u64::MAX).min(wanted);
    if limit.current.is_some_and(|current| current < most) {
        // Where this is not allowed, there is less room.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match usize::try_from(open).unwrap_or(usize::MAX).saturating_sub(kept).min(clients) {
        0 => Err(CliError::usage(format!(
            "{open} open files are too few: {kept} are kept and each client takes one; raise the \
             limit with ulimit -n"
        ))),
        room => Ok(room),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use floe_device::RingError;

    use super::*;

    #[test]
    fn the_table_of_kernels_says_what_the_program_says() {
        let install = include_str!("../../../docs/service/install.md");
        let row = |feature: &str| {
            let mut rows = install.lines().filter(|line| line.starts_with(feature));
            let row = rows.next().expect("the table has the feature");
            row.split('|').nth(2).expect("a version").trim().to_owned()
        };
        let (serve, attach) = (row("| `floe serve`"), row("| `floe attach`"));
        let needs = |message: String, version: &str| {
            assert!(message.contains(&format!("Linux {version} or newer is needed")), "{message}");
        };
        needs(RingError::Missing("anything").to_string(), &serve);
        needs(floe_server::ublk::UblkError::Missing("anything").to_string(), &attach);
        let readme = include_str!("../../../README.md");
        let said = format!("Linux {serve} or newer for the server, {attach} for `floe attach`");
        assert!(readme.contains(&said), "README says {said}");
    }

    fn settings(folder: &Path, cache_size: &str, admin: &str) -> ServerConfig {
        let folder = folder.display();
        let text = format!(
            "cache = 'file:{folder}/cache'\ncache-size = '{cache_size}'\nadmin = '{admin}'\nlisten \
             = 'nbd+unix:///?socket={folder}/socket'\n[[volume]]\nname = 'floe'\nbacking = \
             'file:{folder}/volume,size=1MiB'\n"
        );
        ServerConfig::from_text(&text).unwrap()
    }

    #[test]
    fn a_server_that_cannot_begin_leaves_no_files_behind() {
        let folder = tempfile::tempdir().unwrap();
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().to_string();
        for settings in [
            settings(folder.path(), "1MiB", &taken),
            settings(folder.path(), "4KiB", "127.0.0.1:0"),
        ] {
            let (_stop, signals) = std::os::unix::net::UnixStream::pair().unwrap();
            assert!(prepare(&settings, ForceFlags::default(), None, signals.into()).is_err());
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
