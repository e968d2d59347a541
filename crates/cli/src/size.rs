//! Sizes on the command line.

pub(crate) use floe_lab::sizes::{CacheSize, Sizes};
pub(crate) use floe_server::config::{Bytes, Percent};
