//! Namespaces: the volumes that a subsystem shows to its hosts.

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
}

impl Namespace {
    /// The identifier by which hosts name it.
    pub fn id(&self) -> u32 {
        u32::from(self.volume) + 1
    }

    /// Its size in logical blocks. The rest of a size that is no multiple is not shown.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES
    }
}

/// The namespaces of a subsystem at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces(Vec<Namespace>);

impl Namespaces {
    /// Sorts them by their identifiers.
    pub fn new(mut namespaces: Vec<Namespace>) -> Self {
        namespaces.sort_by_key(|namespace| namespace.volume);
        Self(namespaces)
    }

    /// The namespace with this identifier.
    pub fn find(&self, id: u32) -> Option<&Namespace> {
        // Most often the identifiers are 1, 2, 3 …
        let at = (id as usize).wrapping_sub(1);
        if let Some(namespace) = self.0.get(at).filter(|namespace| namespace.id() == id) {
            return Some(namespace);
        }
        let at = self.0.binary_search_by_key(&id, Namespace::id).ok()?;
        Some(&self.0[at])
    }

    /// Those that a command with this identifier means: one, all, or none.
    pub(super) fn meant_by(&self, id: u32) -> &[Namespace] {
        if id == ALL_NAMESPACES {
            return &self.0;
        }
        match self.0.binary_search_by_key(&id, Namespace::id) {
            Ok(at) => &self.0[at..=at],
            Err(_) => &[],
        }
    }

    /// All of them, in the order of their identifiers.
    pub fn iter(&self) -> std::slice::Iter<'_, Namespace> {
        self.0.iter()
    }

    /// The identifiers of namespaces that differ from those of a newer list.
    pub(super) fn differences(&self, newer: &Self) -> Vec<u32> {
        let gone = self.iter().filter(|old| newer.find(old.id()) != Some(old));
        let new = newer.iter().filter(|new| self.find(new.id()).is_none());
        let mut ids: Vec<u32> = gone.chain(new).map(Namespace::id).collect();
        ids.sort_unstable();
        ids
    }
}
