//! How much a client can cost, and why that much.
//!
//! Against what others may send nothing helps but that each step has a bound: connections, time, memory of each, memory
//! of all. Beyond a bound a client waits, or is sent away when others would have to wait for it.

use std::time::Duration;

/// Connections of a server, unless it is told otherwise: an idle one costs about 8 KiB (with TLS 40), and the usual
/// limit of open files is 1024 for programs that do not raise it.
pub const MOST_CONNECTIONS: usize = 1024;

/// The bounds of a server that an operator may want to be others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; a client beyond is hung up on.
    pub connections: usize,
    /// Bytes of all clients' requests at once, on one thread; a request beyond waits for its turn. One request alone may
    /// be larger.
    pub budget_bytes: usize,
    /// For the handshake, TLS included.
    pub handshake_time: Duration,
    /// For a client to take or give the next MiB while other clients wait for the memory it holds.
    pub stall_time: Duration,
    /// For an admin client to ask, and again to take its answer.
    pub admin_time: Duration,
    /// For clients to take their last replies when the server, or their volume, ends.
    pub farewell_time: Duration,
}

impl Default for Limits {
    /// [`MOST_CONNECTIONS`]. 256 MiB: eight clients at their own bound share it, more take turns. 10 s for a handshake, for
    /// which honest clients on bad lines need a second or two. 30 s for a stall: slower than 35 KiB/s is no disk.
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            budget_bytes: 256 << 20,
            handshake_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(30),
            admin_time: Duration::from_secs(10),
            farewell_time: Duration::from_secs(5),
        }
    }
}

/// Between looks for clients that are late: they have that much longer at worst.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Requests of one client at once: deeper queues than clients use, and with [`MOST_BYTES`] what a reply's header costs
/// does not matter.
pub(crate) const MOST_REQUESTS: usize = 256;

/// Bytes of answers to a client that haggles and does not read: beyond that it is not listened to. A list of exports may
/// be longer by itself.
pub(crate) const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Bytes of one client's requests at once; one request alone may be larger. Enough to keep a fast network busy.
pub(crate) const MOST_BYTES: usize = 32 << 20;

/// Received or sent at once at most, so that the server sees whether a client moves.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Received at once from a client that sends little: what an idle client holds, and the smallest buffer there is.
pub(crate) const RECEIVE_IDLE_BYTES: usize = 4 << 10;

/// Received at once from a client that fills the smaller buffer.
pub(crate) const RECEIVE_BUSY_BYTES: usize = 64 << 10;

/// Headers of replies that leave in one send.
pub(crate) const SEND_HEADER_BYTES: usize = 4 << 10;

/// Encrypted at once: a few records, and little beside the replies it is made from.
pub(crate) const SEND_TLS_BYTES: usize = 128 << 10;
