//! Persistent caches: opens them for serving, and checks, repairs or empties them without a server.
//!
//! A cache belongs to the volumes it was used with. [`start()`] compares its superblock with the
//! given volumes (`suit`). It makes a new cache, opens the old one, or refuses with a reason and
//! without a change. Steps that would or could lose data need the user's [`Consent`]. While a
//! server runs, its `Keeper` records the volumes in the superblock, and at the end the clean
//! shutdown.

mod bytes;
mod check;
mod company;
mod content;
mod disk;
mod guard;
mod keeper;
mod marker;
mod missing;
mod noted;
mod options;
mod parts;
mod passing;
mod peered;
mod random;
mod refusal;
mod start;
mod start_error;
mod state_dir;
mod suit;
mod volatile_mark;
mod write_back;

pub use check::{Checked, check, repair};
pub use company::company;
pub use content::{Holds, holds, refuse_kept};
pub use disk::{Disk, DiskError};
pub(crate) use guard::guarded;
pub(crate) use keeper::Keeper;
pub(crate) use missing::{missing, without};
pub use options::{Consent, Wishes};
pub use parts::Parts;
pub use passing::{claim, volatile_data_start};
pub(crate) use passing::{may_claim, try_volatile};
pub use peered::Peered;
pub(crate) use random::random_stack;
pub use refusal::{Difference, Given, Refusal};
pub(crate) use start::{Ready, examine};
pub use start::{note_calibration, start};
pub use start_error::StartError;
pub use state_dir::StateDir;
pub use write_back::{Target, WrittenBack, write_back};
