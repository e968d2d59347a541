//! A signal while the server opens its devices, which may take long.

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
