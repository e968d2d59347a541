//! NVMe over TCP, both sides, without sockets, clocks or threads.
//!
//! [`target`] is the server's side: bytes that a host sent go in, requests and replies come out.
//! The tests bring a host of their own (`floe_testkit::nvme_host`).
//!
//! Specifications: NVM Express Base, NVM Command Set and TCP Transport.

pub mod auth;
pub mod target;
pub mod wire;
