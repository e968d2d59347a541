//! RocksDB with Floe's block cache (`bindings/rocksdb`): interface, options, a database, a second
//! tier on flash, the benchmark, and RocksDB's own programs. With Debian's RocksDB, and with a
//! newer one that `scripts/rocksdb` fetches.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::programs::{done, library};

/// Returns whether a missing program is a failure.
fn must_be_there() -> bool {
    ["CI", "FLOE_REQUIRE_CLIENTS"].iter().any(|name| std::env::var_os(name).is_some())
}

/// The folder of the bindings.
fn bindings() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of bindings")
}

/// The arguments by which the compiler finds a RocksDB: before the source, and after it.
struct Rocksdb(Vec<String>, Vec<String>);

/// Debian's, which has type information. `None` where it is not installed and need not be.
fn installed() -> Option<Rocksdb> {
    if !Path::new("/usr/include/rocksdb/cache.h").exists() {
        assert!(!must_be_there(), "RocksDB is not installed: scripts/require rocksdb");
        eprintln!("SKIPPED: RocksDB is not installed");
        return None;
    }
    Some(Rocksdb(vec!["-std=c++17".to_owned()], vec!["-lrocksdb".to_owned()]))
}

/// A newer one, built as releases are. `None` where it was not fetched and need not be.
fn newest() -> Option<Rocksdb> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let project = bindings().parent().expect("the project");
        // target/debug/deps
        let library = library();
        let target = library.ancestors().nth(2).expect("a target folder");
        if !must_be_there() && !target.join("rocksdb/11.8.1/complete").exists() {
            eprintln!("SKIPPED: no newer RocksDB was fetched: scripts/rocksdb");
            return None;
        }
        let mut script = Command::new(project.join("scripts/rocksdb"));
        let said = done(script.env("CARGO_TARGET_DIR", target)).stdout;
        Some(PathBuf::from(String::from_utf8(said).expect("a path").trim_end()))
    });
    let folder = folder.as_ref()?.display();
    Some(Rocksdb(
        vec!["-std=c++20".into(), "-fno-rtti".into(), format!("-I{folder}/include")],
        vec![format!("-L{folder}/lib"), "-lrocksdb".into(), format!("-Wl,-rpath,{folder}/lib")],
    ))
}

fn compile(rocksdb: &Rocksdb, source: &str, more: &[&str], built: &Path) {
    let Rocksdb(before, after) = rocksdb;
    done(
        Command::new("c++")
            .args(before)
            .args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"])
            .args(more)
            .arg("-I")
            .arg(bindings().join("c/include"))
            .arg("-I")
            .arg(bindings().join("rocksdb/include"))
            .arg(bindings().join("rocksdb").join(source))
            .arg(library().join("libfloe_c.a"))
            .args(after)
            .args(["-lm", "-ldl", "-o"])
            .arg(built),
    );
}

/// Compiles a program of `bindings/rocksdb` with the compiler's checks, and optimized as told.
fn program(rocksdb: &Rocksdb, source: &str, optimized: &str, scratch: &Path) -> PathBuf {
    let built = scratch.join("program");
    let checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", optimized];
    compile(rocksdb, source, &checks, &built);
    built
}

/// Compiles a program with a RocksDB, and has it say that it is done.
fn runs_with(rocksdb: Option<Rocksdb>, source: &str) {
    runs_optimized(rocksdb, source, "-O1");
}

fn runs_optimized(rocksdb: Option<Rocksdb>, source: &str, optimized: &str) {
    let Some(rocksdb) = rocksdb else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let program = program(&rocksdb, source, optimized, scratch.path());
    let folder = scratch.path().join("data");
    assert_eq!(done(Command::new(program).arg(folder)).stdout, b"done\n");
}

#[test]
fn rocksdbs_interface_of_caches_does_what_it_says() {
    runs_with(installed(), "tests/cache.cc");
}

#[test]
fn the_interface_of_the_newest_rocksdb_does_what_it_says() {
    runs_with(newest(), "tests/cache.cc");
}

#[test]
fn options_say_which_blocks_stay_and_can_be_text() {
    runs_with(installed(), "tests/options.cc");
}

#[test]
fn the_newest_rocksdb_makes_caches_from_text() {
    runs_with(newest(), "tests/options.cc");
}

#[test]
fn a_database_finds_what_it_wrote_through_the_block_cache() {
    runs_with(installed(), "tests/database.cc");
}

#[test]
fn a_database_of_the_newest_rocksdb_finds_what_it_wrote() {
    runs_with(newest(), "tests/database.cc");
}

/// Compiled without optimization, which takes half the time.
#[test]
fn a_database_finds_its_blocks_on_flash_after_a_restart() {
    runs_optimized(installed(), "tests/secondary.cc", "-O0");
}

#[test]
fn a_database_of_the_newest_rocksdb_finds_its_blocks_on_flash() {
    runs_optimized(newest(), "tests/secondary.cc", "-O0");
}

#[test]
fn rocksdbs_own_programs_use_the_cache_without_being_built_anew() {
    let Some(rocksdb) = installed() else { return };
    if Command::new("db_bench").arg("--version").output().is_err() {
        assert!(!must_be_there(), "rocksdb-tools is not installed: scripts/require rocksdb");
        eprintln!("SKIPPED: rocksdb-tools is not installed");
        return;
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let preloaded = scratch.path().join("floe_preload.so");
    let shared = ["-fPIC", "-shared", "-Wl,--exclude-libs,ALL"];
    compile(&rocksdb, "preload/floe_preload.cc", &shared, &preloaded);
    let with = |program: &str, cache: &str| {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &preloaded).env("FLOE_ROCKSDB_CACHE", cache);
        command
    };
    // It reads all keys three times, of which the second and third find all blocks cached.
    let data = format!("--db={}", scratch.path().join("data").display());
    let args =
        ["--benchmarks=fillseq,flush,readseq,readrandom,stats", "--num=20000", "--reads=60000"];
    let more = ["--threads=2", "--cache_size=50000000", "--statistics", "--compression_type=none"];
    let policy = "floe://policy=lru;freezing=true";
    let output = done(with("db_bench", policy).arg(data).args(args).args(more));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let count = |name: &str| -> u64 {
        let line = said.lines().find(|line| line.starts_with(name)).expect("a ticker");
        line.rsplit(' ').next().expect("a count").parse().expect("a number")
    };
    let (hits, misses) = (count("rocksdb.block.cache.hit"), count("rocksdb.block.cache.miss"));
    let log = std::fs::read_to_string(scratch.path().join("data/LOG")).expect("RocksDB's log");
    assert!(log.contains("block_cache_name: FloeCache") && log.contains("floe_policy: lru"));
    assert!(misses > 100 && hits > 100 * misses, "{hits} hits, {misses} misses");

    let args = ["-threads=3", "-ops_per_thread=5000", "-cache_size=8000000", "-value_bytes=1000"];
    let output = done(with("cache_bench", "floe://policy=s3-fifo").args(args));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Complete in"), "{said}");

    let output = with("cache_bench", "floe://policy=none").args(args).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("none"), "{said}");
}

#[test]
fn the_benchmark_draws_and_checks_what_it_should() {
    runs_with(installed(), "tests/ycsb.cc");
}

#[test]
fn the_benchmark_reads_what_it_wrote_through_every_cache() {
    let Some(rocksdb) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let program = program(&rocksdb, "bench/ycsb.cc", "-O1", scratch.path());
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
