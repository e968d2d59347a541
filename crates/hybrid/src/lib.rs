#![doc = include_str!("../README.md")]

mod builder;
mod codec;
mod figures;
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
mod read_times;
mod recovery;
mod removal;
mod saved_stats;
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
pub use figures::{Figure, FigureType, figures, prometheus};
pub use flash::OpenError as FileError;
pub use flow::OnFull;
pub use hybrid::{Hybrid, Removed};
pub use insertion::{Declined, Inserted};
pub use inspect::{ContentInfo, Contents, Damage, DamageKind, Info, check, info, saved_stats};
pub use options::InsertOptions;
pub use read_times::ReadTimes;
pub use recovery::Opened;
pub use removal::RemovedKeys;
pub use saved_stats::SavedStats;
pub use stats::{FlashStats, Stats};
