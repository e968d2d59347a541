//! A device of two or more halves with the same content.
//!
//! Writes and flushes wait for all halves in sync; a read takes the first and falls back on the
//! next. A half that fails leaves, and is brought up to date when it can be reached again. The
//! decisions are a [state machine](state), which a simulator crashes between any two steps.
//!
//! The newest [generation] is in the headers of the halves and with a witness outside.
//! A half without it is never served.

mod generation;
mod layout;
mod marks;
mod open;
mod plant;
mod regions;
#[cfg(test)]
mod sim;
mod state;

pub use generation::{Generation, Halves, RaiseError, Witness};
pub use open::MirrorRefusal;
