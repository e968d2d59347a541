//! The server: NBD for data, HTTP for operators.
//!
//! `session` is one client, whose protocol [`floe_nbd`] speaks; `threads` move bytes between
//! sockets, sessions and the block cache: [`Server`]. [`admin`] is the HTTP side. [`nbd_client`]
//! connects to a server.

pub mod admin;
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod kept;
pub mod limits;
mod listener;
mod metrics;
pub mod nbd_client;
pub mod notify;
mod patience;
mod protocol;
mod session;
mod socket_file;
pub mod status;
mod threads;
pub mod tls;
mod volume;

pub use listener::ListenError;
pub use socket_file::SocketError;
pub use threads::{
    AdminSetup, Bound, CacheDevices, NamedDevices, PreparedTiers, ServeError, Server, ServerSetup,
    Tier, TierError,
};
pub use volume::{DeviceSource, Volume};
