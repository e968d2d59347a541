//! Counters, each declared once.
//!
//! [`counters!`](crate::counters!) makes a struct of the given fields. The struct can add the
//! counts of several threads, and subtract those of an earlier moment. It publishes each field with
//! its name in JSON, its metric, and its meaning, which is the field's documentation. The server
//! prints status, metrics and the table in docs/service/metrics.md from these.

use std::time::Duration;

use floe_policy::Adaptation;

use crate::geometry::{Sectors, VolumeId};

/// The type of a declared counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterType {
    /// A count that only grows; over a period, its difference matters.
    Counter,
    /// A level that goes up and down; over a period, its last value matters.
    Gauge,
}

/// The declaration of a counter field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declaration {
    /// The field's doc comment, including its leading space.
    pub help: &'static str,
    /// The type: counter or gauge.
    pub kind: CounterType,
    /// The field's name in JSON; empty where it is not in JSON.
    pub json: &'static str,
    /// The name of the Prometheus metric; empty where there is none.
    pub metric: &'static str,
    /// The setting without which the metric does not exist; empty for a metric that always exists.
    pub with: &'static str,
}

impl Declaration {
    /// Returns the declaration of a field that is added up and not published.
    pub const fn internal(help: &'static str) -> Self {
        Self { help, kind: CounterType::Counter, json: "", metric: "", with: "" }
    }

    /// Returns whether the field is in JSON or among the metrics.
    pub const fn is_published(&self) -> bool {
        !self.json.is_empty() || !self.metric.is_empty()
    }

    /// Returns the field's meaning as a sentence.
    pub fn meaning(&self) -> &'static str {
        self.help.trim()
    }
}

/// A set of counters that each thread keeps separately, to be added up.
pub trait Counts {
    /// Adds the counts of another thread.
    fn add(&mut self, other: &Self);

    /// Returns the difference to the counts of an earlier moment.
    fn since(&self, earlier: &Self) -> Self;

    /// Calls `see` with each published field and its value. `declared` is the declaration of this
    /// value as a field.
    fn each(&self, declared: &'static Declaration, see: &mut dyn FnMut(&'static Declaration, u64)) {
        let _ = (declared, see);
    }

    /// Calls `see` with each published field, whose value it may change.
    fn each_mut(
        &mut self,
        declared: &'static Declaration,
        see: &mut dyn FnMut(&'static Declaration, &mut u64),
    ) {
        let _ = (declared, see);
    }
}

impl Counts for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }

    fn since(&self, earlier: &Self) -> Self {
        self.saturating_sub(*earlier)
    }

    fn each(&self, declared: &'static Declaration, see: &mut dyn FnMut(&'static Declaration, u64)) {
        if declared.is_published() {
            see(declared, *self);
        }
    }

    fn each_mut(
        &mut self,
        declared: &'static Declaration,
        see: &mut dyn FnMut(&'static Declaration, &mut u64),
    ) {
        if declared.is_published() {
            see(declared, self);
        }
    }
}

impl Counts for Duration {
    fn add(&mut self, other: &Self) {
        *self += *other;
    }

    fn since(&self, earlier: &Self) -> Self {
        self.saturating_sub(*earlier)
    }
}

impl<const N: usize> Counts for [u64; N] {
    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(sum, part)| *sum += part);
    }

    fn since(&self, earlier: &Self) -> Self {
        std::array::from_fn(|at| self[at].saturating_sub(earlier[at]))
    }
}

/// Counts of lists: elements missing in the shorter one count as 0.
impl Counts for Vec<u64> {
    fn add(&mut self, other: &Self) {
        self.resize(self.len().max(other.len()), 0);
        self.iter_mut().zip(other).for_each(|(sum, part)| *sum += part);
    }

    fn since(&self, earlier: &Self) -> Self {
        let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
        self.iter().zip(earlier).map(|(now, earlier)| now.saturating_sub(earlier)).collect()
    }
}

/// Gauge of block sizes, each with a number of blocks. The parts of one cache have equal sizes.
impl Counts for Vec<(u64, u64)> {
    fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        for (sum, part) in self.iter_mut().zip(other) {
            debug_assert_eq!(sum.0, part.0);
            sum.1 += part.1;
        }
    }

    fn since(&self, _: &Self) -> Self {
        self.clone()
    }
}

/// The settings that a policy chooses from, in all shards that do so.
impl Counts for Option<Adaptation> {
    fn add(&mut self, other: &Self) {
        if let Some(other) = other {
            self.get_or_insert_default().add(other);
        }
    }

