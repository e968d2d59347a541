//! The freezer of a cache: the index in use, those that wait to be freed, and what decides.

use std::time::Duration;

use crate::frozen::driver::Driver;
use crate::frozen::index::FrozenIndex;
use crate::frozen::options::Freezing;
use crate::sync::Arc;

/// Holds what the freezer of a cache works with.
#[derive(Debug)]
pub(crate) struct Freezer<K, V> {
    /// The index in use, published or not.
    pub(crate) index: Option<Arc<FrozenIndex<K, V>>>,
    /// Unpublished indexes that a reader may still look at.
    pub(crate) retired: Vec<Arc<FrozenIndex<K, V>>>,
    /// True if any entry may be frozen.
    pub(crate) is_frozen: bool,
    /// True if readers are to look at the index at all.
    pub(crate) is_published: bool,
    /// Tells what decides, if not only the cache's user does.
    pub(crate) driver: Option<Driver>,
}

/// The result of [`Cache::freeze`](crate::Cache::freeze).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frozen {
    /// Entries in the index.
    pub entries: usize,
    /// Memory of the index in bytes.
    pub index_bytes: usize,
    /// Time that freezing took.
    pub took: Duration,
}

impl<K, V> Freezer<K, V> {
    pub(crate) fn new(options: Option<Freezing>) -> Self {
        Self {
            index: None,
            retired: Vec::new(),
            is_frozen: false,
            is_published: options.is_none_or(|options| options.is_published),
            driver: options.map(Driver::new),
        }
    }

    /// A caller freezes or thaws the cache.
    pub(crate) fn by_hand(&mut self) -> &mut Self {
        if let Some(driver) = &mut self.driver {
            driver.restart();
        }
        self
    }

    /// Returns whether any entry may be frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Bytes of the index in use and of those that wait to be freed.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.iter().chain(&self.retired).map(|index| index.memory_bytes()).sum()
    }
}
