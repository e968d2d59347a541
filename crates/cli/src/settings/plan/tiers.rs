//! Parses the tiers of the cache: the device, size, write mode and policies of each.

use std::fmt::Display;
use std::str::FromStr;

use floe_block::{
    Admissions, BlockSizes, Config, Evict, Gate, Memory, SECTOR_BYTES, WriteMode, format_size,
};
use floe_device::{Spec, SpecError};
use floe_policy::admission::Admission;
use floe_policy::admission::registry::choices;
use floe_server::admin::AllowedPaths;

use super::super::place::{Place, Table};
use super::super::tier::{OF_A_TIER, TierTable};
use super::super::{Settings, Wrong};
use crate::calibrate;
use crate::size::{Bytes, Percent};

/// Most worker threads.
const THREADS_MAX: u64 = 64;

/// Groups a thread needs to be started by default; smaller shards choose their victims badly.
const GROUPS_A_THREAD: u64 = 16;

/// A tier of the cache.
#[derive(Debug, Clone)]
pub(crate) struct TierPlan {
    pub(crate) cache: Spec,
    pub(crate) cache_bytes: u64,
    /// Its content ends with the program.
    pub(crate) volatile: bool,
    pub(crate) mode: WriteMode,
    /// The admission.
    pub(crate) admit: Admissions,
    /// The eviction policy.
    pub(crate) evict: Evict,
    /// The block sizes; `None` takes those of an existing cache, or the default ones.
    pub(crate) sizes: Option<BlockSizes>,
    /// The share of it that may be dirty, with write-back.
    pub(crate) dirty_max: Option<Percent>,
    /// The number of shards, at least one for each thread; `None` leaves it to the cache.
    pub(crate) shards: Option<u64>,
}

impl TierPlan {
    /// Parses a single tier, in the text of `--tier`, that will have others above it. `paths`
    /// limits the files it may name.
    ///
    /// # Errors
    /// A line that names the error, or the path that is not allowed. No file is opened before all
    /// paths are allowed.
    pub(crate) fn of(text: &str, paths: &AllowedPaths) -> Result<Self, String> {
        let table = TierTable::parse(text)?;
        let cache = table.cache.as_deref().and_then(|cache| cache.parse().ok());
        let devices = cache.iter().flat_map(Spec::paths).chain(&table.calibration);
        for path in devices {
            paths.check(path).map_err(|refused| refused.to_string())?;
        }
        Where::Alone.plan(&table, true).map_err(|wrong| wrong.to_string())
    }

    /// Returns the tier in the text of `--tier`.
    pub(crate) fn name(&self) -> String {
        let mut name = format!("{},write={}", self.cache, self.mode);
        let mut say = |setting: &str, value: Option<String>| {
            name.extend(value.map(|value| format!(",{setting}={value}")));
        };
        say(
            "admit",
            Some(&self.admit).filter(|admit| !admit.is_always()).map(Admissions::to_string),
        );
        say(
            "evict",
            Some(&self.evict).filter(|evict| **evict != Evict::default()).map(Evict::to_string),
        );
        say("block-sizes", self.sizes.as_ref().map(|sizes| sizes.to_string().replace(',', "+")));
        say("dirty-max", self.dirty_max.map(|most| most.to_string()));
        say("shards", self.shards.map(|shards| shards.to_string()));
        name + if self.volatile { ",volatile" } else { "" }
    }

    /// Returns whether its content outlasts the server.
    pub(crate) fn is_kept(&self) -> bool {
        !self.volatile && !self.cache.paths().is_empty()
    }

    /// Returns the configuration of a new cache, with `memory` above it, and `above_bytes` in all
    /// tiers above.
    pub(crate) fn config(&self, memory: Memory, above_bytes: u64) -> Config {
        Config {
            sizes: self.sizes.clone().unwrap_or_default(),
            cache_bytes: self.cache_bytes,
            mode: self.mode,
            shards: self.shards,
            gate: Gate { admission: self.admit.clone(), above_bytes },
            evict: self.evict.clone(),
            memory,
            kept: self.is_kept(),
        }
    }

    /// Returns the bytes of it that may be dirty, where that is bounded.
    pub(crate) fn most_dirty_bytes(&self) -> Option<u64> {
        self.dirty_max.map(|most| (most.share() * self.cache_bytes as f64) as u64)
    }

    /// Returns the tier as settings, with all defaults filled in.
    pub(super) fn table(&self) -> TierTable {
        TierTable {
            cache: Some(self.cache.to_string()),
            cache_size: Some(format_size(self.cache_bytes)),
            volatile: self.volatile,
            write: Some(self.mode.to_string()),
            admit: Some(self.admit.to_string()),
            evict: Some(self.evict.to_string()),
            calibration: None, // it is in the admission
            dirty_max: self.dirty_max.map(|most| most.to_string()),
            block_sizes: self.sizes.as_ref().map(BlockSizes::to_string),
            shards: self.shards,
        }
    }

