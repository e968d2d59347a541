//! A Ceph cluster: a monitor and an OSD of its own, in memory.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::programs::is_installed;
use crate::wait::wait_until;

/// A cluster, which ends with this or with the process.
#[derive(Debug)]
pub struct Ceph {
    folder: PathBuf,
    script: Child,
}

impl Ceph {
    /// Starts a cluster with an empty pool `rbd`; says that a test is skipped where Ceph is
    /// missing.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start() -> Option<Ceph> {
        Self::start_on("memstore")
    }

    /// Starts a cluster with an empty pool `rbd` whose data is in a sparse file of 16 GiB, as on a
    /// disk; says that it is skipped where Ceph is missing.
    ///
    /// # Panics
    /// When it does not start.
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

    /// Its configuration file.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Runs `rbd` with these arguments, and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn rbd(&self, arguments: &[&str]) -> String {
        let conf = self.conf();
        let mut all = vec!["60", "rbd", "--conf", conf.to_str().expect("a path of UTF-8")];
        all.extend(arguments);
        crate::programs::run("timeout", &all)
    }

    /// Has the cluster take itself for full, or no longer: by the shares of its memory from which
    /// on it does. It notices some seconds later, and if it has 64 KiB.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn set_full(&self, full: bool) {
        let conf = self.conf();
        let conf = conf.to_str().expect("a path of UTF-8");
        let shares = if full { ["0.00001"; 3] } else { ["0.85", "0.9", "0.95"] };
        let ratios = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        for (ratio, share) in ratios.iter().zip(shares) {
            let line = ["60", "ceph", "--conf", conf, "osd", ratio, share];
            crate::programs::run("timeout", &line);
        }
    }

    /// Makes an image of this many bytes in the pool `rbd`, and returns the text that names it.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn image(&self, name: &str, bytes: u64) -> String {
        self.rbd(&["create", "--size", &format!("{bytes}B"), &format!("rbd/{name}")]);
        self.spec(name)
    }

    /// The text that names an image of the pool `rbd`, or a snapshot of one.
    pub fn spec(&self, name: &str) -> String {
        format!("rbd:rbd/{name},conf={}", self.conf().display())
    }

    /// Stops the process that has the data; returns once all its threads stand still.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn pause(&self) {
        kill_process(self.osd(), Signal::STOP).expect("it is there");
        let tasks = format!("/proc/{}/task", self.osd().as_raw_pid());
        wait_until("all threads stand still", || {
            let mut tasks = std::fs::read_dir(&tasks).expect("it is there").flatten();
            tasks.all(|task| is_stopped(&task.path().join("stat")))
        });
    }

    /// Lets the process that has the data go on.
    ///
    /// # Panics
    /// When there is none.
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

/// Returns whether a thread is stopped, or no more, by its line in `/proc`.
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
