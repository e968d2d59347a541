//! The configuration of a server before it is bound, and the errors that end a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{MemoryTier, format_size};
use floe_device::{OpenError, RingError, Spec};
use floe_model::Service;
use floe_nbd::export::ExportsError;
use floe_nvme::target::access::Paths;
use floe_nvme::target::reservation::Reservations;
use floe_nvme::target::subsystem::NqnError;

use crate::admin::{AdminAddress, AdminChoice, AllowedPaths, PageKey, Token};
use crate::config::{self, Wrong, named};
use crate::limits::Limits;
use crate::listener::{ListenAddress, ListenError};
use crate::nvme_access::NvmeAccess;
use crate::pair::{StandbyError, Turn};
use crate::persistent::{StartError, StateDir};
use crate::reservations::ReservationsError;
use crate::session::HandOff;
use crate::socket_file::SocketError;
use crate::tier::open::CacheDevices;
use crate::tls::TlsConfig;
use crate::total_limit::TotalLimit;

/// The volumes and tiers that were added to a running server. The settings of an upgrade need them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    /// Names of the volumes.
    pub volumes: Vec<String>,
    /// Devices and settings of the tiers, from the top, as for `--tier`.
    pub tiers: Vec<String>,
    /// Devices and settings of all tiers, from the top.
    pub order: Vec<String>,
}

/// The configuration of a server, from its validated settings, with certificates and token loaded.
#[derive(Debug, Clone)]
pub struct ServerSetup {
    /// The addresses to listen on.
    pub listen: Vec<ListenAddress>,
    /// Configuration of the NVMe subsystem.
    pub nvme: NvmeSetup,
    /// Configuration of the admin interface.
    pub admin: AdminSetup,
    /// Allows unprotected addresses that other machines can reach.
    pub insecure: bool,
    /// TLS certificates; `None` if connections are never encrypted.
    pub tls: Option<TlsConfig>,
    /// Limits on clients' resources.
    pub limits: Limits,
    /// Limits of the requests of all volumes together.
    pub total_limit: TotalLimit,
    /// Approximate age at which dirty data is written to the backing device.
    pub flush_interval: Duration,
    /// The memory tier above the cache, if there is one. The cache must be made for it: see
    /// [`MemoryTier::config`].
    pub memory: Option<MemoryTier>,
    /// Most load shedding: the largest share of the cache device's hits that may be read from the
    /// backing devices instead, if that is faster. `None` disables shedding.
    pub shed_most: Option<f64>,
    /// Service times of list operations as measured on this machine, for the advice in the status;
    /// `None` uses [`Service::paper`].
    pub service: Option<Arc<Service>>,
    /// State directory for persistent tiers that are added while the server runs.
    pub state: Option<StateDir>,
    /// Opens the devices of tiers that are added while the server runs.
    pub devices: Arc<dyn CacheDevices>,
    /// Checks, before an upgrade, that the new program accepts the server's settings, and that they
    /// have what was added.
    pub check_program: fn(&Added) -> Result<(), String>,
    /// Right to serve, for a server that is one of a failover pair.
    pub turn: Option<Arc<Turn>>,
    /// Returns the number of log lines dropped so far, for the metrics.
    pub log_lines_dropped: fn() -> u64,
}

/// Configuration of the NVMe subsystem.
#[derive(Debug, Clone, Default)]
pub struct NvmeSetup {
    /// NVMe qualified name of the subsystem; `None` derives one from the machine and its addresses.
    pub nqn: Option<String>,
    /// The hosts that may connect.
    pub access: NvmeAccess,
    /// Paths by which hosts reach the volumes. The server registers its own addresses here, and
    /// keeps the access to volumes that is set before it starts.
    pub paths: Arc<Paths>,
    /// Connections that an earlier server of this process has handed off. The server adopts them
    /// when it starts.
    pub hand_off: HandOff,
    /// The server hands its connections off when it ends.
    pub hands_off: bool,
    /// Reservations that hosts hold; `None` where they cannot. The server sets this when it binds
    /// its addresses.
    pub reservations: Option<Arc<Reservations>>,
}

/// Configuration of the admin interface, with the token loaded.
#[derive(Debug, Clone, Default)]
pub struct AdminSetup {
    /// Addresses to listen on.
    pub listen: Vec<AdminAddress>,
    /// Default socket to listen on in addition, if possible. The server goes without if it cannot
    /// listen there.
    pub beside: Option<AdminAddress>,
    /// Group that may use the interface's Unix sockets, in addition to the server's user.
    pub group: Option<u32>,
    /// Token that allows a client over TCP to change the server.
    pub token: Option<Token>,
    /// Host names that clients over TCP may use in addition to the machine's own, `localhost` and
    /// addresses.
    pub hosts: Vec<String>,
    /// Key of the live page, if browsers may change the server on it.
    pub page: Option<PageKey>,
    /// Folders that must contain the devices which clients name. With `None`, `own_folders` apply
    /// to clients that may not be the server's user.
    pub paths: Option<Vec<PathBuf>>,
    /// Folders that apply, if `paths` is `None`, to clients that may not be the server's user: over
    /// TCP, and of the group.
    pub own_folders: Vec<PathBuf>,
}

