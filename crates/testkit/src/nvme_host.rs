//! A blocking NVMe/TCP host over any [`Transport`]: the side that reads and writes namespaces.
//!
//! [`Queue`] is a pure state machine for one connection: commands go in and bytes come out, bytes
//! go in and completions come out. [`Connection`] drives one over a transport ([`tcp`] has one).
//! [`Controller`] and [`IoQueue`] are its admin and its I/O use. Everything here is written from
//! the specifications alone and shares no encoding with `floe_nvme::target`, so that tests of one
//! against the other compare two readings.
//!
//! Invariants: a controller can make the host keep no more than the commands in flight ask for, and
//! one PDU. An error of the connection (not of a command) is final.

mod authentication;
mod command;
mod connection;
mod controller;
mod identify;
mod queue;
pub mod tcp;

pub use authentication::Authentication;
pub use command::{
    Command, CommandError, HostError, Payload, Status, Transport, admin, attribute, checksum,
    fabrics, feature, io_command, log_page,
};
pub use connection::Connection;
pub use controller::{Access, Controller, IoQueue, Range};
pub use identify::{ControllerData, DISCOVERY_NQN, DiscoveryEntry, NamespaceData};
pub use queue::{Agreed, Completion, Queue, QueueOptions};
