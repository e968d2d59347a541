//! A trial of a search for settings: a floe.toml, and the replay of a trace with it.

use std::fmt::{self, Write};

use floe_block::{WriteMode, format_size};
use floe_server::config::ServerConfig;
use serde::Serialize;

use super::backing::{Backing, BucketCost};
use crate::replay::{Plan, ReplayResult};

/// Results of replaying a trace with candidate settings.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// Settings of the cache that was replayed.
    pub candidate: Candidate,
    /// Mean latency of a request in microseconds.
    pub mean_us: f64,
    /// 99th percentile of the latency of all requests, reads and writes, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency of all requests in microseconds.
    pub p999_us: f64,
    /// Terabytes (10¹² bytes) written to the cache device in a year at the pace of the trace. For a
    /// trace without times, the pace is that of the replay, whose volume is never idle.
    pub written_tb_per_year: f64,
    /// Drive writes per day: how often a day the whole capacity of the cache device is written, at
    /// the pace of `written_tb_per_year`.
    pub writes_per_day: f64,
    /// Price of the cache; `None` where no price per gibibyte was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Cost of the requests to the volume's bucket; `None` for a volume on a medium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<BucketCost>,
    /// All measurements of the replay.
    pub result: ReplayResult,
}

impl Trial {
    /// Creates the trial of a candidate from its replay. `price` is that of a gibibyte of cache.
    pub(super) fn new(
        candidate: &Candidate,
        backing: &Backing,
        price: Option<f64>,
        result: ReplayResult,
    ) -> Self {
        let time = |count: u64, mean: Option<f64>| count as f64 * mean.unwrap_or_default();
        let total_us =
            time(result.reads, result.read_us_mean) + time(result.writes, result.write_us_mean);
        let all = result.read_latencies.merged(&result.write_latencies);
        let quantile = |share| all.quantile_us(share).unwrap_or_default();
        let endurance = result.endurance.as_ref();
        let gibibytes = candidate.cache_bytes as f64 / (1u64 << 30) as f64;
        Self {
            candidate: candidate.clone(),
            mean_us: total_us / (result.reads + result.writes).max(1) as f64,
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            written_tb_per_year: endurance.map_or(0.0, |it| it.terabytes_per_year),
            writes_per_day: endurance.map_or(0.0, |it| it.drive_writes_per_day),
            price: price.map(|price| price * gibibytes),
            bucket: backing.cost(result.requests, result.bucket.as_ref()),
            result,
        }
    }

    /// Returns whether the write rate per year follows the times of the trace, and not the pace of
    /// the replay.
    pub fn has_pace(&self) -> bool {
        self.result.endurance.as_ref().is_none_or(|it| it.clock == "trace")
    }

    /// Returns whether the cache may hold dirty data.
    pub(super) fn keeps_writes(&self) -> bool {
        self.candidate.write.parse::<WriteMode>().is_ok_and(WriteMode::keeps_writes)
    }
}

/// Block sizes that floe.toml leaves to the server.
pub(super) const AUTOMATIC: &str = "automatic";

/// Settings of a cache, in the notation of floe.toml.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Candidate {
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// Write mode of the cache.
    pub write: String,
    /// Block sizes of the cache; `automatic` where the server chooses them.
    pub block_sizes: String,
    /// Eviction policy.
    pub evict: String,
    /// Admission policy.
    pub admit: String,
}

impl Candidate {
    /// Returns the server's default settings for a cache of `cache_bytes`.
    pub fn default_of(cache_bytes: u64) -> Self {
        Self {
            cache_bytes,
            write: WriteMode::default().to_string(),
            block_sizes: AUTOMATIC.to_owned(),
            evict: floe_block::Evict::default().to_string(),
            admit: "always".to_owned(),
        }
    }

    /// Returns settings that cache nothing, for the latency of the bare volume.
    pub fn bare(cache_bytes: u64) -> Self {
        Self { write: WriteMode::Pass.to_string(), ..Self::default_of(cache_bytes) }
    }

    /// Returns a floe.toml with these settings and devices. Settings at their defaults are left
    /// out.
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

    /// Returns the plan of a replay on simulated media, and the server configuration it was made
    /// from.
    ///
    /// # Errors
    /// The server's words, where it refuses the settings.
    pub(super) fn plan(
        &self,
        cache: &str,
        backing: &Backing,
        volume_bytes: u64,
    ) -> Result<(Plan, ServerConfig), String> {
        let size = format_size(self.cache_bytes);
        let cache = format!("memory:{size},medium={cache}");
        let text = self.toml(&cache, &backing.simulated(volume_bytes));
        let config = ServerConfig::from_text(&text)?;
        Ok((Plan::of(&config, false)?, config))
    }
}

impl fmt::Display for Candidate {
    /// Writes the size of the cache, followed by the settings that differ from the defaults.
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
    use floe_block::Memory;

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
        let backing = Backing::Medium("hdd".to_owned());
        let (plan, config) = candidate.plan("nvme", &backing, 1 << 30).unwrap();
        let tier = &plan.tiers[0].config;
        assert!(tier.adapts_fetches && candidate.block_sizes == AUTOMATIC);
        assert_eq!(tier.evict.to_string(), candidate.evict);
        assert_eq!(tier.mode.to_string(), candidate.write);
        assert_eq!(tier.gate.admission.to_string(), candidate.admit);
        assert_eq!(config.volume.len(), 1);
    }
}
