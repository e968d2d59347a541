//! The client interfaces: NBD for data, HTTP for operators.
//!
//! [`nbd`] is the protocol as state machines, `session` one client, and [`server`] the threads that
//! move bytes between sockets, sessions and the block cache. [`admin`] is the HTTP side.

pub mod admin;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod kept;
pub mod limits;
mod listener;
mod metrics;
pub mod nbd;
pub mod notify;
pub mod server;
mod session;
mod socket_file;
pub mod status;
pub mod tls;
pub mod uri;

pub use listener::ListenError;
pub use socket_file::SocketError;
