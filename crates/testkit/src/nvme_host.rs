//! A blocking NVMe/TCP host over any [`Transport`]: the side that reads and writes namespaces.
//!
//! [`Queue`] is a pure state machine for one connection: commands go in and bytes come out, bytes
//! go in and completions come out. [`Connection`] runs a queue over a transport ([`tcp`] has one).
//! [`Controller`] is an admin queue and [`IoQueue`] an I/O queue. Everything here is written from
//! the specifications alone and shares no encoding with `floe_nvme::target`. So tests of one
//! against the other compare two independent readings.
//!
//! Invariants: the memory that a controller can make the host use is bounded by the commands in
//! flight and one PDU. An error of the connection (not of a command) is final.

mod authentication;
mod command;
mod connection;
mod controller;
mod identify;
mod queue;
pub mod tcp;

pub use authentication::Authentication;
pub use command::{
    CommandError, HostCommand, HostError, Payload, Status, Transport, admin, attribute, checksum,
    fabrics, feature, io_command, log_page,
};
pub use connection::Connection;
pub use controller::{Access, Controller, IoQueue, Range};
pub use identify::{ControllerData, DISCOVERY_NQN, DiscoveryEntry, NamespaceData};
pub use queue::{Agreed, Completion, Queue, QueueOptions};
