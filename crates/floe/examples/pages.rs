//! Pages of a file through a cache: several threads, loads that happen once however many wait, a
//! limit in bytes.
//!
//! `cargo run --release -p floe --example pages`

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use floe::{Cache, Stats};

const PAGE_BYTES: usize = 4096;
const PAGES: u64 = 2048;
const CACHED_BYTES: u64 = 2 << 20; // a quarter of the file
const THREADS: u64 = 4;
const READS: u64 = 50_000; // of each thread

type Pages = Cache<u64, Vec<u8>>;

fn main() -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("floe-pages-{}", std::process::id()));
    fs::write(&path, (0..PAGES).flat_map(|number| [number as u8; PAGE_BYTES]).collect::<Vec<_>>())?;
    let outcome = read_pages(&path);
    fs::remove_file(&path)?;
    let stats = outcome?;
    println!("{} reads by {THREADS} threads, {} of them of the file", THREADS * READS, stats.loads);
    println!("hit ratio {:.1} %", 100.0 * stats.hit_ratio().unwrap_or_default());
    println!("{} pages, {} bytes of at most {CACHED_BYTES}", stats.entries, stats.weight);
    println!(
        "{} evictions by {}, {} pages wait to be dropped",
        stats.evictions, stats.policy, stats.waiting
    );
    Ok(())
}

fn read_pages(path: &Path) -> io::Result<Stats> {
    let cache: Pages = Cache::builder()
        .weight_capacity(CACHED_BYTES)
        .weigher(|_, page: &Vec<u8>| page.len() as u32)
        .build();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let cache = cache.clone();
                scope.spawn(move || read_some(&cache, File::open(path)?, seed))
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader ends"))
    })?;
    Ok(cache.stats())
}

/// Returns what a thread does: popular pages often, the others now and then.
fn read_some(cache: &Pages, mut file: File, seed: u64) -> io::Result<()> {
    let mut state = seed;
    for _ in 0..READS {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64;
        let number = (uniform.powi(4) * PAGES as f64) as u64;
        let page = cache.get_or_insert_with(&number, || load(&mut file, number))?;
        assert!(
            page.iter().all(|&byte| byte == number as u8),
            "page {number} holds another's bytes"
        );
    }
    Ok(())
}

/// A miss.
fn load(file: &mut File, number: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(number * PAGE_BYTES as u64))?;
    let mut page = vec![0; PAGE_BYTES];
    file.read_exact(&mut page)?;
    Ok(page)
}
