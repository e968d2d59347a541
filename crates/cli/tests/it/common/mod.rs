//! What the tests of the program share: running `floe`, a server in a folder of its own, and other
//! people's clients.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use floe_server::status::Status;
pub(crate) use floe_testkit::assert_same;
use floe_testkit::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Every write mode, on one thread and on two; with a tier in memory besides; with a cache that
/// ends with the program; and with tiers below it that are kept or not.
pub(crate) const SETUPS: [(&str, &str); 16] = [
    ("through", "1"),
    ("through", "2"),
    ("around", "1"),
    ("around", "2"),
    ("back", "1"),
    ("back", "2"),
    ("pass", "1"),
    ("pass", "2"),
    ("through", "2 --memory 2MiB"),
    ("pass", "1 --memory 2MiB --memory-write back"),
    ("around", "2 --memory 4MiB --memory-write back"),
    ("back", "2 --memory 4MiB --memory-write back"),
    ("back", "2 --volatile"),
    ("back", "1 --volatile --memory 4MiB --memory-write back"),
    ("through", "1 --volatile --tier memory:8MiB,write=back,block-sizes=4KiB+64KiB"),
    ("back", "2 --tier memory:6MiB,write=back --tier file:FOLDER/tier.img,size=8MiB,write=back"),
];

/// Where the state of caches is noted by what runs without a folder of its own.
const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// Runs `floe` to its end.
pub(crate) fn floe(arguments: &[&str]) -> Output {
    floe_in(Path::new("."), arguments)
}

/// Runs `floe` in a folder to its end.
pub(crate) fn floe_in(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    let command = command.current_dir(folder).args(arguments).env("STATE_DIRECTORY", STATE);
    command.stdin(Stdio::null()).output().expect("floe runs")
}

/// Its standard output, after a success.
#[track_caller]
pub(crate) fn floe_ok(arguments: &[&str]) -> String {
    let output = floe(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "floe {arguments:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Waits for a program to end.
#[track_caller]
pub(crate) fn wait_for(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the end of a program", || {
        status = child.try_wait().expect("it can be waited for");
        status.is_some()
    });
    status.expect("just seen")
}

/// The path of a file as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// A volume in a folder of its own, and how to serve it.
pub(crate) struct Volume {
    folder: TempDir,
    settings: Vec<String>,
    /// What follows the paths of its devices.
    devices: &'static str,
}

impl Volume {
    /// A volume with these bytes behind a cache of 4 MiB.
    pub(crate) fn new(content: &[u8], mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("backing.img"), content).expect("a volume");
        let settings =
            ["--cache-size", "4MiB", "--block-sizes", "4KiB,16KiB,64KiB", "--write", mode];
        Self { folder, settings: settings.map(str::to_owned).into(), devices: "" }
    }

    /// The same on devices that lose what was not flushed when the server is killed.
    pub(crate) fn losing_unflushed(self) -> Self {
        Self { devices: ",write-cache=volatile", ..self }
    }

    /// The same on devices that do few operations a second.
    pub(crate) fn slow(self) -> Self {
        Self { devices: ",medium=cloud,iops=50", ..self }
    }

    /// The same with other settings besides.
    pub(crate) fn with(mut self, settings: &[&str]) -> Self {
        self.settings.extend(settings.iter().map(|&setting| setting.to_owned()));
        self
    }

    /// The same on so many threads, perhaps with settings after that.
    pub(crate) fn on(self, threads: &str) -> Self {
        let settings: Vec<&str> = ["--threads"].into_iter().chain(threads.split(' ')).collect();
        self.with(&settings)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the backing device holds.
    pub(crate) fn backing(&self) -> Vec<u8> {
        std::fs::read(self.path("backing.img")).expect("the volume can be read")
    }

    /// The command line that serves it, on a Unix socket and on TCP.
    pub(crate) fn command_line(&self) -> Vec<String> {
        let mut line = vec!["serve".to_owned()];
        for (setting, value) in [
            ("--backing", format!("file:{}{}", self.path("backing.img").display(), self.devices)),
            ("--cache", format!("file:{}{}", self.path("cache.img").display(), self.devices)),
            ("--listen", format!("nbd+unix:///?socket={}", self.path("nbd.sock").display())),
            ("--listen", "nbd://127.0.0.1:0".to_owned()),
            ("--admin", format!("unix:{}", self.path("admin.sock").display())),
        ] {
            line.extend([setting.to_owned(), value]);
        }
        // Tiers have files beside the others.
        let folder = self.folder.path().display().to_string();
        line.extend(self.settings.iter().map(|setting| setting.replace("FOLDER", &folder)));
        line
    }

    /// Serves it until the server is ended or dropped.
    pub(crate) fn serve(&self) -> Server {
        let line = self.command_line();
        Server::run(&line.iter().map(String::as_str).collect::<Vec<_>>(), self.path("floe.log"))
    }
}

/// The first of the admin addresses in the log.
fn first_of(addresses: &str) -> &str {
    addresses.trim().split(',').next().expect("there is a first part")
}

