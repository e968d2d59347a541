//! The server: NBD and NVMe over TCP for data, HTTP for operators.
//!
//! `session` is one client, whose protocol [`floe_nbd`] or [`floe_nvme`] speaks; `threads` move
//! bytes between sockets, sessions and the block cache: [`Server`]. [`admin`] is the HTTP side.
//! [`nbd_client`] and [`nvme_client`] connect to a server.

mod address;
pub mod admin;
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod kept;
pub mod limits;
mod listener;
mod live;
mod metrics;
pub mod nbd_client;
pub mod notify;
mod nvme_access;
pub mod nvme_client;
pub mod pair;
mod private_file;
mod protocol;
mod sampler;
mod session;
mod socket_file;
pub mod status;
mod threads;
pub mod tls;
pub mod ublk;
pub mod upgrade_client;
mod volume;

pub use address::{ListenAddress, ListenAddressError, NvmeAddress};
pub use listener::ListenError;
pub use nvme_access::{NvmeAccess, NvmeSecretsError};
pub use session::HandOff;
pub use socket_file::SocketError;
pub use threads::{
    AdminSetup, Attached, Away, Bound, CacheDevices, Desk, Ended, NamedDevices, NvmeSetup,
    PreparedTiers, ServeError, Server, ServerSetup, Tier, TierError,
};
pub use volume::{DeviceSource, Reach, Volume};
