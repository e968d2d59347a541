//! Who takes part.

use std::sync::Arc;

use crate::contender::{Contender, fill, fill_to_hits_of, fixed};
use crate::subjects::{
    Line, Page, Value, floe, floor, foyer, lfu, lru, moka, quick_cache, scc, tinyufo,
};
use crate::workload::{Keys, Load, Ops};

type Make = fn(&Load, &Keys) -> Box<dyn Contender>;

/// Someone who takes part.
#[derive(Clone, Copy)]
pub struct Subject {
    pub name: &'static str,
    pub kind: Kind,
    make: Make,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Cache,
    /// A cache whose entries are all frozen: it is only asked for what it holds.
    Frozen,
    /// A cache with so much capacity that it hits as often as Floe.
    Grown,
    /// A table that is only read, its entries laid out as in Floe.
    Floor,
    /// One that is laid out otherwise: shown beside the floor.
    Table,
}

impl Subject {
    /// Ours first, then the rivals, then the floor: for values that are kept in place or handed out
    /// as `S`.
    fn list<V: Value, S: Value>() -> Vec<Self> {
        let cache = |name, make| Self { name, kind: Kind::Cache, make };
        let grown = |name, make| Self { name, kind: Kind::Grown, make };
        let frozen = |name, make| Self { name, kind: Kind::Frozen, make };
        let table = |name, kind, make| Self { name, kind, make };
        vec![
            cache("floe", fill::<floe::Floe<V, floe::ByDefault>> as Make),
            cache("floe-1-shard", fill::<floe::Floe<V, floe::InOnePart>>),
            cache("floe-read", fill::<floe::Read<V>>),
            cache("floe-lru", fill::<floe::Floe<V, floe::Recency>>),
            cache("floe-fifo", fill::<floe::Floe<V, floe::NoMark>>),
            cache("floe-s3-fifo", fill::<floe::Floe<V, floe::TwoHits>>),
            cache("floe-lfu", fill::<floe::Floe<V, floe::Frequency>>),
            frozen("floe-frozen", fill::<floe::Frozen<floe::Floe<V, floe::ByDefault>>>),
            frozen("floe-frozen-read", fill::<floe::Frozen<floe::Read<V>>>),
            frozen("floe-frozen-lru", fill::<floe::Frozen<floe::Floe<V, floe::Recency>>>),
            frozen("floe-frozen-lfu", fill::<floe::Frozen<floe::Floe<V, floe::Frequency>>>),
            cache("floe-by-name", fill::<floe::Floe<V, floe::ByName>>),
            cache("quick_cache", fill::<quick_cache::Quick<S>>),
            cache("moka", fill::<moka::Moka<S>>),
            cache("mini-moka", fill::<moka::Mini<S>>),
            cache("foyer", fill::<foyer::Foyer<V>>),
            cache("scc", fill::<scc::Scc<S>>),
            grown("scc-grown", fill_to_hits_of::<floe::Floe<V, floe::ByDefault>, scc::Scc<S>>),
            cache("tinyufo", fill::<tinyufo::Tiny<S>>),
            cache("mutex-lru", fill::<lru::MutexLru<V>>),
            cache("mutex-lfu", fill::<lfu::MutexLfu<V>>),
            table("floor-probe", Kind::Floor, fixed::<floor::Probe<V>>),
            table("floor-hashbrown", Kind::Floor, fixed::<floor::Hashbrown<V>>),
            table("hashbrown-inline", Kind::Table, fixed::<floor::Inline<V>>),
        ]
    }

    /// Those for values of a size. Where these are shared, all keep them behind an `Arc`, and of
    /// Floe only the default takes part.
    pub fn all(value_bytes: usize, is_shared: bool) -> Vec<Self> {
        match (value_bytes, is_shared) {
            (4096, true) => {
                let mut all = Self::list::<Arc<Page>, Arc<Page>>();
                all.retain(|subject| !subject.name.starts_with("floe-"));
                all
            }
            (4096, false) => Self::list::<Page, Arc<Page>>(),
            _ => Self::list::<Line, Line>(),
        }
    }

    /// Whether it can do this at all: what is only read holds all keys. Rows of many threads are
    /// about caches: tables have no part in them.
    pub fn takes(&self, load: &Load, ops: Ops) -> bool {
        match self.kind {
            Kind::Cache => true,
            Kind::Grown => load.capacity.is_some(),
            Kind::Frozen => load.capacity.is_none() && !matches!(ops, Ops::Write(_)),
            Kind::Floor | Kind::Table => {
                load.capacity.is_none() && !matches!(ops, Ops::Write(_)) && !load.is_shared
            }
        }
    }

    /// Whether it takes part only where it is wanted; tables always do.
    pub fn is_cache(&self) -> bool {
        matches!(self.kind, Kind::Cache | Kind::Frozen | Kind::Grown)
    }

    pub fn fill(&self, load: &Load, keys: &Keys) -> Box<dyn Contender> {
        (self.make)(load, keys)
    }
}
