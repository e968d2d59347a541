//! Looking keys up where some entries are frozen: in the frozen index, then in the shard.
//!
//! Functions of their own: with this in it a lookup where nothing is frozen needs twice as many
//! registers, and is too long for callers to take in. The usual one, [`look_up_frozen`], calls the
//! others last, so that it saves no register.

use std::hash::{BuildHasher, Hash};

use equivalent::Equivalent;
use floe_policy::Replacement;

use crate::cell::Cell;
use crate::entry::Entry;
use crate::frozen::index::FrozenIndex;
use crate::hash::KeyHash;
use crate::hazard::Record;
use crate::inner::Inner;
use crate::search::Found;

/// [`Inner::look_up`] where some entries are frozen.
#[inline(never)]
pub(super) fn look_up_frozen<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    index: *const FrozenIndex<K, V>,
    record: &'a Record,
    hash: KeyHash,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    let Some(cell) = record.first_cell() else { return look_up_beside_guards(inner, record, key) };
    match inner.frozen.find(index, record, cell, hash, key) {
        None => inner.look_up_further(record, key),
        Some(found) if found.entry.head.is_set() => {
            look_up_expiring(inner, record, found.entry, found.cell, key)
        }
        found => found,
    }
}

/// [`look_up_frozen`], if there is a frozen index, for a lookup that is timed, or of a thread that
/// holds a guard.
#[inline(never)]
pub(super) fn look_up_beside_guards<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    record: &'a Record,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    let hash = inner.hash(key);
    if !record.does_without_fences() {
        return inner.look_up_slowly(record, key); // as in `look_up_further`
    }
    let index = inner.frozen.published();
    inner
        .frozen
        .find(index, record, record.cell(), hash, key)
        .and_then(|found| inner.unless_expired(found))
        .or_else(|| inner.look_up_further(record, key))
}

/// Returns an entry that expires and was found frozen; if it has expired, what its shard says.
#[inline(never)]
fn look_up_expiring<'a, K, V, P: Replacement, S: BuildHasher + 'static, Q>(
    inner: &'a Inner<K, V, P, S>,
    record: &'a Record,
    entry: &'a Entry<K, V>,
    cell: &'a Cell,
    key: &Q,
) -> Option<Found<'a, K, V>>
where
    Q: Hash + Equivalent<K> + ?Sized,
{
    match inner.unless_expired(Found { entry, cell }) {
        None => inner.look_up_further(record, key),
        found => found,
    }
}
