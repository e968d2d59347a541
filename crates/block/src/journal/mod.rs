//! The journal: what of the cache survives a restart, and how it is kept on the cache device.
//!
//! Each shard has a log of [`Change`]s, written a page at a time ([`ShardJournal`]), and
//! checkpoints that keep it short. Opening a cache reads both back ([`open`]). Everything here
//! knows bytes and nothing of when they are written: which change may be logged when is the shards'
//! business, and both are laid down in docs/format.md.
//!
//! From the bottom up: `sum` (checksums), `page`, `record` (changes as bytes), `superblock`,
//! `layout`; `writer` and `checkpoint` write a shard's journal, `map` and `restore` read it,
//! `salvage` and `parity` what is left of a damaged one; `io` reads and writes for `store` (a
//! device as a whole) and `scan` (looking it over).

mod change;
mod checkpoint;
mod error;
mod io;
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
pub use error::{LayoutError, StoreError};
pub use io::Io;
pub use layout::Layout;
pub(crate) use layout::fits_dump;
pub(crate) use map::RestoredBlock;
pub(crate) use page::PageWrite;
pub use scan::{Report, ShardReport, scan};
pub use store::{NewCache, Salvage};
pub(crate) use store::{
    Opened, Restored, begin_session, clear_torn_pages, create, open, rewrite, salvage,
    superblock_of, write_superblock,
};
pub use sum::sum_of;
pub use superblock::{Companion, MOST_NAME_BYTES, MOST_VOLUMES, Superblock, Volume};
pub(crate) use writer::ShardJournal;
