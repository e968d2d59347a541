//! Tests of the advice on counts written by hand.

use floe_block::{Counters, FreezeStats, MemoryUse, MemoryWrite, Requests, Stats, VolumeId};

use super::*;
use crate::status::CacheFacts;

fn facts(policy: Option<&'static str>) -> Facts {
    Facts {
        volumes: Vec::new(),
        total_limit: crate::total_limit::TotalLimit::NONE,
        tiers: vec![CacheFacts {
            key: crate::status::TierKey(0),
            name: String::new(),
            config: std::sync::Arc::default(),
            session: None,
            opened: None,
            journal_lost: false,
            bypass: "",
            size_bytes: 1 << 30,
            mirror: None,
        }],
        started: std::time::SystemTime::now(),
        uptime: Duration::from_secs(1),
        memory: policy.map(|policy| MemoryFacts {
            write: MemoryWrite::Through,
            usage: MemoryUse { policy, shards: 1, ..MemoryUse::default() },
            freezing: None,
        }),
        shedding: None,
        service: ServiceTimes::of(None),
        log_lines_dropped: 0,
        pair: None,
        since_switch: Vec::new(),
    }
}

/// Returns the counts of one second with 72 reads in flight on average, for a hit ratio and a
/// latency of misses.
fn busy_second(hit_ratio: f64, miss: Duration) -> Counted {
    let in_flight = Duration::from_secs(72);
    let misses = (in_flight.as_secs_f64() / miss.as_secs_f64()).round();
    let reads = (misses / (1.0 - hit_ratio)).round() as u64;
    let memory_hits = reads - misses as u64;
    Counted {
        time: Duration::from_secs(1),
        requests: reads,
        reads,
        memory_hits,
        cache_hits: memory_hits,
        reading: in_flight,
        ..Counted::default()
    }
}

#[test]
fn a_tier_of_many_threads_behind_one_lru_list_is_past_its_peak() {
    let lately = busy_second(0.9, Duration::from_micros(100));
    let advice = AdviceStatus::of(&facts(Some("lru")), 72, &lately).unwrap();
    assert!(advice.past_p_star && advice.p_star < 0.8, "{advice:?}");
    assert_eq!(advice.bottleneck.as_deref(), Some("delink"));
    assert!(
        (advice.miss_us.unwrap() - 100.0).abs() < 0.1 && (advice.in_flight - 72.0).abs() < 1e-9
    );
    assert!(advice.frozen_gain.unwrap() > 0.5 && advice.other_gain.unwrap() > 0.5);
    for part in ["More hits in memory would slow reads down", "frozen", "times of another machine"]
    {
        assert!(advice.text.contains(part), "{}", advice.text);
    }
    let fifo_like = AdviceStatus::of(&facts(Some("qd-clock")), 72, &lately).unwrap();
    assert!(!fifo_like.past_p_star && fifo_like.p_star == 1.0);
    assert!(!fifo_like.text.contains("slow reads down"), "{}", fifo_like.text);
}

#[test]
fn frozen_pages_count_only_while_there_are_some() {
    let lately = busy_second(0.9, Duration::from_micros(100));
    let model = |frozen_pages| {
        let mut facts = facts(Some("lru"));
        let memory = facts.memory.as_mut().unwrap();
        memory.usage.frozen_pages = frozen_pages;
        memory.freezing = Some(FreezeStats::default());
        memory.freezing.as_mut().unwrap().frozen_share = Some(0.9);
        AdviceStatus::of(&facts, 72, &lately).unwrap().model_reads_per_second.unwrap()
    };
    assert!(model(5) > 2.0 * model(0));
}

#[test]
fn measured_times_need_no_excuse() {
    let mut facts = facts(Some("lru"));
    facts.service = ServiceTimes::of(Some(&Arc::new(Service::paper())));
    let advice =
        AdviceStatus::of(&facts, 72, &busy_second(0.9, Duration::from_micros(100))).unwrap();
    assert!(advice.past_p_star && !advice.text.contains("another machine"), "{}", advice.text);
}

#[test]
fn without_a_tier_in_memory_threads_are_what_is_waited_for() {
    let mut lately = busy_second(0.9, Duration::from_micros(100));
    lately.processor = Duration::from_millis(1500);
    let advice = AdviceStatus::of(&facts(None), 2, &lately).unwrap();
    assert_eq!((advice.bottleneck.as_deref(), advice.utilisation), (Some("cores"), 0.75));
    assert_eq!(advice.text, "The server's threads were busy for 75 % of the last 1 s.");
    lately = Counted { time: APART, processor: APART.mul_f64(1.9), ..lately };
    let advice = AdviceStatus::of(&facts(None), 2, &lately).unwrap();
    assert!(advice.text.ends_with(": they limit reads."), "{}", advice.text);
    assert!(!advice.past_p_star && advice.tier == "cache" && (advice.hit_ratio - 0.9).abs() < 1e-3);
}

#[test]
fn nothing_read_is_nothing_to_say() {
    let idle = Counted { time: Duration::from_secs(9), ..Counted::default() };
    assert_eq!(AdviceStatus::of(&facts(Some("lru")), 2, &idle), None);
    assert_eq!(AdviceStatus::of(&facts(None), 2, &Counted::default()), None);
}

#[test]
fn advice_is_of_lately_and_of_no_less_than_some_seconds() {
    let at = |seconds, requests| Counted {
        time: Duration::from_secs(seconds),
        requests,
        ..Counted::default()
    };
    let mut lately = Lately::default();
    assert_eq!(lately.until(at(3, 30)), at(3, 30), "a young server tells of its whole life");
    assert_eq!(lately.until(at(100, 1000)), at(100, 1000));
    assert_eq!(lately.until(at(101, 1001)), at(101, 1001), "a second is too little to tell from");
    assert_eq!(lately.until(at(115, 1150)), at(15, 150));
    assert_eq!(lately.until(at(120, 1200)), at(20, 200));
}

#[test]
fn counts_are_those_of_all_threads() {
    let mut sum = Snapshot {
        stats: Stats {
            memory_hits: 1,
            requests: Requests { reads: 2, read_hits: 1, ..Requests::default() },
            counters: Counters { cleaned_bytes: 12 << 20, ..Counters::default() },
            ..Stats::default()
        },
        spun: Duration::from_secs(1),
        ..Snapshot::default()
    };
    let ms = Duration::from_millis;
    sum.counters.answered(VolumeId(0), Operation::Read, 1, ms(10), true);
    sum.counters.answered(VolumeId(0), Operation::Read, 1, ms(1), true);
    sum.counters.answered(VolumeId(0), Operation::Write, 1, ms(5), true);
    sum.counters.from_memory = ms(1);
    let counted = Counted::of(&sum, ms(60_000), ms(1500));
    let expected = Counted {
        time: ms(60_000),
        requests: 3,
        reads: 2,
        memory_hits: 1,
        cache_hits: 1,
        reading: ms(11),
        from_memory: ms(1),
        processor: ms(500),
        cleaned_bytes: 12 << 20,
    };
    assert_eq!(counted, expected);
    assert_eq!(counted.seconds_to_clean(2 << 20), Some(10.0));
    assert_eq!(counted.seconds_to_clean(0), Some(0.0));
    assert_eq!(Counted { cleaned_bytes: 0, ..counted }.seconds_to_clean(1), None);
}
