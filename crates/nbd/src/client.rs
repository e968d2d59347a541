//! A blocking NBD client over any [`Transport`].
//!
//! The simple style is one call for each request: [`Client::read`], [`Client::write`],
//! [`Client::flush`] and so on. The other keeps many requests in flight on one connection:
//! `submit_*` returns a [`Cookie`], and [`Client::next_reply`] the next finished request in the
//! order of the server. Both styles can be mixed. A submission never deadlocks against a server
//! that is itself waiting to send: while the socket is full, the client receives and stores
//! replies. Source: proto.md, client's side throughout.
//!
//! Invariants: stored replies are bounded by the requests that the caller submitted and has not
//! fetched. An error of the connection (not of a request) is final: every later call fails.

use std::time::Duration;

use self::ledger::{Requests, request_header};
use crate::uri::Uri;
use crate::wire::{
    self, ErrorCode, client_flag, command, command_flag, handshake_flag, info, option,
    option_reply, transmission_flag, u16_at, u32_at, u64_at,
};

pub mod ledger;

/// Options of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Request structured replies from the server.
    pub structured_replies: bool,
    /// The time limit for connecting, and for each wait in which no byte moves. `None` waits for
    /// ever.
    pub timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { structured_replies: true, timeout: None }
    }
}

/// The server's description of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// The export's [`transmission_flag`]s.
    pub flags: u16,
    /// Required alignment of requests in bytes; 1 if the server specified none.
    pub minimum_block_bytes: u32,
    /// Alignment in bytes at which requests are fast; 4096 if the server specified none.
    pub preferred_block_bytes: u32,
    /// Longest read or write in bytes; 32 MiB if the server specified none.
    pub maximum_block_bytes: u32,
    /// True if structured replies were negotiated.
    pub structured_replies: bool,
}

impl Info {
    /// Returns whether all these [`transmission_flag`]s are set.
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Returns whether the export refuses writes.
    pub fn read_only(&self) -> bool {
        self.has(transmission_flag::READ_ONLY)
    }
}

/// The identifier of a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Cookie(u64);

impl Cookie {
    /// Returns the request's index in the table of requests in flight. Indices are reused, so they
    /// stay below the peak number in flight.
    pub fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// A finished request.
#[derive(Debug)]
pub struct Reply {
    /// The request's cookie.
    pub cookie: Cookie,
    /// The result of the request.
    pub outcome: Result<(), RequestError>,
    /// The data of a successful read. Return it with [`Client::recycle`] to save allocations.
    pub data: Vec<u8>,
}

/// The server's refusal of one request; the connection stays usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "server failed {command} of {length} bytes at offset {offset}: {code}{}{message}",
    if .message.is_empty() { "" } else { ": " }
)]
pub struct RequestError {
    /// The name of the request's command.
    pub command: &'static str,
    /// First byte of the request's range.
    pub offset: u64,
    /// Length of the request's range in bytes.
    pub length: u32,
    /// The server's error code.
    pub code: ErrorCode,
    /// The server's error message; may be empty.
    pub message: String,
}

/// The reason why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server could not be reached.
    #[error("cannot connect to {uri}: {source}")]
    Connect {
        /// The URI of the server.
        uri: String,
        /// The error from the system.
        source: std::io::Error,
    },
    /// The server did not grant the export.
    #[error("server refused export {export:?}: {reason}")]
    Refused {
        /// The name of the requested export.
        export: String,
        /// The reason that the server gave.
        reason: String,
    },
    /// The server violated the protocol in this way.
    #[error("server broke the NBD protocol: {0}")]
    Protocol(String),
    /// Reading from or writing to the socket failed.
    #[error("connection to the NBD server failed: {0}")]
    Io(#[from] std::io::Error),
    /// The server closed the connection.
    #[error("the NBD server hung up")]
    HungUp,
    /// No byte moved for as long as [`Options::timeout`].
    #[error("the NBD server did not answer in time")]
    Timeout,
    /// The connection has failed in an earlier call.
    #[error("the NBD connection had failed before")]
    Failed,
    /// The server failed one request; the connection stays usable.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// A connection to one export.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    requests: Requests,
    info: Info,
    failed: bool,
}

impl<T: Transport> Client<T> {
    /// Connects with default [`Options`].
    ///
    /// # Errors
    /// When the server cannot be reached or does not grant the export.
    pub fn connect(uri: &Uri) -> Result<Self, ClientError> {
        Self::connect_with(uri, &Options::default())
    }

