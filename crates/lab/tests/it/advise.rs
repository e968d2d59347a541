//! Advice never goes beyond the trace that it is given.

use floe_lab::advise::{Advice, AdviseError, Goal, Question, Workload, advise};
use floe_lab::report::{advice_report, html};
use floe_trace::{Op, Request};

fn question() -> Question {
    Question {
        trace: "trace".into(),
        goal: Goal::Mean,
        backing: "hdd".into(),
        cache: "nvme".into(),
        cache_bytes: None,
        in_flight: 1,
        warmup: 0.2,
        writes: vec!["through".into(), "around".into()],
        price: None,
    }
}

fn ask(requests: &[Request]) -> Result<Advice, AdviseError> {
    let workload = Workload::read(requests.iter().copied().map(Ok)).expect("the trace is sound");
    advise(&question(), &workload, &|_, _| true)
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