    fn since(&self, _: &Self) -> Self {
        self.clone()
    }
}

/// Gauge of ranges in volumes.
impl Counts for Vec<(VolumeId, Sectors)> {
    fn add(&mut self, other: &Self) {
        self.extend_from_slice(other);
    }

    fn since(&self, _: &Self) -> Self {
        self.clone()
    }
}

/// Makes a struct of counters. A published field is followed by its type, `Counter` or `Gauge`,
/// with `json`, `metric` and `with`, any of which may be left out.
///
/// ```
/// floe_block::counters! {
///     /// Counts of a kitchen.
///     #[derive(Debug, Clone, Default)]
///     pub struct Kitchen {
///         /// Cakes baked.
///         pub cakes: u64 = Counter { json: "cakes", metric: "kitchen_cakes_total" },
///         /// Cakes on the table.
///         pub on_table: u64 = Gauge { json: "cakes_on_table" },
///         /// Cakes that fell to the floor, which is told to no one.
///         pub dropped: u64,
///     }
/// }
/// let now = Kitchen { cakes: 5, on_table: 2, dropped: 1 };
/// let mut sum = now.clone();
/// sum += &now;
/// assert_eq!((sum.cakes, sum.on_table, sum.dropped), (10, 4, 2));
/// let lately = sum.since(&now);
/// assert_eq!((lately.cakes, lately.on_table), (5, 4));
/// let mut said = Vec::new();
/// sum.published(&mut |field, value| said.push((field.json, field.meaning(), value)));
/// assert_eq!(said, [("cakes", "Cakes baked.", 10), ("cakes_on_table", "Cakes on the table.", 4)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])*
                $field_vis:vis $field:ident: $type:ty
                    $(= $kind:ident { $($key:ident: $value:expr),* $(,)? })?
            ),* $(,)?
        }
    ) => {
        $(#[$attribute])*
        $vis struct $name {
            $($(#[doc = $help])* $field_vis $field: $type,)*
        }

        impl $name {
            /// Returns the counts since an earlier moment; of gauges, the current value.
            #[allow(dead_code)]
            $vis fn since(&self, earlier: &Self) -> Self {
                $crate::Counts::since(self, earlier)
            }

            /// Calls `see` with each published field and its value.
            #[allow(dead_code)]
            $vis fn published(&self, see: &mut dyn FnMut(&'static $crate::Declaration, u64)) {
                $crate::Counts::each(self, const { &$crate::Declaration::internal("") }, see);
            }
        }

        impl std::ops::AddAssign<&$name> for $name {
            fn add_assign(&mut self, other: &$name) {
                $crate::Counts::add(self, other);
            }
        }

        impl $crate::Counts for $name {
            fn add(&mut self, other: &Self) {
                $($crate::Counts::add(&mut self.$field, &other.$field);)*
            }

            fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($field: match $crate::counters!(
                        @declaration [$($help)*] $($kind { $($key: $value),* })?
                    ).kind {
                        $crate::CounterType::Counter => {
                            $crate::Counts::since(&self.$field, &earlier.$field)
                        }
                        $crate::CounterType::Gauge => self.$field.clone(),
                    },)*
                }
            }

            fn each(
                &self,
                _: &'static $crate::Declaration,
                see: &mut dyn FnMut(&'static $crate::Declaration, u64),
            ) {
                $($crate::Counts::each(
                    &self.$field,
                    $crate::counters!(@declaration [$($help)*] $($kind { $($key: $value),* })?),
                    see,
                );)*
            }

            fn each_mut(
                &mut self,
                _: &'static $crate::Declaration,
                see: &mut dyn FnMut(&'static $crate::Declaration, &mut u64),
            ) {
                $($crate::Counts::each_mut(
                    &mut self.$field,
                    $crate::counters!(@declaration [$($help)*] $($kind { $($key: $value),* })?),
                    see,
                );)*
            }
        }
    };
    (@declaration [$($help:literal)*]) => {
        const { &$crate::Declaration::internal(concat!($($help),*)) }
    };
    (@declaration [$($help:literal)*] $kind:ident { $($key:ident: $value:expr),* }) => {
        const {
            &$crate::Declaration {
                kind: $crate::CounterType::$kind,
                $($key: $value,)*
                ..$crate::Declaration::internal(concat!($($help),*))
            }
        }
    };
}
