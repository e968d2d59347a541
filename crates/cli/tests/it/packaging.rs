//! What a package holds beside the program: manual pages, completions, a service.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{floe, floe_ok, text};
use floe_testkit::is_installed;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

#[test]
fn every_command_has_a_page_that_man_shows_without_a_warning() {
    if !is_installed(&["man"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    floe_ok(&["man", text(folder.path())]);
    let mut names = Vec::new();
    for page in std::fs::read_dir(&folder).expect("the pages") {
        let path = page.expect("a page").path();
        let shown = Command::new("man")
            .args(["--warnings", "--local-file", text(&path)])
            .envs([("LC_ALL", "C.UTF-8"), ("MANWIDTH", "80"), ("MAN_KEEP_FORMATTING", "")])
            .stdin(Stdio::null())
            .output()
            .expect("man runs");
        let (page, warnings) =
            (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
        assert!(shown.status.success() && warnings.is_empty(), "{}: {warnings}", path.display());
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(page.lines().any(|line| line == section), "{name}: {page}");
        }
        let has_examples = page.contains("EXAMPLES\n         floe ");
        assert!(
            has_examples
                || ["floe-bench", "floe-hybrid", "floe-tier", "floe-trace", "floe-volume"]
                    .contains(&name.as_str()),
            "{name}: {page}"
        );
        names.push(name);
    }
    for name in [
        "floe",
        "floe-serve",
        "floe-attach",
        "floe-detach",
        "floe-status",
        "floe-volume-add",
        "floe-tier-add",
        "floe-simulate",
        "floe-replay",
        "floe-bench-memory",
        "floe-calibrate",
    ] {
        assert!(names.iter().any(|there| there == name), "{name} is not among {names:?}");
    }
    assert!(!names.iter().any(|name| name == "floe-man"), "for packagers only");
}

#[test]
fn pages_that_cannot_be_written_are_a_failure() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let folder = file.path().join("folder"); // in a file there is none
    let output = floe(&["man", folder.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    let wanted = format!("floe: {}: ", folder.display());
    assert!(String::from_utf8_lossy(&output.stderr).starts_with(&wanted));
}

#[test]
fn bash_takes_the_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("floe.bash");
    std::fs::write(&script, floe_ok(&["completions", "bash"])).expect("a script");
    let ask = "source \"$1\"; COMP_WORDS=(floe vol); COMP_CWORD=1; _floe floe vol floe; echo \
               \"${COMPREPLY[@]}\"";
    let said = floe_testkit::run("bash", &["-c", ask, "bash", text(&script)]);
    assert_eq!(said.trim(), "volume");
    for shell in ["zsh", "fish"] {
        assert!(floe_ok(&["completions", shell]).contains("max-connections"), "{shell}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_services() {
    if !is_installed(&["systemd-analyze"]) {
        return;
    }
    for (unit, instance) in
        [("floe.service", "floe.service"), ("floe-attach@.service", "floe-attach@pictures.service")]
    {
        is_well_formed(unit, instance);
    }
}

#[track_caller]
fn is_well_formed(unit: &str, instance: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let unit = std::fs::read_to_string(Path::new(PACKAGING).join(unit)).expect("the unit");
    assert!(unit.contains("ExecStart=/usr/bin/floe "));
    let here = folder.path().join(instance);
    std::fs::write(&here, unit.replace("/usr/bin/floe", env!("CARGO_BIN_EXE_floe")))
        .expect("a unit");
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=one", text(&here)])
        .output()
        .expect("systemd-analyze runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 64];
    let received = socket.recv(&mut bytes).expect("a state in time");
    String::from_utf8_lossy(&bytes[..received]).into_owned()
}

#[test]
fn the_service_manager_is_told_when_clients_are_served_and_when_the_end_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let nbd = format!("nbd+unix:///?socket={}", folder.path().join("nbd").display());
    let mut child = serve(&path, &nbd);
    assert_eq!(heard(&socket), "READY=1");
    let client = floe_server::nbd_client::Client::connect(&nbd.parse().expect("a URI"));
    assert!(client.is_ok(), "ready means that clients are served");
    drop(client);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    assert_eq!(heard(&socket), "STOPPING=1");
    assert!(crate::common::wait_for(&mut child).success());
}

fn serve(notify: &Path, nbd: &str) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["serve", "--backing", "memory:4MiB", "--cache", "memory:4MiB"])
        .args(["--listen", nbd, "--admin", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", notify)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("floe runs")
}
