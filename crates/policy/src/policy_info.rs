//! The name and description of a policy, and the parameters it is made from.

use std::fmt;
use std::ops::RangeInclusive;

use crate::Eviction;

/// A policy that can be chosen by name.
///
/// Orders without room are templates: [`Default`] gives one with the registry's parameters, and
/// [`Clone`] gives one that shares nothing with the first, for a cache that keeps an order per
/// shard. A clone of an order *with* room has its own lists but may share its marks, which are
/// handles ([`Marks`](crate::Marks)); an owner must not use both.
pub trait Policy: Eviction + Clone + Default + Send + Sync + 'static {
    /// Its name, idea, source and parameters.
    const INFO: PolicyInfo;

    /// An empty order without room.
    fn new(parameters: &Parameters) -> Self;
}

/// An order that a cache can use, chosen by type (any [`Policy`]) or at run time
/// ([`AnyPolicy`](crate::AnyPolicy)): a template for its shards, with its name and the inputs it
/// looks at.
pub trait Replacement: Eviction + Clone + Send + Sync + 'static {
    /// The policy's name and what else there is to know about it.
    fn info(&self) -> &'static PolicyInfo;
}

impl<P: Policy> Replacement for P {
    #[inline]
    fn info(&self) -> &'static PolicyInfo {
        &P::INFO
    }
}

/// A policy's name, what it does, where it comes from and what it can be told.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInfo {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// The idea, in one line.
    pub idea: &'static str,
    /// The paper or system it comes from.
    pub source: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// True if it looks at [`Access::in_a_row`](crate::Access::in_a_row), and at what was [fetched
    /// ahead](Eviction::fetches_ahead).
    pub streams: bool,
    /// True if it looks at [`Access::next_use`](crate::Access::next_use), of hits too.
    pub next_uses: bool,
}

impl PolicyInfo {
    /// A policy without parameters.
    pub const fn new(name: &'static str, idea: &'static str, source: &'static str) -> Self {
        Self { name, idea, source, parameters: &[], streams: false, next_uses: false }
    }

    /// The same with parameters.
    pub const fn with(self, parameters: &'static [Parameter]) -> Self {
        Self { parameters, ..self }
    }

    /// The same for a policy that looks at streams.
    pub const fn looking_at_streams(self) -> Self {
        Self { streams: true, ..self }
    }

    /// The same for a policy that looks at next uses.
    pub const fn looking_at_next_uses(self) -> Self {
        Self { next_uses: true, ..self }
    }
}

/// A number that a policy can be told.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value when nothing is said.
    pub default: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// True if the value is a count.
    pub whole: bool,
    /// Its meaning, in a few words.
    pub about: &'static str,
}

impl Parameter {
    /// A number between 0 and 1.
    pub const fn share(name: &'static str, default: f64, about: &'static str) -> Self {
        Self { name, default, min: 0.0, max: 1.0, whole: false, about }
    }

    /// A whole number.
    pub const fn count(
        name: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        about: &'static str,
    ) -> Self {
        let (min, max) = (*range.start() as f64, *range.end() as f64);
        Self { name, default: default as f64, min, max, whole: true, about }
    }

    /// The number that a text says: for what is counted also with a unit of bytes, such as `1GiB`.
    pub(crate) fn number(&self, text: &str) -> Option<f64> {
        const UNITS: [(&str, u64); 4] =
            [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
        let number = |unit: &str| text.strip_suffix(unit).or_else(|| text.strip_suffix(&unit[..1]));
        let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((number(unit)?, bytes)));
        match unit.filter(|_| self.whole) {
            Some((number, bytes)) => number.parse::<f64>().ok().map(|number| number * bytes as f64),
            None => text.parse().ok(),
        }
    }

    /// Returns whether the parameter allows a value.
    pub fn allows(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value) && (!self.whole || value.fract() == 0.0)
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}..={})", self.name, self.min, self.max)
    }
}

/// The values of a policy's parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    values: Vec<(&'static str, f64)>,
}

impl Parameters {
    /// The default values.
    pub fn defaults(about: &PolicyInfo) -> Self {
        Self {
            values: about
                .parameters
                .iter()
                .map(|parameter| (parameter.name, parameter.default))
                .collect(),
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: f64) {
        if let Some(known) = self.values.iter_mut().find(|known| known.0 == name) {
            known.1 = value;
        }
    }

    /// The value of a parameter.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn get(&self, name: &str) -> f64 {
        let known = self.values.iter().find(|known| known.0 == name);
        known.unwrap_or_else(|| panic!("the policy has no parameter {name}")).1
    }

    /// The value of a parameter that counts something.
    ///
    /// # Panics
    /// When the policy has no such parameter.
    pub fn count(&self, name: &str) -> u64 {
        self.get(name) as u64
    }
}
