//! The NBD protocol, server and client side, without sockets, clocks or threads.
//!
//! The server side is plain state machines: bytes a client sent go in, answers and requests come
//! out. [`connection::Connection`] is the one a socket server drives; it is a
//! [`handshake::Handshake`] first and a stream of [`transmission::Request`]s afterwards, each
//! answered with a [`transmission::ReplyHeader`] that the payload follows. [`client::Client`] is
//! the other end, over any [`client::Transport`], and [`uri::Uri`] an address.
//!
//! Specification: `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>. Spoken: fixed
//! newstyle negotiation, TLS, simple and structured replies, the metadata context
//! `base:allocation`. Not spoken: oldstyle negotiation, extended headers.

pub mod client;
pub mod connection;
pub mod export;
pub mod handshake;
pub mod transmission;
pub mod uri;
pub mod wire;
