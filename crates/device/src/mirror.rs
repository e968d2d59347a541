//! A mirror: a device of two or more halves with identical content.
//!
//! Writes and flushes wait for all halves in sync. A read uses the first half and falls back on the
//! next. A half that fails leaves, and is resynchronised when it can be reached again. The
//! decisions are a [state machine](state), which a simulator crashes between any two steps.
//!
//! The newest [generation](witness::Generation) is recorded in the headers of the halves and at an
//! external witness. A half without it is never served.

mod device;
mod layout;
mod marks;
mod shared;
#[cfg(test)]
#[path = "../tests/mirror/sim.rs"]
mod sim;
mod source;
mod spec;
mod state;
mod threads;
mod witness;

pub use self::source::MirrorRefusal;
pub use self::witness::{Generation, RaiseError, Witness};
pub use device::MirrorDevice;
pub use shared::{HalfStatus, MirrorStatus};
pub(crate) use source::MirrorSource;
pub use source::MirrorWatch;
pub(crate) use spec::MirrorSpec;
pub use witness::{FolderWitness, ImageWitness, KnownWitness, NoWitness};
