//! Miss ratios on public traces against those of an independent simulator, libCacheSim, and of the
//! ARC paper.
//!
//! Runs when FLOE_TRACES names a folder with `arc_OLTP.lis.zst` and `arc_P3.lis.zst`; sizes are in
//! entries.

use crate::support::{Cache, Dense};
use floe_policy::registry::{Choice, Visitor};
use floe_policy::{AnyPolicy, Policy, Replacement, with};

/// A trace, a size, and what each policy misses there.
type Answers = (&'static str, usize, &'static [(&'static str, f64)]);

/// Defined to the last detail, so every implementation must agree to the printed digit.
const EXACT: &[Answers] = &[
    (
        "OLTP",
        1000,
        &[
            ("fifo", 0.7147),
            ("lru", 0.6717),
            ("clock", 0.6673),
            ("sieve", 0.6744),
            ("belady", 0.4639),
        ],
    ),
    (
        "OLTP",
        5000,
        &[
            ("fifo", 0.5032),
            ("lru", 0.4635),
            ("clock", 0.4617),
            ("sieve", 0.4811),
            ("belady", 0.3173),
        ],
    ),
    (
        "OLTP",
        15000,
        &[
            ("fifo", 0.3858),
            ("lru", 0.3537),
            ("clock", 0.3523),
            ("sieve", 0.3490),
            ("belady", 0.2486),
        ],
    ),
    (
        "P3",
        10000,
        &[
            ("fifo", 0.9825),
            ("lru", 0.9827),
            ("clock", 0.9825),
            ("sieve", 0.9672),
            ("belady", 0.8695),
        ],
    ),
    (
        "P3",
        50000,
        &[
            ("fifo", 0.9260),
            ("lru", 0.9314),
            ("clock", 0.9285),
            ("sieve", 0.8410),
            ("belady", 0.5685),
        ],
    ),
    (
        "P3",
        200000,
        &[
            ("fifo", 0.4677),
            ("lru", 0.4065),
            ("clock", 0.3971),
            ("sieve", 0.4620),
            ("belady", 0.2592),
        ],
    ),
];

/// ARC, within 0.002.
const ARC: &[Answers] = &[
    ("OLTP", 1000, &[("arc", 0.6105)]),
    ("OLTP", 5000, &[("arc", 0.4475)]),
    ("OLTP", 15000, &[("arc", 0.3460)]),
    ("P3", 10000, &[("arc", 0.9549)]),
    ("P3", 50000, &[("arc", 0.7778)]),
    ("P3", 200000, &[("arc", 0.4019)]),
];

/// One minus the hit ratios printed in the ARC paper (Megiddo and Modha, FAST '03). At 1000 entries
/// it is 38.945 % here against 38.93 % there, as in libCacheSim; the others agree to the last
/// digit.
const ARC_PAPER: &[Answers] = &[
    ("OLTP", 1000, &[("arc", 1.0 - 0.3893)]),
    ("OLTP", 5000, &[("arc", 1.0 - 0.5525)]),
    ("OLTP", 15000, &[("arc", 1.0 - 0.6540)]),
];

/// Families of variants: within 0.01, or better. Hyperbolic is not compared: it is 0.011 worse on
/// P3 at 50,000.
#[rustfmt::skip]
const CLOSE: &[Answers] = &[
    ("OLTP", 1000, &[("s3-fifo", 0.5916), ("slru", 0.6068), ("2q", 0.5947), ("lirs", 0.6542),
        ("w-tinylfu", 0.6814), ("lfu", 0.8617), ("lecar", 0.6569)]),
    ("OLTP", 5000, &[("s3-fifo", 0.4412), ("slru", 0.4623), ("2q", 0.4427), ("lirs", 0.4738),
        ("w-tinylfu", 0.5259), ("lfu", 0.7200), ("lecar", 0.4609)]),
    ("OLTP", 15000, &[("s3-fifo", 0.3396), ("slru", 0.3436), ("2q", 0.3428), ("lirs", 0.3602),
        ("w-tinylfu", 0.4026), ("lfu", 0.5864), ("lecar", 0.3487)]),
    ("P3", 10000, &[("s3-fifo", 0.9501), ("slru", 0.9607), ("2q", 0.9608), ("lirs", 0.9492),
        ("w-tinylfu", 0.9407), ("lfu", 0.9675), ("lecar", 0.9827)]),
    ("P3", 50000, &[("s3-fifo", 0.7541), ("slru", 0.8762), ("2q", 0.7966), ("lirs", 0.7581),
        ("w-tinylfu", 0.7750), ("lfu", 0.8410), ("lecar", 0.9311)]),
    ("P3", 200000, &[("s3-fifo", 0.3971), ("slru", 0.4208), ("2q", 0.4192), ("lirs", 0.3933),
        ("w-tinylfu", 0.4457), ("lfu", 0.4620), ("lecar", 0.3991)]),
];

/// S3-FIFO as its author runs it since 2024, within 0.007: here the last departures are ghosts, as
/// in section 4.2 of the paper, and the queue to evict from is chosen anew after each promotion.
const FILLED_MAIN: &[Answers] = &[
    ("OLTP", 1000, &[("s3-fifo:fill=main", 0.591_448)]),
    ("OLTP", 5000, &[("s3-fifo:fill=main", 0.442_513)]),
    ("OLTP", 15000, &[("s3-fifo:fill=main", 0.340_183)]),
    ("P3", 10000, &[("s3-fifo:fill=main", 0.948_065)]),
    ("P3", 50000, &[("s3-fifo:fill=main", 0.764_504)]),
    ("P3", 200000, &[("s3-fifo:fill=main", 0.394_182)]),
];

/// S4-FIFO with its defaults is that S3-FIFO, within 0.0001.
const S4_FIFO: &[Answers] = &[
    ("OLTP", 1000, &[("s4-fifo", 0.591_448)]),
    ("OLTP", 5000, &[("s4-fifo", 0.442_513)]),
    ("OLTP", 15000, &[("s4-fifo", 0.340_183)]),
    ("P3", 10000, &[("s4-fifo", 0.948_065)]),
    ("P3", 50000, &[("s4-fifo", 0.764_504)]),
    ("P3", 200000, &[("s4-fifo", 0.394_182)]),
];

/// Clock2Q+ by its authors' code in libCacheSim, within 0.0001.
const CLOCK2Q_PLUS: &[Answers] = &[
    ("OLTP", 1000, &[("clock2q-plus", 0.598_159)]),
    ("OLTP", 5000, &[("clock2q-plus", 0.450_409)]),
    ("OLTP", 15000, &[("clock2q-plus", 0.339_934)]),
    ("P3", 10000, &[("clock2q-plus", 0.948_302)]),
    ("P3", 50000, &[("clock2q-plus", 0.771_228)]),
    ("P3", 200000, &[("clock2q-plus", 0.392_667)]),
];

/// MQ in libCacheSim, whose lifetime is in requests: twice the size. Within 0.0001.
const MQ: &[Answers] = &[
    ("OLTP", 1000, &[("mq:lifetime=2", 0.600_720)]),
    ("OLTP", 5000, &[("mq:lifetime=2", 0.439_058)]),
    ("OLTP", 15000, &[("mq:lifetime=2", 0.333_598)]),
    ("P3", 10000, &[("mq:lifetime=2", 0.980_181)]),
    ("P3", 50000, &[("mq:lifetime=2", 0.761_329)]),
    ("P3", 200000, &[("mq:lifetime=2", 0.387_969)]),
];

/// Misses of CLOCK-Pro's author's simulation with 500, 1000 and 2000 pages, 5 % of them cold, as
/// published with Caffeine's simulator, which has the same. Requests for one key in a row are one.
const CLOCK_PRO: &[(&str, [usize; 3])] = &[
    ("2_pools", [48_078, 45_665, 40_856]),
    ("cpp", [1269, 1226, 1223]),
    ("cs", [4873, 2903, 1409]),
    ("gli", [4098, 3004, 2529]),
    ("loop", [268_475, 31_450, 1011]),
    ("multi1", [7049, 5151, 2648]),
    ("ps", [4557, 3607, 3083]),
    ("sprite", [31_061, 15_534, 10_384]),
    ("zigzag", [51_401, 50_776, 3115]),
];

struct MissRatio<'a> {
    trace: &'a Dense,
    next_uses: &'a [u64],
    size: usize,
}

impl Visitor for MissRatio<'_> {
    type Out = f64;

    fn visit<P: Policy>(self, make: impl Fn() -> P) -> f64 {
        self.of(make())
    }
}

impl MissRatio<'_> {
    fn of(&self, order: impl Replacement) -> f64 {
        let mut cache = Cache::new(order, self.size, self.trace);
        let requests = self.trace.keys.iter().zip(self.next_uses);
        let misses = requests.filter(|&(&key, &next_use)| !cache.request(key, next_use)).count();
        misses as f64 / self.trace.keys.len() as f64
    }
}

