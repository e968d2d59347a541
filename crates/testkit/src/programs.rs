//! Other people's programs and files, which a machine may lack.

use std::env::{split_paths, var_os};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Says on standard error that a test is skipped, and why.
pub fn skipped(reason: &str) {
    // Not eprintln: the test harness would swallow it.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// The folder of real traces that `FLOE_TRACES` names; says that a test is skipped without.
pub fn traces_folder() -> Option<PathBuf> {
    let folder = var_os("FLOE_TRACES").map(PathBuf::from);
    if folder.is_none() {
        skipped("FLOE_TRACES names no folder with traces");
    }
    folder
}

/// Checks that programs (or files, by their paths) are there; says that a test is skipped where one
/// is not.
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

/// Runs a program in an empty folder until it ends well, and returns what it printed.
///
/// # Panics
///
/// Panics where it is missing or fails.
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
