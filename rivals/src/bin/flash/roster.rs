//! Every subject by its name.

use crate::subjects::{self, Bench, Settings};

/// A name on the command line with a way to open it.
#[derive(Clone)]
pub struct Named {
    pub name: String,
    pub words: Vec<String>,
    open: fn(&Settings) -> Result<Box<dyn Bench>, String>,
    /// Figures it takes part in unless it is named on the command line; all if empty.
    pub figures: &'static [&'static str],
}

impl Named {
    pub fn open(&self, settings: Settings) -> Result<Box<dyn Bench>, String> {
        (self.open)(&Settings { words: self.words.clone(), ..settings })
    }

    /// Whether its threads sleep where there is nothing to do. Those of foyer's rings do not.
    pub fn rests(&self) -> bool {
        let engine = self.words.iter().rev().find(|word| word.starts_with("engine="));
        engine.is_none_or(|engine| engine != "engine=uring")
    }

    /// Whether it takes part in a figure unless the command line says otherwise. Hits in memory are
    /// compared with memory alone, and other figures are not.
    pub fn takes(&self, figure: &str) -> bool {
        match figure {
            "warm" => self.name.starts_with("floe"),
            _ => self.figures.is_empty() || self.figures.contains(&figure),
        }
    }

    /// Whether objects share pages on flash.
    pub fn packs(&self) -> bool {
        self.name.starts_with("floe")
    }

    /// Whether it is the bare disk, which takes part in reads only.
    pub fn is_floor(&self) -> bool {
        self.name == "floor"
    }
}

/// Every subject, ours first.
pub fn roster() -> Vec<Named> {
    let named = |name: &str, words: &[&str], open, figures| Named {
        name: name.into(),
        words: words.iter().copied().map(str::to_owned).collect(),
        open,
        figures,
    };
    let foyer = subjects::open::<subjects::foyer::Foyer> as fn(&Settings) -> _;
    let default = ["direct=no", "write=eviction", "memory=lru", "block=16M", "buffer=16M"];
    let default = [&default[..], &["queue=16M"]].concat();
    vec![
        named("floe", &[], subjects::open::<subjects::floe::Floe>, &[]),
        named("foyer", &[], foyer, &[]),
        named("foyer-uring", &["engine=uring"], foyer, &["reads", "inserts", "idle", "mixed"]),
        // Its defaults where the choice of settings decides more than speed.
        named("foyer-default", &default, foyer, &["storm", "removed"]),
        // With the log of removals that is off by default.
        named("foyer-log", &["tombstones=yes"], foyer, &["removed"]),
        // With buffers as large as all that is inserted.
        named("foyer-vast", &["buffer=1G", "queue=4G"], foyer, &["storm"]),
        // Writes what leaves memory, its default, and hits more with LFU in memory.
        named("foyer-evict", &["write=eviction", "memory=lfu"], foyer, &["hits"]),
        // Memory alone, for hits in memory.
        named("floe-memory", &[], subjects::open::<subjects::floe_memory::FloeMemory>, &["warm"]),
        named("moka-redb", &[], subjects::open::<subjects::moka_redb::MokaRedb>, &[]),
        named("floor", &[], subjects::floor::open, &["reads", "mixed"]),
    ]
}
