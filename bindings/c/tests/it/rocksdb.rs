//! RocksDB with Floe's block cache (`bindings/rocksdb`): the interface of caches, and a database.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{done, library};

/// Compiles a program of `bindings/rocksdb` with the compiler's checks. `None` where RocksDB is not
/// installed and need not be.
fn program(name: &str, scratch: &Path) -> Option<PathBuf> {
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
    let built = scratch.join(name);
    done(
        Command::new("c++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"])
            .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
            .arg("-I")
            .arg(bindings.join("c/include"))
            .arg("-I")
            .arg(bindings.join("rocksdb/include"))
            .arg(bindings.join("rocksdb/tests").join(name).with_extension("cc"))
            .arg(library().join("libfloe_c.a"))
            .args(["-lrocksdb", "-lm", "-ldl", "-o"])
            .arg(&built),
    );
    Some(built)
}

#[test]
fn rocksdbs_interface_of_caches_does_what_it_says() {
    let scratch = tempfile::tempdir().expect("a folder");
    if let Some(program) = program("cache", scratch.path()) {
        assert_eq!(done(&mut Command::new(program)).stdout, b"done\n");
    }
}

#[test]
fn a_database_finds_what_it_wrote_through_the_block_cache() {
    let scratch = tempfile::tempdir().expect("a folder");
    if let Some(program) = program("database", scratch.path()) {
        let folder = scratch.path().join("data");
        assert_eq!(done(Command::new(program).arg(folder)).stdout, b"done\n");
    }
}
