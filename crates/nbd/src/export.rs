//! The exports of a server, as the handshake describes them to clients.
//!
//! [`Exports`] is checked once, when built, so that the state machines can trust it: names are
//! unique and short enough, block sizes obey proto.md, "Block size constraints". The first export
//! is the default, chosen by an empty name.
//!
//! The list is immutable: when volumes are added, removed or resized, the server creates a new one
//! and passes it to its sessions
//! ([`Connection::exports_changed`](super::connection::Connection::exports_changed)). A connection
//! keeps the export it has chosen, even if the list changes.

use std::sync::Arc;

use super::wire::{STRING_MAX_BYTES, transmission_flag as flag};
use crate::wire::u32_at;

/// Largest size in bytes that a client can address: offsets are signed 64-bit numbers in many
/// clients.
pub const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// The description of one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The number of the server's volume behind the export; invisible to clients. With the name it
    /// identifies the export in a newer list.
    pub volume: u16,
    /// The name by which clients request the export.
    pub name: String,
    /// A description for users, sent to clients; may be empty.
    pub description: String,
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Bytes of a logical block, for protocols whose clients address blocks. NBD clients address
    /// bytes.
    pub logical_block_bytes: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if several connections see one coherent disk: a flush on one covers writes answered on
    /// all.
    pub can_multi_conn: bool,
    /// True if the medium is a rotating disk.
    pub rotational: bool,
    /// Alignment and smallest length of requests in bytes; enforced.
    pub minimum_block_bytes: u32,
    /// Alignment in bytes at which requests are fast.
    pub preferred_block_bytes: u32,
    /// Longest read or write in bytes; enforced.
    pub maximum_block_bytes: u32,
}

impl Export {
    /// Creates a writable export of volume 0 with the block sizes 1, 4096 and 32 MiB, coherent over
    /// connections.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            volume: 0,
            name: name.into(),
            description: String::new(),
            size_bytes,
            logical_block_bytes: 512,
            read_only: false,
            can_multi_conn: true,
            rotational: false,
            minimum_block_bytes: 1,
            preferred_block_bytes: 4096,
            maximum_block_bytes: 32 << 20,
        }
    }

    /// Returns the flags to send to a client, depending on whether structured replies were
    /// negotiated.
    pub fn transmission_flags(&self, structured_replies: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        let mut set = |condition: bool, bits: u16| {
            if condition {
                flags |= bits;
            }
        };
        set(self.read_only, flag::READ_ONLY);
        set(!self.read_only, flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO);
        set(self.rotational, flag::ROTATIONAL);
        set(self.can_multi_conn, flag::CAN_MULTI_CONN);
        set(structured_replies, flag::SEND_DF);
        flags
    }

    fn check(&self) -> Result<(), ExportsError> {
        let wrong = |what| Err(ExportsError { name: self.name.clone(), what });
        if self.name.len() > STRING_MAX_BYTES || self.description.len() > STRING_MAX_BYTES {
            return wrong("its name or description is longer than 4096 bytes");
        }
        if self.name.contains(char::is_control) {
            return wrong("its name contains a control character");
        }
        if self.description.contains('\0') {
            return wrong("its description contains a NUL");
        }
        if self.size_bytes > SIZE_MAX_BYTES {
            return wrong("it is larger than 2^63 - 1 bytes");
        }
        let (minimum, preferred) = (self.minimum_block_bytes, self.preferred_block_bytes);
        if !minimum.is_power_of_two() || minimum > 65536 {
            return wrong("its minimum block size is not a power of two up to 65536");
        }
        if !preferred.is_power_of_two() || preferred < minimum.max(512) {
            return wrong(
                "its preferred block size is not a power of two of at least 512 and the minimum",
            );
        }
        if self.maximum_block_bytes < preferred || !self.maximum_block_bytes.is_multiple_of(minimum)
        {
            return wrong(
                "its maximum block size is below the preferred or no multiple of the minimum",
            );
        }
        Ok(())
    }
}

/// The validated list of a server's exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exports(Vec<Arc<Export>>);

impl Exports {
    /// Validates the exports. The first one is the default; an empty list is allowed and refuses
    /// every client.
    ///
    /// # Errors
    /// When a name is used twice, or a name, size or block size violates the protocol's rules.
    pub fn new(exports: Vec<Export>) -> Result<Self, ExportsError> {
        let mut names = std::collections::HashSet::new();
        for export in &exports {
            export.check()?;
            if !names.insert(&export.name) {
                return Err(ExportsError {
                    name: export.name.clone(),
                    what: "its name is taken twice",
                });
            }
        }
        Ok(Self(exports.into_iter().map(Arc::new).collect()))
    }

    /// Returns the export that a client requests by `name`. An empty name selects the first export,
    /// unless one has the empty name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let named = self.0.iter().find(|export| export.name.as_bytes() == name);
        named.or_else(|| if name.is_empty() { self.0.first() } else { None })
    }

    /// Returns the export of this list that corresponds to one of an older list; `None` when it is
    /// gone.
    pub fn same(&self, older: &Export) -> Option<&Arc<Export>> {
        self.0.iter().find(|export| export.volume == older.volume && export.name == older.name)
    }

    /// Returns all exports, the default first.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Export>> {
        self.0.iter()
    }

    /// Returns the number of exports.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no exports.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An export description that violates a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot offer export {name:?}: {what}")]
pub struct ExportsError {
    /// The name of the export.
    pub name: String,
    /// The rule that the description violates.
    pub what: &'static str,
}

/// The only metadata context that the server supports.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of [`BASE_ALLOCATION`] in replies, once selected.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Parses the data of `LIST_META_CONTEXT` or `SET_META_CONTEXT`. Returns the name of the export,
/// and whether the queries (none, in a listing) select [`BASE_ALLOCATION`]. `None` when the data is
/// malformed: lengths that do not add up, a query without a namespace.
pub(crate) fn selected_context(data: &[u8], list: bool) -> Option<(&[u8], bool)> {
    let (name, rest) = string(data)?;
    let (count, mut rest) = rest.split_at_checked(4)?;
    let count = u32_at(count, 0);
    let mut selected = list && count == 0;
    for _ in 0..count {
        let (query, after) = string(rest)?;
        rest = after;
        let query = std::str::from_utf8(query).ok()?;
        if !query.contains(':') {
            return None;
        }
        selected |= query == BASE_ALLOCATION || (list && query == "base:");
    }
    rest.is_empty().then_some((name, selected))
}

fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    let (string, rest) = rest.split_at_checked(u32_at(length, 0) as usize)?;
    (string.len() <= STRING_MAX_BYTES).then_some((string, rest))
}