impl AdminSetup {
    /// Creates the configuration from validated settings, and reads the token. `devices` are those
    /// that the server serves.
    ///
    /// # Errors
    /// When there is no default address, or no token in its file.
    pub fn of<'a>(
        settings: &config::AdminConfig,
        devices: impl Iterator<Item = &'a Spec>,
    ) -> Result<Self, Wrong> {
        let given = settings.admin.iter().filter_map(|choice| match choice {
            AdminChoice::At(address) => Some(address.clone()),
            AdminChoice::NoSocket => None,
        });
        let mut listen: Vec<_> = given.collect();
        let default = AdminAddress::of_server();
        let is_socket = |address: &AdminAddress| matches!(address, AdminAddress::Unix(_));
        let mut beside = None;
        if settings.admin.is_empty() {
            listen.push(named("admin", default)?);
        } else if settings.is_on_a_socket() && !listen.iter().any(is_socket) {
            beside = default.ok();
        }
        let token = settings.admin_token_file.as_deref().map(Token::read).transpose();
        Ok(Self {
            listen,
            beside,
            group: settings.admin_group.as_ref().map(|group| group.number),
            token: named("admin-token-file", token)?,
            hosts: settings.admin_hosts.clone(),
            page: named("admin-write", page_key(settings.admin_write))?,
            paths: settings.admin_paths.clone(),
            own_folders: folders_of(devices),
        })
    }

    /// Returns the path restriction for clients that are not known to be the server's user.
    pub(crate) fn limited(&self) -> AllowedPaths {
        AllowedPaths::Within(self.paths.as_ref().unwrap_or(&self.own_folders).as_slice().into())
    }
}

/// Returns a random key for the live page if `write` allows changes there.
fn page_key(write: bool) -> Result<Option<PageKey>, String> {
    let key = write.then(PageKey::draw).transpose();
    key.map_err(|error| format!("cannot get random numbers: {error}"))
}

/// Returns the folders of the files among these devices. Disks are left out, because all of them
/// are in `/dev`.
fn folders_of<'a>(devices: impl Iterator<Item = &'a Spec>) -> Vec<PathBuf> {
    let is_file = |path: &&PathBuf| {
        !path.starts_with("/dev") && path.metadata().map_or(true, |there| there.is_file())
    };
    let folder = |path: &PathBuf| {
        let folder = path.parent().unwrap_or(path);
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() }
    };
    let mut folders: Vec<PathBuf> =
        devices.flat_map(Spec::paths).filter(is_file).map(folder).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// An error that keeps a server from starting, running, or ending well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The server cannot run as a standby.
    #[error("cannot stand by: {0}")]
    Standby(std::io::Error),
    /// A standby cannot open an image.
    #[error(transparent)]
    StandbyImage(#[from] StandbyError),
    /// The name of the NVMe subsystem is invalid.
    #[error(transparent)]
    Nqn(#[from] NqnError),
    /// The kept reservations of NVMe hosts cannot be used.
    #[error(transparent)]
    Reservations(#[from] ReservationsError),
    /// The server cannot listen on an admin address.
    #[error("cannot listen on admin address {address}: {source}; give another with --admin")]
    Admin {
        /// The admin address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server cannot listen on an admin Unix socket.
    #[error("cannot listen on admin address {address}: {source}")]
    AdminSocket {
        /// The admin address.
        address: String,
        /// The problem with the socket.
        source: SocketError,
    },
    /// Other machines could read the admin traffic, including the token.
    #[error(
        "admin address {address} can be reached from other machines without encryption; give one \
         on 127.0.0.1, --tls require, or --insecure if the network is trusted"
    )]
    AdminExposed {
        /// The admin address.
        address: String,
    },
    /// A volume cannot be offered to clients.
    #[error(transparent)]
    Export(#[from] ExportsError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A volume cannot be made a local block device.
    #[error("{0}")]
    Attach(String),
    /// A thread's ring (io_uring) cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Memory for requests under way cannot be reserved.
    #[error(
        "cannot reserve {} of memory for requests: {source}; raise the limit on address space \
         (ulimit -v, LimitAS=) or serve with fewer threads",
        format_size(*bytes as u64)
    )]
    Memory {
        /// The number of bytes to reserve.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// Wake-ups between threads cannot be set up.
    #[error("cannot create a wake-up (eventfd) for a thread: {0}")]
    Wake(std::io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Waiting for I/O failed.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// A worker thread has panicked; the panic message is in the log.
    #[error(
        "thread {0} has panicked; what it served is lost to clients until the server is started \
         again"
    )]
    Panicked(usize),
    /// A worker thread does not end.
    #[error(
        "thread {0} hangs, and its requests are not finished; the next start recovers as after \
             a crash"
    )]
    Hangs(usize),
    /// The control thread has panicked; the panic message is in the log.
    #[error("the control thread has panicked; start the server again")]
    ControlPanicked,
    /// A superblock could not record the peer tiers.
    #[error("the superblock of a cache could not be written: {0}")]
    Link(StartError),
    /// A superblock could not record the clean shutdown, although all data was flushed.
    #[error("the cache could not be closed: {0}; the next start recovers as after a crash")]
    Close(StartError),
    /// The server shut down normally, but some data is lost.
    #[error("the server has ended, but {0}")]
    DataLost(String),
    /// The last flush failed and left dirty data behind.
    #[error("the last flush failed ({problem}); {}", left_behind(*dirty_bytes, *held_bytes))]
    LastFlush {
        /// The reason for the failure.
        problem: String,
        /// Dirty bytes left in the cache.
        dirty_bytes: u64,
        /// Bytes that were in memory only.
        held_bytes: u64,
    },
}

impl ServeError {
    /// Returns the name of the setting that caused the error, if one did.
    pub fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Listen(_) => Some("listen"),
            Self::Admin { .. } | Self::AdminSocket { .. } | Self::AdminExposed { .. } => {
                Some("admin")
            }
            Self::Nqn(_) => Some("nqn"),
            _ => None,
        }
    }
}

/// Explains what a failed last flush means for the user's data.
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
