//! Generators keep their laws, their seeds and their words.

use std::collections::HashMap;

use floe_trace::{GeneratorSpec, Kind, Op, OpenOptions, Request, Trace, generators_table};

fn open(text: &str) -> Trace {
    Trace::open_source(text, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn requests(text: &str) -> Vec<Request> {
    open(text).map(Result::unwrap).collect()
}

fn keys(text: &str) -> Vec<u64> {
    requests(text).iter().map(|request| request.key).collect()
}

fn error(text: &str) -> String {
    Trace::open_source(text, &OpenOptions::default()).expect_err(text).to_string()
}

const EACH: [&str; 9] = [
    "zipf:keys=500,requests=3000",
    "drift:keys=500,shift=3,every=10,requests=3000",
    "uniform:keys=500,requests=3000",
    "loop:keys=500,requests=3000",
    "scan:keys=500,every=100,length=20,scanned=70,requests=3000",
    "mix:requests=3000+zipf:keys=100,weight=2+loop:keys=50",
    "ycsb:workload=F,keys=500,requests=3000",
    "sfs:workload=swbuild,keys=500,requests=3000",
    "churn:keys=500,read=50%,requests=3000",
];

/// How far `count` of `draws` is from `share`, in standard deviations.
fn deviation(count: usize, draws: usize, share: f64) -> f64 {
    let expected = draws as f64 * share;
    (count as f64 - expected) / (expected * (1.0 - share)).sqrt()
}

#[test]
fn the_same_seed_makes_the_same_stream_and_another_another() {
    for text in EACH {
        let first = requests(text);
        assert_eq!(first.len(), 3000, "{text}");
        assert_eq!(first, requests(text), "{text}");
        let (head, parts) =
            text.split_once('+').map_or((text, String::new()), |(a, b)| (a, format!("+{b}")));
        let other = requests(&format!("{head},seed=2{parts}"));
        assert_eq!(first == other, text.starts_with("loop"), "{text}");
    }
}

/// Change these only together with the version: people name their traces by seed.
const KEYS_101_TO_106: [[u64; 6]; 9] = [
    [1, 8, 0, 6, 178, 23],
    [31, 38, 30, 36, 208, 53],
    [244, 392, 209, 365, 178, 459],
    [100, 101, 102, 103, 104, 105],
    [500, 501, 502, 503, 504, 505],
    [6, 127, 1, 128, 1, 129],
    [305, 0, 0, 1, 1, 17],
    [0, 121, 396, 0, 484, 132],
    [416, 547, 538, 547, 538, 548],
];

#[test]
fn a_stream_is_the_same_in_every_version() {
    let found = EACH.map(|text| keys(text)[100..106].to_vec());
    assert_eq!(found, KEYS_101_TO_106.map(Vec::from));
}

#[test]
fn a_loop_is_exact() {
    assert_eq!(keys("loop:keys=3,requests=8"), [0, 1, 2, 0, 1, 2, 0, 1]);
}

#[test]
fn a_scan_comes_after_every_so_many_requests_and_goes_on_where_the_last_one_ended() {
    let keys = keys("scan:keys=100,every=5,length=3,scanned=4,requests=32");
    let (popular, scanned): (Vec<_>, Vec<_>) =
        keys.iter().enumerate().partition(|(index, _)| index % 8 < 5);
    assert!(popular.iter().all(|&(_, &key)| key < 100));
    let scanned: Vec<_> = scanned.iter().map(|&(_, &key)| key).collect();
    assert_eq!(scanned, [100, 101, 102, 103, 100, 101, 102, 103, 100, 101, 102, 103]);
}

#[test]
fn uniform_keys_are_equally_likely() {
    let mut counts = [0u32; 1000];
    keys("uniform:keys=1000,requests=2000000").iter().for_each(|&key| counts[key as usize] += 1);
    let chi_square: f64 = counts.iter().map(|&n| (f64::from(n) - 2000.0).powi(2) / 2000.0).sum();
    assert!((chi_square - 999.0).abs() < 4.0 * (2.0f64 * 999.0).sqrt(), "{chi_square}");
}

#[test]
fn the_most_popular_key_has_its_share_and_scattering_only_renames() {
    let harmonic: f64 = (1..=1_000_000).map(|rank| 1.0 / f64::from(rank)).sum();
    let plain = keys("zipf:theta=1,requests=1000000");
    let zeros = plain.iter().filter(|&&key| key == 0).count();
    assert!(deviation(zeros, 1_000_000, 1.0 / harmonic).abs() < 4.0);
    let scattered = keys("zipf:theta=1,requests=1000000,scatter=yes");
    let mut names = HashMap::new();
    assert!(
        plain.iter().zip(&scattered).all(|(rank, key)| names.entry(rank).or_insert(key) == &key)
    );
    assert!(
        scattered.iter().any(|&key| key > 900_000) && scattered.iter().all(|&key| key < 1_000_000)
    );
}

#[test]
fn drift_moves_every_rank_by_the_same_number_of_keys() {
    let still = keys("zipf:keys=50,requests=1000");
    let moving = keys("drift:keys=50,shift=7,every=100,requests=1000");
    for (index, (rank, key)) in still.iter().zip(&moving).enumerate() {
        assert_eq!(*key, (rank + 7 * (index as u64 / 100)) % 50);
    }
}

#[test]
fn parts_of_a_mix_take_turns_by_weight_and_share_no_keys() {
    let keys =
        keys("mix:requests=400000+loop:keys=10,weight=3+uniform:keys=5+loop:keys=4,weight=4");
    let part = |range: std::ops::Range<u64>| -> Vec<u64> {
        keys.iter().copied().filter(|key| range.contains(key)).collect()
    };
    let (first, second, third) = (part(0..10), part(10..15), part(15..19));
    assert_eq!(first.len() + second.len() + third.len(), keys.len());
    for (part, share) in [(&first, 0.375), (&second, 0.125), (&third, 0.5)] {
        assert!(deviation(part.len(), keys.len(), share).abs() < 4.0, "{}", part.len());
    }
    assert!(first.iter().zip((0..10).cycle()).all(|(key, expected)| *key == expected));
    assert!(third.iter().zip((15..19).cycle()).all(|(key, expected)| *key == expected));
}

#[test]
fn ycsb_workloads_have_their_shares_of_operations() {
    for (workload, writes) in [('A', 0.5), ('B', 0.05), ('C', 0.0), ('D', 0.05)] {
        let requests = requests(&format!("ycsb:workload={workload},keys=1000,requests=1000000"));
        let count = requests.iter().filter(|request| request.op == Op::Write).count();
        assert!(
            writes == 0.0 && count == 0 || deviation(count, 1_000_000, writes).abs() < 4.0,
            "{workload}"
        );
    }
}

#[test]
fn ycsb_f_writes_back_what_it_read() {
    let requests = requests("ycsb:workload=F,keys=1000,requests=300000");
    for pair in requests.windows(2) {
        assert!(pair[1].op == Op::Read || pair[0].op == Op::Read && pair[0].key == pair[1].key);
    }
    // Half of the operations are two requests, of which the second writes: a third of all.
    let writes = requests.iter().filter(|request| request.op == Op::Write).count();
    assert!(deviation(writes, requests.len() - writes, 0.5).abs() < 4.0, "{writes}");
}

#[test]
fn ycsb_d_inserts_keys_in_order_and_reads_the_latest_by_zipfs_law() {
    let requests = requests("ycsb:workload=D,keys=1000,theta=1,requests=400000");
    let (mut keys, mut reads, mut latest, mut expected) = (1000u64, 0usize, 0usize, 0.0);
    let mut harmonic: f64 = (1..=keys).map(|rank| 1.0 / rank as f64).sum();
    for request in &requests {
        if request.op == Op::Write {
            assert_eq!(request.key, keys);
            keys += 1;
            harmonic += 1.0 / keys as f64;
            continue;
        }
        assert!(request.key < keys);
        reads += 1;
        latest += usize::from(request.key == keys - 1);
        expected += 1.0 / harmonic;
    }
    assert!(deviation(latest, reads, expected / reads as f64).abs() < 4.0);
}

#[test]
fn ycsb_e_scans_runs_of_existing_keys_of_every_length() {
    let requests = requests("ycsb:workload=E,keys=100000,length=8,requests=500000");
    let mut keys = 100_000;
    let (mut scans, mut inserts, mut reads) = (0usize, 0usize, 0usize);
    let mut before: Option<Request> = None;
    for request in requests {
        if request.op == Op::Write {
            assert_eq!(request.key, keys);
            keys += 1;
            inserts += 1;
        } else {
            assert!(request.key < keys);
            reads += 1;
            let continues = before.is_some_and(|b| b.op == Op::Read && b.key + 1 == request.key);
            scans += usize::from(!continues);
        }
        before = Some(request);
    }
    assert!(
        deviation(inserts, scans + inserts, 0.05).abs() < 5.0,
        "{inserts} inserts, {scans} scans"
    );
    let mean = reads as f64 / scans as f64;
    assert!((mean - 4.5).abs() < 0.05, "{mean}");
}

/// Written blocks hold live data until another block has taken its page's place: with `trim=yes`
/// each block is trimmed between two writes, and no block is read after its trim.
#[test]
fn churn_never_overwrites_a_block_that_was_not_trimmed() {
    let (mut trims, mut trimmed) = (0, HashMap::new());
    for Request { key, op, .. } in requests("churn:keys=200,spare=10%,read=50%,requests=20000") {
        assert!(key < 220);
        match op {
            Op::Write => {
                let was = trimmed.insert(key, false);
                let first = was.is_none() && key >= 200;
                assert!(first || was == Some(true), "{key} holds live data");
            }
            Op::Delete => {
                trims += 1;
                assert_ne!(trimmed.insert(key, true), Some(true), "{key} is trimmed twice");
            }
            Op::Read => assert_ne!(trimmed.get(&key), Some(&true), "{key} is trimmed"),
        }
    }
    assert!(trims > 5000, "{trims}");
}

#[test]
fn churn_without_trims_writes_the_same_blocks() {
    let of = |trim: &str| {
        let all = requests(&format!("churn:keys=200,read=50%,requests=20000,trim={trim}"));
        all.into_iter().filter(|it| it.op != Op::Delete).map(|it| (it.key, it.op)).collect()
    };
    let (with, without): (Vec<_>, Vec<_>) = (of("yes"), of("no"));
    assert!(with.len() < without.len() && without.starts_with(&with));
}

#[test]
fn sfs_workloads_have_their_reads_and_their_sizes() {
    for (workload, reads, kib) in [
        ("dbtable", 0.8, 18.0),
        ("dblog", 0.0, 18.0),
        ("swbuild", 0.2, 23.0),
        ("vda", 0.0, 457.0),
        ("websearch", 1.0, 8.0),
    ] {
        let requests =
            requests(&format!("sfs:workload={workload},keys=100000,block=4KiB,requests=200000"));
        let read = requests.iter().filter(|request| request.op == Op::Read).count();
        if reads == 0.0 || reads == 1.0 {
            assert_eq!(read as f64, reads * 200_000.0, "{workload}");
        } else {
            assert!(deviation(read, 200_000, reads).abs() < 4.0, "{workload}: {read}");
        }
        let mean =
            requests.iter().map(|request| request.bytes).sum::<u64>() as f64 / 200_000.0 / 1024.0;
        assert!((mean / kib - 1.0).abs() < 0.01, "{workload}: {mean} KiB");
        assert!(
            requests.iter().all(|request| request.key + request.bytes <= 100_000 * 4096),
            "{workload}"
        );
    }
}

#[test]
fn sfs_logs_go_to_few_places_and_video_goes_on_where_it_was() {
    let mut times = HashMap::new();
    for key in keys("sfs:workload=dblog,keys=80000,requests=100000") {
        *times.entry(key).or_insert(0usize) += 1;
    }
    let mut times: Vec<_> = times.into_values().collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    // 100 places of 10,000 get 90 %, and a hundredth of the rest.
    let hot: usize = times[..100].iter().sum();
    assert!(deviation(hot, 100_000, 0.901).abs() < 4.0, "{hot}");

    let requests = requests("sfs:workload=vda,keys=10000,block=4KiB,requests=1000");
    let (mut end, mut again) = (0, 0);
    for pair in requests.windows(2) {
        end = if pair[0].key == 0 { pair[0].bytes } else { end.max(pair[0].key + pair[0].bytes) };
        let begins_again = pair[1].key == pair[0].key;
        let goes_on = pair[1].key == end;
        let wraps = pair[1].key == 0;
        assert!(begins_again || goes_on || wraps, "{pair:?}");
        again += usize::from(begins_again);
    }
    assert!(deviation(again, 999, 0.5).abs() < 4.0, "{again}");
}

/// Fewer keys than a request is long.
#[test]
fn sfs_requests_stay_within_bounds() {
    for text in ["keys=1", "keys=3,block=4KiB", "workload=vda,keys=50,block=4KiB"] {
        for request in requests(&format!("sfs:{text},requests=1000")) {
            assert!(request.bytes <= floe_trace::BLOCK_REQUEST_BYTES_MAX, "{request:?}");
        }
    }
}

#[test]
fn blocks_lie_one_behind_the_other_and_are_read_as_often_as_asked() {
    let text = "loop:keys=4,requests=200000,block=8KiB,read=30%";
    assert_eq!(open(text).kind(), Kind::Block);
    assert_eq!(open("loop:keys=4").kind(), Kind::Key);
    let requests = requests(text);
    assert!(
        requests.iter().zip((0..4).cycle()).all(|(r, key)| (r.key, r.bytes) == (key * 8192, 8192))
    );
    let reads = requests.iter().filter(|request| request.op == Op::Read).count();
    assert!(deviation(reads, requests.len(), 0.3).abs() < 4.0);
}

#[test]
fn specs_print_as_they_were_given_and_parse_back() {
    let texts = EACH.into_iter().chain([
        "zipf",
        "zipf:theta=0",
        "uniform:keys=7,requests=9,seed=18446744073709551615,block=1MiB,read=0.25",
        "zipf:scatter=yes",
        "mix+loop:weight=0.5",
    ]);
    for text in texts {
        let spec: GeneratorSpec = text.parse().unwrap();
        assert_eq!(spec.to_string().parse(), Ok(spec.clone()), "{text}");
        assert_eq!(Trace::generate(&spec).unwrap().name(), spec.to_string());
    }
    let spec: GeneratorSpec = "zipf:seed=3,read=70%,keys=1_000,block=4096".parse().unwrap();
    assert_eq!(spec.to_string(), "zipf:keys=1000,seed=3,block=4KiB,read=0.7");
}

#[test]
fn wrong_specs_say_what_there_is() {
    let cases = [
        (
            "zip:keys=3",
            "no generator is called \"zip\"; there are zipf, drift, uniform, loop, scan, mix, \
             ycsb, sfs, churn",
        ),
        ("loop:key=3", "loop has no parameter \"key\"; it has keys, requests, seed, block, read"),
        ("loop:keys=0", "keys: expected a whole number from 1 to 2^48, found \"0\""),
        ("loop:keys", "keys: expected a whole number from 1 to 2^48, found \"\""),
        ("zipf:theta=-1", "theta: expected a number from 0 to 100, found \"-1\""),
        ("zipf:theta=nan", "theta: expected a number from 0 to 100, found \"nan\""),
        ("zipf:read=101%", "read: expected a share such as 70% or 0.7, found \"101%\""),
        ("zipf:scatter=1", "scatter: expected yes or no, found \"1\""),
        ("loop:keys=3,keys=3", "keys is given twice"),
        ("sfs:block=8KiB", "block: expected 4KiB, since sfs has sizes of its own, found \"8192\""),
        (
            "mix:block=1KiB+sfs:keys=9",
            "block: expected 4KiB, since sfs has sizes of its own, found \"1024\"",
        ),
        ("loop:block=100", "block: expected a size from 512 to 4GiB, such as 4KiB, found \"100\""),
        (
            "loop:keys=281474976710656,block=1MiB",
            "281474976710656 keys of this block size do not fit on a disk",
        ),
        ("ycsb:workload=G", "workload: expected a workload from A to F, found \"G\""),
        (
            "ycsb:read=50%",
            "ycsb has no parameter \"read\"; it has workload, keys, theta, length, requests, \
             seed, block",
        ),
        ("mix:requests=5", "mix needs parts, as in mix:requests=9000+zipf:keys=100+loop:keys=50"),
        ("mix+mix", "a mix cannot be part of a mix; give its parts"),
        (
            "loop:keys=5+zipf",
            "loop takes no parts; a mix does: mix:requests=9000+zipf:keys=100+loop:keys=50",
        ),
        ("mix+loop:seed=5", "loop has no parameter \"seed\"; it has keys, weight"),
        ("mix+loop:weight=0", "weight: expected a number above 0, found \"0\""),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), format!("{text}: {message}"));
    }
}

