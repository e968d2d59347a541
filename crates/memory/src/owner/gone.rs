//! Entries that an operation took out, on their way to the listener and to limbo.

use crate::retired::Departures;

/// Holds what an operation took out and a listener has yet to hear of. Without a listener it waits
/// in limbo at once.
#[derive(Debug)]
pub(crate) struct Gone {
    // Boxed for the sake of caches without a listener: it is handed around on every insertion.
    pub(super) to_tell: Option<Box<Departures>>,
}

impl Gone {
    pub(crate) fn new(has_listener: bool) -> Self {
        Self { to_tell: has_listener.then(Box::default) }
    }

    /// Returns whether there is a listener.
    #[inline(always)]
    pub(crate) fn has_listener(&self) -> bool {
        self.to_tell.is_some()
    }

    /// Returns whether there is nothing that the listener is to hear of.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.to_tell.as_ref().is_none_or(|to_tell| to_tell.is_empty())
    }

    /// Returns what the listener is to hear of, once.
    pub(crate) fn take_all(&mut self) -> Departures {
        self.to_tell.take().map(|to_tell| *to_tell).unwrap_or_default()
    }
}
