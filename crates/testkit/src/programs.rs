//! External programs and files that tests use and that a machine may lack.

use std::env::{split_paths, var_os};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait_until;

/// Prints on standard error that a test is skipped, and the reason.
pub fn skipped(reason: &str) {
    // Not eprintln: the test harness would swallow it.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// Returns the folder of real traces that `FLOE_TRACES` names. Without one, prints that the test is
/// skipped.
pub fn traces_folder() -> Option<PathBuf> {
    let folder = var_os("FLOE_TRACES").map(PathBuf::from);
    if folder.is_none() {
        skipped("FLOE_TRACES names no folder with traces");
    }
    folder
}

/// Returns whether programs (or files, given by path) exist. If one is missing, prints that the
/// test is skipped.
///
/// # Panics
///
/// Panics where one is missing and must not be: in CI, and under `make test`.
#[track_caller]
pub fn is_installed(programs: &[&str]) -> bool {
    let paths = var_os("PATH").unwrap_or_default();
    let folders = || split_paths(&paths).chain(["/usr/sbin".into(), "/sbin".into()]);
    let is_there = |program: &&str| folders().any(|folder| folder.join(program).is_file());
    let Some(missing) = programs.iter().find(|program| !is_there(program)) else { return true };
    let is_required = ["CI", "FLOE_REQUIRE_CLIENTS"].iter().any(|name| var_os(name).is_some());
    assert!(!is_required, "{missing} is not installed; make test installs it");
    skipped(&format!("{missing} is not installed"));
    false
}

/// Runs a program in an empty folder until it exits successfully, and returns its output.
///
/// # Panics
///
/// Panics where the program is missing or fails.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(program);
    let output = command.current_dir(&folder).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{program} {arguments:?}: {status}\n{text}\n{errors}");
    text
}

/// A Ceph cluster for tests. It stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Ceph {
    folder: PathBuf,
    script: Child,
}

impl Ceph {
    /// Starts a cluster with an empty pool `rbd`. Prints that the test is skipped, and returns
    /// `None`, where Ceph is missing.
    ///
    /// # Panics
    /// When the cluster does not start.
    #[track_caller]
    pub fn start() -> Option<Ceph> {
        Self::start_on("memstore")
    }

    /// Starts a cluster with an empty pool `rbd` whose data is in a sparse file of 16 GiB, as on a
    /// disk. Prints that the test is skipped, and returns `None`, where Ceph is missing.
    ///
    /// # Panics
    /// When the cluster does not start.
    #[track_caller]
    pub fn start_on_disk() -> Option<Ceph> {
        Self::start_on("bluestore")
    }

    #[track_caller]
    fn start_on(store: &str) -> Option<Ceph> {
        if !is_installed(&["ceph-mon", "ceph-osd", "rbd"]) {
            return None;
        }
        let parent = tempfile::tempdir().expect("a folder").keep();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph");
        let mut command = Command::new(script);
        let command = command.arg(parent.join("ceph")).arg(store);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn().expect("scripts/ceph starts");
        let mut line = String::new();
        let output = script.stdout.take().expect("it has an output");
        BufReader::new(output).read_line(&mut line).expect("it prints");
        assert_eq!(line, "ready\n", "the cluster does not start");
        Some(Ceph { folder: parent.join("ceph"), script })
    }

    /// Returns the path of the cluster's configuration file.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Runs `rbd` with these arguments and returns its output.
    ///
    /// # Panics
    /// When the command fails.
    #[track_caller]
    pub fn rbd(&self, arguments: &[&str]) -> String {
        let conf = self.conf();
        let mut all = vec!["60", "rbd", "--conf", conf.to_str().expect("a path of UTF-8")];
        all.extend(arguments);
        run("timeout", &all)
    }

    /// Makes the cluster consider itself full, or no longer, by a change of its full ratios. The
    /// change takes effect after some seconds, and only if the cluster holds at least 64 KiB.
    ///
    /// # Panics
    /// When the ratios cannot be set.
    #[track_caller]
    pub fn set_full(&self, full: bool) {
        let conf = self.conf();
        let conf = conf.to_str().expect("a path of UTF-8");
        let shares = if full { ["0.00001"; 3] } else { ["0.85", "0.9", "0.95"] };
        let ratios = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        for (ratio, share) in ratios.iter().zip(shares) {
            let line = ["60", "ceph", "--conf", conf, "osd", ratio, share];
            run("timeout", &line);
        }
    }

    /// Creates an image of `bytes` bytes in the pool `rbd` and returns its specification, as
    /// [`Ceph::spec`] does.
    ///
    /// # Panics
    /// When the image cannot be created.
    #[track_caller]
    pub fn image(&self, name: &str, bytes: u64) -> String {
        self.rbd(&["create", "--size", &format!("{bytes}B"), &format!("rbd/{name}")]);
        self.spec(name)
    }

    /// Returns the specification by which Floe opens an image of the pool `rbd`, or a snapshot of
    /// one.
    pub fn spec(&self, name: &str) -> String {
        format!("rbd:rbd/{name},conf={}", self.conf().display())
    }

