//! The shares of volumes in the tiers: a guaranteed part, and a largest part.
//!
//! A part is a size, which holds for each tier, or a percentage of each tier. The block cache
//! enforces it ([`floe_block::CacheShare`]).

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use floe_block::{CacheShare, format_size};
use floe_device::parse_bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A part of each tier, such as `10GiB` or `25%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CachePortion {
    /// Bytes of each tier.
    Bytes(u64),
    /// Percent of each tier, from 0 to 100.
    Percent(f64),
}

impl CachePortion {
    /// Returns the bytes of a tier of `tier_bytes`.
    fn of(self, tier_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (tier_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

impl Display for CachePortion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.pad(&format_size(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for CachePortion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let portion = match text.strip_suffix('%').map(str::parse::<f64>) {
            None => parse_bytes(text).map(Self::Bytes),
            Some(Ok(percent)) if (0.0..=100.0).contains(&percent) => Some(Self::Percent(percent)),
            Some(_) => None,
        };
        portion.ok_or_else(|| {
            format!("`{text}` is neither a size nor a percentage up to 100%; write 10GiB or 25%")
        })
    }
}

impl Serialize for CachePortion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CachePortion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The share of a volume in each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeShare {
    /// The part that other volumes do not evict; `None` for nothing.
    #[serde(default)]
    pub guaranteed: Option<CachePortion>,
    /// The largest part; `None` for all of the tier.
    #[serde(default)]
    pub most: Option<CachePortion>,
}

impl VolumeShare {
    /// Returns whether the volume has a share.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the share in a tier of `tier_bytes`.
    pub fn of(&self, tier_bytes: u64) -> CacheShare {
        CacheShare {
            guaranteed_bytes: self.guaranteed.map_or(0, |portion| portion.of(tier_bytes)),
            most_bytes: self.most.map(|portion| portion.of(tier_bytes)),
        }
    }

    /// Returns the problem of a guaranteed part above the largest part, where both are sizes or
    /// both are percentages.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let is_above = match (self.guaranteed?, self.most?) {
            (CachePortion::Bytes(guaranteed), CachePortion::Bytes(most)) => guaranteed > most,
            (CachePortion::Percent(guaranteed), CachePortion::Percent(most)) => guaranteed > most,
            _ => false,
        };
        is_above.then(|| {
            let [guaranteed, most] = [self.guaranteed, self.most].map(shown);
            format!("cache-guaranteed = {guaranteed} is more than cache-most = {most}")
        })
    }
}

fn shown(portion: Option<CachePortion>) -> String {
    portion.map_or_else(|| "none".to_owned(), |portion| portion.to_string())
}

/// Shows a share in words, such as `at least 10GiB, at most 50%`.
impl Display for VolumeShare {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.guaranteed, self.most) {
            (None, None) => f.pad("no share"),
            (Some(guaranteed), None) => write!(f, "at least {guaranteed}"),
            (None, Some(most)) => write!(f, "at most {most}"),
            (Some(guaranteed), Some(most)) => write!(f, "at least {guaranteed}, at most {most}"),
        }
    }
}

/// The request body that changes the share of a volume. A field that is left out stays as it is,
/// and `null` lifts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareChange {
    /// The part that other volumes do not evict.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<Option<CachePortion>>,
    /// The largest part.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub most: Option<Option<CachePortion>>,
}

/// Deserialises a field that is there, even if it is null.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<CachePortion>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl ShareChange {
    /// Returns whether nothing is to change.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the share after the change.
    ///
    /// # Errors
    /// When the guaranteed part is above the largest part.
    pub fn applied(&self, before: VolumeShare) -> Result<VolumeShare, String> {
        let share = VolumeShare {
            guaranteed: self.guaranteed.unwrap_or(before.guaranteed),
            most: self.most.unwrap_or(before.most),
        };
        share.contradiction().map_or(Ok(share), Err)
    }
}

/// Returns the shares of volumes in a tier of `tier_bytes`. A tier that was resized for other
/// shares may be unable to guarantee all that it is to guarantee. It guarantees less then: at most
/// a volume's largest part, and to all volumes a smaller part in proportion.
pub(crate) fn fit(shares: &[VolumeShare], tier_bytes: u64) -> Vec<CacheShare> {
    let bounded = |share: &VolumeShare| {
        let CacheShare { guaranteed_bytes, most_bytes } = share.of(tier_bytes);
        let guaranteed_bytes = most_bytes.map_or(guaranteed_bytes, |it| it.min(guaranteed_bytes));
        CacheShare { guaranteed_bytes, most_bytes }
    };
    let mut fitting: Vec<CacheShare> = shares.iter().map(bounded).collect();
    let sum: u128 = fitting.iter().map(|share| u128::from(share.guaranteed_bytes)).sum();
    if sum > u128::from(tier_bytes) {
        for CacheShare { guaranteed_bytes, .. } in &mut fitting {
            let part = u128::from(*guaranteed_bytes) * u128::from(tier_bytes) / sum;
            *guaranteed_bytes = part as u64; // at most the tier
        }
    }
    fitting
}

/// Checks that a tier can guarantee all that it is to guarantee to these volumes.
///
/// # Errors
/// When a volume's guaranteed part is above its largest part, or the sum of the guaranteed parts is
/// more than the tier: the problem, with the names of volumes and of the tier.
pub fn check<'a>(
    volumes: impl Iterator<Item = (&'a str, VolumeShare)>,
    tier: &str,
    tier_bytes: u64,
) -> Result<(), String> {
    let (mut sum, mut names) = (0u64, Vec::new());
    for (name, share) in volumes {
        let CacheShare { guaranteed_bytes, most_bytes } = share.of(tier_bytes);
        if most_bytes.is_some_and(|most| guaranteed_bytes > most) {
            let [guaranteed, most] = [share.guaranteed, share.most].map(shown);
            return Err(format!(
                "volume {name:?}: cache-guaranteed = {guaranteed} is more than cache-most = \
                 {most} of tier {tier}, which has {}",
                format_size(tier_bytes)
            ));
        }
        if guaranteed_bytes > 0 {
            sum = sum.saturating_add(guaranteed_bytes);
            names.push(format!("{name:?} {}", shown(share.guaranteed)));
        }
    }
    if sum > tier_bytes {
        let (sum, has) = (format_size(sum), format_size(tier_bytes));
        let names = names.join(", ");
        return Err(format!(
            "cache-guaranteed of the volumes is {sum} in all ({names}), and tier {tier} has {has}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(guaranteed: &str, most: &str) -> VolumeShare {
        let portion = |text: &str| (text != "none").then(|| text.parse().unwrap());
        VolumeShare { guaranteed: portion(guaranteed), most: portion(most) }
    }

    #[test]
    fn a_portion_is_written_as_it_is_read() {
        for text in ["10GiB", "25%", "12.5%", "0%", "4KiB", "100%"] {
            let portion: CachePortion = text.parse().unwrap();
            assert_eq!(portion.to_string(), text);
        }
        assert_eq!(share("25%", "1GiB").of(1000).guaranteed_bytes, 250);
        assert_eq!(share("0", "none").of(1000), CacheShare::default());
        for wrong in ["", "some", "101%", "-1%", "%", "NaN%", "10 apples"] {
            assert!(wrong.parse::<CachePortion>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let change = |json: &str| serde_json::from_str::<ShareChange>(json).unwrap();
        let before = share("10%", "50%");
        let after = |json| change(json).applied(before).map(|share| share.to_string());
        assert_eq!(after("{}").unwrap(), "at least 10%, at most 50%");
        assert_eq!(after(r#"{"most": null}"#).unwrap(), "at least 10%");
        assert_eq!(after(r#"{"guaranteed": null, "most": "1GiB"}"#).unwrap(), "at most 1GiB");
        assert_eq!(
            after(r#"{"guaranteed": "60%"}"#).unwrap_err(),
            "cache-guaranteed = 60% is more than cache-most = 50%"
        );
        assert!(serde_json::from_str::<ShareChange>(r#"{"least": "1%"}"#).is_err());
        assert!(serde_json::from_str::<ShareChange>(r#"{"most": "lots"}"#).is_err());
        assert_eq!(serde_json::to_string(&ShareChange::default()).unwrap(), "{}");
        let lifted = ShareChange { guaranteed: None, most: Some(None) };
        assert_eq!(serde_json::to_string(&lifted).unwrap(), r#"{"most":null}"#);
    }

    #[test]
    fn a_tier_guarantees_no_more_than_it_has() {
        let (a, b) = (share("6KiB", "none"), share("50%", "80%"));
        let check = |volumes: &[(&'static str, VolumeShare)], bytes| {
            check(volumes.iter().copied(), "fast", bytes)
        };
        assert_eq!(check(&[("a", a), ("b", b)], 12 << 10), Ok(()));
        assert_eq!(
            check(&[("a", a), ("b", b), ("c", VolumeShare::default())], 10 << 10),
            Err("cache-guaranteed of the volumes is 11KiB in all (\"a\" 6KiB, \"b\" 50%), and \
                 tier fast has 10KiB"
                .to_owned())
        );
        let fit = |shares: &[VolumeShare], bytes| -> Vec<u64> {
            fit(shares, bytes).iter().map(|share| share.guaranteed_bytes).collect()
        };
        assert_eq!(fit(&[a, b], 12 << 10), [6 << 10, 6 << 10]);
        assert_eq!(fit(&[a, VolumeShare::default(), b], 8 << 10), [4915, 0, 3276]);
        assert_eq!(fit(&[share("6KiB", "50%")], 8 << 10), [4 << 10]);
        assert_eq!(fit(&[share("1PiB", "none"), a], 0), [0, 0]);
        let problem = check(&[("a", share("6KiB", "50%"))], 10 << 10).unwrap_err();
        assert!(problem.contains("6KiB is more than cache-most = 50% of tier fast"), "{problem}");
    }
}
