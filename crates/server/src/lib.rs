//! The server: NBD and NVMe over TCP for data, HTTP for operators.
//!
//! A [`Server`] runs an acceptor, a control thread and workers, which move bytes between sockets,
//! sessions and the block cache. The module `session` serves one client, whose protocol
//! [`floe_nbd`] or [`floe_nvme`] implements. [`admin`] is the HTTP side. [`nbd_client`] is a client
//! for a server.

mod acceptor;
pub mod admin;
mod client_name;
pub mod config;
mod control;

pub use acceptor::admin::take_upgrade_client;
pub use client_name::{ClientName, ClientNetwork};
pub use listener::{ListenAddress, ListenAddressError, ListenError, NvmeAddress};
pub use named_clients::{ClientChanges, ClientLimit, NamedClient, NamedClients};
pub use nvme_access::{NvmeAccess, NvmeSecretsError};
pub use reservations::ReservationsError;
pub use server::{Attached, Bound, Ended, Server};
pub use session::HandOff;
pub use setup::{Added, AdminSetup, NvmeSetup, ServeError, ServerSetup};
pub use socket_file::SocketError;
pub use standby::{Away, Desk};
pub use tier::Tier;
pub use tier::open::{CacheDevices, CacheError, NamedDevices, PreparedCache};
pub use total_limit::TotalLimit;
pub use volume::{DeviceSource, Reach, Volume};
pub use volume_limit::{RequestLimit, VolumeLimit};
pub use volume_share::{VolumeShare, check as check_shares};

#[cfg(any(test, fuzzing))]
#[path = "../tests/fuzz/mod.rs"]
pub mod fuzz;
pub mod limits;
mod listener;
mod live;
mod messages;
mod metrics;
mod named_clients;
pub mod notify;
mod nvme_access;
mod offer;
pub mod pair;
pub mod persistent;
mod protocol;
mod rate;
mod reservations;
mod sampler;
mod server;
mod session;
mod setup;
mod slots;
mod socket_file;
mod standby;
pub mod status;
mod tier;
pub mod tls;
mod total_limit;
pub mod ublk;
mod volume;
mod volume_clients;
mod volume_limit;
mod volume_share;
mod warnings;
mod worker;

/// A blocking NBD client over TCP or a Unix socket.
pub mod nbd_client {
    pub use floe_device::NbdSocket as Socket;
    pub use floe_nbd::client::{ClientError, Cookie, Info, Options, Reply, RequestError};

    /// A connection to one export over a socket.
    pub type Client = floe_nbd::client::Client<Socket>;
}
