//! Pages of results: figures that are the same on every machine still hold.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use floe_testkit::is_installed;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            std::fs::copy(&path, &copy).expect("a copy");
        }
    }
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

#[test]
fn a_row_of_the_index_that_names_what_is_not_there_is_named() {
    if !is_installed(&["python3"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("results");
    copy_folder(&project().join("docs/results"), &results);
    std::fs::copy(project().join("docs/model.md"), folder.path().join("model.md")).expect("a copy");
    let pages = ["index", "--pages", folder.path().to_str().expect("UTF-8")];
    assert!(check(&pages).status.success());
    let index = results.join("appendix/headlines.md");
    let text = std::fs::read_to_string(&index).expect("a page");
    let (_, made) = text.split_once("| `table2` |").expect("rows that table2 makes");
    let commit = made.split('|').next().expect("a cell");
    let (of_now, of_none) = (format!("| `table2` |{commit}|"), "| `table2` | 1234567 |");
    for (there, not_there, said) in [
        ("| `table2` |", "| `table3` |", "there is no step `table3`"),
        ("| `table2` |", "| `misses` |", "the step `misses` makes policies.md, not table2.md"),
        ("#the-target)", "#the-aim)", "admission.md has no section #the-aim"),
        (of_now.as_str(), of_none, "table2.md does not name the commit 1234567"),
    ] {
        assert!(text.contains(there), "{there}");
        std::fs::write(&index, text.replace(there, not_there)).expect("a page");
        let checked = check(&pages);
        let found = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1), "{found}");
        assert!(found.contains(said), "{found}");
    }
    std::fs::write(&index, &text).expect("a page");
    let claims = results.join("README.md");
    let text = std::fs::read_to_string(&claims).expect("a page");
    for (there, not_there, said) in [
        ("*modelled*", "*guessed*", "*guessed* is none of"),
        ("| `table2` |", "| `table3` |", "there is no step `table3`"),
        ("(frozen.md", "(freezing.md", "the step `frozen` makes frozen.md, not freezing.md"),
    ] {
        assert!(text.contains(there), "{there}");
        std::fs::write(&claims, text.replace(there, not_there)).expect("a page");
        let checked = check(&pages);
        let found = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(1), "{found}");
        assert!(found.contains(said), "{found}");
    }
}
