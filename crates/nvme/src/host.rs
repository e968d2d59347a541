//! The side that reads and writes namespaces: a blocking NVMe/TCP host over any [`Transport`].
//!
//! [`Queue`] is a pure state machine for one connection: commands go in and bytes come out, bytes
//! go in and completions come out. [`Connection`] drives one over a transport, and [`Controller`]
//! and [`IoQueue`] are its admin and its I/O use. Everything here is written from the
//! specifications alone and shares no encoding with [`target`](crate::target), so that tests of one
//! against the other compare two readings.
//!
//! Invariants: a controller can make the host keep no more than the commands in flight ask for, and
//! one PDU. An error of the connection (not of a command) is final.

mod authentication;
mod command;
mod connection;
mod controller;
mod discovery;
mod error;
mod identify;
mod inbound;
mod io;
mod pdu;
mod queue;
mod transport;

pub use authentication::Authentication;
pub use command::{Command, Payload, admin, attribute, fabrics, feature, io_command, log_page};
pub use connection::Connection;
pub use controller::{Access, Controller};
pub use discovery::{DISCOVERY_NQN, DiscoveryEntry};
pub use error::{CommandError, HostError, Status};
pub use identify::{ControllerData, NamespaceData};
pub use io::{IoQueue, Range};
pub use pdu::checksum;
pub use queue::{Agreed, Completion, Queue, QueueOptions};
pub use transport::Transport;
