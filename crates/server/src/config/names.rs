//! Names of settings in a file, and the nearest to a misspelt one.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error};

/// Reads the name of a setting, which must be one of these.
pub(super) struct Name<'a>(pub(super) &'a [String]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        let name = String::deserialize(from)?;
        if self.0.contains(&name) {
            return Ok(name);
        }
        let hint = nearest(&name, self.0).map(|near| format!("did you mean `{near}`? "));
        let names: Vec<_> = self.0.iter().map(|name| format!("`{name}`")).collect();
        let (hint, names) = (hint.unwrap_or_default(), names.join(", "));
        Err(D::Error::custom(format!("unknown setting `{name}`; {hint}There are {names}")))
    }
}

/// Most changes of letters by which a misspelt name differs from the one that was meant.
const MOST_CHANGES: usize = 2;

/// Returns the name that is nearest to a misspelt one, if one is near.
fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    let near = names.iter().map(|known| (changes(name, known), known.as_str()));
    near.filter(|(changes, _)| *changes <= MOST_CHANGES).min().map(|(_, known)| known)
}

/// Returns the Levenshtein distance of two texts.
fn changes(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, other) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[to + 1];
            row[to + 1] = replaced.min(row[to] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::config::ServerConfig;

    #[test]
    fn a_misspelt_setting_is_told_from_an_unknown_one() {
        let unknown = |text: &str| toml::from_str::<ServerConfig>(text).unwrap_err().to_string();
        assert!(unknown("cach = 1").contains("did you mean `cache`?"));
        assert!(unknown("max-conections = 1").contains("did you mean `max-connections`?"));
        assert!(unknown("max_connections = 1").contains("did you mean `max-connections`?"));
        assert!(!unknown("colour = 1").contains("did you mean"));
    }
}
