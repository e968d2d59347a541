//! A server that is to be bound, and the errors that end it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use floe_block::{MemoryTier, format_size};
use floe_device::{OpenError, RingError, Spec};
use floe_model::Service;
use floe_nbd::export::ExportsError;
use floe_nvme::target::access::Paths;
use floe_nvme::target::subsystem::NqnError;

use crate::admin::{AdminAddress, AdminChoice, AllowedPaths, PageKey, Token};
use crate::config::{self, Wrong, named};
use crate::limits::Limits;
use crate::listener::{ListenAddress, ListenError};
use crate::nvme_access::NvmeAccess;
use crate::pair::{StandbyError, Turn};
use crate::persistent::{StartError, StateDir};
use crate::session::HandOff;
use crate::socket_file::SocketError;
use crate::tier::open::CacheDevices;
use crate::tls::TlsConfig;

/// A server as its validated settings describe it, with certificates, token and devices read.
#[derive(Debug, Clone)]
pub struct ServerSetup {
    /// The addresses to listen on.
    pub listen: Vec<ListenAddress>,
    /// The NVMe subsystem.
    pub nvme: NvmeSetup,
    /// The admin interface.
    pub admin: AdminSetup,
    /// Allow addresses that other machines can reach.
    pub insecure: bool,
    /// Certificates, when connections may or must be encrypted.
    pub tls: Option<TlsConfig>,
    /// The bounds on clients' resources.
    pub limits: Limits,
    /// Approximate age at which dirty data is written to the backing device.
    pub flush_interval: Duration,
    /// The tier in memory above the cache, if there is one. The cache was made for it: see
    /// [`MemoryTier::config`].
    pub memory: Option<MemoryTier>,
    /// The largest share of the cache device's hits that may be read from the backing devices
    /// instead, as far as that pays; `None` for none.
    pub shed_most: Option<f64>,
    /// The measured service times of list operations on this machine, for the advice in the status;
    /// `None` uses the paper's times.
    pub service: Option<Arc<Service>>,
    /// The state directory of persistent tiers that are added while the server runs.
    pub state: Option<StateDir>,
    /// The opener of the devices of such tiers.
    pub devices: Arc<dyn CacheDevices>,
    /// Checks that the program of its file takes the server's settings, before it replaces this
    /// one.
    pub check_program: fn() -> Result<(), String>,
    /// The turn of a server that is one of a pair.
    pub turn: Option<Arc<Turn>>,
    /// Returns the number of log lines dropped so far, for the metrics.
    pub log_lines_dropped: fn() -> u64,
}

/// The NVMe subsystem as its settings describe it.
#[derive(Debug, Clone, Default)]
pub struct NvmeSetup {
    /// Its name; `None` for one made from the machine and its addresses.
    pub nqn: Option<String>,
    /// The hosts that may connect.
    pub access: NvmeAccess,
    /// The ways by which hosts reach the volumes. The server names its own addresses, and takes
    /// over the access to volumes that is set here before it begins.
    pub paths: Arc<Paths>,
    /// The connections that an earlier server of this process has handed on. The server adopts
    /// them when it begins.
    pub hand_off: HandOff,
    /// The server hands its connections on when it ends.
    pub hands_off: bool,
}

/// The admin interface as its settings describe it, with the token read.
#[derive(Debug, Clone, Default)]
pub struct AdminSetup {
    /// The addresses it listens on.
    pub listen: Vec<AdminAddress>,
    /// The default socket, where it is not asked for: the server goes without if it cannot listen
    /// there.
    pub beside: Option<AdminAddress>,
    /// The group that may use its Unix sockets, beside the server's user.
    pub group: Option<u32>,
    /// The token with which a client may change something over TCP, too.
    pub token: Option<Token>,
    /// Host names by which clients may call it over TCP, besides its own, `localhost` and
    /// addresses.
    pub hosts: Vec<String>,
    /// The key of the live page, where browsers may change something on it.
    pub page: Option<PageKey>,
    /// The folders in which devices named by clients must be.
    pub paths: Option<Vec<PathBuf>>,
    /// The folders that apply without `paths` to clients that may not be the server's user: over
    /// TCP, and of the group.
    pub own_folders: Vec<PathBuf>,
}

impl AdminSetup {
    /// Makes it of validated settings, and reads the token. `devices` are those it serves.
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

    /// Returns the limit for clients that are not known to be the server's user.
    pub(crate) fn limited(&self) -> AllowedPaths {
        AllowedPaths::Within(self.paths.as_ref().unwrap_or(&self.own_folders).as_slice().into())
    }
}

/// Draws the key of the live page, if that may change something.
fn page_key(write: bool) -> Result<Option<PageKey>, String> {
    let key = write.then(PageKey::draw).transpose();
    key.map_err(|error| format!("no random numbers: {error}"))
}

/// Returns the folders of the files that are served. Those of disks are left out: all disks are in
/// one.
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
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The server cannot stand by.
    #[error("cannot stand by: {0}")]
    Standby(std::io::Error),
    /// An image cannot be looked at.
    #[error(transparent)]
    StandbyImage(#[from] StandbyError),
    /// The subsystem's name cannot be used.
    #[error(transparent)]
    Nqn(#[from] NqnError),
    /// The admin address cannot be listened on.
    #[error("cannot listen on admin address {address}: {source}; give another with --admin")]
    Admin {
        /// The address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The admin socket cannot be listened on.
    #[error("cannot listen on admin address {address}: {source}")]
    AdminSocket {
        /// The address.
        address: String,
        /// The reason.
        source: SocketError,
    },
    /// Other machines could read the server's traffic, and the token in it.
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
    /// A volume cannot be a local block device.
    #[error("{0}")]
    Attach(String),
    /// There is no ring for a thread.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There is no memory for requests under way.
    #[error(
        "cannot reserve {} of memory for requests: {source}; raise the limit on address space \
         (ulimit -v, LimitAS=) or serve with fewer threads",
        format_size(*bytes as u64)
    )]
    Memory {
        /// The bytes asked for.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// Threads could not wake each other.
    #[error("cannot set up how threads wake each other: {0}")]
    Wake(std::io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Waiting for I/O failed.
    #[error("waiting for I/O failed: {0}")]
    Wait(std::io::Error),
    /// A worker thread has panicked, and the panic has been reported.
    #[error(
        "thread {0} has panicked; what it served is lost to clients until the server is started \
         again"
    )]
    Panicked(usize),
    /// A worker thread does not end.
    #[error("thread {0} hangs, and what it has under way is not finished; it is as after a crash")]
    Hangs(usize),
    /// The control thread has panicked, and the panic has been reported.
    #[error("the control thread has panicked; start the server again")]
    ControlPanicked,
    /// A superblock could not record the peer tiers.
    #[error("the superblock of a cache could not be written: {0}")]
    Link(StartError),
    /// The superblock could not record the clean shutdown; all flushed data is there.
    #[error("the cache could not be closed: {0}; it is as after a crash")]
    Close(StartError),
    /// The server ended in good order, but some data is lost.
    #[error("the server has ended, but {0}")]
    DataLost(String),
    /// Dirty data is left at the end.
    #[error("the last flush failed ({problem}); {}", left_behind(*dirty_bytes, *held_bytes))]
    LastFlush {
        /// The reason.
        problem: String,
        /// Bytes left in the cache.
        dirty_bytes: u64,
        /// Bytes that only memory had.
        held_bytes: u64,
    },
}

impl ServeError {
    /// Returns the setting that it is about, if it is about one.
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
