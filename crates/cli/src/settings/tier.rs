//! A tier of the cache as written by the user: a `[[tier]]` of a file, or the text after `--tier`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The settings of a tier besides those of its device, for messages.
pub(super) const OF_A_TIER: &str = "write=MODE, admit=ADMISSION, evict=POLICY, calibration=FILE, \
                                    block-sizes=SIZE+SIZE, dirty-max=SHARE, shards=N and volatile";

/// A tier below those before it. The settings have the names of those of the whole run, which
/// belong to the first tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct TierTable {
    pub(crate) cache: Option<String>,
    pub(crate) cache_size: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) volatile: bool,
    pub(crate) write: Option<String>,
    pub(crate) admit: Option<String>,
    pub(crate) evict: Option<String>,
    pub(crate) calibration: Option<PathBuf>,
    pub(crate) dirty_max: Option<String>,
    pub(crate) block_sizes: Option<String>,
    pub(crate) shards: Option<u64>,
}

impl TierTable {
    /// Parses the text of a device that also contains settings of the tier.
    ///
    /// # Errors
    /// The error in the settings of the tier; those of the device are not checked.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let mut parts = text.split(',');
        let mut device = parts.next().unwrap_or_default().to_owned();
        let mut before = "";
        for part in parts {
            let sizes = std::mem::replace(&mut before, part).strip_prefix("block-sizes=");
            if let Some(sizes) =
                sizes.filter(|_| part.starts_with(|first: char| first.is_ascii_digit()))
            {
                return Err(format!(
                    "block-sizes: a tier's are joined by +, such as block-sizes={sizes}+{part}"
                ));
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let again = match name {
                "write" => table.write.replace(value.to_owned()).is_some(),
                "admit" => table.admit.replace(value.to_owned()).is_some(),
                "evict" => table.evict.replace(value.to_owned()).is_some(),
                "calibration" => table.calibration.replace(value.into()).is_some(),
                "dirty-max" => table.dirty_max.replace(value.to_owned()).is_some(),
                // A comma ends the setting, so sizes are joined as the paths of a stripe are.
                "block-sizes" => table.block_sizes.replace(value.replace('+', ",")).is_some(),
                "shards" => {
                    let shards = value.parse();
                    let shards =
                        shards.map_err(|_| format!("shards: `{value}` is no number of shards"))?;
                    table.shards.replace(shards).is_some()
                }
                "volatile" if part == name => std::mem::replace(&mut table.volatile, true),
                "volatile" => return Err(format!("volatile has no value, such as {value:?}")),
                _ => {
                    device = device + "," + part;
                    continue;
                }
            };
            if again {
                return Err(format!("setting {name:?} is given twice in {text:?}"));
            }
        }
        table.cache = Some(device);
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_tier_are_told_from_those_of_its_device() {
        let text = "file:/srv/tier,write=back,admit=small-bypass+obp:target=0.2,evict=s3-fifo:\
                    small=0.2,size=1GiB,block-sizes=4KiB+64KiB,medium=nvme,shards=8,volatile";
        let table = TierTable::parse(text).unwrap();
        let of_tier = TierTable {
            cache: Some("file:/srv/tier,size=1GiB,medium=nvme".into()),
            write: Some("back".into()),
            admit: Some("small-bypass+obp:target=0.2".into()),
            evict: Some("s3-fifo:small=0.2".into()),
            block_sizes: Some("4KiB,64KiB".into()),
            shards: Some(8),
            volatile: true,
            ..TierTable::default()
        };
        assert_eq!(table, of_tier);
    }

    #[test]
    fn what_is_wrong_with_them_is_named() {
        for (text, said) in [
            ("memory:1MiB,write=back,write=back", "\"write\" is given twice"),
            ("memory:1MiB,volatile,volatile", "\"volatile\" is given twice"),
            ("memory:1MiB,volatile=yes", "volatile has no value"),
            ("memory:1MiB,shards=few", "`few` is no number of shards"),
            ("memory:1MiB,block-sizes=4KiB,64KiB", "joined by +, such as block-sizes=4KiB+64KiB"),
        ] {
            assert!(TierTable::parse(text).unwrap_err().contains(said), "{text}");
        }
    }
}
