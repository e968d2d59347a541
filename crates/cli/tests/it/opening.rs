//! A signal while the server opens its devices, which may take long, and a device that needs what
//! the machine does not have.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::common::wait_for;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_server_that_is_told_to_end_while_it_opens_its_devices_ends() {
    // A volume on another server, which takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = silent.local_addr().expect("its own");
    let folder = tempfile::tempdir().expect("a folder");
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["serve", "--cache", "memory:4MiB", "--listen", "nbd://127.0.0.1:0"])
            .arg("--backing")
            .arg(format!("nbd://{address}/export"))
            .arg("--admin")
            .arg(format!("unix:{}", folder.path().join("admin").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("floe runs");
        let connection = silent.accept().expect("the server opens the device");
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).expect("it runs");
        let status = wait_for(&mut child);
        let mut log = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut log).expect("text");
        assert!(status.success(), "{status}: {log}");
        assert!(log.contains("nothing was served"), "{log}");
        drop(connection);
    }
}

#[test]
fn a_bucket_on_a_machine_without_certificates_says_what_to_install() {
    let output = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["serve", "--cache", "memory:4MiB", "--listen", "nbd://127.0.0.1:0"])
        .args(["--backing", "s3://bucket/volume,size=1GiB,endpoint=https://127.0.0.1:1"])
        .args(["--admin", "none"])
        .envs([("SSL_CERT_FILE", "/none"), ("SSL_CERT_DIR", "/none")])
        .stdin(Stdio::null())
        .output()
        .expect("floe runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    let last = log.lines().last().unwrap_or_default(); // after warnings of what was not found
    for part in ["s3://bucket/volume", "No CA certificates", "ca-certificates", "SSL_CERT_FILE"] {
        assert!(last.contains(part), "{part}: {log}");
    }
}