/// Compares every answer and returns the ones that `agrees` does not accept.
fn compare(answers: &[Answers], agrees: impl Fn(f64, f64) -> bool) {
    let mut wrong = Vec::new();
    for trace_name in ["OLTP", "P3"] {
        let Some(trace) = Dense::arc(trace_name) else { return };
        let next_uses = trace.next_uses();
        for &(_, size, policies) in answers.iter().filter(|answer| answer.0 == trace_name) {
            for &(policy, expected) in policies {
                let choice: Choice = policy.parse().expect("the policy is registered");
                let misses = MissRatio { trace: &trace, next_uses: &next_uses, size };
                let at_run_time = misses.of(AnyPolicy::new(&choice));
                let ours = with(&choice, misses);
                assert_eq!(at_run_time, ours, "{policy} chosen at run time");
                let verdict = if agrees(ours, expected) { "" } else { "  <- differs" };
                eprintln!(
                    "{trace_name} {size:>6} {policy:<12} {ours:.5} (reference \
                     {expected:.4}){verdict}"
                );
                if !verdict.is_empty() {
                    wrong.push(format!(
                        "{trace_name} {size} {policy}: {ours:.4}, not {expected:.4}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn to_the_printed_digit(ours: f64, expected: f64) -> bool {
    (ours - expected).abs() < 0.000_051
}

#[test]
fn exactly_defined_policies_agree_to_the_printed_digit() {
    compare(EXACT, to_the_printed_digit);
}

#[test]
fn arc_agrees_with_an_independent_one() {
    compare(ARC, |ours, expected| (ours - expected).abs() <= 0.002);
}

#[test]
fn arc_agrees_with_its_paper() {
    compare(ARC_PAPER, |ours, expected| (ours - expected).abs() <= 0.0003);
}

#[test]
fn variants_are_close_or_better() {
    compare(CLOSE, |ours, expected| ours <= expected + 0.01);
}

#[test]
fn s3_fifo_that_fills_its_main_queue_is_close_to_its_authors() {
    compare(FILLED_MAIN, |ours, expected| (ours - expected).abs() <= 0.007);
}

#[test]
fn s4_fifo_clock2q_plus_and_mq_agree_with_independent_ones() {
    compare(S4_FIFO, |ours, expected| (ours - expected).abs() <= 0.0001);
    compare(CLOCK2Q_PLUS, |ours, expected| (ours - expected).abs() <= 0.0001);
    compare(MQ, |ours, expected| (ours - expected).abs() <= 0.0001);
}

#[test]
fn clock_pro_misses_as_often_as_its_authors_simulation() {
    let choice: Choice =
        "clock-pro:min=0.05:max=0.05:late-hit=evict".parse().expect("the policy is registered");
    for &(name, expected) in CLOCK_PRO {
        let Some(trace) = Dense::lirs_without_repeats(name) else { return };
        let next_uses = vec![0; trace.keys.len()];
        let misses = [500, 1000, 2000].map(|size| {
            let ratio = with(&choice, MissRatio { trace: &trace, next_uses: &next_uses, size });
            (ratio * trace.keys.len() as f64).round() as usize
        });
        assert_eq!(misses, expected, "{name}");
    }
}
