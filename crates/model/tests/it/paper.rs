//! What the paper prints of its networks, and what exact analysis says of them.

use floe_model::bound;
use floe_model::peak::{Class, Peak, peak};
use floe_model::policies::POLICIES;
use floe_model::{Load, Network, Operation, Policy, Service, Setting, Time, mva};

fn network(policy: &str, setting: Setting) -> Network {
    let policy = Policy::named(policy).expect("a policy");
    policy.network(&Service::paper(), &setting).expect("a network")
}

fn hit_ratios() -> impl Iterator<Item = f64> {
    (0..=1000).map(|at| f64::from(at) / 1000.0)
}

/// Equations (1) to (6): disk, and A, B of `72 / (A − B p)`.
const LRU: [(f64, f64, f64); 3] = [(100.0, 101.1, 99.3), (5.0, 6.1, 4.3), (500.0, 501.1, 499.3)];
const FIFO: [(f64, f64, f64); 3] =
    [(100.0, 101.24, 100.73), (5.0, 6.24, 5.73), (500.0, 501.24, 500.73)];

#[test]
fn a_mark_that_is_written_takes_its_price() {
    let mut service = Service::paper();
    let clock = service.policies.iter_mut().find(|times| times.policy == "clock").expect("clock");
    clock.times.insert(Operation::WrittenMark, Time::of(0.4));
    let clock = Policy::named("clock").expect("clock");
    let us = |written| {
        let setting = Setting { written, ..Setting::new(0.9, 100.0) };
        let network = clock.network(&service, &setting).expect("a network");
        1.0 / mva::throughput(&network, &Load::of(1)).expect("a load")
    };
    assert!((us(0.25) - us(0.0) - 0.9 * 0.25 * 0.4).abs() < 1e-9);
    let setting = Setting { written: 1.5, ..Setting::new(0.9, 100.0) };
    assert!(clock.network(&service, &setting).is_err());
}

#[test]
fn bounds_are_the_printed_equations() {
    let load = Load::of(72);
    let equal = |found: f64, printed: f64| {
        assert!((found / printed - 1.0).abs() < 1e-12, "{found}, {printed}")
    };
    for (lru, fifo) in LRU.into_iter().zip(FIFO) {
        for p in hit_ratios() {
            let (disk_us, a, b) = lru;
            let printed = (72.0 / (a - b * p)).min(1.0 / f64::max(0.59, 0.7 * p));
            equal(bound(&network("lru", Setting::new(p, disk_us)), &load), printed);
            let (disk_us, a, b) = fifo;
            let printed = (72.0 / (a - b * p)).min(1.0 / (0.73 - 0.73 * p));
            equal(bound(&network("fifo", Setting::new(p, disk_us)), &load), printed);
        }
    }
}

#[test]
fn bounds_are_the_papers_demands() {
    let load = Load::of(72);
    for p in hit_ratios() {
        let (m, g) = (1.0 - p, 2.43e-5 * (11.24 * p).exp() + 0.187);
        let of =
            |demand: f64, longest: f64, think: f64| (72.0 / (demand + think)).min(1.0 / longest);
        let think = 0.51 + 100.0 * m;
        let found = |policy: &str, q: Option<f64>| {
            bound(&network(policy, Setting { q, ..Setting::new(p, 100.0) }), &load)
        };
        let clock = (0.65 + 0.3 * g) * m;
        let (skipped, kept) = (0.5 * p, 0.5 * p);
        let prob =
            of(kept * 0.78 + (m + kept) * 0.65, f64::max(0.78 * kept, 0.65 * (kept + m)), think);
        for (found, printed) in [
            (found("clock", None), of(clock, clock, think)),
            (found("prob-lru", Some(0.5)), prob),
            (found("prob-lru", Some(0.0)), found("lru", None)),
            (found("prob-lru", Some(1.0)), found("fifo", None)),
        ] {
            assert!((found / printed - 1.0).abs() < 1e-12, "{p} {skipped}: {found}, {printed}");
        }
        if p >= 0.4 {
            let protected = -0.1158 * p * p + 1.0112 * p - 0.0009;
            let below = p - protected + m;
            let slru = of(
                0.7 * protected + 0.59 * below + 0.59 * p,
                (0.7 * protected).max(0.59 * below).max(0.59 * p),
                think,
            );
            assert!(
                (found("slru", None) / slru - 1.0).abs() < 1e-12,
                "{p}: {} {slru}",
                found("slru", None)
            );
        }
    }
}

