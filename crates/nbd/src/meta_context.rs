//! Metadata contexts: properties of a range that clients may ask for besides its data. There is
//! one, `base:allocation`.
//!
//! Clients list and select contexts by queries, each a namespace, a colon and the rest. Source:
//! proto.md, "Metadata querying", `NBD_OPT_LIST_META_CONTEXT`, `NBD_OPT_SET_META_CONTEXT`. Unknown
//! namespaces select nothing, which is no error. `base:` alone means the whole namespace in a
//! listing, and nothing in a selection.

use super::wire::{STRING_MAX_BYTES, u32_at};

/// The only context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number in replies, once selected.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The name of the export in the data of either option, and whether the queries (no query, in a
/// listing) mean [`BASE_ALLOCATION`]. `None` when the data is malformed: lengths that do not add
/// up, a query without a namespace.
pub(super) fn selects(data: &[u8], list: bool) -> Option<(&[u8], bool)> {
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
