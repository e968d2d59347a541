//! The cache on its device, which outlives the program: whether it can be used as it was found, and
//! what is done with it outside of serving.
//!
//! A cache belongs to the volumes it was used with. [`start()`] compares what it says of them with
//! what is there (`suit`), and either makes a new one, brings the old one to life, or refuses and
//! says why; nothing has been changed then. What would lose data, or could, takes a word of the
//! user's, [`Consent`]. While a server runs, its `Keeper` writes down which volumes there are, and
//! at the end that all is in order.

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