    /// Returns the number of threads for which it has useful shards.
    fn useful_threads(&self) -> u64 {
        let sizes = self.sizes.clone().unwrap_or_default();
        self.shards.unwrap_or(self.cache_bytes / (sizes.largest() * SECTOR_BYTES) / GROUPS_A_THREAD)
    }
}

impl Settings {
    /// Returns the tiers from the top: that of `cache`, if it is given, then those with tables of
    /// their own.
    pub(super) fn tiers(&self) -> Result<Vec<TierPlan>, Wrong> {
        let first = TierTable {
            cache: self.cache.clone(),
            cache_size: self.cache_size.clone(),
            volatile: self.volatile,
            write: self.write.clone(),
            admit: self.admit.clone(),
            evict: self.evict.clone(),
            calibration: self.calibration.clone(),
            dirty_max: self.dirty_max.clone(),
            block_sizes: self.block_sizes.clone(),
            shards: self.shards,
        };
        let mut tiers: Vec<TierPlan> = Vec::new();
        if self.cache.is_some() || self.tier.is_empty() {
            tiers.push(Where::Settings.plan(&first, self.memory.is_some())?);
        } else if let Some(setting) = first.given() {
            let problem = format!("{setting} is for cache; of tiers, each has its own");
            return Err(Where::Settings.wrong(setting, problem));
        }
        for (index, table) in self.tier.iter().enumerate() {
            // An upper tier holds data for this one like memory.
            let has_above = self.memory.is_some() || !tiers.is_empty();
            let tier = Where::Table(index).plan(table, has_above)?;
            if let Some(other) = tiers.iter().find(|other| same_file(&other.cache, &tier.cache)) {
                let problem = format!("it is the same file as the tier {}", other.cache);
                return Err(Where::Table(index).wrong("cache", problem));
            }
            tiers.push(tier);
        }
        Ok(tiers)
    }
}

impl TierTable {
    /// Returns the first setting that is given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("cache-size", self.cache_size.is_some()),
            ("volatile", self.volatile),
            ("write", self.write.is_some()),
            ("admit", self.admit.is_some()),
            ("evict", self.evict.is_some()),
            ("calibration", self.calibration.is_some()),
            ("dirty-max", self.dirty_max.is_some()),
            ("block-sizes", self.block_sizes.is_some()),
            ("shards", self.shards.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(setting, _)| setting)
    }
}

/// The place in which a tier is described.
#[derive(Debug, Clone, Copy)]
enum Where {
    /// In the settings of the whole run.
    Settings,
    /// In the table with this number.
    Table(usize),
    /// In the text of `--tier` or of an admin request.
    Alone,
}

impl Where {
    fn wrong(self, setting: &'static str, problem: impl Display) -> Wrong {
        let (table, problem) = match self {
            Self::Table(index) => {
                (Some(Table::Tier(index)), format!("tier {}: {problem}", index + 1))
            }
            Self::Settings | Self::Alone => (None, problem.to_string()),
        };
        Wrong { place: Place { table, setting }, problem }
    }

    fn parsed<T: FromStr<Err: Display>>(
        self,
        setting: &'static str,
        text: Option<&str>,
    ) -> Result<Option<T>, Wrong> {
        let parsed = text.map(str::parse).transpose();
        parsed.map_err(|error| self.wrong(setting, format!("{setting}: {error}")))
    }

    fn plan(self, table: &TierTable, has_memory: bool) -> Result<TierPlan, Wrong> {
        let Some(cache) = &table.cache else {
            let how = if matches!(self, Self::Settings) {
                ", with --cache SPEC or --tier SPEC"
            } else {
                ""
            };
            return Err(self.wrong("cache", format!("cache is missing: say which device{how}")));
        };
        let cache: Spec = cache.parse().map_err(|error: SpecError| match (self, &error) {
            (Self::Settings, _) => self.wrong("cache", format!("cache: {error}")),
            (_, SpecError::Setting { .. }) => {
                self.wrong("cache", format!("{error}; of a tier there are also {OF_A_TIER}"))
            }
            _ => self.wrong("cache", error),
        })?;
        let cache_size: Option<Bytes> = self.parsed("cache-size", table.cache_size.as_deref())?;
        let cache_bytes = self.cache_bytes(&cache, cache_size.map(|Bytes(bytes)| bytes))?;
        let sizes: Option<BlockSizes> = self.parsed("block-sizes", table.block_sizes.as_deref())?;
        let mode = self.parsed("write", table.write.as_deref())?.unwrap_or_default();
        let admit = self.admit(table, mode, has_memory)?;
        let evict = self.evict(table, mode)?;
        let dirty_max = self.dirty_max(table.dirty_max.as_deref(), mode)?;
        let TierTable { volatile, shards, .. } = *table;
        Ok(TierPlan { cache, cache_bytes, volatile, mode, admit, evict, sizes, dirty_max, shards })
    }

