//! The longest requests with write-back beside those of the bare volume, in virtual time.

use std::time::Duration;

use floe_block::WriteMode;
use floe_lab::replay::{ReplayResult, Setup};

use crate::replay::{plan, requests, setup, simulated};

/// Reads and writes of a volume on a medium, with a cache of a third of the addresses.
fn replayed(
    mode: WriteMode,
    medium: &str,
    sizes: &str,
    load: &str,
    in_flight: usize,
) -> ReplayResult {
    let (cache, volume) = ("memory:32MiB,medium=nvme", format!("memory:128MiB,medium={medium}"));
    let mut plan = plan(mode, cache, &volume);
    plan.tiers[0].config.sizes = sizes.parse().expect("sizes");
    plan.tiers[0].most_dirty_bytes = (mode == WriteMode::Back).then_some(16 << 20);
    let setup = Setup { flush_interval: Duration::from_secs(5), ..setup(in_flight, false) };
    let requests = requests(load);
    simulated(&plan, &Setup { warmup: requests.len() as u64 / 5, ..setup }, &requests)
}

/// Cleaning delays few requests, whatever the sizes of blocks: neither do its writes queue before
/// clients', nor does a client wait until a whole group is clean.
#[test]
fn cleaning_keeps_the_longest_requests_near_those_of_the_bare_volume() {
    const LOAD: &str = "zipf:keys=24000,theta=0.8,read=0.7,block=4KiB,requests=30000";
    for medium in ["hdd", "cloud"] {
        let bare = replayed(WriteMode::Pass, medium, "4KiB", LOAD, 1);
        for sizes in ["4KiB", "16KiB,64KiB,256KiB"] {
            let back = replayed(WriteMode::Back, medium, sizes, LOAD, 1);
            let case = format!("{medium}, blocks of {sizes}");
            let percentiles = [
                (back.read_us_p999, bare.read_us_p999, 1.4),
                (back.write_us_p999, bare.write_us_p999, 1.0),
                (back.read_us_max, bare.read_us_max, 1.5),
            ];
            for (with, without, most) in percentiles {
                let (with, without) = (with.expect("requests"), without.expect("requests"));
                assert!(with <= most * without, "{case}: {with} instead of {without} us");
            }
            let mean = |outcome: &ReplayResult| outcome.write_us_mean.expect("writes");
            assert!(mean(&back) < mean(&bare), "{case}: writes are answered sooner");
        }
    }
}

/// Where misses come faster than the cache device stores what they fetch, a write waits for few
/// fills, and as many as before hit.
#[test]
fn fills_delay_writes_little_above_a_volume_as_fast_as_the_cache() {
    const LOAD: &str = "uniform:keys=24000,read=0.97,block=4KiB,requests=30000";
    let bare = replayed(WriteMode::Pass, "nvme", "4KiB", LOAD, 8);
    for sizes in ["4KiB", "16KiB,64KiB,256KiB"] {
        let back = replayed(WriteMode::Back, "nvme", sizes, LOAD, 8);
        let (with, without) = (back.write_us_max.expect("writes"), bare.write_us_max.expect("too"));
        assert!(with <= 2.0 * without, "blocks of {sizes}: {with} instead of {without} us");
        assert!(back.read_hits * 10 > back.reads * 2, "{} of {} hit", back.read_hits, back.reads);
    }
}
