//! The hub: the thread that owns the connection to an NBD export.
//!
//! The hub sleeps in its ring. Operations arrive through its mailbox and become requests of
//! [`Work`]. Requests that have accumulated are sent together; a large read's data is received
//! directly into its slice. Connections are made by short-lived threads, since resolving a host
//! name blocks.
//!
//! Invariant: before the kernel is done with the slices of the last connection, no request is sent
//! again and no operation fails.

use super::work::Job;
use crate::queue::Mailbox;
use floe_nbd::uri::Uri;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use std::{fmt, io};

use floe_nbd::client::ledger::request_header;
use floe_nbd::client::{ClientError, Cookie, Info, Transport, negotiate};
use floe_nbd::wire::{REQUEST_BYTES, command};
use rustix::net::{SendFlags, Shutdown, send, shutdown, sockopt};

use super::socket::Socket;
use super::work::{Incoming, Next, Work};
use crate::buffer::{Pool, SECTOR_BYTES};
use crate::ring::Ring;
use crate::socket::{SocketCompletion, SocketOutcome, Sockets};

/// Maximum number of requests that one send gathers.
const TOGETHER: usize = 32;
/// The first and the longest pause between two attempts to connect; each pause is twice the one
/// before.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(2)];

/// Tokens of the hub's socket operations.
const WOKEN: u64 = 0;
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

/// The state of the connection.
enum Link {
    /// There is no connection; the next attempt is made at this time or later.
    Down(Instant),
    /// A thread is trying to connect.
    Connecting,
    Up(Rc<OwnedFd>),
    /// The connection is shut down, but the kernel may still use slices.
    Closing,
}

pub(super) struct Hub {
    shared: Arc<Shared>,
    ring: Ring,
    pool: Pool,
    sockets: Sockets,
    wake_up: Rc<OwnedFd>,
    work: Work,
    /// The timeout named in error messages; each operation has its own deadline.
    timeout: Option<Duration>,
    link: Link,
    /// The pause before the next attempt to connect.
    pause: Duration,
    /// The reason why the last connection ended or the last attempt failed.
    trouble: Option<String>,
    is_sending: bool,
    is_receiving: bool,
    incoming: Incoming,
    measuring: Vec<Sender<io::Result<u64>>>,
    is_ending: bool,
}

impl Hub {
    pub(super) fn new(shared: Arc<Shared>, ring: Ring, first: Connected) -> io::Result<Self> {
        let pool = Pool::new(0);
        let mut hub = Self {
            sockets: Sockets::new(&ring),
            wake_up: Rc::new(shared.mailbox.descriptor()?),
            work: Work::new(first.info),
            timeout: shared.name.timeout,
            link: Link::Up(Rc::new(first.socket)),
            pause: PAUSES[0],
            trouble: None,
            is_sending: false,
            is_receiving: false,
            incoming: Incoming::new(&pool),
            measuring: Vec::new(),
            is_ending: false,
            shared,
            ring,
            pool,
        };
        hub.sockets.readable(WOKEN, &hub.wake_up);
        Ok(hub)
    }

