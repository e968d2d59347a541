//! The report of a controller: counts, and the last decisions with their reasons.

use std::time::Duration;

use floe_policy::trial::Record;

use crate::frozen::options::{FreezeDecision, FreezeStats, Phase};

/// Decisions that are kept.
const DECISIONS: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct Report {
    /// Counts, and the ratio and lifetime in force.
    pub(super) stats: FreezeStats,
    decisions: Record<FreezeDecision>,
    /// Refreshes in a row for no other reason than age.
    routine: u32,
}

impl Report {
    pub(super) fn new() -> Self {
        Self { stats: FreezeStats::default(), decisions: Record::new(DECISIONS), routine: 0 }
    }

    pub(super) fn decisions(&self) -> Vec<FreezeDecision> {
        self.decisions.iter().cloned().collect()
    }

    pub(super) fn decide(&mut self, at: Duration, phase: Phase, reason: String) {
        self.routine = 0;
        #[cfg(feature = "tracing")]
        tracing::info!(target: "floe", phase = %phase, reason, "freezing");
        self.decisions.push(FreezeDecision { at, phase, reason });
    }

    /// A refresh for no other reason than age. Many in a row are told as one.
    pub(super) fn refresh(&mut self, at: Duration, phase: Phase, why: String) {
        let times = self.routine + 1;
        if times > 1 {
            self.decisions.pop_last();
        }
        let why = if times > 1 { format!("{why}, {times} times in a row") } else { why };
        self.decide(at, phase, why);
        self.routine = times;
    }

    /// An index was published.
    pub(super) fn constructed(&mut self, took: Duration, entries: u64) {
        self.stats.constructed += 1;
        self.stats.construction = took;
        self.stats.index_entries = entries;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refreshes_in_a_row_are_told_as_one() {
        let mut report = Report::new();
        let told = |report: &Report| -> Vec<String> {
            report.decisions().into_iter().map(|decision| decision.reason).collect()
        };
        for _ in 0..3 {
            report.refresh(Duration::ZERO, Phase::WarmingUp, "it is old".to_owned());
        }
        assert_eq!(told(&report), ["it is old, 3 times in a row"]);
        report.decide(Duration::ZERO, Phase::Waiting, "it is late".to_owned());
        report.refresh(Duration::ZERO, Phase::WarmingUp, "it is old".to_owned());
        assert_eq!(told(&report), ["it is old, 3 times in a row", "it is late", "it is old"]);
    }
}

#[cfg(all(test, feature = "tracing"))]
mod event_tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record as Values};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Counts the events of the cache.
    struct Counting(std::sync::Arc<AtomicUsize>);

    impl Subscriber for Counting {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "floe"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Values<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            assert!(event.fields().any(|field| field.name() == "reason"));
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_decision_is_an_event() {
        let events = std::sync::Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Counting(events.clone()), || {
            let mut report = Report::new();
            report.decide(Duration::ZERO, Phase::Measuring, "so".into());
            report.refresh(Duration::ZERO, Phase::Measuring, "again".into());
        });
        assert_eq!(events.load(Ordering::Relaxed), 2);
    }
}
