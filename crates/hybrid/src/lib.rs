#![doc = include_str!("../README.md")]

mod builder;
mod codec;
mod flash;
mod flow;
mod format;
mod hybrid;
mod index;
mod inspect;
mod log;
mod order;
mod recovery;
mod stats;
mod store;

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod store_tests;

pub use builder::{Builder, OpenError};
pub use codec::{Key, Value};
pub use flash::OpenError as FileError;
pub use flow::OnFull;
pub use hybrid::{Declined, Hybrid, Inserted, Removed};
pub use inspect::{Contents, Info, check, info};
pub use recovery::Opened;
pub use stats::{FlashStats, Stats};
