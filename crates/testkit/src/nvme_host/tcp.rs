//! A blocking NVMe host over TCP, built on [`TcpSocket`].
//!
//! Sends are non-blocking so that a host with much in flight can receive while its socket is full;
//! receives block.

use std::io::{self, ErrorKind, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::{HostError, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// A controller that is reached over TCP.
pub type Controller = super::Controller<TcpSocket>;

/// An I/O queue over TCP.
pub type IoQueue = super::IoQueue<TcpSocket>;

/// A TCP connection to a controller.
#[derive(Debug)]
pub struct TcpSocket {
    stream: TcpStream,
    timeout: Option<Timespec>,
}

impl Transport for TcpSocket {
    fn connect(address: &str, timeout: Option<Duration>) -> Result<Self, HostError> {
        let stream = connect(address, timeout)
            .map_err(|source| HostError::Connect { address: address.to_owned(), source })?;
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        Ok(Self { stream, timeout })
    }

    fn send_some(&mut self, bytes: &[u8]) -> Result<usize, HostError> {
        match send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(bytes) => Ok(bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(HostError::HungUp),
            Err(errno) => Err(HostError::Io(errno.into())),
        }
    }

    fn receive_some(&mut self, bytes: &mut [u8]) -> Result<usize, HostError> {
        loop {
            match self.stream.read(bytes) {
                Ok(0) => return Err(HostError::HungUp),
                Ok(bytes) => return Ok(bytes),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(HostError::Timeout),
                    ErrorKind::ConnectionReset => return Err(HostError::HungUp),
                    _ => return Err(HostError::Io(error)),
                },
            }
        }
    }

    fn wait_to_send_or_receive(&mut self) -> Result<bool, HostError> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT | PollFlags::IN)];
        loop {
            match poll(&mut fds, self.timeout.as_ref()) {
                Ok(0) => return Err(HostError::Timeout),
                Ok(_) => {
                    let arrived = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
                    return Ok(fds[0].revents().intersects(arrived));
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(HostError::Io(errno.into())),
            }
        }
    }
}

/// Tries every address of the host in turn. If all fail, returns the last error.
fn connect(address: &str, timeout: Option<Duration>) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        let attempt = match timeout {
            Some(timeout) => TcpStream::connect_timeout(&address, timeout),
            None => TcpStream::connect(address),
        };
        match attempt {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(timeout)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
