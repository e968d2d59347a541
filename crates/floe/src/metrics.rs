//! Exports a cache's statistics to the recorder of the crate [`metrics`](https://docs.rs/metrics):
//! Prometheus, StatsD, or any other that a program has installed.
//!
//! A cache counts by itself, without a recorder in its way. [`record`] exports the counts, as often
//! as they are wanted:
//!
//! ```
//! let cache = floe::Cache::<u64, String>::new(1000);
//! floe::metrics::record(&cache.stats(), "pages"); // once in ten seconds, say
//! ```

use metrics::{counter, gauge};

use crate::Stats;

/// Exports statistics to the installed recorder, with the label `cache`: counters
/// `floe_hits_total`, `floe_misses_total`, `floe_frozen_hits_total`, `floe_insertions_total`,
/// `floe_replacements_total`, `floe_rejections_total`, `floe_evictions_total`,
/// `floe_expirations_total`, `floe_removals_total`, `floe_loads_total` and
/// `floe_failed_loads_total`, and gauges `floe_entries`, `floe_weight`, `floe_frozen_entries`,
/// `floe_waiting_entries` and `floe_memory_bytes`. Without a recorder it does nothing.
pub fn record(stats: &Stats, cache: &str) {
    let counts = [
        ("floe_hits_total", stats.hits),
        ("floe_misses_total", stats.misses),
        ("floe_frozen_hits_total", stats.frozen_hits),
        ("floe_insertions_total", stats.insertions),
        ("floe_replacements_total", stats.replacements),
        ("floe_rejections_total", stats.rejections),
        ("floe_evictions_total", stats.evictions),
        ("floe_expirations_total", stats.expirations),
        ("floe_removals_total", stats.removals),
        ("floe_loads_total", stats.loads),
        ("floe_failed_loads_total", stats.failed_loads),
    ];
    for (name, count) in counts {
        counter!(name, "cache" => cache.to_owned()).absolute(count);
    }
    let levels = [
        ("floe_entries", stats.entries),
        ("floe_weight", stats.weight),
        ("floe_frozen_entries", stats.frozen),
        ("floe_waiting_entries", stats.waiting),
        ("floe_memory_bytes", stats.memory_bytes),
    ];
    for (name, level) in levels {
        gauge!(name, "cache" => cache.to_owned()).set(level as f64);
    }
}

/// Exports statistics of a hybrid cache to the installed recorder, with the label `cache`: the
/// metrics in [`hybrid::figures`](crate::hybrid::figures), with the labels there, those by drive of
/// a cache on several, with the label `drive`, and the gauge `floe_hybrid_write_amplification`. The
/// histogram of read times is only in [`hybrid::prometheus`](crate::hybrid::prometheus): a recorder
/// counts the samples of histograms itself. Without a recorder it does nothing.
#[cfg(feature = "hybrid")]
pub fn record_hybrid(stats: &crate::hybrid::Stats, cache: &str) {
    use crate::hybrid::{FigureType, figures};
    use metrics::Label;

    for figure in figures() {
        let mut labels = vec![Label::new("cache", cache.to_owned())];
        labels.extend(figure.labels.iter().map(|(name, of)| Label::from_static_parts(name, of)));
        let value = (figure.value)(stats);
        match figure.kind {
            FigureType::Counter => counter!(figure.metric, labels).absolute(value),
            FigureType::Gauge => gauge!(figure.metric, labels).set(value as f64),
        }
    }
    for (drive, stats) in stats.by_drive() {
        for figure in figures() {
            let Some(metric) = figure.drive_metric() else { continue };
            let mut labels = vec![Label::new("cache", cache.to_owned())];
            labels.push(Label::new("drive", drive.clone()));
            let fixed = figure.labels.iter();
            labels.extend(fixed.map(|(name, of)| Label::from_static_parts(name, of)));
            let value = (figure.value)(&stats);
            match figure.kind {
                FigureType::Counter => counter!(metric, labels).absolute(value),
                FigureType::Gauge => gauge!(metric, labels).set(value as f64),
            }
        }
    }
    if let Some(amplification) = stats.flash.write_amplification() {
        gauge!("floe_hybrid_write_amplification", "cache" => cache.to_owned()).set(amplification);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        with_local_recorder,
    };

    use super::*;

    /// A test recorder that keeps the value of each metric; gauges as the bits of an `f64`.
    #[derive(Default)]
    struct Kept(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Kept {
        fn of(&self, key: &Key) -> Arc<AtomicU64> {
            let labels: Vec<_> =
                key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            Arc::clone(self.0.lock().unwrap().entry(name).or_default())
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.of(key))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn a_recorder_has_the_counts_of_each_cache() {
        let kept = Kept::default();
        let (pages, users) = (crate::Cache::<u64, u64>::new(100), crate::Cache::new(100));
        (0..10).for_each(|key| pages.insert(key, key));
        (0..15).for_each(|key| drop(pages.get(&key)));
        users.insert("a", "b");
        with_local_recorder(&kept, || {
            record(&pages.stats(), "pages");
            record(&users.stats(), "users");
            record(&users.stats(), "users"); // again: absolute, not in addition
        });
        let kept = kept.0.into_inner().unwrap();
        let value = |name: &str| kept[name].load(Ordering::Relaxed);
        assert_eq!(value("floe_hits_total{cache=pages}"), 10);
        assert_eq!(value("floe_misses_total{cache=pages}"), 5);
        assert_eq!(value("floe_insertions_total{cache=users}"), 1);
        assert_eq!(f64::from_bits(value("floe_entries{cache=pages}")), 10.0);
        assert!(f64::from_bits(value("floe_memory_bytes{cache=users}")) > 0.0);
        assert_eq!(kept.len(), 2 * 16);
    }

    #[cfg(feature = "hybrid")]
    #[test]
    fn a_recorder_has_the_figures_of_a_hybrid_cache() {
        let folder = tempfile::tempdir().unwrap();
        let built = crate::hybrid::Hybrid::builder().memory(8 << 20);
        let cache: crate::hybrid::Hybrid<u64, u64> =
            built.flash(folder.path().join("cache"), 16 << 20).open().unwrap();
        cache.insert(1, 2);
        assert_eq!((cache.get_blocking(&1), cache.get_blocking(&2)), (Some(2), None));
        let kept = Kept::default();
        let stats = cache.stats();
        with_local_recorder(&kept, || {
            record_hybrid(&stats, "pages");
            record_hybrid(&stats, "pages"); // again: absolute, not in addition
        });
        let kept = kept.0.into_inner().unwrap();
        let value = |name: &str| kept[name].load(Ordering::Relaxed);
        assert_eq!(value("floe_hybrid_hits_total{cache=pages,place=memory}"), 1);
        assert_eq!(value("floe_hybrid_misses_total{cache=pages}"), 1);
        assert_eq!(f64::from_bits(value("floe_hybrid_objects{cache=pages,place=memory}")), 1.0);
        assert_eq!(kept.len(), crate::hybrid::figures().len(), "nothing was appended yet");
    }
}
