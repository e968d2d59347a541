//! The interface of a measured cache, and the settings for freezing hot entries.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use floe_memory::{AdmissionStats, FreezeStats};

/// A cache of entries under `u64` keys, used by all threads at once.
///
/// An entry's value follows from its key, so that a subject can check what it finds.
pub trait Subject: Sync {
    /// Looks up a key and reads its value. Returns whether the key was cached.
    fn lookup(&self, key: u64) -> bool;

    /// Inserts a key after a lookup that missed.
    fn fill(&self, key: u64);

    /// Writes a key, cached or not.
    fn update(&self, key: u64);

    /// Returns the results of freezing so far, where the subject freezes.
    fn freezes(&self) -> Option<Freezes> {
        None
    }

    /// Returns the counters of the admission policy; `None` without such a policy.
    fn admission(&self) -> Option<AdmissionStats> {
        None
    }

    /// Discards everything that the subject has learned about its load; entries stay.
    fn forget(&self) {}
}

/// Counters of a subject that freezes entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Freezes {
    /// Hits since the subject was made.
    pub hits: u64,
    /// Hits on frozen entries since the subject was made.
    pub frozen_hits: u64,
    /// Current number of entries.
    pub entries: u64,
    /// Current number of frozen entries.
    pub frozen: u64,
    /// Statistics of the freeze controller.
    pub stats: FreezeStats,
}

/// The part of a cache to freeze. Parses from `off`, `adaptive`, a share of the entries, or
/// `without-index:` with a share, and prints in the same notation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Frozen {
    /// Freezes nothing.
    #[default]
    Off,
    /// Freezes the share of the entries that the cache finds best.
    Adaptive,
    /// Always freezes this share of the entries.
    Fixed(f64),
    /// Freezes this share of the entries without an index of their own: lookups use the main index.
    /// The comparison shows the value of the frozen index.
    WithoutIndex(f64),
}

/// The time after which frozen entries are chosen anew. Parses from `drift`, a number of
/// constructions as `20x`, or seconds as `1.5`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Lifetime {
    /// Chooses anew when that is cheapest, by the measured drift of the load.
    #[default]
    Drift,
    /// Chooses anew after this multiple of the time that construction took.
    Constructions(f64),
    /// Chooses anew after this time.
    Fixed(Duration),
}

/// Settings for freezing hot entries.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Freezing {
    /// The part to freeze.
    pub frozen: Frozen,
    /// Time after which frozen entries are chosen anew.
    pub lifetime: Lifetime,
}

/// Shortest lifetime given as a number of constructions. The cache itself would not go below a
/// second.
const SHORTEST: Duration = Duration::from_millis(1);
/// Lifetime in seconds above which a setting is refused as a mistake.
const LONGEST_SECONDS: f64 = 1e6;

impl Freezing {
    /// Returns the cache's own settings for freezing; `None` if it does not freeze.
    pub fn options(&self) -> Option<floe_memory::Freezing> {
        let options = match self.frozen {
            Frozen::Off => return None,
            Frozen::Adaptive => floe_memory::Freezing::adaptive(),
            Frozen::Fixed(ratio) => floe_memory::Freezing::fixed(ratio),
            Frozen::WithoutIndex(ratio) => floe_memory::Freezing::fixed(ratio).without_index(),
        };
        Some(match self.lifetime {
            Lifetime::Drift => options,
            Lifetime::Constructions(factor) => {
                options.lifetime_factor(factor).lifetime_between(SHORTEST, Duration::from_secs(600))
            }
            Lifetime::Fixed(lifetime) => options.lifetime(lifetime),
        })
    }
}

impl FromStr for Frozen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share =
            |text: &str| text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        match text {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            _ => match text.strip_prefix("without-index:") {
                Some(ratio) => share(ratio).map(Self::WithoutIndex),
                None => share(text).map(Self::Fixed),
            }
            .ok_or_else(|| format!("`{text}` is not off, adaptive or a share from 0 to 1")),
        }
    }
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Adaptive => f.pad("adaptive"),
            Self::Fixed(ratio) => write!(f, "{ratio}"),
            Self::WithoutIndex(ratio) => write!(f, "without-index:{ratio}"),
        }
    }
}

impl FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "drift" {
            return Ok(Self::Drift);
        }
        let (number, is_factor) = match text.strip_suffix('x') {
            Some(factor) => (factor, true),
            None => (text, false),
        };
        let lifetime = number
            .parse::<f64>()
            .ok()
            .filter(|lifetime| (1e-6..=LONGEST_SECONDS).contains(lifetime));
        match lifetime {
            Some(factor) if is_factor => Ok(Self::Constructions(factor)),
            Some(seconds) => Ok(Self::Fixed(Duration::from_secs_f64(seconds))),
            None => Err(format!(
                "`{text}` is not a lifetime; write drift, a number of constructions such as 20x, \
                 or of seconds"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_freeze_prints_as_it_is_written() {
        for text in ["off", "adaptive", "0", "0.3", "1", "without-index:0.5"] {
            assert_eq!(text.parse::<Frozen>().unwrap().to_string(), text);
        }
        for text in ["", "on", "1.1", "-0.1", "nan", "without-index", "without-index:2", "30%"] {
            assert!(text.parse::<Frozen>().is_err(), "{text}");
        }
    }

    #[test]
    fn lifetimes_are_constructions_or_seconds() {
        assert_eq!("drift".parse(), Ok(Lifetime::Drift));
        assert_eq!("20x".parse(), Ok(Lifetime::Constructions(20.0)));
        assert_eq!("0.25".parse(), Ok(Lifetime::Fixed(Duration::from_millis(250))));
        for text in ["", "x", "0", "0x", "-1", "inf", "2s", "nan"] {
            assert!(text.parse::<Lifetime>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_cache_that_is_to_freeze_does() {
        assert_eq!(Freezing::default().options(), None);
        let fixed =
            Freezing { frozen: Frozen::Fixed(0.5), lifetime: Lifetime::Constructions(10.0) };
        assert!(
            fixed.options().is_some_and(|options| options != floe_memory::Freezing::fixed(0.5))
        );
    }
}
