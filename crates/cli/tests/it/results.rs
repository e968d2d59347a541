//! Pages of results: figures that are the same on every machine still hold.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use floe_testkit::is_installed;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check(arguments: &[&str]) -> Output {
    Command::new("python3")
        .arg("-B")
        .arg(project().join("scripts/results"))
        .args(["check", env!("CARGO_BIN_EXE_floe")])
        .args(arguments)
        .output()
        .expect("python3")
}

#[test]
fn samples_of_the_figures_of_all_pages_hold() {
    if !is_installed(&["python3"]) {
        return;
    }
    let checked = check(&[]);
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn a_figure_that_no_longer_holds_is_named() {
    if !is_installed(&["python3"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let page = std::fs::read_to_string(project().join("docs/model.md")).expect("a page");
    let printed = "| disk 100 µs | 0.98 | 0.75 | 0.60 |";
    assert!(page.contains(printed));
    let changed = page.replace(printed, "| disk 100 µs | 0.98 | 0.76 | 0.60 |");
    std::fs::write(folder.path().join("model.md"), changed).expect("a page");
    let checked = check(&["model", "--pages", folder.path().to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("prints '0.76', computed anew it is '0.75'"), "{said}");
}
