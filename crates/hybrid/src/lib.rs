#![doc = include_str!("../README.md")]

mod admission;
mod budget;
mod builder;
mod codec;
mod compression;
mod drives;
mod figures;
mod flash;
mod flow;
mod format;
mod heads;
mod hybrid;
mod index;
mod insertion;
mod inspect;
mod left;
mod loads;
mod log;
mod miniature;
mod open_error;
mod options;
mod order;
mod popularity;
mod price;
mod read_times;
mod recovery;
mod removal;
mod reopen;
mod rules;
mod saved_stats;
#[cfg(feature = "serde")]
mod serialized;
mod set;
mod shared;
#[doc(hidden)]
pub mod simulation;
mod sparse;
mod stats;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod warm;

pub use admission::{Admission, AdmissionError};
pub use budget::{WriteBudget, WriteBudgetError};
pub use builder::Builder;
pub use codec::{Key, Value};
pub use compression::Compression;
pub use figures::{Figure, FigureType, figures, prometheus};
pub use flash::OpenError as FileError;
pub use floe_memory::Cause;
pub use flow::OnFull;
pub use hybrid::{Hybrid, Removed};
pub use insertion::{Declined, Inserted};
pub use inspect::{
    ContentInfo, Contents, Damage, DamageKind, DriveInfo, Info, caches_in, check, info, saved_stats,
};
pub use loads::Loads;
pub use open_error::OpenError;
pub use options::InsertOptions;
pub use read_times::ReadTimes;
pub use recovery::Opened;
pub use removal::{RemovedKeys, VisitedKeys};
pub use reopen::Reopened;
pub use saved_stats::SavedStats;
#[cfg(feature = "serde")]
pub use serialized::Serde;
pub use set::DrivesError;
pub use stats::{DriveStats, FlashStats, Stats};
pub use warm::Warmed;

/// The decisions of admission as state machines, for simulators.
#[doc(hidden)]
pub mod decisions {
    pub use crate::admission::{Gate, GateOptions, Offer};
    pub use crate::miniature::LogModel;
    pub use crate::price::TimedRead;
}
