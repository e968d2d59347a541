//! Settings of one tier: parses the text of `--tier` and of admin requests, validates it, and
//! derives values from it.

use std::fmt::Display;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use floe_block::{
    AdmissionConfig, Admissions, BlockSizes, Calibrated, Config, Evict, Memory, SECTOR_BYTES,
    WriteMode, format_size,
};
use floe_device::{MemoryLimit, Spec, SpecError};
use floe_policy::admission::Admission;
use serde::Deserialize;

use super::declare::{Setting, SettingKind, read_given};
use super::place::{TableRef, Wrong};
use super::value::{Bytes, Percent};
use super::{Table, TierConfig};
use crate::admin::AllowedPaths;

/// Number of groups that a tier needs for each thread that is started by default. Smaller shards
/// choose worse victims.
const GROUPS_A_THREAD: u64 = 16;

/// Settings that the text of a tier gives by its device instead of by name.
const OF_THE_DEVICE: [&str; 2] = ["cache", "cache-size"];

/// Default values that the text of a tier leaves out.
const UNSAID: [(&str, &str); 2] = [("admit", "always"), ("evict", "lru")];

/// Bits of memory for each sector of a cache, even an empty one. Cached blocks need more.
const SECTOR_BITS: u64 = 5;

/// Returns the bytes of memory that an empty cache needs for its directory.
fn tables_of(cache_bytes: u64) -> u64 {
    cache_bytes / SECTOR_BYTES / 8 * SECTOR_BITS
}

/// Returns the default admission, which admits everything.
pub(super) fn always() -> Admissions {
    "always".parse().expect("it is an admission")
}

/// Returns the settings that the text of a tier may contain.
fn own_settings() -> impl Iterator<Item = &'static Setting> {
    TierConfig::SETTINGS.iter().filter(|setting| !OF_THE_DEVICE.contains(&setting.name().as_str()))
}

/// Returns the settings that the text of a tier may contain, in the form in which help and errors
/// list them.
pub fn own_forms() -> Vec<String> {
    let form = |setting: &Setting| match (setting.kind, setting.value) {
        (SettingKind::Flag, _) => setting.name(),
        // A comma ends the setting, so sizes are joined as the paths of a stripe are.
        (_, "LIST") => format!("{}=SIZE+SIZE", setting.name()),
        (_, value) => format!("{}={value}", setting.name()),
    };
    own_settings().map(form).collect()
}

impl TierConfig {
    /// Parses the text of a device that also contains settings of the tier.
    ///
    /// # Errors
    /// The problem with the device or a setting.
    pub fn parse(text: &str) -> Result<Self, String> {
        let own: Vec<String> = own_settings().map(Setting::name).collect();
        let mut given: Vec<(String, Vec<String>)> = Vec::new();
        let mut parts = text.split(',');
        let mut device = parts.next().unwrap_or_default().to_owned();
        let mut before = "";
        for part in parts {
            let sizes = std::mem::replace(&mut before, part).strip_prefix("block-sizes=");
            if let Some(sizes) =
                sizes.filter(|_| part.starts_with(|first: char| first.is_ascii_digit()))
            {
                return Err(format!(
                    "block-sizes: those of a tier are joined by +, such as \
                     block-sizes={sizes}+{part}"
                ));
            }
            let (name, value) = part
                .split_once('=')
                .map_or((part, None), |(name, value)| (name, Some(value.to_owned())));
            if !own.iter().any(|own| own == name) {
                device = device + "," + part;
                continue;
            }
            if given.iter().any(|(other, _)| other == name) {
                return Err(format!("setting {name:?} is given twice in {text:?}"));
            }
            let value = match name {
                "block-sizes" => value.map(|sizes| sizes.replace('+', ",")),
                _ => value,
            };
            given.push((name.to_owned(), value.into_iter().collect()));
        }
        let tier: Self = read_given(given)?;
        // A device that makes no sense is the validation's to refuse.
        let cache = device.parse().map_err(|error: SpecError| match error {
            SpecError::Setting { .. } => {
                format!("{error}; a tier also has {}", own_forms().join(", "))
            }
            _ => error.to_string(),
        })?;
        Ok(Self { cache: Some(cache), ..tier })
    }

