//! Lines for settings that turn out to be unusable after they were validated, as when a device
//! cannot be opened.

use std::fmt::Display;

use super::place::{Place, Table};
use super::tree::ServerConfig;
use super::wrong::Wrong;

impl ServerConfig {
    /// Returns the line for a setting that turned out to be unusable: its file and line, its name,
    /// and the problem.
    pub fn unusable(&self, setting: &str, problem: impl Display) -> String {
        let place = Place { table: None, setting: setting.to_owned() };
        format!("{}{setting}: {problem}", self.origin.before(&place))
    }

    /// Returns the line for a volume's backing device, by the number of the volume, as
    /// [`ServerConfig::unusable`].
    pub fn unusable_backing(&self, volume: usize, problem: impl Display) -> String {
        let place = Place { table: Some(Table::Volume(volume)), setting: "backing".to_owned() };
        format!("{}backing: {problem}", self.origin.before(&place))
    }

    /// Returns the file and the line of the device of a tier, by its number from the top, to stand
    /// before a problem; empty for settings of a command line.
    pub(crate) fn before_cache(&self, tier: usize) -> String {
        let table = match (self.first.cache.is_some(), tier) {
            (true, 0) => None,
            (has_first, tier) => Some(Table::Tier(tier - usize::from(has_first))),
        };
        self.origin.before(&Place { table, setting: "cache".to_owned() })
    }

    /// Returns the line for a setting that turned out to be wrong.
    pub fn wrong(&self, wrong: &Wrong) -> String {
        format!("{}{wrong}", self.origin.before(&wrong.place))
    }
}
