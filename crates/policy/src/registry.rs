//! Every policy by its name. Adding one takes its file, and in `lib.rs` its module and its place in
//! the list.
//!
//! A [`Choice`] is a name with parameters, read from text such as `slru:segments=2`. Generic code
//! runs over the chosen policy through a [`Visitor`], compiled once per policy, so nothing is
//! called indirectly per request; code whose type must not depend on it takes an
//! [`AnyPolicy`](crate::AnyPolicy).

use std::fmt;
use std::str::FromStr;

use crate::spelling::nearest;
use crate::{HitKind, Marks, Parameter, Parameters, Policy, PolicyInfo};

/// A policy in the registry.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name, idea, source and parameters.
    pub info: PolicyInfo,
    /// The cost of its hits.
    pub kind: HitKind,
}

impl Entry {
    pub(crate) const fn of<P: Policy>() -> Self {
        Self { info: P::INFO, kind: <P::Marks as Marks>::KIND }
    }
}

/// Code that runs over a policy chosen by name.
pub trait Visitor {
    /// The result.
    type Out;

    /// Runs over policies of type `P`; `make` makes an empty one, without room.
    fn visit<P: Policy>(self, make: impl Fn() -> P + Send + Sync) -> Self::Out;
}

/// A policy's name with parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    name: &'static str,
    text: String,
    pub(crate) parameters: Parameters,
}

impl Choice {
    /// The policy's name without parameters.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its parameters, those included that were not given.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The choice of a registered policy with its defaults.
    pub fn of(info: &PolicyInfo) -> Self {
        Self { name: info.name, text: info.name.to_owned(), parameters: Parameters::defaults(info) }
    }
}

impl Choice {
    /// The same with a parameter that its text leaves out set to a value, or to the end of its
    /// range that is nearest to it.
    pub(crate) fn unless_given(mut self, parameter: &Parameter, value: f64) -> Self {
        let given = self.text.split(':').skip(1).filter_map(|part| part.split_once('='));
        if given.into_iter().all(|(name, _)| name != parameter.name) {
            let value = value.clamp(parameter.min, parameter.max);
            self.parameters.set(parameter.name, value);
            self.text += &format!(":{}={value}", parameter.name);
        }
        self
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text chooses nothing. `kind` is what was to be chosen: a policy, or an admission.
#[derive(Debug, Clone, PartialEq)]
pub enum ChoiceError {
    /// None has the name.
    UnknownName {
        /// The kind of thing to choose.
        kind: &'static str,
        /// The name.
        name: String,
        /// The known names.
        known: Vec<&'static str>,
    },
    /// It has no such parameter.
    UnknownParameter {
        /// The kind of thing to choose.
        kind: &'static str,
        /// The name of the choice.
        chosen: &'static str,
        /// The name.
        name: String,
        /// The known names.
        known: Vec<String>,
    },
    /// It is told the same parameter twice.
    GivenTwice {
        /// The kind of thing to choose.
        kind: &'static str,
        /// The name of the choice.
        chosen: &'static str,
        /// The parameter.
        name: &'static str,
    },
    /// It is to be asked twice.
    ChosenTwice {
        /// The kind of thing to choose.
        kind: &'static str,
        /// The name of the choice.
        chosen: &'static str,
    },
    /// The parameter does not take the value.
    BadValue {
        /// The kind of thing to choose.
        kind: &'static str,
        /// The name of the choice.
        chosen: &'static str,
        /// The parameter.
        name: &'static str,
        /// The values that are allowed.
        expected: String,
        /// The value that was given.
        value: String,
    },
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName { kind, name, known } => {
                write!(formatter, "no {kind} is called `{name}`; ")?;
                // First: a long list hides what comes behind it.
                if let Some(meant) = nearest(name, known.iter().copied()) {
                    write!(formatter, "did you mean `{meant}`? ")?;
                }
                write!(formatter, "there are: {}", known.join(", "))
            }
            Self::UnknownParameter { kind, chosen, name, known } => {
                write!(formatter, "{kind} {chosen} has no parameter `{name}`; {}", list(known))
            }
            Self::GivenTwice { kind, chosen, name } => {
                write!(formatter, "{kind} {chosen}: parameter {name} is given twice")
            }
            Self::ChosenTwice { kind, chosen } => {
                write!(formatter, "{kind} {chosen} is given twice; one of them is enough")
            }
            Self::BadValue { kind, chosen, name, expected, value } => {
                write!(formatter, "{kind} {chosen}: parameter {name} is {expected}, not `{value}`")
            }
        }
    }
}

