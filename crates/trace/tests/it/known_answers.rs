//! Real traces against figures that were counted independently.
//!
//! Runs when `FLOE_TRACES` names a folder with the traces, and says so when it does not. Every
//! figure must agree to its last printed digit.

use std::path::PathBuf;

use floe_testkit::traces_folder;
use floe_trace::{Info, OpenOptions, Trace};

fn info(path: PathBuf, as_blocks: bool) -> Info {
    let options = OpenOptions { as_blocks, ..OpenOptions::default() };
    let mut trace = Trace::open(path, &options).unwrap_or_else(|error| panic!("{error}"));
    let info = Info::of(&mut trace).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Some(trace.bytes_read()), trace.total_bytes(), "{}", info.trace);
    info
}

/// `value` rounded as `printed` is.
fn rounded(value: f64, printed: &str) -> String {
    let digits = printed.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    format!("{value:.digits$}")
}

#[test]
fn block_traces_have_their_known_figures() {
    let Some(folder) = traces_folder() else { return };
    // File, format, requests, read %, mean KiB, footprint MiB, re-referenced %.
    let rows = [
        ("cloudPhysicsIO.vscsi", "vscsi", 113_872, "41.3", "36.1", "1052", "76.4"),
        ("disksim_hp_ajw.1week.srt", "srt", 44_519, "29.3", "5.8", "31", "89.1"),
        ("ssdsim_example_financial1.ascii", "ssdsim", 10_000, "40.8", "5.4", "29", "67.5"),
        ("mqsim_wsrch-small.trace", "ssdsim", 24_783, "100", "15.1", "363", "0.3"),
        ("mqsim_tpcc-small.trace", "ssdsim", 6_999, "62.6", "8.3", "80", "1.0"),
        ("disksim_ssd-postmark-aligned2.trace", "disksim", 62_257, "83.2", "222", "5990", "55.7"),
        ("disksim_ssd-iozone-aligned2-100K.trace", "disksim", 100_000, "0", "360", "1060", "97.0"),
        ("tencent_cbs_sample.csv.bz2", "tencent", 50_000, "49.0", "29.7", "1360", "7.9"),
        ("msr_cambridge1_sample.csv", "msr", 1_000, "50.8", "9.5", "7.5", "22.5"),
        ("systor17_traces_sample.csv.gz", "systor", 999, "83", "38", "38", "6"),
        ("systor17_additional_sample.csv.gz", "systor", 999, "70", "20", "21", "7"),
    ];
    let mut wrong = Vec::new();
    for (file, format, requests, read, mean, footprint, again) in rows {
        let info = info(folder.join(file), false);
        let found = (
            info.format,
            info.requests,
            rounded(100.0 * info.reads as f64 / info.requests as f64, read),
            rounded(info.mean_bytes / 1024.0, mean),
            rounded(info.footprint_bytes as f64 / 1048576.0, footprint),
            rounded(100.0 * info.rereference_ratio(), again),
        );
        let known = (format, requests, read.into(), mean.into(), footprint.into(), again.into());
        if found != known {
            wrong.push(format!("{file}: found {found:?}, known {known:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn traces_of_keys_and_objects_have_their_known_figures() {
    let Some(folder) = traces_folder() else { return };
    // File, format, requests, distinct keys, re-referenced %.
    let rows = [
        ("adaptsize_request.trace.xz", "adaptsize", 66_987, 36_815, "45.0"),
        ("cachelib_short_bigcache_traces_cdn.csv", "cachelib", 9_999, 3_125, "68.7"),
        ("cachelib_kv_traces_1.csv", "cachelib", 691, 51, "92.6"),
        ("cachelib_tectonic_block_traces_1.csv", "cachelib", 999, 625, "37.4"),
        ("arc_OLTP.lis.zst", "arc", 914_145, 186_880, "79.6"),
        ("arc_P2.lis.zst", "arc", 12_729_495, 913_347, "92.8"),
        ("arc_P3.lis.zst", "arc", 3_912_296, 762_543, "80.5"),
        ("arc_P6.lis.zst", "arc", 12_672_123, 773_770, "93.9"),
        ("cache2k_orm-busy.trace.xz", "be32", 5_000_000, 76_349, "98.5"),
        ("cache2k_web07.trace.xz", "be32", 76_118, 20_484, "73.1"),
        ("cache2k_web12.trace.xz", "be32", 95_607, 13_756, "85.6"),
        ("corda_trace_vaultservice.gz", "be64", 135_702, 90_468, "33.3"),
        ("lirs_2_pools.trace.gz", "plain", 100_000, 9_939, "90.1"),
        ("lirs_cpp.trace.gz", "plain", 9_047, 1_223, "86.5"),
        ("lirs_cs.trace.gz", "plain", 6_781, 1_409, "79.2"),
        ("lirs_gli.trace.gz", "plain", 6_015, 2_529, "58.0"),
        ("lirs_loop.trace.gz", "plain", 505_500, 1_011, "99.8"),
        ("lirs_multi1.trace.gz", "plain", 15_858, 2_606, "83.6"),
        ("lirs_ps.trace.gz", "plain", 10_448, 3_083, "70.5"),
        ("lirs_sprite.trace.gz", "plain", 133_996, 7_075, "94.7"),
        ("lirs_zigzag.trace.gz", "plain", 52_001, 2_001, "96.2"),
    ];
    let mut wrong = Vec::new();
    for (file, format, requests, distinct, again) in rows {
        let info = info(folder.join(file), false);
        let found = (
            info.format,
            info.requests,
            info.unique,
            rounded(100.0 * info.rereference_ratio(), again),
        );
        let known = (format, requests, distinct, again.to_owned());
        if found != known {
            wrong.push(format!("{file}: found {found:?}, known {known:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_line_of_an_arc_trace_read_as_blocks_is_one_read_of_its_sectors() {
    let Some(folder) = traces_folder() else { return };
    let keys = info(folder.join("arc_P3.lis.zst"), false);
    let blocks = info(folder.join("arc_P3.lis.zst"), true);
    assert_eq!(blocks.requests, blocks.reads);
    let bytes = (blocks.mean_bytes * blocks.requests as f64).round() as u64;
    assert_eq!(bytes, 512 * keys.requests);
}
