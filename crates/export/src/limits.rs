//! How much a client can cost, and why that much.
//!
//! Against what others may send nothing helps but that each step has a bound: connections, time,
//! memory of each, memory of all. Beyond a bound a client waits, or is sent away when others would
//! have to wait for it.

use std::time::Duration;

/// Connections of a server, unless it is told otherwise: an idle one costs about 8 KiB (with TLS
/// 40), and the usual limit of open files is 1024 for programs that do not raise it.
pub const MOST_CONNECTIONS: usize = 1024;

/// The bounds of a server that an operator may want to be others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; a client beyond is hung up on.
    pub connections: usize,
    /// Bytes of all clients' requests at once, on one thread; a request beyond waits for its turn.
    /// One request alone may be larger, and with very many connections so is what is each client's
    /// own.
    pub budget_bytes: usize,
    /// For the handshake, TLS included.
    pub handshake_time: Duration,
    /// For a client to take or give the next MiB while other clients wait for the memory it holds.
    pub stall_time: Duration,
    /// For an admin client to ask, and again to take its answer.
    pub admin_time: Duration,
    /// For clients to take their last replies when the server, or their volume, ends.
    pub farewell_time: Duration,
    /// For a thread to take a command; one that does not is reported, and waited for no longer.
    pub reply_time: Duration,
}

impl Default for Limits {
    /// [`MOST_CONNECTIONS`]. 256 MiB: a client alone has up to 32 MiB in flight, each of 24 busy
    /// ones about 5 MiB, and 64 KiB are each client's own. 10 s for a handshake, for which honest
    /// clients on bad lines need a second or two. 30 s for a stall: slower than 35 KiB/s is no
    /// disk. 30 s without taking a command: no device operation of a thread takes that long.
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            budget_bytes: 256 << 20,
            handshake_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(30),
            admin_time: Duration::from_secs(10),
            farewell_time: Duration::from_secs(5),
            reply_time: Duration::from_secs(30),
        }
    }
}

/// Between looks for clients that are late: they have that much longer at worst.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A send that has been under way for so long is a slow client's: it is given no more of the memory
/// that all share until it has taken that. A network that is merely slow does not notice, since the
/// client is owed up to [`PIECE_BYTES`] meanwhile.
pub(crate) const SLOW_TIME: Duration = Duration::from_secs(1);

/// Requests of one client at once: deeper queues than clients use, and beside their data what a
/// reply's header costs does not matter.
pub(crate) const MOST_REQUESTS: usize = 256;

/// Bytes of answers to a client that haggles and does not read: beyond that it is not listened to.
/// A list of exports may be longer by itself.
pub(crate) const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Of a thread's memory for requests, the part that is divided among the connections there may be:
/// each client's own.
pub(crate) const OWN_PART: usize = 4;

/// What is a client's own at least, however many connections there may be: one small request.
pub(crate) const OWN_BYTES_LEAST: usize = 4 << 10;

/// Of the rest, which is common, the part that a client may have while nobody else has any: 32 MiB
/// of the usual 192, enough to keep a fast network busy, and to receive the longest request.
pub(crate) const COMMON_SHARE: usize = 6;

/// Received or sent at once at most, so that the server sees whether a client moves.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Received at once from a client that sends little: what an idle client holds, and the smallest
/// buffer there is.
pub(crate) const RECEIVE_IDLE_BYTES: usize = 4 << 10;

/// Received at once from a client that fills the smaller buffer.
pub(crate) const RECEIVE_BUSY_BYTES: usize = 64 << 10;

/// Headers of replies that leave in one send.
pub(crate) const SEND_HEADER_BYTES: usize = 4 << 10;

/// Encrypted at once: a few records, and little beside the replies it is made from.
pub(crate) const SEND_TLS_BYTES: usize = 128 << 10;
