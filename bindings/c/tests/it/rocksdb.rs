//! RocksDB with Floe's block cache (`bindings/rocksdb`): interface, a database, and the benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{done, library};

/// Compiles a program of `bindings/rocksdb` with the compiler's checks. `None` where RocksDB is not
/// installed and need not be.
fn program(source: &str, scratch: &Path) -> Option<PathBuf> {
    if !Path::new("/usr/include/rocksdb/cache.h").exists() {
        let required = ["CI", "FLOE_REQUIRE_CLIENTS"];
        assert!(
            required.iter().all(|name| std::env::var_os(name).is_none()),
            "RocksDB is not installed: scripts/require c"
        );
        eprintln!("SKIPPED: RocksDB is not installed");
        return None;
    }
    let bindings = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of bindings");
    let built = scratch.join("program");
    done(
        Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"])
            .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
            .arg("-I")
            .arg(bindings.join("c/include"))
            .arg("-I")
            .arg(bindings.join("rocksdb/include"))
            .arg(bindings.join("rocksdb").join(source))
            .arg(library().join("libfloe_c.a"))
            .args(["-lrocksdb", "-lm", "-ldl", "-o"])
            .arg(&built),
    );
    Some(built)
}

#[test]
fn rocksdbs_interface_of_caches_does_what_it_says() {
    let scratch = tempfile::tempdir().expect("a folder");
    if let Some(program) = program("tests/cache.cc", scratch.path()) {
        assert_eq!(done(&mut Command::new(program)).stdout, b"done\n");
    }
}

#[test]
fn a_database_finds_what_it_wrote_through_the_block_cache() {
    let scratch = tempfile::tempdir().expect("a folder");
    if let Some(program) = program("tests/database.cc", scratch.path()) {
        let folder = scratch.path().join("data");
        assert_eq!(done(Command::new(program).arg(folder)).stdout, b"done\n");
    }
}

#[test]
fn the_benchmark_draws_and_checks_what_it_should() {
    let scratch = tempfile::tempdir().expect("a folder");
    if let Some(program) = program("tests/ycsb.cc", scratch.path()) {
        assert_eq!(done(&mut Command::new(program)).stdout, b"done\n");
    }
}

#[test]
fn the_benchmark_reads_what_it_wrote_through_every_cache() {
    let scratch = tempfile::tempdir().expect("a folder");
    let Some(program) = program("bench/ycsb.cc", scratch.path()) else { return };
    let folder = scratch.path().join("data");
    let ycsb = |records: &str, more: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--folder").arg(&folder).args(["--records", records, "--value-bytes", "100"]);
        command.args(["--operations", "1500", "--threads", "2", "--rounds", "1"]);
        command.args(["--verify", "--buffered"]).args(more);
        command
    };
    let runs =
        |more: &[&str]| String::from_utf8(done(&mut ycsb("2000", more)).stdout).expect("text");

    let lines = runs(&["--json", "--percents", "30"]);
    assert_eq!(lines.lines().count(), 6 * 5, "{lines}");
    let all_fits = runs(&["--json", "--percents", "400", "--workloads", "c"]);
    assert_eq!(all_fits.matches("\"hit_ratio\":1.00000").count(), 5, "{all_fits}");

    let file = scratch.path().join("runs");
    std::fs::write(&file, lines).expect("written");
    let table = done(Command::new(&program).arg("--table").arg(&file)).stdout;
    assert_eq!(String::from_utf8_lossy(&table).lines().count(), 1 + 6 * 5);

    // Records that were never written are missed.
    std::fs::write(folder.join("what"), "4000 records of 100\n").expect("written");
    let output = ycsb("4000", &["--percents", "30", "--workloads", "c"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("wrong values were read"), "{said}");
}
