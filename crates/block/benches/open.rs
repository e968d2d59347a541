//! How long a kept cache takes to come back: reading its journal and making its shards, by block
//! size, for a gibibyte of cached data in memory, and what that makes for 100. What is asked for is
//! 1 s for 100 GiB of 256 KiB blocks.

use std::time::{Duration, Instant};

use floe_block::{
    Begun, BlockSizes, Config, Driver, Io, KeptCache, Layout, NewCache, Request, RequestKind, Tier,
    Volume, VolumeId,
};
use floe_device::{MemoryDevice, Pool};

const GIB: u64 = 1 << 30;
const ID: VolumeId = VolumeId(0);
const TIMES: usize = 7;

fn volume() -> Volume {
    Volume::new(ID, "volume", GIB)
}

/// Opens the cache on a device, and says how long that took.
fn open(device: &MemoryDevice, pool: &Pool) -> (Driver, Duration) {
    let mut device = device.clone();
    let begun_at = Instant::now();
    let mut io = Io { device: &mut device, pool, wait: &mut || Ok(()) };
    let kept = KeptCache::open(&mut io, &mut |_, _| {})
        .expect("the device works")
        .expect("there is a cache");
    let config = Config::default();
    let begun: Begun = kept.begin(&mut io, vec![volume()], &config, 1).expect("the device works");
    let took = begun_at.elapsed();
    let (cache, journal) = begun.parts.into_iter().next().expect("a cache has a part");
    let tier = Tier::new(cache, Box::new(device), pool.clone()).with_journal(Some(journal));
    let mut driver = Driver::new(tier);
    driver.add_volume_at(ID, "volume", Box::new(MemoryDevice::new(GIB)));
    (driver, took)
}

fn ask(driver: &mut Driver, kind: RequestKind, offset: u64, len: u64) {
    driver.submit(Request { volume: ID, kind, offset, len }, None);
    while !driver.is_idle() {
        driver.advance();
    }
    driver.take_answers(&mut Vec::new());
}

fn main() {
    println!("{:>12} {:>10} {:>12} {:>14}", "block size", "blocks", "1 GiB, ms", "100 GiB, s");
    for size in ["256KiB", "32KiB", "4KiB"] {
        let sizes: BlockSizes = size.parse().expect("a size");
        let layout = Layout::new(&sizes, GIB + GIB / 10, 1).expect("there is room");
        let pool = Pool::new(64 << 20);
        let device = MemoryDevice::new(layout.end_bytes());
        let mut making = device.clone();
        let mut io = Io { device: &mut making, pool: &pool, wait: &mut || Ok(()) };
        KeptCache::create(&mut io, NewCache { id: [1; 16], layout, volumes: vec![volume()] })
            .expect("the device works");
        let mut driver = open(&device, &pool).0;
        for offset in (0..GIB).step_by(8 << 20) {
            ask(&mut driver, RequestKind::Prefetch, offset, 8 << 20);
        }
        ask(&mut driver, RequestKind::Flush, 0, 0);
        let blocks: u64 = driver.top().stats().blocks.iter().map(|(_, blocks)| blocks).sum();
        drop(driver);
        let mut times: Vec<Duration> = (0..TIMES)
            .map(|_| {
                let (driver, took) = open(&device, &pool);
                assert_eq!(driver.top().stats().valid_bytes, GIB, "it comes back warm");
                took
            })
            .collect();
        times.sort_unstable();
        let seconds = times[TIMES / 2].as_secs_f64();
        println!("{size:>12} {blocks:>10} {:>12.2} {:>14.2}", 1e3 * seconds, 100.0 * seconds);
    }
}
