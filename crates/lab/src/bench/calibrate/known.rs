//! The policies that both the model and the cache have.

/// The work of a policy's hits beyond the lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hits {
    /// Nothing.
    Nothing,
    /// They leave a mark.
    Mark,
    /// They change the list.
    List,
    /// Some change the list as LRU's do, some do not, and a coin says which. Measured with a coin
    /// that always says no.
    Coin,
}

/// A policy that both the model and the cache have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) hits: Hits,
    /// Hits that make an entry be passed by once.
    pub(super) touches: Option<u32>,
    pub(super) ghosts: bool,
    /// The model's other name for it.
    pub(super) alias: Option<&'static str>,
}

/// Every such policy.
pub(super) const KNOWN: [Known; 7] = [
    Known {
        name: "lru",
        hits: Hits::List,
        touches: None,
        ghosts: false,
        alias: Some("single-lock-lru"),
    },
    Known { name: "fifo", hits: Hits::Nothing, touches: None, ghosts: false, alias: None },
    Known { name: "prob-lru", hits: Hits::Coin, touches: None, ghosts: false, alias: None },
    Known { name: "clock", hits: Hits::Mark, touches: Some(1), ghosts: false, alias: None },
    Known { name: "sieve", hits: Hits::Mark, touches: Some(1), ghosts: false, alias: None },
    Known { name: "slru", hits: Hits::List, touches: None, ghosts: false, alias: None },
    Known { name: "s3-fifo", hits: Hits::Mark, touches: Some(2), ghosts: true, alias: None },
];