    /// Connects to an export with these options.
    ///
    /// # Errors
    /// When the server cannot be reached or does not grant the export.
    pub fn connect_with(uri: &Uri, options: &Options) -> Result<Self, ClientError> {
        let mut transport = T::connect(uri, options.timeout)?;
        let info = negotiate(&mut transport, &uri.export, options.structured_replies)?;
        Ok(Self { transport, requests: Requests::default(), info, failed: false })
    }

    /// Returns the server's description of the export.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the number of requests submitted whose replies have not been fetched.
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    /// Reads from `offset` until `data` is full, in pieces no longer than the server's maximum.
    ///
    /// # Errors
    /// When the server fails the request, or the connection fails.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let mut at = offset;
        for piece in data.chunks_mut(self.info.maximum_block_bytes as usize) {
            let cookie = self.submit_read(at, piece.len() as u32)?;
            at += piece.len() as u64;
            self.wait(cookie, piece)?;
        }
        Ok(())
    }

    /// Writes `data` at `offset`, in pieces no longer than the server's maximum. With `fua` the
    /// data is durable afterwards.
    ///
    /// # Errors
    /// See [`Client::read`].
    pub fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), ClientError> {
        let mut at = offset;
        for piece in data.chunks(self.info.maximum_block_bytes as usize) {
            let cookie = self.submit_write(at, piece, fua)?;
            at += piece.len() as u64;
            self.wait(cookie, &mut [])?;
        }
        Ok(())
    }

    /// Makes every write acknowledged so far durable.
    ///
    /// # Errors
    /// See [`Client::read`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        let cookie = self.submit_flush()?;
        self.wait(cookie, &mut [])
    }

    /// Discards a range, whose content is no longer needed.
    ///
    /// # Errors
    /// See [`Client::read`].
    pub fn trim(&mut self, offset: u64, length: u32) -> Result<(), ClientError> {
        let cookie = self.submit_trim(offset, length)?;
        self.wait(cookie, &mut [])
    }

    /// Makes a range read as zeros. With `may_unmap` its space may be deallocated.
    ///
    /// # Errors
    /// See [`Client::read`].
    pub fn write_zeroes(
        &mut self,
        offset: u64,
        length: u32,
        may_unmap: bool,
    ) -> Result<(), ClientError> {
        let cookie = self.submit_write_zeroes(offset, length, may_unmap)?;
        self.wait(cookie, &mut [])
    }

    /// Sends a read; its reply contains the data.
    ///
    /// # Errors
    /// When the connection has failed, as for every `submit_*`.
    pub fn submit_read(&mut self, offset: u64, length: u32) -> Result<Cookie, ClientError> {
        self.submit(command::READ, 0, offset, length, &[])
    }

    /// Sends a write.
    ///
    /// # Errors
    /// See [`Client::submit_read`].
    ///
    /// # Panics
    /// When `data` is longer than a request's 32-bit length allows.
    pub fn submit_write(
        &mut self,
        offset: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<Cookie, ClientError> {
        let flags = if fua { command_flag::FUA } else { 0 };
        let length = u32::try_from(data.len()).expect("a write is shorter than 4 GiB");
        self.submit(command::WRITE, flags, offset, length, data)
    }

    /// Sends a flush.
    ///
    /// # Errors
    /// See [`Client::submit_read`].
    pub fn submit_flush(&mut self) -> Result<Cookie, ClientError> {
        self.submit(command::FLUSH, 0, 0, 0, &[])
    }

    /// Sends a trim.
    ///
    /// # Errors
    /// See [`Client::submit_read`].
    pub fn submit_trim(&mut self, offset: u64, length: u32) -> Result<Cookie, ClientError> {
        self.submit(command::TRIM, 0, offset, length, &[])
    }

    /// Sends a request to zero a range.
    ///
    /// # Errors
    /// See [`Client::submit_read`].
    pub fn submit_write_zeroes(
        &mut self,
        offset: u64,
        length: u32,
        may_unmap: bool,
    ) -> Result<Cookie, ClientError> {
        let flags = if may_unmap { 0 } else { command_flag::NO_HOLE };
        self.submit(command::WRITE_ZEROES, flags, offset, length, &[])
    }

    /// Returns the next finished request, waiting for it; `None` when none is in flight. A
    /// request's failure is in [`Reply::outcome`].
    ///
    /// # Errors
    /// When the connection has failed.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ClientError> {
        self.guard(|client| {
            while client.requests.in_flight() > 0 {
                if let Some(reply) = client.requests.next_finished() {
                    return Ok(Some(reply));
                }
                client.requests.receive(&mut client.transport, &client.info, None)?;
            }
            Ok(None)
        })
    }

    /// Takes the memory of a reply for reuse by later reads.
    pub fn recycle(&mut self, data: Vec<u8>) {
        self.requests.recycle(data);
    }

    /// Disconnects gracefully. The server completes requests still in flight, but their replies are
    /// lost.
    ///
    /// # Errors
    /// When the disconnect request cannot be sent.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        let header = request_header(command::DISC, 0, Cookie(0), 0, 0);
        self.guard(|client| client.transport.send_all(&header))
    }

    fn submit(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<Cookie, ClientError> {
        self.guard(|client| {
            let cookie = client.requests.begin(command, offset, length);
            let header = request_header(command, flags, cookie, offset, length);
            let mut sent = 0;
            while sent < header.len() + payload.len() {
                match client.transport.send_some(&header, payload, sent)? {
                    0 if client.transport.wait_to_send_or_receive()? => {
                        client.requests.receive(&mut client.transport, &client.info, None)?;
                    }
                    bytes => sent += bytes,
                }
            }
            Ok(cookie)
        })
    }

    /// Waits for one request. A read's data is received directly into `data`.
    fn wait(&mut self, cookie: Cookie, data: &mut [u8]) -> Result<(), ClientError> {
        let outcome = self.guard(|client| {
            while !client.requests.finished(cookie) {
                client.requests.receive(
                    &mut client.transport,
                    &client.info,
                    Some((cookie, &mut *data)),
                )?;
            }
            Ok(client.requests.take(cookie).outcome)
        })?;
        Ok(outcome?)
    }

    /// Runs a step of the connection, and marks the connection as failed if the step fails.
    fn guard<R>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        if self.failed {
            return Err(ClientError::Failed);
        }
        let result = act(self);
        self.failed = result.is_err();
        result
    }
}

