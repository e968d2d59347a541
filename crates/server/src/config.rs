//! The settings of a server: one typed tree, read from floe.toml, the command line or an admin
//! request, validated in one pass, and carried whole to where it is used.
//!
//! Each setting is declared once (`tree`). Its name in files and options, its help, the manual page
//! and the reference in docs/service/settings.md follow from the declaration.

mod attach;
mod calibration;
mod declare;
mod file;
mod given;
mod memory;
mod names;
mod nqn;
mod origin;
mod place;
mod plain;
mod text;
mod tier;
mod tree;
mod unusable;
mod validate;
mod value;
mod wrong;

pub use attach::Attach;
pub use declare::{Kind, Setting};
pub use given::{Given, read_given};
pub use nqn::Nqn;
pub use origin::Origin;
pub use tier::own_forms;
pub use tree::{
    AdminConfig, ListenConfig, MemoryConfig, ServerConfig, ServingConfig, TierConfig, VolumeConfig,
};
pub use validate::read_times;
pub use value::{Bytes, Freeze, Group, Interval, Percent};
pub use wrong::Wrong;
pub(crate) use wrong::named;
