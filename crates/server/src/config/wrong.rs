//! A setting that cannot be used.

use std::fmt::{self, Display, Formatter};

use super::place::{Place, Table};

/// A setting that cannot be used, with its place in a file.
#[derive(Debug)]
pub struct Wrong {
    pub(super) place: Place,
    problem: String,
}

impl Wrong {
    /// Makes the error of a setting in this table, or of the whole server.
    pub(super) fn new(
        table: Option<Table>,
        setting: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self { place: Place { table, setting: setting.into() }, problem: problem.into() }
    }

    /// Returns the name of the setting.
    pub(super) fn setting(&self) -> &str {
        &self.place.setting
    }

    /// Makes the error of the same setting with another problem.
    pub(super) fn saying(&self, problem: String) -> Self {
        Self { place: self.place.clone(), problem }
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Wrong {}

/// Makes the error of a setting of the whole server.
pub(super) fn wrong(setting: &str, problem: impl Into<String>) -> Wrong {
    Wrong::new(None, setting, problem)
}

/// Returns the value of a setting of the whole server, or the error with the setting's name.
pub(crate) fn named<T>(setting: &str, value: Result<T, impl Display>) -> Result<T, Wrong> {
    value.map_err(|error| wrong(setting, format!("{setting}: {error}")))
}
