#![doc = include_str!("../README.md")]

mod builder;
mod codec;
mod flash;
mod flow;
mod format;
mod hybrid;
mod index;
mod insertion;
mod inspect;
mod log;
mod options;
mod order;
mod recovery;
mod removal;
mod shared;
mod stats;
mod store;
mod sweep;

#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod store_tests;

pub use builder::{Builder, OpenError};
pub use codec::{Key, Value};
pub use flash::OpenError as FileError;
pub use flow::OnFull;
pub use hybrid::{Hybrid, Removed};
pub use insertion::{Declined, Inserted};
pub use inspect::{Contents, Info, check, info};
pub use options::InsertOptions;
pub use recovery::Opened;
pub use removal::RemovedKeys;
pub use stats::{FlashStats, Stats};