    /// Runs the hub until it is told to end.
    pub(super) fn run(&mut self) {
        let (mut done, mut events) = (Vec::new(), Vec::new());
        loop {
            self.sockets.poll(&mut done);
            done.drain(..).for_each(|completion| self.completed(completion));
            self.shared.mailbox.take(&mut events);
            events.drain(..).for_each(|event| self.told(event));
            self.expire();
            self.advance();
            if self.is_ending && !matches!(self.link, Link::Up(_) | Link::Closing) {
                return;
            }
            let due = self.next_due();
            if self.ring.wait_until(due).is_err() {
                // Without a ring nothing can be done but to try again.
                std::thread::sleep(PAUSES[0]);
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let again = match self.link {
            Link::Down(again) if self.is_wanted() => Some(again),
            _ => None,
        };
        let due = match self.link {
            Link::Closing if self.is_sending || self.is_receiving => None, // the kernel wakes it
            Link::Closing => Some(Instant::now()),
            _ => self.work.next_due(),
        };
        again.into_iter().chain(due).chain(self.sockets.next_due()).min()
    }

    /// Returns whether there is a reason to connect.
    fn is_wanted(&self) -> bool {
        !self.is_ending && (self.work.is_wanted() || !self.measuring.is_empty())
    }

    fn told(&mut self, event: Event) {
        match event {
            Event::Job(job) => self.work.begin(job),
            Event::Timeout(timeout) => {
                self.timeout = Some(timeout);
                self.work.bound(Instant::now() + timeout);
            }
            Event::Measure(to) => self.measuring.push(to),
            Event::Connected(result) => self.connected(result),
            Event::End => self.is_ending = true,
        }
    }

    fn completed(&mut self, SocketCompletion { token, result }: SocketCompletion) {
        match (token, result) {
            (WOKEN, _) => {
                self.shared.mailbox.silence();
                self.sockets.readable(WOKEN, &self.wake_up);
            }
            (SENT, result) => {
                self.is_sending = false;
                if let Err(error) = result {
                    self.lose(ClientError::Io(error));
                }
            }
            (_, Ok(SocketOutcome::Received(bytes))) => {
                self.is_receiving = false;
                if let Err(error) = self.incoming.received(bytes) {
                    self.lose(error);
                }
            }
            (_, result) => {
                self.is_receiving = false;
                let error = result.err().unwrap_or_else(|| io::ErrorKind::Other.into());
                self.lose(ClientError::Io(error));
            }
        }
    }

    /// Fails the operations that have passed their deadlines. First gives up a connection on which
    /// the server has not answered in time.
    fn expire(&mut self) {
        let now = Instant::now();
        if self.work.next_due().is_none_or(|due| due > now) {
            return;
        }
        match self.link {
            Link::Up(_) => self.lose(ClientError::Timeout),
            Link::Closing => {}
            Link::Down(_) | Link::Connecting => {
                let timeout = self.timeout.unwrap_or_default();
                let trouble = self.trouble.as_ref();
                let trouble = trouble.map_or_else(String::new, |trouble| format!(": {trouble}"));
                let message =
                    format!("export {} has not answered for {timeout:?}{trouble}", self.name());
                let error = || io::Error::new(io::ErrorKind::TimedOut, message.clone());
                self.work.fail(Some(now), error);
            }
        }
    }

    fn name(&self) -> String {
        self.shared.name.to_string()
    }

    /// Advances the connection and its transfers by one step.
    fn advance(&mut self) {
        if matches!(self.link, Link::Closing) && !self.is_sending && !self.is_receiving {
            self.incoming.clear();
            self.work.disconnected();
            self.link = Link::Down(Instant::now() + self.pause);
            self.pause = (self.pause * 2).clamp(PAUSES[0], PAUSES[1]);
            self.expire();
        }
        match &self.link {
            Link::Down(again) if self.is_wanted() && *again <= Instant::now() => self.connect(),
            Link::Up(_) if self.is_ending => self.hang_up(),
            Link::Up(socket) => {
                let socket = Rc::clone(socket);
                self.send(&socket);
                self.receive(&socket);
                let is_idle = self.work.in_flight() == 0 && !self.is_sending;
                if !self.measuring.is_empty() && is_idle && matches!(self.link, Link::Up(_)) {
                    self.pause = Duration::ZERO;
                    self.hang_up();
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self) {
        let shared = Arc::clone(&self.shared);
        let connect = move || {
            let result = connect(&shared.name, shared.read_only);
            shared.mailbox.leave(Event::Connected(result));
        };
        match std::thread::Builder::new().name("nbd-connect".to_owned()).spawn(connect) {
            Ok(_) => self.link = Link::Connecting,
            Err(error) => self.failed(error.to_string()),
        }
    }

    fn connected(&mut self, result: Result<Connected, NbdError>) {
        let size = self.shared.size_bytes();
        let Connected { socket, info } = match result {
            Ok(connected) => connected,
            Err(error) => return self.failed(error.to_string()),
        };
        let before = self.work.info();
        let change = if self.measuring.is_empty() && info.size_bytes < size {
            Some(format!("it has {} bytes now, not {size}", info.size_bytes))
        } else if !info.has(before.flags) || info.maximum_block_bytes < before.maximum_block_bytes {
            Some("its server offers fewer features than before".to_owned())
        } else {
            None
        };
        if let Some(change) = change {
            let error = NbdError::Changed(self.name(), change).to_string();
            let copy = || io::Error::new(io::ErrorKind::InvalidData, error.clone());
            self.work.fail(None, copy);
            return self.failed(error);
        }
        for to in self.measuring.drain(..) {
            let _ = to.send(Ok(info.size_bytes)); // perhaps nobody waits any more
        }
        self.work.connected(info);
        self.link = Link::Up(Rc::new(socket));
    }

    /// Records a failed attempt to connect, and schedules the next.
    fn failed(&mut self, why: String) {
        for to in self.measuring.drain(..) {
            let _ = to.send(Err(io::Error::other(why.clone()))); // perhaps nobody waits any more
        }
        self.trouble = Some(why);
        self.link = Link::Down(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(PAUSES[0], PAUSES[1]);
    }

    /// Disconnects gracefully.
    fn hang_up(&mut self) {
        if let Link::Up(socket) = &self.link
            && !self.is_sending
        {
            let header = request_header(command::DISC, 0, Cookie::default(), 0, 0);
            // Without it the server sees the connection end.
            let _ = send(&**socket, &header, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        self.close();
    }

    /// Gives up a connection that has failed.
    fn lose(&mut self, why: ClientError) {
        self.trouble = Some(why.to_string());
        self.close();
    }

    fn close(&mut self) {
        if let Link::Up(socket) = &self.link {
            let _ = shutdown(&**socket, Shutdown::Both); // it fails where the peer has done so
            self.link = Link::Closing;
        }
    }

    /// Sends waiting requests, unless a send is in flight.
    fn send(&mut self, socket: &Rc<OwnedFd>) {
        if self.is_sending || !self.measuring.is_empty() {
            return;
        }
        let mut headers = None;
        let mut slices = Vec::new();
        for at in 0..TOGETHER {
            let Some((header, payload)) = self.work.next() else { break };
            let headers =
                headers.get_or_insert_with(|| self.pool.allocate(TOGETHER * REQUEST_BYTES).whole());
            let place = headers.slice(at * REQUEST_BYTES..(at + 1) * REQUEST_BYTES);
            place.copy_from(&header);
            slices.push(place);
            slices.extend(payload);
        }
        if !slices.is_empty() {
            self.is_sending = true;
            self.sockets.send(SENT, socket, slices);
        }
    }

    /// Processes the bytes received, and starts to receive more.
    fn receive(&mut self, socket: &Rc<OwnedFd>) {
        while !self.is_receiving {
            match self.incoming.next(&mut self.work) {
                Ok(Next::Ended(cookie)) => {
                    self.pause = PAUSES[0];
                    if self.work.ended(cookie) {
                        return self.lose(ClientError::HungUp);
                    }
                }
                Ok(Next::Receive { into, whole }) => {
                    self.is_receiving = true;
                    self.sockets.receive(RECEIVED, socket, into, whole);
                }
                Err(error) => return self.lose(error),
            }
        }
        // Answers may have made room.
        self.send(socket);
    }
}

/// The time limit for connecting, and for each answer of the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time after which a server that acknowledges no TCP data counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// A connection that has completed the handshake.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) info: Info,
}

/// Connects to the export, and checks that it is usable as a device.
pub(super) fn connect(name: &NbdName, read_only: bool) -> Result<Connected, NbdError> {
    let export = || name.to_string();
    let failed = |source: ClientError| NbdError::Client { export: export(), source };
    let patience = name.timeout.map_or(PATIENCE, |timeout| timeout.min(PATIENCE));
    let mut socket = Socket::connect(&name.uri, Some(patience)).map_err(failed)?;
    let info = negotiate(&mut socket, &name.uri.export, true).map_err(failed)?;
    let socket = socket.into_fd().map_err(failed)?;
    watch(&socket).map_err(|source| NbdError::System { export: export(), source })?;
    let (size, minimum) = (info.size_bytes, info.minimum_block_bytes);
    if info.read_only() && !read_only {
        return Err(NbdError::ReadOnly(export()));
    }
    if size == 0 || !size.is_multiple_of(512) {
        return Err(NbdError::OddSize(export(), size));
    }
    if !SECTOR_BYTES.is_multiple_of(minimum.into()) || !size.is_multiple_of(minimum.into()) {
        return Err(NbdError::LargeBlocks(export(), minimum));
    }
    if u64::from(info.maximum_block_bytes) < SECTOR_BYTES {
        let maximum = info.maximum_block_bytes;
        return Err(NbdError::SmallRequests(export(), maximum));
    }
    Ok(Connected { socket, info })
}

/// Sets TCP keep-alive times, so that the kernel detects an unreachable server.
fn watch(socket: &OwnedFd) -> io::Result<()> {
    if sockopt::socket_domain(socket)? == rustix::net::AddressFamily::UNIX {
        return Ok(());
    }
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 3)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// An NBD export, and the timeout for its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdName {
    /// The server's address and the export's name.
    pub uri: Uri,
    /// The time after which an unanswered operation fails; without it operations wait for the
    /// server.
    pub timeout: Option<Duration>,
}

/// Prints the URI of the export.
impl fmt::Display for NbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

/// The reason why an export could not be opened. The first field of each variant names the export.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The server could not be reached, or did not grant the export.
    #[error("cannot use export {export}: {source}")]
    Client {
        /// The URI of the export.
        export: String,
        /// The error of the NBD client.
        source: ClientError,
    },
    /// The export is read-only, but is needed for writing.
    #[error("export {0} is read-only; serve it read-only")]
    ReadOnly(String),
    /// The export's size is not a positive multiple of 512 bytes.
    #[error("export {0} has {1} bytes, which is not a positive multiple of 512")]
    OddSize(String, u64),
    /// The export's minimum block size, in bytes, is larger than a sector or than the partial
    /// sector at the device's end.
    #[error(
        "export {0} takes requests in units of {1} bytes only; a device is read and \
         written in units of {SECTOR_BYTES}"
    )]
    LargeBlocks(String, u32),
    /// The export's maximum request size, in bytes, is less than a sector.
    #[error("export {0} takes requests of at most {1} bytes; a device needs {SECTOR_BYTES}")]
    SmallRequests(String, u32),
    /// After a reconnect, the export had changed in this way.
    #[error("export {0} has changed: {1}")]
    Changed(String, String),
    /// The system could not provide a thread, ring or socket.
    #[error("cannot serve the connection to export {export}: {source}")]
    System {
        /// The URI of the export.
        export: String,
        /// The system's error.
        source: io::Error,
    },
}

/// A message to the hub.
#[derive(Debug)]
pub(super) enum Event {
    Job(Job),
    /// An attempt to connect has ended.
    Connected(Result<Connected, NbdError>),
    /// Ask the server for the export's size, on a new connection.
    Measure(Sender<io::Result<u64>>),
    /// Set the timeout; operations in progress have this long from now.
    Timeout(Duration),
    End,
}

/// The state of an open export that all its handles and the hub share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: NbdName,
    pub(super) read_only: bool,
    pub(super) mailbox: Mailbox<Event>,
    /// Size in bytes when last measured. No other memory depends on it, so relaxed loads and stores
    /// suffice.
    pub(super) size: AtomicU64,
}

impl Shared {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
}
