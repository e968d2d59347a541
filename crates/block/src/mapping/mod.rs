//! The mapping of a shard: the directory of its blocks, and which sectors are dirty, lost,
//! unflushed or sealed.
//!
//! Each part owns its fields alone. None of them does I/O or knows of tasks; the shard asks them
//! and tells them.

pub(crate) mod allocate;
pub(crate) mod directory;
mod dirt;
mod held;
pub(crate) mod index;
mod lost;
mod runs;
mod seals;
mod state;

pub(crate) use dirt::{CLEANED_AT_ONCE, Dirt};
pub(crate) use held::Held;
pub(crate) use lost::Lost;
pub(crate) use seals::Seals;
pub(crate) use state::{Mapping, Survey};
