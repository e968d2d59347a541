//! The NBD protocol, server and client side, without sockets, clocks or threads.
//!
//! The server side consists of state machines that turn received bytes into answers and requests. A
//! socket server drives [`connection::Connection`]. This is a [`handshake::Handshake`] first and a
//! stream of [`transmission::Request`]s afterwards, each answered with a
//! [`transmission::ReplyHeader`] that the payload follows. [`client::Client`] is the other end,
//! over any [`client::Transport`], and [`uri::Uri`] an address.
//!
//! Specification: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>. Supported: fixed
//! newstyle negotiation, TLS, simple and structured replies, the metadata context
//! `base:allocation`. Not supported: oldstyle negotiation, extended headers.

pub mod client;
pub mod connection;
pub mod export;
pub mod handshake;
pub mod transmission;
pub mod uri;
pub mod wire;
