//! The client's socket: TCP or Unix, with a receive buffer, timeouts, and sends that never block.
//!
//! Sends are non-blocking so that a client with much in flight can receive while its socket is
//! full; receives block. Short fields come out of a 64 KiB buffer; long data bypasses it and is
//! received into its destination.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use floe_nbd::client::{ClientError, Transport};
use floe_nbd::uri::{Address, Uri};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection to a server over TCP or a Unix socket.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    /// The receive buffer; `buffer[start..end]` is received but not consumed.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    timeout: Option<Timespec>,
}

impl Transport for Socket {
    fn connect(uri: &Uri, timeout: Option<Duration>) -> Result<Self, ClientError> {
        let no_tls = || io::Error::new(ErrorKind::Unsupported, "this client does not speak TLS");
        let stream = match &uri.address {
            _ if uri.tls => Err(no_tls()),
            Address::Tcp { host, port } => connect_tcp(host, *port, timeout),
            Address::Unix(path) => match uri.address.abstract_name() {
                Some(name) => SocketAddr::from_abstract_name(name)
                    .and_then(|address| UnixStream::connect_addr(&address)),
                None => UnixStream::connect(path),
            }
            .and_then(|stream| stream.set_read_timeout(timeout).map(|()| Stream::Unix(stream))),
        };
        let stream =
            stream.map_err(|source| ClientError::Connect { uri: uri.to_string(), source })?;
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        Ok(Self {
            stream,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            timeout,
        })
    }

    fn send_some(
        &mut self,
        header: &[u8],
        payload: &[u8],
        sent: usize,
    ) -> Result<usize, ClientError> {
        let rest = header.get(sent..).unwrap_or(&[]);
        let slices =
            [IoSlice::new(rest), IoSlice::new(&payload[sent.saturating_sub(header.len())..])];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(self.fd(), &slices, &mut SendAncillaryBuffer::default(), flags) {
            Ok(bytes) => Ok(bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ClientError::HungUp),
            Err(errno) => Err(ClientError::Io(errno.into())),
        }
    }

    fn send_all(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send_some(bytes, &[], sent)? {
                0 => drop(self.wait(PollFlags::OUT)?),
                more => sent += more,
            }
        }
        Ok(())
    }

    fn wait_to_send_or_receive(&mut self) -> Result<bool, ClientError> {
        let ready = self.wait(PollFlags::OUT | PollFlags::IN)?;
        Ok(ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    fn receive_exact(&mut self, mut data: &mut [u8]) -> Result<(), ClientError> {
        while !data.is_empty() {
            if self.start < self.end {
                let here = data.len().min(self.end - self.start);
                let (filled, rest) = data.split_at_mut(here);
                filled.copy_from_slice(&self.buffer[self.start..self.start + here]);
                self.start += here;
                data = rest;
            } else if data.len() >= BUFFER_BYTES {
                let bytes = receive(&mut self.stream, data)?;
                data = &mut data[bytes..];
            } else {
                (self.start, self.end) = (0, receive(&mut self.stream, &mut self.buffer)?);
            }
        }
        Ok(())
    }
}

impl Socket {
    /// Returns the descriptor of the connection, for a driver that takes over.
    pub(super) fn into_fd(self) -> Result<OwnedFd, ClientError> {
        if self.start < self.end {
            let early = "it sent a message that was not requested";
            return Err(ClientError::Protocol(early.to_owned()));
        }
        Ok(match self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(None)?;
                stream.into()
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(None)?;
                stream.into()
            }
        })
    }

    fn wait(&self, events: PollFlags) -> Result<PollFlags, ClientError> {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), events)];
        loop {
            match poll(&mut fds, self.timeout.as_ref()) {
                Ok(0) => return Err(ClientError::Timeout),
                Ok(_) => return Ok(fds[0].revents()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ClientError::Io(errno.into())),
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Connects to the first address of the host that accepts. Returns the last error if none does.
fn connect_tcp(host: &str, port: u16, timeout: Option<Duration>) -> io::Result<Stream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let attempt = match timeout {
            Some(timeout) => TcpStream::connect_timeout(&address, timeout),
            None => TcpStream::connect(address),
        };
        match attempt {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(timeout)?;
                return Ok(Stream::Tcp(stream));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Receives at least one byte, and waits for it.
fn receive(stream: &mut Stream, data: &mut [u8]) -> Result<usize, ClientError> {
    loop {
        let received = match stream {
            Stream::Tcp(stream) => stream.read(data),
            Stream::Unix(stream) => stream.read(data),
        };
        match received {
            Ok(0) => return Err(ClientError::HungUp),
            Ok(bytes) => return Ok(bytes),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(ClientError::Timeout),
                ErrorKind::ConnectionReset => return Err(ClientError::HungUp),
                _ => return Err(ClientError::Io(error)),
            },
        }
    }
}
