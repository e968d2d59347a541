//! The frozen entries of a shard: how many there are, and the frozen index in which they stand.

use super::Tenant;
use crate::entry::{Entry, Head};
use crate::frozen::index::FrozenIndex;
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
    fn address(&self, tenant: &Tenant) -> usize {
        self.places.address::<Entry<K, V>>(tenant.place)
    }

    /// The head of an entry that is in, or was just made.
    fn head(&self, tenant: &Tenant) -> &Head {
        let entry = std::ptr::with_exposed_provenance::<Entry<K, V>>(self.address(tenant));
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

    /// Puts the frozen ones among some entries into the index.
    pub(super) fn fill_index(&self, tenants: &[Tenant]) {
        let index = self.index.as_ref().expect("set before");
        for tenant in tenants.iter().filter(|tenant| tenant.frozen) {
            if index.reaches(self.address(tenant)) {
                index.insert(tenant.hash, self.address(tenant));
            }
        }
    }

    /// Returns whether an entry that is in may be frozen.
    pub(super) fn admits(&self, tenant: &Tenant) -> bool {
        let reaches = |index: &FrozenIndex<K, V>| index.reaches(self.address(tenant));
        // Each hit of an entry that goes idle writes to it.
        self.index.as_deref().is_none_or(reaches) && !self.head(tenant).goes_idle()
    }

    /// Freezes an entry, and puts it into the index if there is one.
    pub(super) fn freeze(&mut self, tenant: &mut Tenant) {
        if std::mem::replace(&mut tenant.frozen, true) {
            return; // named twice, and must not be in the index twice
        }
        self.count += 1;
        self.head(tenant).set_frozen(true);
        if let Some(index) = &self.index {
            index.insert(tenant.hash, self.address(tenant));
        }
    }

    /// Has an entry be like one that was never frozen, but for the order, which the caller sees to.
    pub(super) fn melt(&mut self, tenant: &mut Tenant) {
        self.left(tenant);
        if std::mem::take(&mut tenant.frozen) {
            self.head(tenant).set_frozen(false);
        }
    }

    /// Notes that an entry leaves, frozen or not: no lookup finds it by the index from now on.
    pub(super) fn left(&mut self, tenant: &Tenant) {
        if tenant.frozen {
            self.count -= 1;
            if let Some(index) = &self.index {
                index.take_out(tenant.hash, self.address(tenant));
            }
        }
    }

    /// Puts an entry, which no other thread knows yet, in the place of one with the same key, and
    /// freezes it if that is frozen. `replace` does so in the shard's index.
    pub(super) fn succeed(&self, before: &Tenant, placed: &mut Tenant, replace: impl FnOnce()) {
        placed.frozen = before.frozen;
        if !before.frozen {
            return replace();
        }
        self.head(placed).set_frozen(true);
        let (from, to) = (self.address(before), self.address(placed));
        match &self.index {
            Some(index) => index.replace(placed.hash, from, to, replace),
            None => replace(),
        }
    }
}