    /// Parses and validates the text of a tier that will be attached below other tiers. `paths`
    /// limits the files that the text may name.
    ///
    /// # Errors
    /// The problem with a setting, or the path that is not allowed. No file is opened unless all
    /// paths are allowed.
    pub fn of(text: &str, paths: &AllowedPaths) -> Result<Self, String> {
        let tier = Self::parse(text)?;
        let devices = tier.cache.iter().flat_map(Spec::paths).chain(&tier.calibration);
        for path in devices {
            paths.check(path).map_err(|refused| refused.to_string())?;
        }
        tier.validated(Where::Alone, true).map_err(|wrong| wrong.to_string())
    }

    /// Returns the device and settings of the tier, as text for `--tier`.
    pub fn name(&self) -> String {
        let table = toml::Table::try_from(self).unwrap_or_default();
        let mut text = self.cache().to_string();
        for name in own_settings().map(Setting::name) {
            let Some(value) = table.get(&name) else { continue };
            let value = match value {
                toml::Value::String(value) => value.replace(',', "+"),
                toml::Value::Boolean(_) => String::new(),
                value => value.to_string(),
            };
            if !UNSAID.contains(&(name.as_str(), value.as_str())) {
                text = text + "," + &name + if value.is_empty() { "" } else { "=" } + &value;
            }
        }
        text
    }

    /// Returns the cache device.
    ///
    /// # Panics
    /// When the tier has not been validated.
    pub fn cache(&self) -> &Spec {
        self.cache.as_ref().expect("a validated tier has a device")
    }

    /// Returns the size of the cache in bytes, its metadata included.
    pub fn cache_bytes(&self) -> u64 {
        self.cache_size.map_or(0, |Bytes(bytes)| bytes)
    }

    /// Returns the write mode, by default write-through.
    pub fn mode(&self) -> WriteMode {
        self.write.unwrap_or_default()
    }

    /// Returns whether the content of the tier outlives the server.
    pub fn is_persistent(&self) -> bool {
        !self.volatile && !self.cache().is_memory()
    }

    /// Returns the configuration of a new cache. `memory` is the memory tier above it, and
    /// `above_bytes` the capacity of all tiers above.
    pub fn config(&self, memory: Memory, above_bytes: u64) -> Config {
        Config {
            sizes: self.sizes(),
            adapts_fetches: self.block_sizes.is_none(),
            cache_bytes: self.cache_bytes(),
            mode: self.mode(),
            shards: self.shards,
            gate: AdmissionConfig {
                admission: self.admit.clone().unwrap_or_default(),
                above_bytes,
            },
            evict: self.evict.clone().unwrap_or_default(),
            memory,
            kept: self.is_persistent(),
        }
    }

    /// Returns the block sizes of a new cache.
    fn sizes(&self) -> BlockSizes {
        let automatic = || BlockSizes::automatic(self.cache_bytes());
        self.block_sizes.clone().unwrap_or_else(automatic)
    }

    /// Returns the limit of the tier's dirty bytes, or `None` without a limit.
    pub fn most_dirty_bytes(&self) -> Option<u64> {
        self.most_dirty_of(self.cache_bytes())
    }

    /// Returns the limit of dirty bytes in a cache of `cache_bytes`, or `None` without a limit.
    pub(crate) fn most_dirty_of(&self, cache_bytes: u64) -> Option<u64> {
        self.dirty_max.map(|most| (most.share() * cache_bytes as f64) as u64)
    }