    /// Returns the size of a tier: the setting, the size in the spec, or that of the existing
    /// device.
    fn cache_bytes(self, cache: &Spec, asked: Option<u64>) -> Result<u64, Wrong> {
        let there = cache.size_found();
        match (asked, there) {
            (Some(asked), Some(there)) if asked != there => {
                let (asked, there) = (format_size(asked), format_size(there));
                Err(self.wrong(
                    "cache-size",
                    format!("cache-size is {asked}, but the cache device has {there}"),
                ))
            }
            (Some(bytes), _) | (None, Some(bytes)) => Ok(bytes),
            (None, None) => {
                let what = if matches!(self, Self::Settings) { "cache-size" } else { "size" };
                Err(self.wrong("cache", format!("{what} is missing: {cache} does not exist yet")))
            }
        }
    }

    /// Parses the admission, which needs a write mode that caches.
    fn admit(
        self,
        table: &TierTable,
        mode: WriteMode,
        has_memory: bool,
    ) -> Result<Admissions, Wrong> {
        let choices = choices(table.admit.as_deref().unwrap_or("always"));
        let choices = choices.map_err(|error| self.wrong("admit", format!("admit: {error}")))?;
        let mut admit = Admissions::new(&choices);
        if !has_memory && admit.needs().above {
            let problem = "admit: small-bypass is for a cache below others; say \
                           small-bypass:memory=BYTES, or have a tier above (in floe serve also \
                           memory)";
            return Err(self.wrong("admit", problem));
        }
        if mode == WriteMode::Pass && !admit.is_always() {
            let problem = "admit is for a cache that something comes into; here write is pass";
            return Err(self.wrong("admit", problem));
        }
        if let Some(file) = &table.calibration {
            if admit.is_always() {
                let problem =
                    "calibration is for an admission that it tells something, such as admit = obp";
                return Err(self.wrong("calibration", problem));
            }
            let found = calibrate::read(file);
            let found = found
                .map_err(|error| self.wrong("calibration", format!("calibration: {error}")))?;
            admit = admit.calibrated(&found.calibrated());
        }
        Ok(admit)
    }

    /// Parses the eviction policy, which needs a write mode that caches.
    fn evict(self, table: &TierTable, mode: WriteMode) -> Result<Evict, Wrong> {
        let evict = self.parsed("evict", table.evict.as_deref())?.unwrap_or_default();
        if mode == WriteMode::Pass && evict != Evict::default() {
            return Err(self.wrong(
                "evict",
                "evict is for a cache that something comes into; here write is pass",
            ));
        }
        Ok(evict)
    }

    /// Parses the dirty share, which needs a write mode with dirty data.
    fn dirty_max(self, text: Option<&str>, mode: WriteMode) -> Result<Option<Percent>, Wrong> {
        let most = self.parsed("dirty-max", text)?;
        match most {
            most if mode.keeps_writes() => Ok(Some(most.unwrap_or(Percent::HALF))),
            None => Ok(None),
            Some(_) => {
                let problem =
                    format!("dirty-max is for write = back and only; here write is {mode}");
                Err(self.wrong("dirty-max", problem))
            }
        }
    }
}

/// Returns the number of threads: the setting, or the number of cores that have useful shards in
/// every tier.
pub(super) fn threads(asked: Option<u64>, tiers: &[TierPlan]) -> Result<usize, Wrong> {
    match asked {
        Some(asked) if !(1..=THREADS_MAX).contains(&asked) => Err(Where::Settings
            .wrong("threads", format!("threads = {asked} is not between 1 and {THREADS_MAX}"))),
        Some(asked) if tiers.iter().filter_map(|tier| tier.shards).any(|shards| shards < asked) => {
            let problem = format!(
                "threads = {asked} is more than there are shards; each needs one of its own"
            );
            Err(Where::Settings.wrong("threads", problem))
        }
        Some(asked) => Ok(asked as usize),
        None => {
            let useful = tiers.iter().map(TierPlan::useful_threads).min().unwrap_or(1);
            Ok(cores().min(useful).clamp(1, THREADS_MAX) as usize)
        }
    }
}

/// Returns the number of cores this process may run on.
fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// Returns whether two devices are on one file.
pub(super) fn same_file(one: &Spec, other: &Spec) -> bool {
    one.paths().iter().any(|path| other.paths().contains(path))
}
