//! The rights to administer a running server, and the signals that an operator sends it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Server, Volume, floe, floe_ok, http, text, wait_for};
use floe_testkit::{is_installed, pattern, skipped, wait_until};
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;

/// The user and the group that own nothing.
const NOBODY: u32 = 65534;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Another user can be had by root only.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("only root can act as another user");
    }
    is_root
}

/// Runs `floe` as a user without any rights.
fn floe_as_nobody(folder: &Path, arguments: &[&str]) -> Output {
    // The program may be where only its owner can go.
    let program = folder.join("floe");
    if !program.exists() {
        let whole = env!("CARGO_BIN_EXE_floe");
        std::fs::hard_link(whole, &program)
            .or_else(|_| std::fs::copy(whole, &program).map(drop))
            .expect("a copy");
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))
            .expect("a folder for all");
    }
    let mut command = Command::new(program);
    let output = command.uid(NOBODY).gid(NOBODY).args(arguments).stdin(Stdio::null()).output();
    output.expect("floe runs")
}

#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
}

fn token_file(volume: &Volume, secret: &str) -> String {
    let file = volume.path("token");
    std::fs::write(&file, secret).expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("its mode");
    text(&file).to_owned()
}

/// The server's address on TCP, which follows that of its socket in the log.
fn tcp_of(server: &Server) -> String {
    let log = server.log();
    let (_, addresses) = log.split_once("admin=").expect("it serves");
    let addresses = addresses.lines().next().expect("a line").trim();
    addresses.split(',').next_back().expect("an address").to_owned()
}

#[test]
fn another_user_cannot_open_the_admin_socket() {
    if !is_root() {
        return;
    }
    let volume = Volume::new(&pattern(1, MIB), "through");
    let server = volume.serve();
    let folder = volume.path("nbd.sock");
    let folder = folder.parent().expect("a folder");
    for command in ["status", "flush", "stop"] {
        let output = floe_as_nobody(folder, &[command, "--admin", &server.admin]);
        refused(&output, 1, &["admin.sock", "this user may not use"]);
    }
    floe_ok(&["flush", "--admin", &server.admin]);
    server.end();
}

#[test]
fn a_group_can_be_let_in_and_is_kept_to_the_folders_of_what_is_served() {
    if !is_root() {
        return;
    }
    let volume =
        Volume::new(&pattern(2, MIB), "through").with(&["--admin-group", &NOBODY.to_string()]);
    let server = volume.serve();
    let socket = volume.path("admin.sock");
    let file = std::fs::metadata(&socket).expect("the socket");
    assert_eq!((file.mode() & 0o777, file.gid()), (0o660, NOBODY));
    let folder = socket.parent().expect("a folder");
    let floe = |arguments: &[&str]| {
        floe_as_nobody(folder, &[arguments, &["--admin", &server.admin]].concat())
    };
    assert!(floe(&["flush"]).status.success());
    let elsewhere = tempfile::tempdir().expect("a folder");
    let outside = elsewhere.path().join("new");
    let spec = format!("file:{},size=1MiB", outside.display());
    refused(&floe(&["volume", "add", "new", &spec]), 2, &["admin-paths", text(&outside)]);
    refused(&floe(&["tier", "add", &spec]), 2, &["admin-paths", text(&outside)]);
    let told = format!("memory:1MiB,admit=obp,calibration={}", outside.display());
    refused(&floe(&["tier", "add", &told]), 2, &["admin-paths", text(&outside)]);
    assert!(!outside.exists());
    refused(&floe(&["volume", "add", "new", "rbd:rbd/new"]), 2, &["admin-paths", "rbd:rbd/new"]);
    symlink(elsewhere.path(), volume.path("link")).expect("a link");
    let spec = format!("file:{},size=1MiB", volume.path("link/new").display());
    refused(&floe(&["volume", "add", "new", &spec]), 2, &["admin-paths", text(&outside)]);
    refused(&floe(&["tier", "add", &spec]), 2, &["admin-paths", text(&outside)]);
    assert!(!outside.exists());
    let spec = format!("file:{},size=1MiB", volume.path("new").display());
    assert!(floe(&["volume", "add", "new", &spec]).status.success());
    server.end();
}

