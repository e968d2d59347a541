//! The target side of NVMe over TCP, which exports the namespaces.
//!
//! A [`Subsystem`](subsystem::Subsystem) is what hosts connect to. Each of their connections is a
//! [`Connection`](connection::Connection), which turns received bytes into requests and the answers
//! to them into bytes. The first connection of a host is an admin queue and makes a *controller*;
//! the others are I/O queues of that controller.
//!
//! ```text
//!             bytes                                           requests, payload
//! host ──────────────────▶ Connection ─▶ Message (header, data) ─▶ admin, fabrics ─▶ answer
//!                              │                                └▶ io ─▶ Request ──▶ caller
//!                              └─ Subsystem: controllers of all hosts, behind a lock that connects
//!                                 and admin commands take, and no I/O
//! ```

pub mod access;
mod admin;
mod authentication;
pub mod connection;
mod fabrics;
pub mod io;
mod message;
pub mod request;
pub mod reservation;
pub mod subsystem;

pub use self::authentication::Calculation;
pub use message::{Digest, digest};

use fabrics::QUEUE_MAX;
use reservation::ReservationChange;

/// Version of the base specification that controllers follow: 1.4.
const VERSION: u32 = 0x0001_0400;
/// Maximum bytes of data in a command capsule.
pub const IN_CAPSULE_MAX_BYTES: usize = 8 << 10;
/// Maximum bytes of data that a command transfers.
pub const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Maximum bytes of data in one message from a host.
const MESSAGE_MAX_BYTES: u32 = TRANSFER_MAX_BYTES;
/// Volumes with this index and higher ones are no namespaces.
const VOLUMES_MAX: u32 = 4096;
/// Highest namespace identifier: a volume has another one with each size of blocks.
const NAMESPACE_ID_MAX: u32 = 2 * VOLUMES_MAX;
/// Maximum number of namespaces that hosts see. It bounds the ANA log page, which hosts read at
/// once.
pub const NAMESPACES_MAX: usize = 1024;
/// Maximum number of outstanding event requests of a controller.
const ASYNC_EVENTS_MAX: usize = 4;

/// Work that may take long, which a connection leaves to its caller. Clones share the result.
#[derive(Debug, Clone)]
pub enum Deferred {
    /// A calculation of an authentication.
    Calculation(Calculation),
    /// A change of a reservation, which waits for its store.
    Reservation(ReservationChange),
}

impl Deferred {
    /// Does the work on the calling thread.
    pub fn run(&self) {
        match self {
            Self::Calculation(calculation) => calculation.run(),
            Self::Reservation(change) => change.run(),
        }
    }

    /// Returns whether the connection can go on.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Calculation(calculation) => calculation.is_done(),
            Self::Reservation(change) => change.is_done(),
        }
    }

    /// Returns whether both are clones of one piece of work.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Calculation(one), Self::Calculation(other)) => one.is_same(other),
            (Self::Reservation(one), Self::Reservation(other)) => one.is_same(other),
            _ => false,
        }
    }
}
