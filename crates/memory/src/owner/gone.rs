//! Entries that an operation took out, on their way to the listener and to limbo.

use crate::cause::Cause;
use crate::limbo::Retired;

/// Entries that were taken out, and why.
type Departures = Vec<(Retired, Cause)>;

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

    /// Returns what the listener is to hear of.
    pub(crate) fn untold(&mut self) -> &mut [(Retired, Cause)] {
        self.to_tell.as_deref_mut().map_or(&mut [], |to_tell| to_tell)
    }

    /// Returns what the listener was to hear of, once.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Retired> {
        self.to_tell.take().into_iter().flat_map(|to_tell| *to_tell).map(|(retired, _)| retired)
    }
}
