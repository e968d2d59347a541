//! The permissions to lose or overwrite data, as options.

use clap::Args;
use floe_server::kept::Consent;

/// The user's permissions to lose or overwrite data. No file has them: they are for one start.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Allowed {
    /// Make a new cache, whatever the cache device holds
    #[arg(long)]
    initialise: bool,
    /// Lose dirty data where the server would otherwise refuse to start; the log says how much
    #[arg(long)]
    discard_dirty: bool,
    /// Use backing devices that differ from the cache's records, and forget the cached data of them
    #[arg(long)]
    accept_backing: bool,
    /// With --accept-backing: write the cache's dirty data to these devices
    #[arg(long, requires = "accept_backing", conflicts_with = "discard_dirty")]
    keep_dirty: bool,
}

impl From<Allowed> for Consent {
    fn from(allowed: Allowed) -> Self {
        let Allowed { initialise, discard_dirty, accept_backing, keep_dirty } = allowed;
        Self { initialise, discard_dirty, accept_backing, keep_dirty }
    }
}
