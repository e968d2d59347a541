//! The state of a shard's sectors: which are lost, unflushed or sealed, and how many may be dirty.
//!
//! Each part owns its fields alone. None of them does I/O or knows of tasks; the shard asks them
//! and tells them.

mod dirt;
mod held;
mod lost;
mod seals;

pub(crate) use dirt::{CLEANED_AT_ONCE, Dirt};
pub(crate) use held::Held;
pub(crate) use lost::Lost;
pub(crate) use seals::Seals;
