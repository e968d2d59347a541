//! The journal, the persistent cache, and samples of backing devices.

pub(crate) mod journal;
pub(crate) mod kept;
pub(crate) mod samples;
