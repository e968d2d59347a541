//! Advice never goes beyond the trace that it is given.

use floe_lab::advise::{
    Advice, AdviseError, Backing, BucketPrices, Goal, Question, Trial, Workload, advise,
};
use floe_lab::report::{advice_report, html};
use floe_trace::{Op, Request};

fn question() -> Question {
    Question {
        trace: "trace".into(),
        goal: Goal::Mean,
        backing: Backing::Medium("hdd".into()),
        cache: "nvme".into(),
        cache_bytes: None,
        in_flight: 1,
        warmup: 0.2,
        writes: vec!["through".into(), "around".into()],
        price: None,
    }
}

fn ask(requests: &[Request]) -> Result<Advice, AdviseError> {
    ask_of(&question(), requests)
}

fn ask_of(question: &Question, requests: &[Request]) -> Result<Advice, AdviseError> {
    let workload = Workload::read(requests.iter().copied().map(Ok)).expect("the trace is sound");
    advise(question, &workload, &|_, _| true)
}

fn request(op: Op, key: u64, bytes: u64, time_ns: u64) -> Request {
    Request { time_ns, key, bytes, volume: 0, op }
}

/// Reads of 4 KiB, each of a block of 32 KiB of its own, twice.
fn reads(blocks: u64, apart_ns: u64) -> Vec<Request> {
    (0..2 * blocks).map(|at| request(Op::Read, at % blocks * 32768, 4096, at * apart_ns)).collect()
}

#[test]
fn no_size_is_larger_than_all_that_is_touched() {
    // 18 MiB in blocks of 32 KiB: half and twice a size of 16 MiB would be more.
    let found = ask(&reads(576, 1_000_000_000)).expect("advice");
    assert_eq!((found.footprint_bytes, found.footprint_in_cache_bytes), (576 * 4096, 18 << 20));
    for trial in found.finalists.iter().chain([&found.best, &found.default]) {
        assert!(trial.candidate.cache_bytes <= 18 << 20, "{}", trial.candidate);
    }
    let few = ask(&reads(160, 1_000_000_000)).expect("advice");
    assert!(few.best.candidate.cache_bytes <= 5 << 20, "{}", few.best.candidate);
}

#[test]
fn discards_and_requests_of_nothing_are_nothing_to_cache() {
    let trims: Vec<_> = (0..50).map(|at| request(Op::Delete, at << 20, 1 << 20, at)).collect();
    let empty: Vec<_> = (0..50).map(|at| request(Op::Read, at << 20, 0, at)).collect();
    for requests in [trims.clone(), empty, Vec::new()] {
        let refused = ask(&requests).expect_err("there is nothing to advise on");
        assert!(refused.to_string().contains("no reads or writes"), "{refused}");
    }
    let mut mixed = reads(576, 0);
    mixed.extend(trims);
    assert_eq!(ask(&mixed).expect("advice").footprint_bytes, 576 * 4096);
}

#[test]
fn doubtful_advice_says_so() {
    let has = |advice: &Advice, word: &str| advice.warnings.iter().any(|it| it.contains(word));
    let few = ask(&reads(2, 1_000_000_000)).expect("advice");
    assert!(has(&few, "too few") && has(&few, "smallest cache") && has(&few, "spans 3 s"));
    let untimed = ask(&reads(6000, 0)).expect("advice");
    assert!(has(&untimed, "no times") && !untimed.best.has_pace());
    let sound = ask(&reads(7000, 1_000_000_000)).expect("advice");
    assert_eq!((&sound.warnings, sound.best.has_pace()), (&vec![], true));
    let page = html(&advice_report("floe advise", &sound));
    let toml = sound.verdict.toml.expect("a cache pays");
    let text = toml.trim_end().replace('"', "&quot;");
    assert!(page.contains(&format!("<pre><code>{text}\n</code></pre>")), "{page}");
}

#[test]
fn a_bucket_has_the_cost_of_its_requests() {
    let prices = BucketPrices { sent_gigabyte: 0.09, ..BucketPrices::default() };
    let question = |object_bytes| Question {
        backing: Backing::Bucket { object_bytes, prices },
        writes: vec!["through".into(), "back".into()],
        ..question()
    };
    // Writes of 4 KiB to 8 MiB, a second apart, twice.
    let write = |at: u64| request(Op::Write, at % 2048 * 4096, 4096, at * 1_000_000_000);
    let writes: Vec<Request> = (0..4096).map(write).collect();
    let found = ask_of(&question(None), &writes).expect("advice");
    let counted = 3277; // 80 %
    let bare = found.bare.result.bucket.as_ref().expect("it is a bucket");
    assert_eq!((bare.requests.puts, bare.clock), (counted, "trace"));
    assert_eq!(bare.requests.put_bytes, counted << 20);
    let cost = |trial: &Trial| {
        trial.bucket.expect("it is a bucket").dollars_per_month.expect("the trace has times")
    };
    // A put a second: 2,592,000 in 30 days, at 5 dollars a million, and few reads.
    assert!((cost(&found.bare) / 12.96 - 1.0).abs() < 0.05, "{:?}", found.bare.bucket);
    assert_eq!(found.best.candidate.write, "back");
    assert!(cost(&found.best) < cost(&found.bare) / 4.0, "{:?}", found.best.bucket);
    let toml = found.verdict.toml.as_ref().expect("a cache pays");
    assert!(toml.contains("backing = \"s3://BUCKET/VOLUME\""), "{toml}");
    assert!(found.verdict.text.contains(" a month instead of $1"), "{}", found.verdict.text);

    // One object is written once a second. A cache puts it every 5 seconds, its flush interval.
    let again: Vec<Request> =
        (0..4000).map(|at| request(Op::Write, at % 64 * 4096, 4096, at * 1_000_000_000)).collect();
    let found = ask_of(&question(None), &again).expect("advice");
    let back = found.finalists.iter().find(|trial| trial.candidate.write == "back");
    let puts = back.and_then(|trial| trial.result.bucket.as_ref()).expect("a trial").requests.puts;
    // By more than one put each time, and by fewer than the writes.
    assert!((600..1600).contains(&puts), "{puts} in 3200 seconds");

    // Reads without times: the price is that of the trace's requests.
    let found = ask_of(&question(Some(256 << 10)), &reads(1024, 0)).expect("advice");
    let bare = found.bare.bucket.expect("it is a bucket");
    assert_eq!(bare.dollars_per_month, None);
    let wanted = 0.40 + 4096.0 * 1e6 / 1e9 * 0.09;
    assert!((bare.dollars_per_million_requests / wanted - 1.0).abs() < 1e-6, "{bare:?}");
    let toml = found.verdict.toml.expect("a cache pays");
    assert!(toml.contains("s3://BUCKET/VOLUME,object=256KiB"), "{toml}");
}