impl std::error::Error for ChoiceError {}

fn list(known: &[String]) -> String {
    if known.is_empty() {
        "it takes none".to_owned()
    } else {
        format!("it takes: {}", known.join(", "))
    }
}

impl FromStr for Choice {
    type Err = ChoiceError;

    /// Reads `name` or `name:parameter=value:parameter=value`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        Self::among("policy", crate::POLICIES.iter().map(|entry| &entry.info), text)
    }
}

impl Choice {
    /// Reads a choice among some of a kind.
    pub(crate) fn among<'a>(
        kind: &'static str,
        infos: impl Iterator<Item = &'a PolicyInfo> + Clone,
        text: &str,
    ) -> Result<Self, ChoiceError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let Some(info) = infos.clone().find(|info| info.name == name) else {
            let known = infos.map(|info| info.name).collect();
            return Err(ChoiceError::UnknownName { kind, name: name.to_owned(), known });
        };
        let mut choice = Self { text: text.to_owned(), ..Self::of(info) };
        let mut given = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(parameter) = info.parameters.iter().find(|parameter| parameter.name == name)
            else {
                return Err(ChoiceError::UnknownParameter {
                    kind,
                    chosen: info.name,
                    name: name.to_owned(),
                    known: info.parameters.iter().map(ToString::to_string).collect(),
                });
            };
            if given.contains(&parameter.name) {
                return Err(ChoiceError::GivenTwice {
                    kind,
                    chosen: info.name,
                    name: parameter.name,
                });
            }
            given.push(parameter.name);
            match parameter.number(value) {
                Some(number) if parameter.allows(number) => choice.parameters.set(name, number),
                _ => {
                    let number = if parameter.whole { "a whole number" } else { "a number" };
                    return Err(ChoiceError::BadValue {
                        kind,
                        chosen: info.name,
                        name: parameter.name,
                        expected: format!("{number} from {} to {}", parameter.min, parameter.max),
                        value: value.to_owned(),
                    });
                }
            }
        }
        Ok(choice)
    }
}

/// The names of all policies.
pub fn names() -> Vec<&'static str> {
    crate::POLICIES.iter().map(|entry| entry.info.name).collect()
}

/// All policies with their parameters, a line each: what `--policy` accepts.
pub fn help() -> String {
    help_of(crate::POLICIES.iter().map(|entry| &entry.info))
}

/// These with their parameters, a line each.
pub(crate) fn help_of<'a>(infos: impl Iterator<Item = &'a PolicyInfo>) -> String {
    let mut text = String::new();
    for info in infos {
        text += &format!("{:<12} {}\n", info.name, info.idea);
        for parameter in info.parameters {
            text += &format!(
                "{:<12}   :{}={} {} (from {} to {})\n",
                "",
                parameter.name,
                parameter.default,
                parameter.about,
                parameter.min,
                parameter.max
            );
        }
    }
    text
}

/// The parameters of one, in a cell of a table.
pub(crate) fn parameters_cell(info: &PolicyInfo) -> String {
    let cells = info.parameters.iter();
    let cells = cells
        .map(|parameter| format!("`{}={}` {}", parameter.name, parameter.default, parameter.about));
    cells.collect::<Vec<_>>().join("; ")
}

/// All policies as a Markdown table.
pub fn table() -> String {
    let mut text =
        String::from("| policy | a hit | idea | parameters | source |\n|---|---|---|---|---|\n");
    for Entry { info, kind } in crate::POLICIES {
        let kind = match kind {
            HitKind::FifoLike => "leaves a mark (FIFO-like)",
            HitKind::LruLike => "owes a promotion (LRU-like)",
        };
        text += &format!(
            "| {} | {kind} | {} | {} | {} |\n",
            info.name,
            info.idea,
            parameters_cell(info),
            info.source
        );
    }
    text
}