/// A byte stream between a client and its server.
///
/// Receiving blocks. Sending does not, so that a client with many requests in flight can receive
/// while the server's buffers are full.
pub trait Transport: Sized {
    /// Connects to the server of a URI. The `timeout` limits the time to connect, and each later
    /// wait in which no byte moves.
    ///
    /// # Errors
    /// When the server cannot be reached.
    fn connect(uri: &Uri, timeout: Option<Duration>) -> Result<Self, ClientError>;

    /// Sends part of `header` followed by `payload`, from byte `sent` on, without blocking. Returns
    /// the number of bytes sent: 0 if the socket is full.
    ///
    /// # Errors
    /// When the connection fails.
    fn send_some(
        &mut self,
        header: &[u8],
        payload: &[u8],
        sent: usize,
    ) -> Result<usize, ClientError>;

    /// Sends all bytes, waiting as needed. Must be used only when no request is in flight, since
    /// the server might be sending.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn send_all(&mut self, bytes: &[u8]) -> Result<(), ClientError>;

    /// Waits until more can be sent or bytes have arrived. Returns whether bytes have arrived.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn wait_to_send_or_receive(&mut self) -> Result<bool, ClientError>;

    /// Fills `data`, waiting as needed.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn receive_exact(&mut self, data: &mut [u8]) -> Result<(), ClientError>;

    /// Receives a field of fixed size.
    ///
    /// # Errors
    /// See [`Transport::send_some`].
    fn receive_array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let mut array = [0; N];
        self.receive_exact(&mut array)?;
        Ok(array)
    }
}

const REPLY_MAX_BYTES: u32 = 16 << 10;
const REPLIES_MAX: usize = 64;

/// Negotiates until the export is granted; for clients with a driver of their own.
///
/// # Errors
/// When the connection fails, or the server does not grant the export.
pub fn negotiate(
    transport: &mut impl Transport,
    export: &str,
    structured: bool,
) -> Result<Info, ClientError> {
    let greeting: [u8; wire::GREETING_BYTES] = transport.receive_array()?;
    if u64_at(&greeting, 0) != wire::SERVER_MAGIC {
        return broken("it does not greet as an NBD server");
    }
    if u64_at(&greeting, 8) != wire::OPTION_MAGIC {
        return broken("it speaks only the old style of negotiation");
    }
    let offered = u16_at(&greeting, 16);
    let fixed = offered & handshake_flag::FIXED_NEWSTYLE != 0;
    let no_zeroes = offered & handshake_flag::NO_ZEROES != 0;
    let mut flags = 0;
    if fixed {
        flags |= client_flag::FIXED_NEWSTYLE;
    }
    if no_zeroes {
        flags |= client_flag::NO_ZEROES;
    }
    transport.send_all(&flags.to_be_bytes())?;

    let mut granted = Info {
        size_bytes: 0,
        flags: 0,
        minimum_block_bytes: 1,
        preferred_block_bytes: 4096,
        maximum_block_bytes: 32 << 20,
        structured_replies: false,
    };
    if fixed {
        if structured {
            send_option(transport, option::STRUCTURED_REPLY, &[])?;
            let (kind, _) = reply(transport, option::STRUCTURED_REPLY)?;
            granted.structured_replies = kind == option_reply::ACK;
        }
        if go(transport, export, &mut granted)? {
            return Ok(granted);
        }
    }
    send_option(transport, option::EXPORT_NAME, export.as_bytes())?;
    let answer: [u8; 10] = transport.receive_array().map_err(|error| match error {
        // The only way a server can refuse this option.
        ClientError::HungUp => refused(export, "it hung up"),
        other => other,
    })?;
    (granted.size_bytes, granted.flags) = (u64_at(&answer, 0), u16_at(&answer, 8));
    if !no_zeroes {
        let _: [u8; wire::EXPORT_NAME_ZEROES_BYTES] = transport.receive_array()?;
    }
    Ok(granted)
}