    /// Returns the maximum number of threads for which the tier has shards of a useful size.
    pub(super) fn useful_threads(&self) -> u64 {
        let groups = self.cache_bytes() / (self.sizes().largest() * SECTOR_BYTES);
        self.shards.unwrap_or(groups / GROUPS_A_THREAD)
    }

    /// Validates the settings and sets defaults for missing ones.
    pub(super) fn validated(mut self, place: Where, has_memory: bool) -> Result<Self, Wrong> {
        let Some(cache) = &self.cache else {
            let how = match place {
                Where::Server => ", with --cache SPEC or --tier SPEC",
                _ => "",
            };
            return Err(place.wrong("cache", format!("cache is missing: name its device{how}")));
        };
        let bytes = place.cache_bytes(cache, self.cache_size, self.volatile)?;
        if let Some(problem) = too_large_tables(bytes) {
            return Err(place.wrong("cache-size", format!("cache-size: {problem}")));
        }
        self.cache_size = Some(Bytes(bytes));
        let mode = *self.write.get_or_insert_default();
        self.admit = Some(place.admit(&self, has_memory)?);
        self.calibration = None; // it is in the admission
        let evict = self.evict.get_or_insert_default();
        if mode == WriteMode::Pass && *evict != Evict::default() {
            let problem = "evict has no effect with write = pass, by which nothing is cached";
            return Err(place.wrong("evict", problem));
        }
        if mode.keeps_writes() {
            self.dirty_max.get_or_insert(Percent::HALF);
        } else if self.dirty_max.is_some() {
            let problem =
                format!("dirty-max applies to write = back or only; here write is {mode}");
            return Err(place.wrong("dirty-max", problem));
        }
        Ok(self)
    }
}

/// The part of the settings that describes a tier.
#[derive(Debug, Clone, Copy)]
pub(super) enum Where {
    /// The settings of the whole server.
    Server,
    /// The `[[tier]]` table with this index.
    Table(usize),
    /// The text of an admin request.
    Alone,
}

impl Where {
    pub(super) fn wrong(self, setting: &str, problem: impl Display) -> Wrong {
        let (table, problem) = match self {
            Self::Table(index) => {
                (Some(TableRef::Tier(index)), format!("tier {}: {problem}", index + 1))
            }
            Self::Server | Self::Alone => (None, problem.to_string()),
        };
        Wrong::new(table, setting, problem)
    }

    /// Returns the size of a tier in bytes: the setting, the size in the spec, or that of the
    /// existing device. A volatile tier may be smaller than its device.
    fn cache_bytes(
        self,
        cache: &Spec,
        asked: Option<Bytes>,
        is_volatile: bool,
    ) -> Result<u64, Wrong> {
        let may_be_longer = is_volatile && cache.size_bytes().is_none();
        match (asked.map(|Bytes(bytes)| bytes), cache.size_found()) {
            (Some(asked), Some(there)) if asked != there && !(may_be_longer && there > asked) => {
                let (asked, there) = (format_size(asked), format_size(there));
                Err(self.wrong(
                    "cache-size",
                    format!("cache-size is {asked}, but the cache device has {there}"),
                ))
            }
            (Some(bytes), _) | (None, Some(bytes)) => Ok(bytes),
            (None, None) => {
                if let Some(problem) = unreadable(cache) {
                    return Err(self.wrong("cache", format!("cache: {problem}")));
                }
                let what = if matches!(self, Self::Server) { "cache-size" } else { "size" };
                let why = if cache.is_remote() {
                    "cannot be asked for its size"
                } else {
                    "is no file or block device yet"
                };
                let problem = format!("{what} is missing: {cache} {why}");
                Err(self.wrong("cache", problem))
            }
        }
    }

