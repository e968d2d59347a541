//! Settings to try: a floe.toml.

use std::fmt::{self, Write};

use floe_block::{Config, Memory, WriteMode, format_size};
use floe_server::config::ServerConfig;
use serde::Serialize;

use super::AdviseError;
use crate::replay::{Plan, Tier, Volume};

/// Block sizes that are not given: the server chooses them.
pub(super) const AUTOMATIC: &str = "automatic";

/// Settings of a cache, as texts of floe.toml.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Candidate {
    /// Size of the cache.
    pub cache_bytes: u64,
    /// Write mode.
    pub write: String,
    /// Block sizes; `automatic` where they are not given.
    pub block_sizes: String,
    /// Policy.
    pub evict: String,
    /// Admission.
    pub admit: String,
}

impl Candidate {
    /// Returns the server's defaults with a cache of `cache_bytes`.
    pub fn default_of(cache_bytes: u64) -> Self {
        Self {
            cache_bytes,
            write: WriteMode::default().to_string(),
            block_sizes: AUTOMATIC.to_owned(),
            evict: floe_block::Evict::default().to_string(),
            admit: "always".to_owned(),
        }
    }

    /// Returns settings that cache nothing.
    pub fn bare(cache_bytes: u64) -> Self {
        Self { write: WriteMode::Pass.to_string(), ..Self::default_of(cache_bytes) }
    }

    /// Returns the floe.toml with these devices. Settings at their defaults are left out.
    pub fn toml(&self, cache: &str, backing: &str) -> String {
        let default = Self::default_of(self.cache_bytes);
        let mut text = format!("cache = \"{cache}\"\n");
        let size = format_size(self.cache_bytes);
        for (name, value, default) in [
            ("cache-size", &size, ""),
            ("write", &self.write, &default.write),
            ("block-sizes", &self.block_sizes, &default.block_sizes),
            ("evict", &self.evict, &default.evict),
            ("admit", &self.admit, &default.admit),
        ] {
            if value != default {
                writeln!(text, "{name} = \"{value}\"").expect("text takes all");
            }
        }
        write!(text, "\n[[volume]]\nname = \"floe\"\nbacking = \"{backing}\"\n")
            .expect("text takes all");
        text
    }

    /// Returns the plan of a replay on simulated media, and the configuration it comes from.
    pub(super) fn plan(
        &self,
        cache: &str,
        backing: &str,
        volume_bytes: u64,
    ) -> Result<(Plan, ServerConfig), AdviseError> {
        let size = format_size(self.cache_bytes);
        let text = self.toml(
            &format!("memory:{size},medium={cache}"),
            &format!("memory:{volume_bytes},medium={backing}"),
        );
        let config = ServerConfig::from_text(&text).map_err(AdviseError::Config)?;
        let tier = &config.first;
        let tiers = vec![Tier {
            config: Config { kept: false, ..tier.config(Memory::None, 0) },
            most_dirty_bytes: tier.most_dirty_bytes(),
            cache: tier.cache().clone(),
        }];
        let volume = |volume: &floe_server::config::VolumeConfig| Volume {
            name: volume.name().to_owned(),
            spec: volume.backing().clone(),
            read_only: false,
        };
        let volumes = config.volume.iter().map(volume).collect();
        Ok((Plan { tiers, volumes }, config))
    }
}

impl fmt::Display for Candidate {
    /// Names what differs from the defaults, after the size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default_of(self.cache_bytes);
        write!(f, "{}, write {}", format_size(self.cache_bytes), self.write)?;
        for (name, value, default) in [
            ("blocks", &self.block_sizes, &default.block_sizes),
            ("evict", &self.evict, &default.evict),
            ("admit", &self.admit, &default.admit),
        ] {
            if value != default {
                write!(f, ", {name} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floe_toml_has_what_differs_and_the_server_reads_it() {
        let mut candidate = Candidate::default_of(1 << 30);
        let text = candidate.toml("file:/dev/fast", "file:/dev/slow");
        assert!(!text.contains("evict") && !text.contains("write"), "{text}");
        candidate.block_sizes = "4KiB,64KiB".to_owned();
        candidate.evict = "s3-fifo:small=0.2".to_owned();
        candidate.write = "back".to_owned();
        candidate.admit = "second-access".to_owned();
        let text = candidate.toml("file:/dev/fast", "file:/dev/slow");
        let config = ServerConfig::from_text(&text).unwrap();
        let tier = config.first.config(Memory::None, 0);
        assert_eq!(tier.sizes.to_string(), candidate.block_sizes);
        assert_eq!(tier.evict.to_string(), candidate.evict);
        assert_eq!(tier.mode.to_string(), candidate.write);
        assert_eq!(tier.gate.admission.to_string(), candidate.admit);
        assert_eq!(tier.cache_bytes, 1 << 30);
    }

    #[test]
    fn defaults_are_those_of_the_server() {
        let candidate = Candidate::default_of(1 << 30);
        let (plan, config) = candidate.plan("nvme", "hdd", 1 << 30).unwrap();
        let tier = &plan.tiers[0].config;
        assert!(tier.adapts_fetches && candidate.block_sizes == AUTOMATIC);
        assert_eq!(tier.evict.to_string(), candidate.evict);
        assert_eq!(tier.mode.to_string(), candidate.write);
        assert_eq!(tier.gate.admission.to_string(), candidate.admit);
        assert_eq!(config.volume.len(), 1);
    }
}
