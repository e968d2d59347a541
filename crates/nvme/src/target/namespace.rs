//! Namespaces: the volumes that a subsystem shows to its hosts.

use super::paths::AccessState;
use super::{NAMESPACE_ID_MAX, NAMESPACES_MAX};
use crate::wire::ALL_NAMESPACES;

/// Bytes of a logical block.
pub const BLOCK_BYTES: u64 = 512;
/// Logarithm of [`BLOCK_BYTES`].
pub(super) const BLOCK_SHIFT: u8 = 9;

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// The volume that it shows. Its identifier is one more.
    pub volume: u16,
    /// Name of the volume.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// Refuse changes.
    pub read_only: bool,
    /// The access that this server gives.
    pub access: AccessState,
}

impl Namespace {
    /// The identifier by which hosts name it.
    pub fn id(&self) -> u32 {
        u32::from(self.volume) + 1
    }

    /// The group of asymmetric access that it alone is in. It is the same on all servers.
    pub(super) fn access_group(&self) -> u32 {
        self.id()
    }

    /// Its size in logical blocks. The rest of a size that is no multiple is not shown.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES
    }
}

/// The namespaces of a subsystem at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    list: Vec<Namespace>,
    /// Lists with other namespaces before this one.
    generation: u64,
    /// Changes of the access so far.
    access_changes: u64,
}

impl Namespaces {
    /// Sorts them by their identifiers. Hosts see [`NAMESPACES_MAX`] of them at most.
    pub fn new(mut namespaces: Vec<Namespace>) -> Self {
        namespaces.retain(|namespace| namespace.id() <= NAMESPACE_ID_MAX);
        namespaces.sort_by_key(|namespace| namespace.volume);
        namespaces.truncate(NAMESPACES_MAX);
        Self { list: namespaces, ..Self::default() }
    }

    /// Makes the list that comes after this one, when the access has changed so often.
    #[must_use]
    pub fn followed_by(&self, namespaces: Vec<Namespace>, access_changes: u64) -> Self {
        let new = Self::new(namespaces);
        let names = |list: &Self| -> Vec<_> {
            list.iter().map(|it| (it.volume, it.name.clone())).collect()
        };
        let generation = self.generation + u64::from(names(self) != names(&new));
        Self { generation, access_changes, ..new }
    }

    /// Returns the number of lists with other namespaces before this one.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of changes of the access before this list.
    pub(super) fn access_changes(&self) -> u64 {
        self.access_changes
    }

    /// Returns whether the access to a namespace of both lists differs.
    pub(super) fn differ_in_access(&self, newer: &Self) -> bool {
        let differs =
            |old: &Namespace| newer.find(old.id()).is_some_and(|new| new.access != old.access);
        self.access_changes != newer.access_changes && self.iter().any(differs)
    }

    /// The namespace with this identifier.
    pub fn find(&self, id: u32) -> Option<&Namespace> {
        // Most often the identifiers are 1, 2, 3 …
        let at = (id as usize).wrapping_sub(1);
        if let Some(namespace) = self.list.get(at).filter(|namespace| namespace.id() == id) {
            return Some(namespace);
        }
        let at = self.list.binary_search_by_key(&id, Namespace::id).ok()?;
        Some(&self.list[at])
    }

    /// Those that a command with this identifier means: one, all, or none.
    pub(super) fn meant_by(&self, id: u32) -> &[Namespace] {
        if id == ALL_NAMESPACES {
            return &self.list;
        }
        match self.list.binary_search_by_key(&id, Namespace::id) {
            Ok(at) => &self.list[at..=at],
            Err(_) => &[],
        }
    }

    /// All of them, in the order of their identifiers.
    pub fn iter(&self) -> std::slice::Iter<'_, Namespace> {
        self.list.iter()
    }

    /// The identifiers of namespaces that differ from those of a newer list.
    pub(super) fn differences(&self, newer: &Self) -> Vec<u32> {
        let is_same = |old: &Namespace, new: &Namespace| {
            (&old.name, old.bytes, old.read_only) == (&new.name, new.bytes, new.read_only)
        };
        let stays = |old: &Namespace| newer.find(old.id()).is_some_and(|new| is_same(old, new));
        let gone = self.iter().filter(|old| !stays(old));
        let new = newer.iter().filter(|new| self.find(new.id()).is_none());
        let mut ids: Vec<u32> = gone.chain(new).map(Namespace::id).collect();
        ids.sort_unstable();
        ids
    }
}