/// The admin interface's answer to a program that speaks HTTP: head and body.
pub(crate) fn http(admin: &str, request: &str) -> (String, String) {
    let mut answer = String::new();
    let talked = match admin.strip_prefix("unix:") {
        Some(path) => {
            UnixStream::connect(path).and_then(|stream| talk(stream, request, &mut answer))
        }
        None => TcpStream::connect(admin).and_then(|stream| talk(stream, request, &mut answer)),
    };
    talked.expect("the server answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

fn talk(
    mut stream: impl Read + Write,
    request: &str,
    answer: &mut String,
) -> std::io::Result<usize> {
    stream.write_all(request.as_bytes())?;
    stream.read_to_string(answer)
}

/// A running `floe serve`, killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// URI of the volume on a Unix socket.
    pub(crate) unix: String,
    /// URI of the volume on TCP.
    pub(crate) tcp: String,
    /// Address and name of the subsystem for NVMe hosts, if the command line asks for one.
    pub(crate) nvme: String,
    /// Where it can be asked about itself: the first address, if there are several.
    pub(crate) admin: String,
    log: PathBuf,
}

impl Server {
    /// Runs `floe serve` with this command line, which makes it listen on a Unix socket first and
    /// then on TCP, or for NVMe hosts only.
    pub(crate) fn run(line: &[&str], log: PathBuf) -> Self {
        Self::attempt(line, log).unwrap_or_else(|log| panic!("no URI from floe serve: {log}"))
    }

    /// The same, or what it wrote to standard error before it ended by itself.
    pub(crate) fn attempt(line: &[&str], log: PathBuf) -> Result<Self, String> {
        Self::begin(Command::new(env!("CARGO_BIN_EXE_floe")).args(line), log)
    }

    /// The same by another command, which becomes `floe serve`.
    pub(crate) fn spawn(command: &mut Command, log: PathBuf) -> Self {
        Self::begin(command, log).unwrap_or_else(|log| panic!("no URI from floe serve: {log}"))
    }

    fn begin(command: &mut Command, log: PathBuf) -> Result<Self, String> {
        let state = log.parent().expect("it is in a folder").join("state");
        let has = |scheme: &str| {
            let mut words = command.get_args().filter_map(std::ffi::OsStr::to_str);
            words.any(|word| word.starts_with(scheme))
        };
        let has_nvme = has("nvme-tcp:");
        let has_nbd = !has_nvme || has("nbd");
        let mut child = command
            .env_remove("FLOE_LOG")
            .env("STATE_DIRECTORY", state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a log"))
            .spawn()
            .expect("floe runs");
        let mut ready = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let [unix, tcp, nvme, admin] = [const { String::new() }; 4];
        let mut server = Self { child, unix, tcp, nvme, admin, log };
        let mut next = || ready.next().map(|line| line.expect("output is UTF-8")).ok_or(());
        let mut addresses = Vec::new();
        for _ in 0..2 * usize::from(has_nbd) + usize::from(has_nvme) {
            let Ok(address) = next() else {
                wait_for(&mut server.child);
                return Err(server.log());
            };
            addresses.push(address);
        }
        server.nvme = if has_nvme { addresses.pop().expect("it was read") } else { String::new() };
        if let [unix, tcp] = &addresses[..] {
            (server.unix, server.tcp) = (unix.clone(), tcp.clone());
        }
        wait_until("the admin address in the log", || {
            let log = server.log();
            let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let address = whole.filter_map(|line| line.split_once("admin=")).next();
            server.admin =
                address.map_or(String::new(), |(_, addresses)| first_of(addresses).to_owned());
            !server.admin.is_empty()
        });
        Ok(server)
    }

    /// What it wrote to standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log can be read")
    }

    /// What `floe status --json` says.
    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        let text = floe_ok(&["status", "--json", "--admin", &self.admin]);
        assert_eq!(text.lines().count(), 1, "one object on one line: {text}");
        serde_json::from_str(&text).expect("the status is JSON")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGTERM and expects it to end well.
    #[track_caller]
    pub(crate) fn end(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it is there");
        self.has_ended_well();
    }

    /// The same, once everything is on the backing device.
    #[track_caller]
    pub(crate) fn drain_and_end(self) {
        floe_ok(&["flush", "--admin", &self.admin]);
        self.end();
    }

    /// Kills it, as kill -9 does, and waits until the kernel has taken down all that it had.
    #[track_caller]
    pub(crate) fn kill(self, volume: &Volume) {
        drop(self);
        let is_free = |name| {
            let file = File::open(volume.path(name)).expect("the file is there");
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        let is_silent = || UnixStream::connect(volume.path("nbd.sock")).is_err();
        wait_until("its end", || is_free("cache.img") && is_free("backing.img") && is_silent());
    }

    /// Waits until it has ended by itself; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        wait_for(&mut self.child).code()
    }

    /// Waits until it has ended by itself, and well.
    #[track_caller]
    pub(crate) fn has_ended_well(&mut self) {
        let status = wait_for(&mut self.child);
        assert!(status.success(), "floe serve: {status}: {}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
