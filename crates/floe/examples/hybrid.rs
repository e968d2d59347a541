//! Objects in memory and on flash: many more than memory holds, found again after a restart.
//!
//! `cargo run --release -p floe --features hybrid --example hybrid`

use std::time::Instant;

use bytes::Bytes;
use floe::hybrid::Hybrid;

const MEMORY_BYTES: u64 = 16 << 20;
const FLASH_BYTES: u64 = 256 << 20;
const OBJECTS: u64 = 150_000;
const OBJECT_BYTES: usize = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("floe-hybrid-{}", std::process::id()));
    let result = run(&path);
    std::fs::remove_file(&path)?;
    result
}

fn run(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let open = || {
        let builder = Hybrid::<u64, Bytes>::builder().memory(MEMORY_BYTES);
        builder.flash(path, FLASH_BYTES).object_bytes(OBJECT_BYTES as u64).open()
    };
    let cache = open()?;
    let began = Instant::now();
    for key in 0..OBJECTS {
        cache.insert(key, Bytes::from(vec![key as u8; OBJECT_BYTES]));
    }
    println!("inserted {OBJECTS} objects of {OBJECT_BYTES} bytes in {:.1?}", began.elapsed());
    let stats = cache.stats();
    println!("{} of them are in memory, {} on flash", stats.memory.entries, stats.flash.objects);
    let index_bytes = stats.flash.index_bytes as f64 / stats.flash.objects as f64;
    println!("the index takes {index_bytes:.1} bytes an object");
    cache.close()?;
    drop(cache);

    let began = Instant::now();
    let cache = open()?;
    println!("opened again in {:.1?}", began.elapsed());
    let found = (0..OBJECTS).filter(|key| cache.get_blocking(key).is_some()).count();
    println!("found {found} of {OBJECTS} objects");
    Ok(())
}
