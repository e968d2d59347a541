//! Caches that shed by themselves, driven by the library's thread. How soon they decide is the
//! machine's affair, so each test goes on until they have.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use floe_memory::policy::trial::TrialOptions;
use floe_memory::{BuildError, Cache, Freezing, SheddingOptions, SheddingStats};

/// A key that takes a while to compare, as a hit does that waits for others.
#[derive(Clone, Eq)]
struct Slow(u64);

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        self.0 == other.0
    }
}

impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// One rung, of half of the requests.
fn half() -> SheddingOptions {
    let interval_min = Duration::from_millis(50);
    let trial = TrialOptions { interval_min, count_min: 5, ..TrialOptions::default() };
    SheddingOptions { step: 0.5, max: 0.5, trial }
}

/// Asks for a few keys until what is told of shedding is as it should be.
fn until(load_takes: Duration, is_enough: impl Fn(&SheddingStats) -> bool) -> SheddingStats {
    let cache = Cache::<Slow, u64>::builder().capacity(100).shedding(half()).build();
    let (cache, stop) = (&cache, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asks = |from: u64| {
            for key in (from..).map(|at| at % 10) {
                if stop.load(Relaxed) {
                    return;
                }
                let load = || {
                    std::thread::sleep(load_takes);
                    Ok::<_, ()>(key * 7)
                };
                assert_eq!(*cache.get_or_load(&Slow(key), load).unwrap(), key * 7);
            }
        };
        let threads = [0, 5].map(|from| scope.spawn(move || asks(from)));
        let stats = loop {
            let stats = cache.stats().shedding.expect("it sheds");
            if is_enough(&stats) || threads.iter().any(|thread| thread.is_finished()) {
                break stats;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stop.store(true, Relaxed); // only to end
        threads.into_iter().for_each(|thread| thread.join().expect("a thread ends well"));
        stats
    })
}

#[test]
fn requests_are_shed_where_a_hit_takes_longer_than_a_load() {
    let stats = until(Duration::ZERO, |stats| stats.share == 0.5);
    assert!(
        stats.shed > 0 && stats.decisions.iter().any(|decision| decision.share == 0.5),
        "{stats:?}"
    );
}

#[test]
fn nothing_is_shed_where_a_load_takes_longer_than_a_hit() {
    // What the machine does beside may make single trials look otherwise, and they are taken back.
    let does_not_pay = |stats: &SheddingStats| {
        let none = stats.decisions.iter().filter(|decision| decision.share == 0.0);
        none.filter(|decision| decision.reason.contains("does not pay")).count() > 0
    };
    let stats = until(Duration::from_millis(20), does_not_pay);
    assert!(does_not_pay(&stats), "{stats:?}");
}

#[test]
fn a_cache_without_shedding_loads_what_is_missing_and_nothing_else() {
    let cache = Cache::new(10);
    for _ in 0..3 {
        assert_eq!(*cache.get_or_load(&1, || Ok::<_, ()>(2)).unwrap(), 2);
    }
    let stats = cache.stats();
    assert_eq!((stats.loads, stats.hits, stats.shedding), (1, 2, None));
}

#[test]
fn what_cannot_be_shed_is_refused() {
    let refused = |shedding| {
        let cache = Cache::<u64, u64>::builder().capacity(10).shedding(shedding).try_build();
        assert!(matches!(cache.unwrap_err(), BuildError::Shedding(_)), "{shedding:?}");
    };
    for share in [f64::NAN, -0.1, 1.1] {
        refused(SheddingOptions { max: share, ..SheddingOptions::default() });
        refused(SheddingOptions { step: share, ..SheddingOptions::default() });
    }
    refused(SheddingOptions { step: 0.0, ..SheddingOptions::default() });
    let both = Cache::<u64, u64>::builder()
        .capacity(10)
        .freezing(Freezing::adaptive())
        .shedding(SheddingOptions::default());
    assert!(both.try_build().unwrap_err().to_string().contains("choose one"));
}
