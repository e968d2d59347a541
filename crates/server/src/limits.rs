//! Bounds on the resources a client can use, with their reasons.
//!
//! A server is safe from arbitrary input only if each step has a bound: connections, time, memory
//! of each client, memory of all. Beyond a bound a client waits, or is disconnected when other
//! clients would have to wait for it.

use std::time::Duration;

/// The default number of connections. An idle one costs about 8 KiB (with TLS 40), and the usual
/// limit of open files is 1024 for programs that do not raise it.
pub const MOST_CONNECTIONS: usize = 1024;

/// The bounds that an operator may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; further clients are disconnected.
    pub connections: usize,
    /// Bytes of all clients' requests at once, on one thread; further requests wait for their turn.
    /// A single request may be larger. With very many connections the sum of the clients' own parts
    /// may be, too.
    pub budget_bytes: usize,
    /// Time for the handshake, TLS included.
    pub handshake_time: Duration,
    /// Time for a client to transfer the next MiB while other clients wait for the memory it holds.
    pub stall_time: Duration,
    /// Time for an admin client to send its request, and again to take the answer.
    pub admin_time: Duration,
    /// Time for clients to take their last replies when the server, or their volume, ends.
    pub farewell_time: Duration,
    /// Time for other machines to answer an operation of a device once the server is to end.
    pub stop_timeout: Duration,
    /// Time for a thread to take a command; after that it is reported and not waited for.
    pub reply_time: Duration,
    /// Interval between two points of the live page's history.
    pub sample_interval: Duration,
}

impl Default for Limits {
    /// [`MOST_CONNECTIONS`]. 256 MiB: a client alone has up to 32 MiB in flight, each of 24 busy
    /// ones about 5 MiB, and 64 KiB are each client's own. 10 s for a handshake, for which honest
    /// clients on bad lines need a second or two. 30 s for a stall: no disk is slower than 35
    /// KiB/s. 1 min for other machines at the end: a Ceph cluster that loses an OSD answers again
    /// after half of that. 30 s without taking a command: no device operation of a thread takes
    /// that long. 5 s between points, 720 of which make an hour.
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            budget_bytes: 256 << 20,
            handshake_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(30),
            admin_time: Duration::from_secs(10),
            farewell_time: Duration::from_secs(5),
            stop_timeout: Duration::from_secs(60),
            reply_time: Duration::from_secs(30),
            sample_interval: Duration::from_secs(5),
        }
    }
}

/// Interval between checks for late clients, which delays their end by as much at worst.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A send that takes longer marks a slow client. It gets no more of the shared memory until it has
/// taken the send. A merely slow network is not affected: the client has up to [`PIECE_BYTES`] to
/// take meanwhile.
pub(crate) const SLOW_TIME: Duration = Duration::from_secs(1);

/// Requests of one client at once: more than the queue depth clients use. The cost of a reply's
/// header is small beside that of their data.
pub(crate) const MOST_REQUESTS: usize = 256;

/// Bytes of answers to a client that negotiates and does not read: beyond that the server stops
/// reading from it. A list of exports may be longer by itself.
pub(crate) const MOST_ANSWER_BYTES: usize = 64 << 10;

/// The part of a thread's request memory that is divided among all possible connections as each
/// client's own.
pub(crate) const OWN_PART: usize = 4;

/// Least bytes of a client's own, for any number of connections: one small request.
pub(crate) const OWN_BYTES_LEAST: usize = 4 << 10;

/// The part of the common memory that a client may have while no other client has any: 32 MiB of
/// the usual 192, enough to keep a fast network busy, and to receive the longest request.
pub(crate) const COMMON_SHARE: usize = 6;

/// Most bytes received or sent at once, so that the server notices a client's progress.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Bytes received at once from a client that sends little: the memory of an idle client, and the
/// smallest buffer there is.
pub(crate) const RECEIVE_IDLE_BYTES: usize = 4 << 10;

/// Bytes received at once from a client that fills the smaller buffer.
pub(crate) const RECEIVE_BUSY_BYTES: usize = 64 << 10;

/// Bytes of reply headers that leave in one send.
pub(crate) const SEND_HEADER_BYTES: usize = 4 << 10;

/// Bytes encrypted at once: a few records, and little beside the replies it is made from.
pub(crate) const SEND_TLS_BYTES: usize = 128 << 10;
