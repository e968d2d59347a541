//! The text format of Prometheus: families of samples, each with its help and type before it.

use std::fmt::{Display, Write};

use floe_block::{CounterType, Counts, Declaration};

/// The declaration of a whole whose fields have their own.
const WHOLE: &Declaration = &Declaration::internal("");

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn of(declared: CounterType) -> Self {
        match declared {
            CounterType::Counter => Self::Counter,
            CounterType::Gauge => Self::Gauge,
        }
    }
}

/// A page of metrics that grows family by family.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Begins a family; its samples follow.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// A sample of the family begun last.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.put(format_args!("{name}"));
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.put(format_args!("{before}{label}=\"{}\"", escaped(value)));
        }
        self.put(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    /// A family of one sample that goes up and down.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, help);
        self.sample(name, &[], value);
    }

    /// A family of one sample that only grows.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Counter, help);
        self.sample(name, &[], value);
    }

    /// The declared metrics of counters, each a family of one sample, but for those of settings
    /// that are not given.
    pub(super) fn declared(&mut self, counts: &impl Counts, settings: &[&str]) {
        counts.each(WHOLE, &mut |field, value| {
            let is_there = field.with.is_empty() || settings.contains(&field.with);
            if is_there && !field.metric.is_empty() {
                self.family(field.metric, Kind::of(field.kind), field.meaning());
                self.sample(field.metric, &[], value);
            }
        });
    }

    /// The declared metrics of counters that there are several of, each a family with a sample for
    /// each of them.
    pub(super) fn declared_by<T: Counts + Default>(&mut self, all: &[(Vec<(&str, &str)>, T)]) {
        T::default().each(WHOLE, &mut |field, _| {
            if field.metric.is_empty() {
                return;
            }
            self.family(field.metric, Kind::of(field.kind), field.meaning());
            for (labels, counts) in all {
                counts.each(WHOLE, &mut |other, value| {
                    if other.metric == field.metric {
                        self.sample(field.metric, labels, value);
                    }
                });
            }
        });
    }

    pub(super) fn text(self) -> String {
        self.text
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("writing to a string succeeds");
    }
}

/// A label's value, which may be any text, as it stands between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
