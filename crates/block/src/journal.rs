//! The journal: the state of the cache that survives a restart, and its form on the cache device.
//!
//! Each shard has a log of [`Change`]s, written a page at a time ([`ShardJournal`]), and
//! checkpoints that keep it short. Opening a cache reads both back ([`open`]). docs/format.md
//! specifies the bytes. The shards decide which change may be logged when (`logging`).
//!
//! From the bottom up: `page` (with checksums and parity), `record` (changes as bytes),
//! `superblock`, `layout`. `writer` writes a shard's journal, `map` and `restore` read it,
//! `salvage` recovers a damaged one. `io` reads and writes for `store`, which handles a device as a
//! whole. `part` writes the logs of a cache in service. `commits` decides when they become durable,
//! and `bypass` what happens when they cannot be written.

pub(crate) mod bypass;
pub(crate) mod commits;
mod io;
mod layout;
pub(crate) mod logging;
mod map;
mod page;
pub(crate) mod part;
mod record;
mod restore;
mod salvage;
mod store;
mod superblock;
#[cfg(test)]
mod tests;
mod writer;

pub use io::Io;
pub(crate) use io::Mend;
pub(crate) use layout::fits_dump;
pub use layout::{Layout, LayoutError, StoreError};
pub(crate) use map::RestoredBlock;
pub(crate) use page::PageWrite;
pub use page::sum_of;
pub use part::PartJournal;
pub(crate) use record::{BlockAt, Change, NO_SUM, Standing, mix};
pub(crate) use store::{
    CacheJudge, Opened, Restored, Sums, begin_session, clear_torn_pages, create, open,
    open_all_copies, rewrite, salvage, superblock_of, write_superblock,
};
pub use store::{NewCache, Report, Salvage, ShardReport, WrongCopy, scan};
pub use superblock::{
    Companion, MOST_NAME_BYTES, MOST_SAMPLES, MOST_VOLUMES, Samples, Superblock, Volume,
    sample_sum, sampled_sectors,
};
pub(crate) use writer::ShardJournal;
