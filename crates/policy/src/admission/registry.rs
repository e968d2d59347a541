//! Every admission by its name. Adding one takes its file, and in `mod.rs` its module and its place
//! in the list.

use std::fmt;
use std::str::FromStr;

use super::ADMISSIONS;
pub use crate::registry::ChoiceError;
use crate::{Parameters, PolicyInfo, registry};

/// An admission's name with parameters, such as `obp:target=0.2`.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice(registry::Choice);

impl Choice {
    /// The name without parameters.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The parameters, those included that were not given.
    pub fn parameters(&self) -> &Parameters {
        self.0.parameters()
    }

    /// The same with a parameter that its text leaves out set to a value, or to the end of its
    /// range that is nearest to it.
    ///
    /// # Panics
    /// When the admission has no such parameter.
    pub fn unless_given(self, parameter: &str, value: f64) -> Self {
        let info = ADMISSIONS.iter().find(|info| info.name == self.name());
        let known =
            info.and_then(|info| info.parameters.iter().find(|known| known.name == parameter));
        let known = known.unwrap_or_else(|| panic!("{} has no parameter {parameter}", self.name()));
        Self(self.0.unless_given(known, value))
    }

    /// The choice of a registered admission with its defaults.
    pub fn of(info: &PolicyInfo) -> Self {
        Self(registry::Choice::of(info))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Choice {
    type Err = ChoiceError;

    /// Reads `name` or `name:parameter=value:parameter=value`.
    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        registry::Choice::among("admission", ADMISSIONS.iter(), text).map(Self)
    }
}

/// Reads choices with `+` between them, such as `small-bypass + obp:target=0.2`.
///
/// # Errors
/// When one of them is none, or one is there twice: it would be told twice of what it decides once.
pub fn choices(text: &str) -> Result<Vec<Choice>, ChoiceError> {
    let choices =
        text.split('+').map(|part| part.trim().parse()).collect::<Result<Vec<Choice>, _>>()?;
    for (at, choice) in choices.iter().enumerate() {
        if choices[..at].iter().any(|before| before.name() == choice.name()) {
            return Err(ChoiceError::ChosenTwice { kind: "admission", chosen: choice.name() });
        }
    }
    Ok(choices)
}

/// The names of all admissions.
pub fn names() -> Vec<&'static str> {
    ADMISSIONS.iter().map(|info| info.name).collect()
}

/// All admissions with their parameters, a line each: what `--admit` accepts.
pub fn help() -> String {
    registry::help_of(ADMISSIONS.iter())
}

/// All admissions as a Markdown table.
pub fn table() -> String {
    let mut text = String::from("| admission | idea | parameters | source |\n|---|---|---|---|\n");
    for info in ADMISSIONS {
        let parameters = registry::parameters_cell(info);
        text += &format!("| {} | {} | {parameters} | {} |\n", info.name, info.idea, info.source);
    }
    text
}
