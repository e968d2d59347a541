//! The protocol's state machines and addresses, byte by byte.

mod connection;
mod handshake;
mod meta_context;
mod starttls;
mod transmission;
mod uri;