/// Requests the export with `GO`. Returns `false` if the server does not support that option.
fn go(
    transport: &mut impl Transport,
    export: &str,
    granted: &mut Info,
) -> Result<bool, ClientError> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    send_option(transport, option::GO, &data)?;
    let mut described = false;
    for _ in 0..REPLIES_MAX {
        let (kind, data) = reply(transport, option::GO)?;
        match kind {
            option_reply::ACK if described => return Ok(true),
            option_reply::ACK => return broken("it granted the export without telling its size"),
            option_reply::ERR_UNSUP => return Ok(false),
            option_reply::INFO if data.len() < 2 => {
                return broken("an information reply is too short");
            }
            option_reply::INFO => match (u16_at(&data, 0), data.len()) {
                (info::EXPORT, 12) => {
                    (granted.size_bytes, granted.flags) = (u64_at(&data, 2), u16_at(&data, 10));
                    described = true;
                }
                (info::BLOCK_SIZE, 14) => {
                    granted.minimum_block_bytes = u32_at(&data, 2);
                    granted.preferred_block_bytes = u32_at(&data, 6);
                    granted.maximum_block_bytes = u32_at(&data, 10);
                    if granted.maximum_block_bytes == 0 {
                        return broken("its maximum block size is 0");
                    }
                }
                (info::EXPORT | info::BLOCK_SIZE, _) => {
                    return broken("an information reply has a wrong length");
                }
                _ => {}
            },
            kind if kind & option_reply::ERROR_BIT != 0 => {
                let name = match kind {
                    option_reply::ERR_UNKNOWN => "no such export".to_owned(),
                    option_reply::ERR_TLS_REQD => "it insists on TLS".to_owned(),
                    option_reply::ERR_POLICY => "forbidden".to_owned(),
                    option_reply::ERR_SHUTDOWN => "it is shutting down".to_owned(),
                    other => format!("error {other:#x}"),
                };
                let message = String::from_utf8_lossy(&data);
                let reason = if data.is_empty() { name } else { format!("{name} ({message})") };
                return Err(refused(export, &reason));
            }
            kind => return broken(&format!("reply type {kind} to GO")),
        }
    }
    broken("too many replies to GO")
}

fn send_option(
    transport: &mut impl Transport,
    option: u32,
    data: &[u8],
) -> Result<(), ClientError> {
    let mut message = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    transport.send_all(&message)
}

/// Receives one reply to an option. Returns its type and data.
fn reply(transport: &mut impl Transport, option: u32) -> Result<(u32, Vec<u8>), ClientError> {
    let header: [u8; wire::OPTION_REPLY_HEADER_BYTES] = transport.receive_array()?;
    let (kind, length) = (u32_at(&header, 12), u32_at(&header, 16));
    if u64_at(&header, 0) != wire::OPTION_REPLY_MAGIC {
        return broken("an option reply has a bad magic number");
    }
    if u32_at(&header, 8) != option {
        return broken("an option reply is for another option");
    }
    if length > REPLY_MAX_BYTES {
        return broken("an option reply is too long");
    }
    let mut data = vec![0; length as usize];
    transport.receive_exact(&mut data)?;
    Ok((kind, data))
}

fn broken<T>(what: &str) -> Result<T, ClientError> {
    Err(ClientError::Protocol(what.to_owned()))
}

fn refused(export: &str, reason: &str) -> ClientError {
    ClientError::Refused { export: export.to_owned(), reason: reason.to_owned() }
}
