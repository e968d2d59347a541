//! Names of settings in a file, and the nearest to a misspelt one.

use floe_policy::registry::nearest;
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
        let hint = nearest(&name, self.0.iter().map(String::as_str))
            .map(|near| format!("did you mean `{near}`? "));
        let names: Vec<_> = self.0.iter().map(|name| format!("`{name}`")).collect();
        let (hint, names) = (hint.unwrap_or_default(), names.join(", "));
        Err(D::Error::custom(format!("unknown setting `{name}`; {hint}There are {names}")))
    }
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