    /// Validates the admission, which needs a write mode that caches, and sets its parameters from
    /// the calibration file.
    fn admit(self, tier: &TierConfig, has_memory: bool) -> Result<Admissions, Wrong> {
        let admit = tier.admit.clone().unwrap_or_else(always);
        if !has_memory && admit.needs().above {
            let problem = "admit: small-bypass needs memory above the cache; write \
                           small-bypass:memory=BYTES, or add a tier above (in floe serve also \
                           memory)";
            return Err(self.wrong("admit", problem));
        }
        if tier.mode() == WriteMode::Pass && !admit.is_always() {
            let problem = "admit has no effect with write = pass, by which nothing is cached";
            return Err(self.wrong("admit", problem));
        }
        let Some(file) = &tier.calibration else { return Ok(admit) };
        if admit.is_always() {
            let problem = "calibration needs an admission that uses it, such as admit = obp";
            return Err(self.wrong("calibration", problem));
        }
        let found = read_calibration(file);
        let found =
            found.map_err(|error| self.wrong("calibration", format!("calibration: {error}")))?;
        Ok(admit.calibrated(&found))
    }
}

/// The results of `floe calibrate` that admissions use.
#[derive(Deserialize)]
struct Calibration {
    write_cost: f64,
    target: f64,
    target_bytes: f64,
}

/// Reads the parameters of admissions from a file that `floe calibrate` wrote.
fn read_calibration(file: &Path) -> Result<Calibrated, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let found: Calibration = serde_json::from_str(&text).map_err(|error| {
        format!("{} is not what floe calibrate writes: {error}", file.display())
    })?;
    let Calibration { write_cost, target, target_bytes } = found;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    if write_cost >= 0.0 && is_share(target) && is_share(target_bytes) {
        Ok(Calibrated { write_cost, target, target_bytes })
    } else {
        Err(format!(
            "{}: the target must be from 0 to 1, and the write cost at least 0",
            file.display()
        ))
    }
}

/// Returns a message if a file or disk of a device may exist but cannot be opened, for example
/// because this user may not read it.
fn unreadable(device: &Spec) -> Option<String> {
    device.paths().iter().find_map(|path| {
        let error = match std::fs::metadata(path) {
            // Opening a pipe would wait.
            Ok(data) if !data.is_file() && !data.file_type().is_block_device() => return None,
            Ok(_) => std::fs::File::open(path).err()?,
            Err(error) => error,
        };
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        (!is_missing).then(|| format!("cannot open {}: {error}", path.display()))
    })
}

/// Returns a message if the tables of a cache of this many bytes exceed the memory that the process
/// can have.
pub(crate) fn too_large_tables(cache_bytes: u64) -> Option<String> {
    let too_much = too_much_memory(tables_of(cache_bytes))?;
    let (size, tables) = (format_size(cache_bytes), format_size(tables_of(cache_bytes)));
    Some(format!("a cache of {size} needs {tables} of memory for its tables alone, {too_much}"))
}

/// Returns a message if tiers, and `above` bytes of memory above them, need more memory than the
/// process can have. Each tier has its size and whether its data is in memory.
pub(crate) fn too_large_tiers(
    above: u64,
    tiers: impl Iterator<Item = (u64, bool)> + Clone,
) -> Option<String> {
    let in_memory = tiers.clone().filter(|(_, is_memory)| *is_memory).map(|(bytes, _)| bytes);
    let data = in_memory.fold(above, u64::saturating_add);
    let all = tiers.map(|(bytes, _)| tables_of(bytes)).fold(data, u64::saturating_add);
    let too_much = too_much_memory(all)?;
    let (all, data) = (format_size(all), format_size(data));
    Some(format!(
        "the tiers need {all} of memory at least, {data} for what is cached in memory and the rest \
         for tables: that is {too_much}"
    ))
}

