//! Persistent caches: opens them for serving, and checks, repairs or empties them without a server.
//!
//! A cache belongs to the volumes it was used with. [`start()`] compares its superblock with the
//! given volumes (`suit`). It makes a new cache, opens the old one, or refuses with a reason and
//! without a change. Steps that would or could lose data need the user's [`Consent`]. While a
//! server runs, its `Keeper` records the volumes in the superblock, and at the end the clean
//! shutdown.

mod check;
mod company;
mod disk;
mod guard;
mod keeper;
mod marker;
mod passing;
mod refusal;
mod start;
mod state_dir;
mod suit;
mod write_back;

pub use check::{Checked, check, repair};
pub use company::company;
pub use disk::{Disk, DiskError};
pub(crate) use guard::guarded;
pub(crate) use keeper::Keeper;
pub(crate) use passing::try_volatile;
pub use passing::{claim, volatile_data_start};
pub use refusal::{Difference, Given, Refusal, StartError};
pub(crate) use start::random_stack;
pub use start::{Consent, Holds, Parts, Wishes, holds, note_calibration, refuse_kept, start};
pub use state_dir::StateDir;
pub use write_back::{Target, WrittenBack, write_back};
