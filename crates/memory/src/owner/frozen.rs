//! The frozen entries of a shard: how many there are, and the frozen index in which they stand.

use super::Tenant;
use crate::entry::{Entry, Head};
use crate::frozen::index::FrozenIndex;
use crate::index::Hash32;
use crate::places::Places;
use crate::sync::Arc;

/// The entries of a shard that are frozen.
///
/// Every change is made under the shard's lock, so an entry that is in stays in meanwhile.
#[derive(Debug)]
pub(crate) struct FrozenEntries<K, V> {
    count: usize,
    /// Where entries lie.
    places: Arc<Places>,
    /// The frozen index that has, or is to have, entries of this shard.
    index: Option<Arc<FrozenIndex<K, V>>>,
}

impl<K, V> FrozenEntries<K, V> {
    pub(super) fn none(places: &Arc<Places>) -> Self {
        Self { count: 0, places: Arc::clone(places), index: None }
    }

    /// The address of an entry.
    fn address(&self, place: u32) -> usize {
        self.places.address::<Entry<K, V>>(place)
    }

    /// The head of an entry that is in, or was just made.
    fn head(&self, place: u32) -> &Head {
        let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(self.address(place));
        // SAFETY: entries are taken out under the shard's lock only, and a new one is not shared.
        unsafe { &(*entry).head }
    }

    /// Returns how many entries are frozen.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// From now on, or no longer, frozen entries stand in this index, too.
    pub(crate) fn set_index(&mut self, index: Option<Arc<FrozenIndex<K, V>>>) {
        self.index = index;
    }

    /// Puts frozen entries, each by its hash and its place, into the index.
    pub(super) fn fill_index(&self, entries: impl Iterator<Item = (Hash32, u32)>) {
        let index = self.index.as_ref().expect("set before");
        for (hash, place) in entries {
            if index.reaches(self.address(place)) {
                index.insert(hash, self.address(place));
            }
        }
    }

    /// Returns whether an entry that is in may be frozen.
    pub(super) fn admits(&self, place: u32) -> bool {
        let reaches = |index: &FrozenIndex<K, V>| index.reaches(self.address(place));
        // Each hit of an entry that goes idle writes to it.
        self.index.as_deref().is_none_or(reaches) && !self.head(place).goes_idle()
    }

    /// Freezes an entry, and puts it into the index if there is one.
    pub(super) fn freeze(&mut self, tenant: &mut Tenant, place: u32) {
        if std::mem::replace(&mut tenant.frozen, true) {
            return; // named twice, and must not be in the index twice
        }
        self.count += 1;
        self.head(place).set_frozen(true);
        if let Some(index) = &self.index {
            index.insert(tenant.hash, self.address(place));
        }
    }

    /// Has an entry be like one that was never frozen, but for the order, which the caller sees to.
    pub(super) fn melt(&mut self, tenant: &mut Tenant, place: u32) {
        self.left(tenant, place);
        if std::mem::take(&mut tenant.frozen) {
            self.head(place).set_frozen(false);
        }
    }

    /// Notes that an entry leaves, frozen or not: no lookup finds it by the index from now on.
    #[inline(always)]
    pub(super) fn left(&mut self, tenant: &Tenant, place: u32) {
        if tenant.frozen {
            self.left_frozen(tenant.hash, place);
        }
    }

    #[cold]
    fn left_frozen(&mut self, hash: Hash32, place: u32) {
        self.count -= 1;
        if let Some(index) = &self.index {
            index.take_out(hash, self.address(place));
        }
    }

    /// Puts an entry, which no other thread knows yet, in the place of a frozen one with the same
    /// key, and freezes it. `replace` does so in the shard's index.
    pub(super) fn succeed(&self, hash: Hash32, from: u32, to: u32, replace: impl FnOnce()) {
        self.head(to).set_frozen(true);
        match &self.index {
            Some(index) => index.replace(hash, self.address(from), self.address(to), replace),
            None => replace(),
        }
    }
}
