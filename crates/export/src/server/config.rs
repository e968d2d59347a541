//! What a server is told, and what can keep it from serving.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use floe_block::MemoryTier;
use floe_device::{OpenError, RingError};
use floe_model::Service;

use super::tier_maker::TierMaker;
use crate::admin::{AdminAddress, AllowedPaths, Token};
use crate::kept::StartError;
use crate::limits::Limits;
use crate::listener::ListenError;
use crate::nbd::export::ExportsError;
use crate::socket_file::SocketError;
use crate::tls::TlsConfig;
use crate::uri::Uri;

/// What a server is told.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Vec<Uri>,
    /// The admin interface.
    pub admin: AdminConfig,
    /// Whether addresses that other machines can reach are allowed.
    pub insecure: bool,
    /// Certificates, when connections may or must be encrypted.
    pub tls: Option<TlsConfig>,
    /// How much clients can cost.
    pub limits: Limits,
    /// How old dirty data gets before it is brought to the backing device, roughly.
    pub flush_interval: Duration,
    /// The tier in memory above the cache, if there is one. The cache was made for it: see
    /// [`MemoryTier::config`].
    pub memory: Option<MemoryTier>,
    /// The most of the hits on the cache device, as a share, that may be read from the backing
    /// devices instead, as far as that is found to pay; `None` for none.
    pub shed_most: Option<f64>,
    /// What list operations take on this machine, for the advice in the status; the paper's times
    /// without it.
    pub service: Option<Arc<Service>>,
    /// Who makes tiers that are added while the server runs; without anybody none can be.
    pub tiers: Option<Arc<dyn TierMaker>>,
    /// Says how many lines of the log were dropped so far, for the metrics.
    pub log_lines_dropped: fn() -> u64,
}

/// Settings of the admin interface.
#[derive(Debug, Clone, Default)]
pub struct AdminConfig {
    /// Where it listens.
    pub listen: Vec<AdminAddress>,
    /// The group that may use its Unix sockets, beside the server's user.
    pub group: Option<u32>,
    /// With it a client may change something over TCP, too.
    pub token: Option<Token>,
    /// Names by which clients may call it over TCP, beside its own, `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Folders in which devices may be that clients name.
    pub paths: Option<Vec<PathBuf>>,
    /// The same where `paths` says nothing, for clients that may be others than the server's user:
    /// over TCP, and of the group.
    pub own_folders: Vec<PathBuf>,
}

impl AdminConfig {
    /// The limit for clients that are not known to be the server's user.
    pub(super) fn limited(&self) -> AllowedPaths {
        AllowedPaths::Within(self.paths.as_ref().unwrap_or(&self.own_folders).as_slice().into())
    }
}

/// Why a server could not begin, go on, or end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin address cannot be listened on.
    #[error("cannot listen on admin address {address}: {source}; give another with --admin")]
    Admin {
        /// The address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The admin socket cannot be listened on.
    #[error("cannot listen on admin address {address}: {source}")]
    AdminSocket {
        /// The address.
        address: String,
        /// Why not.
        source: SocketError,
    },
    /// Other machines could see what the server does, and read the token on its way.
    #[error(
        "admin address {address} can be reached from other machines without encryption; give one \
         on 127.0.0.1, --tls require, or --insecure if the network is trusted"
    )]
    AdminExposed {
        /// The address.
        address: String,
    },
    /// The volume cannot be offered.
    #[error(transparent)]
    Export(#[from] ExportsError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no ring for a thread.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Threads could not wake each other.
    #[error("cannot set up how threads wake each other: {0}")]
    Wake(std::io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Waiting for I/O failed.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// A thread that serves ended in a panic, which has been reported.
    #[error(
        "thread {0} has panicked; what it served is lost to clients until the server is started \
         again"
    )]
    Panicked(usize),
    /// A thread that serves does not end.
    #[error("thread {0} hangs, and what it has under way is not finished; it is as after a crash")]
    Hangs(usize),
    /// The control thread ended in a panic, which has been reported.
    #[error("the control thread has panicked; start the server again")]
    ControlPanicked,
    /// The tiers could not be told of each other.
    #[error("the superblock of a cache could not be written: {0}")]
    Link(StartError),
    /// The cache could not be told that all is in order; everything that was flushed is there.
    #[error("the cache could not be closed: {0}; it is as after a crash")]
    Close(StartError),
    /// All went as it should, but for data that nobody can read any more.
    #[error("the server has ended, but {0}")]
    DataLost(String),
    /// Dirty data is left at the end.
    #[error("the last flush failed ({problem}); {}", left_behind(*dirty_bytes, *held_bytes))]
    LastFlush {
        /// Why.
        problem: String,
        /// What is left in the cache.
        dirty_bytes: u64,
        /// What only memory had.
        held_bytes: u64,
    },
}

/// What a failed last flush means for the user's data.
fn left_behind(dirty_bytes: u64, held_bytes: u64) -> String {
    if held_bytes > 0 {
        let cache = if dirty_bytes > 0 { format!(", {dirty_bytes} are") } else { String::new() };
        let place = if dirty_bytes > 0 { " on the cache device only" } else { "" };
        format!("{held_bytes} bytes were in memory only and are lost{cache}{place}")
    } else if dirty_bytes == 0 {
        "the backing device has everything, but may lose what was written lately if power fails"
            .to_owned()
    } else {
        format!("{dirty_bytes} bytes are on the cache device only")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_last_flush_says_what_is_at_stake() {
        let line_with = |dirty_bytes, held_bytes| {
            ServeError::LastFlush { problem: "input/output error".into(), dirty_bytes, held_bytes }
                .to_string()
        };
        let line = |dirty_bytes| line_with(dirty_bytes, 0);
        assert!(line_with(0, 8192).ends_with("8192 bytes were in memory only and are lost"));
        assert!(line_with(4096, 8192).ends_with("are lost, 4096 are on the cache device only"));
        assert!(line(4096).ends_with("4096 bytes are on the cache device only"), "{}", line(4096));
        assert!(line(0).contains("the backing device has everything"), "{}", line(0));
    }
}