#[test]
fn over_tcp_changes_need_the_token() {
    let volume = Volume::new(&pattern(3, MIB), "back");
    let file = token_file(&volume, SECRET);
    let volume = volume.with(&["--admin", "127.0.0.1:0", "--admin-token-file", &file]);
    let server = volume.serve();
    let tcp = tcp_of(&server);
    floe_ok(&["status", "--admin", &tcp]);
    let (head, _) = http(&tcp, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    refused(&floe(&["flush", "--admin", &tcp]), 2, &["--admin-token-file"]);
    floe_ok(&["flush", "--admin", &tcp, "--admin-token-file", &file]);
    let wrong = volume.path("wrong");
    std::fs::write(&wrong, "not 0123456789abcdef".replace(' ', "-")).expect("a file");
    std::fs::set_permissions(&wrong, PermissionsExt::from_mode(0o644)).expect("its mode");
    let flush = || floe(&["flush", "--admin", &tcp, "--admin-token-file", text(&wrong)]);
    refused(&flush(), 2, &["other users can use it"]);
    std::fs::set_permissions(&wrong, PermissionsExt::from_mode(0o600)).expect("its mode");
    refused(&flush(), 2, &["wrong admin token"]);
    let foreign = format!(
        "POST /stop HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {SECRET}\r\n\r\n"
    );
    assert!(http(&tcp, &foreign).0.starts_with("HTTP/1.1 403 "));
    assert!(!server.log().contains(" WARN "), "{}", server.log());
    server.end();
}

#[test]
fn an_address_on_tcp_alone_only_tells_and_the_log_says_so_once() {
    let volume = Volume::new(&pattern(4, MIB), "through");
    let mut line = volume.command_line();
    let at = line.iter().position(|word| word == "--admin").expect("it is given");
    line[at + 1] = "127.0.0.1:0".into();
    line.extend(["--admin".to_owned(), "none".to_owned()]);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let server = Server::run(&line, volume.path("floe.log"));
    assert!(!server.admin.starts_with("unix:"), "{}", server.admin);
    let log = server.log();
    let warned = |line: &&str| line.contains("WARN") && line.contains("admin-token-file");
    assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
    floe_ok(&["status", "--admin", &server.admin]);
    refused(
        &floe(&["stop", "--admin", &server.admin]),
        2,
        &["over TCP this server allows no changes"],
    );
    server.end();
}

#[test]
fn server_and_clients_find_the_socket_that_a_service_has() {
    let volume = Volume::new(&pattern(5, MIB), "through");
    let mut line = volume.command_line();
    let at = line.iter().position(|word| word == "--admin").expect("it is given");
    line.drain(at..at + 2);
    let run = volume.path("run");
    let floe = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.env("RUNTIME_DIRECTORY", &run).env("STATE_DIRECTORY", volume.path("state"));
        command.stdin(Stdio::null());
        command
    };
    let mut server =
        floe().args(&line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("floe runs");
    let mut ready = BufReader::new(server.stdout.take().expect("it is piped")).lines();
    ready.next().expect("a URI").expect("text");
    let answered = |command: &str| floe().arg(command).output().expect("floe runs");
    wait_until("an answer on the socket", || answered("status").status.success());
    assert_eq!(
        std::fs::metadata(run.join("admin.sock")).expect("the socket").mode() & 0o777,
        0o600
    );
    if is_installed(&["curl"]) {
        let socket = run.join("admin.sock");
        let said = floe_testkit::run(
            "curl",
            &["--silent", "--unix-socket", text(&socket), "http://localhost/healthz"],
        );
        assert_eq!(said.trim(), "ok");
    }
    assert!(answered("stop").status.success());
    assert!(wait_for(&mut server).success());
    assert!(!run.join("admin.sock").exists());
    // The error names this socket, or what another server has left in the default place.
    refused(&answered("status"), 1, &["/admin.sock", "is it running"]);
}

#[test]
fn a_socket_that_is_not_ours_to_take_is_named_in_a_line() {
    let volume = Volume::new(&pattern(6, MIB), "through");
    let server = volume.serve();
    let other = Volume::new(&pattern(6, MIB), "through");
    let serve = |name: &str, path: &Path| {
        let line = other.command_line().into_iter().map(|word| match word.strip_suffix(name) {
            Some(_) if word.contains("socket=") => {
                format!("nbd+unix:///?socket={}", path.display())
            }
            Some(_) => format!("unix:{}", path.display()),
            None => word,
        });
        let line: Vec<String> = line.collect();
        floe(&line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for name in ["admin.sock", "nbd.sock"] {
        let taken = volume.path(name);
        refused(&serve(name, &taken), 2, &["another program serves", text(&taken)]);
        let file = volume.path("backing.img");
        refused(&serve(name, &file), 2, &["is not a socket", text(&file)]);
        if rustix::process::geteuid().is_root() {
            let stale = other.path("stale");
            drop(UnixListener::bind(&stale).expect("a socket"));
            std::os::unix::fs::chown(&stale, Some(NOBODY), None).expect("it is given away");
            refused(
                &serve(name, &stale),
                2,
                &["stale socket of another user (uid 65534)", text(&stale)],
            );
            std::fs::remove_file(&stale).expect("it was left alone");
        }
    }
    floe_ok(&["flush", "--admin", &server.admin]);
    server.kill(&volume);
    let server = volume.serve(); // over the sockets that were left
    floe_ok(&["flush", "--admin", &server.admin]);
    server.end();
}

#[test]
fn settings_of_the_admin_interface_that_make_no_sense_are_refused() {
    let volume = Volume::new(&pattern(7, MIB), "through");
    let serve = |more: &[&str]| {
        let line = volume.command_line();
        floe(&line.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    refused(&serve(&["--admin", "nowhere"]), 2, &["admin", "nowhere", "unix:PATH", "HOST:PORT"]);
    refused(&serve(&["--admin-group", "no such group"]), 2, &["admin-group", "no such group"]);
    refused(
        &serve(&["--admin-token-file", "x"]),
        2,
        &["admin-token-file applies to admin = HOST:PORT"],
    );
    refused(&serve(&["--admin-hosts", "x"]), 2, &["admin-hosts applies to admin = HOST:PORT"]);
    let tcp = ["--admin", "127.0.0.1:0"];
    refused(
        &serve(&[&tcp[..], &["--admin-token-file", "/no/file"]].concat()),
        2,
        &["admin-token-file", "/no/file"],
    );
    refused(&serve(&["--admin", "0.0.0.0:0"]), 2, &["0.0.0.0:0", "--insecure"]);
    let deep = volume.path(&"d".repeat(120));
    refused(&serve(&["--admin", text(&deep)]), 2, &["cannot listen on admin address", text(&deep)]);
}

/// Someone else's lease on a file: whoever opens it waits until it is given back.
struct Lease {
    holder: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Lease {
    fn on(file: &Path) -> Self {
        const HOLD: &str = "import fcntl, os, signal, sys\n\
            signal.signal(signal.SIGIO, lambda *_: os.write(1, b'asked\\n'))\n\
            file = os.open(sys.argv[1], os.O_RDWR)\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            os.write(1, b'held\\n')\n\
            sys.stdin.read()\n\
            os.close(file)\n";
        let mut holder = Command::new("python3")
            .args(["-c", HOLD, text(file)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let said = BufReader::new(holder.stdout.take().expect("it is piped")).lines();
        let mut lease = Self { holder, said };
        lease.says("held");
        lease
    }

    #[track_caller]
    fn says(&mut self, word: &str) {
        assert_eq!(self.said.next().expect("a line").expect("text"), word);
    }

    fn give_back(mut self) {
        drop(self.holder.stdin.take());
        wait_for(&mut self.holder);
    }
}

/// The time until the kernel takes a lease away, in seconds: far longer than all that is done
/// meanwhile.
const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

#[test]
fn a_device_that_takes_its_time_to_open_delays_nobody() {
    if !is_installed(&["python3"]) || !Path::new(LEASE_BREAK_TIME).exists() {
        return;
    }
    for ends in [false, true] {
        let volume = Volume::new(&pattern(8, MIB), "back");
        let slow = volume.path("slow.img");
        std::fs::write(&slow, pattern(9, MIB)).expect("a file");
        let server = volume.serve();
        let mut lease = Lease::on(&slow);
        let add =
            ["volume", "add", "slow", &format!("file:{}", text(&slow)), "--admin", &server.admin];
        let mut adding = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(add)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("floe runs");
        lease.says("asked"); // by the server, which waits
        let client =
            || floe_server::nbd_client::Client::connect(&server.unix.parse().expect("a URI"));
        let mut client = client().expect("clients are taken on");
        client.write(0, &pattern(10, 4096), false).expect("a write");
        client.read(0, &mut [0; 4096]).expect("a read");
        drop(client);
        assert_eq!(http(&server.admin, "GET /healthz HTTP/1.1\r\n\r\n").1, "ok\n");
        assert!(
            http(&server.admin, "GET /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 200 ")
        );
        floe_ok(&["flush", "--admin", &server.admin]);
        let other = format!("file:{}", text(&volume.path("other.img")));
        let busy = floe(&[
            "volume",
            "add",
            "other",
            &format!("{other},size=1MiB"),
            "--admin",
            &server.admin,
        ]);
        refused(&busy, 2, &["try again when that is done"]);
        assert!(adding.try_wait().expect("it is there").is_none(), "nobody has waited for it");
        if ends {
            server.end();
            let output = adding.wait_with_output().expect("it ends");
            refused(&output, 1, &["the server is ending"]);
            lease.give_back();
        } else {
            lease.give_back();
            assert!(wait_for(&mut adding).success());
            assert!(floe_ok(&["volume", "list", "--admin", &server.admin]).contains("slow"));
            server.end();
        }
    }
}

#[test]
fn sighup_has_the_token_read_again_and_ends_nothing() {
    let volume = Volume::new(&pattern(11, MIB), "back");
    let file = token_file(&volume, SECRET);
    let volume = volume.with(&["--admin", "127.0.0.1:0", "--admin-token-file", &file]);
    let server = volume.serve();
    let tcp = tcp_of(&server);
    let mut client = floe_server::nbd_client::Client::connect(&server.unix.parse().expect("a URI"))
        .expect("a client");
    client.write(0, &pattern(12, 4096), false).expect("a write");
    let flush = || floe(&["flush", "--admin", &tcp, "--admin-token-file", &file]);
    assert!(flush().status.success());
    token_file(&volume, "fedcba9876543210");
    refused(&flush(), 2, &["wrong admin token"]);
    let hang_up = || {
        let pid = Pid::from_raw(server.pid() as i32).expect("a process");
        kill_process(pid, Signal::HUP).expect("it is there");
    };
    hang_up();
    wait_until("the token to be read", || server.log().contains("admin token read again"));
    assert!(flush().status.success());
    token_file(&volume, "short");
    hang_up();
    wait_until("the complaint", || server.log().contains("admin token could not be read again"));
    token_file(&volume, "fedcba9876543210");
    assert!(flush().status.success(), "the old one still counts");
    client.read(0, &mut [0; 4096]).expect("the client is served all the time");
    drop(client);
    server.end();
}

#[test]
fn sighup_without_anything_to_read_ends_nothing_either() {
    let volume = Volume::new(&pattern(13, MIB), "back");
    let server = volume.serve();
    kill_process(Pid::from_raw(server.pid() as i32).expect("a process"), Signal::HUP)
        .expect("it is there");
    wait_until("a word about it", || server.log().contains("nothing to read again"));
    floe_ok(&["flush", "--admin", &server.admin]);
    server.end();
}

#[test]
fn a_terminal_that_is_closed_ends_its_server_in_good_order() {
    if !is_installed(&["python3"]) {
        return;
    }
    // A pseudo-terminal with the server on it, whose other side is then closed.
    const ON_A_TERMINAL: &str = "import os, pty, sys\n\
        pid, terminal = pty.fork()\n\
        if pid == 0: os.execv(sys.argv[1], sys.argv[1:])\n\
        said = b''\n\
        while b'serving' not in said: said += os.read(terminal, 4096)\n\
        os.close(terminal)\n\
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n";
    let volume = Volume::new(&pattern(14, MIB), "back");
    let mut child = Command::new("python3")
        .args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_floe")])
        .args(volume.command_line())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("python3 runs");
    assert!(wait_for(&mut child).success());
    assert!(!volume.path("admin.sock").exists(), "it has ended in good order");
}

/// `floe serve` of a volume with another admin address than those of [`Volume::command_line`], and
/// a folder in which its default socket is.
fn served_with_admin(volume: &Volume, admin: &[&str]) -> Server {
    let mut line = volume.command_line();
    let at = line.iter().position(|word| word == "--admin").expect("it has one");
    line.splice(at..at + 2, admin.iter().map(|word| (*word).to_owned()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(line).env("RUNTIME_DIRECTORY", text(&volume.path("")));
    Server::spawn(&mut command, volume.path("floe.log"))
}

/// Runs `floe` where the default socket is that of a volume's server.
fn floe_beside(volume: &Volume, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    let command = command.args(arguments).env("RUNTIME_DIRECTORY", text(&volume.path("")));
    command.stdin(Stdio::null()).output().expect("floe runs")
}

#[test]
fn an_address_comes_beside_the_default_socket_unless_there_shall_be_none() {
    let volume = Volume::new(&pattern(9, MIB), "back");
    let mut server = served_with_admin(&volume, &["--admin", "127.0.0.1:0"]);
    assert!(server.admin.starts_with("127.0.0.1:"), "{}", server.admin);
    for command in [&["status"][..], &["status", "--json"], &["flush"], &["volume", "list"]] {
        let output = floe_beside(&volume, command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "floe {command:?}: {said}");
    }
    // A second server with the same default socket does without, and says so.
    let second = Volume::new(&pattern(10, MIB), "through");
    let mut line = second.command_line();
    let at = line.iter().position(|word| word == "--admin").expect("it has one");
    line[at + 1] = "127.0.0.1:0".to_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(line).env("RUNTIME_DIRECTORY", text(&volume.path("")));
    let other = Server::spawn(&mut command, second.path("floe.log"));
    assert!(other.log().contains("another program serves"), "{}", other.log());
    other.end();
    assert!(floe_beside(&volume, &["stop"]).status.success());
    server.has_ended_well();
    assert!(!volume.path("admin.sock").exists());

    let server = served_with_admin(&volume, &["--admin", "127.0.0.1:0", "--admin", "none"]);
    assert!(!volume.path("admin.sock").exists());
    let output = floe_beside(&volume, &["status", "--admin", &server.admin]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.end();
    let elsewhere = format!("unix:{}", volume.path("other.sock").display());
    let server = served_with_admin(&volume, &["--admin", "127.0.0.1:0", "--admin", &elsewhere]);
    assert!(!volume.path("admin.sock").exists() && volume.path("other.sock").exists());
    server.end();
}

#[test]
fn files_that_floe_makes_are_for_its_user_only() {
    let volume = Volume::new(&pattern(11, MIB), "back");
    let server = volume.serve();
    let mode = |path: &Path| path.metadata().expect("it is there").mode() & 0o777;
    assert_eq!(mode(&volume.path("cache.img")), 0o600);
    assert_eq!(mode(&volume.path("state")), 0o700);
    for file in std::fs::read_dir(volume.path("state")).expect("a folder") {
        let path = file.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    assert_eq!(mode(&volume.path("admin.sock")), 0o600);
    let new = format!("file:{},size=1MiB", volume.path("new.img").display());
    let tier = format!("file:{},size=8MiB", volume.path("tier.img").display());
    floe_ok(&["volume", "add", "new", &new, "--admin", &server.admin]);
    floe_ok(&["tier", "add", &tier, "--admin", &server.admin]);
    assert_eq!((mode(&volume.path("new.img")), mode(&volume.path("tier.img"))), (0o600, 0o600));
    floe_ok(&["tier", "remove", "1", "--admin", &server.admin]);
    server.end();
    // A file that is there keeps what its owner has given it.
    std::fs::set_permissions(volume.path("cache.img"), PermissionsExt::from_mode(0o640))
        .expect("its mode");
    let line = volume.with(&["--initialise", "--discard-dirty"]);
    line.serve().end();
    assert_eq!(mode(&line.path("cache.img")), 0o640);
}

#[test]
fn an_upgrade_goes_on_with_the_new_program_or_says_why_that_has_ended() {
    let volume = Volume::new(&pattern(12, MIB), "back");
    let mut server = volume.serve();
    let admin = server.admin.clone();
    floe_ok(&["upgrade", "--admin", &admin]);
    assert_eq!(server.status().volumes.len(), 1);
    // Nothing is wrong with the settings, which are checked before.
    std::fs::rename(volume.path("backing.img"), volume.path("away.img")).expect("it is there");
    let output = floe(&["upgrade", "--admin", &admin]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in ["the new program has ended", "backing:", "backing.img", "No such file"] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    assert_eq!(server.ended(), Some(2));
    std::fs::rename(volume.path("away.img"), volume.path("backing.img")).expect("it is there");
    volume.serve().end();
}

#[test]
fn an_upgrade_does_not_repeat_a_permission_to_lose_data() {
    let volume = Volume::new(&pattern(12, MIB), "back");
    volume.serve().end();
    let once = volume.with(&["--initialise", "--discard-dirty", "--flush-interval", "1h"]);
    let server = once.serve();
    let connect = || {
        let uri = server.unix.parse().expect("a URI");
        floe_server::nbd_client::Client::connect(&uri).expect("a client")
    };
    connect().write(4096, &pattern(3, 8192), true).expect("a write");
    floe_ok(&["upgrade", "--admin", &server.admin]);
    let mut found = vec![0; 8192];
    connect().read(4096, &mut found).expect("a read");
    assert_eq!(found, pattern(3, 8192));
    server.end();
}

#[test]
fn an_upgrade_is_refused_while_volumes_or_tiers_are_in_no_settings() {
    let volume = Volume::new(&pattern(12, MIB), "back");
    let server = volume.serve();
    let admin = ["--admin", &server.admin];
    let call = |words: &[&str]| floe(&[words, &admin].concat());
    let tier = format!("file:{},size=8MiB,write=back", volume.path("tier.img").display());
    for (add, remove, word) in [
        (
            ["volume", "add", "extra", "memory:1MiB"].as_slice(),
            ["volume", "remove", "extra"],
            "extra",
        ),
        (&["tier", "add", &tier], ["tier", "remove", "1"], "tier.img"),
    ] {
        assert!(call(add).status.success());
        let words = ["the new program is not taken", "its settings lack", word];
        refused(&call(&["upgrade"]), 1, &words);
        assert!(call(&remove).status.success(), "it serves on");
    }
    assert!(call(&["upgrade"]).status.success());
    server.end();
}

#[test]
fn a_server_that_was_told_to_stop_has_closed_its_cache_when_the_command_ends() {
    let volume = Volume::new(&pattern(12, MIB), "back").slow();
    let mut server = volume.serve();
    floe_ok(&["stop", "--admin", &server.admin]);
    let cache = || std::fs::read(volume.path("cache.img")).expect("it is there");
    let copy = cache();
    assert_eq!(server.ended(), Some(0));
    assert!(copy == cache(), "the cache was written after the command");
}

#[test]
fn names_of_volumes_are_one_line() {
    let volume = Volume::new(&pattern(12, MIB), "through");
    let server = volume.serve();
    for name in ["two\nlines", "\u{1b}[31mred"] {
        let added = floe(&["volume", "add", name, "memory:1MiB", "--admin", &server.admin]);
        refused(&added, 2, &["its name contains a control character"]);
    }
    server.end();
    let line = volume.with(&["--volume", "a\tb"]).command_line();
    let start = floe(&line.iter().map(String::as_str).collect::<Vec<_>>());
    refused(&start, 2, &["name \"a\\tb\" contains a control character"]);
}

#[test]
fn a_volume_or_a_part_of_it_leaves_the_cache_once_its_dirty_data_is_written_back() {
    let volume = Volume::new(&pattern(9, 130 * MIB), "back").with(&["--memory", "4MiB"]);
    let server = volume.serve();
    let evict = |more: &[&str]| {
        floe(&[&["volume", "evict", "floe", "--admin", &server.admin], more].concat())
    };
    let cached =
        || server.status().threads.iter().map(|thread| thread.valid_bytes).sum::<u64>() as usize;
    let warm =
        |range| floe(&["volume", "warm", "floe", "--range", range, "--admin", &server.admin]);
    assert!(warm("0..2MiB").status.success());
    // Reads are answered before their blocks are written to the cache.
    wait_until("the cache has it", || cached() == 2 * MIB);
    let mut client = floe_server::nbd_client::Client::connect(&server.unix.parse().expect("a URI"))
        .expect("a client");
    client.write(4096, &pattern(3, 8192), false).expect("a write");
    let said = evict(&["--range", "0..1MiB", "--json"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!((json["bytes"].as_u64(), cached()), (Some(MIB as u64), MIB));
    assert_eq!(json["dropped_bytes"], MIB);
    let backing = std::fs::read(volume.path("backing.img")).expect("it is there");
    assert_eq!(backing[4096..12288], pattern(3, 8192), "it was written back");
    let mut found = vec![0; 16384];
    client.read(0, &mut found).expect("a read");
    assert_eq!(found[4096..12288], pattern(3, 8192));
    assert!(warm("128MiB..129MiB").status.success(), "beyond what is dropped at once");
    wait_until("the cache has it, too", || cached() >= 2 * MIB);
    let said = evict(&[]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.starts_with("the cache has dropped 2") && said.len() < 40, "{said}");
    assert_eq!(cached(), 0);
    let said = evict(&[]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "the cache has dropped 0 B of floe\n");
    refused(&evict(&["--range", "129MiB..131MiB"]), 2, &["floe ends at 136314880 bytes"]);
    let other = floe(&["volume", "evict", "other", "--admin", &server.admin]);
    refused(&other, 2, &["no volume \"other\""]);
    server.end();
}

#[test]
fn little_leaves_the_cache_of_a_large_volume_without_a_walk_over_the_volume() {
    const MOST_MESSAGES: u64 = 10_000; // by region of the volume it would be millions
    let volume = Volume::new(&[0; 4096], "back")
        .on("2")
        .with(&["--tier", "memory:8MiB,block-sizes=4KiB+64KiB"]);
    let disk = std::fs::OpenOptions::new().write(true).open(volume.path("backing.img"));
    disk.and_then(|disk| disk.set_len(1 << 40)).expect("a sparse file");
    let server = volume.serve();
    let cached = || server.status().tiers.iter().map(|tier| tier.valid_bytes).collect::<Vec<_>>();
    let messages = || server.status().threads.iter().map(|it| it.messages).sum::<u64>();
    let admin = ["--admin", &server.admin];
    for range in ["0..1MiB", "500GiB..524288256KiB", "1073741760KiB..1TiB"] {
        floe_ok(&[&["volume", "warm", "floe", "--range", range][..], &admin].concat());
    }
    let all = (1 << 20) + (256 << 10) + (64 << 10);
    wait_until("both tiers have it", || cached() == [all; 2]);
    let before = messages();
    let evict = |range: &str| {
        let said = floe_ok(&[&["volume", "evict", "floe", "--range", range][..], &admin].concat());
        said.trim_end().to_owned()
    };
    assert_eq!(evict("400GiB..499GiB"), "the cache has dropped 0 B of floe");
    assert_eq!(evict("100KiB..450GiB"), "the cache has dropped 1848KiB of floe");
    assert_eq!(evict("0..1TiB"), "the cache has dropped 840KiB of floe");
    assert_eq!(cached(), [0, 0]);
    let sent = messages() - before;
    assert!(sent < MOST_MESSAGES, "{sent} messages");
    server.end();
}

#[test]
fn a_volume_is_warmed_before_anybody_reads_it() {
    let volume = Volume::new(&pattern(9, 8 * MIB), "through").with(&["--admit", "never"]);
    let server = volume.serve();
    let warm = |more: &[&str]| {
        floe(&[&["volume", "warm", "floe", "--admin", &server.admin], more].concat())
    };
    let cached =
        || server.status().threads.iter().map(|thread| thread.valid_bytes).sum::<u64>() as usize;
    let said = warm(&["--range", "0..1MiB", "--range", "3MiB..3200KiB", "--json"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(json["bytes"], MIB + (128 << 10));
    assert_eq!(json["read_bytes"], MIB + (128 << 10));
    // Reads are answered before their blocks are written to the cache.
    let has_cached = |bytes| wait_until("the cache has it", || cached() == bytes);
    has_cached(MIB + (128 << 10));

    // Most often read are the sixth MiB and, less so, the first.
    let trace = volume.path("trace.csv");
    let read = |offset: usize| format!("1,host,0,Read,{offset},4096,1\n");
    let write = "1,host,0,Write,2097152,4096,1\n".repeat(9);
    let reads = [read(5 * MIB), read(5 * MIB + 4096), read(0)].concat();
    std::fs::write(&trace, write + &reads).expect("a trace");
    let said = warm(&["--from-trace", text(&trace), "--up-to", "1MiB"]);
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "warmed 1MiB of floe: 1MiB read into the cache\n"
    );
    has_cached(2 * MIB + (128 << 10));
    let said = warm(&["--range", "5MiB..6MiB"]);
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "warmed 1MiB of floe: 0 B read into the cache\n"
    );
    assert!(warm(&["--from-trace", text(&trace)]).status.success());
    assert!(warm(&[]).status.success(), "more than fits evicts what was there");

    for (wrong, words) in [
        (&["--range", "7MiB..9MiB"][..], &["floe ends at 8388608 bytes"][..]),
        (&["--range", "5..5"], &["is empty"]),
        (&["--up-to", "1MiB"], &["--from-trace"]),
        (&["--skip-bad"], &["--from-trace"]),
    ] {
        let output = warm(wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
    }
    let other = floe(&["volume", "warm", "other", "--admin", &server.admin]);
    refused(&other, 2, &["no volume \"other\""]);
    server.end();

    let writes_only = Volume::new(&pattern(9, MIB), "only");
    let server = writes_only.serve();
    let output = floe(&["volume", "warm", "floe", "--admin", &server.admin]);
    refused(&output, 2, &["keeps nothing that is read"]);
    server.end();
}