/// Returns a message if this many bytes exceed the memory that the process can have.
pub(super) fn too_much_memory(bytes: u64) -> Option<String> {
    let limit = MemoryLimit::here().filter(|limit| bytes > limit.bytes)?;
    Some(format!("more than {limit} ({})", format_size(limit.bytes >> 20 << 20)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn settings_of_the_tier_are_told_from_those_of_its_device() {
        let text = "file:/srv/tier,write=back,admit=small-bypass+obp:target=0.2,evict=s3-fifo:\
                    small=0.2,size=1GiB,block-sizes=4KiB+64KiB,medium=nvme,shards=8,volatile";
        let tier = TierConfig::parse(text).unwrap();
        let of_tier = TierConfig {
            cache: Some("file:/srv/tier,size=1GiB,medium=nvme".parse().unwrap()),
            write: Some(WriteMode::Back),
            admit: Some("small-bypass+obp:target=0.2".parse().unwrap()),
            evict: Some("s3-fifo:small=0.2".parse().unwrap()),
            block_sizes: Some("4KiB,64KiB".parse().unwrap()),
            shards: Some(8),
            volatile: true,
            ..TierConfig::default()
        };
        assert_eq!(format!("{tier:?}"), format!("{of_tier:?}"));
    }

    #[test]
    fn what_is_wrong_with_them_is_named() {
        for (text, said) in [
            ("memory:1MiB,write=back,write=back", "\"write\" is given twice"),
            ("memory:1MiB,volatile,volatile", "\"volatile\" is given twice"),
            ("memory:1MiB,volatile=yes", "volatile: it takes no value"),
            ("memory:1MiB,shards=few", "shards: `few` is not a whole number"),
            ("memory:1MiB,block-sizes=4KiB,64KiB", "joined by +, such as block-sizes=4KiB+64KiB"),
            ("memory:1MiB,colour=red", "a tier also has write=MODE"),
        ] {
            let problem = TierConfig::parse(text).unwrap_err();
            assert!(problem.contains(said), "{text}: {problem}");
        }
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_not_called_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cache");
        std::fs::write(&file, [1; 4096]).unwrap();
        let problem = |text: &str| TierConfig::of(text, &AllowedPaths::All).unwrap_err();
        let inside = file.join("cache");
        let said = problem(&format!("file:{}", inside.display()));
        assert!(said.contains(&format!("cannot open {}: Not a directory", inside.display())));
        let none = problem(&format!("file:{}", folder.path().join("none").display()));
        assert!(none.contains("is no file or block device yet"), "{none}");
        if rustix::process::geteuid().is_root() {
            return; // root may read everything
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        let said = problem(&format!("file:{}", file.display()));
        assert!(said.contains("Permission denied"), "{said}");
    }

    #[test]
    fn only_a_volatile_tier_may_be_smaller_than_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cache");
        std::fs::write(&file, vec![0; 64 << 20]).unwrap();
        let size = |rest: &str| {
            let volume = "[[volume]]\nname = 'a'\nbacking = 'memory:1GiB'\n";
            let text = format!("cache = 'file:{}{rest}\n{volume}", file.display());
            let settings = crate::config::ServerConfig::from_text(&text)?;
            Ok::<_, String>(settings.tiers().next().unwrap().cache_bytes())
        };
        assert_eq!(size("'\ncache-size = '32MiB'\nvolatile = true"), Ok(32 << 20));
        assert_eq!(size("'\nvolatile = true"), Ok(64 << 20));
        for wrong in [
            "'\ncache-size = '32MiB'",
            "'\ncache-size = '128MiB'\nvolatile = true",
            ",size=64MiB'\ncache-size = '32MiB'\nvolatile = true",
        ] {
            let problem = size(wrong).unwrap_err();
            assert!(problem.contains("but the cache device has 64MiB"), "{problem}");
        }
    }

    #[test]
    fn a_tier_is_named_by_all_that_makes_it() {
        for text in [
            "memory:64MiB,medium=pmem,write=back,admit=duel + \
             obp:target=0.3,evict=s3-fifo,block-sizes=4KiB+64KiB,dirty-max=30%,shards=2,volatile",
            "memory:64MiB,write=through",
        ] {
            assert_eq!(TierConfig::of(text, &AllowedPaths::All).unwrap().name(), text);
        }
    }
}