#[test]
fn no_policy_passes_its_bound() {
    for policy in &POLICIES {
        for (mpl, disk_us) in [(1, 5.0), (16, 100.0), (72, 5.0), (72, 500.0), (3000, 100.0)] {
            for p in hit_ratios().step_by(50) {
                let load = Load::of(mpl);
                let network = network(policy.name, Setting::new(p, disk_us));
                let (exact, most) =
                    (mva::throughput(&network, &load).expect("a load"), bound(&network, &load));
                assert!(
                    exact <= most * (1.0 + 1e-12) && exact > 0.3 * most,
                    "{} {mpl} {disk_us} {p}: {exact}, {most}",
                    policy.name
                );
            }
        }
    }
}

fn peak_of(policy: &str, q: Option<f64>, mpl: u32, disk_us: f64) -> Peak {
    let setting = Setting { q, ..Setting::new(1.0, disk_us) };
    let policy = Policy::named(policy).expect("a policy");
    peak(&policy, &Service::paper(), &setting, &Load::of(mpl)).expect("a model")
}

#[test]
fn lrus_peak_comes_earlier_than_the_bound_says_and_earlier_still_with_more_in_flight() {
    // Where 0.7 p, the demand on delink, passes 0.59, that on the head.
    let corner = 0.59 / 0.7;
    let star = |mpl, disk_us| peak_of("lru", None, mpl, disk_us).hit_ratio;
    for (mpl, disk_us, p_star) in [
        (72, 5.0, 0.45),
        (72, 100.0, 0.75),
        (72, 500.0, 0.94),
        (16, 100.0, 0.98),
        (144, 100.0, 0.60),
    ] {
        let found = star(mpl, disk_us);
        assert!((found - p_star).abs() <= 0.01, "MPL {mpl}, {disk_us} µs: {found}");
        if mpl >= 72 && disk_us <= 100.0 {
            assert!(found < corner, "MPL {mpl}, {disk_us} µs: {found}");
        }
    }
    for disk_us in [5.0, 100.0, 500.0] {
        assert!(
            star(144, disk_us) < star(72, disk_us) && star(72, disk_us) < star(16, disk_us),
            "{disk_us} µs"
        );
    }
    assert_eq!(star(16, 500.0), 1.0, "with few in flight and a slow disk it never falls");
}

#[test]
fn with_a_fast_disk_lru_begins_with_a_plateau() {
    let at =
        |p| mva::throughput(&network("lru", Setting::new(p, 5.0)), &Load::of(72)).expect("a load");
    let peak = peak_of("lru", None, 72, 5.0).throughput_mrps;
    for p in [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75] {
        assert!(at(p) > 0.99 * peak, "{p}: {} of {peak}", at(p));
    }
    assert!(at(1.0) < 0.86 * peak);
}

#[test]
fn policies_are_classed_as_the_paper_does() {
    for (mpl, disk_us) in [(72, 5.0), (72, 100.0), (144, 100.0), (144, 5.0)] {
        let of = |policy, q| peak_of(policy, q, mpl, disk_us);
        for (policy, station) in [
            ("lru", "delink"),
            ("relaxed-lru", "delink"),
            ("slru", "delink-H"),
            ("tiny-lru", "delink"),
            ("2q", "delink-M"),
        ] {
            let peak = of(policy, None);
            assert_eq!(
                (peak.class, peak.bottleneck),
                (Class::LruLike, Some(station)),
                "{policy} {mpl} {disk_us}"
            );
        }
        for (policy, station) in [
            ("fifo", Some("head")),
            ("clock", Some("tail")),
            ("sieve", Some("tail")),
            ("s3-fifo", Some("head-S")),
            ("sampled", None),
            // With one lock around all of it a miss is what holds it longest.
            ("single-lock-lru", Some("list")),
        ] {
            let peak = of(policy, None);
            assert_eq!(
                (peak.class, peak.bottleneck),
                (Class::FifoLike, station),
                "{policy} {mpl} {disk_us}"
            );
        }
        assert_eq!(of("prob-lru", Some(0.5)).class, Class::LruLike, "{mpl} {disk_us}");
        let q = 1.0 - 1.0 / f64::from(mpl);
        assert_eq!(of("prob-lru", Some(q)).class, Class::FifoLike, "{mpl} {disk_us}");
    }
}

#[test]
fn fifo_like_policies_never_fall() {
    for (policy, q) in [
        ("fifo", None),
        ("clock", None),
        ("sieve", None),
        ("sampled", None),
        ("prob-lru", Some(1.0 - 1.0 / 72.0)),
    ] {
        for disk_us in [5.0, 100.0, 500.0] {
            let mut before = 0.0;
            for p in hit_ratios() {
                let setting = Setting { q, ..Setting::new(p, disk_us) };
                let throughput =
                    mva::throughput(&network(policy, setting), &Load::of(72)).expect("a load");
                assert!(
                    throughput >= before,
                    "{policy} {disk_us} µs falls at {p}: {before}, {throughput}"
                );
                before = throughput;
            }
        }
    }
}