#[test]
fn files_come_before_generators_and_paths_are_no_specs() {
    assert!(error("/no/such:file").starts_with("/no/such:file: cannot open"));
    assert!(error("trace.csv").starts_with("trace.csv: cannot open"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zipf");
    std::fs::write(&path, "7\n8\n").unwrap();
    assert_eq!(keys(path.to_str().unwrap()), [7, 8]);
}

#[test]
fn keys_are_no_disk_io_unless_they_have_a_block_size() {
    let as_blocks = OpenOptions { as_blocks: true, ..OpenOptions::default() };
    let error = Trace::open_source("loop:keys=3", &as_blocks).unwrap_err();
    assert_eq!(
        error.to_string(),
        "loop:keys=3: makes keys; add block=4KiB to make disk I/O of them"
    );
    assert!(Trace::open_source("loop:keys=3,block=4KiB", &as_blocks).is_ok());
}

#[test]
fn the_table_of_generators_has_them_all() {
    let table = generators_table();
    for text in EACH {
        let name = text.split(':').next().unwrap();
        assert!(table.contains(&format!("| {name} |")), "{table}");
    }
}

#[test]
fn progress_counts_requests() {
    let mut trace = open("loop:keys=3,requests=3000");
    assert_eq!((trace.total_bytes(), trace.bytes_read()), (Some(3000), 0));
    assert_eq!(trace.by_ref().count(), 3000);
    assert_eq!(trace.bytes_read(), 3000);
}
