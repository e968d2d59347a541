//! Freezing: the hottest entries are served from an immutable index.

pub(crate) mod controller;
mod drift;
mod drive;
pub(crate) mod driver;
pub(crate) mod freeze;
pub(crate) mod freezer;
pub(crate) mod index;
mod learner;
mod monitor;
pub(crate) mod observe;
pub(crate) mod options;
mod proof;
mod shares;
pub(crate) mod state;
pub(crate) mod timing;
mod warmth;
mod windows;
mod worth;
