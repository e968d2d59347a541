//! How fast a trace replays from its compact form, against the file as it is: median of several
//! passes, and sizes.
//!
//! `cargo run --release -p floe-trace --example compact_speed -- FILE…`

use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

use floe_trace::{
    CompactOptions, CompactTrace, CompactWriter, DenseKeys, Kind, OpenOptions, Trace,
};

const PASSES: usize = 9;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let folder = std::env::temp_dir().join(format!("compact-speed-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = std::env::args().skip(1).try_for_each(|file| measure(&file, &folder));
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(file: &str, folder: &std::path::Path) -> Outcome<()> {
    let options = OpenOptions::default();
    let size = |path: &str| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let (mut requests, mut keys) = (0, Vec::new());
    let original = median(|| {
        requests = 0;
        keys.clear();
        for request in Trace::open_source(file, &options)? {
            keys.push(request?.key);
            requests += 1;
        }
        Ok(())
    })?;
    let million = |seconds: f64| requests as f64 / seconds / 1e6;
    println!(
        "{file}: {requests} requests, {} bytes, {:.1} million/s",
        size(file),
        million(original)
    );
    let numbering = median(|| {
        std::hint::black_box(DenseKeys::from_keys(keys.iter().copied()));
        Ok(())
    })?;
    println!("  keys made dense: {:.1} million/s", million(numbering));
    for (what, zstd_level) in [("compact", None), ("compact, zstd", Some(3))] {
        let path = folder.join("trace.floe");
        let path = path.to_str().ok_or("a temporary folder without a name")?;
        let begun = Instant::now();
        let trace = Trace::open_source(file, &options)?;
        let kind = trace.kind();
        let settings = CompactOptions { zstd_level, ..CompactOptions::default() };
        let mut writer = CompactWriter::new(BufWriter::new(File::create(path)?), kind, settings)?;
        for request in trace {
            writer.push(&request?)?;
        }
        writer.finish()?;
        let written = begun.elapsed().as_secs_f64();
        let stream = median(|| {
            let mut check = 0u64;
            for request in Trace::open_source(path, &options)? {
                check ^= request?.key;
            }
            std::hint::black_box(check);
            Ok(())
        })?;
        print!(
            "  {what}: {} bytes, written at {:.1}, requests {:.1} million/s ({:.1} times)",
            size(path),
            million(written),
            million(stream),
            original / stream
        );
        if kind == Kind::Block {
            println!();
            continue;
        }
        let dense = median(|| {
            let (mut trace, mut check) = (CompactTrace::open(path)?, 0u32);
            while let Some(keys) = trace.next_keys()? {
                check = keys.iter().fold(check, |check, key| check ^ key);
            }
            std::hint::black_box(check);
            Ok(())
        })?;
        println!(", dense keys {:.1} million/s ({:.1} times)", million(dense), original / dense);
    }
    Ok(())
}

fn median(mut pass: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut seconds = Vec::new();
    for _ in 0..PASSES {
        let begun = Instant::now();
        pass()?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[PASSES / 2])
}