    /// Stops the process that stores the data (SIGSTOP). Returns once all its threads have stopped.
    ///
    /// # Panics
    /// When there is no such process.
    #[track_caller]
    pub fn pause(&self) {
        kill_process(self.osd(), Signal::STOP).expect("it is there");
        let tasks = format!("/proc/{}/task", self.osd().as_raw_pid());
        wait_until("all threads stand still", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("it is there").flatten();
            tasks.all(|task| is_stopped(&task.path().join("stat")))
        });
    }

    /// Continues the process that stores the data after [`Ceph::pause`].
    ///
    /// # Panics
    /// When there is no such process.
    #[track_caller]
    pub fn go_on(&self) {
        kill_process(self.osd(), Signal::CONT).expect("it is there");
    }

    #[track_caller]
    fn osd(&self) -> Pid {
        let number = std::fs::read_to_string(self.folder.join("osd.pid")).expect("it has a number");
        number.trim().parse().ok().and_then(Pid::from_raw).expect("a number")
    }
}

/// Returns whether a thread is stopped or gone, according to its `stat` file in `/proc`.
fn is_stopped(stat: &Path) -> bool {
    let Ok(line) = std::fs::read_to_string(stat) else { return true };
    line.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

impl Drop for Ceph {
    fn drop(&mut self) {
        drop(self.script.stdin.take()); // its input ends
        let _ = self.script.wait();
        let _ = self.folder.parent().map(std::fs::remove_dir);
    }
}

/// The name of the bucket.
const BUCKET: &str = "bucket";

/// The identity of the only user, and the secret key.
const USER: [&str; 2] = ["floe", "secret-of-floe"];

/// A server of one bucket. It ends when this is dropped.
#[derive(Debug)]
pub struct BucketServer {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl BucketServer {
    /// Starts a server with an empty bucket below `folder`. Prints that the test is skipped, and
    /// returns `None`, where versitygw is missing.
    ///
    /// # Panics
    /// When the server does not start.
    #[track_caller]
    pub fn start(folder: &Path) -> Option<BucketServer> {
        let paths = var_os("PATH").unwrap_or_default();
        let home = PathBuf::from(var_os("HOME").unwrap_or_default());
        // scripts/require puts it beside what Cargo builds: target/debug/deps/it-…
        let own = std::env::current_exe().unwrap_or_default();
        let tools = own.ancestors().nth(3).map(|target| target.join("tools/bin"));
        let mut folders = split_paths(&paths).chain([home.join("go/bin")]).chain(tools);
        let Some(program) = folders
            .find_map(|folder| Some(folder.join("versitygw")).filter(|program| program.is_file()))
        else {
            skipped("versitygw is missing: with Go, scripts/require s3 builds it");
            return None;
        };
        std::fs::create_dir_all(folder.join(BUCKET)).expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("there is a free port").port();
        let mut command = Command::new("setpriv"); // it ends with the test that began it
        let command = command.args(["--pdeathsig", "KILL"]).arg(&program);
        let command = command.args(["--port", &format!("127.0.0.1:{port}"), "--quiet"]);
        let command = command.args(["--access", USER[0], "--secret", USER[1], "posix"]).arg(folder);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        wait_until("the S3 server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(BucketServer { child, folder: folder.to_owned(), port })
    }

    /// Returns the specification of a volume in the bucket, without a size.
    pub fn spec(&self, volume: &str) -> String {
        format!("s3://{BUCKET}/{volume},endpoint=http://127.0.0.1:{}", self.port)
    }

    /// Returns the environment with the credentials.
    pub fn environment(&self) -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", USER[0]), ("AWS_SECRET_ACCESS_KEY", USER[1])]
    }

    /// Stops the server (SIGSTOP): requests wait.
    ///
    /// # Panics
    /// When it has ended.
    pub fn pause(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it is there");
    }

    /// Continues the server after [`BucketServer::pause`].
    ///
    /// # Panics
    /// When it has ended.
    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it is there");
    }

    /// Returns the content of a volume of `bytes` bytes, by its objects.
    ///
    /// # Panics
    /// When an object cannot be read.
    pub fn content(&self, volume: &str, object_bytes: usize, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        let folder = self.folder.join(BUCKET).join(volume).join("data");
        for (number, part) in content.chunks_mut(object_bytes).enumerate() {
            match std::fs::read(folder.join(format!("{number:016x}"))) {
                Ok(object) => part.copy_from_slice(&object),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
            }
        }
        content
    }
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Creates a folder with certificates for a server on localhost and for a client, both signed by
/// one authority.
#[cfg(feature = "certificates")]
pub fn certificates() -> tempfile::TempDir {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    let folder = tempfile::tempdir().unwrap();
    let keep = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate for its own issuer if both have one name.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    keep("ca-cert.pem", authority.pem());
    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        keep(&format!("{who}-cert.pem"), certificate.pem());
        keep(&format!("{who}-key.pem"), key.serialize_pem());
    }
    folder
}
