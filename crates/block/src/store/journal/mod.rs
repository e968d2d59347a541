//! The journal: the state of the cache that survives a restart, and its form on the cache device.
//!
//! Each shard has a log of [`Change`]s, written a page at a time ([`ShardJournal`]), and
//! checkpoints that keep it short. Opening a cache reads both back ([`open`]). This module defines
//! bytes, not the time at which they are written: the shards decide which change may be logged
//! when. docs/format.md specifies both.
//!
//! From the bottom up: `sum` (checksums), `page`, `record` (changes as bytes), `superblock`,
//! `layout`; `writer` and `checkpoint` write a shard's journal, `map` and `restore` read it,
//! `salvage` and `parity` recover a damaged one; `io` reads and writes for `store` (a device as a
//! whole) and `scan` (its inspection).

mod change;
mod checkpoint;
mod error;
mod io;
mod judge;
mod layout;
mod map;
mod page;
mod parity;
mod record;
mod restore;
mod salvage;
mod scan;
mod store;
mod sum;
mod superblock;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use change::{BlockAt, Change, NO_SUM, Standing, mix};
pub use error::StoreError;
pub use io::Io;
pub(crate) use io::Mend;
pub(crate) use judge::{CacheJudge, Sums};
pub(crate) use layout::fits_dump;
pub use layout::{Layout, LayoutError};
pub(crate) use map::RestoredBlock;
pub(crate) use page::PageWrite;
pub use scan::{Report, ShardReport, WrongCopy, scan};
pub use store::{NewCache, Salvage};
pub(crate) use store::{
    Opened, Restored, begin_session, clear_torn_pages, create, open, open_all_copies, rewrite,
    salvage, superblock_of, write_superblock,
};
pub use sum::sum_of;
pub use superblock::{Companion, MOST_NAME_BYTES, MOST_VOLUMES, Superblock, Volume};
pub(crate) use writer::ShardJournal;
