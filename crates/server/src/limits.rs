//! Limits on the resources a client can use, with their reasons.
//!
//! A server is safe from arbitrary input only if each step has a limit: connections, time, memory
//! of each client, memory of all. A client that reaches a limit waits, or is disconnected if other
//! clients would have to wait for it.

use std::time::Duration;

/// The default limit of connections. An idle one costs about 8 KiB (40 KiB with TLS), and the usual
/// limit of open files is 1024 for programs that do not raise it.
pub const MOST_CONNECTIONS: usize = 1024;

/// The limits that an operator can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections at a time; further clients are disconnected.
    pub connections: usize,
    /// Maximum number of bytes that the requests of all clients may occupy on one thread; further
    /// requests wait for their turn. A single larger request is still served. With very many
    /// connections the clients' own parts may add up to more.
    pub budget_bytes: usize,
    /// Time limit of the handshake, TLS included.
    pub handshake_time: Duration,
    /// Time limit for a client to transfer the next MiB while other clients wait for the memory it
    /// holds.
    pub stall_time: Duration,
    /// Time limit for an admin client to send its request, and again to read the reply.
    pub admin_time: Duration,
    /// Time limit for clients to read their last replies when the server or their volume ends.
    pub farewell_time: Duration,
    /// Time limit of operations on network devices during the shutdown.
    pub stop_timeout: Duration,
    /// Time limit for a thread to take a command; after that the thread is reported, and others do
    /// not wait for it.
    pub reply_time: Duration,
    /// Interval between two points of the live page's history.
    pub sample_interval: Duration,
}

impl Default for Limits {
    /// Returns the default limits, which have these reasons:
    ///
    /// - 1024 connections, for the reasons given at [`MOST_CONNECTIONS`].
    /// - 256 MiB of requests: a client alone has up to 32 MiB in flight, each of 24 busy ones about
    ///   5 MiB, and 64 KiB are each client's own.
    /// - 10 s for a handshake, for which honest clients on bad lines need a second or two.
    /// - 30 s for a stall: no disk is slower than 35 KiB/s.
    /// - 1 min for network devices at the end: a Ceph cluster that loses an OSD answers again after
    ///   half of that.
    /// - 30 s to take a command: no device operation of a thread takes that long.
    /// - 5 s between points, 720 of which make an hour.
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

/// Interval between checks for late clients, which is also the longest delay in noticing one.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Duration of a send from which a client counts as slow. A slow client gets no more of the shared
/// memory until the send has ended. A slow network stays busy, because a send has up to
/// [`PIECE_BYTES`].
pub(crate) const SLOW_TIME: Duration = Duration::from_secs(1);

/// Maximum number of requests of one client in flight: more than the queue depth that clients use.
/// The cost of that many reply headers is small beside their data.
pub(crate) const MOST_REQUESTS: usize = 256;

/// Limit of unsent answers to a client that negotiates and does not read, in bytes. Beyond it the
/// server stops reading from the client. A single list of exports may be longer.
pub(crate) const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Divisor for the reserved part of a thread's request memory. A quarter of the memory is divided
/// evenly among all possible connections, as each client's own.
pub(crate) const OWN_PART: usize = 4;

/// Minimum number of bytes reserved for each client, whatever the number of connections: one small
/// request.
pub(crate) const OWN_BYTES_LEAST: usize = 4 << 10;

/// Divisor for a client's share of the common memory while no other client uses any. A sixth of the
/// usual 192 MiB is 32 MiB, enough to keep a fast network busy and to receive the longest request.
pub(crate) const COMMON_SHARE: usize = 6;

/// Maximum number of bytes in one receive or send, so that the server notices a client's progress.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Receive buffer of a client that sends little, in bytes: the memory of an idle client, and the
/// smallest buffer there is.
pub(crate) const RECEIVE_IDLE_BYTES: usize = 4 << 10;

/// Receive buffer of a client that fills the smaller one, in bytes.
pub(crate) const RECEIVE_BUSY_BYTES: usize = 64 << 10;

/// Maximum number of bytes of reply headers in one send.
pub(crate) const SEND_HEADER_BYTES: usize = 4 << 10;

/// Maximum number of plaintext bytes encrypted at once: a few TLS records, and little beside the
/// replies themselves.
pub(crate) const SEND_TLS_BYTES: usize = 128 << 10;
