//! Measures how soon a cache serves after a close and after a crash.
//!
//! `cargo run --release -p floe-hybrid --example reopening -- FOLDER OBJECTS` inserts objects of
//! 1,000 bytes, and prints the time of `open`, the time until the first hit on flash, and the time
//! until all of the index is in memory, each from the start of `open`. The file in FOLDER takes 1.1
//! KB an object and is removed at the end.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use floe_hybrid::{Hybrid, InsertOptions};

type Failure = Box<dyn std::error::Error>;

/// Bytes of a value.
const VALUE_BYTES: u64 = 1000;

fn open(path: &Path, objects: u64) -> Result<Hybrid<u64, Vec<u8>>, Failure> {
    let (memory, flash) = ((64 << 20) + objects * 16, (128 << 20) + objects * 1100);
    Ok(Hybrid::builder().memory(memory).flash(path, flash).object_bytes(VALUE_BYTES).open()?)
}

/// Fills a cache, and leaves it closed or as after a crash.
fn fill(path: &Path, objects: u64, closes: bool) -> Result<(), Failure> {
    let cache = open(path, objects)?;
    for key in 0..objects {
        let options = InsertOptions::new().to_flash();
        cache.insert_with(key, vec![key as u8; VALUE_BYTES as usize], options);
    }
    cache.sync()?;
    if closes {
        cache.close()?;
    }
    std::process::exit(0);
}

fn measure(path: &Path, objects: u64) -> Result<(), Failure> {
    let milliseconds = |begun: Instant| begun.elapsed().as_secs_f64() * 1e3;
    let begun = Instant::now();
    let cache = open(path, objects)?;
    let opened = milliseconds(begun);
    let found = cache.get_blocking(&(objects / 2)).is_some();
    let first = milliseconds(begun);
    // The log is written once the index is complete.
    cache.remove(&(objects / 3));
    cache.sync()?;
    let complete = milliseconds(begun);
    println!(
        "{:>9}: open {opened:.1} ms, first lookup {first:.1} ms ({}), all of the index and a \
         removal {complete:.1} ms",
        format!("{:?}", cache.opened()),
        if found { "found" } else { "not found" },
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, objects, rest @ ..] = &arguments[..] else {
        return Err("give a folder and a number of objects".into());
    };
    let (path, number) = (Path::new(folder).join("reopening"), objects.parse()?);
    if let [how] = rest {
        return fill(&path, number, how == "close");
    }
    for how in ["close", "crash"] {
        for _ in 0..3 {
            let _ = std::fs::remove_file(&path); // of a run before
            let program = std::env::current_exe()?;
            let status = Command::new(program).args([folder, objects, how]).status()?;
            if !status.success() {
                return Err(format!("the process that fills the cache: {status}").into());
            }
            measure(&path, number)?;
        }
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
