//! Freezing: an immutable index serves the hottest entries. The crate `floe-freeze` decides when.

pub(crate) mod freezer;
pub(crate) mod index;
pub(crate) mod timing;
pub(crate) mod windows;
