//! The block cache against an independent model of AdaCache, on a real trace.
//!
//! Needs the trace: set `FLOE_TRACES` to the folder that holds `arc_P2.lis.zst`. The figures are of
//! reads of `count` sectors a line through a cache of 45 MiB.

use floe_block::{Config, WriteMode};
use floe_lab::simulate::blocks::{Setup, simulate};
use floe_testkit::traces_folder;
use floe_trace::{OpenOptions, Request, Trace};

/// Block sizes, full hits, bytes read from the backing device, blocks allocated.
const REFERENCE: [(&str, u64, u64, u64); 5] = [
    ("32KiB,64KiB,128KiB,256KiB", 409_835, 9_903_603_712, 280_579),
    ("32KiB", 408_516, 9_953_705_984, 303_763),
    ("64KiB", 447_801, 15_051_718_656, 229_671),
    ("256KiB", 523_436, 37_908_381_696, 144_609),
    ("4KiB,8KiB,16KiB,32KiB,64KiB", 254_132, 4_718_845_952, 635_706),
];

#[test]
fn arc_p2_agrees_with_an_independent_model_within_one_percent() {
    let Some(folder) = traces_folder() else { return };
    let options = OpenOptions { as_blocks: true, ..OpenOptions::default() };
    let trace = Trace::open(folder.join("arc_P2.lis.zst"), &options).expect("the trace opens");
    let requests: Vec<Request> = trace.collect::<Result<_, _>>().expect("the trace is sound");
    assert_eq!(requests.len(), 666_176);
    for (sizes, hits, backing_read_bytes, blocks) in REFERENCE {
        let setup = Setup {
            cache: Config {
                sizes: sizes.parse().expect("block sizes"),
                cache_bytes: 45 << 20,
                mode: WriteMode::Back,
                shards: Some(1),
                ..Config::default()
            },
            warmup: 0,
            interval: None,
            clean_every_ns: u64::MAX,
        };
        let outcome = simulate("arc_P2", &requests, &setup).expect("the cache can be made");
        println!("{outcome:?}");
        for (what, ours, theirs) in [
            ("full hits", outcome.read_hits, hits),
            ("bytes read", outcome.backing_read_bytes, backing_read_bytes),
            ("blocks", outcome.blocks_allocated, blocks),
        ] {
            let difference = ours as f64 / theirs as f64 - 1.0;
            assert!(
                difference.abs() < 0.01,
                "{sizes}: {what} {ours} against {theirs} ({difference:+.4})"
            );
        }
    }
}
