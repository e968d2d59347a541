//! Finds the line of a setting in a file, and makes errors that name the line.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

/// A reference to one of several tables of a kind, by its index from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableRef {
    /// A `[[tier]]` table.
    Tier(usize),
    /// A `[[volume]]` table.
    Volume(usize),
}

/// The place of a setting in a file: its name, and its table unless it belongs to the whole server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) table: Option<TableRef>,
    pub(super) setting: String,
}

impl Place {
    /// Returns the line of the setting in a valid file, from 1, or the line of its table if the
    /// setting is missing.
    pub(super) fn line(&self, text: &str) -> Option<usize> {
        let file = DeTable::parse(text).ok()?;
        let key = |table: &DeTable<'_>| {
            let mut keys = table.keys().filter(|key| *key.get_ref() == self.setting);
            keys.next().map(|key| key.span().start)
        };
        let (tables, index) = match self.table {
            None => return Some(line_at(text, key(file.get_ref())?)),
            Some(TableRef::Tier(index)) => ("tier", index),
            Some(TableRef::Volume(index)) => ("volume", index),
        };
        let table = file.get_ref().get(tables)?.get_ref().get(index)?;
        let start = table.get_ref().as_table().and_then(key).unwrap_or(table.span().start);
        Some(line_at(text, start))
    }
}

/// Returns the name of the setting whose name or value contains a byte of the file. In a `[[tier]]`
/// table, the tier's number precedes the name. If the file cannot be parsed, returns the setting
/// that begins the line.
pub(super) fn setting_at(text: &str, byte: usize) -> Option<String> {
    fn find(table: &DeTable<'_>, byte: usize) -> Option<String> {
        table.iter().find_map(|(key, value)| {
            let name = key.get_ref().as_ref();
            let is_in = |span: std::ops::Range<usize>| span.contains(&byte);
            let itself = || (is_in(key.span()) || is_in(value.span())).then(|| name.to_owned());
            let inner = match value.get_ref() {
                DeValue::Table(table) => find(table, byte),
                DeValue::Array(values) => values.iter().enumerate().find_map(|(index, value)| {
                    let DeValue::Table(table) = value.get_ref() else { return None };
                    let setting = find(table, byte)?;
                    let of_tier = format!("tier {}: {setting}", index + 1);
                    Some(if name == "tier" { of_tier } else { setting })
                }),
                _ => None,
            };
            inner.or_else(itself)
        })
    }
    match DeTable::parse(text) {
        Ok(file) => find(file.get_ref(), byte),
        Err(_) => {
            let start = text.get(..byte)?.rfind('\n').map_or(0, |at| at + 1);
            let (name, _) = text[start..].lines().next()?.split_once('=')?;
            let name = name.trim();
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
        }
    }
}

/// Returns the line that contains a byte, from 1.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    1 + text[..byte].matches('\n').count()
}

/// The file from which settings were read; `None` for settings of a command line.
#[derive(Debug, Clone, Default)]
pub struct Origin(Option<Arc<(PathBuf, String)>>);

impl Origin {
    pub(super) fn new(file: &Path, text: &str) -> Self {
        Self(Some(Arc::new((file.to_owned(), text.to_owned()))))
    }

    /// Returns the file and line of a place, to precede an error message. Parts that are unknown
    /// are left out.
    pub(super) fn before(&self, place: &Place) -> String {
        let Some(origin) = &self.0 else { return String::new() };
        let (file, text) = (origin.0.display(), &origin.1);
        match place.line(text) {
            Some(line) => format!("{file}: line {line}: "),
            None => format!("{file}: "),
        }
    }
}

/// An error of one setting, with the setting's place in the file.
#[derive(Debug)]
pub struct Wrong {
    pub(super) place: Place,
    problem: String,
}

impl Wrong {
    /// Creates an error of a setting in a table, or of the whole server.
    pub(super) fn new(
        table: Option<TableRef>,
        setting: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self { place: Place { table, setting: setting.into() }, problem: problem.into() }
    }

    pub(super) fn setting(&self) -> &str {
        &self.place.setting
    }

    /// Returns an error of the same setting with another message.
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

/// Creates an error of a setting of the whole server.
pub(super) fn wrong(setting: &str, problem: impl Into<String>) -> Wrong {
    Wrong::new(None, setting, problem)
}

/// Returns a value, or an error of a setting of the whole server whose message begins with the
/// setting's name.
pub(crate) fn named<T>(setting: &str, value: Result<T, impl Display>) -> Result<T, Wrong> {
    value.map_err(|error| wrong(setting, format!("{setting}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_belongs_to_its_setting() {
        let text = "listen = ['a', 5]\n[[volume]]\nname = 7\n";
        let at = |value: &str| setting_at(text, text.find(value).unwrap());
        assert_eq!((at("5").as_deref(), at("7").as_deref()), (Some("listen"), Some("name")));
        let broken = "write = 'back\nlisten = ['a']\n# x = 1\n";
        let at = |value: &str| setting_at(broken, broken.find(value).unwrap());
        assert_eq!((at("back").as_deref(), at("x =")), (Some("write"), None));
    }

    #[test]
    fn settings_are_found_by_their_line() {
        let text = "cache = 'a'\n\n[[volume]]\nname = 'x'\n# one\n[[volume]]\n\nbacking = \
                    'b'\n[[tier]]\nwrite = 'back'\n";
        let line =
            |table, setting: &str| Place { table, setting: str::to_owned(setting) }.line(text);
        assert_eq!(line(None, "cache"), Some(1));
        assert_eq!(line(Some(TableRef::Volume(0)), "name"), Some(4));
        assert_eq!(line(Some(TableRef::Volume(1)), "backing"), Some(8));
        assert_eq!(
            line(Some(TableRef::Volume(1)), "name"),
            Some(6),
            "the table it is missing from"
        );
        assert_eq!(line(Some(TableRef::Tier(0)), "write"), Some(10));
        assert_eq!(line(None, "write"), None);
    }
}
